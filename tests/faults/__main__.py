"""`python -m tests.faults`: puts each fault of the table into a copy of the tree, and sees which test catches it."""

import argparse
import concurrent.futures
import contextlib
import importlib.util
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .table import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "runs", "faults", "*.egg-info", "build", "dist")
_PYTEST = [sys.executable, "-m", "pytest", "-x", "-m", "not slow", "-p", "no:cacheprovider", "--tb=line"]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (?P<test>.*?)(?: - (?P<why>.*))?$", re.MULTILINE)
_NOTHING_FAILED, _NOTHING_RAN = 0, 5
_TOO_LONG = "NOT CAUGHT IN TIME"


@dataclass(frozen=True)
class Failure:
    """A test that failed; the name is empty where the process ended otherwise."""

    test: str
    why: str

    def __str__(self) -> str:
        return f"{self.test.removeprefix('tests/'):.110}  {self.why.split(':')[0]:.40}"


@dataclass(frozen=True)
class Outcome:
    """What became of a fault."""

    fault: Fault
    caught_by: Failure | None
    """The first test that failed."""
    fails_anyway: bool
    """Whether that test fails without the fault too: then it caught nothing."""
    seconds: float

    @property
    def has_survived(self) -> bool:
        return self.caught_by is None or self.fails_anyway or self.caught_by.why == _TOO_LONG

    def __str__(self) -> str:
        end = "SURVIVED" if self.caught_by is None else str(self.caught_by)
        anyway = "SURVIVED, for without it too there fails: " if self.fails_anyway else ""
        return f"{self.fault.name:60}  {self.seconds:6.1f} s  {anyway}{end}"


class Tree:
    """A copy of the tree that one fault at a time is put into."""

    def __init__(self, folder: Path):
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=_LEFT_OUT)

    def write(self, fault: Fault, text: str) -> None:
        """Writes the file of a fault, and forgets what Python compiled of it."""
        path = self.folder / fault.file
        path.write_text(text, encoding="utf-8")
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def test(self, arguments: list[str], timeout: float) -> Failure | None:
        """The first test that fails, if one does in time."""
        environment = os.environ | {"PYTHONPATH": str(self.folder), "COLUMNS": "300"}
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [*_PYTEST, *arguments],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                return Failure("", _TOO_LONG)
            finally:
                _end_group(process)
            output.seek(0)
            text = output.read()
        if status in (_NOTHING_FAILED, _NOTHING_RAN):
            return None
        if (found := _FAILED.search(text)) is not None:
            return Failure(found["test"], found["why"] or "")
        if status < 0:
            return Failure("", f"ended by signal {-status}")
        raise RuntimeError(f"pytest {shlex.join(arguments)} ended with {status}:\n{text[-2000:]}")


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def try_fault(fault: Fault, tree: Tree, whole: bool, timeout: float) -> Outcome:
    """Puts a fault in, runs the tests near it, then all of them if these pass and it is asked for."""
    began, right = time.monotonic(), (ROOT / fault.file).read_text(encoding="utf-8")
    tree.write(fault, fault.put_into(right))
    files = [near for near in fault.near if " -k " not in near]
    calls = [*([files] if files else []), *(shlex.split(near) for near in fault.near if " -k " in near)]
    try:
        caught = next((found for call in calls if (found := tree.test(call, timeout))), None)
        if caught is None and whole:
            caught = tree.test(["tests"], 20 * timeout)
    finally:
        tree.write(fault, right)
    fails_anyway = caught is not None and bool(caught.test) and tree.test([caught.test], timeout) is not None
    return Outcome(fault, caught, fails_anyway, time.monotonic() - began)


def summary(outcomes: list[Outcome]) -> str:
    """How many faults there are of each room, and those that survived."""
    survived = [one.fault.name for one in outcomes if one.has_survived]
    rooms = {room: sum(one.fault.room == room for one in outcomes) for room in dict.fromkeys(f.room for f in FAULTS)}
    lines = [", ".join(f"{count} of {room}" for room, count in rooms.items() if count)]
    lines.append(f"{len(outcomes)} faults, {len(outcomes) - len(survived)} caught, {len(survived)} survived")
    return "\n".join([*lines, *(f"  survived: {name}" for name in survived)])


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    options.add_argument("--only", action="append", help="faults whose name has this in it; may be said several times")
    how = options.add_mutually_exclusive_group()
    how.add_argument("--near", action="store_true", help="run the tests near a fault alone (so it is unless told)")
    how.add_argument("--whole", action="store_true", help="run all tests for a fault that those near it let pass")
    options.add_argument("--workers", type=int, default=1, help="faults tried at a time, each in a copy of its own")
    options.add_argument("--timeout", type=float, default=240, help="seconds for the tests near one fault")
    given = options.parse_args()
    chosen = [fault for fault in FAULTS if not given.only or any(part in fault.name for part in given.only)]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="weft-faults-") as place:
        trees: queue.Queue[Tree] = queue.Queue()
        for number in range(given.workers):
            trees.put(Tree(Path(place) / str(number)))

        def run(fault: Fault) -> Outcome:
            tree = trees.get()
            try:
                return try_fault(fault, tree, given.whole, given.timeout)
            finally:
                trees.put(tree)

        with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
            for outcome in pool.map(run, chosen):
                outcomes.append(outcome)
                print(outcome, flush=True)
    print("\n" + summary(outcomes))
    return int(any(outcome.has_survived for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
