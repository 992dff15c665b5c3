"""Trees of tensors as flat lists of arrays, and back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from ..dims import Dim, Shape
from ..errors import TensorError
from ..layout import Region
from ..leaves import is_data
from ..tensor import PLAIN, Kind, Tensor, check_tensor, is_tensor, make, marks_of, with_marks


@dataclass(frozen=True)
class Slot:
    """What a leaf's array stands for: a tensor, or (dims None) a plain value."""

    dims: Shape | None = None
    region: Region | None = None
    kind: Kind = PLAIN
    marks: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What the record says of it; no part of what it is."""

    def fill(self, array: Any) -> Any:
        return array if self.dims is None else with_marks(make(array, self.dims, self.region, self.kind), self.marks)

    def inner(self, dim: Dim, region: Region | None) -> "Slot":
        """One slice along a dim, in a region."""
        return Slot(self.dims.without([dim]), region, self.kind, self.marks) if self.dims is not None else self


def take_apart(tree: Any) -> tuple[list[Any], list[Slot], Any]:
    """The arrays of a tree, what each of them stands for, and the tree's structure."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_tensor)
    arrays = [check_tensor(leaf).raw if is_tensor(leaf) else leaf for leaf in leaves]
    return arrays, [slot_of(leaf) for leaf in leaves], structure


def slot_of(leaf: Any) -> Slot:
    return Slot(leaf.dims, leaf.region, leaf.kind, marks_of(leaf)) if is_tensor(leaf) else Slot()


def put_together(arrays: Sequence[Any], slots: Sequence[Slot], structure: Any) -> Any:
    """The tree that `take_apart` took apart."""
    return jax.tree.unflatten(structure, [slot.fill(array) for slot, array in zip(slots, arrays, strict=True)])


def check_numbers(arrays: Sequence[Any], what: str) -> list[Any]:
    """The leaves as arrays; anything that is no array or number is an error."""
    found = []
    for leaf in arrays:
        if not is_data(leaf) and not isinstance(leaf, bool):
            raise TensorError(
                f"{what} holds {type(leaf).__name__} {leaf!r:.60}",
                fix="keep only tensors, numbers and keys in it; close over the rest",
            )
        found.append(leaf if hasattr(leaf, "aval") else jnp.asarray(leaf))
    return found


def map_tensors(fn: Callable[[Tensor], Any], tree: Any) -> Any:
    """The tree with `fn` of every tensor in it."""
    return jax.tree.map(lambda leaf: fn(leaf) if is_tensor(leaf) else leaf, tree, is_leaf=is_tensor)
