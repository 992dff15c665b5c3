"""Exchanges along one split dim: each processor gets a stretch of the whole that need not be its own slice.

`window` is what slice, pad, concat, shift, roll, flip, convolution and pooling are made of. Where the stretches lie
alike around all slices the pieces come from neighbours by permutes of just what is needed; otherwise each piece is as
long as the longest; where that is more than the whole, the whole is gathered.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..layout import Axes
from .collectives import all_gather, as_varying, index, permute, varying


@dataclass(frozen=True)
class _Piece:
    """What one processor needs of one slice: where it starts there, where in the window, and how long it is."""

    source: int
    start: int
    offset: int
    size: int


def window(
    array: Any,
    position: int,
    axes: Axes,
    ways: int,
    *,
    starts: Sequence[int],
    size: int,
    wraps: bool = False,
    fill: Any = 0,
) -> Any:
    """The stretch [starts[i], starts[i] + size) of the whole dim, on processor i along the axes.

    Outside the whole it holds the number `fill`; with `wraps` the dim goes round.
    """
    own = array.shape[position]
    fill = np.asarray(fill).astype(array.dtype)
    if not axes:
        return _cut(array, position, starts[0], size, wraps, fill)
    array = as_varying(array, axes)
    pieces = [_pieces(i, start, size, own, ways, wraps) for i, start in enumerate(starts)]
    hops = sorted({piece.source - i for i, found in enumerate(pieces) for piece in found})
    longest = {hop: max(p.size for i, found in enumerate(pieces) for p in found if p.source - i == hop) for hop in hops}
    received = sum(length for hop, length in longest.items() if hop % ways or (not wraps and hop))
    if received > (ways - 1) * own:
        whole = all_gather(array, axes, position)
        return cut_at(whole, position, _here(starts, axes), size, wraps=wraps, fill=fill)
    if len({start - i * own for i, start in enumerate(starts)}) == 1:
        return _from_neighbours(array, position, axes, ways, starts[0], size, wraps, fill)
    cells = _cells(pieces, ways)
    if cells is not None and sum(cell.size for cell in cells if cell.is_sent) <= received:
        return _from_cells(array, position, axes, cells, size, fill)
    result = _filled(array, position, size, fill)
    for hop in hops:
        at = [next((p for p in found if p.source - i == hop), None) for i, found in enumerate(pieces)]
        result = _placed(result, array, position, axes, ways, hop, longest[hop], at, wraps)
    return result


def _filled(array: Any, position: int, size: int, fill: Any) -> Any:
    """So many places of one number, in the shape and the type of `array` otherwise."""
    shape = (*array.shape[:position], size, *array.shape[position + 1 :])
    return as_varying(jnp.full(shape, fill, array.dtype), varying(array))


def _pieces(i: int, start: int, size: int, own: int, ways: int, wraps: bool) -> list[_Piece]:
    found = []
    for source in range(start // own, (start + size - 1) // own + 1):
        if not wraps and not 0 <= source < ways:
            continue
        first, last = max(start, source * own), min(start + size, (source + 1) * own)
        found.append(_Piece(source, first - source * own, first - start, last - first))
    return found


@dataclass(frozen=True)
class _Cell:
    """A stretch of the window that every processor gets from one place of some slice, or from none."""

    offset: int
    start: int
    size: int
    pairs: tuple[tuple[int, int], ...]

    @property
    def is_sent(self) -> bool:
        return any(source != i for source, i in self.pairs)


def _cells(pieces: Sequence[Sequence[_Piece]], ways: int) -> list[_Cell] | None:
    """The cells of windows that are cut alike on all processors, each from different slices; None if they are not."""
    found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for i, own in enumerate(pieces):
        for piece in own:
            found.setdefault((piece.offset, piece.start, piece.size), []).append((piece.source % ways, i))
    cells = [_Cell(*place, tuple(pairs)) for place, pairs in sorted(found.items())]
    is_apart = all(a.offset + a.size <= b.offset for a, b in itertools.pairwise(cells))
    is_sendable = all(len({source for source, _ in cell.pairs}) == len(cell.pairs) for cell in cells)
    return cells if is_apart and is_sendable else None


def _from_cells(array: Any, position: int, axes: Axes, cells: Sequence[_Cell], size: int, fill: Any) -> Any:
    """Each cell by one permute; `fill` between them, and where a processor has none."""
    parts, end = [], 0
    for cell in cells:
        if cell.offset > end:
            parts.append(_filled(array, position, cell.offset - end, fill))
        chunk = lax.slice_in_dim(array, cell.start, cell.start + cell.size, axis=position)
        if cell.is_sent:
            chunk = permute(chunk, axes, cell.pairs)
        if not cell.is_sent or fill != 0:
            is_here = functools.reduce(jnp.logical_or, (index(axes) == i for _, i in cell.pairs))
            chunk = jnp.where(is_here, chunk, fill)
        parts.append(chunk)
        end = cell.offset + cell.size
    if end < size:
        parts.append(_filled(array, position, size - end, fill))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=position)


def _from_neighbours(
    array: Any, position: int, axes: Axes, ways: int, start: int, size: int, wraps: bool, fill: Any
) -> Any:
    """Windows that lie alike around every slice: pieces of neighbours, joined."""
    own = array.shape[position]
    parts = []
    for hop in range(start // own, (start + size - 1) // own + 1):
        first, last = max(start, hop * own) - hop * own, min(start + size, (hop + 1) * own) - hop * own
        part = lax.slice_in_dim(array, first, last, axis=position)
        part = _sent(part, axes, ways, hop, wraps)
        if fill != 0 and hop != 0 and not wraps:
            is_sent = (index(axes) + hop >= 0) & (index(axes) + hop < ways)
            part = jnp.where(is_sent, part, fill)
        parts.append(part)
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=position)


def _sent(part: Any, axes: Axes, ways: int, hop: int, wraps: bool) -> Any:
    """What the processor `hop` places on sends; zeros where there is none."""
    if hop == 0 or (wraps and hop % ways == 0):
        return part
    pairs = [((i + hop) % ways, i) for i in range(ways) if wraps or 0 <= i + hop < ways]
    return permute(part, axes, pairs) if pairs else jnp.zeros_like(part)


def _placed(
    result: Any,
    array: Any,
    position: int,
    axes: Axes,
    ways: int,
    hop: int,
    length: int,
    pieces: Sequence[_Piece | None],
    wraps: bool,
) -> Any:
    """The window with the pieces that come from `hop` places on put in; each has its own place and length."""
    own, size = array.shape[position], result.shape[position]
    sends = [0] * ways  # where each processor's chunk starts, so that it holds what is asked of it
    for piece in pieces:
        if piece is not None:
            sends[piece.source % ways] = min(piece.start, own - length)
    chunk = lax.dynamic_slice_in_dim(array, _here(sends, axes), length, position)
    chunk = _sent(chunk, axes, ways, hop, wraps)
    none = _Piece(0, 0, 0, 0)
    known = [piece or none for piece in pieces]
    shifts = [p.offset - (p.start - min(p.start, own - length)) for p in known]
    spread = cut_at(chunk, position, -_here(shifts, axes), size)
    first, count = _here([p.offset for p in known], axes), _here([p.size for p in known], axes)
    shape = [1] * array.ndim
    shape[position] = size
    places = jnp.arange(size).reshape(shape)
    is_here = (places >= first) & (places < first + count)
    return jnp.where(is_here, spread, result)


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


def cut_at(whole: Any, position: int, start: Any, size: int, *, wraps: bool = False, fill: Any = 0) -> Any:
    """The stretch of a whole dim from a start known only when it runs, `fill` outside it; or the dim goes round."""
    length = whole.shape[position]
    if wraps:
        doubled = jnp.concatenate([whole] * (-(-size // length) + 1), axis=position)
        return lax.dynamic_slice_in_dim(doubled, start % length, size, position)
    pads = [(0, 0, 0)] * whole.ndim
    pads[position] = (size, size, 0)
    padded = lax.pad(whole, np.asarray(fill).astype(whole.dtype), pads)
    return lax.dynamic_slice_in_dim(padded, jnp.clip(start, -size, length) + size, size, position)
