"""Encoder-only Transformers like BERT: masked language models and classifiers.

Words that were masked are predicted, or whole sequences classified.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax

from .. import nn
from .. import ops as wf
from ..dims import Dim, Shape
from ..errors import TensorError, public
from ..fields import bounded
from ..nn.weights import fold_key
from ..tensor import Tensor
from .config import TransformerConfig, need_config
from .inputs import check_dropout_key, check_sizes, name_batch, name_tensor
from .running import Runnable
from .stack import Stack, deal_out, put_together
from .transformer import embed, make_embeddings, make_stack, predict, token_loss

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

    def blueprint(self) -> "Encoder":
        """The model without values."""
        return Encoder(self)


class Encoder(Runnable):
    """An encoder, its embeddings, and a classifier that reads the first position."""

    embedding: nn.Embedding
    positions: nn.Embedding | None
    encoder: Stack
    softmax: nn.Embedding | None
    """The table that logits are made by (LM head), where it is not the embedding."""
    classifier: nn.Linear | None
    config: EncoderConfig = eqx.field(static=True)

    @public(form="models.init(config, key)")
    def __init__(self, config: EncoderConfig):
        need_config(config, EncoderConfig)
        super().__init__()
        self.config = config
        self.embedding, self.positions, self.softmax = make_embeddings(config)
        self.encoder = make_stack(config, causal=False)
        self.classifier = nn.Linear(config.dim("d_model"), config.dim("classes"), bias=True) if config.classes else None

    @public
    def logits(self, tokens: Any) -> Tensor:
        """The logits of the word at each place: f32[batch length vocab]."""
        return self.run(_logits, {"inputs": name_tensor("tokens", tokens, "ids", self.config.vocab)})

    def classify(self, tokens: Any) -> Tensor:
        """The logits of the classes of each sequence: f32[batch classes]."""
        return self.run(_classify, {"inputs": name_tensor("tokens", tokens, "ids", self.config.vocab)}, None)

    @public
    def loss(self, batch: Mapping[str, Any], key: Any = None) -> Tensor:
        """The mean cross-entropy of `labels`, or of `targets` where `weights` count.

        Of `tokens` some are masked, as the key says, and predicted. There is dropout where a key is given.
        """
        return self.loss_and_metrics(batch, key)[0]

    @public
    def loss_and_metrics(self, batch: Mapping[str, Any], key: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss; and its metrics: `nll`, `accuracy`, `tokens`, the experts' report."""
        key = check_dropout_key(key)
        batch = _inputs_and_targets(batch, self.config, key)
        return self.run(_class_loss if "labels" in batch else _loss_and_metrics, batch, key)


def mask_tokens(tokens: Tensor, key: Any, config: EncoderConfig) -> dict[str, Tensor]:
    """A batch of masked language modelling, made of `tokens`.

    Some are to be predicted from the others. Of those most are hidden, some become any word, and some stay as they are.
    """
    keys = [jax.random.fold_in(key, i) for i in range(3)]
    is_chosen = wf.random.bernoulli(keys[0], tokens.dims, like=tokens, p=config.hidden_share)
    if config.padding is not None:
        is_chosen = is_chosen & (tokens != config.padding)
    draw = wf.random.uniform(keys[1], tokens.dims, like=tokens, dtype="float32")
    other = wf.random.randint(keys[2], tokens.dims, like=tokens, minval=0, maxval=config.vocab, dtype="int32")
    changed = wf.where(draw < _KEPT, tokens, wf.where(draw < _KEPT + _RANDOM, other, config.hidden_id))
    inputs = wf.where(is_chosen, changed, tokens)
    return {"inputs": inputs, "targets": tokens, "weights": wf.cast(is_chosen, "float32")}


def _inputs_and_targets(batch: Any, config: EncoderConfig, key: Any) -> dict[str, Tensor]:
    """The batch with names; of `tokens`, some are masked by the key."""
    names = batch if isinstance(batch, Mapping) else {}
    needed = ["tokens"] if "tokens" in names else ["inputs", "labels"] if "labels" in names else ["inputs", "targets"]
    batch = name_batch(batch, BATCH, needed, config.vocab)
    if "labels" in batch and not config.classes:
        raise TensorError("the batch has `labels`, and the model has no classes", fix="say `classes=2` in its config")
    if "tokens" in batch:
        if config.hidden_id is None or key is None:
            missing = "key" if config.hidden_id is not None else "`hidden_id` in its config"
            raise TensorError(
                f"`tokens` are to be hidden, and there is no {missing}",
                fix="give it, or hide them yourself: `inputs`, `targets` and `weights`",
            )
        hidden = mask_tokens(batch.pop("tokens"), jax.random.fold_in(key, 2), config)
        if "weights" in batch:
            hidden["weights"] = hidden["weights"] * batch["weights"]
        batch |= hidden
    check_sizes(*batch.values())
    return batch


def _loss_and_metrics(model: Encoder, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    batch = deal_out(batch, model.config)
    x, report = _hidden(model, batch, key)
    return token_loss(model, x, batch["targets"], batch.get("weights"), report)


def _class_loss(model: Encoder, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    logits = _classify(model, batch, key)
    labels = batch["labels"]
    nll, losses = nn.cross_entropy(logits, labels, smoothing=model.config.smoothing, over="classes")
    hits = wf.cast(wf.argmax(logits, over="classes") == labels, "float32")
    mean = {name: wf.mean(x, over="batch") for name, x in (("nll", nll), ("accuracy", hits))}
    return wf.mean(losses, over="batch"), mean


def _logits(model: Encoder, batch: dict[str, Tensor]) -> Tensor:
    return predict(model, put_together(_hidden(model, deal_out(batch, model.config), None)[0]))


def _classify(model: Encoder, batch: dict[str, Tensor], key: Any) -> Tensor:
    if model.classifier is None:
        raise TensorError("the model has no classes", fix="say `classes=2` in its config")
    x, _ = _hidden(model, deal_out(batch, model.config), key)
    return wf.cast(model.classifier(put_together(x["length", 0])), "float32")


def _hidden(model: Encoder, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """What words and classes are predicted from: [batch length d_model]."""
    inputs, segments = batch["inputs"], batch.get("segments")
    if segments is None and model.config.padding is not None:
        segments = wf.cast(inputs != model.config.padding, "int32")
    mask = nn.Mask.within(positions=batch.get("positions"), segments=segments)
    x, report = model.encoder(embed(model, inputs, mask, key), mask=mask, key=fold_key(key, 1))
    return x.rename(stream="length"), report
