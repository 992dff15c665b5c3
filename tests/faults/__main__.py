"""`python -m tests.faults`: puts each fault of the table into a copy of the tree, and sees which test catches it."""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import json
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
_MOST_LEFT_OUT = 4
TOO_LONG = "NOT CAUGHT IN TIME"


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
    fail_anyway: tuple[str, ...]
    """Tests that fail without the fault too, which catch nothing: they were left out."""
    seconds: float

    def to_json(self) -> str:
        """The outcome as a line of a report."""
        caught_by = None if self.caught_by is None else dataclasses.astuple(self.caught_by)
        return json.dumps([self.fault.name, caught_by, self.fail_anyway, round(self.seconds, 1)])

    @property
    def has_survived(self) -> bool:
        return self.caught_by is None or self.caught_by.why == TOO_LONG

    def __str__(self) -> str:
        end = "SURVIVED" if self.caught_by is None else str(self.caught_by)
        anyway = f"  (fail without it too: {', '.join(self.fail_anyway)})" if self.fail_anyway else ""
        return f"{self.fault.name:60}  {self.seconds:6.1f} s  {end}{anyway}"


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
        paths = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": paths, "COLUMNS": "300"}
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
                return Failure("", TOO_LONG)
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
    files = [near for near in fault.near if " -k " not in near]
    calls = [*([files] if files else []), *(shlex.split(near) for near in fault.near if " -k " in near)]
    caught, fail_anyway = None, list[str]()
    while len(fail_anyway) < _MOST_LEFT_OUT:
        tree.write(fault, fault.put_into(right))
        left_out = [f"--deselect={test}" for test in fail_anyway]
        try:
            caught = next((found for call in calls if (found := tree.test([*call, *left_out], timeout))), None)
            if caught is None and whole:
                caught = tree.test(["tests", *left_out], 20 * timeout)
        finally:
            tree.write(fault, right)
        if caught is None or not caught.test or tree.test([caught.test], timeout) is None:
            break
        fail_anyway.append(caught.test)
        caught = None
    return Outcome(fault, caught, tuple(fail_anyway), time.monotonic() - began)


def summary(outcomes: list[Outcome]) -> str:
    """How many faults there are of each room, and those that survived."""
    survived = [one.fault.name for one in outcomes if one.has_survived]
    rooms = {room: sum(one.fault.room == room for one in outcomes) for room in dict.fromkeys(f.room for f in FAULTS)}
    lines = [", ".join(f"{count} of {room}" for room, count in rooms.items() if count)]
    lines.append(f"{len(outcomes)} faults, {len(outcomes) - len(survived)} caught, {len(survived)} survived")
    return "\n".join([*lines, *(f"  survived: {name}" for name in survived)])


def read_report(report: Path | None) -> list[Outcome]:
    """What became of the faults of a report; those that were not caught are tried again, and those that are gone."""
    if report is None or not report.exists():
        return []
    faults, outcomes = {fault.name: fault for fault in FAULTS}, []
    for line in report.read_text(encoding="utf-8").splitlines():
        name, caught_by, fail_anyway, seconds = json.loads(line)
        if name in faults:
            caught = None if caught_by is None else Failure(*caught_by)
            outcomes.append(Outcome(faults[name], caught, tuple(fail_anyway), seconds))
    return [outcome for outcome in outcomes if not outcome.has_survived]


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    options.add_argument("--only", action="append", help="faults whose name has this in it; may be said several times")
    how = options.add_mutually_exclusive_group()
    how.add_argument("--near", action="store_true", help="run the tests near a fault alone (so it is unless told)")
    how.add_argument("--whole", action="store_true", help="run all tests for a fault that those near it let pass")
    options.add_argument("--workers", type=int, default=1, help="faults tried at a time, each in a copy of its own")
    options.add_argument("--timeout", type=float, default=240, help="seconds for the tests near one fault")
    options.add_argument("--part", default="1/1", metavar="K/N", help="every Nth fault, from the Kth on")
    options.add_argument("--report", type=Path, help="a file for what became of each, which another call goes on from")
    given = options.parse_args()
    chosen = [fault for fault in FAULTS if not given.only or any(part in fault.name for part in given.only)]
    first, every = (int(number) for number in given.part.split("/"))
    chosen = chosen[first - 1 :: every]
    outcomes = [outcome for outcome in read_report(given.report) if outcome.fault in chosen]
    chosen = [fault for fault in chosen if all(outcome.fault != fault for outcome in outcomes)]
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
            for task in concurrent.futures.as_completed([pool.submit(run, fault) for fault in chosen]):
                outcomes.append(task.result())
                print(outcomes[-1], flush=True)
                if given.report is not None:
                    with given.report.open("a", encoding="utf-8") as file:
                        file.write(outcomes[-1].to_json() + "\n")
    print("\n" + summary(outcomes))
    return int(any(outcome.has_survived for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
