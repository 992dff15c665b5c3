"""Looking values up by index.

On a split dim each processor looks in its own slice and the parts are added up; an index outside [0, size) gives
zero and a zero gradient, on every layout.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..dims import Dim, DimLike, Shape, only, rename_dims, resolve
from ..dtypes import DTypeLike, is_key
from ..errors import DimError, TensorError
from ..lower.collectives import index
from ..lower.keys import keys_of, words_of
from ..lower.lookup import plan_look_up
from ..lower.meet import meet, need_tensor
from ..lower.move import result, settle
from ..lower.recorded import recorded
from ..tensor import Tensor, as_dtype
from .einsum import read_rename


@recorded(
    reason_along="because {along_is} looked up in, and split over {axes}",
    reason_exchange="because {along_is} stored split over {axes}, and what is found there goes to whose ids they are",
)
def take(table: Tensor, ids: Tensor, *, over: DimLike, rename: Mapping[Any, DimLike] | None = None) -> Tensor:
    """The entries of `table` at `ids`, whose dims replace the dim `over`.

    A masked local take and an all-reduce where `over` is split; where a dim of `ids` is split over the same axis, they
    are gathered, and the all-reduce is a reduce-scatter. From a table stored by other dims (`params.d_model:x`, FSDP)
    the ids are gathered and what is found is exchanged by an all-to-all, where that is fewer bytes than the table. Dims
    that both have are matched by name. `rename={"length": stream}` lets the result leave under a new name, by one
    reduce-scatter where the axis of `over` is the new dim's.
    """
    table, ids = need_tensor(table, "take"), need_integers(ids, "take")
    if is_key(table):
        return keys_of(take(words_of(table), ids, over=over, rename=rename))
    dim = only(resolve(over, table.dims, what="over"), "take")
    if ids.dims.has(dim):
        raise DimError(
            f"take looks along `{dim.name}`, and the ids have that dim too: [{ids.dims}]",
            fix=f"rename it in the ids (`ids.rename({dim.name}='{dim.name}_2')`), or use `wf.gather`",
        )
    return look_up(table, ids, dim, read_rename(rename))


def look_up(table: Tensor, ids: Tensor, dim: Dim, names: Mapping[str, DimLike]) -> Tensor:
    """The entries at `ids`; dims leave under new names where these are given."""
    shared = Shape(d for d in table.dims if ids.dims.has(d))
    at = table.dims.position(dim)
    before, after = _split_at(table.dims.without(shared), dim)
    ids_dims = ids.dims.without(shared)
    final = Shape(_replace_dim(table.dims, dim, ids.dims))
    plan = plan_look_up(table, ids, dim, final)
    asked = plan.asked

    def pick(table_array: Any, ids_array: Any) -> Any:
        if dim.is_padded:
            ids_array = jnp.where(ids_array < dim.count, ids_array, dim.size)
        local = local_ids(plan.ask(ids_array), table_array.shape[at], plan.axes)
        table_array = reorder(table_array, table.dims, [*shared, *before, dim, *after])
        local = reorder(local, [*asked, *ids.dims], [*shared, *asked, *ids_dims])
        picked = _batched_take(table_array, local, len(shared), len(before))
        picked = reorder(picked, [*shared, *before, *asked, *ids_dims, *after], [*asked, *final])
        return plan.answer(picked, final)

    array = plan.meeting.run(pick, [table, ids])
    leaving, have, kind = rename_dims(final, names), plan.placement(final), plan.meeting.kind
    return settle(array, leaving, have, plan.meeting.region, partial=plan.partial, one_holds=True, kind=kind)


def _replace_dim(dims: Shape, dim: Dim, ids: Shape) -> list[Dim]:
    """The table's dims, with the ids' new ones in the place of `dim`."""
    others = dims.without([dim])
    replaced: list[Dim] = []
    for d in dims:
        replaced.extend([new for new in ids if not others.has(new)] if d.name == dim.name else [d])
    return replaced


def _split_at(dims: Shape, dim: Dim) -> tuple[list[Dim], list[Dim]]:
    at = dims.position(dim)
    return list(dims[:at]), list(dims[at + 1 :])


def reorder(array: Any, dims: Iterable[Dim], order: Iterable[Dim]) -> Any:
    """`array` with its dims in another order."""
    names = [dim.name for dim in dims]
    return jnp.transpose(array, [names.index(dim.name) for dim in order])


def local_ids(ids: Any, size: int, axes: Any) -> Any:
    """Ids counted from the start of this processor's slice, which has this size."""
    ids = ids.astype(as_dtype("int64" if ids.dtype.itemsize == 8 else "int32"))  # room for the offset
    return ids - index(axes).astype(ids.dtype) * size if axes else ids


def _batched_take(table: Any, ids: Any, shared: int, axis: int) -> Any:
    if shared:
        return jax.vmap(lambda t, i: _batched_take(t, i, shared - 1, axis))(table, ids)
    inside = (ids >= 0) & (ids < table.shape[axis])
    picked = _pick(table, jnp.where(inside, ids, 0), axis)
    mask = inside.reshape((1,) * axis + inside.shape + (1,) * (table.ndim - axis - 1))
    return jnp.where(mask, picked, jnp.zeros_like(picked))


def _pick(table: Any, ids: Any, axis: int) -> Any:
    """The entries at ids all inside; a narrow table's gradient is summed in float32."""

    def pick(table: Any, ids: Any) -> Any:
        return jnp.take(table, ids, axis=axis, mode="clip")

    if not jnp.issubdtype(table.dtype, jnp.floating) or table.dtype.itemsize >= 4:
        return pick(table, ids)
    pick_narrow = jax.custom_jvp(pick)

    @pick_narrow.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (table, ids), (change, _) = primals, tangents
        return pick(table, ids), pick(change.astype("float32"), ids).astype(table.dtype)

    return pick_narrow(table, ids)


@recorded
def one_hot(ids: Tensor, dim: Dim, *, dtype: DTypeLike = "float32") -> Tensor:
    """1 where the index along the new dim is the id, 0 elsewhere; nothing is sent."""
    ids = need_integers(ids, "one_hot")
    if not isinstance(dim, Dim):
        raise DimError(f"one_hot got {dim!r} for its new dim", fix="give a dim, e.g. `wf.Dim('vocab', 32)`")
    if ids.dims.has(dim):
        raise DimError(
            f"one_hot adds `{dim.name}`, which the ids [{ids.dims}] have already",
            fix=f"choose another dim, e.g. `wf.Dim('{dim.name}_2', {dim.size})`",
        )
    dtype = as_dtype(dtype)
    meeting = meet([ids], [dim])
    size = meeting.local_sizes([dim])[0]

    def compare(a: Any) -> Any:
        local = local_ids(a, size, meeting.axes([dim]))
        return (local[..., None] == jnp.arange(size, dtype=as_dtype(local.dtype))).astype(dtype)

    dims = Shape([*ids.dims, dim])
    return result(meeting.run(compare, [ids]), dims, meeting.region)


def need_integers(ids: Any, what: str) -> Tensor:
    """`ids`, if it holds integers."""
    ids = need_tensor(ids, what)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TensorError(f"{what} got ids of dtype {ids.dtype}", fix="cast them: `wf.cast(ids, 'int32')`")
    return ids


def need_kind(into: Any, dtype: Any, fact: str, name: str) -> None:
    """Raises where values put among those of another dtype would lose what they are."""
    if _rank(dtype) > _rank(into):
        raise TensorError(fact, fix=f"cast one: `wf.cast(x, '{dtype}')` or `wf.cast({name}, '{into}')`")


def _rank(dtype: Any) -> int:
    """Booleans, integers, floats and complex numbers, in this order."""
    kinds = (jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i + 1 for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), 0)
