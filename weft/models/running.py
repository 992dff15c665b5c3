"""Running a model's functions outside a region: under the mesh and layout it was made with; and its data, named.

Imports the language. Inside a region a model runs under that one's layout.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import ops as wf
from ..dims import union
from ..errors import DimError, TensorError, closest
from ..layout import Layout, open_region
from ..mesh import Mesh
from ..spmd import spmd
from ..spmd.place import check_values
from ..tensor import Tensor, is_tensor, tensor


def run(fn: Callable[..., Any], model: Any, *args: Any) -> Any:
    """`fn(model, *args)`: inside a region as it is, outside compiled under the model's own mesh and layout."""
    if open_region() is not None:
        return fn(model, *args)
    check_values(jax.tree.leaves((model, args)))
    return _outside(fn, model.mesh, model.layout)(model, *args)


def without_rules(layout: Layout, *dims: str) -> Layout:
    """The layout without the rules of dims that there are not in a program."""
    return layout.drop(*(dim for dim in dims if dim in layout.rules))


@functools.cache  # one function for each mesh and layout, so that what it compiled is found again
def _outside(fn: Callable[..., Any], mesh: Mesh | None, layout: Layout | None) -> Callable[..., Any]:
    if mesh is None or layout is None:
        return jax.jit(fn)
    return spmd(fn, mesh=mesh, layout=without_rules(layout, "beam", "samples"))


def named_batch(batch: Any, kinds: Mapping[str, str], needed: Sequence[str], vocab: int) -> dict[str, Tensor]:
    """The tensors of a batch: those `needed`, and what there is of the others that `kinds` knows.

    `ids` and `places` are whole numbers, `numbers` any, each [batch length]; of a `row` there is one a sequence.
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
    found = {name: value for name, value in batch.items() if value is not None}
    return {name: named(name, value, kinds[name], vocab) for name, value in found.items()}


def same_shape(*tensors: Tensor) -> None:
    """Raises where one name has two sizes."""
    union(*(x.dims for x in tensors))


def shifted(tokens: Tensor, segments: Tensor | None, start: int = 0) -> Tensor:
    """What is before each token: `start` before the first of a sequence, and of each segment of a packed one."""
    before = wf.shift(tokens, over="length", by=1, fill=start)
    if segments is None:
        return before
    return wf.where(wf.shift(segments, over="length", by=1, fill=-1) == segments, before, start)


def named(name: str, given: Any, kind: str = "ids", vocab: int | None = None) -> Tensor:
    """Tokens, or what goes with each of them, as a tensor [batch length]; `row` is one for each of the batch."""
    dims = "batch" if kind == "row" else "batch length"
    as_integers = f"wf.cast({name}, 'int32')" if is_tensor(given) else f"{name}.astype('int32')"
    if not is_tensor(given):
        array = _array(name, given)
        if len(array.shape) != len(dims.split()):
            raise DimError(
                f"`{name}` has shape {tuple(array.shape)}",
                fix=f"give an array of shape [{', '.join(dims.split())}], or a tensor",
            )
        if kind == "ids" and vocab is not None and isinstance(given, np.ndarray | list | tuple):
            check_ids(f"`{name}`", np.asarray(given), vocab)
        given = tensor(array, dims)
    if set(given.dims.names) != set(dims.split()):
        raise DimError(
            f"`{name}` has dims [{given.dims}], and the model reads {' and '.join(f'`{dim}`' for dim in dims.split())}",
            fix=f"name them so: `wf.tensor({name}, '{dims}')`",
        )
    if kind != "numbers" and not jnp.issubdtype(given.dtype, jnp.integer):
        what = "token ids" if kind == "ids" else "whole numbers"
        raise TensorError(f"`{name}` holds {given.dtype}, not {what}", fix=f"make them integers: `{as_integers}`")
    return given


def check_ids(what: str, ids: np.ndarray, vocab: int) -> None:
    """Raises where an id lies outside the vocab; only what lies on the host is looked at."""
    if ids.size and (ids.min() < 0 or ids.max() >= vocab):
        wrong = ids[(ids < 0) | (ids >= vocab)].flat[0]
        ignored = " (give what is not to count the weight 0, in `weights`)" if what == "`targets`" else ""
        raise TensorError(f"{what} has the id {wrong}, and the vocab has {vocab}", fix=f"check the tokenizer{ignored}")


def _array(name: str, given: Any) -> Any:
    try:
        return given if isinstance(given, jax.Array | jax.ShapeDtypeStruct) else jnp.asarray(given)
    except (TypeError, ValueError):
        raise TensorError(
            f"`{name}` is {type(given).__name__} {given!r:.60}, no array of token ids",
            fix="give an integer array of shape [batch, length], or a tensor",
        ) from None
