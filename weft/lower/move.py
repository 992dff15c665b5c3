"""Moving an array from one placement to another with the fewest bytes.

Works on local arrays and placements. `relocate` changes over which axes the dims of a finished array are split: an
axis that leaves a dim for another goes by an all-to-all, a dim takes its axes in another order by a permute, and only
what no dim wants is gathered. `settle` also finishes a partial sum: where a summed axis is wanted by a dim it is one
reduce-scatter.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..dims import Dim
from ..layout import Axes, Placement, Region, axes_in
from ..tensor import PLAIN, Kind, Tensor, excess, make, placement
from . import collectives
from .collectives import varying


def relocate(
    array: Any, have: Placement, want: Placement, region: Region, gather: Callable[..., Any] = collectives.all_gather
) -> Any:
    """`array`, split as `have` says, split as `want` says."""
    held = list(have)
    array = _exchange(array, held, want, region)
    array = _slice(array, held, want, region)
    for position, wanted in enumerate(want):
        kept, rest = _within(wanted, held[position]), _without(held[position], wanted)
        if rest:
            array = _reorder(array, position, held, kept + rest, region)
            array = gather(array, rest, position)
            held[position] = kept
    array = _slice(array, held, want, region)
    for position, wanted in enumerate(want):
        array = _reorder(array, position, held, wanted, region)
    return array


def gather_of(kind: Kind) -> Callable[..., Any]:
    """How a tensor meeting nothing is gathered: a parameter is then equal everywhere."""
    return collectives.all_gather if kind.store is None else collectives.all_gather_equal


def _exchange(array: Any, held: list[Axes], want: Placement, region: Region) -> Any:
    """Axes that leave one dim for another: an all-to-all each."""
    while (move := _next_exchange(held, want, array.shape, region)) is not None:
        origin, target, moved = move
        stay = _without(held[origin], moved)
        stay = _within(want[origin], stay) + _without(stay, want[origin])
        if not _ends_with(held[origin], moved):  # only the last axes of a dim can leave it
            array = _reorder(array, origin, held, stay + moved, region)
        array = collectives.all_to_all(array, moved, split=target, join=origin)
        held[origin], held[target] = held[origin][: -len(moved)], held[target] + moved
    return array


def _next_exchange(
    held: Sequence[Axes], want: Placement, sizes: Sequence[int], region: Region
) -> tuple[int, int, Axes] | None:
    """From which dim to which the next axes go: first those that lie as they should."""
    moves = []
    for origin, target in itertools.permutations(range(len(held)), 2):
        moved = _without(_within(want[target], held[origin]), want[origin])
        if moved and sizes[target] % region.ways(moved) == 0:
            arrives = held[target] + moved
            is_last, is_due = _ends_with(held[origin], moved), want[target][: len(arrives)] == arrives
            moves.append((not (is_last and is_due), not set(held[target]) <= set(want[target]), origin, target, moved))
    return min(moves)[2:] if moves else None


def _reorder(array: Any, position: int, held: list[Axes], want: Axes, region: Region) -> Any:
    """The slices of a dim in another order of the axes that split it: one permute."""
    have = held[position]
    if have == want:
        return array
    holders = np.arange(region.ways(have)).reshape([region.mesh.axes[axis] for axis in have])
    targets = holders.transpose([have.index(axis) for axis in want]).reshape(-1)
    held[position] = want
    return collectives.permute(array, have, list(enumerate(targets.tolist())))


def _slice(array: Any, held: list[Axes], want: Placement, region: Region) -> Any:
    """Axes that arrive at a dim and are free: a local slice each."""
    for position, wanted in enumerate(want):
        arriving = _without(wanted, held[position])
        is_free = not any(set(arriving) & set(axes) for axes in held)
        if arriving and set(held[position]) <= set(wanted) and is_free:
            array = collectives.own_slice(array, arriving, position, region.ways(arriving))
            held[position] += arriving
    return array


def _within(axes: Axes, others: Axes) -> Axes:
    return tuple(axis for axis in axes if axis in others)


def _without(axes: Axes, gone: Axes) -> Axes:
    return tuple(axis for axis in axes if axis not in gone)


def _ends_with(axes: Axes, last: Axes) -> bool:
    return axes[len(axes) - len(last) :] == last


def common(a: Axes, b: Axes) -> Axes:
    """The longest common beginning."""
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return a[:count]


def settle(
    array: Any,
    dims: Sequence[Dim],
    have: Placement,
    region: Region | None,
    *,
    partial: Axes = (),
    one_holds: bool = False,
    kind: Kind = PLAIN,
) -> Tensor:
    """The tensor of a local result, summed and moved to where it belongs.

    The result is split as `have` says, and still to be summed over the axes `partial`. With `one_holds` each place is
    zero on all processors along them but one, and comes from that one as it is.
    """
    if region is None:
        return make(array, dims, None, kind)
    want = region.placement(dims, kind.store)
    scatters, held, left = _scatters_of(have, want, partial)

    def sum_up(array: Any) -> Any:
        for axes, position in scatters:
            array = collectives.reduce_scatter(array, axes, position)
        return collectives.all_reduce(array, left)

    array = collectives.from_holder(sum_up, array, partial) if one_holds else sum_up(array)
    array = relocate(array, held, want, region, gather_of(kind))
    return result(equalize(array, region) if not dims else array, dims, region, kind)


def _scatters_of(have: Placement, want: Placement, partial: Axes) -> tuple[list[tuple[Axes, int]], Placement, Axes]:
    """The scatters of a partial sum to dims that want it, the placement, axes left."""
    scatters, held = [], list(have)
    for position, wanted in enumerate(want):
        arriving = _without(wanted, held[position])
        scattered = arriving[: _count_leading(arriving, partial)]
        if scattered and set(held[position]) <= set(wanted):
            scatters.append((scattered, position))
            held[position] += scattered
            partial = tuple(axis for axis in partial if axis not in scattered)
    return scatters, tuple(held), partial


def _count_leading(arriving: Axes, partial: Axes) -> int:
    count = 0
    while count < len(arriving) and arriving[count] in partial:
        count += 1
    return count


def result(array: Any, dims: Sequence[Dim], region: Region | None, kind: Kind = PLAIN) -> Tensor:
    """The tensor an op made.

    It varies over the axes its dims are split over, even where the slices happen to be alike: a gradient with
    respect to it is each slice's own. Over other axes it is equal, whatever JAX types it as.
    """
    x = make(array, dims, region, kind)
    if region is None:
        return x
    x.raw = collectives.as_varying(array, axes_in(placement(x)))
    if (equal := excess(x)) != kind.equal:
        x.kind = replace(kind, equal=equal)
    return x


def equalize(array: Any, region: Region) -> Any:
    """A whole value retyped as equal everywhere: a loss is differentiated once then."""
    excess = tuple(sorted(varying(array) - set(region.taken)))
    return collectives.from_first(array, excess) if excess else array


def align(array: Any, dims: Sequence[Dim], target: Sequence[Dim]) -> Any:
    """`array` with its dims in the order of `target`, of size 1 where it lacks one."""
    names = [dim.name for dim in dims]
    order = [names.index(dim.name) for dim in target if dim.name in names]
    if order != list(range(len(names))):
        array = jnp.transpose(array, order)
    if len(order) == len(target):
        return array
    return jnp.expand_dims(array, [i for i, dim in enumerate(target) if dim.name not in names])
