"""Splash attention, run step by step, gives what plain attention gives; a TPU's compiler takes it."""

import jax
import jax.numpy as jnp
import pytest

from weft.kernels import splash
from weft.kernels.flash import flash_attention

SEGMENTS = jnp.repeat(jnp.asarray([[0, 1, 1, 2], [0, 0, 0, 1]]), 64, axis=1)
CASES = {
    "packed": {"causal": True, "segments": SEGMENTS},
    "all": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 70},
    "window on both sides": {"window": 70},
    "softcap": {"causal": True, "softcap": 5.0},
}
QUICK = {"packed"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in CASES])
def test_splash_attention_agrees_with_plain_attention(name):
    """Values and gradients in f32, of grouped heads."""
    keys = jax.random.split(jax.random.key(0), 4)
    q, gradient = (jax.random.normal(key, (2, 256, 4, 16)) for key in keys[:2])
    k, v = (jax.random.normal(key, (2, 256, 2, 16)) for key in keys[2:])

    def run(attend, backend):
        def both(*given):
            result, pull_back = jax.vjp(
                lambda q, k, v: attend(q, k, v, scale=0.25, backend=backend, **CASES[name]), *given
            )
            return result, *pull_back(gradient)

        return jax.jit(both)(q, k, v)

    for plain, fused in zip(run(flash_attention, "plain"), run(splash.splash_attention, "interpret"), strict=True):
        assert jnp.abs(plain - fused).max() < 1e-5 * jnp.abs(plain).max()


def test_splash_attention_is_lowered_for_a_tpu():
    q, k = (jax.ShapeDtypeStruct((2, 384, heads, 128), "bfloat16") for heads in (4, 2))

    def loss(q, k, v):
        return splash.splash_attention(q, k, v, scale=0.1, causal=True).astype("float32").sum()

    text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(q, k, k).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") >= 3
