"""Attention by cuDNN on plain arrays, and its gradients, with a mask or a bias.

What cuDNN knows itself (causal, a sliding window) it is told; the rest is an array that it adds to the scores. Of a
mask that array is made where it is used, in the backward pass again, so that none is kept; only a bias has a gradient.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..compat import AttentionKernel, attention_kernel

UNSEEN = -(2.0**41)
"""Added to the score of a key that is not seen: so much that no bit of the score is left."""

See = Callable[..., Any]
"""What is seen, [batch 1 length memory_length] or 1 in place of batch, of the arrays given beside."""


def cudnn_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    bias: Any = None,
    see: See | None = None,
    places: Sequence[Any] = (),
    may_see_none: bool = False,
) -> Any:
    """What queries [batch length heads channel] take from keys and values, as `q`.

    Keys are [batch memory_length heads channel], of as many heads or fewer (GQA). `bias` is [.. length memory_length]
    with 1 or all of batch and heads; `see(*places)` says which keys are seen. A query that sees none, if one may, takes
    the mean of all values.
    """
    kernel = attention_kernel(scale, is_heads_first=False)
    if kernel is None:
        raise RuntimeError("cuDNN is not there, or not as expected")
    if see is not None and may_see_none:
        # All its scores are `UNSEEN` whatever it is; as zeros it has no part in the gradients of keys either.
        sees_any = jnp.any(see(*places), axis=-1)
        q = jnp.where(jnp.moveaxis(sees_any, 1, 2)[..., None], q, jnp.zeros((), q.dtype))
    bias = None if bias is None else bias.astype(q.dtype)
    run = _differentiable(kernel, causal=causal, window=window, see=see)
    return run(q, k, v, bias, tuple(places))


def _differentiable(kernel: AttentionKernel, *, causal: bool, window: int | None, see: See | None) -> Any:
    how: dict[str, Any] = {"causal": causal, "window": window}

    @jax.custom_vjp
    def run(q: Any, k: Any, v: Any, bias: Any, places: Any) -> Any:
        return forward(q, k, v, bias, places)[0]

    def forward(q: Any, k: Any, v: Any, bias: Any, places: Any) -> Any:
        result, log_sum = kernel.forward(q, k, v, bias=_make_bias(q.dtype, see, bias, places), **how)
        return result, (q, k, v, bias, places, log_sum, result)

    def backward(kept: Any, gradient: Any) -> Any:
        q, k, v, bias, places, log_sum, result = kept
        ends = log_sum, result, gradient
        if bias is None:
            added = _make_bias(q.dtype, see, None, places)
            d_q, d_k, d_v = kernel.backward(q, k, v, *ends, bias=added, **how)
            return d_q, d_k, d_v, None, None
        added, pull_back = jax.vjp(functools.partial(_make_bias, q.dtype, see, places=places), bias)
        d_q, d_k, d_v, d_added = kernel.backward(q, k, v, *ends, bias=added, has_bias_gradient=True, **how)
        if see is not None:
            d_added = jnp.where(see(*places), d_added, jnp.zeros((), d_added.dtype))  # of a query that sees none
        return d_q, d_k, d_v, *pull_back(d_added), None

    run.defvjp(forward, backward)
    return run


def _make_bias(dtype: Any, see: See | None, bias: Any, places: Sequence[Any]) -> Any:
    """What is added to scores: the bias, and `UNSEEN` where keys are not seen."""
    if see is None:
        return bias
    unseen = jnp.where(see(*places), jnp.zeros((), dtype), jnp.asarray(UNSEEN, dtype))
    return unseen if bias is None else bias + unseen
