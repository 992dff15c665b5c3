"""Padding: places at the end of a dim without values, so that it divides.

Works on local arrays and placements; the operations see to it that what stands in the padding changes no result
(`filled`) and no gradient (`guarded`). What stands there is never defined.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..dims import Dim
from ..errors import DimError
from ..layout import Placement
from .collectives import first_place


def validity(
    dims: Sequence[Dim], placement: Placement, sizes: Sequence[int], over: Sequence[Dim] | None = None
) -> Any | None:
    """A mask, to broadcast, of where a local array holds values; None if unpadded."""
    mask = None
    for position, (dim, axes) in enumerate(zip(dims, placement, strict=True)):
        if not dim.is_padded or (over is not None and dim not in over):
            continue
        here = jnp.arange(sizes[position]) + first_place(axes, sizes[position])
        inside = (here < dim.count).reshape([-1 if i == position else 1 for i in range(len(dims))])
        mask = inside if mask is None else mask & inside
    return mask


def fill(array: Any, dims: Sequence[Dim], placement: Placement, value: Any, over: Sequence[Dim] | None = None) -> Any:
    """`array` with `value`, or a function of its dtype, in the padding (of `over`)."""
    mask = validity(dims, placement, array.shape, over)
    if mask is None:
        return array
    value = value(array.dtype) if callable(value) else value
    return jnp.where(mask, array, jnp.asarray(value).astype(array.dtype))


def guard(array: Any, dims: Sequence[Dim], placement: Placement) -> Any:
    """`array`; no gradient flows back to its padding, where it could be NaN."""
    if not any(dim.is_padded for dim in dims) or not jnp.issubdtype(array.dtype, jnp.inexact):
        return array

    @jax.custom_jvp
    def same(a: Any) -> Any:
        return a

    @same.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return primals[0], fill(tangents[0], dims, placement, 0)

    return same(array)


def lowest(dtype: Any) -> Any:
    """The value that no maximum prefers."""
    return _bound(dtype, -1)


def highest(dtype: Any) -> Any:
    """The value that no minimum prefers."""
    return _bound(dtype, 1)


def _bound(dtype: Any, sign: int) -> Any:
    if jnp.issubdtype(dtype, jnp.bool_):
        return sign > 0
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).max if sign > 0 else jnp.iinfo(dtype).min
    return complex(sign * jnp.inf, sign * jnp.inf) if jnp.issubdtype(dtype, jnp.complexfloating) else sign * jnp.inf


def need_no_padding(dims: Sequence[Dim], what: str) -> None:
    """Raises where an op would treat padding as values."""
    for dim in dims:
        if dim.is_padded:
            raise DimError(
                f"{what} goes along `{dim.name}`, of which {dim.count} places are valid and "
                f"{dim.size - dim.count} padding",
                fix=f"take the padding off first: `wf.unpad(x, '{dim.name}')`; where `{dim.name}` is split, under an "
                f"unsplit name: `wf.unpad(x.rename({dim.name}='{dim.name}_whole'), '{dim.name}_whole')`",
            )
