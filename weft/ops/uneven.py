"""Sizes that do not divide: a dim is padded, openly.

From then on it behaves as if it had its own size. The padding is part of the dim, so every operation knows of it:
reductions, products, softmax, orderings and lookups leave it out, no gradient flows to it, and random numbers are those
of the dim without it.
"""

import jax
import jax.numpy as jnp

from ..dims import Dim, DimLike, Dims, Shape, only, resolve
from ..errors import DimError
from ..lower.meet import need_tensor
from ..lower.move import result
from ..lower.padding import validity
from ..lower.recorded import recorded
from ..tensor import Tensor, make, marks_of, with_marks
from .create import slice_of
from .elementwise import logical_not, logical_or
from .slicing import pad, slice


@recorded
def pad_to(x: Tensor, dim: DimLike, multiple: int) -> Tensor:
    """`x` with the dim padded to a multiple in size; padding is zero, counts nowhere."""
    x = need_tensor(x, "pad_to")
    found = only(resolve(dim, x.dims, what="dim"), "pad_to")
    if found.is_padded:
        if found.padded_to(multiple) == found:
            return x
        raise DimError(
            f"pad_to got `{found.name}`, which has padding already: {found!r}",
            fix=f"take it off first: `wf.unpad(x, '{found.name}')`",
        )
    target = found.padded_to(multiple)
    if isinstance(x.raw, jax.ShapeDtypeStruct):
        dims = Shape(target if d.name == target.name else d for d in x.dims)
        return make(jax.ShapeDtypeStruct(dims.sizes, x.raw.dtype), dims, None, x.kind)
    padded = pad(x, over=found, after=target.size - found.size) if target.is_padded else x
    shape = Shape(target if d.name == target.name else d for d in padded.dims)
    return make(padded.raw, shape, padded.region, x.kind if padded.region is None else padded.kind)


@recorded
def unpad(x: Tensor, dim: DimLike) -> Tensor:
    """`x` without the padding of the dim `dim`, which has its own size again."""
    x = need_tensor(x, "unpad")
    found = only(resolve(dim, x.dims, what="dim"), "unpad")
    made = slice(x, over=found, start=0, size=found.count) if found.is_padded else x
    return make(made.raw, made.dims, None, x.kind) if made.region is None else made


@recorded
def valid(dims: Dims | Tensor, *, like: Tensor | None = None) -> Tensor:
    """True where a tensor (or one of these dims) holds values, False in padding."""
    if isinstance(dims, Tensor):
        like = dims if like is None else like
        dims = dims.dims
    shape, region, placement, sizes = slice_of(dims, like, "valid")
    mask = validity(shape, placement, sizes)
    array = jnp.ones(sizes, bool) if mask is None else jnp.broadcast_to(mask, sizes)
    return result(array, shape, region)


def with_padding_as_values(x: Tensor, dim: Dim) -> Tensor:
    """`x` with the padding of a dim as values, for an op that never looks at them."""
    if not x.dims.find(dim.name).is_padded:
        return x
    dims = Shape(d.resized(d.size) if d.name == dim.name else d for d in x.dims)
    return with_marks(make(x.raw, dims, x.region, x.kind), marks_of(x))


def or_padding(x: Tensor) -> Tensor:
    """A tensor of booleans that are true in its padding too."""
    return logical_or(x, logical_not(valid(x.dims, like=x))) if x.dims.is_padded else x
