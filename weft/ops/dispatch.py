"""Rows sent to the processors of another dim and back: an all-to-all each way.

A rename keeps every value at its place: where the outer of two axes leaves a dim, the rest of that dim must first be
put in order. Who works on each row alone, as an expert on its tokens, needs no order. `dispatch` renames and leaves the
rows as they come: the dim in two, a part over the axes that leave, then the rest. One after the other they are
the dim itself, so random numbers stay what they are. `collect` renames back and joins them.
"""

import math

from ..dims import Dim, DimLike, Dims, Shape, rename_dims, resolve
from ..errors import DimError
from ..layout import Axes, Region, axes_in
from ..lower.meet import meet, need_tensor
from ..lower.move import relocate, result, settle
from ..lower.recorded import recorded
from ..tensor import Tensor, placement
from .reduce import sum
from .regroup import split
from .reshape import broadcast, rename

SLICES = "_slices"
"""How dims end that count the slices of another."""


@recorded(is_rename=True)
def dispatch(x: Tensor, **names: DimLike) -> Tensor:
    """`x` renamed, where outer axes leave a dim its part over these and the rest."""
    x = need_tensor(x, "dispatch")
    dims = rename_dims(x.dims, names)
    cut = None if x.region is None else _first_cut(x, dims, x.region)
    if cut is None or x.region is None:
        return rename(x, **names)
    position, leaving = cut
    dim, ways = dims[position], x.region.ways(leaving)
    parts = Dim(_outer(dim.name), ways), Dim(dim.name, dim.size // ways, dim.follows)
    dims = Shape([*dims[:position], *parts, *dims[position + 1 :]])
    have = placement(x)
    meeting = meet([x], into=dims)
    array = meeting.run(lambda a: a, [x])
    array = array.reshape([*array.shape[:position], 1, *array.shape[position:]])
    placed = (*have[:position], leaving, have[position][len(leaving) :], *have[position + 1 :])
    return settle(array, dims, placed, x.region, kind=meeting.kind)


@recorded(is_rename=True)
def collect(x: Tensor, **names: DimLike) -> Tensor:
    """`x`, as `dispatch` made it, renamed; the parts of a dim are joined again."""
    x = need_tensor(x, "collect")
    cut = next((name for name in names if x.dims.has(_outer(name))), None)
    if cut is None or x.region is None:
        return rename(x, **names)
    position, outer, into = x.dims.position(_outer(cut)), x.dim(_outer(cut)), names[cut]
    if not isinstance(into, Dim) or into.size != outer.size * x.size(cut):
        size = outer.size * x.size(cut)
        raise DimError(f"`{cut}` was joined into {into!r}", fix=f"give a dim of size {size}: `wf.Dim('batch', {size})`")
    kept = {old: new for old, new in names.items() if old != cut}
    target = rename_dims(Shape([*x.dims[:position], into, *x.dims[position + 2 :]]), kept)
    want = x.region.placement(target)
    lead = _take_leading(want[position], outer.size, x.region)
    parts = (*want[:position], lead, want[position][len(lead) :], *want[position + 1 :])
    meeting = meet([x])
    array = relocate(meeting.run(lambda a: a, [x]), meeting.placement(x.dims), parts, x.region)
    array = array.reshape([*array.shape[:position], -1, *array.shape[position + 2 :]])
    return result(array, target, x.region)


def parts_of(dim: Dim, *, beside: Tensor) -> list[Dim]:
    """A dim cut in a part for each of its slices and the rest; itself if it is whole.

    So it is too where a dim of the tensor beside it has its axes. Sums over the rest alone need not be sent before all
    else is done; the part then is one more dim to sum over.
    """
    region = beside.region
    if region is None or not (axes := region.placement([dim])[0]) or dim.is_padded:
        return [dim]
    slices, rest = _cut(dim, region)
    return [slices, rest] if region.placement([slices, *beside.dims])[0] == axes else [dim]


@recorded
def sum_in_slices(x: Tensor, *, over: Dims) -> Tensor:
    """`x` summed over dims but for a place for each of their slices; nothing is sent.

    Many small sums over split dims can so be sent as one, later: by a sum over `batch_slices` and its like.
    """
    x = need_tensor(x, "sum_in_slices")
    gone = []
    for dim in resolve(over, x.dims, what="over"):
        if x.ways(dim) > 1 and not dim.is_padded and x.region is not None:
            slices, dim_left = _cut(dim, x.region)
            x = split(x, **{dim.name: [slices, dim_left]})
            gone.append(dim_left)
        else:
            gone.append(dim)
    return sum(x, over=gone)


def _cut(dim: Dim, region: Region) -> tuple[Dim, Dim]:
    """A place for each slice of a dim, split as it is, and the rest."""
    ways = region.ways(region.placement([dim])[0])
    follows = dim.name if dim.name in region.layout.rules else dim.follows
    return Dim(f"{dim.name}{SLICES}", ways, follows), Dim(f"{dim.name}_slice", dim.size // ways)


def repeat(x: Tensor, along: Dim) -> Tensor:
    """`x` repeated along a dim, which comes first."""
    return broadcast(x, [along, *x.dims])


def _outer(name: str) -> str:
    return f"{name}_outer"


def _first_cut(x: Tensor, dims: Shape, region: Region) -> tuple[int, Axes] | None:
    """The dim that loses its outer axes to others and keeps inner ones; and those."""
    want = region.placement(dims)
    for position, (have, kept) in enumerate(zip(placement(x), want, strict=True)):
        leaving = have[: len(have) - len(kept)]
        is_moved = bool(leaving) and set(leaving) <= set(axes_in(want))
        if is_moved and kept and have == leaving + kept and not dims[position].is_padded:
            return position, leaving
    return None


def _take_leading(axes: Axes, ways: int, region: Region) -> Axes:
    """The first of these axes, which cut into so many slices."""
    sizes = [region.mesh.axes[axis] for axis in axes]
    return axes[: next(i for i in range(len(axes) + 1) if math.prod(sizes[:i]) == ways)]
