"""Halo exchange along one split dim: parts of the whole beyond a slice.

`exchange_window` is what slice, pad, concat, shift, roll, convolution and pooling are made of. Where all windows stand
alike around their slices, what they lack comes from neighbours by permutes of just that; otherwise by as few permutes
as can be, in each of which a processor sends and gets once. `exchange_indices` does that for indices in any order.
Where it would be more than the whole, the whole is gathered.
"""

import bisect
import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..layout import Axes
from .collectives import all_gather, as_varying, index, permute, varying


@dataclass(frozen=True)
class _Transfer:
    """A part of a slice sent or kept: from `start` in it to `offset` in a window."""

    source: int
    target: int
    start: int
    offset: int
    size: int


def exchange_window(
    array: Any,
    position: int,
    axes: Axes,
    ways: int,
    *,
    starts: Sequence[int],
    size: int,
    wraps: bool = False,
    fill: Any = 0,
    looked: Sequence[int] | None = None,
) -> Any:
    """On processor i along the axes, [starts[i], starts[i] + size) of the dim.

    Outside the whole it holds the number `fill`; with `wraps` the dim goes round. Where only the places `looked` of it
    are looked at, in order, the others may hold anything.
    """
    own = array.shape[position]
    fill = np.asarray(fill).astype(array.dtype)
    if not axes:
        return _cut(array, position, starts[0], size, wraps, fill)
    array = as_varying(array, axes)
    if len({start - i * own for i, start in enumerate(starts)}) == 1:
        hops = _hops(starts[0], size, own, ways, wraps, looked)
        if sum(hop.last - hop.first for hop in hops if hop.is_sent) <= (ways - 1) * own:
            return _from_neighbours(array, position, axes, ways, hops, wraps, fill)
    else:
        transfers = [p for i, start in enumerate(starts) for p in _transfers_to(i, start, size, own, ways, looked)]
        rounds = _rounds(transfers)
        sent = sum(max(transfer.size for transfer in together) for together in rounds)
        cells = _cells(transfers)
        if cells is not None and sum(cell.size for cell in cells if cell.is_sent) <= min(sent, (ways - 1) * own):
            return _from_cells(array, position, axes, cells, size, fill)
        if sent <= (ways - 1) * own:
            made = _constant(array, position, size, fill)
            for together in ([p for p in transfers if p.source == p.target], *rounds):
                made = _put_in(made, array, position, axes, ways, together) if together else made
            return made
    whole = all_gather(array, axes, position)
    return slice_at(whole, position, _here(starts, axes), size, wraps=wraps, fill=fill)


def exchange_indices(array: Any, position: int, axes: Axes, held: np.ndarray, wanted: np.ndarray) -> Any:
    """On processor i the indices wanted[i] of the dim, where j's slice holds held[j]."""
    ways, own = held.shape
    array = as_varying(array, axes)
    owner, at = np.empty(held.size, int), np.empty(held.size, int)
    owner[held], at[held] = np.arange(ways)[:, None], np.arange(own)
    links = {(int(j), i): np.nonzero(owner[wanted[i]] == j)[0] for i in range(ways) for j in set(owner[wanted[i]])}
    rounds = _rounds(_Transfer(j, i, 0, 0, len(places)) for (j, i), places in links.items())
    if sum(max(transfer.size for transfer in transfers) for transfers in rounds) > (ways - 1) * own:
        whole = all_gather(array, axes, position)
        order = np.argsort(held.reshape(-1))
        return jnp.take(whole, jnp.asarray(order[wanted])[index(axes)], axis=position)
    parts, found = [array], at[wanted]
    for transfers in rounds:
        length, first = max(transfer.size for transfer in transfers), sum(part.shape[position] for part in parts)
        sends = np.zeros((ways, length), int)
        for transfer in transfers:
            places = links[transfer.source, transfer.target]
            sends[transfer.source, : len(places)] = at[wanted[transfer.target, places]]
            found[transfer.target, places] = first + np.arange(len(places))
        chunk = jnp.take(array, jnp.asarray(sends)[index(axes)], axis=position)
        parts.append(permute(chunk, axes, [(transfer.source, transfer.target) for transfer in transfers]))
    return jnp.take(jnp.concatenate(parts, axis=position), jnp.asarray(found)[index(axes)], axis=position)


def _rounds(transfers: Iterable[_Transfer]) -> list[list[_Transfer]]:
    """Transfers, longest first, in rounds where each sends and gets once at most."""
    rounds: list[list[_Transfer]] = []
    for transfer in sorted(transfers, key=lambda transfer: -transfer.size):
        if transfer.source != transfer.target:
            free = (r for r in rounds if all(transfer.source != p.source and transfer.target != p.target for p in r))
            if (round := next(free, None)) is None:
                rounds.append([transfer])
            else:
                round.append(transfer)
    return rounds


def _constant(array: Any, position: int, size: int, fill: Any) -> Any:
    """So many places of one number, in the shape and the type of `array` otherwise."""
    shape = (*array.shape[:position], size, *array.shape[position + 1 :])
    return as_varying(jnp.full(shape, fill, array.dtype), varying(array))


def _is_plain_zero(fill: Any) -> bool:
    """Whether it is what a permute gives those that get nothing: -0 is not."""
    return not any(fill.tobytes())


def _range_looked_at(offset: int, size: int, looked: Sequence[int] | None) -> tuple[int, int]:
    """From the first to the last place of a part of the window that is looked at."""
    if looked is None:
        return offset, offset + size
    low, high = bisect.bisect_left(looked, offset), bisect.bisect_left(looked, offset + size)
    return (looked[low], looked[high - 1] + 1) if low < high else (offset, offset)


def _transfers_to(i: int, start: int, size: int, own: int, ways: int, looked: Sequence[int] | None) -> list[_Transfer]:
    found = []
    for source in range(max(start // own, 0), min((start + size - 1) // own + 1, ways)):
        first, last = max(start, source * own), min(start + size, (source + 1) * own)
        if source != i:
            first, last = (start + place for place in _range_looked_at(first - start, last - first, looked))
        if last > first:
            found.append(_Transfer(source, i, first - source * own, first - start, last - first))
    return found


@dataclass(frozen=True)
class _Cell:
    """A part of the window that all get from one place of some slice, or of none."""

    offset: int
    start: int
    size: int
    pairs: tuple[tuple[int, int], ...]

    @property
    def is_sent(self) -> bool:
        return any(source != i for source, i in self.pairs)


def _cells(transfers: Sequence[_Transfer]) -> list[_Cell] | None:
    """The cells, if all windows are cut alike, each from a slice of its own; or None."""
    by_place: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for transfer in transfers:
        place = transfer.offset, transfer.start, transfer.size
        by_place.setdefault(place, []).append((transfer.source, transfer.target))
    cells = [_Cell(*place, tuple(pairs)) for place, pairs in sorted(by_place.items())]
    is_apart = all(a.offset + a.size <= b.offset for a, b in itertools.pairwise(cells))
    is_sendable = all(len({source for source, _ in cell.pairs}) == len(cell.pairs) for cell in cells)
    return cells if is_apart and is_sendable else None


def _from_cells(array: Any, position: int, axes: Axes, cells: Sequence[_Cell], size: int, fill: Any) -> Any:
    """Each cell by one permute; `fill` between them, and where a processor has none."""
    parts, end = [], 0
    for cell in cells:
        if cell.offset > end:
            parts.append(_constant(array, position, cell.offset - end, fill))
        chunk = lax.slice_in_dim(array, cell.start, cell.start + cell.size, axis=position)
        if cell.is_sent:
            chunk = permute(chunk, axes, cell.pairs)
        if not cell.is_sent or not _is_plain_zero(fill):
            is_here = functools.reduce(jnp.logical_or, (index(axes) == i for _, i in cell.pairs))
            chunk = jnp.where(is_here, chunk, fill)
        parts.append(chunk)
        end = cell.offset + cell.size
    if end < size:
        parts.append(_constant(array, position, size - end, fill))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=position)


@dataclass(frozen=True)
class _Hop:
    """[start, end) of the slice of the processor `by` on, [first, last) of it sent."""

    by: int
    start: int
    end: int
    first: int
    last: int
    is_sent: bool


def _hops(start: int, size: int, own: int, ways: int, wraps: bool, looked: Sequence[int] | None) -> list[_Hop]:
    found = []
    for by in range(start // own, (start + size - 1) // own + 1):
        low, high = max(start, by * own), min(start + size, (by + 1) * own)
        is_other = by % ways != 0 if wraps else by != 0
        first, last = (
            (start + p for p in _range_looked_at(low - start, high - low, looked)) if is_other else (low, high)
        )
        is_sent = is_other and last > first and (wraps or abs(by) < ways)
        start_here, end_here, first_here, last_here = (place - by * own for place in (low, high, first, last))
        found.append(_Hop(by, start_here, end_here, first_here, last_here, is_sent))
    return found


def _from_neighbours(
    array: Any, position: int, axes: Axes, ways: int, hops: Sequence[_Hop], wraps: bool, fill: Any
) -> Any:
    """Windows that stand alike around every slice: parts of neighbours, joined."""
    parts = []
    for hop in hops:
        if hop.by and not hop.is_sent and not (wraps and hop.by % ways == 0):
            parts.append(_constant(array, position, hop.end - hop.start, fill))
            continue
        part = lax.slice_in_dim(array, hop.first, hop.last, axis=position)
        if hop.is_sent:
            pairs = [((i + hop.by) % ways, i) for i in range(ways) if wraps or 0 <= i + hop.by < ways]
            part = permute(part, axes, pairs)
            if not _is_plain_zero(fill) and not wraps:
                is_there = (index(axes) + hop.by >= 0) & (index(axes) + hop.by < ways)
                part = jnp.where(is_there, part, fill)
        around = [_constant(array, position, n, fill) for n in (hop.first - hop.start, hop.end - hop.last)]
        parts += [p for p in (around[0], part, around[1]) if p.shape[position]]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=position)


def _put_in(made: Any, array: Any, position: int, axes: Axes, ways: int, transfers: Sequence[_Transfer]) -> Any:
    """The window with a transfer to each of some processors, at its place and length."""
    own, size = array.shape[position], made.shape[position]
    length = max(transfer.size for transfer in transfers)
    sends = [0] * ways  # where each processor's chunk starts, so that it holds what is asked of it
    known = [_Transfer(0, i, 0, 0, 0) for i in range(ways)]
    for transfer in transfers:
        sends[transfer.source], known[transfer.target] = min(transfer.start, own - length), transfer
    chunk = lax.dynamic_slice_in_dim(array, _here(sends, axes), length, position)
    if any(transfer.source != transfer.target for transfer in transfers):
        chunk = permute(chunk, axes, [(transfer.source, transfer.target) for transfer in transfers])
    shifts = [p.offset - (p.start - min(p.start, own - length)) for p in known]
    spread = slice_at(chunk, position, -_here(shifts, axes), size)
    first, count = _here([p.offset for p in known], axes), _here([p.size for p in known], axes)
    shape = [1] * array.ndim
    shape[position] = size
    places = jnp.arange(size).reshape(shape)
    is_here = (places >= first) & (places < first + count)
    return jnp.where(is_here, spread, made)


def _here(values: Sequence[int], axes: Axes) -> Any:
    """This processor's one of some whole numbers."""
    steps = {b - a for a, b in itertools.pairwise(values)}
    if len(steps) <= 1:  # an arithmetic row needs no table
        return index(axes) * (steps.pop() if steps else 0) + values[0]
    return jnp.asarray(values, "int32")[index(axes)]


def _cut(array: Any, position: int, start: int, size: int, wraps: bool, fill: Any) -> Any:
    """The stretch of a whole dim, `fill` outside it."""
    whole = array.shape[position]
    if wraps:
        rolled = jnp.roll(array, -start, axis=position)
        return rolled if size == whole else lax.slice_in_dim(rolled, 0, size, axis=position)
    pads = [(0, 0, 0)] * array.ndim
    pads[position] = (-start, start + size - whole, 0)
    return lax.pad(array, fill, pads)


def slice_at(whole: Any, position: int, start: Any, size: int, *, wraps: bool = False, fill: Any = 0) -> Any:
    """`size` places of a whole dim from a traced start; outside, `fill`, or it wraps."""
    length = whole.shape[position]
    if wraps:
        doubled = jnp.concatenate([whole] * (-(-size // length) + 1), axis=position)
        return lax.dynamic_slice_in_dim(doubled, start % length, size, position)
    pads = [(0, 0, 0)] * whole.ndim
    pads[position] = (size, size, 0)
    padded = lax.pad(whole, np.asarray(fill).astype(whole.dtype), pads)
    return lax.dynamic_slice_in_dim(padded, jnp.clip(start, -size, length) + size, size, position)
