"""Trees split once into arrays and the rest: `partition` and `combine`.

Arrays are traced, the rest is compiled in: a jit that is given partitions sees arrays alone, and compiles anew where
the rest is another. Imports what stands below the ops.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import TensorError
from ..leaves import is_data

_NUMBERS: set[type] = {int, float, complex, np.ndarray}
_DEVICE_ARRAYS: set[type] = set()
"""The classes JAX's arrays have had so far; asking for one by its class is ten times as fast as `isinstance`."""


class Skeleton(NamedTuple):
    """A tree without its arrays: its structure and its static leaves."""

    structure: Any
    statics: tuple[tuple[int, Any], ...]
    """The leaves that are no arrays, each with its number."""


@jax.tree_util.register_pytree_node_class
class Partition(NamedTuple):
    """A tree split into its arrays, data to JAX, and its skeleton, which is static."""

    arrays: Sequence[Any]
    skeleton: Skeleton

    def combine(self) -> Any:
        """The tree."""
        leaves = self.arrays
        if self.skeleton.statics:
            leaves = list(leaves)
            for i, leaf in self.skeleton.statics:  # in rising order, so that each lands on its number
                leaves.insert(i, leaf)
        return jax.tree.unflatten(self.skeleton.structure, leaves)

    def tree_flatten(self) -> tuple[Any, Skeleton]:
        return (self.arrays,), self.skeleton

    @classmethod
    def tree_unflatten(cls, skeleton: Skeleton, children: Any) -> "Partition":
        return cls(children[0], skeleton)


def partition(tree: Any) -> Partition:
    """The tree split into its arrays and the rest."""
    leaves, structure = jax.tree.flatten(tree)
    if _DEVICE_ARRAYS.issuperset(map(type, leaves)):
        return Partition(leaves, Skeleton(structure, ()))
    statics = tuple((i, leaf) for i, leaf in enumerate(leaves) if type(leaf) not in _DEVICE_ARRAYS and _is_static(leaf))
    if not statics:
        return Partition(leaves, Skeleton(structure, ()))
    numbers = {i for i, _ in statics}
    return Partition([leaf for i, leaf in enumerate(leaves) if i not in numbers], Skeleton(structure, statics))


def hashable_partition(tree: Any) -> Partition:
    """As `partition`; raises where the rest could change after it was compiled in."""
    parts = partition(tree)
    for _, leaf in parts.skeleton.statics:
        need_hash(leaf)
    return parts


def _is_static(leaf: Any) -> bool:
    if type(leaf) in _NUMBERS:
        return False
    if isinstance(leaf, jax.Array):
        if not isinstance(leaf, jax.core.Tracer):
            _DEVICE_ARRAYS.add(type(leaf))
        return False
    return not is_data(leaf)


def need_hash(value: Any) -> None:
    """Raises where a value cannot be compiled in: it could change afterwards."""
    try:
        hash(value)
    except TypeError:
        raise TensorError(
            f"a static argument is {type(value).__name__}, which could change after it was compiled in",
            fix="give something hashable, e.g. a tuple instead of a list",
        ) from None


def has_tracers(arrays: Sequence[Any]) -> bool:
    """Whether any of the arrays is being traced."""
    return not _DEVICE_ARRAYS.issuperset(map(type, arrays)) and any(isinstance(a, jax.core.Tracer) for a in arrays)


def has_given_up(arrays: Sequence[Any]) -> bool:
    """Whether any of the arrays was overwritten by a call that it was donated to."""
    if _DEVICE_ARRAYS.issuperset(map(type, arrays)):
        return any(map(_is_deleted, arrays))
    return any(type(a) in _DEVICE_ARRAYS and a.is_deleted() for a in arrays)


_is_deleted = operator.methodcaller("is_deleted")
