"""Attention of one query to a KV cache, which gets the new key and value.

One kernel reads what is there of the cache, and no more: keys from the first of a sequence, or of its window, up to the
new token; and writes the new key and value in their place. Arrays are plain slices: the token's queries, its key and
its value beside each other [rows heads group+2 width], as one product makes them, and the cache [rows memory heads
width]. Where rows and heads are too few for a GPU, the keys are cut into parts, whose means are put together after it.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .plain import Backend

NARROWEST, WIDEST = 16, 256
TILE, WARPS = 8192, 4
"""How many numbers of the keys are read at a time, and by how many warps, as measured on an H200."""
_SHORTEST = 512  # keys of a part, where there are several
_PROGRAMS = 264  # two for each of the 132 processors of a Hopper GPU
_LOWEST = -0.7 * float(jnp.finfo("float32").max)


def attend_cached(
    qkv: Any,
    keys: Any,
    values: Any,
    at: Any,
    first: Any = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    backend: Backend = "triton",
) -> tuple[Any, Any, Any]:
    """What each query takes [rows heads group width]; the cache with the new ones.

    `at` is the place of the new token, a whole number; `first` [rows] that of the first token of each row, if not 0.
    Scores, softmax and sums are in float32.
    """
    how: dict[str, Any] = {"scale": scale, "softcap": softcap}
    begin = jnp.zeros(qkv.shape[0], "int32") if first is None else first.astype("int32")
    begin = begin if window is None else jnp.maximum(begin, at - window + 1)
    if backend == "plain":
        return _plain(qkv, keys, values, at, begin, **how)
    call = _call(qkv.shape, keys.shape, qkv.dtype, keys.dtype, backend=backend, tuning=(TILE, WARPS), **how)
    parts, largest, total, keys, values = call(qkv, keys, values, jnp.reshape(at, 1).astype("int32"), begin)
    if parts.shape[0] == 1:
        return parts[0], keys, values
    share = total * jnp.exp(largest - jnp.max(largest, axis=0))
    mixed = jnp.sum(parts * (share / jnp.sum(share, axis=0))[..., None], axis=0)
    return mixed.astype(qkv.dtype), keys, values


def can_do(width: int) -> str | None:
    """Why the kernel cannot do it, if so."""
    if width & (width - 1) or not NARROWEST <= width <= WIDEST:
        return f"heads are {width} wide, and the kernel takes powers of two from {NARROWEST} to {WIDEST}"
    return None


def _score(x: Any, scale: float, softcap: float | None) -> Any:
    x = x * scale
    return x if softcap is None else softcap * jnp.tanh(x / softcap)


def _plain(
    qkv: Any, keys: Any, values: Any, at: Any, begin: Any, *, scale: float, softcap: float | None
) -> tuple[Any, Any, Any]:
    """The same, with all scores held."""
    q, k, v = qkv[:, :, :-2], qkv[:, :, -2], qkv[:, :, -1]
    keys = jax.lax.dynamic_update_slice_in_dim(keys, k[:, None].astype(keys.dtype), at, 1)
    values = jax.lax.dynamic_update_slice_in_dim(values, v[:, None].astype(values.dtype), at, 1)
    wide = [x.astype("float32") for x in (q, keys, values)]
    scores = _score(jnp.einsum("bhgd,bmhd->bhgm", wide[0], wide[1]), scale, softcap)
    place = jnp.arange(keys.shape[1])
    is_seen = (place <= at) & (place >= begin[:, None])
    share = jax.nn.softmax(jnp.where(is_seen[:, None, None], scores, _LOWEST), axis=-1)
    return jnp.einsum("bhgm,bmhd->bhgd", share, wide[2]).astype(q.dtype), keys, values


def parts_for(rows: int, heads: int, memory: int) -> int:
    """Into how many parts the keys are cut.

    >>> parts_for(1, 16, 384), parts_for(64, 16, 16384), parts_for(1, 16, 16384), parts_for(1, 8, 131072)
    (1, 1, 17, 33)
    """
    return max(1, min(-(-_PROGRAMS // (rows * heads)), memory // _SHORTEST))


@functools.cache
def _call(
    token: Any, shape: Any, dtype: Any, kept: Any, *, scale: float, softcap: float | None, backend: Backend, tuning: Any
) -> Any:
    """The kernel for a token and a cache of these shapes."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    rows, heads, group, width = token[0], token[1], token[2] - 2, token[3]
    memory, (tile_numbers, warps) = shape[1], tuning
    parts = parts_for(rows, heads, memory)
    tile = min(max(16, tile_numbers // width), 1 << (memory.bit_length() - 1))  # a power of two that fits
    tiles = -(-memory // tile)
    kernel = _OneQuery(group, memory, tile, -(-tiles // parts), scale, softcap)
    of_cache = pl.BlockSpec((None, memory, None, width), lambda b, h, p: (b, 0, h, 0))
    of_part = pl.BlockSpec((None, None, None, group), lambda b, h, p: (p, b, h, 0))
    return pl.pallas_call(
        kernel,
        grid=(rows, heads, parts),
        in_specs=[
            pl.BlockSpec((None, None, group + 2, width), lambda b, h, p: (b, h, 0, 0)), of_cache, of_cache,
            pl.BlockSpec((1,), lambda b, h, p: (0,)), pl.BlockSpec((1,), lambda b, h, p: (b,)),
        ],
        out_specs=[
            pl.BlockSpec((None, None, None, group, width), lambda b, h, p: (p, b, h, 0, 0)),
            of_part, of_part, of_cache, of_cache,
        ],
        out_shape=[
            jax.ShapeDtypeStruct((parts, rows, heads, group, width), dtype if parts == 1 else jnp.float32),
            *[jax.ShapeDtypeStruct((parts, rows, heads, group), jnp.float32)] * 2,
            *[jax.ShapeDtypeStruct(shape, kept)] * 2,
        ],
        input_output_aliases={1: 3, 2: 4},
        interpret=backend == "interpret",
        compiler_params=None if backend == "interpret" else triton.CompilerParams(num_warps=warps, num_stages=2),
        name="attend_cached",
    )  # fmt: skip


@dataclass(frozen=True)
class _OneQuery:
    """What is done for one row, one head of keys and one part of them."""

    group: int
    memory: int
    tile: int
    """How many keys are read at a time."""
    tiles: int
    """How many tiles a part has."""
    scale: float
    softcap: float | None

    def __call__(self, *refs: Any) -> None:
        from jax.experimental import pallas as pl

        qkv_ref, at_ref, begin_ref, o_ref, most_ref, sum_ref, keys_ref, values_ref = refs[:1] + refs[3:]
        part, at, begin = pl.program_id(2), at_ref[0], begin_ref[0]
        *queries, key, value = (qkv_ref[i, :].astype(jnp.float32) for i in range(self.group + 2))
        is_first = (part == 0).astype(jnp.float32)  # the new token is seen once

        def start(query: Any) -> Any:
            score = _score(jnp.sum(query * key), self.scale, self.softcap)
            return value * is_first, jnp.where(part == 0, score, _LOWEST), is_first

        def turn(number: Any, carries: Any) -> Any:
            place = jnp.minimum(number * self.tile, self.memory - self.tile)
            here = place + jax.lax.iota(jnp.int32, self.tile)
            # The last tile may begin with what the one before it held.
            is_seen = (here >= begin) & (here < at) & (here >= number * self.tile)
            keys, values = (x[pl.ds(place, self.tile), :].astype(jnp.float32) for x in (keys_ref, values_ref))
            return tuple(map(functools.partial(self._add, keys, values, is_seen), queries, carries))

        low = jnp.maximum(part * self.tiles, begin // self.tile)
        high = jnp.minimum((part + 1) * self.tiles, (at + self.tile - 1) // self.tile)
        carries = jax.lax.fori_loop(low, high, turn, tuple(map(start, queries)))
        for i, (mixed, most, total) in enumerate(carries):
            o_ref[i, :] = (mixed / jnp.where(total > 0, total, 1.0)).astype(o_ref.dtype)
            most_ref[i], sum_ref[i] = most, total

        @pl.when(part == 0)
        def keep() -> None:
            keys_ref[at, :] = key.astype(keys_ref.dtype)
            values_ref[at, :] = value.astype(values_ref.dtype)

    def _add(self, keys: Any, values: Any, is_seen: Any, query: Any, carry: Any) -> Any:
        """What a query took so far, with what it takes of a tile."""
        mixed, most, total = carry
        scores = _score(jnp.sum(keys * query[None, :], axis=1), self.scale, self.softcap)
        scores = jnp.where(is_seen, scores, _LOWEST)
        largest = jnp.maximum(most, jnp.max(scores))
        share = jnp.where(is_seen, jnp.exp(scores - largest), 0.0)
        shrunk = jnp.exp(most - largest)
        mixed = mixed * shrunk + jnp.sum(values * share[:, None], axis=0)
        return mixed, largest, total * shrunk + jnp.sum(share)
