"""Rows of the contract table for padded dims, moments, rings beside products, and gradients of one's own."""

from typing import Any

import jax
import jax.numpy as jnp

import weft as wf
from tests.ops.table import floats, integers, length, length_whole, row, weights

_x = "batch length d_model"

# ---- padding, which counts nowhere (multiples that every mesh divides)

row("uneven", "pad_to and sum", floats(_x), lambda x: wf.sum(wf.exp(wf.pad_to(x, "length", 16)), over="length"),
    lambda x: jnp.sum(jnp.exp(x), 1))  # fmt: skip
row("uneven", "pad_to and mean", floats(_x), lambda x: wf.mean(wf.pad_to(x, "batch", 32) + 1, over="batch d_model"),
    lambda x: jnp.mean(x + 1, (0, 2)))  # fmt: skip
row("uneven", "pad_to and max", floats(_x, -3, -1), lambda x: wf.max(wf.pad_to(x, length, 16), over="length"),
    lambda x: jnp.max(x, 1))  # fmt: skip
row("uneven", "pad_to and var", floats(_x), lambda x: wf.var(wf.pad_to(x, "length", 16), over="length"),
    lambda x: jnp.var(x, 1))  # fmt: skip
row("uneven", "pad_to and softmax", floats("batch vocab"),
    lambda x: wf.unpad(wf.softmax(wf.pad_to(x, "vocab", 32), over="vocab"), "vocab"),
    lambda x: jax.nn.softmax(x, 1), sums="vocab")  # fmt: skip
row("uneven", "pad_to and einsum", (floats("batch vocab"), weights("vocab d_model")),
    lambda x, w: wf.einsum(wf.exp(wf.pad_to(x, "vocab", 32)), wf.pad_to(w, "vocab", 32), over="vocab"),
    lambda x, w: jnp.exp(x) @ w)  # fmt: skip
row("uneven", "pad_to and divide", (floats(_x, 1, 2), floats("batch")),
    lambda x, y: wf.sum(y / wf.pad_to(x, "length", 16), over="length d_model"),
    lambda x, y: jnp.sum(y[:, None, None] / x, (1, 2)))  # fmt: skip
row("uneven", "pad_to and argmax", floats(_x, -3, -1), lambda x: wf.argmax(wf.pad_to(x, "length", 16), over="length"),
    lambda x: jnp.argmax(x, 1), is_differentiable=False)  # fmt: skip
row("uneven", "pad_to and sort", floats(_x), lambda x: wf.unpad(wf.sort(wf.pad_to(x, "length", 16), over="length"),
    "length"), lambda x: jnp.sort(x, 1))  # fmt: skip
row("uneven", "pad_to and cumsum", floats(_x), lambda x: wf.unpad(wf.cumsum(wf.exp(wf.pad_to(x, "length", 16)),
    over="length", reverse=True), "length"),
    lambda x: jax.lax.cumsum(jnp.exp(x), 1, reverse=True), sums="length")  # fmt: skip
row("uneven", "pad_to and take", (weights("vocab d_model"), integers("batch length", -2, 34)),
    lambda w, ids: wf.take(wf.exp(wf.pad_to(w, "vocab", 32)), ids, over="vocab"),
    lambda w, ids: jnp.where(((ids >= 0) & (ids < 24))[..., None], jnp.exp(w)[jnp.clip(ids, 0, 23)], 0),
    meetings=("vocab d_model", "batch length d_model"))  # fmt: skip
row("uneven", "unpad", floats(_x), lambda x: wf.unpad(wf.sin(wf.pad_to(x, "length", 16)), "length"), jnp.sin)
row("uneven", "valid", floats(_x),
    lambda x: wf.sum(wf.cast(wf.valid(wf.pad_to(x, "length", 16).dims, like=x), "int32"), over="length d_model"),
    lambda x: jnp.full(16, 64), is_differentiable=False)  # fmt: skip

# ---- moments

for _over, _axes in (("batch", 0), ("length d_model", (1, 2)), (_x, (0, 1, 2))):
    row("uneven", f"mean_and_var over {_over}", floats(_x, 7, 9), lambda x, o=_over: wf.mean_and_var(x, over=o),
        lambda x, a=_axes: (jnp.mean(x, a), jnp.var(x, a)))  # fmt: skip
row("uneven", "mean_and_var bf16", floats(_x, dtype="bfloat16"), lambda x: wf.mean_and_var(x, over="length"),
    lambda x: (jnp.mean(x, 1), jnp.var(x, 1)))  # fmt: skip

# ---- rings beside products

row("uneven", "einsum overlap gather", (floats(_x), weights("d_model heads")),
    lambda x, w: wf.einsum(x, w, over="d_model", rename={"length": length_whole}, overlap=True),
    lambda x, w: x @ w, meetings=(_x, "batch length_whole d_model heads"))  # fmt: skip
row("uneven", "einsum overlap scatter", (floats("batch length_whole heads"), weights("heads d_model")),
    lambda x, w: wf.einsum(x, w, over="heads", rename={"length_whole": length}, overlap=True),
    lambda x, w: x @ w, meetings=("batch length_whole heads d_model", _x))  # fmt: skip
row("uneven", "einsum overlap plain", (floats(_x), weights("d_model vocab")),
    lambda x, w: wf.einsum(x, w, over="d_model", overlap=True), lambda x, w: x @ w)  # fmt: skip


# ---- a gradient of one's own: half of the true one


@wf.custom_vjp
def _layer(x: Any, w: Any) -> Any:
    return wf.tanh(wf.einsum(x, w, over="d_model"))


def _backward(kept: Any, gradient: Any) -> Any:
    x, w, y = kept
    slope = 0.5 * gradient * (1 - y * y)
    return wf.einsum(slope, w, out=x.dims), wf.einsum(x, slope, out=w.dims)


_layer.defvjp(lambda x, w: ((y := _layer.fn(x, w)), (x, w, y)), _backward)


@jax.custom_vjp
def _plain_layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def _plain_backward(kept: Any, gradient: Any) -> Any:
    x, w, y = kept
    slope = 0.5 * gradient * (1 - y * y)
    return slope @ w.T, jnp.einsum("bld,blh->dh", x, slope)


_plain_layer.defvjp(lambda x, w: ((y := jnp.tanh(x @ w)), (x, w, y)), _plain_backward)

row("uneven", "custom_vjp", (floats(_x), weights("d_model heads")), _layer, _plain_layer)
row("uneven", "custom_vjp of one that was gathered", (floats(_x), weights("d_model heads")),
    lambda x, w: _layer(x.rename(length=length_whole), w), _plain_layer,
    meetings=(_x, "batch length_whole d_model heads"))  # fmt: skip
