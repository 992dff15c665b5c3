"""Renaming and broadcasting: what changes the names of dims and may move slices.

A rename keeps the placement where it can; split to whole is an all-gather, whole to split a local slice, and an axis
that goes from one dim to another an all-to-all.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from ..dims import Dim, Shape, new_dims, union
from ..errors import DimError, closest
from ..operators import operation
from ..tensor import Tensor, make
from .collectives import as_varying
from .elementwise import aligned
from .meet import Meeting, meet, need_tensor
from .move import result, settle
from .recorded import recorded


def renamed(dims: Shape, names: Mapping[str, Any]) -> Shape:
    """The shape after a rename; every old name must be there, and no new one twice."""
    for old, new in names.items():
        if not dims.has(old):
            raise DimError(f"there is no dim `{old}` to rename in [{dims}]", fix=closest(old, dims.names))
        if not isinstance(new, Dim | str):
            raise DimError(f"`{old}` was renamed to {new!r}", fix=f"give a name or a dim, e.g. `{old}='memory_{old}'`")
        if isinstance(new, Dim) and new.size not in (dims.find(old).size, dims.find(old).count):
            raise DimError(
                f"dim `{old}` (size {dims.find(old).size}) was renamed to `{new.name}` of size {new.size}",
                fix=f"a rename keeps the size: `{new.name}` must have size {dims.find(old).size}",
            )
        if isinstance(new, Dim) and new.is_padded and new.valid != dims.find(old).valid:
            raise DimError(
                f"{dims.find(old)!r} was renamed to {new!r}, which has other padding",
                fix=f"a rename keeps the padding: give the name alone, `{old}='{new.name}'`",
            )
    after = [_new(dim, names.get(dim.name)) for dim in dims]
    for dim, new in zip(dims, after, strict=True):
        if dim.name in names and sum(other.name == new.name for other in after) > 1:
            raise DimError(
                f"dim `{dim.name}` was renamed to `{new.name}`, which [{dims}] has already",
                fix=f"choose another name, or rename that dim in the same call: `{new.name}='{new.name}_2'`",
            )
    return Shape(after)


def _new(dim: Dim, new: Any) -> Dim:
    if isinstance(new, Dim):
        return replace(new, size=dim.size, valid=dim.valid)
    return dim if new is None else dim.renamed(new)


@operation("rename")
@recorded
def rename(x: Tensor, **names: Any) -> Tensor:
    """`x` with some dims renamed; several renames are one movement."""
    x = need_tensor(x, "rename")
    dims = renamed(x.dims, names)
    if x._region is None:
        return make(x._array, dims, None, x._kind)
    meeting = meet([x], into=dims)
    array = meeting.run(lambda a: a, [x])
    return settle(array, dims, meeting.placement(x.dims), x._region, kind=meeting.kind)


@recorded
def broadcast(x: Tensor, dims: Any) -> Tensor:
    """`x` repeated along the dims it lacks, with its dims in the order of `dims`; nothing is sent."""
    x = need_tensor(x, "broadcast")
    shape = new_dims(dims, what="dims", known=x.dims)
    for dim in x.dims:
        if not shape.has(dim):
            raise DimError(
                f"broadcast to [{shape}] leaves out `{dim.name}` of {x!r}",
                fix=f"add `{dim.name}`, or sum over it first: `wf.sum(x, over='{dim.name}')`",
            )
    union(shape, x.dims)  # one size for each name
    meeting = Meeting(x._region, union(x.dims, shape))
    sizes, axes = meeting.local_sizes(shape), meeting.axes(shape)

    def spread(array: Any) -> Any:
        # Made to vary before it is repeated, so that its gradient is added up here before it is summed over processors.
        array = as_varying(array, axes) if axes else array
        return jnp.broadcast_to(aligned(array, x.dims, shape), sizes)

    array = meeting.run(spread, [x])
    return result(array, shape, meeting.region)
