"""Encoder-only Transformers, BERT and ModernBERT: masked LMs and classifiers.

Words that were masked are predicted, or whole sequences, or each word of them, told apart by classes.
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
from ..fields import bounded, one_of
from ..nn.weights import fold_key, full
from ..tensor import Tensor
from .config import TransformerConfig, need_config
from .heads import TRANSFORMS, Transform, class_logits, class_loss, make_classifier, make_transform, pool
from .inputs import check_dropout_key, check_sizes, name_batch
from .parts import make_norm
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
    "types": "places",
}
_KEPT, _RANDOM = 0.1, 0.1  # of the words to be predicted: so many stay as they are, so many become any word


@public(form="models.EncoderConfig(name='mine', layers=2, d_model=64, heads=4, d_kv=16, d_ff=256, vocab=1000)")
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """An encoder-only Transformer."""

    head: str = one_of("words", "classes", "token_classes", "none")
    """What the logits are of: words; classes of sequences, or of each word; or `none`, for an encoder alone."""
    classes: int = bounded(0, least=0)
    """Into how many classes sequences, or words, are told apart; 0 where only words are predicted."""
    token_types: int = bounded(0, least=0)
    """How many types a word may have, each with a vector that is added to it (BERT: which of two sentences)."""
    embedding_norm: bool = False
    """Whether there is a norm behind the embeddings."""
    transform: str = one_of("none", *TRANSFORMS)
    """The activation of a dense layer and norm before the logits of words."""
    logits_bias: bool = False
    """Whether the logits of words have a bias."""
    pooling: str = one_of("first", "mean")
    """Which places a sequence is told by: the first alone, or the mean of all."""
    pooler: str = one_of("none", *TRANSFORMS)
    """The activation of a dense layer before the logits of classes (BERT's is `tanh`)."""
    pooler_norm: bool = False
    """Whether the pooler ends with a norm (ModernBERT)."""
    head_bias: bool = True
    """Whether the dense layers of `transform` and `pooler` have a bias."""
    classifier_dropout: float | None = bounded(least=0, below=1)
    """Of what classes are told from; none if not said."""
    hidden_id: int | None = bounded(least=0)
    """The id that stands for a hidden word, where `tokens` are to be hidden by the model itself."""
    hidden_share: float = bounded(0.15, below=1)
    """What share of the words is then to be predicted."""
    padding: int | None = bounded(least=0)
    """The id of what is no word and is seen by none, if there is one."""

    def _check_together(self) -> None:
        super()._check_together()
        if self.head in ("classes", "token_classes") and not self.classes:
            raise TensorError(f"`head` is {self.head!r}, and there are no classes", fix="say `classes=2`, or how many")
        if self.head == "none" and self.classes:
            raise TensorError(f"`head` is 'none', and `classes` is {self.classes}", fix="say head='classes'")

    @property
    def classifier_drop(self) -> float:
        """The rate of dropout of what classes are told from."""
        return 0.0 if self.classifier_dropout is None else self.classifier_dropout

    @property
    def dims(self) -> Shape:
        """Every dim of the weights and of what is computed with them."""
        more = {"classes": self.classes, "types": self.token_types}
        return Shape([*super().dims, *(Dim(name, size) for name, size in more.items() if size)])

    def blueprint(self) -> "Encoder":
        """The model without values."""
        return Encoder(self)


class Encoder(Runnable):
    """An encoder, its embeddings, and what its logits are made by: words, classes."""

    embedding: nn.Embedding
    positions: nn.Embedding | None
    types: nn.Embedding | None
    """Of the types of words (segment embeddings)."""
    embedding_norm: nn.RMSNorm | nn.LayerNorm | None
    encoder: Stack
    transform: Transform | None
    softmax: nn.Embedding | None
    """The table that logits are made by (LM head), where it is not the embedding."""
    logits_bias: Tensor | None
    pooler: Transform | None
    classifier: nn.Linear | None
    config: EncoderConfig = eqx.field(static=True)

    @public(form="models.init(config, key)")
    def __init__(self, config: EncoderConfig):
        need_config(config, EncoderConfig)
        super().__init__()
        self.config = config
        self.embedding, self.positions, softmax = make_embeddings(config)
        self.types = _make_types(config)
        self.embedding_norm = make_norm(config) if config.embedding_norm else None
        self.encoder = make_stack(config, causal=False)
        has_words = config.head == "words"
        self.transform = make_transform(config, config.transform, has_norm=True) if has_words else None
        self.softmax = softmax if has_words else None
        self.logits_bias = full([config.vocab_dim], 0.0) if has_words and config.logits_bias else None
        self.pooler = make_transform(config, config.pooler, has_norm=config.pooler_norm)
        self.classifier = make_classifier(config)

    @public
    def logits(self, tokens: Any, *, types: Any = None, segments: Any = None, positions: Any = None) -> Tensor:
        """The logits of the word at each place: f32[batch length vocab].

        Of a model whose `head` tells classes, those: f32[batch classes], or f32[batch length classes] of each word.
        """
        head = self.config.head
        if head == "none":
            raise TensorError("the model is an encoder alone, without logits", fix="take `model.hidden(tokens)`")
        batch = self._name(tokens, types, segments, positions)
        return self.run(_logits, batch) if head == "words" else self.run(_classify, batch, None)

    def classify(self, tokens: Any, *, types: Any = None, segments: Any = None, positions: Any = None) -> Tensor:
        """The logits of the classes of each sequence: f32[batch classes]."""
        return self.run(_classify, self._name(tokens, types, segments, positions), None)

    @public
    def hidden(self, tokens: Any, *, types: Any = None, segments: Any = None, positions: Any = None) -> Tensor:
        """What the encoder makes of each place: [batch length d_model]."""
        return self.run(_encode, self._name(tokens, types, segments, positions))

    def _name(self, tokens: Any, types: Any, segments: Any, positions: Any) -> dict[str, Tensor]:
        batch = {"tokens": tokens, "types": types, "segments": segments, "positions": positions}
        batch = name_batch(batch, BATCH, ["tokens"], self.config.vocab)
        batch["inputs"] = batch.pop("tokens")
        check_sizes(*batch.values())
        _check_types(batch, self.config)
        return batch

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
    assert config.hidden_id is not None  # who calls this has asked
    keys = [jax.random.fold_in(key, i) for i in range(3)]
    is_chosen = wf.random.bernoulli(keys[0], tokens.dims, like=tokens, p=config.hidden_share)
    if config.padding is not None:
        is_chosen = is_chosen & (tokens != config.padding)
    draw = wf.random.uniform(keys[1], tokens.dims, like=tokens, dtype="float32")
    other = wf.random.randint(keys[2], tokens.dims, like=tokens, minval=0, maxval=config.vocab, dtype="int32")
    changed = wf.where(draw < _KEPT, tokens, wf.where(draw < _KEPT + _RANDOM, other, config.hidden_id))
    inputs = wf.where(is_chosen, changed, tokens)
    return {"inputs": inputs, "targets": tokens, "weights": wf.cast(is_chosen, "float32")}


def _check_types(batch: Mapping[str, Any], config: EncoderConfig) -> None:
    """Raises where words have types that the model does not tell apart."""
    if "types" in batch and not config.token_types:
        raise TensorError("words have `types`, and the model has none", fix="say `token_types=2` in its config")


def _kinds(config: EncoderConfig) -> dict[str, str]:
    """What a batch may hold; there is a label of each sequence, or of each word."""
    return BATCH | {"labels": "places"} if config.head == "token_classes" else BATCH


def _make_types(config: EncoderConfig) -> nn.Embedding | None:
    if not config.token_types:
        return None
    return nn.Embedding(config.dim("types"), config.dim("d_model"), stddev=0.02)


def _inputs_and_targets(batch: Any, config: EncoderConfig, key: Any) -> dict[str, Tensor]:
    """The batch with names; of `tokens`, some are masked by the key."""
    names = batch if isinstance(batch, Mapping) else {}
    wanted = "labels" if "labels" in names or config.head != "words" else "targets"
    needed = ["tokens"] if "tokens" in names and config.head == "words" else ["inputs", wanted]
    batch = name_batch(batch, _kinds(config), needed, config.vocab)
    _check_types(batch, config)
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
    return token_loss(model, _before_words(model, x), batch["targets"], batch.get("weights"), report)


def _class_loss(model: Encoder, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    return class_loss(_classify(model, batch, key), batch["labels"], model.config.smoothing)


def _logits(model: Encoder, batch: dict[str, Tensor]) -> Tensor:
    return predict(model, _before_words(model, _encode(model, batch)))


def _before_words(model: Encoder, x: Tensor) -> Tensor:
    """What the logits of words are made of."""
    return x if model.transform is None else model.transform(x)


def _classify(model: Encoder, batch: dict[str, Tensor], key: Any) -> Tensor:
    config = model.config
    batch = deal_out(batch, config)
    x, _ = _hidden(model, batch, key)
    if config.head != "token_classes":
        x = pool(x, config.pooling, _is_word(config, batch))
    return class_logits(model, put_together(x), fold_key(key, 3))


def _encode(model: Encoder, batch: dict[str, Tensor]) -> Tensor:
    return put_together(_hidden(model, deal_out(batch, model.config), None)[0])


def _hidden(model: Encoder, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """What words and classes are predicted from: [batch length d_model]."""
    inputs, segments = batch["inputs"], batch.get("segments")
    if segments is None and model.config.padding is not None:
        segments = wf.cast(inputs != model.config.padding, "int32")
    mask = nn.Mask.within(positions=batch.get("positions"), segments=segments)
    types = batch.get("types")
    if model.types is not None and types is None:
        types = wf.zeros(inputs.dims, like=inputs, dtype="int32")
    x, report = model.encoder(embed(model, inputs, mask, key, types), mask=mask, key=fold_key(key, 1))
    return x.rename(stream="length"), report


def _is_word(config: EncoderConfig, batch: Mapping[str, Tensor]) -> Tensor | None:
    """Which inputs are words, where some are not."""
    return None if config.padding is None else batch["inputs"] != config.padding
