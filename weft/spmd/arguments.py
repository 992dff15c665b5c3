"""Arguments of a region taken apart: which leaves are tensors, which numbers, which part of the program itself."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from ..checks import is_whole
from ..errors import RegionError, TensorError
from ..layout import Region, spec
from ..leaves import is_array, is_data, is_number, unnamed
from ..record import Argument
from ..tensor import Kind, check_not_given_up, is_tensor, make, marked, need_room


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    """A value that is part of the program, not of its data."""

    value: Any

    def __post_init__(self) -> None:
        try:
            hash(self.value)
        except TypeError:
            raise TensorError(
                f"a static argument is {type(self.value).__name__}, which could change after it was compiled in",
                fix="give something hashable, e.g. a tuple instead of a list",
            ) from None


@dataclass(frozen=True)
class TensorSlot:
    """A tensor among the arguments; one whose array does not fit its dims goes whole to every processor."""

    dims: Any
    kind: Kind
    fits: bool

    def local(self, array: Any, region: Region) -> Any:
        x = make(array, self.dims, region if self.fits else None, self.kind)
        return marked(x, {"has_gradient": False})  # until it is differentiated by


@dataclass(frozen=True)
class ValueSlot:
    """A key or a number among the arguments, the same on all processors."""

    def local(self, array: Any, region: Region) -> Any:
        return array


@dataclass(frozen=True)
class Call:
    """What one way of calling compiles for: the tree of arguments, and what each leaf of it stands for."""

    structure: Any
    slots: tuple[Any, ...]
    donated: tuple[bool, ...]

    def specs(self, region: Region) -> list[PartitionSpec]:
        """How each array among the arguments is split."""
        found = []
        for slot in self.slots:
            if isinstance(slot, TensorSlot) and slot.fits:
                found.append(spec(region.placement(slot.dims, slot.kind.store)))
            elif not isinstance(slot, Static):
                found.append(PartitionSpec())
        return found

    def local(self, arrays: Sequence[Any], region: Region) -> Any:
        """The tree of arguments inside the region."""
        found = iter(arrays)
        leaves = [slot.value if isinstance(slot, Static) else slot.local(next(found), region) for slot in self.slots]
        return without_statics(jax.tree.unflatten(self.structure, leaves))

    def names(self, fn: Callable[..., Any]) -> list[Argument]:
        """What the arrays among the arguments of `fn` are called."""
        numbered = jax.tree.unflatten(self.structure, range(len(self.slots)))
        leaves = jax.tree_util.tree_flatten_with_path(numbered)[0]
        taken = _parameters(fn)
        return [_leaf_name(path, taken) for path, i in leaves if not isinstance(self.slots[i], Static)]

    def parted(self, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The arrays that are donated and those that are kept."""
        pairs = list(zip(arrays, self.donated, strict=True))
        return [a for a, gone in pairs if gone], [a for a, gone in pairs if not gone]

    def joined(self, gone: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
        """All arrays in order again."""
        gone_left, kept_left = iter(gone), iter(kept)
        return [next(gone_left if is_gone else kept_left) for is_gone in self.donated]


def read(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    static: Sequence[int],
    donate: Sequence[int],
    state: str,
) -> tuple[Call, list[Any]]:
    """What a call compiles for, and its arrays; `state` is what an error says of the region."""
    args, kwargs = _marked(fn, args, kwargs, static)
    leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=is_tensor)
    owners = [i for i, arg in enumerate(args) for _ in jax.tree.leaves(arg, is_leaf=is_tensor)] if donate else []
    slots, arrays, donated = [], [], []
    for i, leaf in enumerate(leaves):
        slot, array = _read_leaf(leaf)
        if slot is None:
            raise _unnamed(args, kwargs, i, state)
        slots.append(slot)
        if array is not None:
            arrays.append(array)
            donated.append(i < len(owners) and owners[i] in donate)
    _check_usable(arrays, donated)
    return Call(structure, tuple(slots), tuple(donated)), arrays


def _marked(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], static: Sequence[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not static:
        return tuple(args), kwargs
    names = list(inspect.signature(fn).parameters)
    args = tuple(Static(arg) if i in static else arg for i, arg in enumerate(args))
    named = {names[i] for i in static if i < len(names)}
    return args, {name: Static(value) if name in named else value for name, value in kwargs.items()}


def positions(fn: Callable[..., Any], given: Any, what: str) -> tuple[int, ...]:
    """The positions of the arguments named; each must be there."""
    several = (given,) if isinstance(given, int | str) or not isinstance(given, Sequence) else tuple(given)
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
            raise TensorError(f"`{what}` names argument {item!r}, which is not there", fix=f"use one of: {known}")
        found.append(position % len(names) if names and not is_open else position)
    return tuple(found)


def _read_leaf(leaf: Any) -> tuple[Any, Any]:
    """What a leaf of the arguments stands for, and its array if it has one; (None, None) if it cannot go in."""
    if is_tensor(leaf):
        if not is_data(leaf):
            return Static(leaf), None
        kind = replace(leaf.kind, equal=frozenset()) if leaf.kind.equal else leaf.kind
        # An optimizer's state may hold an array of another shape in a tensor's place.
        return TensorSlot(leaf.dims, kind, tuple(leaf.raw.shape) == leaf.dims.sizes), leaf.raw
    if is_number(leaf):
        need_room(leaf)
        return ValueSlot(), leaf
    if is_array(leaf):
        holds_numbers = not isinstance(leaf, np.ndarray | np.generic) or leaf.dtype.kind in "biufcV"
        need_room(leaf)
        return (ValueSlot(), leaf) if leaf.shape == () and holds_numbers else (None, None)
    try:
        hash(leaf)
    except TypeError:
        return None, None
    return Static(leaf), None


def _parameters(fn: Callable[..., Any]) -> list[str]:
    try:
        found = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _leaf_name(path: Sequence[Any], parameters: Sequence[str]) -> Argument:
    """`layers.q` for `params["layers"]["q"]`, `params.q` for `params["q"]`, `params[0]`, `x` for what is no tree."""
    (kind, first, *rest) = path
    if kind.idx == 1:
        argument = first.key
    else:
        argument = parameters[first.idx] if first.idx < len(parameters) else f"argument {first.idx}"
    words = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", "")))) for key in rest]
    text = "".join(f"[{word}]" if word.isdigit() else f".{word}" for word in words)
    if len(words) > 1 and not words[0].isdigit():
        return Argument(text[1:], is_leaf=True)
    return Argument(argument + text, is_leaf=not all(word.isdigit() for word in words))


def _unnamed(args: Any, kwargs: Any, i: int, state: str) -> TensorError:
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
    return unnamed(
        leaf, where, more="; if it is a random key, make it by `jax.random.key(seed)`" * is_raw_key, state=state
    )


def _check_usable(arrays: Sequence[Any], donated: Sequence[bool]) -> None:
    gone = [id(array) for array, is_gone in zip(arrays, donated, strict=True) if is_gone]
    if len(set(gone)) < len(gone):
        raise RegionError("one array is donated twice", fix="donate each array once, or copy one: `jnp.copy(array)`")
    for array in arrays:
        check_not_given_up(array)


def with_statics(tree: Any) -> Any:
    """The tree with every leaf that is no tensor, array or number wrapped as static."""

    def wrap(leaf: Any) -> Any:
        return leaf if is_data(leaf) or is_tensor(leaf) else Static(leaf)

    return jax.tree.map(wrap, tree, is_leaf=is_tensor)


def without_statics(tree: Any) -> Any:
    """The tree with the values that were wrapped as static."""
    is_leaf = lambda node: isinstance(node, Static) or is_tensor(node)  # noqa: E731
    return jax.tree.map(lambda node: node.value if isinstance(node, Static) else node, tree, is_leaf=is_leaf)
