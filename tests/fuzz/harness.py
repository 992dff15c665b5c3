"""Runs a parser on changed seeds and counts: inputs by kind of mutation, what was raised, worst memory and time."""

import contextlib
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import WeftError

from .mutators import ALL, BYTES

MODULE = ["-m", "tests.fuzz"]
LONGEST = 20  # seconds that one input may take
MOST_MEMORY = 1 << 30  # bytes that all inputs together may add


class Overtime(BaseException):
    """An input took longer than any may."""


@dataclass(frozen=True)
class Parser:
    """Something that reads files: seeds by name, and what is done with a folder that holds one changed seed.

    `prepare` makes the seeds and whatever else `read` needs, once, in a folder that stays. `packed` mutations change
    what is inside a seed before it is packed.
    """

    name: str
    prepare: Callable[[Path], dict[str, bytes]]
    read: Callable[[Path, str, bytes, Path], Any]
    packed: Callable[[str, bytes, Callable[[bytes], bytes]], bytes] | None = None
    is_text: bool = True
    is_native: bool = False
    """Whether a library may end the process."""


@dataclass
class Report:
    """What became of all inputs of a parser."""

    parser: str
    inputs: Counter = field(default_factory=Counter)
    fine: int = 0
    refused: int = 0
    raw: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0
    memory: int = 0

    def to_json(self) -> str:
        return json.dumps(self.__dict__ | {"inputs": dict(self.inputs)})

    @classmethod
    def from_json(cls, text: str) -> "Report":
        found = json.loads(text)
        return cls(**found | {"inputs": Counter(found["inputs"])})


def fuzz(
    parser: Parser, *, count: int, seed: int, first: int = 0, tell: Callable[[int, Report], None] = lambda *_: None
) -> Report:
    """Reads inputs `first` up to `count`, each a pure function of the parser, the seed and its number."""
    report = Report(parser.name)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = Path(place, "kept")
        kept.mkdir()
        seeds = parser.prepare(kept)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(first, count):
            tell(number, report)
            _one(parser, seeds, kept, Path(place), seed, number, report)
        report.memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    return report


def _one(
    parser: Parser, seeds: dict[str, bytes], kept: Path, place: Path, seed: int, number: int, report: Report
) -> None:
    rng = random.Random(f"{parser.name}|{seed}|{number}")
    name = rng.choice(sorted(seeds))
    kind = rng.choice(sorted(ALL if parser.is_text else BYTES))
    if parser.packed is not None and rng.random() < 0.5:
        content = parser.packed(name, seeds[name], lambda inside: ALL[kind](rng, inside))
    else:
        content = ALL[kind](rng, seeds[name])
    report.inputs[kind] += 1
    began = time.process_time()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        try:
            with overtime_after(LONGEST):
                report.fine += _is_read(lambda: parser.read(Path(folder), name, content, kept))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            told = traceback.format_exception_only(error)[-1].strip()[:200]
            where = "; ".join(
                f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-4:]
            )
            report.raw.append(f"{parser.name} input {number} of seed {seed} ({name}, {kind}): {told} [{where}]")
    report.refused = report.inputs.total() - report.fine - len(report.raw)
    took = time.process_time() - began
    report.seconds += took
    report.slowest = max(report.slowest, took)


def _is_read(read: Callable[[], Any]) -> bool:
    """Whether it is read, or else refused by an error of the house that can be shown."""
    try:
        read()
    except WeftError as error:
        str(error).encode()
        return False
    return True


@contextlib.contextmanager
def overtime_after(seconds: int) -> Iterator[None]:
    """Raises `Overtime` inside where it takes longer; of CPU time, which other programs do not change."""

    def raised(*_: Any) -> None:
        raise Overtime(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, raised)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fuzz_in_child(parser: str, *, count: int, seed: int, first: int = 0, progress: bool = False) -> Report:
    """The same in another process; one that dies is a raw error, and the next goes on after that input."""
    whole = Report(parser)
    with tempfile.NamedTemporaryFile() as place:
        while first < count:
            given = [parser, str(first), str(count), str(seed), place.name]
            command = [sys.executable, *MODULE, "--child", *given]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
                last = ""
                for last in child.stdout or ():
                    if progress and last.startswith("at "):
                        print(f"  {parser}: {last[3:].split()[0]} of {count}", flush=True)
                said = child.stderr.read() if child.stderr else ""
            if child.returncode == 0:
                part, first = Report.from_json(last), count
            else:
                part = Report.from_json(last.split(" ", 2)[2]) if last.startswith("at ") else Report(parser)
                died = int(Path(place.name).read_bytes() or b"-1")
                end = (said.splitlines() or [""])[-1][:200]
                part.raw.append(f"{parser} input {died} of seed {seed}: the process ended ({child.returncode}): {end}")
                first = died + 1 if died >= 0 else count
            _add(whole, part)
    return whole


def _add(whole: Report, part: Report) -> None:
    whole.inputs += part.inputs
    whole.fine, whole.refused, whole.raw = whole.fine + part.fine, whole.refused + part.refused, whole.raw + part.raw
    whole.seconds += part.seconds
    whole.slowest, whole.memory = max(whole.slowest, part.slowest), max(whole.memory, part.memory)
