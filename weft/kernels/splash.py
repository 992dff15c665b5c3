"""Splash attention, JAX's flash attention for TPUs, on plain arrays.

Queries are [batch length heads width], keys and values [batch memory heads_kv width], as in `flash.py`. It takes causal
masks, windows, segments, a soft cap and GQA, of lengths that are multiples of 128; no dropout, no bias.
"""

from typing import Any

import jax
import jax.numpy as jnp

_LANES = 128  # of whose multiples lengths are
_LONGEST = 512  # queries or keys of a block


def splash_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    segments: Any = None,
    backend: str = "tpu",
) -> Any:
    """The mean of the values each query sees, by how well keys answer: as `q`.

    `segments` are [batch length], of queries and keys alike. The backend is `tpu`, or `interpret`: step by step.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    length, memory = q.shape[1], k.shape[1]
    mask = splash.MultiHeadMask([_mask(splash, (length, memory), causal=causal, window=window)] * q.shape[2])
    rows, columns = _block(length), _block(memory)
    blocks = splash.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_kv_compute=columns,
        block_q_dkv=rows,
        block_kv_dkv=columns,
        block_kv_dkv_compute=columns,
        block_q_dq=rows,
        block_kv_dq=columns,
    )
    kernel = splash.make_splash_mha_single_device(
        mask, block_sizes=blocks, attn_logits_soft_cap=softcap, interpret=backend == "interpret"
    )
    q = (q.astype("float32") * scale).astype(q.dtype)  # it has no scale of its own
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    of = None if segments is None else splash.SegmentIds(segments, segments)
    mixed = jax.vmap(lambda q, k, v, of: kernel(q, k, v, of))(q, k, v, of)
    return jnp.swapaxes(mixed, 1, 2)


def _mask(splash: Any, sizes: tuple[int, int], *, causal: bool, window: int | None) -> Any:
    if window is not None:
        return splash.LocalMask(sizes, (window - 1, 0 if causal else window - 1), 0)
    return splash.CausalMask(sizes) if causal else splash.FullMask(sizes)


def _block(size: int) -> int:
    """The longest block, of multiples of 128, that divides so many places."""
    return next(block for block in range(min(size, _LONGEST), 0, -_LANES) if size % block == 0)
