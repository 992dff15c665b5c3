"""New tensors: nothing is sent.

With `like=x` each processor makes only its slice; without, they are whole and sliced where they meet a split tensor.
Dtypes are those jnp gives, unless they are said.
"""

from typing import Any

import jax.numpy as jnp

from ..dims import DimLike, Dims, Shape, new_dims
from ..dtypes import DTypeLike, need_room
from ..errors import DimError, TensorError
from ..layout import Placement, Region
from ..lower.collectives import first_place
from ..lower.meet import need_tensor, operand
from ..lower.move import result
from ..lower.recorded import recorded
from ..tensor import Tensor, as_dtype, is_tensor


@recorded
def zeros(dims: Dims, *, like: Tensor | None = None, dtype: DTypeLike = float) -> Tensor:
    """A tensor of zeros."""
    return full(dims, 0, like=like, dtype=dtype)


@recorded
def ones(dims: Dims, *, like: Tensor | None = None, dtype: DTypeLike = float) -> Tensor:
    """A tensor of ones."""
    return full(dims, 1, like=like, dtype=dtype)


@recorded
def full(dims: Dims, value: Any, *, like: Tensor | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """A tensor that holds one value everywhere."""
    value = operand(value, "full")
    if is_tensor(value):
        if value.dims:
            raise DimError(f"full got {value!r} for its value", fix="give a number, or use `wf.broadcast(x, dims)`")
        like = value if like is None else like
        value = value.local_array
    dtype = None if dtype is None else as_dtype(dtype)
    need_room(value, dtype)
    shape, region, _, sizes = slice_of(dims, like, "full")
    return result(jnp.full(sizes, value, dtype), shape, region)


@recorded
def arange(dim: DimLike, *, like: Tensor | None = None, dtype: DTypeLike = int) -> Tensor:
    """0, 1, 2, ... along a dim; of JAX's integers, if not said otherwise."""
    shape, region, placement, sizes = slice_of(dim, like, "arange")
    if len(shape) != 1:
        raise DimError(f"arange goes along one dim, and [{shape}] are {len(shape)}", fix="name one dim")
    dtype = as_dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.number):
        raise TensorError(f"arange cannot count in {dtype}", fix="ask for 'int32' or 'float32'")
    need_room(shape[0].size - 1, dtype)
    # Counted in whole numbers: a short float would round twice.
    places = jnp.arange(sizes[0]) + first_place(placement[0], sizes[0])
    return result(places.astype(dtype), shape, region)


def slice_of(dims: Dims, like: Any, what: str) -> tuple[Shape, Region | None, Placement, tuple[int, ...]]:
    """The shape, region, placement and local sizes of a new tensor."""
    known = need_tensor(like, what).dims if like is not None else ()
    shape = new_dims(dims, what="dims", known=known)
    region = like.region if like is not None else None
    if region is None:
        return shape, None, ((),) * len(shape), shape.sizes
    placement = region.placement(shape)
    return shape, region, placement, region.local_sizes(shape, placement)
