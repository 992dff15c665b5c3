"""What the values of a program's memory are called: arguments by their path, the rest by the op that made them.

Joins what `liveness` read off the jaxpr with the record, as the listing does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from ..dims import Shape
from ..graph import Loop
from ..layout import Placement, Region, typed
from ..record import Entry, Placed
from ..spmd.arguments import Static, TensorSlot, with_statics
from ..tensor import is_tensor, short_dtype
from .liveness import Buffer, Task
from .memory_course import Course
from .reading import Reading, type_text


@dataclass(frozen=True)
class Given:
    """An array the program is given: its name, its dims where they are known, whether it may be overwritten."""

    name: str
    dims: Shape | None
    store: str | None
    is_donated: bool


def given_to(bound: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Given]:
    """The arrays of a call, in the order the traced program takes them; a train step may overwrite its state."""
    if hasattr(bound, "optimizer"):
        return _given_to_step(*args, **kwargs)
    call, _ = bound._read(args, kwargs)
    slots = [slot for slot in call.slots if not isinstance(slot, Static)]
    found = []
    for slot, name, is_donated in zip(slots, call.names(bound.fn), call.donated, strict=True):
        is_named = isinstance(slot, TensorSlot) and slot.fits
        dims, store = (slot.dims, slot.kind.store) if is_named else (None, None)
        found.append(Given(name.name, dims, store, is_donated))
    return sorted(found, key=lambda each: not each.is_donated)


def _given_to_step(state: Any, batch: Any, key: Any = None) -> list[Given]:
    found = []
    by_path: dict[str, Given] = {}
    for part, tree in (("params", state.params), ("optimizer", state.optimizer), ("step", state.step)):
        for name, leaf in _leaves(tree, part):
            if is_tensor(leaf):
                given = by_path[name] = Given(name, leaf.dims, leaf._kind.store, True)
            else:
                given = Given(name, _dims_alike(name, leaf, by_path), "optimizer", True)
            found.append(given)
    for part, tree in (("batch", batch), ("key", key)):
        for name, leaf in _leaves(tree, part):
            found.append(Given(name, leaf.dims if is_tensor(leaf) else None, None, False))
    return found


def _leaves(tree: Any, part: str) -> list[tuple[str, Any]]:
    """The arrays of a tree with their paths; parameters go by their path alone where it says enough."""
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(with_statics(tree), is_leaf=is_tensor)[0]:
        if is_tensor(leaf) and not hasattr(leaf._array, "shape"):
            continue
        words = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", "")))) for key in path]
        text = "".join(f"[{word}]" if word.isdigit() else f".{word}" for word in words)
        is_enough = part == "params" and len(words) > 1 and not words[0].isdigit()
        found.append((text[1:] if is_enough else part + text, leaf))
    return found


def _dims_alike(name: str, leaf: Any, params: dict[str, Given]) -> Shape | None:
    """The dims of the parameter an array of the optimizer's state belongs to, where it has its shape."""
    for path, given in params.items():
        if name.endswith(f".{path}") and given.dims is not None and tuple(leaf.shape) == given.dims.sizes:
            return given.dims
    return None


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

    def __init__(self, reading: Reading, given: Sequence[Given], region: Region):
        self.reading, self.given, self.region = reading, given, region

    def called(self, value: Buffer, course: Course) -> Called:
        """The name, the placed type, the phase and the source of a value."""
        if value.maker is None:
            return self._input(value, course)
        work = value.maker
        if work.bodies:
            return self._of_loop(value, work, course)
        op, operand, phase = work.step.op, work.step.operand, work.step.phase
        entry = self.reading.entry(op)
        if entry is None:
            text = "update" if phase == "update" else work.step.row.name
            return Called(text, _plain(value), phase, str(self.reading.update_site) if phase == "update" else "", op)
        site = str(self.reading.site(entry))
        if phase == "backward" and entry.op == "cast" and work.operands[0].maker is not None:
            called = self.called(work.operands[0], course)  # the gradient of what was cast is the cast gradient
            dims = called.type.partition("[")[2]
            return replace(called, type=f"{short_dtype(value.aval.dtype)}[{dims}")
        name, placed = self._matched(value, entry, operand, phase)
        return Called(name, type_text(placed) if placed else _plain(value), phase, site, op)

    def phase(self, work: Task) -> str:
        return work.step.phase

    def label(self, work: Task) -> Called:
        """What a piece of work is called as a point of the program's course."""
        op, phase = work.step.op, work.step.phase
        entry = self.reading.entry(op)
        if entry is None:
            return Called(work.step.row.name, "", phase, "", op)
        text = self.reading.text(entry)
        return Called(
            f"gradient of {text}" if phase == "backward" else text, "", phase, str(self.reading.site(entry)), op
        )

    def _matched(self, value: Buffer, entry: Entry, operand: int | None, phase: str) -> tuple[str, Placed | None]:
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

    def _input(self, value: Buffer, course: Course) -> Called:
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

    def _argument(self, value: Buffer) -> Called:
        assert value.given is not None
        given = self.given[value.given] if value.given < len(self.given) else None
        if given is None:
            return Called(f"argument {value.given}", _plain(value), "", "", None)
        if given.dims is None or tuple(value.aval.shape) != given.dims.sizes:
            return Called(given.name, _plain(value), "", "", None)
        placed: Placement = self.region.placement(given.dims, given.store)
        return Called(given.name, typed(short_dtype(value.aval.dtype), given.dims, placed), "", "", None)

    def _of_loop(self, value: Buffer, work: Task, course: Course) -> Called:
        """A loop's result by what makes it inside; one piled up turn by turn has the loop's dim before its own."""
        index = next(i for i, result in enumerate(work.results) if result is value)
        inner = course.inner(work)
        body = inner.body
        offset = len(body.results) - len(work.results)
        found = self.called(body.results[index + offset], inner)
        loop = work.step
        if isinstance(loop, Loop) and loop.is_scan and index >= loop.parts[1]:
            entry = self.reading.entry(loop.op)
            dim = entry.over[0] if entry is not None and entry.over else str(loop.turns)
            open_, rest = found.type.split("[", 1)
            join = "," if "," in rest and dim.isdigit() else " "
            return replace(found, type=f"{open_}[{dim}{join}{rest}" if rest != "]" else f"{open_}[{dim}]")
        return found


def _held(placed: Placed) -> dict[str, tuple[str, ...]]:
    return dict(zip(placed.dims.names, placed.placement, strict=True))


def _plain(value: Buffer) -> str:
    """A type by its sizes alone; those of a value of the update are of all processors together."""
    shape = ",".join(map(str, value.aval.shape))
    return f"{short_dtype(value.aval.dtype)}[{shape}]"
