"""Flash attention of ours: one kernel forward, two backward, in Pallas.

For what cuDNN does not do as we need it: dropout whose bits are those of the global index (`counter.py`), and a soft
cap; with every mask beside. Arrays are plain slices: queries [batch length heads width], keys and values [batch memory
heads_kv width], where each head of keys serves `heads / heads_kv` heads of queries, next to each other (GQA).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from . import counter, passes, plain
from .blocks import GROUP, Blocks, Seen, Tile, blocks_for, bounds
from .plain import Backend
from .tiles import LOG2E, How


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
    is_within: bool | None = None,
    backend: Backend = "triton",
    blocks: Blocks | None = None,
) -> Any:
    """The mean of the values each query sees, by how well keys answer: as `q`.

    `segments` and `positions` are whole numbers [batch length] of queries and keys alike, or a pair of those of queries
    and of keys; `prefix` is [batch]. `bias` is added to scores after `scale`, [batch or 1, heads or 1, length, memory],
    and has a gradient. With `dropout`, `seed` are the two words of a key (`jax.random.key_data`), and `origin` is the
    global index of the first row of the batch, head, query and key, whose bits are drawn; any of the four may be an
    array of all indices instead. Positions, where none are given, count from `origin` too. `is_within` says that each
    query is one of the keys, and so sees one, where pairs do not show it: blocks that no query sees are then left out.
    """
    masks: dict[str, Any] = {"segments": segments, "positions": positions, "prefix": prefix}
    how: dict[str, Any] = {"scale": scale, "causal": causal, "window": window, "softcap": softcap, "dropout": dropout}
    if backend == "plain":
        return plain.attend(q, k, v, bias=bias, seed=seed, origin=origin, **masks, **how)
    options: dict[str, Any] = {
        "seed": seed,
        "origin": origin,
        "is_within": is_within,
        "backend": backend,
        "blocks": blocks,
    }
    flash, extra = prepare(q, k, **masks, **options, **how)
    return flash(q, k, v, bias, extra)


def prepare(
    q: Any,
    k: Any,
    *,
    segments: Any,
    positions: Any,
    prefix: Any,
    seed: Any,
    origin: Sequence[Any],
    is_within: bool | None = None,
    backend: Backend,
    blocks: Blocks | None = None,
    **how: Any,
) -> tuple["Flash", dict[str, Any]]:
    """The kernels for queries and keys as these, and what they read beside them."""
    sizes = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
    is_at_start = all(isinstance(first, int) and first == 0 for first in origin[2:])
    extra: dict[str, Any] = {}
    is_masked = how["causal"] or how["window"] is not None
    if is_masked and (positions is not None or not is_at_start):
        extra["positions"], extra["key_positions"] = plain.places(positions, origin, sizes)
    if segments is not None:
        extra["segments"], extra["key_segments"] = plain.pair(segments)
    if prefix is not None:
        extra["prefix"] = prefix.astype("int32")
    is_aligned = isinstance(origin[3], int) and origin[3] % GROUP == 0
    if how["dropout"]:
        batch, head, query, key = plain.indices(origin, sizes)
        first, second = counter.streams(seed, batch, head)
        extra["rows"] = counter.rows(first, query)[..., 0]
        extra["columns"] = counter.columns(second, key)[:, :, 0]
        if not is_aligned:
            extra["later"] = counter.is_later(key).reshape(-1).astype("int32")
    if is_within is None:
        is_one = not any(isinstance(x, tuple) for x in (segments, positions)) and is_at_start
        is_within = is_one and (how["window"] is None or sizes[2] == sizes[3])
    flash = Flash(
        **how,
        is_aligned=is_aligned,
        sees_itself=is_within,
        backend=backend,
        blocks=blocks_for(q.shape[-1], q.shape[1]) if blocks is None else blocks,
    )
    return flash, extra


@dataclass(frozen=True)
class Flash:
    """The kernels, compiled for one way to attend."""

    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    dropout: float
    is_aligned: bool
    sees_itself: bool
    backend: Backend
    blocks: Blocks

    def __call__(self, q: Any, k: Any, v: Any, bias: Any, extra: dict[str, Any]) -> Any:
        """The result, as `q`; has gradients of queries, keys, values and the bias."""
        run = jax.custom_vjp(lambda *given: self.forward(*given)[0])

        def forward(*given: Any) -> tuple[Any, Any]:
            result, log_sum = self.forward(*given)
            return result, (given, result, log_sum)

        def backward(kept: Any, gradient: Any) -> tuple[Any, ...]:
            given, result, log_sum = kept
            return *self.backward(*given, result=result, log_sum=log_sum, gradient=gradient), None

        run.defvjp(forward, backward)
        return run(q, k, v, bias, extra)

    def forward(self, q: Any, k: Any, v: Any, bias: Any, extra: dict[str, Any]) -> tuple[Any, Any]:
        """The result, and f32[batch heads length]: the log of the sum of exp(scores)."""
        given, how = self._pad(q, k, v, bias, extra)
        block = self.blocks.forward
        given["bounds"], _ = self._bounds(given, block, how)
        result, log_sum = passes.forward(how, block, given)
        return result[:, : q.shape[1], :, : q.shape[3]], log_sum[:, :, : q.shape[1]]

    def backward(
        self, q: Any, k: Any, v: Any, bias: Any, extra: dict[str, Any], *, result: Any, log_sum: Any, gradient: Any
    ) -> tuple[Any, Any, Any, Any]:
        """The gradients of queries, keys, values and bias; `log_sum` is that of all keys."""
        delta = jnp.sum(result.astype("float32") * gradient.astype("float32"), axis=-1)
        delta = jnp.swapaxes(delta, 1, 2) * (1 - self.dropout)
        more = {"gradient": gradient.astype(q.dtype), "log_sum": log_sum * LOG2E, "delta": delta}
        given, how = self._pad(q, k, v, bias, {**extra, **more})
        limits, _ = self._bounds(given, self.blocks.queries, how)
        d_q = passes.backward_queries(how, self.blocks.queries, {**given, "bounds": limits})
        _, limits = self._bounds(given, self.blocks.keys, how)
        d_k, d_v = passes.backward_keys(how, self.blocks.keys, {**given, "bounds": limits})
        length, memory, width = q.shape[1], k.shape[1], q.shape[3]
        d_bias = None
        if bias is not None:
            block = replace(self.blocks.queries, is_paired=False)
            given["bounds"], _ = self._bounds(given, block, how)
            d_bias = passes.backward_bias(how, block, given)[:, :, :length, :memory]
        return d_q[:, :length, :, :width], d_k[:, :memory, :, :width], d_v[:, :memory, :, :width], d_bias

    def _bounds(self, given: dict[str, Any], block: Tile, how: How) -> tuple[Any, Any]:
        def both(name: str) -> Any:
            return (given[name], given[f"key_{name}"]) if name in given else None

        prefix = given.get("prefix")
        seen = Seen(self.causal, self.window, both("positions"), both("segments"), prefix, self.sees_itself)
        length, memory = given["q"].shape[1], given["k"].shape[1]
        return bounds(seen, length, memory, how.keys, size=block.queries)

    def _pad(self, q: Any, k: Any, v: Any, bias: Any, extra: dict[str, Any]) -> tuple[dict[str, Any], How]:
        """The arrays as whole blocks."""
        most = max(block.queries for block in vars(self.blocks).values())
        width = max(16, 1 << (q.shape[3] - 1).bit_length())
        sizes = {"length": _up(q.shape[1], most), "memory": _up(k.shape[1], GROUP), "width": width}
        given = {"q": q, "k": k, "v": v, **({} if bias is None else {"bias": bias}), **extra}
        for name, x in given.items():
            along = _PADDED.get(name, {})
            more = [(0, sizes[along[axis]] - size if axis in along else 0) for axis, size in enumerate(x.shape)]
            mode = "edge" if name.endswith(("positions", "segments")) else "constant"
            given[name] = jnp.pad(x, more, mode=mode) if any(after for _, after in more) else x
        how = How(
            scale=self.scale,
            causal=self.causal,
            window=self.window,
            softcap=self.softcap,
            dropout=self.dropout,
            keys=k.shape[1],
            memory=sizes["memory"],
            sees_itself=self.sees_itself,
            has_bias=bias is not None,
            has_segments="segments" in extra,
            is_aligned=self.is_aligned,
            is_interpreted=self.backend == "interpret",
        )
        return given, how


_PADDED: dict[str, dict[int, str]] = {
    "q": {1: "length", 3: "width"},
    "gradient": {1: "length", 3: "width"},
    "k": {1: "memory", 3: "width"},
    "v": {1: "memory", 3: "width"},
    "rows": {2: "length"},
    "log_sum": {2: "length"},
    "delta": {2: "length"},
    "columns": {2: "memory"},
    "positions": {1: "length"},
    "segments": {1: "length"},
    "key_positions": {1: "memory"},
    "key_segments": {1: "memory"},
    "later": {0: "memory"},
    "bias": {2: "length", 3: "memory"},
}
"""Which axes are made whole blocks, and of what."""


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
