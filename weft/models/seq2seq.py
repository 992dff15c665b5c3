"""Encoder-decoder Transformers: the paper's for translation, T5, Flan-T5."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx

from .. import nn
from .. import ops as wf
from ..dims import Dim
from ..errors import TensorError, public
from ..fields import bounded
from ..nn.weights import fold_key
from ..tensor import Tensor
from .cache import KeysValues, KVCache
from .config import TransformerConfig, need_config
from .inputs import check_dropout_key, name_batch, name_tensor, shift_right
from .running import Runnable
from .stack import Stack, deal_out, put_together
from .transformer import embed, make_embeddings, make_stack, predict, token_loss

BATCH = {
    "inputs": "ids",
    "targets": "ids",
    "weights": "numbers",
    "input_segments": "places",
    "target_segments": "places",
    "input_positions": "places",
    "target_positions": "places",
}


@public(form="models.Seq2SeqConfig(name='mine', layers=2, d_model=64, heads=4, d_kv=16, d_ff=256, vocab=1000)")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(TransformerConfig):
    """An encoder-decoder; each has `layers`, or the decoder a number of its own."""

    padding: int | None = bounded(least=0)
    """The id of inputs that are no words and are seen by none, if there is one."""
    start: int = bounded(0, least=0)
    """The id the decoder begins with."""
    separate_embeddings: bool = False
    """Whether the decoder has a table of words of its own (Switch Transformers, not tied)."""
    decoder_layers: int | None = None
    """How many layers the decoder has, where not as many as the encoder."""

    def _check_together(self) -> None:
        super()._check_together()
        if self.separate_embeddings and self.tied:
            raise TensorError("`separate_embeddings` and `tied` are both True", fix="leave one of them out")
        if self.decoder_layers is not None:
            _ = self.of_decoder  # which is checked as this one

    @property
    def of_decoder(self) -> "Seq2SeqConfig":
        """The configuration of the decoder's stack."""
        if self.decoder_layers is None:
            return self
        return dataclasses.replace(self, layers=self.decoder_layers, decoder_layers=None)

    @property
    def kept_names(self) -> tuple[str, ...]:
        """The names of what remat can keep of a block; cross-attention is the decoder's."""
        return (*super().kept_names, "memory_attention")

    def blueprint(self) -> "Seq2Seq":
        """The model without values."""
        return Seq2Seq(self)


class Seq2Seq(Runnable):
    """An encoder, a decoder with cross-attention to it, and the embeddings."""

    embedding: nn.Embedding
    decoder_embedding: nn.Embedding | None
    """Of the decoder's words, where they have a table of their own."""
    positions: nn.Embedding | None
    encoder: Stack
    decoder: Stack
    softmax: nn.Embedding | None
    """The table that logits are made by (LM head), where it is not the embedding."""
    config: Seq2SeqConfig = eqx.field(static=True)

    @public(form="models.init(config, key)")
    def __init__(self, config: Seq2SeqConfig):
        need_config(config, Seq2SeqConfig)
        super().__init__()
        self.config = config
        self.embedding, self.positions, self.softmax = make_embeddings(config)
        self.decoder_embedding = make_embeddings(config)[0] if config.separate_embeddings else None
        self.encoder = make_stack(config, causal=False)
        self.decoder = make_stack(config.of_decoder, causal=True, has_memory=True)

    @public
    def logits(self, inputs: Any, targets_in: Any) -> Tensor:
        """The logits of the token after each of `targets_in`: f32[batch length vocab]."""
        vocab = self.config.vocab
        batch = {"inputs": name_tensor("inputs", inputs, "ids", vocab)}
        return self.run(_logits, batch, name_tensor("targets_in", targets_in, "ids", vocab))

    @public
    def loss(self, batch: Mapping[str, Any], key: Any = None) -> Tensor:
        """Mean cross-entropy of `targets` in nats a token; dropout where a key is given."""
        return self.loss_and_metrics(batch, key)[0]

    @public
    def loss_and_metrics(self, batch: Mapping[str, Any], key: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss; and its metrics: `nll`, `accuracy`, `tokens`, the experts' report."""
        batch = name_batch(batch, BATCH, ["inputs", "targets"], self.config.vocab)
        return self.run(_loss_and_metrics, batch, check_dropout_key(key))

    def prefill(self, prompt: Mapping[str, Tensor], room: int) -> tuple[Tensor, KVCache]:
        """The first token's logits, f32[batch vocab], and a KV cache of so much room."""
        memory, _ = _encode(self, dict(prompt), None)
        encoded = self.decoder.keys_and_values_of(memory)
        keys = encoded.keys
        dims = [dim.resized(room) if dim.name == "memory_length" else dim for dim in keys.dims]
        past = KeysValues(*(wf.zeros(dims, like=keys, dtype=keys.dtype) for _ in range(2)))
        segments = _segments(self.config, prompt)
        segments = None if segments is None else segments.rename(length="memory_length")
        cache = KVCache(past, wf.full([], 0, dtype="int32"), None, encoded, segments)
        batch = prompt["inputs"].dim("batch")
        return self.step(wf.full([batch], self.config.start, like=keys, dtype="int32"), cache)

    def step(self, tokens: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        """The logits of the token after `tokens` [batch], and the KV cache with those."""
        words = self.decoder_embedding or self.embedding
        x, cache = self.decoder.step(embed(self, tokens, nn.Mask(positions=cache.position), words=words), cache)
        return predict(self, x), cache


def _loss_and_metrics(model: Seq2Seq, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    batch = deal_out(batch, model.config)
    targets_in = shift_right(batch["targets"], batch.get("target_segments"), model.config.start)
    memory, report = _encode(model, batch, fold_key(key, 0))
    x, more = _decode(model, batch, targets_in, memory, fold_key(key, 1))
    report = {name: report[name] + more[name] for name in report}
    return token_loss(model, x, batch["targets"], batch.get("weights"), report)


def _logits(model: Seq2Seq, batch: dict[str, Tensor], targets_in: Tensor) -> Tensor:
    batch = deal_out({**batch, "targets_in": targets_in}, model.config)
    memory, _ = _encode(model, batch, None)
    x, _ = _decode(model, batch, batch["targets_in"], memory, None)
    return predict(model, put_together(x))


def _encode(model: Seq2Seq, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """What the decoder looks at: [batch memory_length d_model]."""
    inputs = batch["inputs"]
    segments, positions = _segments(model.config, batch), batch.get("input_positions")
    mask = nn.Mask.within(positions=positions, segments=segments, is_in_order=segments is not None)
    x, report = model.encoder(embed(model, inputs, mask, key), mask=mask, key=fold_key(key, 1))
    return x.rename(stream=Dim("memory_length", inputs.size("length"))), report


def _decode(
    model: Seq2Seq, batch: dict[str, Tensor], targets_in: Tensor, memory: Tensor, key: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """What the logits are made of: [batch length d_model]."""
    segments, of_inputs = batch.get("target_segments"), _segments(model.config, batch)
    positions = batch.get("target_positions")
    mask = nn.Mask.within(positions=positions, segments=segments, causal=True, is_in_order=segments is not None)
    memory_mask = nn.Mask()
    if of_inputs is not None:
        here = wf.ones(targets_in.dims, like=targets_in, dtype="int32") if segments is None else segments
        memory_mask = nn.Mask(segments=here, memory_segments=of_inputs.rename(length="memory_length"))
    x = embed(model, targets_in, mask, key, words=model.decoder_embedding)
    x, report = model.decoder(x, mask=mask, memory=memory, memory_mask=memory_mask, key=fold_key(key, 1))
    return x.rename(stream="length"), report


def _segments(config: Seq2SeqConfig, batch: Mapping[str, Tensor]) -> Tensor | None:
    """Segments of the inputs; by an id of padding, words are one, padding another."""
    if "input_segments" in batch or config.padding is None:
        return batch.get("input_segments")
    return wf.cast(batch["inputs"] != config.padding, "int32")
