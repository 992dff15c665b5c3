"""Reductions and the softmax family: an all-reduce over the dims' axes.

Nothing is sent if none is split. What JAX has no collective for (prod) is one small gather of each processor's part.
NaN, infinities and ties mean what they mean in jnp, wherever the slices lie.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..dims import DimLike, Dims, Shape, rename_dims, resolve
from ..dtypes import DTypeLike
from ..layout import Axes
from ..lower.collectives import all_gather_equal, all_max, all_min, all_reduce, as_varying, max_for_shift
from ..lower.meet import Meeting, meet, need_tensor
from ..lower.move import result, settle
from ..lower.padding import highest, lowest
from ..lower.recorded import recorded
from ..record import SUMS
from ..tensor import Tensor, as_dtype
from .einsum import read_rename
from .elementwise import cast


class Reduction:
    """The dims of one reduction: which go, their positions, and their axes."""

    def __init__(self, x: Tensor, over: Any, what: str):
        self.x = need_tensor(x, what)
        self.meeting: Meeting = meet([self.x])
        self.gone: Shape = resolve(over, self.x.dims, what="over")
        self.kept: Shape = self.x.dims.without(self.gone)
        self.positions = tuple(self.x.dims.position(dim) for dim in self.gone)
        self.axes: Axes = self.meeting.axes(self.gone)
        self.ways = math.prod(self.meeting.ways(dim) for dim in self.gone)
        self.count = math.prod(dim.count for dim in self.gone)

    def local(self, compute: Callable[[Any], Any], *, padding: Any) -> Any:
        """`compute` of the slice, with a value in its padding that changes nothing."""
        return self.meeting.run(lambda a: compute(self.fill(a, padding)), [self.x])

    def fill(self, array: Any, value: Any) -> Any:
        """The slice with `value`, or its value for a dtype, in the padding that goes."""
        return self.meeting.fill(array, self.x.dims, value, self.gone)

    def finish(self, array: Any, *, partial: Axes = (), rename: Mapping[Any, DimLike] | None = None) -> Tensor:
        dims = rename_dims(self.kept, read_rename(rename))
        return settle(array, dims, self.meeting.placement(self.kept), self.meeting.region, partial=partial)

    def same_shape(self, array: Any) -> Tensor:
        return result(array, self.x.dims, self.meeting.region)


@recorded(reason_along=SUMS)
def sum(
    x: Tensor, *, over: Dims | None = None, rename: Mapping[Any, DimLike] | None = None, dtype: DTypeLike | None = None
) -> Tensor:
    """`x` added up over the dims `over`; `rename` and `dtype` as in `einsum`."""
    r = Reduction(x, over, "sum")
    dtype = None if dtype is None else as_dtype(dtype)
    array = r.local(lambda a: jnp.sum(a, axis=r.positions, dtype=dtype), padding=0)
    return r.finish(array, partial=r.axes, rename=rename)


@recorded(reason_along=SUMS)
def mean(x: Tensor, *, over: Dims | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """The mean of `x` over the dims `over`; `dtype` as in `einsum`."""
    r = Reduction(x, over, "mean")
    dtype = None if dtype is None else as_dtype(dtype)
    sent = mean_dtype(r.x.dtype) if dtype is None else dtype
    if not jnp.issubdtype(sent, jnp.inexact):  # a part of the mean is no whole number
        sent = accumulator_dtype(r.x.dtype, dtype)

    def part(a: Any) -> Any:
        total = jnp.sum(a, axis=r.positions, dtype=accumulator_dtype(a.dtype, dtype))
        return (total / r.count).astype(sent)

    average = r.finish(r.local(part, padding=0), partial=r.axes)
    return average if dtype is None else cast(average, dtype)


def mean_dtype(dtype: Any) -> Any:
    """The float that jnp gives a mean in, of values of this dtype."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype
    return as_dtype("float64" if dtype.itemsize == 8 else "float32")


def accumulator_dtype(dtype: Any, asked: Any) -> Any:
    """The float in which a mean of this dtype is formed, where one is asked for."""
    return jnp.promote_types(asked or mean_dtype(dtype), jnp.float32)


@recorded
def max(x: Tensor, *, over: Dims | None = None) -> Tensor:
    """The largest value of `x` over `over`; NaN wins, complex go by real parts first."""
    return _extreme(x, over, "max", _local_max, all_max, lowest)


@recorded
def min(x: Tensor, *, over: Dims | None = None) -> Tensor:
    """The least value of `x` over `over`; NaN wins, complex go by real parts first."""
    return _extreme(x, over, "min", _local_min, all_min, highest)


def _local_max(a: Any, *, axis: Any) -> Any:
    if not jnp.iscomplexobj(a):
        return jnp.max(a, axis=axis)
    a = jnp.where(jnp.isnan(a), complex(jnp.nan, jnp.nan), a)  # jnp's own drops or keeps it, by where it stands
    real = jnp.max(a.real, axis=axis, keepdims=True)
    imag = jnp.max(jnp.where((a.real == real) | jnp.isnan(real), a.imag, -jnp.inf), axis=axis)
    return lax.complex(jnp.squeeze(real, axis), imag)


def _local_min(a: Any, *, axis: Any) -> Any:
    return -_local_max(-a, axis=axis) if jnp.iscomplexobj(a) else jnp.min(a, axis=axis)


def _extreme(
    x: Tensor, over: Any, what: str, local: Callable[..., Any], across: Callable[..., Any], worst: Callable[[Any], Any]
) -> Tensor:
    r = Reduction(x, over, what)
    if not r.axes and not jnp.issubdtype(r.x.dtype, jnp.complexfloating):
        return r.finish(r.local(lambda a: local(a, axis=r.positions), padding=worst))

    # As jnp has it, the gradient is shared by all places that hold the extreme value, on whichever processor.
    @jax.custom_jvp
    def extreme(a: Any) -> Any:
        return across(local(a, axis=r.positions), r.axes)

    @extreme.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (a,), (t,) = primals, tangents
        best = extreme(a)
        hits = (a == jnp.expand_dims(best, r.positions)).astype(t.dtype)
        count = all_reduce(jnp.sum(hits, axis=r.positions), r.axes)
        return best, all_reduce(jnp.sum(hits * t, axis=r.positions), r.axes) / count

    return r.finish(r.local(lambda a: extreme(as_varying(a, r.axes)), padding=worst))


@recorded
def prod(x: Tensor, *, over: Dims | None = None) -> Tensor:
    """The product of `x` over the dims `over`."""
    r = Reduction(x, over, "prod")
    array = r.local(lambda a: jnp.prod(a, axis=r.positions), padding=1)
    if r.axes:
        array = jnp.prod(all_gather_equal(array[None], r.axes, 0), axis=0)
    return r.finish(array)


@recorded
def any(x: Tensor, *, over: Dims | None = None) -> Tensor:
    """Whether any value of `x` over the dims `over` is true."""
    r = Reduction(x, over, "any")
    array = r.local(lambda a: jnp.any(a, axis=r.positions), padding=False)
    return r.finish(all_max(array, r.axes))


@recorded
def all(x: Tensor, *, over: Dims | None = None) -> Tensor:
    """Whether all values of `x` over the dims `over` are true."""
    r = Reduction(x, over, "all")
    array = r.local(lambda a: jnp.all(a, axis=r.positions), padding=True)
    return r.finish(all_min(array, r.axes) if r.axes else array)


@recorded
def logsumexp(x: Tensor, *, over: Dims | None = None) -> Tensor:
    """log(sum(exp(x))) over the dims `over`, without overflow."""
    r = Reduction(_floats(x, "logsumexp"), over, "logsumexp")
    if not r.axes:
        return r.finish(r.local(lambda a: jax.nn.logsumexp(a, axis=r.positions), padding=-jnp.inf))
    _, shift, total = _shifted_exp(r, only_finite=True)
    return r.finish(jnp.log(total) + jnp.squeeze(shift, r.positions))


@recorded
def softmax(x: Tensor, *, over: Dims | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) over the dims `over`, without overflow."""
    r = Reduction(_floats(x, "softmax"), over, "softmax")
    if not r.axes:
        return r.same_shape(r.local(lambda a: jax.nn.softmax(a, axis=r.positions), padding=-jnp.inf))
    a, shift, total = _shifted_exp(r)
    return r.same_shape(jnp.exp(a - shift) / jnp.expand_dims(total, r.positions))


@recorded
def log_softmax(x: Tensor, *, over: Dims | None = None) -> Tensor:
    """x - logsumexp(x) over the dims `over`."""
    r = Reduction(_floats(x, "log_softmax"), over, "log_softmax")
    if not r.axes:
        return r.same_shape(r.local(lambda a: jax.nn.log_softmax(a, axis=r.positions), padding=-jnp.inf))
    a, shift, total = _shifted_exp(r)
    return r.same_shape((a - shift) - jnp.expand_dims(jnp.log(total), r.positions))


def _shifted_exp(r: Reduction, *, only_finite: bool = False) -> tuple[Any, Any, Any]:
    """The local array, its largest value (dims kept), and the sum of exp(a - that)."""
    a = r.local(lambda a: as_varying(a, r.axes), padding=-jnp.inf)
    if jnp.iscomplexobj(a) and not only_finite:  # by which the angles of the logarithm are counted
        shift = all_max(jnp.max(lax.stop_gradient(a), axis=r.positions, keepdims=True), r.axes)
    else:
        shift = max_for_shift(jnp.max(a.real, axis=r.positions, keepdims=True), r.axes)
    if only_finite:
        shift = jnp.where(jnp.isfinite(shift), shift, jnp.zeros_like(shift))
    return a, shift, all_reduce(jnp.sum(jnp.exp(a - shift), axis=r.positions), r.axes)


def _floats(x: Any, what: str) -> Tensor:
    x = need_tensor(x, what)
    return cast(x, mean_dtype(x.dtype))
