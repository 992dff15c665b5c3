"""Attention on plain arrays with all scores held, to compare kernels with."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from . import counter

Backend: TypeAlias = Literal["triton", "interpret", "plain"]
"""A kernel on an NVIDIA GPU; the same one step by step, anywhere; all scores at once, in jnp."""
UNSEEN = -1e9
"""The score of a key that is not seen: a query that sees none takes the mean of all."""


def attend(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    segments: Any,
    positions: Any,
    prefix: Any,
    bias: Any,
    dropout: float,
    seed: Any,
    origin: Sequence[Any],
) -> Any:
    """As `flash_attention`."""
    batch, length, heads, _ = q.shape
    memory, heads_kv = k.shape[1:3]
    grouped = q.reshape(batch, length, heads_kv, heads // heads_kv, -1)
    scores = jnp.einsum("blhgd,bmhd->bhglm", grouped, k, preferred_element_type=jnp.float32) * scale
    scores = scores.reshape(batch, heads, length, memory)
    if bias is not None:
        scores = scores + bias.astype("float32")
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    places_ = places(positions, origin, (batch, heads, length, memory))
    seen = is_seen(places_, pair(segments), prefix, causal=causal, window=window)
    if seen is not None:
        scores = jnp.where(seen, scores, UNSEEN)
    share = jax.nn.softmax(scores, axis=-1)
    if dropout:
        rows, head, query, key = indices(origin, (batch, heads, length, memory))
        kept = counter.keep(seed, dropout, batch=rows, head=head, query=query, key=key)
        share = jnp.where(kept, share / (1 - dropout), 0.0)
    share = share.astype(v.dtype).reshape(batch, heads_kv, heads // heads_kv, length, memory)
    mixed = jnp.einsum("bhglm,bmhd->blhgd", share, v, preferred_element_type=jnp.float32)
    return mixed.reshape(q.shape).astype(q.dtype)


def is_seen(positions: Any, segments: Any, prefix: Any, *, causal: bool, window: int | None) -> Any:
    """Where queries see keys, [batch 1 length memory]; None if everywhere."""
    here, there = positions[0][:, None, :, None], positions[1][:, None, None, :]
    conditions: list[Any] = []
    if causal:
        before = there <= here
        conditions.append(before if prefix is None else before | (there < prefix[:, None, None, None]))
    if window is not None:
        conditions.append(there > here - window)
        if not causal:
            conditions.append(there < here + window)
    if segments is not None:
        conditions.append(segments[0][:, None, :, None] == segments[1][:, None, None, :])
    seen = None
    for condition in conditions:
        seen = condition if seen is None else seen & condition
    return seen


def pair(x: Any) -> Any:
    """What is said of queries and of keys, where one array may say it of both."""
    return x if x is None or isinstance(x, tuple) else (x, x)


def places(positions: Any, origin: Sequence[Any], sizes: Sequence[int]) -> tuple[Any, Any]:
    """The positions of queries and keys, [batch or 1, ..]; they count from `origin`."""
    if positions is not None:
        here, there = pair(positions)
        return here.astype("int32"), there.astype("int32")
    _, _, query, key = indices(origin, sizes)
    return query.reshape(1, -1).astype("int32"), key.reshape(1, -1).astype("int32")


def indices(origin: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """The global index along batch, head, query and key each, to broadcast.

    Each of `origin` is the index of the first, or an array of all of them.
    """
    found = []
    for axis, (first, size) in enumerate(zip(origin, sizes, strict=True)):
        first = jnp.asarray(first)
        index = first if first.ndim else first + jnp.arange(size)
        found.append(index.astype("uint32").reshape([-1 if i == axis else 1 for i in range(len(sizes))]))
    return found
