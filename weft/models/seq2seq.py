"""Encoder-decoder Transformers: the paper's translation model and T5 (1.0, 1.1, Flan), with or without experts."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx

from .. import nn
from .. import ops as wf
from ..dims import Dim
from ..errors import public
from ..fields import bounded
from ..layout import Layout
from ..mesh import Mesh
from ..nn.weights import key_of
from ..tensor import Tensor
from .cache import Cache, Past
from .config import SEARCHED, TransformerConfig, need_config
from .running import named, named_batch, run, shifted
from .stack import Stack
from .words import checked_key, embed, predict, scored, tables

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
    """An encoder-decoder Transformer; `layers` is the number of layers of each."""

    padding: int | None = bounded(least=0)
    """The id of inputs that are no words and are seen by none, if there is one."""
    start: int = bounded(0, least=0)
    """The id the decoder begins with."""

    def blueprint(self, mesh: Mesh | None = None, layout: Layout | None = None) -> "Seq2Seq":
        """The model without values."""
        return Seq2Seq(self, mesh, layout)


class Seq2Seq(eqx.Module):
    """An encoder, a decoder that looks at what it made, and the tables of words."""

    searched_dims: ClassVar[Sequence[str]] = SEARCHED
    embedding: nn.Embedding
    positions: nn.Embedding | None
    encoder: Stack
    decoder: Stack
    softmax: nn.Embedding | None
    config: Seq2SeqConfig = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    layout: Layout | None = eqx.field(static=True)

    @public(form="models.init(config, key)")
    def __init__(self, config: Seq2SeqConfig, mesh: Mesh | None = None, layout: Layout | None = None):
        need_config(config, Seq2SeqConfig)
        self.config, self.mesh, self.layout = config, mesh, layout
        self.embedding, self.positions, self.softmax = tables(config)
        self.encoder = Stack(config, causal=False)
        self.decoder = Stack(config, causal=True, memory=True)

    @public
    def logits(self, inputs: Any, targets_in: Any) -> Tensor:
        """The logits of the token that follows each of `targets_in`, given `inputs`: f32[batch length vocab]."""
        vocab = self.config.vocab
        given = {"inputs": named("inputs", inputs, "ids", vocab)}
        return run(_logits, self, given, named("targets_in", targets_in, "ids", vocab))

    @public
    def loss(self, batch: Mapping[str, Any], key: Any = None) -> Tensor:
        """The mean cross-entropy of `targets` given `inputs`, in nats a token; dropout where a key is given."""
        return self.loss_and_metrics(batch, key)[0]

    @public
    def loss_and_metrics(self, batch: Mapping[str, Any], key: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and what went into it."""
        found = named_batch(batch, BATCH, ["inputs", "targets"], self.config.vocab)
        return run(_loss_and_metrics, self, found, checked_key(key))

    def prefill(self, prompt: Mapping[str, Tensor], room: int) -> tuple[Tensor, Cache]:
        """The logits of the first token for `inputs`, f32[batch vocab], and a cache with room for so many tokens."""
        memory, _ = _encode(self, dict(prompt), None)
        remembered = self.decoder.remember(memory)
        keys = remembered.keys
        dims = [dim.resized(room) if dim.name == "memory_length" else dim for dim in keys.dims]
        past = Past(*(wf.zeros(dims, like=keys, dtype=keys.dtype) for _ in range(2)))
        segments = _segments(self.config, prompt)
        segments = None if segments is None else segments.rename(length="memory_length")
        cache = Cache(past, wf.full([], 0, dtype="int32"), None, remembered, segments)
        batch = prompt["inputs"].dim("batch")
        return self.step(wf.full([batch], self.config.start, like=keys, dtype="int32"), cache)

    def step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """The logits of the token after `tokens` [batch], which follow those of the cache; and the cache with them."""
        x, cache = self.decoder.step(embed(self, tokens, nn.Mask(positions=cache.position)), cache)
        return predict(self, x), cache


def _loss_and_metrics(model: Seq2Seq, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    targets_in = shifted(batch["targets"], batch.get("target_segments"), model.config.start)
    memory, told = _encode(model, batch, key_of(key, 0))
    x, more = _decode(model, batch, targets_in, memory, key_of(key, 1))
    told = {name: told[name] + more[name] for name in told}
    return scored(model, x, batch["targets"], batch.get("weights"), told)


def _logits(model: Seq2Seq, batch: dict[str, Tensor], targets_in: Tensor) -> Tensor:
    memory, _ = _encode(model, batch, None)
    x, _ = _decode(model, batch, targets_in, memory, None)
    return predict(model, x)


def _encode(model: Seq2Seq, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """What the decoder looks at: [batch memory_length d_model]."""
    inputs = batch["inputs"]
    segments, window = _segments(model.config, batch), model.config.window
    mask = nn.Mask.within(positions=batch.get("input_positions"), segments=segments, window=window)
    x, told = model.encoder(embed(model, inputs, mask, key), mask=mask, key=key_of(key, 1))
    return x.rename(stream=Dim("memory_length", inputs.size("length"))), told


def _decode(
    model: Seq2Seq, batch: dict[str, Tensor], targets_in: Tensor, memory: Tensor, key: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """What the logits are made of: [batch length d_model]."""
    segments, of_inputs = batch.get("target_segments"), _segments(model.config, batch)
    positions, window = batch.get("target_positions"), model.config.window
    mask = nn.Mask.within(causal=True, positions=positions, segments=segments, window=window)
    memory_mask = nn.Mask()
    if of_inputs is not None:
        here = wf.ones(targets_in.dims, like=targets_in, dtype="int32") if segments is None else segments
        memory_mask = nn.Mask(segments=here, memory_segments=of_inputs.rename(length="memory_length"))
    x = embed(model, targets_in, mask, key)
    x, told = model.decoder(x, mask=mask, memory=memory, memory_mask=memory_mask, key=key_of(key, 1))
    return x.rename(stream="length"), told


def _segments(config: Seq2SeqConfig, batch: Mapping[str, Tensor]) -> Tensor | None:
    """Segments of the inputs; words are one, and what is none another, where an id says which are none."""
    if "input_segments" in batch or config.padding is None:
        return batch.get("input_segments")
    return wf.cast(batch["inputs"] != config.padding, "int32")
