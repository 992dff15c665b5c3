"""What the values of a program's memory are called: arguments by their path, the rest by the op that made them.

Joins what `liveness` read off the jaxpr with the record, as the listing does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..layout import Placement, Region, typed
from ..record import Entry, Placed, entry_and_operand
from ..spmd import Input
from ..tensor import short_dtype
from .liveness import Value, Work
from .memory_course import Course
from .reading import Reading, type_text
from .walk import loop_parts, phase_of


@dataclass(frozen=True)
class Called:
    """What a value is called, its type, and where it comes from."""

    name: str
    type: str
    phase: str
    source: str
    op: int | None


class Names:
    """What the values of one program are called."""

    def __init__(self, reading: Reading, given: Sequence[Input], region: Region):
        self.reading, self.given, self.region = reading, given, region

    def called(self, value: Value, course: Course) -> Called:
        """The name, the placed type, the phase and the source of a value."""
        if value.maker is None:
            return self._input(value, course)
        work = value.maker
        if work.bodies:
            return self._of_loop(value, work, course)
        op, operand = entry_and_operand(work.scopes)
        phase = self.phase(work)
        entry = self.reading.entry(op)
        if entry is None:
            text = "update" if phase == "update" else work.kind
            return Called(text, _plain(value), phase, str(self.reading.update_site) if phase == "update" else "", op)
        site = str(self.reading.site(entry))
        if phase == "backward" and entry.op == "cast" and work.operands[0].maker is not None:
            called = self.called(work.operands[0], course)  # the gradient of what was cast is the cast gradient
            dims = called.type.partition("[")[2]
            return replace(called, type=f"{short_dtype(value.aval.dtype)}[{dims}")
        name, placed = self._matched(value, entry, operand, phase)
        return Called(name, type_text(placed) if placed else _plain(value), phase, site, op)

    def phase(self, work: Work) -> str:
        return phase_of(work.scopes, work.is_global)

    def label(self, work: Work) -> Called:
        """What a piece of work is called as a point of the program's course."""
        op, _ = entry_and_operand(work.scopes)
        entry, phase = self.reading.entry(op), self.phase(work)
        if entry is None:
            return Called(work.kind, "", phase, "", op)
        text = self.reading.text(entry)
        return Called(
            f"gradient of {text}" if phase == "backward" else text, "", phase, str(self.reading.site(entry)), op
        )

    def _matched(self, value: Value, entry: Entry, operand: int | None, phase: str) -> tuple[str, Placed | None]:
        """The tensor of an op that a value is, by its size: a result, an operand brought there, a gradient."""
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
            if self.reading.local_elements(placed, _held(placed)) == elements:
                return own, replace(placed, dtype=dtype)
        return f"part of {own}", None

    def _elements(self, placed: Placed, entry: Entry) -> int:
        return self.reading.local_elements(placed, _held(placed) | entry.dims) * self.reading.mapped_times(entry)

    def _input(self, value: Value, course: Course) -> Called:
        if value.given is None:
            return Called("a constant", _plain(value), "", "", None)
        if course.around is None:
            return self._argument(value)
        if (found := course.outside(value.given)) is None:
            return Called("carried", _plain(value), self.phase(course.around[1]), "", None)
        called = self.called(*found)
        if found[0].aval.ndim == value.aval.ndim + 1:  # one turn's slice of it
            first, _, rest = called.type.partition("[")
            rest = rest.split(" ", 1)[-1] if " " in rest else ""
            return replace(called, type=f"{first}[{rest}" if rest else _plain(value))
        return called

    def _argument(self, value: Value) -> Called:
        assert value.given is not None
        given = self.given[value.given] if value.given < len(self.given) else None
        if given is None:
            return Called(f"argument {value.given}", _plain(value), "", "", None)
        if given.dims is None or tuple(value.aval.shape) != given.dims.sizes:
            return Called(given.name, _plain(value), "", "", None)
        placed: Placement = self.region.placement(given.dims, given.store)
        return Called(given.name, typed(short_dtype(value.aval.dtype), given.dims, placed), "", "", None)

    def _of_loop(self, value: Value, work: Work, course: Course) -> Called:
        """A loop's result by what makes it inside; one piled up turn by turn has the loop's dim before its own."""
        index = next(i for i, result in enumerate(work.results) if result is value)
        inner = course.inner(work)
        body = inner.body
        offset = len(body.results) - len(work.results)
        found = self.called(body.results[index + offset], inner)
        if work.kind == "scan" and index >= loop_parts(work.eqn)[1]:
            entry = self.reading.entry(entry_and_operand(work.scopes)[0])
            dim = entry.over[0] if entry is not None and entry.over else str(work.eqn.params["length"])
            open_, rest = found.type.split("[", 1)
            join = "," if "," in rest and dim.isdigit() else " "
            return replace(found, type=f"{open_}[{dim}{join}{rest}" if rest != "]" else f"{open_}[{dim}]")
        return found


def _held(placed: Placed) -> dict[str, tuple[str, ...]]:
    return dict(zip(placed.dims.names, placed.placement, strict=True))


def _plain(value: Value) -> str:
    """A type by its sizes alone; those of a value of the update are of all processors together."""
    shape = ",".join(map(str, value.aval.shape))
    return f"{short_dtype(value.aval.dtype)}[{shape}]"
