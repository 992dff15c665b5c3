"""Running a model's functions outside a region: under the mesh and layout it was made with; and its data, named.

Imports the language. Inside a region a model runs under that one's layout.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

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


@functools.cache  # one function for each mesh and layout, so that what it compiled is found again
def _outside(fn: Callable[..., Any], mesh: Mesh | None, layout: Layout | None) -> Callable[..., Any]:
    return jax.jit(fn) if mesh is None else spmd(fn, mesh=mesh, layout=layout)


def named_batch(batch: Any, kinds: Mapping[str, str], needed: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of a batch: those `needed`, and what there is of the others that `kinds` knows (`ids`, `numbers`)."""
    if not isinstance(batch, Mapping):
        raise TensorError(
            f"the batch is {type(batch).__name__}",
            fix=f"give a dict: `{{{', '.join(f'{name!r}: tokens' for name in needed)}}}`",
        )
    if unknown := [name for name in batch if name not in kinds]:
        raise TensorError(
            f"the batch has {unknown[0]!r}, which this model does not take", fix=closest(str(unknown[0]), kinds)
        )
    if missing := next((name for name in needed if name not in batch), None):
        shape = "[batch]" if kinds[missing] == "row" else "[batch, length]"
        raise TensorError(f"the batch has no `{missing}`", fix=f"add integers of shape {shape} as `{missing}`")
    return {name: named(name, value, kinds[name]) for name, value in batch.items() if value is not None}


def same_shape(*tensors: Tensor) -> None:
    """Raises where one name has two sizes."""
    union(*(x.dims for x in tensors))


def named(name: str, given: Any, kind: str = "ids") -> Tensor:
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
        given = tensor(array, dims)
    if set(given.dims.names) != set(dims.split()):
        raise DimError(
            f"`{name}` has dims [{given.dims}], and the model reads {' and '.join(f'`{dim}`' for dim in dims.split())}",
            fix=f"name them so: `wf.tensor({name}, '{dims}')`",
        )
    if kind != "numbers" and not jnp.issubdtype(given.dtype, jnp.integer):
        raise TensorError(f"`{name}` holds {given.dtype}, not token ids", fix=f"make them integers: `{as_integers}`")
    return given


def _array(name: str, given: Any) -> Any:
    try:
        return given if isinstance(given, jax.Array | jax.ShapeDtypeStruct) else jnp.asarray(given)
    except (TypeError, ValueError):
        raise TensorError(
            f"`{name}` is {type(given).__name__} {given!r:.60}, no array of token ids",
            fix="give an integer array of shape [batch, length], or a tensor",
        ) from None
