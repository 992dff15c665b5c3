"""Encoder-only Transformers in the way of BERT: words that were hidden are predicted, or whole sequences classified."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax

from .. import nn
from .. import ops as wf
from ..dims import Dim, Shape
from ..errors import TensorError, public
from ..fields import bounded
from ..layout import Layout
from ..mesh import Mesh
from ..nn.weights import key_of
from ..tensor import Tensor
from .config import SEARCHED, TransformerConfig, need_config
from .running import named, named_batch, run, same_shape
from .stack import Stack
from .words import checked_key, embed, predict, scored, tables

BATCH = {
    "tokens": "ids",
    "inputs": "ids",
    "targets": "ids",
    "labels": "row",
    "weights": "numbers",
    "segments": "places",
    "positions": "places",
}
_KEPT, _RANDOM = 0.1, 0.1  # of the words to be predicted: so many stay as they are, so many become any word


@public(form="models.EncoderConfig(name='mine', layers=2, d_model=64, heads=4, d_kv=16, d_ff=256, vocab=1000)")
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """An encoder-only Transformer."""

    classes: int = bounded(0, least=0)
    """Into how many classes sequences are told apart; 0 where only words are predicted."""
    hidden_id: int | None = bounded(least=0)
    """The id that stands for a hidden word, where `tokens` are to be hidden by the model itself."""
    hidden_share: float = bounded(0.15, below=1)
    """What share of the words is then to be predicted."""
    padding: int | None = bounded(least=0)
    """The id of what is no word and is seen by none, if there is one."""

    @property
    def dims(self) -> Shape:
        """Every dim of the weights and of what is computed with them."""
        return Shape([*super().dims, *([Dim("classes", self.classes)] if self.classes else [])])

    def blueprint(self, mesh: Mesh | None = None, layout: Layout | None = None) -> "Encoder":
        """The model without values."""
        return Encoder(self, mesh, layout)


class Encoder(eqx.Module):
    """An encoder, the tables of words, and what classifies by the first of the sequence."""

    searched_dims: ClassVar[Sequence[str]] = SEARCHED
    embedding: nn.Embedding
    positions: nn.Embedding | None
    encoder: Stack
    softmax: nn.Embedding | None
    classifier: nn.Linear | None
    config: EncoderConfig = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    layout: Layout | None = eqx.field(static=True)

    @public(form="models.init(config, key)")
    def __init__(self, config: EncoderConfig, mesh: Mesh | None = None, layout: Layout | None = None):
        need_config(config, EncoderConfig)
        self.config, self.mesh, self.layout = config, mesh, layout
        self.embedding, self.positions, self.softmax = tables(config)
        self.encoder = Stack(config, causal=False)
        self.classifier = nn.Linear(config.dim("d_model"), config.dim("classes"), bias=True) if config.classes else None

    @public
    def logits(self, tokens: Any) -> Tensor:
        """The logits of the word at each place: f32[batch length vocab]."""
        return run(_logits, self, {"inputs": named("tokens", tokens, "ids", self.config.vocab)})

    def classify(self, tokens: Any) -> Tensor:
        """The logits of the classes of each sequence: f32[batch classes]."""
        return run(_classify, self, {"inputs": named("tokens", tokens, "ids", self.config.vocab)}, None)

    @public
    def loss(self, batch: Mapping[str, Any], key: Any = None) -> Tensor:
        """The mean cross-entropy of `labels`, or of `targets` where `weights` count; dropout where a key is given.

        Of `tokens` some are hidden, as the key says, and predicted.
        """
        return self.loss_and_metrics(batch, key)[0]

    @public
    def loss_and_metrics(self, batch: Mapping[str, Any], key: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and what went into it."""
        key = checked_key(key)
        found = _given(batch, self.config, key)
        return run(_class_loss if "labels" in found else _loss_and_metrics, self, found, key)


def hide(tokens: Tensor, key: Any, config: EncoderConfig) -> dict[str, Tensor]:
    """A batch to predict some words of `tokens` from the others: most are hidden, some changed, some as they are."""
    keys = [jax.random.fold_in(key, i) for i in range(3)]
    is_chosen = wf.random.bernoulli(keys[0], tokens.dims, like=tokens, p=config.hidden_share)
    if config.padding is not None:
        is_chosen = is_chosen & (tokens != config.padding)
    draw = wf.random.uniform(keys[1], tokens.dims, like=tokens, dtype="float32")
    other = wf.random.randint(keys[2], tokens.dims, like=tokens, minval=0, maxval=config.vocab, dtype="int32")
    changed = wf.where(draw < _KEPT, tokens, wf.where(draw < _KEPT + _RANDOM, other, config.hidden_id))
    inputs = wf.where(is_chosen, changed, tokens)
    return {"inputs": inputs, "targets": tokens, "weights": wf.cast(is_chosen, "float32")}


def _given(batch: Any, config: EncoderConfig, key: Any) -> dict[str, Tensor]:
    has = batch if isinstance(batch, Mapping) else {}
    needed = ["tokens"] if "tokens" in has else ["inputs", "labels"] if "labels" in has else ["inputs", "targets"]
    found = named_batch(batch, BATCH, needed, config.vocab)
    if "labels" in found and not config.classes:
        raise TensorError("the batch has `labels`, and the model has no classes", fix="say `classes=2` in its config")
    if "tokens" in found:
        if config.hidden_id is None or key is None:
            missing = "key" if config.hidden_id is not None else "`hidden_id` in its config"
            raise TensorError(
                f"`tokens` are to be hidden, and there is no {missing}",
                fix="give it, or hide them yourself: `inputs`, `targets` and `weights`",
            )
        hidden = hide(found.pop("tokens"), jax.random.fold_in(key, 2), config)
        if "weights" in found:
            hidden["weights"] = hidden["weights"] * found["weights"]
        found |= hidden
    same_shape(*found.values())
    return found


def _loss_and_metrics(model: Encoder, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    x, told = _hidden(model, batch, key)
    return scored(model, x, batch["targets"], batch.get("weights"), told)


def _class_loss(model: Encoder, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    logits = _classify(model, batch, key)
    labels = batch["labels"]
    nll, losses = nn.cross_entropy(logits, labels, smoothing=model.config.smoothing, over="classes")
    hits = wf.cast(wf.argmax(logits, over="classes") == labels, "float32")
    mean = {name: wf.mean(x, over="batch") for name, x in (("nll", nll), ("accuracy", hits))}
    return wf.mean(losses, over="batch"), mean


def _logits(model: Encoder, batch: dict[str, Tensor]) -> Tensor:
    return predict(model, _hidden(model, batch, None)[0])


def _classify(model: Encoder, batch: dict[str, Tensor], key: Any) -> Tensor:
    if model.classifier is None:
        raise TensorError("the model has no classes", fix="say `classes=2` in its config")
    x, _ = _hidden(model, batch, key)
    return wf.cast(model.classifier(x["length", 0]), "float32")


def _hidden(model: Encoder, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """What words and classes are predicted from: [batch length d_model]."""
    inputs, segments = batch["inputs"], batch.get("segments")
    if segments is None and model.config.padding is not None:
        segments = wf.cast(inputs != model.config.padding, "int32")
    mask = nn.Mask.within(positions=batch.get("positions"), segments=segments, window=model.config.window)
    x, told = model.encoder(embed(model, inputs, mask, key), mask=mask, key=key_of(key, 1))
    return x.rename(stream="length"), told
