"""What each instruction takes of a step, read from a profile that JAX wrote.

Every instant of a step is given to what ran then, so that all of them together are the step: to the kernels that
compute, in equal parts; where none does to the collectives, which are waited for then (a collective beside a kernel is
hidden); where nothing runs to nobody. Of several processors it is the mean. Virtual processors share one machine: an
instant in which any of them computes is not one in which the others wait.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from ..compat import reading_profile
from ..errors import WeftError
from ..notebook import import_drawer
from .compiled import CompiledProgram, HloInstruction, read_programs
from .cuda_graphs import name_launches
from .profile import PROGRAMS

_GPU, _HOST, _STREAM = "/device:GPU:", "/host:CPU", "Stream"


class MeasureError(WeftError):
    """A profile that cannot be read, or is not of the program."""


class _Event(NamedTuple):
    """Something that ran on a processor, in seconds since the profile began."""

    processor: int
    program: str
    """Empty where no program is named."""
    name: str
    """The instruction, or the kernel."""
    begin: float
    end: float
    kernel: str = ""
    """Of a GPU: what the kernel itself is called."""


@dataclass(frozen=True)
class Taken:
    """What one instruction, or a kernel of no program, takes of a step."""

    program: str
    name: str
    seconds: float
    """Of the step: of a collective, the time in which nothing else ran."""
    hidden: float
    """Of a collective, the time in which something else ran."""
    count: float
    """How often a processor runs it in a step."""
    instruction: HloInstruction | None
    """What the compiled program says of it."""


class StepTimes:
    """A step as it ran: `seconds`, and what each instruction took of them."""

    def __init__(self, events: Sequence[_Event], programs: Sequence[CompiledProgram], *, is_shared: bool, state: str):
        self.programs = {program.key: program for program in programs}
        self.is_shared, self.state = is_shared, state
        self.main = self._find_main(events)
        """The program that the steps run."""
        self.processors = len({event.processor for event in events if event.program == self.main.key})
        self.steps, taken, idle = 0, dict[tuple[str, str], _Sum](), [0.0, 0.0, 0.0]
        timelines = [events] if is_shared else list(_by_processor(events).values())
        for timeline in timelines:
            self._add(timeline, taken, idle, 1 / len(timelines))
        self.seconds, self.idle_within, self.idle_between = idle
        self.taken = [self._take(key, total) for key, total in taken.items()]

    def _find_main(self, events: Iterable[_Event]) -> CompiledProgram:
        """Of the programs with ops of Weft's the one that took longest."""
        took: dict[str, float] = defaultdict(float)
        for event in events:
            if event.program in self.programs and self.programs[event.program].ops:
                took[event.program] += event.end - event.begin
        if not took:
            raise MeasureError(
                "the profile holds no program with ops of Weft's",
                state=self.state,
                fix="profile calls of what `wf.spmd` or `wf.train_step` made, once they are compiled",
            )
        return self.programs[max(took, key=took.__getitem__)]

    def _add(
        self, timeline: Sequence[_Event], taken: dict[tuple[str, str], "_Sum"], idle: list[float], share: float
    ) -> None:
        """Adds what each event of a timeline takes of a step to the sums."""
        starts, ends = self._runs(timeline)
        self.steps = len(starts)
        # From the start of the first to the start of the last: all but the last have what comes after them.
        first, last, steps = (starts[0], starts[-1], len(starts) - 1) if len(starts) > 1 else (starts[0], ends[0], 1)
        idle[0] += share * (last - first) / steps
        each, parallel = share / steps, self.processors if self.is_shared else 1
        sums = [taken.setdefault((event.program, event.name), _Sum()) for event in timeline]
        ranks = [self._rank(event.program, event.name) for event in timeline]
        for event, total in zip(timeline, sums, strict=True):
            total.count += each / parallel * (first <= event.begin < last)
        for begin, end, running in _instants(timeline, ranks, first, last):
            took = each * (end - begin)
            shown = next((found for found in running[::-1] if found), ())
            for i in shown:
                sums[i].seconds += took / len(shown)
            if shown is running[_COMPUTES]:
                for i in running[_COLLECTIVE]:
                    sums[i].hidden += took / parallel
            elif not shown:
                idle[1 if any(a <= begin < b for a, b in zip(starts, ends, strict=True)) else 2] += took

    def _runs(self, timeline: Sequence[_Event]) -> tuple[list[float], list[float]]:
        """When each run of the main program began, and when it ended."""
        runs = defaultdict[str, list[_Event]](list)
        for event in timeline:
            if event.program == self.main.key and event.name in self.main.entry:
                runs[event.name].append(event)
        parallel = self.processors if self.is_shared else 1
        counts = [len(found) // parallel for found in runs.values()]
        steps = max(set(counts), key=counts.count, default=0)
        whole = [found for found in runs.values() if len(found) == steps * parallel]
        if not steps or not whole:
            raise MeasureError(
                f"the profile holds no whole run of `{self.main.name}`",
                state=self.state,
                fix="profile two steps or more, and wait for the last: `jax.block_until_ready(...)`",
            )
        rounds = [
            [event for found in whole for event in found[i * parallel : (i + 1) * parallel]] for i in range(steps)
        ]
        return [min(e.begin for e in each) for each in rounds], [max(e.end for e in each) for each in rounds]

    def _rank(self, program: str, name: str) -> int:
        instruction = self._instruction(program, name)
        if instruction is None:
            return _COMPUTES
        return _AROUND if instruction.is_around else _COLLECTIVE if instruction.collective else _COMPUTES

    def _instruction(self, program: str, name: str) -> HloInstruction | None:
        return self.programs[program].instructions.get(name) if program in self.programs else None

    def _take(self, key: tuple[str, str], total: "_Sum") -> Taken:
        return Taken(*key, total.seconds, total.hidden, total.count, self._instruction(*key))


_AROUND, _COLLECTIVE, _COMPUTES = 0, 1, 2  # whose an instant is: the highest that runs


@dataclass
class _Sum:
    seconds: float = 0.0
    hidden: float = 0.0
    count: float = 0.0


def _by_processor(events: Iterable[_Event]) -> dict[int, list[_Event]]:
    found: dict[int, list[_Event]] = defaultdict(list)
    for event in events:
        found[event.processor].append(event)
    return found


def _instants(
    events: Sequence[_Event], ranks: Sequence[int], first: float, last: float
) -> Iterator[tuple[float, float, tuple[set[int], ...]]]:
    """The stretches of time from `first` to `last`, and what runs in each by rank."""
    marks = sorted(
        (max(min(at, last), first), is_begin, i)
        for i, event in enumerate(events)
        if event.end > first and event.begin < last
        for at, is_begin in ((event.begin, True), (event.end, False))
    )
    running: tuple[set[int], ...] = (set(), set(), set())
    before = first
    for at, is_begin, i in marks:
        if at > before:
            yield before, at, running
            before = at
        (running[ranks[i]].add if is_begin else running[ranks[i]].discard)(i)
    if last > before:
        yield before, last, running


def read_step_times(folder: Path | str) -> StepTimes:
    """A step of the newest profile in a folder, as `jax.profiler.trace` wrote it."""
    folder = Path(folder)
    files = sorted(folder.rglob(f"*{PROGRAMS}"), key=lambda file: (file.parent.name, file.name))
    if not files:
        raise MeasureError(
            f"there is no profile in {folder}",
            state=f"looked for files that end in {PROGRAMS}",
            fix="write one by `jax.profiler.trace(folder)`, or by `weft train FILE --profile 10:20`",
        )
    newest = [file for file in files if file.parent == files[-1].parent]
    events, programs, is_shared = list[_Event](), dict[str, CompiledProgram](), True
    for number, file in enumerate(newest):
        found, profile = _read(file)
        programs |= {program.key: program for program in found}
        names = {name for program in found for name in program.instructions}
        with reading_profile():
            for plane in profile.planes:
                if plane.name.startswith(_GPU):
                    is_shared = False
                    events += _events_of_gpu(plane, number * _MOST + int(plane.name.removeprefix(_GPU)))
                elif plane.name == _HOST:
                    events += _events_of_host(plane, number * _MOST, names)
    events.sort(key=lambda event: event.begin)
    if not is_shared:
        events = _name_launched([event for event in events if event.kernel], programs)
    return StepTimes(events, list(programs.values()), is_shared=is_shared, state=f"profile: {newest[0].parent}")


def _read(file: Path) -> tuple[list[CompiledProgram], Any]:
    """The programs in one process's profile, and the profile as JAX reads it."""
    try:
        raw = file.read_bytes()
        return read_programs(raw), jax.profiler.ProfileData.from_serialized_xspace(raw)
    except (OSError, ValueError, LookupError, RuntimeError) as error:
        fact = f"{file} is no profile that can be read: {(str(error).splitlines() or ['it ends too soon'])[0][:200]}"
        raise MeasureError(fact, fix="profile it again, and wait for it to end") from None


_MOST = 1 << 16  # processors of one process


def _events_of_gpu(plane: Any, processor: int) -> Iterator[_Event]:
    for line in plane.lines:
        for event in line.events if line.name.startswith(_STREAM) else ():
            said, begin = dict(event.stats), event.start_ns / 1e9
            program, name = _key(said), said.get("hlo_op") or event.name
            yield _Event(processor, program, name, begin, begin + event.duration_ns / 1e9, event.name)


def _key(said: Mapping[str, Any]) -> str:
    """The program of an event as programs are called in the profile; empty if none."""
    return f"{said['hlo_module']}({said.get('program_id', 0)})" if said.get("hlo_module") else ""


def _name_launched(events: list[_Event], programs: Mapping[str, CompiledProgram]) -> list[_Event]:
    """The events of GPUs, those of kernels in CUDA graphs by their instructions."""
    launched: dict[tuple[int, str], list[int]] = defaultdict(list)
    for i, event in enumerate(events):
        if event.program in programs and event.name not in programs[event.program].instructions:
            launched[event.processor, event.program].append(i)
    for (_, name), places in launched.items():
        found = name_launches(programs[name], [events[i].kernel for i in places])
        for i, instruction in zip(places, found, strict=True):
            event = events[i]
            events[i] = (
                event._replace(name=instruction) if instruction else event._replace(program="", name=event.kernel)
            )
    return events


def _events_of_host(plane: Any, first: int, names: set[str]) -> Iterator[_Event]:
    for line in plane.lines:
        for event in line.events:
            if event.name not in names:
                continue
            said, begin = dict(event.stats), event.start_ns / 1e9
            if "hlo_op" in said and "device_ordinal" in said:
                processor, program = first + said["device_ordinal"], _key(said)
                yield _Event(processor, program, said["hlo_op"], begin, begin + event.duration_ns / 1e9)


_measure: Callable[[Any, Any, Any], Any] | None = None


def measure_by(measure: Callable[[Any, Any, Any], Any]) -> None:
    """Lets programs be measured by this function, which knows what was predicted."""
    global _measure
    _measure = measure


def measure(program: Any, profile: Any, hardware: Any) -> Any:
    """A program with what a profile says of it."""
    if _measure is None:
        import_drawer()
    assert _measure is not None, "weft.plan predicts"
    return _measure(program, profile, hardware)
