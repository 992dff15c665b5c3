"""The state of training: what is trained, and how Optax is given it.

Stands below the step. Every float among the parameters is trained, named or not, unless it is frozen.
"""

import html
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..cells import cell, fold, line, quiet, read_placement, table, typed_cell
from ..dims import Shape
from ..dtypes import has_values, short_dtype
from ..errors import RegionError, TensorError
from ..leaves import array_of, is_array, is_data, is_number, is_trained, named_leaves, unnamed_error
from ..lower.trees import map_tensors
from ..tensor import Tensor, is_donated, is_tensor, make, with_kind
from ..text import count_text, plural
from .bound import Input, path_words, says_enough


class TrainState(NamedTuple):
    """Parameters, the optimizer's state, and the number of steps taken."""

    params: Any
    optimizer: Any
    step: Any

    def _repr_html_(self) -> str:
        return state_cell(self)


def state_cell(state: TrainState) -> str:
    """A state as a notebook shows it: what is trained, and the optimizer's arrays."""
    tables = []
    for title, tree in (("parameters", state.params), ("optimizer", state.optimizer)):
        leaves = [(path, leaf) for path, leaf in named_leaves(tree) if is_data(leaf)]
        rows = [(html.escape(path), *_leaf_cells(leaf)) for path, leaf in leaves]
        count = sum(math.prod(array_of(leaf).shape) for _, leaf in leaves)
        name = f"{title}: {plural(len(rows), 'array')}, {count_text(count)} numbers"
        tables.append(fold(name, table(("name", "type", "shape", "kind"), rows), is_open=title == "parameters"))
    step = state.step if has_values(state.step) and not np.shape(state.step) else ""
    return cell(line("<b>TrainState</b>", quiet(f"after step {step}") if step != "" else ""), *tables)


def _leaf_cells(leaf: Any) -> tuple[str, str, str]:
    """The type of a leaf with its axes in colours, its shape, and what it is."""
    array = array_of(leaf)
    over, axes = read_placement(array, len(array.shape))
    dims = leaf.dims.names if is_tensor(leaf) else tuple(map(str, array.shape))
    kind = "" if not is_tensor(leaf) else "frozen" if leaf.kind.frozen else "trained" if is_trained(leaf) else "kept"
    return typed_cell(short_dtype(leaf.dtype), dims, over, list(axes)), " x ".join(map(str, array.shape)), kind


def as_parameters(params: Any) -> Any:
    """The tree with every float tensor a parameter; what is trained must have names."""
    for path, leaf in named_leaves(params):
        if is_number(leaf) and is_trained(leaf):
            raise TensorError(
                f"params{path} is the Python number {leaf!r}: nothing says whether it is trained",
                fix=f"to train it, make it a parameter: `wf.parameter({leaf!r}, [])`; "
                "to keep it, close over it or make it a static field",
            )
        if is_array(leaf) and leaf.shape:
            raise unnamed_error(leaf, f"params{path}", by="wf.parameter")

    def store(x: Tensor) -> Tensor:
        if not is_trained(x) or x.kind.store is not None:
            return x
        return with_kind(x, store="params")

    return map_tensors(store, params)


def trained_arrays(params: Any) -> Any:
    """The arrays of what is trained, as Optax is given them; None for the rest."""
    return map_trained(array_of, params)


def map_trained(fn: Callable[[Any], Any], params: Any) -> Any:
    """The tree with `fn` of what is trained, and None in place of the rest."""
    return jax.tree.map(lambda leaf: fn(leaf) if is_trained(leaf) else None, params, is_leaf=is_tensor)


def map_pairs(fn: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    """`fn` of two trees' leaves; the second may have None or an array for a tensor."""
    is_leaf = lambda node: node is None or is_tensor(node)  # noqa: E731
    leaves, structure = jax.tree.flatten(first, is_leaf=is_leaf)
    others = jax.tree.leaves(second, is_leaf=is_leaf)
    return jax.tree.unflatten(structure, [fn(a, b) for a, b in zip(leaves, others, strict=True)])


def refill(leaf: Any, array: Any) -> Any:
    """A leaf of the parameters with a new array in it; what is not trained as it is."""
    if not is_trained(leaf):
        return leaf
    return make(array, leaf.dims, None, leaf.kind) if is_tensor(leaf) else array


def check_not_given_up(state: TrainState) -> None:
    """Raises where an array of the state was overwritten before: XLA would crash."""
    path = next((path for path, leaf in named_leaves(state) if is_donated(array_of(leaf))), None)
    if path is None:
        return
    raise RegionError(
        f"state{path} was given up to an earlier step (`donate`)",
        fix="go on with the state that step returned: `state, metrics = step(state, batch, key)`, "
        "or make the step with `donate=False`",
    )


def unshare(state: TrainState) -> TrainState:
    """The state, arrays that stand in it twice copied: each is given up once."""
    seen: set[int] = set()

    def copy_again(array: Any) -> Any:
        is_new = id(array) not in seen
        seen.add(id(array))
        return array if is_new or not isinstance(array, jax.Array) else jnp.copy(array)

    return jax.tree.map(copy_again, state)


def step_inputs(state: TrainState, batch: Any, key: Any) -> list[Input]:
    """The arrays of a train step's call, with what is known of them."""
    inputs: list[Input] = []
    params: dict[tuple[str, ...], Shape] = {}
    for part, tree in (("params", state.params), ("optimizer", state.optimizer), ("step", state.step)):
        for words, name, leaf in _named_arrays(tree, part):
            if is_tensor(leaf):
                params |= {words: leaf.dims} if part == "params" else {}
                inputs.append(Input(name, leaf.dims, leaf.kind.store, True))
            else:
                inputs.append(Input(name, _dims_of_parameter(words, leaf, params), "optimizer", True))
    for part, tree in (("batch", batch), ("key", key)):
        for _, name, leaf in _named_arrays(tree, part):
            inputs.append(Input(name, leaf.dims if is_tensor(leaf) else None, None, False))
    return inputs


def _named_arrays(tree: Any, part: str) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """The data of a tree, each with its path's words and its name."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)[0]:
        if is_data(leaf):
            words, text = path_words(path)
            yield words, (text[1:] if part == "params" and says_enough(words) else part + text), leaf


def _dims_of_parameter(words: tuple[str, ...], array: Any, params: dict[tuple[str, ...], Shape]) -> Shape | None:
    """The dims of the parameter that optimizer state belongs to, if of its shape."""
    for of, dims in params.items():
        if says_enough(of) and words[-len(of) :] == of and tuple(array.shape) == dims.sizes:
            return dims
    return None
