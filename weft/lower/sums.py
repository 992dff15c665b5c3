"""Sums of gradients in another dtype than theirs (`sum_dtype`).

In floats of 16 bits and more numbers are cast and summed so. In float8 they would be lost, so each block of `BLOCK`
numbers travels with a scale of its own, a power of two: pieces go to who sums them (an all-to-all), are summed in
float32, and where the sum is wanted whole go back in float8 (an all-gather). A block and its scale are one message of
bytes. On a mesh of several levels that is done level by level, from the inside out.

How far off a sum is follows from the format: rounding to it moves a number by at most 2**-(m + 1) of itself, where m
is its bits of mantissa (3 of float8_e4m3fn, 2 of float8_e5m2), or by half its smallest number times the scale. So it
is once for what each processor adds, once for each level above the innermost, and once for a sum that is gathered.
What is not finite stays so, alone in its block. What would not be fewer bytes is summed in float32.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..layout import Axes
from ..record import dtype_scope, sum_scope
from . import collectives
from .levels import part, steps_of

BLOCK = 256


def is_scaled(dtype: Any) -> bool:
    """Whether numbers travel in this dtype with scales beside them."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits == 8


def all_reduce(array: Any, axes: Axes, dtype: Any) -> Any:
    """The sum over these axes, sent in `dtype`; float32 or wider comes out of float8."""
    if not is_scaled(dtype):
        return collectives.all_reduce(array.astype(dtype), axes)
    ways = lax.axis_size(axes) if axes else 1
    if ways == 1:
        return array
    if jnp.iscomplexobj(array):
        return lax.complex(all_reduce(array.real, axes, dtype), all_reduce(array.imag, axes, dtype))
    each = -(-array.size // ways)
    if _message(each) * ways >= array.size * 4:
        return collectives.all_reduce(_widen(array), axes)

    def total(array: Any) -> Any:
        flat = _pad(array.reshape(-1), each * ways).reshape(ways, each)
        with sum_scope(axes):
            own = _scatter(flat, axes, dtype)
            with dtype_scope(dtype):
                sent = collectives.all_gather_equal(_pack(own, dtype)[None], axes, 0)
        return _unpack(sent, each, dtype).reshape(-1)[: array.size].reshape(array.shape)

    return _differentiable(total, lambda tangent: collectives.all_reduce(tangent, axes))(_widen(array))


def reduce_scatter(array: Any, axes: Axes, position: int, dtype: Any) -> Any:
    """As `all_reduce`, of which each keeps its slice of the dim at `position`."""
    if not is_scaled(dtype):
        return collectives.reduce_scatter(array.astype(dtype), axes, position)
    if jnp.iscomplexobj(array):
        return lax.complex(*(reduce_scatter(part, axes, position, dtype) for part in (array.real, array.imag)))
    ways = lax.axis_size(axes)
    each = array.size // ways
    if _message(each) >= each * 4:
        return collectives.reduce_scatter(_widen(array), axes, position)

    def slice_of_total(array: Any) -> Any:
        first = jnp.moveaxis(array, position, 0)
        own = _scatter(first.reshape(ways, each), axes, dtype)
        return jnp.moveaxis(own.reshape(first.shape[0] // ways, *first.shape[1:]), 0, position)

    return _differentiable(slice_of_total, lambda tangent: collectives.reduce_scatter(tangent, axes, position))(
        _widen(array)
    )


def _differentiable(send: Any, send_tangent: Any) -> Any:
    """`send`, whose derivative is the sum itself, not that of its rounding."""
    once = jax.custom_jvp(send)
    once.defjvp(lambda primals, tangents: (once(*primals), send_tangent(*tangents)))
    return once


def _widen(array: Any) -> Any:
    return array.astype("float32")


def _scatter(pieces: Any, axes: Axes, dtype: Any) -> Any:
    """Of pieces for each processor along the axes, the sum of those for this one."""
    ways, each = pieces.shape
    steps = steps_of(axes, ways * _message(each))
    parts = part(collectives.as_varying(pieces, axes).reshape(-1), axes, steps, 0)
    for place, step in zip(reversed(range(len(steps))), steps, strict=True):
        with dtype_scope(dtype):
            got = collectives.all_to_all(_pack(parts, dtype), step, split=place, join=place)
        parts = _unpack(got, each, dtype).sum(place, keepdims=True)
    return parts.reshape(each)


def _message(count: int) -> int:
    """The bytes of so many numbers and their scales."""
    blocks, length = _blocks(count)
    return blocks * (length + 1)


def _blocks(count: int) -> tuple[int, int]:
    """How many blocks so many numbers are, and the length of each: as even as can be."""
    blocks = max(-(-count // BLOCK), 1)
    return blocks, -(-count // blocks)


def _pad(flat: Any, count: int) -> Any:
    return lax.pad(flat, jnp.zeros((), flat.dtype), [*[(0, 0, 0)] * (flat.ndim - 1), (0, count - flat.shape[-1], 0)])


def _reach(dtype: Any) -> int:
    """The largest power of two that a dtype has."""
    return math.frexp(float(jnp.finfo(dtype).max))[1] - 1


def _pack(array: Any, dtype: Any) -> Any:
    """Bytes of the numbers along the last dim, block by block; a byte for each scale."""
    blocks, length = _blocks(array.shape[-1])
    numbers = _pad(array, blocks * length).reshape(*array.shape[:-1], blocks, length)
    is_finite = jnp.isfinite(numbers)
    largest = jnp.max(jnp.where(is_finite, jnp.abs(numbers), 0), axis=-1, keepdims=True)
    exponent = (lax.bitcast_convert_type(largest, jnp.int32) >> 23) - 127  # of the power of two that it reaches
    scale = jnp.clip(exponent + 1 - _reach(dtype), -126, 127)
    small = (numbers * _power_of_two(-scale)).astype(dtype)
    small = jnp.where(is_finite, small, jnp.full_like(small, jnp.nan))
    sent = (lax.bitcast_convert_type(small, jnp.uint8), lax.bitcast_convert_type(scale.astype(jnp.int8), jnp.uint8))
    return jnp.concatenate(sent, axis=-1).reshape(*array.shape[:-1], blocks * (length + 1))


def _unpack(sent: Any, count: int, dtype: Any) -> Any:
    """So many numbers, in float32, of their bytes along the last dim."""
    blocks, length = _blocks(count)
    sent = sent.reshape(*sent.shape[:-1], blocks, length + 1)
    small = lax.bitcast_convert_type(sent[..., :length], dtype)
    scale = lax.bitcast_convert_type(sent[..., length:], jnp.int8).astype(jnp.int32)
    numbers = small.astype(jnp.float32) * _power_of_two(scale)
    return numbers.reshape(*sent.shape[:-2], blocks * length)[..., :count]


def _power_of_two(exponent: Any) -> Any:
    """2.0**exponent, exactly, of exponents that a normal float32 has."""
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
