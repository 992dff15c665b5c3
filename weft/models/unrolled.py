"""A decoder as a loop over tokens has it: weights cast, every layer by itself.

No turn of the loop reads weights in a wider dtype than it computes with, and none slices a stack of them: the product
of a few rows with a matrix takes as long as reading it. Queries, keys and values are one product, and so are the two of
a gated feed-forward part; the dims that a product sums over are the innermost of its weight, as a GPU reads them best.
The numbers are those of the model itself, up to the order of sums.
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .. import nn
from .. import ops as wf
from ..dims import UNSHOWN, Dim
from ..kernels import cached
from ..lower.rules import stores_parameters
from ..nn.feed_forward import ACTIVATIONS
from ..nn.weights import cast_weights
from ..ops.block_case import chip_of
from ..tensor import Tensor
from .cache import KeysValues, KVCache
from .config import TransformerConfig, stream
from .parts import apply_norm
from .stack import Stack, as_length
from .transformer import Block

_WIDTH = f"{UNSHOWN}width"
_BOTH = f"{UNSHOWN}both"

MOST_LAYERS = 64
"""Deeper models stay a loop over layers in decoding too: XLA compiles a few layers a second."""


def prepare(model: Any, cache: KVCache) -> tuple[Any, KVCache]:
    """The model and its KV cache as a loop over tokens has them.

    Weights are cast and LoRA adapters added; layers are written out where there are at most `MOST_LAYERS` and no stages
    of a pipeline.
    """
    config = model.decoder.config
    decoder = cast_weights(model.decoder, config.dtype)
    if config.stages == 1 and config.layers <= MOST_LAYERS:
        blocks = tuple(map(DecodingBlock, decoder.each_block()))
        decoder, cache = UnrolledDecoder(blocks, decoder), cache.apart()
    name = "embedding" if model.softmax is None else "softmax"
    parts = decoder, cast_weights(getattr(model, name), config.dtype)
    return eqx.tree_at(lambda m: (m.decoder, getattr(m, name)), model, parts), cache


class DecodingBlock(eqx.Module):
    """A block for one token, or a few, whose keys and values join those of a cache."""

    block: Block
    qkv: Tensor | None
    """The weights of queries, keys and values: for each head their columns beside each other."""
    qkv_bias: Tensor | None
    w_in: Tensor | None
    """Of a feed-forward part without experts; where it is gated, with the gate."""
    w_out: Tensor | None

    def __init__(self, block: Block):
        self.block = block
        self.qkv = self.qkv_bias = self.w_in = self.w_out = None
        attention, forward = block.attention, block.feed_forward
        if stores_parameters(attention.q):
            return
        if not attention.queries(attention.q) and _are_whole(attention.q, attention.q.dims[2:]):
            weights = [attention.q, attention.k, attention.v]
            biases = [attention.q_bias, attention.k_bias, attention.v_bias]
            self.qkv = _turn(_beside(weights, 2), last=attention.q.dims[:1])
            if any(bias is not None for bias in biases):
                self.qkv_bias = _beside([_bias_of(*pair) for pair in zip(weights, biases, strict=True)], 1)
        turned = _turn(attention.o, last=attention.o.dims[:-1])
        self.block = eqx.tree_at(lambda b: b.attention.o, block, turned)
        if isinstance(forward, nn.FeedForward):
            both = [forward.w_in] if forward.w_gate is None else [forward.w_gate, forward.w_in]
            w_in = wf.stack(both, Dim(_BOTH, len(both))) if len(both) > 1 else forward.w_in
            self.w_in = _turn(w_in, last=forward.w_in.dims[:1])
            self.w_out = _turn(forward.w_out, last=forward.w_out.dims[:1])

    def __call__(
        self,
        x: Tensor,
        number: int,
        *,
        past: KeysValues,
        cache: KVCache,
        mask: nn.Mask,
        bias: Tensor | nn.RelativeBias | None,
        memory: KeysValues | None,
        memory_mask: nn.Mask,
    ) -> tuple[Tensor, KeysValues]:
        """The residual stream after the block; and its keys and values with the new ones.

        `past` are those of this layer, which has that `number`, in the `cache`.
        """
        block = self.block
        bias = block.bias(x, mask, bias)
        h = as_length(block.norm_first(x, number))
        position = mask.query_positions(h) if block.attention.rotary is not None else None
        q, new = self._project(h, position)
        q = block.scale_queries(q, number)
        if bias is None and can_attend_cached(block.attention, q, past):
            mixed, past = attend_cached(block.attention, q, new, past, cache, block.window)
        else:
            past = past.with_token(new, cache.at)
            mixed = block.attention.attend(q, *past, mask=mask.with_window(block.window), bias=bias)
        back = {"length": stream(x.size("stream"))} if x.dims.has("stream") else {}
        y = apply_norm(block.attention_out_norm, block.attention.out(mixed, rename=back))
        before, x = x, wf.add(x, y, names="subset")
        x = apply_norm(block.attention_post_norm, x)
        if block.memory_attention is not None and memory is not None:
            x = wf.add(x, block.cross_attend(x, memory, memory_mask, None, back, number), names="subset")
            x = apply_norm(block.memory_post_norm, x)
        h = as_length(apply_norm(block.feed_forward_norm, before if block.config.parallel else x))
        y = apply_norm(block.feed_forward_out_norm, self._feed_forward(h, back))
        return apply_norm(block.feed_forward_post_norm, wf.add(x, y, names="subset")), past

    def _project(self, h: Tensor, position: Tensor | None) -> tuple[Tensor, KeysValues]:
        """Queries, and new keys and values, with RoPE."""
        attention = self.block.attention
        if self.qkv is None:
            return attention.query(h, position), KeysValues(*attention.keys_and_values(h, position))
        d_model, *queries = attention.q.dims
        y = wf.einsum(h, self.qkv, over=d_model, matmul_dtype=attention.matmul_dtype)
        if self.qkv_bias is not None:
            y = wf.add(y, self.qkv_bias, names="subset")
        d_kv = queries[-1]
        of_queries = y.size(_WIDTH) - 2 * d_kv.size
        q = wf.slice(y, over=_WIDTH, start=0, size=of_queries)
        q = wf.split(q, **{_WIDTH: queries[1:]}) if len(queries) > 2 else q.rename(**{_WIDTH: d_kv})
        k, v = (wf.slice(y, over=_WIDTH, start=of_queries + i * d_kv.size, size=d_kv.size) for i in range(2))
        k, v = k.rename(**{_WIDTH: d_kv}), v.rename(**{_WIDTH: d_kv})
        return attention.as_queries(q, position), KeysValues(*attention.as_memory(k, v, position))

    def _feed_forward(self, h: Tensor, back: Any) -> Tensor:
        """What the feed-forward part, or the experts, make of the normed stream."""
        forward = self.block.feed_forward
        if isinstance(forward, nn.MixtureOfExperts):
            return forward.run(h, drops=False, rename=back)[0]
        if self.w_in is None or self.w_out is None:
            return forward(h, rename=back)
        d_model, d_ff = forward.w_in.dims
        hidden = wf.einsum(h, self.w_in, over=d_model, matmul_dtype=forward.matmul_dtype)
        *gate, hidden = wf.unstack(hidden, over=_BOTH) if forward.w_gate is not None else [hidden]
        if forward.in_bias is not None:
            hidden = wf.add(hidden, forward.in_bias, names="subset")
        if forward.gate_bias is not None:
            gate = [wf.add(gate[0], forward.gate_bias, names="subset")]
        activate = ACTIVATIONS[forward.activation]
        hidden = wf.multiply(activate(gate[0]), hidden, names="subset") if gate else activate(hidden)
        y = wf.einsum(hidden, self.w_out, over=d_ff, rename=back, matmul_dtype=forward.matmul_dtype)
        return y if forward.out_bias is None else wf.add(y, forward.out_bias, names="subset")


class UnrolledDecoder(eqx.Module):
    """The blocks of a decoder one after the other, for one token or a few."""

    blocks: tuple[DecodingBlock, ...]
    stack: Stack

    @property
    def config(self) -> TransformerConfig:
        return self.stack.config

    def step(self, x: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        """One token, [batch d_model], or a few of `stream`; and the KV cache with them."""
        mask, memory_mask = cache.mask(as_length(x)), cache.memory_mask
        bias = self.stack.bias(x, mask)
        memories: Sequence[Any] = [None] * len(self.blocks) if cache.memory is None else cache.memory
        before: Sequence[Any] = cache.past
        pasts = []
        for number, (block, past, memory) in enumerate(zip(self.blocks, before, memories, strict=True)):
            x, past = block(
                x, number, past=past, cache=cache, mask=mask, bias=bias, memory=memory, memory_mask=memory_mask
            )
            pasts.append(past)
        return apply_norm(self.stack.norm, x), cache.advance(
            tuple(pasts), x.size("stream") if x.dims.has("stream") else 1
        )


# Attention of one token to the cache, by one kernel that puts its key and value there too.


def can_attend_cached(attention: nn.Attention, q: Tensor, past: KeysValues) -> bool:
    """Whether a GPU does it by the kernel: one query a row, a head's keys all here."""
    (_, *queries), (_, heads, d_kv) = attention.q.dims, attention.k.dims
    rows = [dim for dim in q.dims if dim not in queries]
    memory = past.keys.dims[-3:-2]
    if list(q.dims) != [*rows, *queries] or list(past.keys.dims) != [*rows, *memory, heads, d_kv]:
        return False  # a few tokens, or heads under another name
    is_plain = attention.fused and attention.talking is None
    is_here = _are_whole(past.keys, [*memory, d_kv])
    return is_plain and is_here and chip_of(q).kind == "gpu" and cached.can_do(d_kv.size) is None


def attend_cached(
    attention: nn.Attention, q: Tensor, new: KeysValues, past: KeysValues, cache: KVCache, window: int | None
) -> tuple[Tensor, KeysValues]:
    """What the queries take, as `q`, and the keys and values with the new ones."""

    def kernel(q: Any, k: Any, v: Any, keys: Any, values: Any, at: Any, first: Any = None) -> Any:
        rows, (memory, heads, width) = math.prod(k.shape[:-2]), keys.shape[-3:]
        beside = jnp.concatenate([x.reshape(rows, heads, -1) for x in (q, k, v)], axis=-1)  # as the product made them
        mixed, *kept = cached.attend_cached(
            beside.reshape(rows, heads, -1, width),
            keys.reshape(rows, memory, heads, width),
            values.reshape(rows, memory, heads, width),
            at,
            None if first is None else jnp.repeat(first, rows // first.size),  # its continuations begin where it does
            scale=attention.scale,
            softcap=attention.softcap,
            window=window,
        )
        return mixed.reshape(q.shape), *(x.reshape(keys.shape) for x in kept)

    inputs = [q, *new, *past, cache.at, *([] if cache.first is None else [cache.first])]
    out = [list(x.dims) for x in (q, *past)]
    mixed, *kept = wf.local(kernel, *inputs, out=out, whole=past.keys.dims[-3::2])
    return mixed, KeysValues(*kept)


def _are_whole(x: Tensor, dims: Sequence[Dim]) -> bool:
    """Whether each processor has all of these dims."""
    return all(x.ways(dim) == 1 and not dim.is_padded for dim in dims)


def _beside(parts: Sequence[Tensor], outer: int) -> Tensor:
    """Weights or biases of q, k and v as one, the dims behind the `outer` as `width`."""

    def merge(x: Tensor) -> Tensor:
        inner = x.dims[outer:]
        return wf.merge(x, inner, into=Dim(_WIDTH, math.prod(dim.size for dim in inner)))

    return wf.concat([merge(part) for part in parts], over=_WIDTH)


def _bias_of(weight: Tensor, bias: Tensor | None) -> Tensor:
    return wf.zeros(weight.dims[1:], like=weight, dtype=weight.dtype) if bias is None else bias


def _turn(weight: Tensor, *, last: Sequence[Dim]) -> Tensor:
    """The weight with some dims innermost."""
    return wf.broadcast(weight, [*weight.dims.without(last), *last])
