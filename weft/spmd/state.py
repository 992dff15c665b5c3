"""The state of training: what of it is trained, how it is taken apart for Optax, and that each array is there once.

Stands left of the step. Every float among the parameters is trained, named or not, unless it is frozen.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import RegionError, TensorError
from ..leaves import array_of, is_array, is_number, is_trained, named_leaves, unnamed
from ..lower.trees import map_tensors
from ..tensor import Tensor, is_given_up, is_tensor, make, with_kind


class TrainState(NamedTuple):
    """Parameters, the optimizer's state, and the number of steps taken."""

    params: Any
    optimizer: Any
    step: Any


def as_parameters(params: Any) -> Any:
    """The tree with every float tensor a parameter, stored as the layout says; what is trained must have a name."""
    for path, leaf in named_leaves(params):
        if is_number(leaf) and is_trained(leaf):
            raise TensorError(
                f"params{path} is the Python number {leaf!r}: nothing says whether it is trained",
                fix=f"to train it, make it a parameter: `wf.parameter({leaf!r}, [])`; "
                "to keep it, close over it or make it a static field",
            )
        if is_array(leaf) and leaf.shape:
            raise unnamed(leaf, f"params{path}", by="wf.parameter")

    def store(x: Tensor) -> Tensor:
        if not is_trained(x) or x.kind.store is not None:
            return x
        return with_kind(x, store="params")

    return map_tensors(store, params)


def trained_arrays(params: Any) -> Any:
    """The plain arrays of what is trained, which is what Optax is given; None in place of the rest."""
    return map_trained(array_of, params)


def map_trained(fn: Callable[[Any], Any], params: Any) -> Any:
    """The tree with `fn` of what is trained, and None in place of the rest."""
    return jax.tree.map(lambda leaf: fn(leaf) if is_trained(leaf) else None, params, is_leaf=is_tensor)


def map_pairs(fn: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    """`fn` of the leaves of two trees that correspond; the second may have None or an array where a tensor stands."""
    is_leaf = lambda node: node is None or is_tensor(node)  # noqa: E731
    leaves, structure = jax.tree.flatten(first, is_leaf=is_leaf)
    others = jax.tree.leaves(second, is_leaf=is_leaf)
    return jax.tree.unflatten(structure, [fn(a, b) for a, b in zip(leaves, others, strict=True)])


def refilled(leaf: Any, array: Any) -> Any:
    if not is_trained(leaf):
        return leaf
    return make(array, leaf.dims, None, leaf.kind) if is_tensor(leaf) else array


def check_not_given_up(state: TrainState) -> None:
    """Raises where an array of the state was overwritten by an earlier step; XLA would crash on several processors."""
    if not any(map(is_given_up, jax.tree.leaves(state))):
        return
    path = next(path for path, leaf in named_leaves(state) if is_given_up(array_of(leaf)))
    raise RegionError(
        f"state{path} was given up to an earlier step (`donate`)",
        fix="go on with the state that step returned: `state, metrics = step(state, batch, key)`, "
        "or make the step with `donate=False`",
    )


def unshared(state: TrainState) -> TrainState:
    """The state with a copy of every array that stands in it twice: each is given up once."""
    seen: set[int] = set()

    def once(array: Any) -> Any:
        is_new = id(array) not in seen
        seen.add(id(array))
        return array if is_new or not isinstance(array, jax.Array) else jnp.copy(array)

    return jax.tree.map(once, state)
