"""Names of the values in a program's memory.

Arguments go by their path, the rest by the op that made them.

Joins what `liveness` read off the jaxpr with the record, as the listing does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..graph import Loop
from ..layout import Region
from ..record import Entry, Placed
from ..spmd import Input
from .array_type import ArrayDim, ArrayType, named_type, placed_type, unnamed_type
from .liveness import Buffer, Task
from .memory_course import Course
from .reading import Reading


@dataclass(frozen=True)
class Called:
    """What a value is called, its type, and where it comes from."""

    name: str
    type: ArrayType
    phase: str = ""
    source: str = ""


@dataclass(frozen=True)
class Label:
    """What a piece of work is called as a point of the program's course."""

    text: str
    phase: str
    source: str
    op: int | None


class Names:
    """What the values of one program are called."""

    def __init__(self, reading: Reading, given: Sequence[Input], region: Region):
        self.reading, self.given, self.region = reading, given, region

    def describe(self, value: Buffer, course: Course) -> Called:
        """The name, the placed type, the phase and the source of a value."""
        if value.maker is None:
            return self._input(value, course)
        work = value.maker
        if work.bodies:
            return self._of_loop(value, work, course)
        step, phase = work.step, work.step.phase
        entry = self.reading.entry(step.op)
        if entry is None:
            is_update = phase == "update"
            name, site = ("update", str(self.reading.update_site)) if is_update else (step.row.name, "")
            return Called(name, unnamed_type(value.aval), phase, site)
        if phase == "backward" and entry.traits.is_cast and work.operands[0].maker is not None:
            called = self.describe(work.operands[0], course)  # the gradient of what was cast is the cast gradient
            return replace(called, type=replace(called.type, dtype=value.aval.dtype))
        name, placed = self._match_tensor(value, entry, step.operand, phase)
        type_ = placed_type(placed) if placed else unnamed_type(value.aval)
        return Called(name, type_, phase, str(self.reading.site(entry)))

    def phase(self, work: Task) -> str:
        return work.step.phase

    def label(self, work: Task) -> Label:
        """What a piece of work is called as a point of the program's course."""
        op, phase = work.step.op, work.step.phase
        entry = self.reading.entry(op)
        if entry is None:
            return Label(work.step.row.name, phase, "", op)
        text = self.reading.text(entry)
        return Label(f"gradient of {text}" if phase == "backward" else text, phase, str(self.reading.site(entry)), op)

    def _match_tensor(self, value: Buffer, entry: Entry, operand: int | None, phase: str) -> tuple[str, Placed | None]:
        """The tensor of an op that a value is, by size: result, operand or gradient."""
        elements, dtype = math.prod(value.aval.shape), value.aval.dtype
        own = self.reading.name(entry) or self.reading.text(entry)
        if phase == "backward":
            for index, placed in enumerate(entry.operands):
                if placed is not None and self._elements(placed, entry) == elements:
                    of = self.reading.operand_name(entry.id, index)
                    name = f"d {of}" if of else f"gradient of {own}"
                    held = tuple(entry.dims.get(dim.name, ()) for dim in placed.dims)
                    return name, replace(placed, dtype=dtype, placement=held)
            return f"gradient of {own}", None
        if operand is not None and operand < len(entry.operands):
            brought = entry.operands[operand]
            name = self.reading.operand_name(entry.id, operand) or own
            if brought is not None and self._elements(brought, entry) == elements:
                return name, replace(
                    brought, dtype=dtype, placement=tuple(entry.dims.get(dim.name, ()) for dim in brought.dims)
                )
            return name, None
        for placed in entry.results:
            if self.reading.local_elements(placed, _axes_by_dim(placed)) == elements:
                return own, replace(placed, dtype=dtype)
        return f"part of {own}", None

    def _elements(self, placed: Placed, entry: Entry) -> int:
        return self.reading.local_elements(placed, _axes_by_dim(placed) | entry.dims) * self.reading.mapped_times(entry)

    def _input(self, value: Buffer, course: Course) -> Called:
        plain = unnamed_type(value.aval)
        if value.index is None:
            return Called("a constant", plain)
        if course.around is None:
            return self._argument(value)
        if (found := course.outside(value.index)) is None:
            return Called("carried", plain, self.phase(course.around[1]))
        called = self.describe(*found)
        if found[0].aval.ndim == value.aval.ndim + 1:  # one turn's slice of it
            dims = called.type.dims
            has_more = len(dims) > 1 and dims[0].name is not None
            return replace(called, type=ArrayType(called.type.dtype, dims[1:]) if has_more else plain)
        return called

    def _argument(self, value: Buffer) -> Called:
        assert value.index is not None
        plain = unnamed_type(value.aval)
        given = self.given[value.index] if value.index < len(self.given) else None
        if given is None:
            return Called(f"argument {value.index}", plain)
        if given.dims is None or tuple(value.aval.shape) != given.dims.sizes:
            return Called(given.name, plain)
        placement = self.region.placement(given.dims, given.store)
        return Called(given.name, named_type(value.aval.dtype, given.dims, placement))

    def _of_loop(self, value: Buffer, work: Task, course: Course) -> Called:
        """A loop's result by what makes it inside; if stacked, the loop's dim is first."""
        index = next(i for i, result in enumerate(work.results) if result is value)
        inner = course.inner(work)
        body = inner.body
        offset = len(body.results) - len(work.results)
        called = self.describe(body.results[index + offset], inner)
        loop = work.step
        if isinstance(loop, Loop) and loop.turns is not None and index >= loop.parts[1]:
            entry = self.reading.entry(loop.op)
            name = entry.over[0] if entry is not None and entry.over else None
            turns = ArrayDim(name, loop.turns)
            return replace(called, type=ArrayType(called.type.dtype, (turns, *called.type.dims)))
        return called


def _axes_by_dim(placed: Placed) -> dict[str, tuple[str, ...]]:
    return dict(zip(placed.dims.names, placed.placement, strict=True))
