"""Inside the kernels: tiles of scores and shares, and loops over them.

A tile is [queries keys], or turned where gradients of keys are made, so that no product needs one transposed. Scores
are held as numbers `r` with the share exp2(r * factor - log-sum), which saves a multiplication for each.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import counter
from .blocks import GROUP, Tile
from .counter import APART
from .plain import UNSEEN

LOG2E = math.log2(math.e)
LOWEST = -1e30  # below every score, and finite


@dataclass(frozen=True)
class How:
    """What a kernel is compiled for."""

    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    dropout: float
    keys: int
    """How many keys there are; those beyond are padding."""
    memory: int
    sees_itself: bool
    has_bias: bool
    has_segments: bool
    is_aligned: bool
    """Whether the first key is the first of a group, by its global index."""
    is_interpreted: bool

    @property
    def is_raw(self) -> bool:
        """Whether `r` is the product itself, and its scale in the factor."""
        return self.softcap is None and not self.has_bias and self.scale > 0

    @property
    def factor(self) -> float:
        return LOG2E * (self.scale if self.is_raw else 1.0)

    def tiles(self, block: Tile) -> int:
        """How many tiles of keys a turn of a loop has."""
        return 2 if self.dropout and self.is_aligned and block.is_paired else 1

    def turns(self, block: Tile) -> int:
        """How many turns there are to a group of keys."""
        return GROUP // (block.keys * self.tiles(block))

    def starts(self, turn: Any, block: Tile) -> list[Any]:
        """Where the tiles of keys begin at a turn."""
        if self.tiles(block) == 1:
            return [turn * block.keys]
        turns = self.turns(block)
        start = turn * GROUP if turns == 1 else lax.div(turn, turns) * GROUP + lax.rem(turn, turns) * block.keys
        return [start, start + APART]


@dataclass(frozen=True)
class TileSide:
    """What queries or keys of a tile say of themselves, along its own axis."""

    index: Any
    position: Any
    segment: Any
    word: Any
    later: Any

    @classmethod
    def along(cls, axis: int, index: Any, position: Any, segment: Any, word: Any, later: Any = None) -> "TileSide":
        """Of arrays in one dim, with one of size 1 at `axis`; positions are else indices."""
        position = index if position is None else position
        given = index, position, segment, word, later
        return cls(*(None if x is None else jnp.expand_dims(x, axis) for x in given))


def scores(how: How, product: Any, bias: Any) -> tuple[Any, Any]:
    """The `r` of a tile before its mask, and what its gradient is multiplied by."""
    if how.is_raw:
        return product, None
    r = product * how.scale
    if bias is not None:
        r = r + bias.astype(jnp.float32)
    if how.softcap is None:
        return r, None
    capped = tanh(r * (1 / how.softcap))
    return how.softcap * capped, 1 - capped * capped


def tanh(x: Any) -> Any:
    """tanh by exp2, which a GPU has in hardware."""
    return 1 - 2 / (1 + jnp.exp2(x * (2 * LOG2E)))


def is_seen(how: How, here: TileSide, there: TileSide, prefix: Any) -> Any:
    """Where queries of a tile see keys; None if everywhere."""
    conditions: list[Any] = []
    if how.causal:
        before = there.position <= here.position
        conditions.append(before if prefix is None else before | (there.position < prefix))
    if how.window is not None:
        conditions.append(there.position > here.position - how.window)
        if not how.causal:
            conditions.append(there.position < here.position + how.window)
    if how.has_segments:
        conditions.append(here.segment == there.segment)
    seen = None
    for condition in conditions:
        seen = condition if seen is None else seen & condition
    return seen


def mask(how: How, r: Any, here: TileSide, there: TileSide, prefix: Any) -> tuple[Any, Any]:
    """The `r` of a tile with its mask, and where keys are seen."""
    seen = is_seen(how, here, there, prefix)
    if seen is not None:
        r = jnp.where(seen, r, UNSEEN * LOG2E / how.factor)
    if how.memory > how.keys:
        r = jnp.where(there.index < how.keys, r, -jnp.inf)
    return r, seen


def keeps(how: How, here: TileSide, there: list[TileSide]) -> list[Any]:
    """Where dropout keeps shares, of each of the tiles; None if everywhere."""
    if not how.dropout:
        return [None] * len(there)
    below = counter.threshold(how.dropout)
    word = counter.scramble(here.word ^ there[0].word)
    if len(there) == 2:
        return [word < below, (word << 16) < below]
    later = (there[0].index // APART) % 2 if there[0].later is None else there[0].later
    return [(word << (later.astype(jnp.uint32) * 16)) < below]


def drop(kept: Any, share: Any, zero: Any) -> Any:
    """The shares that dropout keeps; `zero` is 0.

    It is a number that the compiler does not know: it would choose among rounded shares, one by one, where two are
    rounded by one instruction.
    """
    return share if kept is None else jnp.where(kept, share, zero)


def zero(limits: Any) -> Any:
    """A 0 that the compiler does not know, of limits that are never negative."""
    return jnp.minimum(limits[0], 0).astype(jnp.float32)


def exp2(how: How, r: Any, less: Any) -> Any:
    """exp2(r * factor - less), with one instruction for product and difference.

    What Pallas makes of the formula has two: its compiler may not round once where two roundings are written.
    """
    if how.is_interpreted:
        return jnp.exp2(r * how.factor - less)
    from jax.experimental.pallas import triton

    factor = np.float32(how.factor).view(np.uint32)
    (power,) = triton.elementwise_inline_asm(
        f"fma.rn.f32 $0, $1, 0f{factor:08X}, $2;",
        args=[r, jnp.broadcast_to(-less, r.shape)],
        constraints="=f,f,f",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(r.shape, jnp.float32)],
    )
    return jnp.exp2(power)


def loop(parts: tuple[bool, bool, bool], limits: Any, turns: int, body: Callable[..., Any], carry: Any) -> Any:
    """Runs `body(turn, carry, masked=...)` over a range of `bounds`, `turns` to each.

    `parts` says which there are at all: what is before, in and after the blocks that need no mask.
    """
    ends = [limits[i] * turns for i in range(4)]
    for has_part, start, end, masked in zip(parts, ends, ends[1:], (True, False, True), strict=False):
        if has_part:
            carry = lax.fori_loop(start, end, lambda i, carry, masked=masked: body(i, carry, masked=masked), carry)
    return carry
