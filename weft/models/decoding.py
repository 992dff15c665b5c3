"""What decoding makes of a model: a form for its loop over tokens, a step to read.

In the loop weights are in the dtype they are computed with, cast once before it, and every layer is by itself: no turn
reads a wider copy, and none slices a stack. Imports the models and the binding of programs.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from ..dims import dims
from ..errors import DimError, TensorError
from ..nn.arguments import check_count
from ..nn.weights import cast_weights
from ..spmd import spmd
from ..tensor import Tensor, tensor
from .cache import KVCache
from .seq2seq import Seq2SeqConfig
from .transformer import LMConfig


MOST_WRITTEN_OUT = 64
"""Deeper models stay a loop over layers in decoding too: compiling takes a second for every few layers."""


def prepare(model: Any, cache: KVCache) -> tuple[Any, KVCache]:
    """The model and its KV cache as a loop over tokens has them.

    Weights are cast, LoRA adapters added; layers are written out where there are at most `MOST_WRITTEN_OUT`, and no
    stages of a pipeline. Every number computed with them is the same.
    """
    config = model.config
    decoder = cast_weights(model.decoder, config.dtype)
    if config.stages == 1 and config.layers <= MOST_WRITTEN_OUT:
        decoder, cache = decoder.apart(), cache.apart()
    if model.softmax is not None:
        return eqx.tree_at(lambda m: (m.decoder, m.softmax), model, (decoder, cast_weights(model.softmax, config.dtype))), cache
    return eqx.tree_at(lambda m: (m.decoder, m.embedding), model, (decoder, cast_weights(model.embedding, config.dtype))), cache


def decode_token(model: Any, tokens: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
    """The logits of the token after `tokens` [batch], and the KV cache with those."""
    logits, cache = model.step(tokens, cache)
    return logits, cache


def with_shapes(model: Any, context: int, batch: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`decode_token` of a model of shapes, and its arguments."""
    config = model.config
    need_decoder(config, type(config).__name__)
    context, batch = check_count(context, "context"), check_count(batch, "batch")
    if config.positions == "learned" and context > config.max_positions:
        raise DimError(
            f"a context of {context} tokens needs as many positions, and the model has {config.max_positions}",
            fix=f"say at most {config.max_positions}, or make the model with a larger `max_length`",
        )
    prompt = {"inputs": _ids(batch=batch, length=config.length if isinstance(config, Seq2SeqConfig) else 1)}
    _, cache = jax.eval_shape(lambda model, prompt: model.prefill(prompt, context), model, prompt)
    return spmd(decode_token, mesh="x=1", layout="", donate="cache"), (model, _ids(batch=batch), cache)


def need_decoder(config: Any, name: str) -> None:
    """Raises where the model of a configuration, called `name`, does not decode."""
    if not isinstance(config, LMConfig | Seq2SeqConfig):
        raise TensorError(f"{name} does not decode", fix="give a language model or an encoder-decoder model")
    if config.experts and config.gating == "choice":
        raise TensorError(
            "experts that choose their tokens look at those to come, and cannot decode",
            fix="train with gating='switch', 'top2' or 'dropless'",
        )


def _ids(**sizes: int) -> Tensor:
    return tensor(jax.ShapeDtypeStruct(tuple(sizes.values()), "int32"), dims(**sizes))
