"""The memory of a program on one processor: its peak and what is alive then.

Found by liveness on the traced program, by the rules of each target's compiler: nothing is compiled. `range` says how
far the compiler's own peak may lie from it.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import WeftError, closest
from ..graph import Body, Value
from ..text import size_text
from . import liveness
from .array_type import ArrayType
from .memory_course import RULES, Course, Point, Rules, at_most
from .memory_names import Names

_SHOWN = 8
_OTHER = 0.7
_AGAIN = 0.9
_MORE = 1.25
_SMALL = 2**20  # what alignment and many small buffers may add


@dataclass(frozen=True)
class Alive:
    """One array in memory at the peak."""

    name: str
    """What the user calls it: the path of an argument, a variable, the text of an op."""
    array_type: ArrayType
    bytes: int
    """Of what one processor holds."""
    kind: str
    """`argument`, `saved` (for the gradients), `temporary` or `output`."""
    phase: str
    source: str

    @property
    def type(self) -> str:
        """The type as it is printed."""
        return str(self.array_type)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {name: getattr(self, name) for name in ("name", "type", "bytes", "kind", "phase", "source")}


@dataclass(frozen=True)
class Moment:
    """One point of the program's course, and what is in memory then."""

    label: str
    phase: str
    source: str
    bytes: int
    op: int | None
    """The number of the op's entry in the record."""


class Memory:
    """What a program holds in one processor's memory on a `gpu`, `tpu` or `cpu`."""

    def __init__(
        self,
        program: Body,
        mesh_axes: dict[str, int],
        names: Names,
        target: str,
        scores: Mapping[Value, int] | None = None,
    ):
        if target not in RULES:
            raise WeftError(f"there is no target `{target}`", fix=closest(target, RULES))
        self.target, self._names, self._program, self._mesh_axes = target, names, program, mesh_axes
        rules = RULES[target]
        size = liveness.tiled_size if rules.is_tiled else liveness.plain_size

        def course(rules: Rules, *, is_late: bool = False) -> Course:
            body = liveness.read(program, mesh_axes, size, scores)
            if rules.is_tiled:
                liveness.cast_before_remats(body)
            if is_late:
                liveness.recompute_first(body)
            return Course(body, rules, body.inputs, kept=[not is_gone for is_gone in donated])

        donated = [i < len(names.given) and names.given[i].is_donated for i in range(len(program.inputs))]
        self._course = course(rules)
        body = self._course.body
        self.arguments = sum(value.bytes for value in body.inputs)
        self.outputs = sum(value.bytes for value in body.results)
        self.donated = sum(value.bytes for value, is_gone in zip(body.inputs, donated, strict=True) if is_gone)
        self.peak = self._course.peak
        is_late = self._course.recomputes_outside_loops
        self._most = max(self.peak, course(at_most(rules), is_late=is_late).peak)

    @functools.cached_property
    def host(self) -> int:
        """The most that lies in the memory of the host for one processor (offload)."""
        body = liveness.read(self._program, self._mesh_axes, of_host=True)
        kept = [not (i < len(self._names.given) and self._names.given[i].is_donated) for i in range(len(body.inputs))]
        return Course(body, RULES["cpu"], body.inputs, kept=kept).peak

    @property
    def range(self) -> tuple[int, int]:
        """The least and most the compiler's own peak may be; only arguments are exact."""
        low, high = RULES[self.target].margins
        if not self._course.is_usual:
            low, high = low - _OTHER, high + _OTHER
        if self._course.writes_after_loops:
            high += _AGAIN  # what a loop carried may be copied before it is written to
        # A second copy of a stack may be there, and a turn may store what it could fold. What is computed again may
        # all be there at a time outside of loops: no loop's end bounds how early the compiler begins with it.
        most = self._most - self.arguments + max((value.bytes for value in self._course.turned_stacks), default=0)
        rest = self.peak - self.arguments
        return self.arguments + int(rest * max(low, 0)), self.arguments + max(
            int(rest * high), int(most * _MORE)
        ) + _SMALL

    def fits(self, capacity: int) -> bool:
        """Whether the program surely fits into so many bytes."""
        return self.range[1] <= capacity

    @functools.cached_property
    def alive(self) -> list[Alive]:
        """What is in memory at the peak, the largest first; together it is the peak."""
        results = {id(value) for value in self._course.body.results}
        alive = []
        for value, course in self._course.alive():
            called = self._names.describe(value, course)
            if course.around is None and value.maker is None:
                kind = "argument"
            elif course.around is None and id(value) in results:
                kind = "output"
            else:
                kind = "saved" if self._is_saved(value, course) else "temporary"
            alive.append(Alive(called.name, called.type, value.bytes, kind, called.phase, called.source))
        return sorted(alive, key=lambda array: -array.bytes)

    @functools.cached_property
    def given(self) -> list[Alive]:
        """The arguments as one processor holds them, in the order of the inputs."""
        called = [(value, self._names.describe(value, self._course)) for value in self._course.body.inputs]
        return [Alive(name.name, name.type, value.bytes, "argument", name.phase, name.source) for value, name in called]

    @property
    def cache(self) -> list[Alive]:
        """The KV cache that a step of decoding is given: those of `memory_length`."""
        return [array for array in self.given if "memory_length" in array.array_type.names]

    def _is_saved(self, value: Any, course: Course) -> bool:
        """Whether the backward pass needs what the forward pass made."""
        if value.maker is None or self._names.phase(value.maker) != "forward":
            return False
        if value.last >= course.end:
            return False
        return self._names.phase(course.body.tasks[value.last]) in ("backward", "recompute")

    @functools.cached_property
    def course(self) -> list[Moment]:
        """What is in memory from the program's start to its end, loops entered once."""
        return [self._moment(point, base) for point, base in _flat(self._course.points, 0)]

    def _moment(self, point: Point, base: int) -> Moment:
        label = self._names.label(point.task)
        return Moment(label.text, label.phase, label.source, base + point.bytes, label.op)

    def to_dict(self) -> dict[str, Any]:
        """The memory as plain values."""
        return {
            "target": self.target,
            "arguments": self.arguments,
            "outputs": self.outputs,
            "donated": self.donated,
            "peak": self.peak,
            "host": self.host,
            "range": list(self.range),
            "alive": [array.to_dict() for array in self.alive],
        }

    def __str__(self) -> str:
        low, high = self.range
        head = f"memory on each processor ({self.target}): peak {size_text(self.peak)}"
        head += f" ({size_text(low)} to {size_text(high)}), of it arguments {size_text(self.arguments)}"
        head += f"; beside it {size_text(self.host)} on the host" if self.host else ""
        shown = self.alive[:_SHOWN]
        widths = [max((len(getattr(array, part)) for array in shown), default=0) for part in ("name", "type", "kind")]
        rows = [
            f"  {size_text(array.bytes):>10}  {array.name:{widths[0]}}  {array.type:{widths[1]}}  "
            f"{array.kind:{widths[2]}}  {array.source}".rstrip()
            for array in shown
        ]
        rest = self.alive[_SHOWN:]
        if rest:
            rows.append(f"  {size_text(sum(array.bytes for array in rest)):>10}  {len(rest)} more")
        return "\n".join([head, *rows])


def _flat(points: list[Point], base: int) -> Any:
    for point in points:
        if point.inner:
            yield from _flat(point.inner, base + point.base)
        else:
            yield point, base
