"""Reading and adding at indices that lie along the dim itself.

On a split dim either the ids and values travel, or the whole dim, whichever is less; an index outside [0, size)
reads zero and adds nothing, on every layout.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from ..dims import UNSHOWN, Dim, DimLike, Shape, only, resolve, union
from ..errors import DimError, TensorError
from ..lower.collectives import as_varying, varying
from ..lower.meet import common_region, meet, need_tensor, note_together
from ..lower.move import settle
from ..lower.recorded import recorded
from ..tensor import Tensor, as_dtype
from .elementwise import elementwise
from .index import local_ids, look_up, need_integers, need_kind, reorder
from .reshape import rename

_WHOLE = f"{UNSHOWN}whole"  # a name no rule splits


@recorded
def gather(x: Tensor, ids: Tensor, *, over: DimLike) -> Tensor:
    """The entries of `x` at `ids` along the dim `over`, as jnp.take_along_axis.

    The ids have that dim at a size of their own, which the result has then; other dims are matched by name.
    """
    x, ids = need_tensor(x, "gather"), need_integers(ids, "gather")
    dim = only(resolve(over, x.dims, what="over"), "gather")
    if not ids.dims.has(dim.name):
        raise DimError(
            f"gather goes along `{dim.name}`, which the ids [{ids.dims}] lack",
            fix=f"use `wf.take(x, ids, over='{dim.name}')`, which puts the dims of the ids in its place",
        )
    many = ids.dims.find(dim.name)
    note_together([x, ids])
    others = x.dims.without([dim])
    found_elements = _elements(union(others, ids.dims))
    if (
        _elements(x.dims) * x.dtype.itemsize
        <= found_elements * x.dtype.itemsize + _elements(ids.dims) * ids.dtype.itemsize
    ):
        whole = dim.renamed(_WHOLE)
        return look_up(rename(x, **{dim.name: whole}), ids, whole, {})
    return look_up(x, rename(ids, **{dim.name: _WHOLE}), dim, {_WHOLE: many})


def _elements(dims: Shape) -> int:
    return math.prod(dims.sizes)


@recorded
def scatter_add(x: Tensor, ids: Tensor, updates: Tensor, *, over: DimLike) -> Tensor:
    """`x` with `updates` added at `ids` along the dim `over`; equal ids add up.

    The updates have the ids' dims and those of `x` but `over`. Dims of the ids that `x` lacks are summed over. Where
    what is added comes to zero, `x` stays as it is, to the sign of a zero. Ids may be split over the axis of `over`.
    """
    x, ids, updates = (
        need_tensor(x, "scatter_add"),
        need_integers(ids, "scatter_add"),
        need_tensor(updates, "scatter_add"),
    )
    dim = only(resolve(over, x.dims, what="over"), "scatter_add")
    _check_updates(x, ids, updates, dim)
    note_together([x, ids, updates])
    along = [dim] if ids.dims.has(dim.name) else _beside(x, ids, dim)
    if not along:
        return _add(x, _scatter(x, ids, updates, dim, dim))
    sent = _elements(updates.dims) * updates.dtype.itemsize + _elements(ids.dims) * ids.dtype.itemsize
    if _elements(x.dims) * x.dtype.itemsize <= sent:
        return _add(x, _scatter(x, ids, updates, dim, dim.renamed(_WHOLE)))
    whole = {d.name: _WHOLE if d is dim else f"{UNSHOWN}{d.name}" for d in along}
    ids, updates = (rename(t, **whole) for t in (ids, updates))
    return _add(x, _scatter(x, ids, updates, dim, dim))


def _beside(x: Tensor, ids: Tensor, dim: Dim) -> list[Dim]:
    """Dims of the ids alone that share an axis with the dim gone along."""
    region = common_region([x, ids])
    if region is None or region.can_meet(union(x.dims, ids.dims)):
        return []
    held = set(region.axes([dim])[0])
    return [d for d in ids.dims.without([d for d in x.dims if ids.dims.has(d)]) if held & set(region.axes([d])[0])]


def _add(x: Tensor, total: Tensor) -> Tensor:
    """`x` + `total`, and `x` where that is zero: sums forget the sign of a zero."""

    @jax.custom_jvp
    def add(a: Any, b: Any) -> Any:
        return jnp.where(b == 0, a, a + b)

    add.defjvp(lambda primals, tangents: (add(*primals), tangents[0] + tangents[1]))
    return elementwise(add, x, total) if jnp.issubdtype(x.dtype, jnp.inexact) else x + total


def _scatter(x: Tensor, ids: Tensor, updates: Tensor, dim: Dim, target: Dim) -> Tensor:
    """Zeros like `x` with the updates added along `target`: a whole dim, or `dim`."""
    others = x.dims.without([dim])
    shared = Shape(d for d in others if ids.dims.has(d.name))
    own, rest = ids.dims.without(shared), others.without(shared)
    made = Shape(target if d.name == dim.name else d for d in x.dims)
    meeting = meet([ids, updates], made)
    size, axes = meeting.local_sizes([target])[0], meeting.axes(made)
    is_narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    kind = as_dtype("float32" if is_narrow else x.dtype)

    def add(_: Any, ids_array: Any, array: Any) -> Any:
        ids_array = meeting.fill(ids_array, ids.dims, -1, own)
        local = local_ids(as_varying(ids_array, axes), size, meeting.axes([target]))
        local = reorder(local, ids.dims, [*shared, *own])
        array = reorder(as_varying(array, axes), updates.dims, [*shared, *own, *rest]).astype(kind)
        added = _batched_add(local, array, size, len(shared), len(own))
        return reorder(added, [*shared, target, *rest], made).astype(x.dtype)

    array = meeting.run(add, [0, ids, updates])  # in the order of the op's operands
    return settle(array, x.dims, meeting.placement(made), meeting.region, partial=meeting.axes(own))


def _batched_add(ids: Any, updates: Any, size: int, shared: int, own: int) -> Any:
    if shared:
        return jax.vmap(lambda i, u: _batched_add(i, u, size, shared - 1, own))(ids, updates)
    places = jnp.where((ids >= 0) & (ids < size), ids, size).reshape(-1)
    rest = updates.shape[own:]
    zeros = as_varying(jnp.zeros((size, *rest), updates.dtype), varying(updates))
    return zeros.at[places].add(updates.reshape(-1, *rest), mode="drop")


def _check_updates(x: Tensor, ids: Tensor, updates: Tensor, dim: Dim) -> None:
    due = union(x.dims.without([dim]), ids.dims)
    if set(updates.dims.names) != set(due.names):
        raise DimError(
            f"scatter_add got updates [{updates.dims}] where the ids' dims and those of `x` but `{dim.name}`, [{due}], "
            "are due",
            fix=f"give updates with these dims: `wf.broadcast(updates, '{' '.join(due.names)}')`",
        )
    union(due, updates.dims)  # one size for each name
    need_kind(x.dtype, updates.dtype, f"scatter_add adds {updates.dtype} to {x.dtype}", "updates")
    if x.dtype == bool:
        raise TensorError("scatter_add adds up booleans", fix="count them: `wf.cast(x, 'int32')`")
