"""What goes into a region: arguments taken apart into arrays.

Imports what stands below the ops. Each array has a slot that says what it stands for.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..checks import is_whole
from ..dims import Shape
from ..dtypes import need_room
from ..errors import RegionError, TensorError
from ..layout import Region, spec
from ..leaves import is_array, is_data, is_number, unnamed_error
from ..record import ArgumentName
from ..tensor import Kind, check_not_donated, is_tensor, make, with_marks
from .bound import Input, path_words, says_enough
from .partition import need_hash
from .place import sharding_of


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    """A value that is part of the program, not of its data."""

    value: Any

    def __post_init__(self) -> None:
        need_hash(self.value)


@dataclass(frozen=True)
class TensorSlot:
    """A tensor among the arguments; one that does not fit its dims goes whole to all."""

    dims: Shape
    kind: Kind
    fits: bool

    def local(self, array: Any, region: Region) -> Any:
        x = make(array, self.dims, region if self.fits else None, self.kind)
        return with_marks(x, {"has_gradient": False})  # until it is differentiated by


@dataclass(frozen=True)
class ValueSlot:
    """A key or a number among the arguments, the same on all processors."""

    def local(self, array: Any, region: Region) -> Any:
        return array


@dataclass(frozen=True)
class Call:
    """One way of calling: the tree of arguments, and what each leaf stands for."""

    structure: Any
    slots: tuple[Any, ...]
    donated: tuple[bool, ...]

    @property
    def array_slots(self) -> list[TensorSlot | ValueSlot]:
        """What each array among the arguments stands for."""
        return [slot for slot in self.slots if not isinstance(slot, Static)]

    @functools.cached_property
    def values(self) -> list[int]:
        """Which of the arrays are plain values."""
        return [i for i, slot in enumerate(self.array_slots) if isinstance(slot, ValueSlot)]

    def specs(self, region: Region) -> list[PartitionSpec]:
        """How each array among the arguments is split."""
        return [
            spec(region.placement(slot.dims, slot.kind.store))
            if isinstance(slot, TensorSlot) and slot.fits
            else PartitionSpec()
            for slot in self.array_slots
        ]

    def shardings(self, region: Region, mesh: Any) -> list[NamedSharding]:
        """The sharding of each array among the arguments, on any mesh."""
        return [
            sharding_of(slot.dims, slot.kind.store, region, mesh)
            if isinstance(slot, TensorSlot) and slot.fits
            else NamedSharding(mesh, PartitionSpec())
            for slot in self.array_slots
        ]

    def local(self, arrays: Sequence[Any], region: Region) -> tuple[list[Any], dict[str, Any]]:
        """The arguments inside the region."""
        left = iter(arrays)
        leaves = [slot.value if isinstance(slot, Static) else slot.local(next(left), region) for slot in self.slots]
        args, kwargs = jax.tree.unflatten(self.structure, leaves)
        return [_unwrap(arg) for arg in args], {name: _unwrap(arg) for name, arg in kwargs.items()}

    def names(self, fn: Callable[..., Any]) -> list[ArgumentName]:
        """What the arrays among the arguments of `fn` are called."""
        numbered = jax.tree.unflatten(self.structure, range(len(self.slots)))
        paths = jax.tree_util.tree_flatten_with_path(numbered)[0]
        parameters = _parameter_names(fn)
        return [_argument_name(path, parameters) for path, i in paths if not isinstance(self.slots[i], Static)]

    def inputs(self, fn: Callable[..., Any]) -> list[Input]:
        """What is known of the arrays of a call of `fn`, donated ones first."""
        inputs = []
        for argument, slot, is_donated in zip(self.names(fn), self.array_slots, self.donated, strict=True):
            if isinstance(slot, TensorSlot) and slot.fits:
                inputs.append(Input(argument.name, slot.dims, slot.kind.store, is_donated))
            else:
                inputs.append(Input(argument.name, None, None, is_donated))
        return sorted(inputs, key=lambda x: not x.is_donated)

    def part(self, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The arrays that are donated, and those that are kept."""
        pairs = list(zip(arrays, self.donated, strict=True))
        return [a for a, is_donated in pairs if is_donated], [a for a, is_donated in pairs if not is_donated]

    def join(self, donated: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
        """All arrays in the order of the arguments again."""
        donated_left, kept_left = iter(donated), iter(kept)
        return [next(donated_left if is_donated else kept_left) for is_donated in self.donated]


def read_call(args: Sequence[Any], kwargs: dict[str, Any], donate: Sequence[int], state: str) -> tuple[Call, list[Any]]:
    """A call taken apart, and its arrays; errors say `state` of the region."""
    leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=is_tensor)
    owners = [i for i, arg in enumerate(args) for _ in jax.tree.leaves(arg, is_leaf=is_tensor)] if donate else []
    slots, arrays, donated = [], [], []
    for i, leaf in enumerate(leaves):
        slot, array = _read_leaf(leaf)
        if slot is None:
            raise _cannot_enter(args, kwargs, i, state)
        slots.append(slot)
        if array is not None:
            arrays.append(array)
            donated.append(i < len(owners) and owners[i] in donate)
    return Call(structure, tuple(slots), tuple(donated)), arrays


def wrap_statics(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], static: Sequence[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, static ones wrapped so that JAX sees no data in them."""
    if not static:
        return tuple(args), kwargs
    names = list(inspect.signature(fn).parameters)
    args = tuple(Static(arg) if i in static else arg for i, arg in enumerate(args))
    wrapped = {names[i] for i in static if i < len(names)}
    return args, {name: Static(value) if name in wrapped else value for name, value in kwargs.items()}


def _unwrap(arg: Any) -> Any:
    return arg.value if isinstance(arg, Static) else arg


def positions(fn: Callable[..., Any], wanted: Any, option: str) -> tuple[int, ...]:
    """The positions of the arguments that an option names; each must be there."""
    several = (wanted,) if isinstance(wanted, int | str) or not isinstance(wanted, Sequence) else tuple(wanted)
    try:
        parameters = list(inspect.signature(fn).parameters.values()) if several else []
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    is_open = not parameters or len(names) < len(parameters)
    found = []
    for item in several:
        position = names.index(item) if item in names else item
        if not is_whole(position) or not (is_open or -len(names) <= position < len(names)):
            known = ", ".join(f"{i} `{name}`" for i, name in enumerate(names))
            raise TensorError(f"`{option}` names argument {item!r}, which is not there", fix=f"use one of: {known}")
        found.append(position % len(names) if names and not is_open else position)
    return tuple(found)


def _read_leaf(leaf: Any) -> tuple[Any, Any]:
    """A leaf's slot, and its array if it has one; (None, None) if it cannot go in."""
    if is_tensor(leaf):
        if not is_data(leaf):
            return Static(leaf), None
        kind = replace(leaf.kind, equal=frozenset()) if leaf.kind.equal else leaf.kind
        # An optimizer's state may hold an array of another shape in a tensor's place.
        return TensorSlot(leaf.dims, kind, tuple(leaf.raw.shape) == leaf.dims.sizes), leaf.raw
    if is_number(leaf) or is_array(leaf):
        return (ValueSlot(), leaf) if is_plain_value(leaf) else (None, None)
    try:
        hash(leaf)
    except TypeError:
        return None, None
    return Static(leaf), None


def is_plain_value(leaf: Any) -> bool:
    """Whether an array or a number goes in unnamed; raises where it is too large."""
    need_room(leaf)
    if is_number(leaf):
        return True
    return leaf.shape == () and (not isinstance(leaf, np.ndarray | np.generic) or leaf.dtype.kind in "biufcV")


def _parameter_names(fn: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _argument_name(path: Sequence[Any], parameters: Sequence[str]) -> ArgumentName:
    """What an array is called: `layers.q`, `params.q`, `params[0]`, `x`."""
    (kind, first, *rest) = path
    if kind.idx == 1:
        argument = first.key
    else:
        argument = parameters[first.idx] if first.idx < len(parameters) else f"argument {first.idx}"
    words, text = path_words(rest)
    if says_enough(words):
        return ArgumentName(text[1:], is_leaf=True)
    return ArgumentName(argument + text, is_leaf=not all(word.isdigit() for word in words))


def _cannot_enter(args: Any, kwargs: Any, i: int, state: str) -> TensorError:
    """The error of leaf number `i`, which is neither data nor can be compiled in."""
    path, leaf = jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=is_tensor)[0][i]
    keyword = path[0].idx == 1
    where = f"argument {'' if keyword else path[1].idx}{jax.tree_util.keystr(path[1 if keyword else 2 :])}"
    if not getattr(leaf, "shape", ()):
        return TensorError(
            f"{where} is {type(leaf).__name__}, which cannot be compiled in",
            state=state,
            fix="make it hashable, or close over it",
        )
    is_raw_key = leaf.shape == (2,) and leaf.dtype == np.uint32
    return unnamed_error(
        leaf, where, more="; if it is a random key, make it by `jax.random.key(seed)`" * is_raw_key, state=state
    )


def check_usable(arrays: Sequence[Any], donated: Sequence[bool]) -> None:
    """Raises where an array is given up twice, or was given up to an earlier call."""
    gone = [id(array) for array, is_donated in zip(arrays, donated, strict=True) if is_donated]
    if len(set(gone)) < len(gone):
        raise RegionError("one array is donated twice", fix="donate each array once, or copy one: `jnp.copy(array)`")
    for array in arrays:
        check_not_donated(array)
