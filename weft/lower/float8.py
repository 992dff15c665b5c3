"""Products of two arrays in 8-bit floats (fp8), scaled by their largest values.

Works on local arrays. Forward both operands are float8_e4m3fn (Micikevicius et al. 2022), backward gradients are
float8_e5m2; each is divided by a scale of its own first (current scaling, per tensor), the power of two that brings the
largest value of the whole tensor into range. That is one all-reduce of two numbers forward and of one number backward
over the axes the tensors are split on, so a layout changes no scale. Dividing by a power of two is exact: what is lost
is the rounding to 8 bits alone, and hardware without such products computes the same: XLA widens the operands there.
What is kept for the gradient are the operands as they were given, which other products share, and not their 8 bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from ..layout import Axes
from .collectives import all_max

FORWARD, BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2
_LEAST = 2.0**-120
"""A tensor of nothing but smaller numbers has the scale of this one."""


@dataclass(frozen=True)
class Float8Product:
    """The product of two local arrays of floats, summed over the dims they share."""

    orders: Sequence[Sequence[int]]
    """The numbers of the dims of both operands and of the result."""
    axes: Sequence[Axes]
    """The axes that these are split over."""
    dtype: Any = None
    """Of the result; that of the operands by default."""

    def __call__(self, a: Any, b: Any) -> Any:
        @jax.custom_vjp
        def product(a: Any, b: Any) -> Any:
            return self._forward(a, b)[0]

        product.defvjp(self._forward, self._backward)
        return product(a, b)

    def _forward(self, a: Any, b: Any) -> tuple[Any, Any]:
        left, right, result = self.orders
        scales = _scales([a, b], FORWARD, tuple(dict.fromkeys([*self.axes[0], *self.axes[1]])))
        dtype = jnp.result_type(a, b) if self.dtype is None else self.dtype
        first, second = _Scaled(a, scales[0], left, FORWARD), _Scaled(b, scales[1], right, FORWARD)
        return first.times(second, result, dtype), (a, b, scales)

    def _backward(self, kept: Any, gradient: Any) -> tuple[Any, Any]:
        (a, b, scales), (left, right, result) = kept, self.orders
        g = _Scaled(gradient, _scales([gradient], BACKWARD, self.axes[2])[0], result, BACKWARD)
        first, second = _Scaled(a, scales[0], left, FORWARD), _Scaled(b, scales[1], right, FORWARD)
        precise = lax.Precision.HIGHEST  # sums of gradients are not to be hurried: cuBLAS would keep fewer bits of them
        return g.times(second, left, a.dtype, precise), first.times(g, right, b.dtype, precise)


@dataclass(frozen=True)
class _Scaled:
    """An array, its scale, the numbers of its dims, and the 8-bit float it becomes."""

    array: Any
    scale: Any
    order: Sequence[int]
    narrow: Any

    @property
    def values(self) -> Any:
        array = self.array
        if isinstance(array, jax.core.Tracer):
            # XLA wants 8-bit operands with the dims summed last. Left to itself it transposes what they are made of, up
            # to the float32 weights of all layers before a loop; so it transposes the 8 bits.
            array = with_layout_constraint(array, Layout(major_to_minor=tuple(range(array.ndim))))
        return (array.astype(jnp.float32) * (1 / self.scale)).astype(self.narrow)

    def times(self, other: "_Scaled", out: Sequence[int], dtype: Any, precision: Any = None) -> Any:
        """The product with another, with the dims `out` in that order."""
        both = [n for n in self.order if n in other.order]
        summed, batch = [n for n in both if n not in out], [n for n in both if n in out]
        places: list[Any] = [
            tuple([order.index(n) for n in ns] for order in (self.order, other.order)) for ns in (summed, batch)
        ]
        wide = dtype if dtype == jnp.bfloat16 or jnp.dtype(dtype).itemsize >= 4 else jnp.float32
        y = lax.dot_general(
            self.values, other.values, (places[0], places[1]), precision=precision, preferred_element_type=wide
        )
        y = (y * (self.scale * other.scale).astype(wide)).astype(dtype)
        made = [*batch, *(n for n in (*self.order, *other.order) if n not in both)]
        return jnp.transpose(y, [made.index(n) for n in out])


def _scales(arrays: Sequence[Any], narrow: Any, axes: Axes) -> list[Any]:
    """For each array the power of two that brings its largest value into range."""
    largest = jnp.stack([jnp.max(jnp.abs(array), initial=0.0).astype(jnp.float32) for array in arrays])
    least = jnp.maximum(all_max(largest, axes) / float(jnp.finfo(narrow).max), _LEAST)
    bits = lax.bitcast_convert_type(least, jnp.int32)
    powers = lax.bitcast_convert_type((bits + 0x7FFFFF) & 0x7F800000, jnp.float32)  # the next above, or itself
    scales = jnp.where(jnp.isfinite(least), powers, least)
    return [scales[i] for i in range(len(arrays))]
