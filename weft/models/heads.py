"""Heads of encoders: what words and classes are told from, and losses of classes.

Imports the layers and `parts`. BERT, ModernBERT and ViT have these; which a model has, its configuration says.
"""

from typing import Any

import equinox as eqx

from .. import nn
from .. import ops as wf
from ..dims import Dim
from ..errors import TensorError
from ..nn.feed_forward import ACTIVATIONS
from ..nn.weights import apply_dropout
from ..tensor import Tensor
from .parts import make_norm

TRANSFORMS: dict[str, Any] = {"tanh": wf.tanh, **ACTIVATIONS}
IGNORED = -100
"""A label that does not count, as in PyTorch."""


class Transform(eqx.Module):
    """A dense layer of `d_model`, an activation, and a norm or none."""

    dense: nn.Linear
    norm: nn.RMSNorm | nn.LayerNorm | None
    activation: str = eqx.field(static=True)

    def __init__(self, config: Any, activation: str, *, has_norm: bool, bias: bool):
        d_model = config.dim("d_model")
        self.dense = nn.Linear(d_model, d_model, bias=bias)
        self.norm = make_norm(config) if has_norm else None
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        x = TRANSFORMS[self.activation](self.dense(x))
        return x if self.norm is None else self.norm(x)


def make_transform(config: Any, activation: str, *, has_norm: bool) -> Transform | None:
    """The transform of that activation, or none where it is `none`."""
    return None if activation == "none" else Transform(config, activation, has_norm=has_norm, bias=config.head_bias)


def make_classifier(config: Any) -> nn.Linear | None:
    """The map to the logits of classes, where there are any."""
    if not config.classes:
        return None
    return nn.Linear(config.dim("d_model"), Dim("classes", config.classes), bias=True)


def class_logits(model: Any, x: Tensor, key: Any = None) -> Tensor:
    """The logits of classes of sequences, or of words: f32[.. classes]."""
    if model.classifier is None:
        raise TensorError("the model has no classes", fix="say `classes=2` in its config")
    x = x if model.pooler is None else model.pooler(x)
    return wf.cast(model.classifier(apply_dropout(x, model.config.classifier_drop, key)), "float32")


def class_loss(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean cross-entropy of the labels that count, and its metrics."""
    how: dict[str, Any] = {"over": "classes", "ignore_index": IGNORED}
    nll, losses = nn.cross_entropy(logits, labels, smoothing=smoothing, **how)
    counts = wf.cast(labels != IGNORED, "float32")
    hits = counts * wf.cast(wf.argmax(logits, over="classes") == labels, "float32")
    count = wf.sum(counts, over=counts.dims)
    count = wf.where(count > 0, count, 1.0)
    mean = {name: wf.sum(x, over=x.dims) / count for name, x in (("nll", nll), ("accuracy", hits))}
    return wf.sum(losses, over=losses.dims) / count, mean


def pool(x: Tensor, how: str, counts: Tensor | None) -> Tensor:
    """What a sequence is told by: its `first` place, or the `mean` of what counts."""
    if how == "first":
        return x["length", 0]
    if counts is None:
        return wf.mean(x, over="length")
    share = wf.cast(counts, "float32")
    total = wf.sum(wf.multiply(wf.cast(x, "float32"), share, names="subset"), over="length")
    return wf.cast(wf.divide(total, wf.maximum(wf.sum(share, over="length"), 1.0), names="subset"), x.dtype)
