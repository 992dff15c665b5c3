"""Flash attention of ours: one kernel forward, two backward, in Pallas.

For what cuDNN does not do as we need it: dropout whose bits are those of the global index (`counter.py`), and a soft
cap; with every mask beside. Arrays are plain slices: queries [batch length heads width], keys and values [batch memory
heads_kv width], where each head of keys serves `heads / heads_kv` heads of queries, next to each other (GQA).
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from . import plain

BACKENDS = ("triton", "interpret", "plain")
"""A kernel on an NVIDIA GPU; the same one step by step, anywhere; all scores at once, in jnp."""


def flash_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    segments: Any = None,
    positions: Any = None,
    prefix: Any = None,
    bias: Any = None,
    dropout: float = 0.0,
    seed: Any = None,
    origin: Sequence[Any] = (0, 0, 0, 0),
    backend: str = "triton",
) -> Any:
    """The mean of the values each query sees, by how well keys answer: as `q`.

    `segments` and `positions` are whole numbers [batch length] of queries and keys alike, or a pair of those of queries
    and of keys; `prefix` [batch]. `bias` is added to scores after `scale`: [batch or 1, heads or 1, length, memory], and
    has a gradient. With `dropout`, `seed` are the two words of a key (`jax.random.key_data`) and `origin` is the global
    index of the first row of the batch, head, query and key, for whose bits; any of the four may be an array of all
    indices instead. Positions, where none are given, count from `origin` too.
    """
    positions = _pair(positions)
    if positions is None:
        batch, _, query, key = plain.indices(origin, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
        positions = tuple(
            jnp.broadcast_to(x.reshape(1, -1).astype("int32"), (batch.size, x.size)) for x in (query, key)
        )
    return plain.attend(
        q,
        k,
        v,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        segments=_pair(segments),
        positions=positions,
        prefix=prefix,
        bias=bias,
        dropout=dropout,
        seed=seed,
        origin=origin,
    )


def can_do(q: Any, k: Any, *, bias: Any = None, dropout: float = 0.0, backend: str = "triton") -> str | None:
    """Why the kernel cannot do it, if so; arrays, or their shapes and dtypes."""
    if backend == "triton" and q.dtype not in (jnp.bfloat16, jnp.float16):
        return f"the kernel takes bfloat16 and float16, and queries are {q.dtype}"
    if q.shape[-1] > 256:
        return f"heads are {q.shape[-1]} wide, and the kernel takes 256"
    return None


def _pair(x: Any) -> Any:
    return x if x is None or isinstance(x, tuple) else (x, x)
