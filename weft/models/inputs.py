"""Inputs of models: batches of token ids as named tensors, and keys.

They are checked before anything runs. Imports the language and the layers' checks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import ops as wf
from ..dims import union
from ..errors import DimError, TensorError, closest
from ..nn.weights import check_key
from ..tensor import Tensor, is_tensor, tensor


def name_batch(batch: Any, kinds: Mapping[str, str], needed: Sequence[str], vocab: int) -> dict[str, Tensor]:
    """The tensors of a batch: those `needed`, and what others of `kinds` there are.

    `ids` and `places` are whole numbers, `numbers` any, each [batch length]; of a `row` there is one a sequence;
    `vectors` are [batch memory_length d_model].
    """
    if not isinstance(batch, Mapping):
        raise TensorError(
            f"the batch is {type(batch).__name__}",
            fix=f"give a dict: `{{{', '.join(f'{name!r}: tokens' for name in needed)}}}`",
        )
    if unknown := [name for name in batch if name not in kinds]:
        raise TensorError(
            f"the batch has {unknown[0]!r}, which this model does not take", fix=closest(str(unknown[0]), kinds)
        )
    for clash in ("inputs", "targets"):
        if batch.get("tokens") is not None and batch.get(clash) is not None:
            raise TensorError(f"the batch has `tokens` and `{clash}`", fix="give `tokens`, or `inputs` and `targets`")
    if missing := next((name for name in needed if batch.get(name) is None), None):
        shape = "[batch]" if kinds[missing] == "row" else "[batch, length]"
        raise TensorError(f"the batch has no `{missing}`", fix=f"add integers of shape {shape} as `{missing}`")
    values = {name: value for name, value in batch.items() if value is not None}
    return {name: name_tensor(name, value, kinds[name], vocab) for name, value in values.items()}


def name_tensor(name: str, value: Any, kind: str = "ids", vocab: int | None = None) -> Tensor:
    """Tokens, or what goes with each, as a tensor [batch length]; a `row` is [batch]."""
    dims = {"row": "batch", "vectors": "batch memory_length d_model"}.get(kind, "batch length")
    as_integers = f"wf.cast({name}, 'int32')" if is_tensor(value) else f"{name}.astype('int32')"
    if not is_tensor(value):
        array = _as_array(name, value)
        if len(array.shape) != len(dims.split()):
            raise DimError(
                f"`{name}` has shape {tuple(array.shape)}",
                fix=f"give an array of shape [{', '.join(dims.split())}], or a tensor",
            )
        if kind == "ids" and vocab is not None and isinstance(value, np.ndarray | list | tuple):
            check_ids(f"`{name}`", np.asarray(value), vocab)
        value = tensor(array, dims)
    if set(value.dims.names) != set(dims.split()):
        raise DimError(
            f"`{name}` has dims [{value.dims}], and the model reads {' and '.join(f'`{dim}`' for dim in dims.split())}",
            fix=f"name them so: `wf.tensor({name}, '{dims}')`",
        )
    if kind not in ("numbers", "vectors") and not jnp.issubdtype(value.dtype, jnp.integer):
        what = "token ids" if kind == "ids" else "whole numbers"
        raise TensorError(f"`{name}` holds {value.dtype}, not {what}", fix=f"make them integers: `{as_integers}`")
    return value


def _as_array(name: str, value: Any) -> Any:
    try:
        return value if isinstance(value, jax.Array | jax.ShapeDtypeStruct) else jnp.asarray(value)
    except (TypeError, ValueError):
        raise TensorError(
            f"`{name}` is {type(value).__name__} {value!r:.60}, no array of token ids",
            fix="give an integer array of shape [batch, length], or a tensor",
        ) from None


def check_ids(what: str, ids: np.ndarray, vocab: int) -> None:
    """Raises where an id is outside the vocab; only what is on the host is looked at."""
    if ids.size and (ids.min() < 0 or ids.max() >= vocab):
        wrong = ids[(ids < 0) | (ids >= vocab)].flat[0]
        ignored = " (give what is not to count the weight 0, in `weights`)" if what == "`targets`" else ""
        raise TensorError(f"{what} has the id {wrong}, and the vocab has {vocab}", fix=f"check the tokenizer{ignored}")


def check_sizes(*tensors: Tensor) -> None:
    """Raises where one name has two sizes."""
    union(*(x.dims for x in tensors))


def check_length(tokens: Tensor, most: int) -> None:
    """Raises where a sequence is longer than there are learned positions."""
    if tokens.dims.has("length") and tokens.size("length") > most:
        raise DimError(
            f"a sequence has {tokens.size('length')} tokens, and the model has learned {most} positions",
            fix=f"give at most {most} tokens, or make the model with a larger `length`",
        )


def check_dropout_key(key: Any) -> Any:
    """The key of dropout, if it is one, or None."""
    return None if key is None else check_key(key)


def shift_right(tokens: Tensor, segments: Tensor | None, start: int = 0) -> Tensor:
    """The token before each; `start` before the first of a sequence or segment."""
    before = wf.shift(tokens, over="length", by=1, fill=start)
    if segments is None:
        return before
    return wf.where(wf.shift(segments, over="length", by=1, fill=-1) == segments, before, start)
