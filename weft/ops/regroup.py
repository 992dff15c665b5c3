"""Dims cut into several and joined into one, and tensors stacked along a new dim.

A split is free where the first part takes the axes of the dim, a merge where the first dim holds them; otherwise as
little moves as the new places require.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..dims import Dim, DimLike, Dims, Shape, new_dims, only, resolve, union
from ..dtypes import is_key
from ..errors import DimError, TensorError
from ..layout import Axes, Placement, Region, axes_in
from ..lower.collectives import all_gather_equal
from ..lower.exchange import exchange_indices
from ..lower.keys import keys_of, words_of
from ..lower.meet import meet, need_tensor
from ..lower.move import align, gather_of, relocate, settle
from ..lower.padding import need_no_padding
from ..lower.recorded import recorded
from ..tensor import Kind, Tensor


@recorded
def split(x: Tensor, **parts: Dims) -> Tensor:
    """`x` with dims cut: `split(x, d_model=[heads, d_kv])`, the first the slowest."""
    x = need_tensor(x, "split")
    for name, into in parts.items():
        x = _split_one(x, name, into)
    return x


def _split_one(x: Tensor, name: str, into: Dims) -> Tensor:
    dim = x.dim(name)
    if isinstance(into, list | tuple) and into and all(isinstance(part, int) for part in into):
        named = ", ".join(f"wf.Dim('{name}_{i}', {part})" for i, part in enumerate(into, 1))
        raise DimError(f"split cuts `{name}` into {into!r}, which have no names", fix=f"give dims: `{name}=[{named}]`")
    pieces = Shape(new_dims(into, what=name))
    if not pieces or math.prod(pieces.sizes) != dim.size:
        raise DimError(
            f"`{name}` (size {dim.size}) does not split into [{pieces}]",
            fix=f"give dims whose sizes multiply to {dim.size}",
        )
    pieces = _with_padding(dim, pieces)
    position = x.dims.position(name)
    dims = Shape([*x.dims[:position], *pieces, *x.dims[position + 1 :]])
    meeting = meet([x], into=dims)
    axes, region, kind = meeting.axes([dim]), meeting.region, meeting.kind
    array = meeting.run(lambda a: a, [x])
    have = meeting.placement(x.dims)
    kept = _axes_dividing(axes, pieces[0].size, region)
    if kept != axes and region is not None:
        wanted = region.placement(dims, kind.store)[position : position + len(pieces)]
        if any(wanted) and set(axes_in(wanted)) <= set(axes):
            held = _places((dim,), (axes,), axes, region)
            array = exchange_indices(array, position, axes, held, _places(pieces, wanted, axes, region))
            shape = [*array.shape[:position], *region.local_sizes(pieces, wanted), *array.shape[position + 1 :]]
            placed = (*have[:position], *wanted, *have[position + 1 :])
            return settle(array.reshape(shape), dims, placed, region, kind=kind)
        # What the first part cannot hold comes together before it is cut.
        array = relocate(array, have, (*have[:position], kept, *have[position + 1 :]), region, gather_of(kind))
    shape = list(array.shape)
    ways = region.ways(kept) if region is not None else 1
    shape[position : position + 1] = [pieces[0].size // ways, *pieces.sizes[1:]]
    placed = (*have[:position], kept, *((),) * (len(pieces) - 1), *have[position + 1 :])
    return settle(array.reshape(shape), dims, placed, region, kind=kind)


def _with_padding(dim: Dim, pieces: Shape) -> Shape:
    """The parts of a padded dim, whose padding is whole ones of the first part."""
    rest = math.prod(pieces.sizes[1:])
    if dim.is_padded and dim.count % rest:
        need_no_padding([dim], "split")
    return Shape([replace(pieces[0], valid=dim.count // rest), *pieces[1:]]) if dim.is_padded else pieces


def _places(dims: Sequence[Dim], placed: Placement, axes: Axes, region: Region) -> np.ndarray:
    """Which places of these dims, joined, each processor along the axes holds."""
    ways = [region.mesh.axes[axis] for axis in axes]
    whole = np.arange(math.prod(dim.size for dim in dims)).reshape([dim.size for dim in dims])
    held = []
    for here in np.ndindex(*ways):
        at = dict(zip(axes, here, strict=True))
        block = whole
        for position, (dim, own) in enumerate(zip(dims, placed, strict=True)):
            size, first = dim.size // region.ways(own), 0
            for axis in own:
                first = first * region.mesh.axes[axis] + at[axis]
            block = block.take(np.arange(first * size, (first + 1) * size), axis=position)
        held.append(block.reshape(-1))
    return np.array(held)


def _axes_dividing(axes: Axes, size: int, region: Region | None) -> Axes:
    """The first of these axes over which a size divides."""
    kept = axes
    while region is not None and kept and size % region.ways(kept):
        kept = kept[:-1]
    return kept


@recorded
def merge(x: Tensor, dims: Dims, *, into: Dim) -> Tensor:
    """`x` with dims joined: `merge(x, [heads, d_kv], into=d_model)`, first slowest."""
    x = need_tensor(x, "merge")
    pieces = resolve(dims, x.dims, what="dims")
    if not pieces:
        raise DimError(
            "merge was given no dims to join", fix="name them, e.g. `wf.merge(x, [heads, d_kv], into=d_model)`"
        )
    need_no_padding(pieces[1:], "merge")
    if not isinstance(into, Dim) or into.size != math.prod(pieces.sizes):
        size = math.prod(pieces.sizes)
        raise DimError(
            f"[{pieces}] were merged into {into!r}", fix=f"give a dim of size {size}: `into=wf.Dim('name', {size})`"
        )
    into = replace(into, valid=pieces[0].count * math.prod(pieces.sizes[1:]))
    rest = x.dims.without(pieces)
    if rest.has(into):
        fix = f"choose another name, e.g. `into=wf.Dim('{into.name}_2', {into.size})`"
        raise DimError(f"merge makes `{into.name}`, which [{x.dims}] has already", fix=fix)
    position = min(x.dims.position(dim) for dim in pieces)
    before = [dim for dim in x.dims[:position] if rest.has(dim)]
    after = [dim for dim in x.dims[position:] if rest.has(dim)]
    ordered, target = Shape([*before, *pieces, *after]), Shape([*before, into, *after])
    meeting = meet([x], into=target)
    region, kind = meeting.region, meeting.kind
    array = align(meeting.run(lambda a: a, [x]), x.dims, ordered)
    have = meeting.placement(ordered)
    first = len(before)
    if region is not None and any(have[first + 1 : first + len(pieces)]):
        # Only the first may be split while they are joined; it takes what the result wants, if it can.
        wanted = region.placement(target, kind.store)[first]
        lead = _axes_dividing(wanted, pieces[0].size, region)
        own = have[first : first + len(pieces)]
        if lead != wanted and set(wanted) <= set(axes_in(own)):
            return _merge_by_places(array, have, pieces, first, target, region, kind)
        want: Placement = (*have[:first], lead, *((),) * (len(pieces) - 1), *have[first + len(pieces) :])
        array, have = relocate(array, have, want, region, gather_of(kind)), want
    shape = list(array.shape)
    shape[first : first + len(pieces)] = [math.prod(shape[first : first + len(pieces)])]
    placed = (*have[: first + 1], *have[first + len(pieces) :])
    return settle(array.reshape(shape), target, placed, region, kind=kind)


def _merge_by_places(
    array: Any, have: Placement, pieces: Shape, first: int, target: Shape, region: Region, kind: Kind
) -> Tensor:
    """Dims joined where none can take the result's axes: each gets places it lacks."""
    own, wanted = have[first : first + len(pieces)], region.placement(target, kind.store)[first]
    axes = axes_in(own)
    shape = [*array.shape[:first], math.prod(array.shape[first : first + len(pieces)])]
    array = array.reshape([*shape, *array.shape[first + len(pieces) :]])
    held, due = _places(pieces, own, axes, region), _places([target[first]], (wanted,), axes, region)
    array = exchange_indices(array, first, axes, held, due)
    return settle(array, target, (*have[:first], wanted, *have[first + len(pieces) :]), region, kind=kind)


@recorded
def stack(xs: Sequence[Tensor], dim: Dim) -> Tensor:
    """Tensors of the same dims put side by side along a new dim, which comes first."""
    if not isinstance(xs, list | tuple) or not xs:
        raise TensorError(f"stack got {xs!r:.60}", fix="give a list of tensors: `wf.stack([a, b], wf.Dim('pair', 2))`")
    xs = [need_tensor(x, "stack") for x in xs]
    if not isinstance(dim, Dim) or dim.size != len(xs):
        raise DimError(
            f"stack puts {len(xs)} tensors along {dim!r}",
            fix=f"give a dim of size {len(xs)}: `wf.Dim('copies', {len(xs)})`",
        )
    common = union(*(x.dims for x in xs))
    if common.has(dim):
        fix = f"choose another name, e.g. `wf.Dim('{dim.name}_2', {dim.size})`"
        raise DimError(f"stack makes `{dim.name}`, which [{common}] has already", fix=fix)
    for x in xs:
        if set(x.dims.names) != set(xs[0].dims.names):
            raise DimError(
                f"stack got [{xs[0].dims}] and [{x.dims}]",
                fix="give tensors of the same dims; rename one, or broadcast what lacks one: "
                f"`wf.broadcast(x, [{', '.join(common.names)}])`",
            )

    def compute(*arrays: Any) -> Any:
        return jnp.stack([align(a, x.dims, common) for a, x in zip(arrays, xs, strict=True)])

    dims = Shape([dim, *common])
    meeting = meet(xs, into=dims)
    array = meeting.run(compute, xs)
    return settle(array, dims, ((), *meeting.placement(common)), meeting.region, kind=meeting.kind)


@recorded
def unstack(x: Tensor, *, over: DimLike) -> tuple[Tensor, ...]:
    """The slices of `x` along the dim `over`, gathered first where it is split."""
    x = need_tensor(x, "unstack")
    if is_key(x):
        return tuple(keys_of(part) for part in unstack(words_of(x), over=over))
    dim = only(resolve(over, x.dims, what="over"), "unstack")
    rest = x.dims.without([dim])
    meeting = meet([x], into=rest)
    position = x.dims.position(dim)
    have, region = meeting.placement(x.dims), meeting.region
    array = meeting.run(lambda a: a, [x])
    if region is not None and have[position]:
        whole = (*have[:position], (), *have[position + 1 :])
        array = relocate(array, have, whole, region, all_gather_equal)
    slices = jnp.split(array, dim.size, axis=position)[: dim.count]
    placed = (*have[:position], *have[position + 1 :])
    return tuple(settle(jnp.squeeze(part, position), rest, placed, region, kind=meeting.kind) for part in slices)
