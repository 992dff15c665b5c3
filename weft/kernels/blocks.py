"""How the kernels cut scores into blocks, and which blocks any query sees.

Keys are counted in groups of 128, so that both keys that share a word of the counter generator are in one. What is seen
of a row of blocks is a range of them; where a mask need not be asked is a range inside it.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .counter import APART

GROUP = 2 * APART


@dataclass(frozen=True)
class Tile:
    """The queries and keys of a block of scores, and how a GPU works on it."""

    queries: int
    keys: int
    warps: int
    stages: int
    is_paired: bool = True
    """With dropout, whether two tiles of keys are worked on at once that take their bits from one tile of words."""


@dataclass(frozen=True)
class Blocks:
    """The blocks of the three kernels."""

    forward: Tile
    queries: Tile
    """Of the gradients of queries."""
    keys: Tile
    """Of the gradients of keys and values."""


def blocks_for(width: int, length: int) -> Blocks:
    """The blocks that were fastest on an H200, for heads of a width."""
    if width <= 64:
        found = Blocks(Tile(64, 64, 4, 2), Tile(64, 32, 4, 3), Tile(32, 128, 4, 3, is_paired=False))
    elif width <= 128:
        found = Blocks(Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), Tile(32, 64, 4, 2, is_paired=False))
    else:
        found = Blocks(Tile(128, 32, 8, 2), Tile(64, 32, 4, 2), Tile(32, 64, 8, 2, is_paired=False))
    most = max(16, 1 << (length - 1).bit_length())
    return Blocks(*(replace(block, queries=min(block.queries, most)) for block in vars(found).values()))


class Seen(NamedTuple):
    """What decides which blocks are seen."""

    causal: bool
    window: int | None
    positions: Any
    """[batch or 1, length] of queries and [batch or 1, memory] of keys, as whole blocks; None: they count from 0."""
    segments: Any
    prefix: Any
    sees_itself: bool
    """Whether each query sees a key. If not, all blocks are visited: it takes the mean of all values."""


def bounds(seen: Seen, length: int, memory: int, keys: int, *, size: int) -> tuple[Any, Any]:
    """Which blocks are visited: i32[batch or 1, blocks, 4], by queries and by keys.

    Of queries in blocks of `size` the range of groups of keys, of groups of keys the range of blocks of queries: where
    it begins, where the mask is met everywhere, where that ends, where the range ends. Of the `memory` keys there are
    `keys`; the rest is padding.
    """
    xp: Any = np if seen.positions is None and seen.segments is None and seen.prefix is None else jnp
    here, there = seen.positions or (np.arange(length)[None], np.arange(memory)[None])
    q_low, q_high = _ends(xp, here, size)
    k_low, k_high = _ends(xp, there, GROUP)
    q_low, q_high, k_low, k_high = q_low[:, :, None], q_high[:, :, None], k_low[:, None], k_high[:, None]
    some = whole = xp.ones((1, length // size, memory // GROUP), bool)
    if seen.causal:
        before, all_before = k_low <= q_high, k_high <= q_low
        if seen.prefix is not None:
            prefix = seen.prefix[:, None, None]
            before, all_before = before | (k_low < prefix), all_before | (k_high < prefix)
        some, whole = some & before, whole & all_before
    if seen.window is not None:
        some, whole = some & (k_high > q_low - seen.window), whole & (k_low > q_high - seen.window)
        if not seen.causal:
            some, whole = some & (k_low < q_high + seen.window), whole & (k_high < q_low + seen.window)
    if seen.segments is not None:
        q_low, q_high = (x[:, :, None] for x in _ends(xp, seen.segments[0], size))
        k_low, k_high = (x[:, None] for x in _ends(xp, seen.segments[1], GROUP))
        some = some & (k_low <= q_high) & (k_high >= q_low)
        whole = whole & (q_low == q_high) & (k_low == q_low) & (k_high == q_low)
    if not seen.sees_itself:
        some = xp.ones_like(some)
    if memory > keys:
        is_padding = np.arange(1, memory // GROUP + 1) * GROUP > keys
        whole = whole & ~is_padding
    by_keys = xp.swapaxes(some, 1, 2), xp.swapaxes(whole, 1, 2)
    return _range(xp, some, whole, is_before=False), _range(xp, *by_keys, is_before=True)


def _ends(xp: Any, x: Any, size: int) -> tuple[Any, Any]:
    """The least and the largest of each block."""
    cut = x.reshape(x.shape[0], -1, size)
    return xp.min(cut, axis=-1), xp.max(cut, axis=-1)


def _range(xp: Any, some: Any, whole: Any, *, is_before: bool) -> Any:
    """The range of what is true along the last axis, and the first run of `whole`.

    Where nothing is `whole`, all is before or after that run: where a causal mask has the rest anyway.
    """
    some, whole = xp.broadcast_arrays(some, whole & some)
    count = some.shape[-1]
    place = np.arange(count)
    last = xp.max(xp.where(some, place + 1, 0), axis=-1)
    first = xp.minimum(xp.min(xp.where(some, place, count), axis=-1), last)
    start = xp.min(xp.where(whole, place, count), axis=-1)
    end = xp.min(xp.where(~whole & (place >= start[..., None]), place, count), axis=-1)
    is_none, nowhere = start == count, last if is_before else first
    start, end = (xp.where(is_none, nowhere, x) for x in (start, end))
    return xp.stack([first, start, end, last], axis=-1).astype("int32")


def parts(limits: Any) -> tuple[bool, bool, bool]:
    """Which parts of the ranges there are: before, in and after what needs no mask."""
    if not isinstance(limits, np.ndarray):
        return True, True, True
    before, inside, after = (bool((limits[..., i] < limits[..., i + 1]).any()) for i in range(3))
    return before, inside, after
