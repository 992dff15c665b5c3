"""The Transformer: block, embeddings, loss; and the decoder-only language model.

To be read from top to bottom, and copied to be changed. Nothing here says anything about processors: the same lines run
on one and under every layout. How a stack of blocks runs is in `stack.py`, the KV cache in `cache.py`, the layers are
those of `weft.nn`; encoder-decoders (`seq2seq.py`) and encoders (`encoder.py`) are made of the parts defined here.

Between blocks positions are called `stream`, inside attention and feed-forward `length`; one token at a time, when
decoding, has neither.
"""

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import equinox as eqx

from .. import nn
from .. import ops as wf
from ..errors import TensorError, public
from ..lower.rules import can_be
from ..nn.arguments import check_divisor
from ..nn.weights import apply_dropout, fold_key
from ..tensor import Tensor
from .cache import KeysValues, KVCache
from .config import TransformerConfig, need_config, stream
from .inputs import check_dropout_key, check_length, check_sizes, name_batch, shift_right
from .parts import apply_norm, make_attention, make_experts, make_feed_forward, make_norm, make_relative
from .running import Runnable
from .stack import Stack, as_length, deal_out, put_together, relative_bias

# A block, and the stack of them.


class Block(eqx.Module):
    """A Transformer block: self-attention, cross-attention, feed-forward.

    Cross-attention is only in a decoder that has an encoder; the feed-forward part may be a mixture of experts (MoE).
    Norms stand before each part (pre-norm), after it, or both, or behind the sum (post-norm). A stack holds one such
    module, whose weights are those of all its layers.
    """

    attention_norm: nn.RMSNorm | nn.LayerNorm | None
    attention: nn.Attention
    attention_out_norm: nn.RMSNorm | nn.LayerNorm | None
    attention_post_norm: nn.RMSNorm | nn.LayerNorm | None
    memory_norm: nn.RMSNorm | nn.LayerNorm | None
    memory_post_norm: nn.RMSNorm | nn.LayerNorm | None
    memory_attention: nn.Attention | None
    """To what the encoder gives (cross-attention)."""
    feed_forward_norm: nn.RMSNorm | nn.LayerNorm | None
    feed_forward: nn.FeedForward | nn.MixtureOfExperts
    feed_forward_out_norm: nn.RMSNorm | nn.LayerNorm | None
    feed_forward_post_norm: nn.RMSNorm | nn.LayerNorm | None
    relative: nn.RelativeBias | None
    """Where each layer has its own (UMT5); one that all share is the stack's."""
    window: int | None = eqx.field(static=True)
    """How many places back attention looks, the own one counted."""
    dropout: float = eqx.field(static=True)
    attention_dropout: float = eqx.field(static=True)
    hidden_dropout: float = eqx.field(static=True)
    config: TransformerConfig = eqx.field(static=True)

    def __init__(self, config: TransformerConfig, *, causal: bool, has_memory: bool, has_experts: bool):
        place = config.norm_place
        before, after, behind = place in ("pre", "sandwich"), place in ("output", "sandwich"), place == "post"
        self.attention_norm = make_norm(config) if before else None
        self.attention = make_attention(config, is_self=True)
        self.attention_out_norm = make_norm(config) if after else None
        self.attention_post_norm = make_norm(config) if behind else None
        self.memory_norm = make_norm(config) if has_memory and not behind else None
        self.memory_post_norm = make_norm(config) if has_memory and behind else None
        self.memory_attention = make_attention(config, is_self=False) if has_memory else None
        self.feed_forward_norm = make_norm(config) if before else None
        self.feed_forward = make_experts(config) if has_experts else make_feed_forward(config)
        self.relative = make_relative(config, causal) if config.relative_by_layer else None
        self.feed_forward_out_norm = make_norm(config) if after else None
        self.feed_forward_post_norm = make_norm(config) if behind else None
        self.config, self.window = config, config.window
        self.dropout = config.dropout
        self.attention_dropout, self.hidden_dropout = config.attention_drop, config.hidden_drop

    def __call__(
        self,
        x: Tensor,
        *,
        mask: nn.Mask,
        bias: Tensor | nn.RelativeBias | None = None,
        memory: Tensor | KeysValues | None = None,
        memory_mask: nn.Mask | None = None,
        past: KeysValues | None = None,
        at: Tensor | None = None,
        number: Any = 0,
        drops: bool = True,
        key: Any = None,
    ) -> tuple[Tensor, dict[str, Tensor], KeysValues]:
        """The residual stream after the block, experts' statistics, new keys and values.

        `number` is the layer's, from 0. When decoding, `past` are the keys and values of the tokens before, and `at` is
        the place of this one. Without `drops` no expert leaves out a token for want of room.
        """
        keys = [fold_key(key, i) for i in range(6)]
        back = {"length": stream(x.size("stream"))} if x.dims.has("stream") else {}

        bias = self.bias(x, mask, bias)
        h = self._enter(self.norm_first(x, number), self.attention.q)
        position = mask.query_positions(h) if self.attention.rotary is not None else None
        q, *made = self.attention.project(h, position)
        q = self.scale_queries(q, number)
        new = KeysValues(*made)
        k, v = new if past is None or at is None else past.with_token(new, at)
        mask = mask.with_window(self.window)
        mixed = self.attention.attend(q, k, v, mask=mask, bias=bias, key=keys[0], dropout=self.attention_dropout)
        y = wf.name(self.attention.out(mixed, rename=back), "attention")
        y = apply_norm(self.attention_out_norm, y)
        before, x = x, wf.add(x, apply_dropout(y, self.dropout, keys[1]), names="subset")
        x = apply_norm(self.attention_post_norm, x)

        if self.memory_attention is not None and memory is not None:
            y = self.cross_attend(x, memory, memory_mask or nn.Mask(), keys[2], back, number)
            x = wf.add(x, apply_dropout(y, self.dropout, keys[3]), names="subset")
            x = apply_norm(self.memory_post_norm, x)

        h = apply_norm(self.feed_forward_norm, before if self.config.parallel else x)
        report: dict[str, Tensor] = {}
        if isinstance(self.feed_forward, nn.MixtureOfExperts):
            y, report["statistics"] = self.feed_forward.run(as_length(h), key=keys[4], drops=drops, rename=back)
        else:
            h = self._enter(h, self.feed_forward.w_in)
            rename = back if h.dims.has("length") else {}
            y = self.feed_forward(h, key=keys[4], dropout=self.hidden_dropout, rename=rename)
        y = wf.name(y, "feed_forward")
        y = apply_norm(self.feed_forward_out_norm, y)
        x = wf.add(x, apply_dropout(y, self.dropout, keys[5]), names="subset")
        return apply_norm(self.feed_forward_post_norm, x), report, new

    def norm_first(self, x: Tensor, number: Any) -> Tensor:
        """What attention reads of the stream, in the layer of that number."""
        h = apply_norm(self.attention_norm, x)
        if self.config.first_norm:
            return h
        is_first = number == 0
        return (x if is_first else h) if isinstance(is_first, bool) else wf.where(is_first, x, h)

    def bias(self, x: Tensor, mask: nn.Mask, shared: Any) -> Any:
        """T5's relative bias of this layer: its own, or the one that all share."""
        return shared if self.relative is None else relative_bias(self.relative, x, mask, self.config)

    def of_kind(self, kind: str) -> "Block":
        """The block as a `local` layer has it, or a `global` one: its window, its RoPE."""
        if not self.config.pattern:
            return self
        block = copy.copy(self)
        attention = copy.copy(self.attention)  # modules are frozen, and these are new
        object.__setattr__(block, "attention", attention)
        if kind == "global":
            object.__setattr__(block, "window", None)
        elif self.config.local_base is not None:
            object.__setattr__(attention, "rotary", self.config.local_base)
            object.__setattr__(attention, "stretch", None)
        return block

    def scale_queries(self, q: Tensor, number: Any) -> Tensor:
        """Queries made smaller by the layer's number, where its scores are."""
        return wf.cast(wf.cast(q, "float32") / (number + 1.0), q.dtype) if self.config.scale_by_layer else q

    def _enter(self, x: Tensor, weight: Tensor) -> Tensor:
        """The stream as `length`; as it is, where heads trade places with it (Ulysses).

        It stays split then, if it can meet this weight so.
        """
        stays = self.attention.queries(x) and can_be(x, [*x.dims, *weight.dims[1:]])
        return x if stays else as_length(x)

    def cross_attend(self, x: Tensor, memory: Any, mask: nn.Mask, key: Any, back: Any, number: Any) -> Tensor:
        """Cross-attention to the encoder's sequence, or to keys and values made before."""
        attention = self.memory_attention
        assert attention is not None
        q = attention.query(self._enter(apply_norm(self.memory_norm, x), attention.q), None)
        q = self.scale_queries(q, number)
        k, v = memory if isinstance(memory, KeysValues) else self.keys_and_values_of(memory)
        mixed = attention.attend(q, k, v, mask=mask, key=key, dropout=self.attention_dropout)
        return wf.name(attention.out(mixed, rename=back), "memory_attention")

    def keys_and_values_of(self, memory: Tensor) -> KeysValues:
        """The keys and values of cross-attention for what an encoder made."""
        assert self.memory_attention is not None
        return KeysValues(*self.memory_attention.keys_and_values(memory, None))


def make_stack(config: TransformerConfig, *, causal: bool, has_memory: bool = False) -> Stack:
    """An encoder, or a decoder (`causal`), which may have an encoder's memory."""
    is_shared = config.positions == "relative" and not config.relative_by_layer
    relative = make_relative(config, causal) if is_shared else None
    make_block = functools.partial(Block, config, causal=causal, has_memory=has_memory)
    norm = None if config.norm_place == "post" else make_norm(config)
    return Stack(config, make_block, norm=norm, relative=relative)


# From token ids to vectors, from vectors to logits, and the loss. A model here has `embedding`, `positions`, `softmax`.


def make_embeddings(config: TransformerConfig) -> tuple[nn.Embedding, nn.Embedding | None, nn.Embedding | None]:
    """The embeddings of words, of learned positions, and of the logits if not tied."""
    d_model, vocab = config.dim("d_model"), config.vocab_dim
    positions = nn.Embedding(config.dim("positions"), d_model, stddev=0.02) if config.positions == "learned" else None
    softmax = None if config.tied else nn.Embedding(vocab, d_model, stddev=d_model.size**-0.5)
    return nn.Embedding(vocab, d_model, stddev=config.embedding_stddev), positions, softmax


def embed(model: Any, tokens: Tensor, mask: nn.Mask, key: Any = None, types: Any = None, words: Any = None) -> Tensor:
    """Words (and positions, types) embedded: [batch stream d_model], or of a token."""
    config = model.config
    back = {"length": stream(tokens.size("length"))} if tokens.dims.has("length") else {}
    x = (words or model.embedding)(tokens, config.dtype, rename=back)
    x = x * config.d_model**0.5 if config.embedding_scale else x
    if model.positions is not None:
        check_length(tokens, config.max_positions)
        x = wf.add(x, model.positions(mask.query_positions(tokens), config.dtype, rename=back), names="subset")
    if config.positions == "sinusoid":
        here = _as_stream(mask.query_positions(tokens))
        x = wf.cast(wf.add(x, nn.sinusoids(here, x.dim("d_model"), x), names="subset"), config.dtype)
    if types is not None:
        x = wf.add(x, model.types(types, config.dtype, rename=back), names="subset")
    x = apply_norm(getattr(model, "embedding_norm", None), x)
    return apply_dropout(x, config.dropout, fold_key(key, 0))


def _as_stream(x: Tensor) -> Tensor:
    """Places of tokens under the name they have between blocks: `stream`."""
    return x.rename(length=stream(x.size("length"))) if x.dims.has("length") else x


def predict(model: Any, x: Tensor, dtype: str = "float32") -> Tensor:
    """The logits: [.. vocab]."""
    if model.softmax is None and model.config.tied_scale:
        x = x * model.config.d_model**-0.5
    logits = (model.embedding if model.softmax is None else model.softmax).logits(x, dtype)
    if (bias := getattr(model, "logits_bias", None)) is not None:
        logits = wf.add(logits, wf.cast(bias, logits.dtype), names="subset")
    most = model.config.logits_softcap
    return logits if most is None else most * wf.tanh(logits / most)


def token_loss(
    model: Any, x: Tensor, targets: Tensor, weights: Tensor | None, report: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean cross-entropy over tokens with what the experts add, and its metrics.

    `x` is [batch length d_model]; label smoothing, z-loss and the load-balancing losses are those of the config.
    """
    config = model.config
    check_divisor(config.loss_chunks, "loss_chunks", divides=x.size("length"), of="length")
    how = {"chunks": config.loss_chunks, "smoothing": config.smoothing, "z_loss": config.z_loss}
    sums = nn.summed_cross_entropy(lambda x: predict(model, x, config.loss_dtype), x, targets, weights, **how)
    total = sums["weight"] if weights is None else wf.where(sums["weight"] > 0, sums["weight"], 1.0)  # none count: 0
    loss = sums["loss"] / total
    metrics = {"nll": sums["nll"] / total, "accuracy": sums["hits"] / total, "tokens": sums["weight"]}
    if report:
        loss = loss + config.balance_loss * report["balance_loss"] + config.router_z_loss * report["router_z_loss"]
    return loss, metrics | report


# The language model.

BATCH = {
    "tokens": "ids",
    "inputs": "ids",
    "targets": "ids",
    "weights": "numbers",
    "segments": "places",
    "positions": "places",
    "prefix": "row",
    "memory": "vectors",
}


@public(form="models.LMConfig(name='mine', layers=2, d_model=64, heads=4, d_kv=16, d_ff=256, vocab=1000)")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LMConfig(TransformerConfig):
    """A decoder-only Transformer language model."""

    prefix: bool = False
    """Whether it is a prefix LM: a prefix of each sequence sees all of itself (`prefix` in the batch: its length)."""
    cross_attention: bool = False
    """Whether layers also attend to an encoder's vectors, where there are some (`memory` in the batch)."""

    def blueprint(self) -> "TransformerLM":
        """The model without values."""
        return TransformerLM(self)


class TransformerLM(Runnable):
    """A decoder-only language model: the paper's, GPT-2, Llama, prefix LM, MoE."""

    embedding: nn.Embedding
    positions: nn.Embedding | None
    decoder: Stack
    softmax: nn.Embedding | None
    """The table that logits are made by (LM head), where it is not the embedding."""
    config: LMConfig = eqx.field(static=True)

    @public(form="models.init(config, key)")
    def __init__(self, config: LMConfig):
        need_config(config, LMConfig)
        super().__init__()
        self.config = config
        self.embedding, self.positions, self.softmax = make_embeddings(config)
        self.decoder = make_stack(config, causal=True, has_memory=config.cross_attention)

    @public
    def logits(
        self, tokens: Any, *, prefix: Any = None, segments: Any = None, positions: Any = None, memory: Any = None
    ) -> Tensor:
        """The logits of the token that follows each of `tokens`: f32[batch length vocab]."""
        batch = {"tokens": tokens, "prefix": prefix, "segments": segments, "positions": positions, "memory": memory}
        batch = name_batch(batch, BATCH, _needed_names(batch, self.config), self.config.vocab)
        batch["inputs"] = batch.pop("tokens")
        return self.run(_logits, batch)

    @public
    def loss(self, batch: Mapping[str, Any], key: Any = None) -> Tensor:
        """The mean cross-entropy in nats a token, and what the experts add: a scalar.

        `tokens` are predicted each from those before it; or `targets` from `inputs`. With `weights` tokens count so
        much; `segments` of a packed batch do not see each other. A `prefix` sees all of itself, and what it tells of
        its own tokens does not count. There is dropout where a key is given.
        """
        return self.loss_and_metrics(batch, key)[0]

    @public
    def loss_and_metrics(self, batch: Mapping[str, Any], key: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss; and its metrics: `nll`, `accuracy`, `tokens`, the experts' report."""
        return self.run(_loss_and_metrics, _inputs_and_targets(batch, self.config), check_dropout_key(key))

    @public
    def log_probs(self, batch: Mapping[str, Any], key: Any = None) -> Tensor:
        """The log-probability of each row's `targets`, summed: f32[batch].

        Tokens count by their `weights`. There is dropout where a key is given.
        """
        return self.run(_log_probs, _inputs_and_targets(batch, self.config), check_dropout_key(key))

    def prefill(self, prompt: Mapping[str, Tensor], room: int) -> tuple[Tensor, KVCache]:
        """The logits of the token after the prompt, f32[batch vocab], and the KV cache.

        `inputs` of the prompt all end at the same place; `first` is where each begins, if not at 0. The cache has room
        for so many tokens.
        """
        tokens, first = prompt["inputs"], prompt.get("first")
        here = wf.arange(tokens.dim("length"), like=tokens)
        here = here if first is None else here - first
        batch = {} if first is None else {"positions": here, "segments": wf.cast(here >= 0, "int32")}
        if self.config.prefix:
            batch["prefix"] = wf.max(here, over="length") + 1  # a prompt is all prefix
        mask = _mask(self.config, batch)
        x, past = self.decoder.prefill(embed(self, tokens, mask), mask=mask)
        last = tokens.size("length")
        cache = KVCache(past.pad(room), wf.full([], last, dtype="int32"), first)
        return predict(self, x["stream", last - 1]), cache

    def step(self, tokens: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        """The logits of the token after `tokens` [batch], and the KV cache with those.

        Of a few tokens, [batch length], there are logits after each: [batch stream vocab].
        """
        x, cache = self.decoder.step(embed(self, tokens, nn.Mask(positions=cache.positions_of(tokens))), cache)
        return predict(self, x), cache


# What it computes. Each line is a line of the printed program, under the name it gives its result.


def _loss_and_metrics(model: TransformerLM, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    batch = deal_out(batch, model.config)
    x, report = _hidden(model, batch, key)
    return token_loss(model, x, batch["targets"], _weights_of(batch), report)


def _log_probs(model: TransformerLM, batch: dict[str, Tensor], key: Any) -> Tensor:
    weights = _weights_of(batch)
    x, _ = _hidden(model, deal_out(batch, model.config), key)

    def part(x: Tensor, targets: Tensor) -> Tensor:
        return nn.cross_entropy(predict(model, x, model.config.loss_dtype), targets)[0]

    targets = batch["targets"] if weights is None else wf.where(weights == 0, 0, batch["targets"])
    nll = wf.remat(part)(put_together(x), targets)  # no logits are kept for the backward pass
    return -wf.sum(nll if weights is None else nll * weights, over="length")


def _weights_of(batch: Mapping[str, Tensor]) -> Tensor | None:
    """How much each target counts; what a place of the prefix sees tells its own."""
    targets, weights = batch["targets"], batch.get("weights")
    if "prefix" not in batch:
        return weights
    here = wf.arange(targets.dim("length"), like=targets) if "positions" not in batch else batch["positions"]
    is_unseen = wf.cast(here >= batch["prefix"] - 1, "float32")  # but for the last one's
    return is_unseen if weights is None else weights * is_unseen


def _logits(model: TransformerLM, batch: dict[str, Tensor]) -> Tensor:
    x, _ = _hidden(model, deal_out(batch, model.config), None)
    return predict(model, put_together(x))


def _hidden(model: TransformerLM, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """What the logits are made of: [batch length d_model]."""
    mask = _mask(model.config, batch)
    x = embed(model, batch["inputs"], mask, key)
    memory = None if "memory" not in batch else wf.cast(batch["memory"], model.config.dtype)
    x, report = model.decoder(x, mask=mask, memory=memory, key=fold_key(key, 1))
    return x.rename(stream="length"), report


def _mask(config: LMConfig, batch: Mapping[str, Tensor]) -> nn.Mask:
    """The causal mask; the prefix of a prefix LM sees all of itself."""
    return nn.Mask.within(
        causal=True,
        prefix=batch.get("prefix") if config.prefix else None,
        positions=batch.get("positions"),
        segments=batch.get("segments"),
        is_in_order="segments" in batch,
    )


# What it is given.


def _inputs_and_targets(batch: Any, config: LMConfig) -> dict[str, Tensor]:
    """The batch with names; of `tokens`, the inputs are those before each."""
    batch = name_batch(batch, BATCH, _needed_names(batch, config), config.vocab)
    if "tokens" in batch:
        tokens = batch.pop("tokens")
        batch = {"inputs": shift_right(tokens, batch.get("segments")), "targets": tokens, **batch}
    check_sizes(*batch.values())
    return batch


def _needed_names(batch: Any, config: LMConfig) -> list[str]:
    """What a batch must hold: `tokens`, or `inputs` and `targets`; and the `prefix`."""
    names = batch if isinstance(batch, Mapping) else {}
    for name, field in {"prefix": "prefix", "memory": "cross_attention"}.items():
        if names.get(name) is not None and not getattr(config, field):
            fix = f"say `{field}=True` in its config"
            raise TensorError(f"the batch has `{name}`, and the model has none", fix=fix)
    needed = ["inputs", "targets"] if "inputs" in names or "targets" in names else ["tokens"]
    return [*needed, "prefix"] if config.prefix else needed
