"""How a table and the ids looked up in it come together, by the fewest bytes.

Either the table comes to the ids: stored by `params.` rules it is gathered, as every operand is. Or the ids go to the
table: every processor looks all of them up in the slice it holds, and what is found goes back to those who asked, by an
all-to-all of columns where the table is split by them, by a reduce-scatter where by the dim looked along. Which one is
said by sizes alone. The gradient goes the same way back: it is added up in the slice, and no table is ever sent.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..dims import UNSHOWN, Dim, Shape, union
from ..errors import LayoutError
from ..layout import Axes, Region
from ..record import operand_scope
from ..tensor import Tensor, placement
from . import collectives
from .meet import Meeting, common_region, meet, note_together
from .recorded import note_choice

Split = dict[str, Axes]
"""For each dim, by name, the axes it is split over."""


@dataclass(frozen=True)
class _Answer:
    """One collective that brings what was found to where it belongs."""

    axes: Axes
    ways: int
    column: str | None
    """The dim of the table that becomes whole over these axes; None where the dim looked along is split over them."""
    is_asked: bool
    """Whether the ids of all processors along these axes were looked up here."""

    def send(self, array: Any, lead: int, column: int | None) -> Any:
        """`array` sent; each place along `lead`, of which one is left, goes to its own."""
        if column is None:
            return collectives.from_holder(
                lambda found: collectives.reduce_scatter(found, self.axes, lead), array, self.axes
            )
        if self.is_asked:
            return collectives.all_to_all(array, self.axes, split=lead, join=column)
        return collectives.all_gather_equal(array, self.axes, column)

    def count(self, elements: int) -> tuple[int, int]:
        """How many of `elements` this carries, and how many each processor has after."""
        if self.column is None:
            return elements, elements // self.ways
        after = elements if self.is_asked else elements * self.ways
        return after, after


class LookUp:
    """Where a table and ids meet, what the ids ask, and how what is found comes back."""

    def __init__(self, meeting: Meeting, dim: Dim, used: Mapping[str, Axes], answers: Sequence[_Answer] = ()):
        self.meeting, self.used, self.answers = meeting, used, tuple(answers)
        self.asked = Shape(Dim(f"{UNSHOWN}asked_{i}", way.ways) for i, way in enumerate(answers) if way.is_asked)
        """A dim for each group of processors whose ids are looked up here."""
        self.axes = meeting.axes([dim])
        """Over which axes the dim looked along is split."""
        sent = {axis for way in answers if way.column is None for axis in way.axes}
        self.partial = tuple(axis for axis in self.axes if axis not in sent)
        """Over which of them what is found is still to be summed."""

    def placement(self, dims: Sequence[Dim]) -> tuple[Axes, ...]:
        """Over which axes dims of the result are split."""
        if self.meeting.kind.store is not None:
            return self.meeting.placement(dims)
        return tuple(self.used.get(dim.name, ()) for dim in dims)

    def ask(self, ids: Any) -> Any:
        """The ids of all who ask here, with the dims `asked` first."""
        if not self.asked:
            return ids
        axes = tuple(axis for way in self.answers if way.is_asked for axis in way.axes)
        with operand_scope(1):
            return collectives.all_gather(ids[None], axes, 0).reshape(*self.asked.sizes, *ids.shape)

    def answer(self, found: Any, dims: Sequence[Dim]) -> Any:
        """What was found, [*asked *dims], at those who asked: [*dims]."""
        names, leads = [*self.asked.names, *(dim.name for dim in dims)], itertools.count()
        for way in self.answers:
            lead = next(leads) if way.is_asked else 0
            found = way.send(found, lead, None if way.column is None else names.index(way.column))
        return found.reshape(found.shape[len(self.asked) :])


def plan_look_up(table: Tensor, ids: Tensor, dim: Dim, final: Shape) -> LookUp:
    """How `ids` are looked up along `dim`, for a result of the dims `final`."""
    region = common_region([table, ids])
    into = None if ids.dims else final  # one place alone is a part of the table
    if region is None:
        return LookUp(meet([table, ids], into=into, along=dim), dim, {})
    used = _find_split(table, ids, dim, region)
    plan = _plan(table, ids, dim, used, used, into)
    stored = dict(zip(table.dims.names, placement(table), strict=True))
    if plan.meeting.kind.store is None and _can_go(table, ids, dim, used, stored, region):
        plan = _cheaper(plan, _plan(table, ids, dim, used, used | stored, None), table, ids, final)
    if plan.answers:
        note_together([table, ids])
    return plan


def _cheaper(come: LookUp, go: LookUp, table: Tensor, ids: Tensor, final: Shape) -> LookUp:
    """The one that sends less: `come` gathers a stored table, with `go` the ids go."""
    region = come.meeting.region
    assert region is not None
    gathered = _size(table.dims, come.used, region) * table.dtype.itemsize
    by_table = ("the whole table", gathered + _count_sent(come, table, ids, final, region))
    by_ids = ("ids and what is found", _count_sent(go, table, ids, final, region))
    is_less = by_ids[1] < by_table[1]
    note_choice(*((by_ids, by_table) if is_less else (by_table, by_ids)))
    return go if is_less else come


def _find_split(table: Tensor, ids: Tensor, dim: Dim, region: Region) -> Split:
    """Where the operands are split as they are used; `dim` may share axes with ids."""
    dims = union(table.dims, ids.dims)
    try:
        return dict(zip(dims.names, region.placement(dims), strict=True))
    except LayoutError:
        by_table, by_ids = (dict(zip(x.dims.names, region.placement(x.dims), strict=True)) for x in (table, ids))
        shared = by_table.keys() & by_ids.keys()
        asking = {axis for name, axes in by_ids.items() if name not in shared for axis in axes}
        held = {axis for name, axes in by_table.items() if name != dim.name for axis in axes}
        if held & asking or any(by_table[name] != by_ids[name] for name in shared):
            raise
        return by_ids | by_table


def _can_go(table: Tensor, ids: Tensor, dim: Dim, used: Split, stored: Split, region: Region) -> bool:
    """Whether ids can be looked up in the table as it is stored, finer than used."""
    if table.region is not region or table.kind.store is None:
        return False
    finer = [name for name, axes in stored.items() if axes != used[name]]
    is_more = all(stored[name][: len(used[name])] == used[name] and not ids.dims.has(name) for name in finer)
    return bool(finer) and is_more


def _plan(table: Tensor, ids: Tensor, dim: Dim, used: Split, held: Split, into: Shape | None) -> LookUp:
    """The look-up in a table that is split as `held`, for a result split as `used`."""
    meeting = meet([table, ids], into=into, along=dim, split=held)
    region = meeting.region
    assert region is not None
    asking = {axis for d in ids.dims if not table.dims.has(d) for axis in used[d.name]}
    answers = []
    if along := tuple(axis for axis in held[dim.name] if axis in asking):
        answers.append(_Answer(along, region.ways(along), None, True))
    for name in table.dims.without([dim]).names:
        leaving = held[name][len(used[name]) :]
        runs = [(asks, tuple(run)) for asks, run in itertools.groupby(leaving, lambda axis: axis in asking)]
        minor_first = reversed(runs)
        answers += [_Answer(axes, region.ways(axes), name, asks) for asks, axes in minor_first]
    return LookUp(meeting, dim, used, answers)


def _count_sent(plan: LookUp, table: Tensor, ids: Tensor, final: Shape, region: Region) -> int:
    """What a look-up carries on one processor, as ledgers count; a sum counts twice."""
    ways = math.prod(plan.asked.sizes)
    columns = math.prod(way.ways for way in plan.answers if way.column is not None)
    elements, total = ways * _size(final, plan.used, region) // columns, 0
    for way in plan.answers:
        carried, elements = way.count(elements)
        total += carried
    total += 2 * elements if plan.partial else 0
    asked = ways * _size(ids.dims, plan.used, region) * ids.dtype.itemsize if plan.asked else 0
    return asked + total * table.dtype.itemsize


def _size(dims: Shape, split: Mapping[str, Axes], region: Region) -> int:
    """How many elements a processor has of a tensor split so."""
    return math.prod(region.local_sizes(dims, tuple(split.get(dim.name, ()) for dim in dims)))
