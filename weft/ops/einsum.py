"""Einsum: products of any number of tensors, summed over some of their dims.

An all-reduce over the axes of the dims summed out, or one reduce-scatter where the result leaves under a name that
is split over such an axis. With `overlap` a gather or a reduce-scatter runs as a ring beside the products. All of that
is planned from the dims first (`_plan`), and then done (`_lower`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..dims import Dim, DimLike, Dims, Shape, rename_dims, resolve, union
from ..dtypes import DTypeLike
from ..errors import DimError, TensorError
from ..layout import Axes, Placement, axes_in
from ..lower.float8 import Float8Product
from ..lower.meet import Meeting, common_region, meet, need_tensor, note_together
from ..lower.move import settle
from ..lower.overlap import RingGather, RingScatter, ring_of_renamed, ring_of_stored, ring_of_sum
from ..lower.recorded import recorded
from ..record import SUMS
from ..tensor import Tensor, as_dtype
from .elementwise import cast
from .reshape import rename

FLOAT8 = "float8"


@recorded(reason_along=SUMS, is_product=True)
def einsum(
    *xs: Tensor,
    out: Dims | None = None,
    over: Dims | None = None,
    rename: Mapping[Any, DimLike] | None = None,
    dtype: DTypeLike | None = None,
    matmul_dtype: str | None = None,
    overlap: bool = False,
) -> Tensor:
    """The product of `xs` with the dims `out`, or with all but those summed, `over`.

    `rename={"length": stream}` lets the result leave under a new name, by one reduce-scatter where the axis summed
    is the new dim's. `dtype` is that of the result and of its collective; where it cannot hold a part of the sum (an
    integer for floats, a boolean) the sum is formed and sent as it is without, and cast once. With `overlap=True`,
    where one of two operands would be gathered first or the result reduce-scattered, pieces go round a ring beside the
    products (collective matmul). `matmul_dtype="float8"` multiplies two tensors of floats as 8-bit ones, each scaled by
    its largest value (fp8, `weft/lower/float8.py`); so are the products of their gradients.
    """
    if not xs:
        raise TensorError("einsum got no tensor", fix="give at least one: `wf.einsum(x, w, over='d_model')`")
    if letters := [x for x in xs if isinstance(x, str)]:
        fix = (
            "name what is summed, `wf.einsum(x, w, over='d_model')`, or what stays, `wf.einsum(x, w, out='batch d_ff')`"
        )
        raise TensorError(f"einsum got {letters[0]!r:.60}: dims are matched by name, not by letter", fix=fix)
    if listed := [x for x in xs if isinstance(x, list | tuple)]:
        fix = "give them one by one: `wf.einsum(x, w, over='d_model')`"
        raise TensorError(f"einsum got a {type(listed[0]).__name__} of operands", fix=fix)
    if not isinstance(overlap, bool):
        raise TensorError(f"einsum got overlap={overlap!r}", fix="say `overlap=True` or `overlap=False`")
    xs = tuple(need_tensor(x, "einsum") for x in xs)
    kept = _keep_dims(union(*(x.dims for x in xs)), out, over)
    if matmul_dtype is not None:
        _check_float8(matmul_dtype, xs, kept, overlap)
    plan = _plan(xs, kept, read_rename(rename), overlap, matmul_dtype is not None)
    if dtype is None:
        return _lower(plan, xs, None)
    dtype = as_dtype(dtype)
    return cast(_lower(plan, xs, _sum_dtype(xs, dtype)), dtype)


def _check_float8(matmul_dtype: Any, xs: Sequence[Tensor], kept: Shape, overlap: bool) -> None:
    """Raises where a product cannot be one of 8-bit floats."""
    if matmul_dtype != FLOAT8:
        fix = f"say `matmul_dtype={FLOAT8!r}`, or leave it out; `wf.cast` makes operands of another dtype"
        raise TensorError(f"einsum got matmul_dtype={matmul_dtype!r}", fix=fix)
    floats = [x for x in xs if jnp.issubdtype(x.dtype, jnp.floating)]
    if len(xs) != 2 or len(floats) < len(xs):
        raise TensorError(
            f"a float8 product is of two tensors of floats, and einsum got {', '.join(repr(x) for x in xs)}",
            fix="leave `matmul_dtype` out, or multiply them two by two",
        )
    alone = [dim for x, other in (xs, xs[::-1]) for dim in x.dims if not kept.has(dim) and not other.dims.has(dim)]
    if alone:
        raise DimError(
            f"a float8 product sums over dims that both operands have, and only one has `{alone[0].name}`",
            fix=f"sum it first: `wf.sum(x, over={alone[0].name!r})`",
        )
    if overlap:
        fix = "leave one of `overlap` and `matmul_dtype` out"
        raise TensorError("einsum got overlap=True and a float8 product, whose scale is that of all pieces", fix=fix)


@dataclass(frozen=True)
class _EinsumPlan:
    """What an einsum does, said before any of it is done."""

    before: Mapping[str, DimLike]
    """Renames of the operands, which move them: as they are, two of their dims would be split over one axis."""
    kept: Shape
    """The dims of the product, under the names that the operands meet by."""
    out: Shape
    """The dims of the result."""
    gather: RingGather | None
    """The operand that is gathered by a ring, beside the products."""
    scatter: RingScatter | None
    """The dim of the product that is reduce-scattered by a ring, beside the products."""
    have: Placement
    """Over which axes each dim of the product is split; `settle` moves it to where the result belongs."""
    partial: Axes
    """The axes over which the product is still to be summed: an all-reduce, or a reduce-scatter to a dim of `out`."""
    is_float8: bool = False
    """Whether operands are multiplied as 8-bit floats."""


def _plan(
    xs: Sequence[Tensor], kept: Shape, names: Mapping[str, DimLike], overlap: bool, is_float8: bool = False
) -> _EinsumPlan:
    """What is renamed before the product, where it is split, and what is left to sum."""
    dims, region = union(*(x.dims for x in xs)), common_region(xs)
    # A name that an operand has already is given after the product alone: before it, two dims would be one.
    can_meet = region is None or region.can_meet(dims) or any(dims.has(new) for new in names.values())
    gather = ring_of_stored(xs) if overlap else None
    if overlap and gather is None and not can_meet:
        gather = ring_of_renamed(xs, names)
    before = names if not can_meet and (gather is None or gather.is_stored) else {}
    shapes = [rename_dims(x.dims, _names_in(x, before)) for x in xs]
    product, result = rename_dims(kept, before), rename_dims(kept, names)
    meeting = Meeting(region, union(*(shapes if gather is None else gather.shapes(shapes))))
    gathered = None if gather is None else gather.dim  # whole in the product, all pieces having come round
    have = tuple(() if dim == gathered else meeting.placement([dim])[0] for dim in product)
    partial = meeting.axes([dim for dim in meeting.dims if union(*shapes).has(dim) and not product.has(dim)])
    scatter = ring_of_sum(product, result, have, partial, xs) if overlap and gather is None else None
    if scatter is None:
        return _EinsumPlan(before, product, result, gather, None, have, partial, is_float8)
    return _EinsumPlan(before, product, result, None, scatter, scatter.after, scatter.axes_left(partial))


def _lower(plan: _EinsumPlan, xs: Sequence[Tensor], dtype: Any) -> Tensor:
    """The einsum as planned: products summed and sent in `dtype`, or as they come."""
    if plan.gather is not None:
        plan.gather.note(xs)
    if plan.before:
        note_together(xs)
    named = [rename(x, **own) if (own := _names_in(x, plan.before)) else x for x in xs]
    product: Any = _Product([x.dims for x in named], plan.kept, dtype)
    if plan.scatter is not None:
        product = plan.scatter.product(product, named)
    if plan.gather is not None:
        product = plan.gather.product(product, named, plan.kept)
    operands = named if plan.gather is None else plan.gather.operands(named)
    meeting = meet(operands)
    if plan.is_float8:
        axes = [*(meeting.axes(x.dims) for x in operands), axes_in(plan.have)]
        product = Float8Product(product.orders, axes, dtype)
    array = meeting.run(lambda *arrays: product(*_without_padding(arrays, operands, meeting)), operands)
    return settle(array, plan.out, plan.have, meeting.region, partial=plan.partial)


def _names_in(x: Tensor, names: Mapping[str, DimLike]) -> dict[str, DimLike]:
    return {old: new for old, new in names.items() if x.dims.has(old)}


def _sum_dtype(xs: Sequence[Tensor], dtype: Any) -> Any:
    """The dtype products are summed and sent in: the one asked, if it holds a part."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype
    natural = jnp.result_type(*(x.dtype for x in xs))
    if jnp.issubdtype(natural, jnp.inexact):
        return jnp.promote_types(natural, jnp.float32)
    is_wide = jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= natural.itemsize
    return dtype if is_wide else None


class _Product:
    """The product of local arrays, or of pieces of them."""

    def __init__(self, shapes: Sequence[Shape], kept: Shape, dtype: Any):
        numbers = {name: i for i, name in enumerate(union(*shapes).names)}
        self.orders = [[numbers[dim.name] for dim in shape] for shape in (*shapes, kept)]
        self.dtype = dtype

    def __call__(self, *arrays: Any) -> Any:
        if all(array.dtype == bool for array in arrays):
            raise TensorError(
                "einsum got only booleans", fix="cast one to numbers: `wf.cast(x, 'int32')`, or use wf.any"
            )
        narrow = jnp.result_type(*arrays)
        if self.dtype is None:
            return (
                self._widen(jnp.float32, *arrays).astype(narrow)
                if self._is_narrow_vector(arrays)
                else self._plain(*arrays)
            )
        if not jnp.issubdtype(narrow, jnp.floating) or narrow.itemsize >= self.dtype.itemsize:
            return self._plain(*arrays, preferred_element_type=self.dtype).astype(self.dtype)
        return self._widen(self.dtype, *arrays)

    def _is_narrow_vector(self, arrays: Sequence[Any]) -> bool:
        """Whether it is a matrix by one vector, of 16-bit floats.

        XLA makes it multiplications and a sum, on a GPU and not there alone, and rounds each product to 16 bits; a sum
        that is wider has products as wide, and is rounded once, as a product of matrices is.
        """
        if len(arrays) != 2 or any(x.dtype not in (jnp.bfloat16, jnp.float16) for x in arrays):
            return False
        first, second, kept = map(set, self.orders)
        own = [
            math.prod(n for n, i in zip(x.shape, order, strict=True) if i in kept)
            for x, order in zip(arrays, self.orders[:2], strict=True)
        ]
        return min(own) == 1 and not first & second <= kept

    def _plain(self, *arrays: Any, **how: Any) -> Any:
        pairs = [item for pair in zip(arrays, self.orders, strict=False) for item in pair]
        return jnp.einsum(*pairs, self.orders[-1], **how)

    def _widen(self, dtype: Any, *arrays: Any) -> Any:
        """Narrow floats summed in a wide one; gradients are narrow products, faster."""

        @jax.custom_jvp
        def widen(*arrays: Any) -> Any:
            return self._plain(*arrays, preferred_element_type=dtype).astype(dtype)

        @widen.defjvp
        def _(arrays: Any, tangents: Any) -> Any:
            return widen(*arrays), jax.jvp(self._plain, arrays, tangents)[1].astype(dtype)

        return widen(*arrays)


def _without_padding(arrays: Sequence[Any], xs: Sequence[Tensor], meeting: Meeting) -> list[Any]:
    # Zero in the padding of every operand: whatever stands there, the products and their gradients are finite.
    return [meeting.fill(array, x.dims, 0) for array, x in zip(arrays, xs, strict=True)]


def _keep_dims(dims: Shape, out: Dims | None, over: Dims | None) -> Shape:
    """The dims that are not summed."""
    if (out is None) == (over is None):
        both = "both `out` and `over`" if out is not None else "neither `out` nor `over`"
        raise DimError(
            f"einsum got {both}",
            state=f"dims at hand: [{dims}]",
            fix="say either which dims stay (`out=[...]`) or which are summed (`over=[...]`)",
        )
    if out is not None:
        return resolve(out, dims, what="out")
    assert over is not None
    return dims.without(resolve(over, dims, what="over"))


def read_rename(rename: Any) -> dict[str, DimLike]:
    """New names by the old ones, if they are given so."""
    if rename is None:
        return {}
    if not isinstance(rename, dict):
        raise DimError(f"`rename` is {rename!r}", fix="give old and new names, e.g. `rename={'length': stream}`")
    return {old.name if isinstance(old, Dim) else old: new for old, new in rename.items()}
