"""From ids to vectors and back: what the models have in common around their stacks of layers.

Imports the layers. A model here has `embedding`, `positions` and `softmax` (each but the first may be None).
"""

from typing import Any

from .. import nn
from .. import ops as wf
from ..errors import DimError
from ..nn.given import whole_number
from ..nn.weights import checked_key as _checked
from ..nn.weights import dropped, key_of
from ..tensor import Tensor
from .config import TransformerConfig, stream


def tables(config: TransformerConfig) -> tuple[nn.Embedding, nn.Embedding | None, nn.Embedding | None]:
    """The vectors of words, of positions where they are learned, and those the logits are made with where not tied."""
    d_model, vocab = config.dim("d_model"), config.vocab_dim
    positions = nn.Embedding(config.dim("positions"), d_model, stddev=0.02) if config.positions == "learned" else None
    softmax = None if config.tied else nn.Embedding(vocab, d_model, stddev=d_model.size**-0.5)
    return nn.Embedding(vocab, d_model, stddev=config.embedding_stddev), positions, softmax


def embed(model: Any, tokens: Tensor, mask: nn.Mask, key: Any = None) -> Tensor:
    """Words and, where they are added, their positions: [batch stream d_model], or without `stream` for one token."""
    config = model.config
    x = model.embedding(tokens, config.dtype)
    if model.positions is not None and tokens.dims.has("length") and tokens.size("length") > config.max_positions:
        most = config.max_positions
        raise DimError(
            f"a sequence has {tokens.size('length')} tokens, and the model has learned {most} positions",
            fix=f"give at most {most} tokens, or make the model with a larger `length`",
        )
    if model.positions is not None:
        x = wf.add(x, model.positions(mask.here(x), config.dtype), names="subset")
    if config.positions == "sinusoid":
        x = wf.cast(wf.add(x, nn.sinusoids(mask.here(x), x.dim("d_model"), x), names="subset"), config.dtype)
    x = dropped(x, config.dropout, key_of(key, 0))
    return x.rename(length=stream(tokens.size("length"))) if tokens.dims.has("length") else x


def predict(model: Any, x: Tensor) -> Tensor:
    """The logits: f32[.. vocab]."""
    if model.softmax is not None:
        return model.softmax.logits(x)
    if model.config.tied_scale:
        x = x * model.config.d_model**-0.5
    return model.embedding.logits(x)


def scored(
    model: Any, x: Tensor, targets: Tensor, weights: Tensor | None, told: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of `x` [batch length d_model], with what the experts add; and what went into it."""
    config = model.config
    whole_number(config.loss_chunks, "loss_chunks", divides=x.size("length"), of="length")
    sums = nn.summed_cross_entropy(
        lambda x: predict(model, x),
        x,
        targets,
        weights,
        chunks=config.loss_chunks,
        smoothing=config.smoothing,
        z_loss=config.z_loss,
    )
    total = sums["weight"] if weights is None else wf.where(sums["weight"] > 0, sums["weight"], 1.0)  # none count: 0
    loss = sums["loss"] / total
    metrics = {"nll": sums["nll"] / total, "accuracy": sums["hits"] / total, "tokens": sums["weight"]}
    if told:
        loss = loss + config.balance_loss * told["balance_loss"] + config.router_z_loss * told["router_z_loss"]
    return loss, metrics | told


def checked_key(key: Any) -> Any:
    """The key, if it is one, or none."""
    return None if key is None else _checked(key)
