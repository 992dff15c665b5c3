"""What cuDNN computes, in plain jnp with its arguments; the kernel itself needs a GPU."""

from typing import Any

import jax
import jax.numpy as jnp

from weft.kernels.choice import Chip


class StandIn:
    """`weft.compat.AttentionKernel` of arrays [batch length heads channel]."""

    calls: int = 0

    def __init__(self, scale: float, *, is_heads_first: bool):
        assert not is_heads_first
        self.scale = scale

    def forward(self, q: Any, k: Any, v: Any, *, causal: bool, bias: Any = None, window: int | None = None) -> Any:
        type(self).calls += 1
        assert bias is None or (bias.ndim == 4 and bias.dtype == q.dtype and bias.shape[2:] == (q.shape[1], k.shape[1]))
        assert window is None or causal
        return self._run(q, k, v, bias, causal, window)

    def backward(
        self, q: Any, k: Any, v: Any, log_sum: Any, result: Any, gradient: Any, *,
        causal: bool, bias: Any = None, window: int | None = None, has_bias_gradient: bool = False,
    ) -> Any:  # fmt: skip
        given = (q, k, v, bias) if has_bias_gradient else (q, k, v)
        rest = () if has_bias_gradient else (bias,)
        _, pull_back = jax.vjp(lambda *given: self._run(*given, *rest, causal, window)[0], *given)
        return pull_back(gradient)

    def _run(self, q: Any, k: Any, v: Any, bias: Any, causal: bool, window: int | None) -> Any:
        k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
        scores = jnp.einsum("blhd,bmhd->bhlm", q, k, preferred_element_type="float32") * self.scale
        scores = scores if bias is None else scores + bias.astype("float32")
        here, there = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])
        if causal:
            scores = jnp.where(there <= here, scores, -jnp.inf)
        if window is not None:
            scores = jnp.where(there > here - window, scores, -jnp.inf)
        share = jax.nn.softmax(scores).astype(v.dtype)
        result = jnp.einsum("bhlm,bmhd->blhd", share, v, preferred_element_type="float32").astype(q.dtype)
        return result, jax.nn.logsumexp(scores, axis=-1)


def pretend(monkeypatch: Any, first: str, *others: str) -> None:
    """Takes the place for a Hopper GPU with these kernels, the stand-in for cuDNN, float32 for a short float."""
    from weft.kernels import choice, cudnn
    from weft.nn import attention
    from weft.ops import ring

    for room in (attention, ring):
        monkeypatch.setattr(room, "chip_of", lambda x: Chip("gpu"))
    monkeypatch.setattr(choice, "_SHORT_FLOATS", ("bfloat16", "float16", "float32"))
    monkeypatch.setattr(choice, "_order", lambda case, chip: (first, *others))
    monkeypatch.setattr(cudnn, "attention_kernel", StandIn)
    StandIn.calls = 0
