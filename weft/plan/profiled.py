"""A program after it ran: what each line took, beside what its plan says.

A profile gives every instant of a step to an instruction of XLA's, whose scopes say for which ops it works; one that is
fused of several is shared out by their work in it. What no op asked for (copies of XLA's, other programs, time in which
nothing ran) has rows of its own: all rows together are the step.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import WeftError
from ..layout import placement_of
from ..notebook import Page, page_of
from ..program import Program
from ..program.compiled import HloInstruction
from ..program.lines import Doer, Line, printed_lines
from ..program.step_times import MeasureError, StepTimes, Taken, measure_by, read_step_times
from ..record import Axes, entry_and_operand
from ..text import Printed, join_lines, placed_line, plural, time_text
from .cost import Plan
from .hardware import THIS, Hardware, hardware_of

VERSION = 1
_SHOWN = 12


@dataclass(eq=False)
class TimedLine:
    """A line of the printed program with what it took of a step."""

    line: Line
    own: float = 0.0
    """Seconds of the line itself; of a collective, those in which nothing else ran."""
    hidden: float = 0.0
    """Of a collective: seconds in which something else ran too."""
    own_predicted: float = 0.0
    is_shared_out: bool = False
    """Whether a part of it is a share of kernels that work for other lines too."""
    is_with_another: bool = False
    """Whether its work is counted at a line before it, with which it has one figure."""
    lines: list["TimedLine"] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds of the line and of those under it."""
        return self.own + sum(line.seconds for line in self.lines)

    @property
    def predicted(self) -> float:
        """What the plan says of the line and of those under it."""
        return self.own_predicted + sum(line.predicted for line in self.lines)

    def walk(self) -> Iterator["TimedLine"]:
        """The line and all under it, in the order of the print-out."""
        yield self
        for line in self.lines:
            yield from line.walk()

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        plain = self.line.to_dict()
        return {
            **{name: plain[name] for name in ("kind", "name", "type", "text", "source", "count")},
            "seconds": self.seconds,
            "own": self.own,
            "predicted": self.predicted,
            "hidden": self.hidden,
            "is_shared_out": self.is_shared_out,
            "is_with_another": self.is_with_another,
            "lines": [line.to_dict() for line in self.lines],
        }


@dataclass
class Other:
    """Time of a step that no line of the program has."""

    kind: str
    """`op` without a line, `xla`, `program`, `kernel` or `idle`."""
    text: str
    source: str = ""
    seconds: float = 0.0
    predicted: float = 0.0

    @property
    def is_ours(self) -> bool:
        """Whether an op of the program asked for it."""
        return self.kind == "op"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {name: getattr(self, name) for name in ("kind", "text", "source", "seconds", "predicted")}


KINDS = {True: "ours, without a line above", False: "not ours"}
"""What rows that no line has are called, by whether an op asked for them."""


class Measured:
    """A program that ran: `print(measured)` shows its lines with what they took."""

    def __init__(self, program: Program, times: StepTimes, plan: Plan | None = None):
        _check_same(program, times)
        self.program, self.times, self.plan = program, times, plan
        self.sections = [_as_timed(line) for line in program.lines]
        self._others: dict[tuple[str, str], Other] = {}
        self._lines: dict[Doer, TimedLine] = {}
        self._put_predictions()
        self._named = {doer for each in times.main.instructions.values() for doer in each.doers}
        for taken in times.taken:
            self._put(taken)
        self._add("idle", "nothing ran, within a step", times.idle_within)
        self._add("idle", "nothing ran, between steps: the host", times.idle_between)

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.times.seconds

    @property
    def lines(self) -> list[TimedLine]:
        """All lines, in the order of the print-out."""
        return [line for section in self.sections for line in section.walk()]

    @property
    def others(self) -> list[Other]:
        """What no line has, the longest first."""
        return sorted((o for o in self._others.values() if o.seconds or o.predicted), key=lambda other: -other.seconds)

    @property
    def not_ours(self) -> float:
        """Seconds of a step that no op of the program asked for."""
        return sum(other.seconds for other in self.others if not other.is_ours)

    @property
    def exposed(self) -> float:
        """Seconds of a step that go to collectives with nothing beside them."""
        return sum(line.own for line in self.lines if line.line.kind == "collective")

    @property
    def hidden(self) -> float:
        """Seconds of collectives that something else ran beside."""
        return sum(line.hidden for line in self.lines)

    def _put_predictions(self) -> None:
        """Says of each line whose work it has, and what the plan says of that."""
        left: dict[tuple[int | None, str, Axes], float] = defaultdict(float)
        for cost in self.plan.ops if self.plan is not None else ():
            left[cost.op, cost.phase, cost.axes] += cost.seconds
        for timed in self.lines:
            line = timed.line
            doers = [doer for doer in line.doers if doer not in self._lines]
            timed.is_with_another = bool(line.doers) and not doers
            self._lines |= dict.fromkeys(doers, timed)
            axes = line.sent.axes if line.sent is not None else ()
            for op, phase in {(doer.op, doer.phase) for doer in doers}:
                timed.own_predicted += left.pop((op, phase, axes), 0.0)
        for (op, phase, axes), seconds in left.items():
            self._other(Doer(op, phase), "+".join(axes)).predicted += seconds

    def _put(self, taken: Taken) -> None:
        """Puts what an instruction took where it belongs."""
        instruction = taken.instruction
        if taken.program != self.times.main.key or instruction is None:
            known = self.times.programs.get(taken.program)
            name = known.name if known is not None else taken.program
            return self._add("program" if taken.program else "kernel", name or taken.name, taken.seconds)
        shares = self._shares(instruction.doers)
        if not shares:
            return self._add("xla", self._describe_unasked(instruction), taken.seconds)
        for doer, share in shares.items():
            timed = self._find(doer)
            if timed is None:
                self._other(doer).seconds += share * taken.seconds
                continue
            timed.own += share * taken.seconds
            timed.hidden += share * taken.hidden
            timed.is_shared_out |= len(shares) > 1
        return None

    def _describe_unasked(self, instruction: HloInstruction) -> str:
        """What XLA does in the program that no scope of ours asks for."""
        entry = self.program.reading.entry(entry_and_operand(instruction.around)[0])
        place = "" if entry is None else f", in {entry.op} at {self.program.reading.site(entry)}"
        what = "copies" if instruction.is_copy else instruction.opcode
        return f"XLA's own: {what}{place}"

    def _shares(self, doers: Mapping[Doer, float]) -> Mapping[Doer, float]:
        """The shares of what an instruction works for; of joined collectives by bytes."""
        found = [self._find(doer) for doer in doers if doer.collective]
        sizes = [0 if timed is None or timed.line.sent is None else timed.line.sent.bytes for timed in found]
        if len(sizes) < len(doers) or not all(sizes):
            return doers
        return {doer: size / sum(sizes) for doer, size in zip(doers, sizes, strict=True)}

    def _find(self, doer: Doer) -> TimedLine | None:
        """The line that has this work: its own, or the next best of its op."""
        if doer in self._lines:
            return self._lines[doer]
        of_op = [(d, timed) for d, timed in self._lines.items() if (d.op, d.phase) == (doer.op, doer.phase)]
        of_op.sort(key=lambda pair: pair[0] in self._named)  # what no instruction names is not found otherwise
        for is_fit in (
            lambda d: d.collective == doer.collective,
            lambda d: bool(d.collective) == bool(doer.collective),
        ):
            if (timed := next((timed for d, timed in of_op if is_fit(d)), None)) is not None:
                return timed
        return self._lines.get(Doer(doer.op, doer.phase)) if doer.collective else None

    def _other(self, doer: Doer, axes: str = "") -> Other:
        """The row of work of ours that has no line."""
        entry = self.program.reading.entry(doer.op)
        if entry is None:
            return self._row("op", "the optimizer's update" if doer.phase == "update" else "outside of ops")
        text = f"{self.program.reading.text(entry)} ({doer.phase})"
        sent = f"sending over {axes}: " if axes else "sending: " if doer.collective else ""
        return self._row("op", sent + text, str(self.program.reading.site(entry)))

    def _add(self, kind: str, text: str, seconds: float) -> None:
        self._row(kind, text).seconds += seconds

    def _row(self, kind: str, text: str, source: str = "") -> Other:
        return self._others.setdefault((kind, text), Other(kind, text, source))

    def longest(self, most: int = _SHOWN) -> str:
        """The lines and other rows that took longest, as a table."""
        rows = [(t.own, t.own_predicted, _label(t), t.line.source) for t in self.lines if t.own]
        rows += [(other.seconds, other.predicted, other.text, other.source) for other in self.others]
        rows.sort(key=lambda row: -row[0])
        lines = [f"{'measured':>10} {'share':>6} {'predicted':>10}  what"]
        for seconds, predicted, text, source in rows[:most]:
            share = f"{seconds / self.seconds:6.1%}" if self.seconds else ""
            lines.append(f"{_cell(seconds):>10} {share} {_cell(predicted):>10}  {text[:70]:70} {source}".rstrip())
        if rows[most:]:
            rest = sum(row[0] for row in rows[most:])
            lines.append(f"{_cell(rest):>10} {rest / self.seconds:6.1%} {'':>10}  {len(rows) - most} more")
        return "\n".join(lines)

    @property
    def title(self) -> str:
        """What ran, on what, and how long a step took."""
        steps = plural(self.times.steps, "step")
        here, all_of_them = self.times.processors, self.program.mesh.size
        some = f" on {here} of {all_of_them} processors" if here < all_of_them else ""
        shared = ", virtual ones of one machine" if self.times.is_shared and all_of_them > 1 else ""
        return f"{self.program.title}: {time_text(self.seconds)} a step, of {steps} profiled{some}{shared}"

    def printed(self) -> list[Printed]:
        """The lines of the print-out, each with what it is."""
        texts = printed_lines([section.line for section in self.sections])
        rows = [Printed(self.title, "title"), *map(Printed, self._summary()), Printed("")]
        rows.append(Printed(f"{'measured':>10} {'predicted':>10}", "title"))
        for timed, text in zip(self.lines, texts, strict=True):
            row = text.behind(f"{self._cells(timed)}  ")
            rows.append(row._replace(text=(row.text + _aside(timed)).rstrip()))
        for is_ours, head in KINDS.items():
            others = [other for other in self.others if other.is_ours == is_ours]
            rows += _other_lines(head, others)
        plan = _cell(self.plan.seconds) if self.plan is not None else ""
        return [*rows, Printed(f"{_cell(self.seconds):>10} {plan:>10}  a step", "title")]

    def _summary(self) -> list[str]:
        lines = []
        if self.plan is not None:
            ratio = f"; it takes {self.seconds / self.plan.seconds:.3g} times that" if self.plan.seconds else ""
            lines.append(f"predicted for {self.plan.hardware.title}: {time_text(self.plan.seconds)} a step{ratio}")
        if self.exposed or self.hidden:
            sent = f"{time_text(self.exposed)} waited for, {time_text(self.hidden)} hidden behind other work"
            lines.append(f"collectives: {sent}")
        lines.append(f"not ours: {time_text(self.not_ours)}; ~ shares kernels with other lines, by the work of each")
        return lines

    def _cells(self, timed: TimedLine) -> str:
        if timed.is_with_another and not timed.seconds:
            return f"{'above':>10} {'':>10}"
        mark = "~" if timed.is_shared_out else ""
        predicted = _cell(timed.predicted) if self.plan is not None else ""
        return f"{mark + _cell(timed.seconds):>10} {predicted:>10}"

    def __str__(self) -> str:
        return join_lines(self.printed())

    def __repr__(self) -> str:
        return f"Measured({self.program.name!r}, {time_text(self.seconds)} a step)"

    def page(self) -> Page:
        """An HTML page about it; `save`, `open`, or show it in a notebook."""
        return page_of(self)

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """As plain values; `version` changes when their form does."""
        return {
            "version": VERSION,
            "name": self.program.name,
            "mesh": str(self.program.mesh),
            "layout": str(self.program.layout),
            "hardware": self.plan.hardware.name if self.plan is not None else None,
            "steps": self.times.steps,
            "processors": self.times.processors,
            "seconds": self.seconds,
            "predicted": self.plan.seconds if self.plan is not None else None,
            "exposed": self.exposed,
            "hidden": self.hidden,
            "not_ours": self.not_ours,
            "lines": [section.to_dict() for section in self.sections],
            "others": [other.to_dict() for other in self.others],
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1)


def _as_timed(line: Line) -> TimedLine:
    return TimedLine(line, lines=[_as_timed(inner) for inner in line.lines])


def _cell(seconds: float) -> str:
    return time_text(seconds) if seconds else "."


def _label(timed: TimedLine) -> str:
    line = timed.line
    if line.sent is not None:
        return f"{line.type}  {line.said}"
    return f"{line.name} = {line.text}" if line.name else line.text


def _aside(timed: TimedLine) -> str:
    """What else is to be said of a line: what of a collective is hidden."""
    if timed.line.lines and timed.own >= 0.01 * timed.seconds > 0:
        return f"  ({time_text(timed.own)} of it around these lines)"
    return f"  ({time_text(timed.hidden)} more hidden)" if timed.hidden else ""


def _other_lines(head: str, others: Sequence[Other]) -> Iterator[Printed]:
    if not others:
        return
    total, predicted = sum(o.seconds for o in others), sum(o.predicted for o in others)
    yield Printed(f"{_cell(total):>10} {_cell(predicted):>10}  {head}", "section")
    for other in others[:_SHOWN]:
        figures = f"{_cell(other.seconds):>10} {_cell(other.predicted):>10}"
        yield placed_line(f"{figures}    {other.text}  ", other.source)
    if others[_SHOWN:]:
        rest = sum(o.seconds for o in others[_SHOWN:])
        yield Printed(f"{_cell(rest):>10} {'':>10}    {len(others) - _SHOWN} more")


def _check_same(program: Program, times: StepTimes) -> None:
    """Raises where a profile is of another program."""
    fix = "profile this program on its own mesh, or trace it on the devices that it ran on: `mesh=` with devices"
    if program.mesh.size % times.processors:  # of several processes each has its own profile
        raise MeasureError(
            f"the profile is of {plural(times.processors, 'processor')}, and the program of {program.mesh.size}",
            state=f"mesh: {program.mesh}   {times.state}",
            fix=fix,
        )
    entries = program.reading.entries
    for number, name in sorted(times.main.ops):
        here = entries[number].op if number < len(entries) else None
        if here != name:
            instead = f"op {number} is `{here}` here" if here else f"the program here has {plural(len(entries), 'op')}"
            raise MeasureError(
                f"the profile is of another program: in `{times.main.name}` op {number} is `{name}`, and {instead}",
                state=f"program: {program.title}   {times.state}",
                fix=fix,
            )
    shapes = _local_shapes(program)
    for dtype, shape in times.main.inputs:
        if dtype and shape not in shapes:
            raise MeasureError(
                f"the profile is of other sizes: `{times.main.name}` is given a {dtype}{list(shape)}",
                state=f"program: {program.title}   {times.state}",
                fix=fix,
            )


def _local_shapes(program: Program) -> set[tuple[int, ...]]:
    """The shapes of a program's arguments on one processor, and as a whole."""
    shapes: set[tuple[int, ...]] = set()
    for value in program.reading.graph.inputs:
        shapes.add(tuple(value.aval.shape))
        if value.local is not None:
            shapes.add(tuple(value.local.shape))
        spec = getattr(getattr(value.aval, "sharding", None), "spec", None) or ()
        ways = [math.prod(program.mesh.axes[axis] for axis in axes) for axes in placement_of(spec)]
        ways += [1] * (len(value.aval.shape) - len(ways))
        shapes.add(tuple(size // way for size, way in zip(value.aval.shape, ways, strict=True)))
    return shapes


def measure(program: Program, profile: Any, hardware: str | Hardware | None = None) -> Measured:
    """A program with what a profile says of it, beside its plan on the hardware."""
    times = profile if isinstance(profile, StepTimes) else read_step_times(Path(profile))
    machine = hardware if hardware is not None else _hardware_of(program, times)
    return Measured(program, times, None if machine is None else Plan(program, machine))


def _hardware_of(program: Program, times: StepTimes) -> str | Hardware | None:
    """The hardware that a program ran on, where it is known."""
    if times.is_shared:
        return THIS
    try:
        return hardware_of(program.mesh.jax_mesh().devices.flat[0])
    except WeftError:
        return None  # it ran elsewhere


measure_by(measure)
