"""Einsum: products of any number of tensors, summed over some of their dims.

An all-reduce over the axes of the dims summed out, or one reduce-scatter where the result leaves under a name that
is split over such an axis. With `overlap` a gather or a reduce-scatter runs as a ring beside the products.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..dims import Dim, Shape, renamed, resolve, union
from ..errors import DimError, LayoutError, TensorError
from ..lower.meet import Meeting, common_region, meet, need_tensor, note_together
from ..lower.move import settle
from ..lower.overlap import renamed_piece, slot_to_scatter, stored_piece
from ..lower.recorded import recorded
from ..record import SUMS
from ..tensor import Tensor, as_dtype
from .elementwise import cast
from .reshape import rename as rename_dims


@recorded(reason_along=SUMS, is_product=True)
def einsum(
    *xs: Tensor, out: Any = None, over: Any = None, rename: Any = None, dtype: Any = None, overlap: bool = False
) -> Tensor:
    """The product of `xs` with the dims `out`, or with all dims but those summed, `over`.

    `rename={"length": stream}` lets the result leave under a new name, by one reduce-scatter where the axis summed
    is the new dim's. `dtype` is that of the result and of its collective; where it cannot hold a part of the sum (an
    integer for floats, a boolean) the sum is formed and sent as it is without, and cast once. With `overlap=True`,
    where one of two operands would be gathered first or the result reduce-scattered, pieces go round a ring beside the
    products.
    """
    if not xs:
        raise TensorError("einsum got no tensor", fix="give at least one: `wf.einsum(x, w, over='d_model')`")
    if not isinstance(overlap, bool):
        raise TensorError(f"einsum got overlap={overlap!r}", fix="say `overlap=True` or `overlap=False`")
    xs = tuple(need_tensor(x, "einsum") for x in xs)
    dims, names = union(*(x.dims for x in xs)), checked_rename(rename)
    kept = _kept(dims, out, over)
    piece = stored_piece(xs) if overlap else None
    if not _fit(xs, dims) and not any(dims.has(new) for new in names.values()):
        if overlap and piece is None:
            piece = renamed_piece(xs, names)
        if piece is None or piece.is_stored:
            note_together(xs)
            xs = tuple(_renamed_first(x, names) for x in xs)
            dims, kept, names = union(*(x.dims for x in xs)), renamed(kept, names), {}
    dtype = None if dtype is None else as_dtype(dtype)
    compute: Any = _Product(xs, dims, kept, _summed_in(xs, dtype))
    if piece is not None:
        compute, xs = piece.product(compute, xs, kept), piece.operands(xs)
    meeting = meet(xs)
    have = tuple(() if piece is not None and dim == piece.dim else meeting.placement([dim])[0] for dim in kept)
    partial = meeting.axes([dim for dim in meeting.dims if dims.has(dim) and not kept.has(dim)])
    if overlap and piece is None:
        scatter = slot_to_scatter(kept, renamed(kept, names), have, partial, xs)
        if scatter is not None:
            compute, have, partial = scatter.product(compute, xs), scatter.after, scatter.left(partial)
    array = meeting.run(lambda *arrays: compute(*_without_padding(arrays, xs, meeting)), xs)
    found = settle(array, renamed(kept, names), have, meeting.region, partial=partial)
    return found if dtype is None else cast(found, dtype)


def _summed_in(xs: Sequence[Tensor], dtype: Any) -> Any:
    """The dtype in which products are summed and sent: the one asked for, where it holds a part of the sum."""
    natural = jnp.result_type(*(x.dtype for x in xs))
    if dtype is None or jnp.issubdtype(dtype, jnp.inexact):
        return dtype
    if jnp.issubdtype(natural, jnp.inexact):
        return jnp.promote_types(natural, jnp.float32)
    is_wide = jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= natural.itemsize
    return dtype if is_wide else None


def _renamed_first(x: Tensor, names: dict[str, Any]) -> Tensor:
    own = {old: new for old, new in names.items() if x.dims.has(old)}
    return rename_dims(x, **own) if own else x


class _Product:
    """The product of local arrays, or of pieces of them."""

    def __init__(self, xs: Sequence[Tensor], dims: Shape, kept: Shape, dtype: Any):
        numbers = {name: i for i, name in enumerate(dims.names)}
        self.orders = [[numbers[dim.name] for dim in shape] for shape in (*(x.dims for x in xs), kept)]
        self.dtype = dtype

    def __call__(self, *arrays: Any) -> Any:
        if all(array.dtype == bool for array in arrays):
            raise TensorError(
                "einsum got only booleans", fix="cast one to numbers: `wf.cast(x, 'int32')`, or use wf.any"
            )
        if self.dtype is None:
            return self._plain(*arrays)
        narrow = jnp.result_type(*arrays)
        if not jnp.issubdtype(narrow, jnp.floating) or narrow.itemsize >= self.dtype.itemsize:
            return self._plain(*arrays, preferred_element_type=self.dtype).astype(self.dtype)
        return self._widened(*arrays)

    def _plain(self, *arrays: Any, **how: Any) -> Any:
        pairs = [item for pair in zip(arrays, self.orders, strict=False) for item in pair]
        return jnp.einsum(*pairs, self.orders[-1], **how)

    def _widened(self, *arrays: Any) -> Any:
        """Narrow floats summed up in a wide one. Gradients are products in the narrow one again, which is faster."""

        @jax.custom_jvp
        def widened(*arrays: Any) -> Any:
            return self._plain(*arrays, preferred_element_type=self.dtype).astype(self.dtype)

        @widened.defjvp
        def _(arrays: Any, tangents: Any) -> Any:
            return widened(*arrays), jax.jvp(self._plain, arrays, tangents)[1].astype(self.dtype)

        return widened(*arrays)


def _fit(xs: Sequence[Tensor], dims: Shape) -> bool:
    """Whether the operands can meet as they are: no two of their dims are split over one axis."""
    region = common_region(xs)
    if region is None:
        return True
    try:
        region.axes(dims)
    except LayoutError:
        return False
    return True


def _without_padding(arrays: Sequence[Any], xs: Sequence[Tensor], meeting: Meeting) -> list[Any]:
    # Zero in the padding of every operand: whatever stands there, the products and their gradients are finite.
    return [meeting.filled(array, x.dims, 0) for array, x in zip(arrays, xs, strict=True)]


def _kept(dims: Shape, out: Any, over: Any) -> Shape:
    if (out is None) == (over is None):
        both = "both `out` and `over`" if out is not None else "neither `out` nor `over`"
        raise DimError(
            f"einsum got {both}",
            state=f"dims at hand: [{dims}]",
            fix="say either which dims stay (`out=[...]`) or which are summed (`over=[...]`)",
        )
    if out is not None:
        return resolve(out, dims, what="out")
    return dims.without(resolve(over, dims, what="over"))


def checked_rename(rename: Any) -> dict[str, Any]:
    if rename is None:
        return {}
    if not isinstance(rename, dict):
        raise DimError(f"`rename` is {rename!r}", fix="give old and new names, e.g. `rename={'length': stream}`")
    return {old.name if isinstance(old, Dim) else old: new for old, new in rename.items()}
