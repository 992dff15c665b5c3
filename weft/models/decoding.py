"""A step of decoding as a program to read: shapes in place of weights and cache.

Imports the models and the binding of programs; nothing here is run.
"""

from collections.abc import Callable
from typing import Any

import jax

from ..dims import dims
from ..errors import DimError, TensorError
from ..nn.arguments import check_count
from ..spmd import spmd
from ..tensor import Tensor, tensor
from .cache import KVCache
from .seq2seq import Seq2SeqConfig
from .transformer import LMConfig


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
