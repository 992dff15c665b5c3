"""Decoder-only Transformers: the paper's language model, GPT-2, Llama, prefix language models, with or without experts.

Nothing here says anything about processors: the same lines run on one and under every layout.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx

from .. import nn
from .. import ops as wf
from ..errors import TensorError, public
from ..layout import Layout
from ..mesh import Mesh
from ..nn.weights import key_of
from ..tensor import Tensor
from .cache import Cache
from .config import SEARCHED, TransformerConfig, need_config
from .running import named_batch, run, same_shape, shifted
from .stack import Stack
from .words import checked_key, embed, predict, scored, tables

BATCH = {
    "tokens": "ids",
    "inputs": "ids",
    "targets": "ids",
    "weights": "numbers",
    "segments": "places",
    "positions": "places",
    "prefix": "row",
}


@public(form="models.LMConfig(name='mine', layers=2, d_model=64, heads=4, d_kv=16, d_ff=256, vocab=1000)")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LMConfig(TransformerConfig):
    """A decoder-only Transformer language model.

    >>> preset("lm-0.14b").param_count
    142619648
    """

    prefix: bool = False
    """Whether each sequence has a prefix whose positions all see each other (`prefix` in the batch: its length)."""

    def blueprint(self, mesh: Mesh | None = None, layout: Layout | None = None) -> "TransformerLM":
        """The model without values."""
        return TransformerLM(self, mesh, layout)


class TransformerLM(eqx.Module):
    """A language model: its weights, its configuration, and where it was made if that was on a mesh."""

    searched_dims: ClassVar[Sequence[str]] = SEARCHED
    embedding: nn.Embedding
    positions: nn.Embedding | None
    decoder: Stack
    softmax: nn.Embedding | None
    config: LMConfig = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    layout: Layout | None = eqx.field(static=True)

    @public(form="models.init(config, key)")
    def __init__(self, config: LMConfig, mesh: Mesh | None = None, layout: Layout | None = None):
        need_config(config, LMConfig)
        self.config, self.mesh, self.layout = config, mesh, layout
        self.embedding, self.positions, self.softmax = tables(config)
        self.decoder = Stack(config, causal=True)

    @public
    def logits(self, tokens: Any, *, prefix: Any = None, segments: Any = None, positions: Any = None) -> Tensor:
        """The logits of the token that follows each of `tokens`: f32[batch length vocab]."""
        batch = {"tokens": tokens, "prefix": prefix, "segments": segments, "positions": positions}
        found = named_batch(batch, BATCH, _needed(batch, self.config), self.config.vocab)
        return run(_logits, self, found | {"inputs": found.pop("tokens")})

    @public
    def loss(self, batch: Mapping[str, Any], key: Any = None) -> Tensor:
        """The mean cross-entropy in nats a token, and what the experts add; a scalar. Dropout where a key is given.

        `tokens` are predicted each from those before it; or `targets` from `inputs`. With `weights` tokens count so
        much; `segments` of a packed batch do not see each other. A `prefix` sees all of itself, and what it tells of
        its own tokens does not count.
        """
        return self.loss_and_metrics(batch, key)[0]

    @public
    def loss_and_metrics(self, batch: Mapping[str, Any], key: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and what went into it: `nll`, `accuracy`, `tokens`, and what the experts report."""
        return run(_loss_and_metrics, self, _given(batch, self.config), checked_key(key))

    def prefill(self, prompt: Mapping[str, Tensor], room: int) -> tuple[Tensor, Cache]:
        """The logits of the token after the prompt, f32[batch vocab], and a cache with room for so many tokens.

        `inputs` of the prompt all end at the same place; `first` is where each begins, if not at 0.
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
        cache = Cache(past.padded(room), wf.full([], last, dtype="int32"), first)
        return predict(self, x["stream", last - 1]), cache

    def step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """The logits of the token after `tokens` [batch], which follow those of the cache; and the cache with them."""
        x, cache = self.decoder.step(embed(self, tokens, nn.Mask(positions=cache.position)), cache)
        return predict(self, x), cache


def _given(batch: Any, config: LMConfig) -> dict[str, Tensor]:
    found = named_batch(batch, BATCH, _needed(batch, config), config.vocab)
    if "tokens" in found:
        tokens = found.pop("tokens")
        found = {"inputs": shifted(tokens, found.get("segments")), "targets": tokens, **found}
    same_shape(*found.values())
    return found


def _needed(batch: Any, config: LMConfig) -> list[str]:
    has = batch if isinstance(batch, Mapping) else {}
    if has.get("prefix") is not None and not config.prefix:
        raise TensorError("the batch has `prefix`, and the model has none", fix="say `prefix=True` in its config")
    needed = ["inputs", "targets"] if "inputs" in has or "targets" in has else ["tokens"]
    return [*needed, "prefix"] if config.prefix else needed


# The model. Each line is a line of the printed program, under the name it gives its result.


def _loss_and_metrics(model: TransformerLM, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    x, told = _hidden(model, batch, key)
    targets, weights = batch["targets"], batch.get("weights")
    if "prefix" in batch:  # what a place of the prefix sees tells its target, but for the last one's
        here = wf.arange(targets.dim("length"), like=targets) if "positions" not in batch else batch["positions"]
        is_unseen = wf.cast(here >= batch["prefix"] - 1, "float32")
        weights = is_unseen if weights is None else weights * is_unseen
    return scored(model, x, targets, weights, told)


def _logits(model: TransformerLM, batch: dict[str, Tensor]) -> Tensor:
    x, _ = _hidden(model, batch, None)
    return predict(model, x)


def _hidden(model: TransformerLM, batch: dict[str, Tensor], key: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """What the logits are made of: [batch length d_model]."""
    mask = _mask(model.config, batch)
    x = embed(model, batch["inputs"], mask, key)
    x, told = model.decoder(x, mask=mask, key=key_of(key, 1))
    return x.rename(stream="length"), told


def _mask(config: LMConfig, batch: Mapping[str, Tensor]) -> nn.Mask:
    return nn.Mask.within(
        causal=True,
        window=config.window,
        prefix=batch.get("prefix") if config.prefix else None,
        positions=batch.get("positions"),
        segments=batch.get("segments"),
    )
