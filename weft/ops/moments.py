"""Mean and variance over split dims by one all-reduce, as exact as in two passes.

Imports the reductions. Summed squares cancel where the mean is large against the spread, and no processor knows the
mean before the exchange. So each sends its own mean cut into short pieces whose sums and products are exact in f32;
what cancels then cancels exactly.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..dims import Dims
from ..lower.collectives import all_reduce, as_varying
from ..lower.recorded import recorded
from ..tensor import Tensor
from .reduce import Reduction, accumulator_dtype, mean_dtype


@recorded
def var(x: Tensor, *, over: Dims | None = None) -> Tensor:
    """The variance of `x` over the dims `over` (ddof 0); one all-reduce if split."""
    r = Reduction(x, over, "var")
    return r.finish(_moments(r)[1])


@recorded
def mean_and_var(x: Tensor, *, over: Dims | None = None) -> tuple[Tensor, Tensor]:
    """The mean and variance (ddof 0) of `x` over `over`; one all-reduce if split."""
    r = Reduction(x, over, "mean_and_var")
    mean, variance = _moments(r)
    return r.finish(mean), r.finish(variance)


def _moments(r: Reduction) -> tuple[Any, Any]:
    dtype = mean_dtype(r.x.dtype)
    exact = accumulator_dtype(r.x.dtype, None) == jnp.float32 and r.axes and not r.gone.is_padded
    compute = _in_one_exchange if exact else _in_two_passes

    def run(a: Any) -> Any:
        return compute(as_varying(a.astype(accumulator_dtype(a.dtype, None)), r.axes), r)

    mean, variance = r.local(run, padding=0)
    return mean.astype(dtype), variance.astype(jnp.finfo(dtype).dtype)


def _in_two_passes(a: Any, r: Reduction) -> tuple[Any, Any]:
    def average(terms: Any) -> Any:
        return all_reduce(jnp.sum(terms, axis=r.positions), r.axes) / r.count

    mean = average(a)
    rest = r.fill(a - jnp.expand_dims(mean, r.positions), 0)
    return mean, average(jnp.square(jnp.abs(rest)) if jnp.iscomplexobj(rest) else jnp.square(rest))


def _in_one_exchange(a: Any, r: Reduction) -> tuple[Any, Any]:
    # The derivative is that of the mean and the variance, not that of the pieces; backward it sends nothing.
    @jax.custom_jvp
    def moments(a: Any) -> tuple[Any, Any]:
        near = a
        for position in r.positions:
            near = lax.slice_in_dim(near, 0, 1, axis=position)
        near = jnp.where(jnp.abs(near) < _LARGEST, near, 0)  # some value of the slice: differences from it are small
        shifted = jnp.mean(a - near, axis=r.positions, keepdims=True)
        mean = near + shifted
        rest = jnp.where(jnp.isfinite(mean), (near - mean) + shifted, 0)
        scale = _scale(_is_large(mean, r.ways))
        square = jnp.mean(jnp.square((a - mean) * scale), axis=r.positions)
        pieces = _pieces(jnp.squeeze(mean, r.positions), jnp.squeeze(rest, r.positions), square, r.ways)
        return _join(all_reduce(pieces, r.axes), r.ways)

    @moments.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (a,), (t,) = primals, tangents
        mean, variance = moments(a)
        rest = a - jnp.expand_dims(jnp.where(jnp.isfinite(mean), mean, jnp.nan), r.positions)
        parts = jnp.stack([jnp.sum(t, axis=r.positions), jnp.sum(2 * rest * t, axis=r.positions)])
        d_mean, d_variance = all_reduce(parts, r.axes) / r.count
        return (mean, variance), (d_mean, d_variance)

    return moments(a)


def _cut(x: Any, bits: int) -> Any:
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=bits - 1)


_LARGEST = 2.0**126  # the difference of two that are less is finite
_MARK = 2.0**120  # what a processor whose mean is large sends as `rest`: counted by how often it was added


def _is_large(mean: Any, ways: int) -> Any:
    """Where the squares of so many such means are infinite when they are added up."""
    return jnp.abs(mean) >= 2.0 ** (63 - ways.bit_length() // 2)


def _scale(is_large: Any, power: int = -70) -> Any:
    return jnp.where(is_large, 2.0**power, 1.0)


def _pieces(mean: Any, rest: Any, square: Any, ways: int) -> Any:
    """What one processor sends: its mean in three pieces, and their products.

    `rest` is what rounding took from the mean. The pieces have 7, 7 and 10 bits, so that sums of the first and of their
    products are exact over 1,024 processors. The products of a large mean, and its `square`, are scaled.
    """
    is_large = _is_large(mean, ways)
    a, high = _cut(mean, 7), _cut(mean, 14)
    b, c = (jnp.where(jnp.isfinite(mean), part, 0) for part in (high - a, mean - high))
    sent = [a, b, jnp.where(is_large, c + rest, c), jnp.where(is_large, _MARK, rest)]
    a, b, c, mean, rest = (part * _scale(is_large) for part in (a, b, c, mean, rest))
    lost = jnp.where(jnp.isfinite(mean), 2 * mean * rest, 0)
    return jnp.stack([*sent, a * a, a * b, 2 * a * c + b * b, square + 2 * b * c + c * c + lost])


def _join(sums: Any, ways: int) -> tuple[Any, Any]:
    """Mean and variance out of the summed pieces.

    Shifted by the mean's own first pieces, all that is large cancels. Of means some of which are large and some are
    not, the variance is about the largest float: it is infinite.
    """
    is_finite, count = jnp.isfinite(sums[0]), jnp.round(sums[3] / _MARK)
    is_large = count > 0
    a, b, c = (part * _scale(is_large) for part in sums[:3])
    rest = jnp.where(is_large, 0, sums[3])
    aa, ab, ac, square = sums[4:]
    s = _cut(a / ways, 7)
    t = _cut(s + ((a - ways * s) + b + c) / ways, 14) - s
    large = (aa - 2 * s * a + ways * s * s) + 2 * (ab - s * b - t * a + ways * s * t)
    total = large + (ac - 2 * s * c - 2 * t * b + ways * t * t) + (square - 2 * t * c - 2 * (s + t) * rest)
    delta = ((a - ways * s) + (b - ways * t) + c + rest) / ways
    back = _scale(is_large, 70)
    variance = jnp.maximum(total / ways - delta * delta, 0) * back * back
    variance = jnp.where(is_large & (count < ways), jnp.inf, variance)
    # A sum that is too large has an infinite variance, unless some value was infinite or NaN.
    variance = jnp.where(is_finite, variance, jnp.where(jnp.isnan(square), jnp.nan, jnp.inf))
    return jnp.where(is_finite, ((s + t) + delta) * back, sums[0]), variance
