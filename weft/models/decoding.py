"""A step of decoding as a program to read: shapes in place of weights and cache.

Imports the models and the binding of programs; nothing here is run.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from .. import ops as wf
from ..dims import Dim, dims
from ..errors import DimError, LayoutError, TensorError
from ..layout import Layout
from ..nn.arguments import check_count
from ..spmd import spmd
from ..tensor import Tensor, tensor
from .cache import KeysValues, KVCache
from .seq2seq import Seq2SeqConfig
from .transformer import LMConfig
from .unrolled import prepare

_QUERIES = "queries"  # what heads are called while attending, where a rule names it
TOKENS = 16
"""How many `decode_tokens` writes: each takes as long as the others."""


def decode_token(model: Any, tokens: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
    """The logits of the token after `tokens` [batch], and the KV cache with those."""
    _need_name_of_heads(model, cache)
    logits, cache = model.step(tokens, cache)
    return logits, cache


def decode_tokens(model: Any, tokens: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
    """The last of `TOKENS` tokens, the likeliest after `tokens`; and the KV cache.

    One loop over the prepared model writes them, as that of `decode.generate` does.
    """
    _need_name_of_heads(model, cache)
    model, cache = prepare(model, cache)

    def turn(_: Any, carry: tuple[Tensor, KVCache]) -> tuple[Tensor, KVCache]:
        logits, cache = model.step(*carry)
        return wf.argmax(logits, over="vocab"), cache

    return wf.fori_loop(0, TOKENS, turn, (tokens, cache))


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


def adapt_args(args: tuple[Any, ...], layout: Layout) -> tuple[Any, ...]:
    """Arguments of a step, heads of a KV cache called as under a layout."""
    if _QUERIES not in layout.rules:
        return args

    def as_queries(held: Any) -> Any:
        if held is None:
            return None
        queries = Dim(_QUERIES, (heads := held.keys.dims[-2]).size, heads.name, heads.valid)
        return KeysValues(*(x.rename(**{heads.name: queries}) for x in held)) if heads.name != _QUERIES else held

    return tuple(
        replace(arg, past=as_queries(arg.past), memory=as_queries(arg.memory)) if isinstance(arg, KVCache) else arg
        for arg in args
    )


def _need_name_of_heads(model: Any, cache: KVCache) -> None:
    """Raises where a rule says that attention calls heads otherwise than the cache."""
    if model.decoder.layers.attention.queries(cache.keys) and not cache.keys.dims.has(_QUERIES):
        raise LayoutError(
            f"`{_QUERIES}` has a rule, and the KV cache [{cache.keys.dims}] was made for heads called so",
            fix="say the layout where it is made: `models.decode_step(config, context, layout=layout)`",
        )


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
