"""Renaming and broadcasting: what changes the names of dims and may move slices.

A rename keeps the placement where it can; split to whole is an all-gather, whole to split a local slice, an axis that
goes from one dim to another an all-to-all, and the same axes in another order a permute.
"""

from typing import Any

import jax.numpy as jnp

from ..dims import DimLike, Dims, new_dims, rename_dims, union
from ..errors import DimError
from ..lower.collectives import as_varying
from ..lower.meet import Meeting, meet, need_tensor
from ..lower.move import align, result, settle
from ..lower.recorded import recorded
from ..operators import operation
from ..tensor import Tensor, make


@operation("rename")
@recorded(is_rename=True)
def rename(x: Tensor, **names: DimLike) -> Tensor:
    """`x` with some dims renamed; several renames are one movement."""
    x = need_tensor(x, "rename")
    dims = rename_dims(x.dims, names)
    if x.region is None:
        return make(x.raw, dims, None, x.kind)
    meeting = meet([x], into=dims)
    array = meeting.run(lambda a: a, [x])
    return settle(array, dims, meeting.placement(x.dims), x.region, kind=meeting.kind)


@recorded
def broadcast(x: Tensor, dims: Dims) -> Tensor:
    """`x` repeated along the dims it lacks, in the order of `dims`; nothing is sent."""
    x = need_tensor(x, "broadcast")
    shape = new_dims(dims, what="dims", known=x.dims)
    for dim in x.dims:
        if not shape.has(dim):
            raise DimError(
                f"broadcast to [{shape}] leaves out `{dim.name}` of {x!r}",
                fix=f"add `{dim.name}`, or sum over it first: `wf.sum(x, over='{dim.name}')`",
            )
    union(shape, x.dims)  # one size for each name
    meeting = Meeting(x.region, union(x.dims, shape))
    sizes, axes = meeting.local_sizes(shape), meeting.axes(shape)

    def spread(array: Any) -> Any:
        # Made to vary before it is repeated, so that its gradient is added up here before it is summed over processors.
        array = as_varying(array, axes) if axes else array
        return jnp.broadcast_to(align(array, x.dims, shape), sizes)

    array = meeting.run(spread, [x])
    return result(array, shape, meeting.region)
