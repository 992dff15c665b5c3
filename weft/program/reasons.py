"""Why a collective is there, in words.

Worked out from what the record says of its op: which dims are summed, which operand is sharded otherwise than the op
needs it, which is whole where others are split; and from what the op says of itself (`weft.record.Traits`). A
gradient's collective has the reason of what it is the gradient of.
"""

from collections.abc import Sequence

from ..graph import Step
from ..record import SUMS, Axes, Entry, Placed, axes_of_sum
from ..text import and_text, size_text
from .reading import Reading

_REDUCES = ("all_reduce", "reduce_scatter")
_STEPS = {"all_reduce": "summed", "all_gather": "gathered"}


def reason(reading: Reading, step: Step, axes: Axes) -> str:
    """Why this collective over these axes is there; where bytes decided, by which."""
    entry = reading.entry(step.op)
    if entry is None:
        return ""
    if whole := axes_of_sum(step.scopes):  # one step of a sum by levels, whose reason it has
        why = _why(reading, entry, step, "all_reduce", whole)
        return f"{why}: {_STEPS.get(step.collective or '', 'scattered')} over {_plus(axes)}"
    why = _why(reading, entry, step, step.collective, axes)
    if not entry.choice or step.phase != "forward" or step.operand not in (0, None) or step.collective == "all_reduce":
        return why
    return f"{why}: {', '.join(f'{size_text(size)} for {what}' for what, size in entry.choice)}"


def _why(reading: Reading, entry: Entry, step: Step, collective: str | None, axes: Axes) -> str:
    over = _plus(axes)
    if entry.traits.is_product and step.row.does:
        return f"because float8 operands split over {over} are scaled by their largest value"
    if entry.traits.reason:
        name = reading.operand_name(entry.id, 0) or "a parameter"
        return entry.traits.reason.format(axes=over, op=entry.op, name=name)
    placed = entry.operands[step.operand] if step.operand is not None and step.operand < len(entry.operands) else None
    if placed is not None and step.operand is not None:
        name = reading.operand_name(entry.id, step.operand) or f"operand {step.operand + 1}"
        return _of_operand(reading, entry, placed, name, step.phase, collective, axes)
    if entry.is_block:
        return entry.traits.reason_else.format(axes=over, over=and_text(entry.over))
    if entry.stays_stored and (stored := next((p for p in entry.operands if p is not None and p.store), None)):
        return f"because {_is(_dims_over(stored, axes))} stored split over {over} ({_rules(stored, axes)})"
    op = _Op(entry, axes)
    return op.gradient(collective) if reading.is_gradient(step) else op.forward(collective)


def _of_operand(
    reading: Reading, entry: Entry, placed: Placed, name: str, phase: str, collective: str | None, axes: Axes
) -> str:
    """The op brings an operand to where it needs it, or sums its gradient."""
    over = _plus(axes)
    if collective == "all_reduce":
        held = {axis for dim in placed.dims for axis in entry.dims.get(dim.name, ())}
        data = [dim for dim, meeting in entry.dims.items() if set(axes) & set(meeting) - held]
        if set(axes) & set(entry.taken):
            data += reading.mapped_dims(entry)
        if not data:
            return f"because {name} meets what was gathered over {over}: each copy has a part of the gradient"
        return f"because {name} is whole over {over}, used with data split there ({', '.join(data)})"
    if placed.store is not None:
        stored = f"because {name} is stored split over {over} ({_rules(placed, axes)})"
        if phase == "backward":
            return f"{stored}: each keeps its slice of the sum"
        return f"{stored}, and the gradient needs it again" if phase == "recompute" else stored
    needs = (
        f"because {name} has {and_text(_dims_over(placed, axes))} split over {over}, and {entry.op} needs it otherwise"
    )
    if phase == "backward" and collective == "permute":
        return f"{needs}: the parts of its gradient are summed"
    if phase == "backward":
        wanted = [dim.name for dim in placed.dims if set(axes) & set(entry.dims.get(dim.name, ()))]
        if not wanted:
            return f"{needs}: its gradient goes the same way back"
        return f"because {name} came whole to slices along {and_text(wanted)}, and so must its gradient leave"
    return needs


def _dims_over(placed: Placed, axes: Axes) -> list[str]:
    return [dim.name for dim, held in zip(placed.dims, placed.placement, strict=True) if set(axes) & set(held)]


def _rules(placed: Placed, axes: Axes) -> str:
    return ", ".join(f"{placed.store}.{dim}" for dim in _dims_over(placed, axes))


class _Op:
    """An op that sends by itself: sums over a split dim, or moves one elsewhere."""

    def __init__(self, entry: Entry, axes: Axes):
        self.entry, self.over = entry, _plus(axes)
        self.held_after = {  # the axes that hold each dim of the result
            dim.name: held for p in entry.results for dim, held in zip(p.dims, p.placement, strict=True)
        }
        self.split = [dim for dim, held in entry.dims.items() if set(axes) & set(held)]
        self.lost = [dim for dim in self.split if self._new(dim) not in self.held_after]
        self.along = [dim for dim in self.split if dim in entry.over] if entry.over else self.lost
        self.arrived = [dim for dim, held in self.held_after.items() if set(axes) & set(held)]
        self.moved = [
            dim for dim in self.split if not set(axes) <= set(self.held_after.get(self._new(dim), ()))
        ] or self.split
        self.is_back = self.arrived == self.split and not entry.renamed  # to where the axes were (sort)

    def _new(self, dim: str) -> str:
        return self.entry.renamed.get(dim, dim)

    def forward(self, collective: str | None) -> str:
        entry, over = self.entry, self.over
        if collective == "all_to_all" and entry.traits.reason_exchange:
            return self._fill(entry.traits.reason_exchange, self.moved)
        if collective == "all_to_all" and self.is_back:
            return f"because {entry.op} needs {and_text(self.split)} whole, split over {over}"
        if collective == "all_to_all":
            return f"because {over} goes from {and_text(self.split)} to {self._targets()}"
        if collective in ("all_gather", "permute") and entry.renamed:
            return f"because {_is(self.moved)} split over {over} and {self._otherwise()}"
        if self.along:
            why = self._fill(entry.traits.reason_along, self.along)
            is_scattered = collective == "reduce_scatter" and entry.traits.reason_along == SUMS
            return f"{why}, where {and_text(self.arrived)} of the result lies" if is_scattered else why
        if self.lost and collective in _REDUCES:
            return self._fill(SUMS, self.lost)
        if entry.traits.reason_else:
            return self._fill(entry.traits.reason_else, [])
        if self.split and collective == "all_gather":
            return f"because {_is(self.moved)} split over {over}, where the result is whole"
        return f"because of equal copies along {over} the first is taken for all"

    def _fill(self, reason: str, along: list[str]) -> str:
        return reason.format(op=self.entry.op, axes=self.over, along=and_text(along), along_is=_is(along))

    def gradient(self, collective: str | None) -> str:
        op, over = self.entry.op, self.over
        if collective == "all_to_all" and self.entry.traits.reason_exchange:
            return f"{self._fill(self.entry.traits.reason_exchange, self.moved)}: the gradient goes back"
        if collective == "all_to_all" and not self.is_back:
            return f"because {over} goes back from {self._targets()} to {and_text(self.split)}"
        if collective == "all_gather":
            return f"because {_is(self.arrived or self.split)} split over {over}, and the gradient is needed whole"
        if collective == "reduce_scatter" and self.entry.renamed:
            otherwise = self._otherwise()
            return f"because {_is(self.moved)} split over {over} and {otherwise}: the parts of the gradient are summed"
        if collective == "permute" and self.entry.renamed:
            return f"because {_is(self.moved)} split over {over} and {self._otherwise()}: so the gradient goes back"
        if collective == "reduce_scatter" or self.along or self.split:
            return self._goes_over()
        return f"because the result of {op} is the same on all of {over}, used with data split there"

    def _goes_over(self) -> str:
        along = and_text(self.along or self.split)
        return f"because the gradient of {self.entry.op} goes over {along}, split over {self.over}"

    def _targets(self) -> str:
        """The dims the axes go to, by the names they had."""
        old = {new: dim for dim, new in self.entry.renamed.items()}
        return and_text(f"{old[dim]} (now {dim})" if dim in old else dim for dim in self.arrived)

    def _otherwise(self) -> str:
        """How the dims that are split here are sharded in the result."""
        words = []
        for dim in self.moved:
            new = self._new(dim)
            held = self.held_after.get(new, ())
            words.append(f"{new} lies over {_plus(held)}" if held else f"{new} is whole")
        return and_text(words)


def _plus(axes: Axes) -> str:
    return "+".join(axes)


def _is(words: Sequence[str]) -> str:
    return f"{and_text(words)} {'are' if len(words) > 1 else 'is'}"
