"""The choices of a search: sets of rules for one mesh axis, shapes of meshes.

A layout is one set of rules for each axis (`batch` and `d_ff` over x, `heads` over y, ...). Which sets are legal
follows from the tensors of one traced program: no tensor may have two of its dims on one axis. So sets are found once,
and a layout is any choice of one set an axis whose dims divide. Of dims that an op brings together piece by piece
(`RINGS`) one axis may split both: no tensor then has both, and a trace says whether the program has such an op.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ..dims import Dim
from ..errors import LayoutError, closest
from ..hints import what_makes
from ..layout import Layout, Region
from ..leaves import is_stored
from ..mesh import Mesh
from ..program import Program
from ..tensor import is_tensor

MOST_RULES = 12
"""Where no dims are named, and there are no more than this with `params.` rules, these are searched too."""
MOST_SETS = 4000
AXES = ("x", "y", "z", "u", "v", "w")
RINGS = (("length", "memory_length"),)
"""Queries and keys of attention: split over the same axes, keys and values go round (ring attention)."""
BESIDE = (("memory_length", "length"), ("queries", "stream"))
"""Where no dims are named, the first is split beside the second alone: ring attention, Ulysses."""
STORES = ("params", "optimizer")

RuleSet = tuple[str, ...]
MeshShape = tuple[int, ...]


@dataclass(frozen=True)
class TensorDims:
    """A tensor's dims, and whether it is a parameter, which rules of storage split."""

    dims: tuple[Dim, ...]
    is_parameter: bool


class Choices:
    """The sets of rules one axis can hold, for one program."""

    def __init__(self, program: Program, args: Any, rules: Sequence[str] | None, also: Sequence[str] = ()):
        """Without `rules` every dim, or what a model says and `also` names."""
        self.tensors = tensors_of(program, args)
        self.rules = self._default_rules(args, also) if rules is None else self._check_rules(rules)
        self._is_default = rules is None
        self._stores = STORES if any(rule.startswith("optimizer.") for rule in self.rules) else STORES[:1]
        self._divisors = {rule: self._divisor(rule) for rule in self.rules}
        self._follows = {dim.name: dim.follows for tensor in self.tensors for dim in tensor.dims if dim.follows}
        self.sets = self._legal_sets()

    def _default_rules(self, args: Any, also: Sequence[str]) -> RuleSet:
        """What is searched where no dims are named: what a model says, else every dim."""
        names = self._names(self.tensors)
        stored = [f"params.{name}" for name in self._names([tensor for tensor in self.tensors if tensor.is_parameter])]
        rules = [rule for rule in (*names, *stored) if self._divisor(rule) > 1]
        if (searched := searched_dims(args)) is not None:
            stored += [rule.replace("params.", "optimizer.") for rule in stored]
            known = {dim.name for tensor in self.tensors for dim in tensor.dims}.union(stored)
            rules = [rule for rule in dict.fromkeys((*searched, *also)) if rule in known]
        elif len(rules) > MOST_RULES:
            rules = [rule for rule in rules if rule not in stored]
        if not rules:
            raise LayoutError(
                "the program has no dim that can be split",
                state=f"dims of the program: {', '.join(names) or 'none'}",
                fix="give it tensors with dims of 2 and more",
            )
        return tuple(rules)

    @property
    def left_out(self) -> RuleSet:
        """The dims of the program that are not searched, though they could be split."""
        return tuple(name for name in self._names(self.tensors) if name not in self.rules and self._divisor(name) > 1)

    def _names(self, tensors: Sequence[TensorDims]) -> list[str]:
        """The dims of these tensors, but for those that follow another's rule."""
        dims = (dim for tensor in tensors for dim in tensor.dims)
        return list(dict.fromkeys(d.name for d in dims if d.follows is None and d.is_shown))

    def _check_rules(self, rules: Sequence[str]) -> RuleSet:
        """The rules a person named, each of which must match a dim of the program."""
        names = sorted({dim.name for tensor in self.tensors for dim in tensor.dims if dim.is_shown})
        stored = sorted({dim.name for tensor in self.tensors if tensor.is_parameter for dim in tensor.dims})
        for rule in rules:
            store, _, name = rule.rpartition(".")
            if name not in (stored if store else names) or store not in ("", *STORES):
                known = [f"{store}.{dim}" for store in STORES for dim in stored] if store else names
                raise LayoutError(
                    f"there is no dim `{rule}` to search over",
                    state=f"dims of the program: {', '.join(names)}"
                    + (f"   of its parameters: {', '.join(stored)}" if store else ""),
                    fix=closest(rule, known) + what_makes(rule),
                )
        return tuple(dict.fromkeys(rules))

    def _divisor(self, rule: str) -> int:
        name = rule.rpartition(".")[2]
        return math.gcd(*(dim.size for tensor in self.tensors for dim in tensor.dims if dim.name == name))

    def _legal_sets(self) -> list[RuleSet]:
        """Every set of rules one axis can hold, shortest of those alike, the empty first."""
        sets: dict[Any, RuleSet] = {}
        larger: list[RuleSet] = [()]
        while larger:  # a set is legal only if it is without its last rule
            worth = larger if not self._is_default else [rules for rules in larger if self._is_worth(rules)]
            legal = [(rules, split) for rules in worth if (split := self.split_dims(rules)) is not None]
            for rules, split in legal:
                sets.setdefault(split, rules)
            if len(sets) > MOST_SETS:
                raise LayoutError(
                    f"{len(self.rules)} dims make more than {MOST_SETS:,} sets of rules for one axis",
                    state=f"searched: {', '.join(self.rules)}",
                    fix=f"name those that may be split: `dims={list(self.rules[:3])}`",
                )
            larger = [
                (*rules, more)
                for rules, _ in legal
                for more in self.rules[self.rules.index(rules[-1]) + 1 if rules else 0 :]
            ]
        return list(sets.values())

    def _is_worth(self, rules: RuleSet) -> bool:
        """Whether a set is searched where no dims are named.

        What only goes with another (`BESIDE`) does, unless that has nothing to split, as in decoding; the optimizer's
        state lies beside what splits no parameter, and so leaves it whole.
        """
        if any(rule in rules and beside not in rules and self._divisors.get(beside, 1) > 1 for rule, beside in BESIDE):
            return False
        weights = {dim.name for tensor in self.tensors if tensor.is_parameter for dim in tensor.dims}
        return "optimizer" not in stores_in(rules) or not (weights & set(rules) or "params" in stores_in(rules))

    def split_dims(self, rules: RuleSet) -> tuple[str | None, ...] | None:
        """For each tensor the dim these rules split; None where they split two of one."""
        layout = Layout(dict.fromkeys(rules, AXES[0]))
        region = Region(Mesh({AXES[0]: 2}), layout)
        split = []
        for tensor in self.tensors:
            names = {dim.name for dim in tensor.dims}
            if any(names.issuperset(ring) and set(rules).issuperset(ring) for ring in RINGS):
                continue  # there is no such tensor where a ring goes round
            for store in self._stores if tensor.is_parameter else [None]:
                try:
                    axes = region.axes(tensor.dims, store)
                except LayoutError:
                    return None
                split.append(next((dim.name for dim, held in zip(tensor.dims, axes, strict=True) if held), None))
        return tuple(split)

    def divisor(self, rule: str) -> int:
        """What every size of a rule's dim is a multiple of."""
        return self._divisors[rule]

    def most_ways(self, below: int, axes: int) -> int:
        """The largest number of processors under `below` that so many axes can use."""
        ways = [
            [n for n in range(1, self.divisor(rule) + 1) if self.divisor(rule) % n == 0]
            for rule in self.rules
            if any(held == (rule,) for held in self.sets)
        ]
        counts = {1}
        for _ in range(axes):
            counts |= {a * b for a in counts for of_rule in ways for b in of_rule if a * b < below}
        return max(count for count in counts if self._can_divide(count, ways))

    def _can_divide(self, count: int, ways: list[list[int]]) -> bool:
        """Whether dims, each at most as often as it divides, cut into so many parts."""
        products = {1}
        for of_rule in ways:
            products |= {a * b for a in products for b in of_rule if count % (a * b) == 0}
        return count in products

    def rules_of(self, dim: str) -> RuleSet:
        """The rules a dim may be split by: its own, or that of the dim it follows."""
        return (dim, follows) if (follows := self._follows.get(dim)) else (dim,)

    @functools.cached_property
    def parameters(self) -> set[tuple[str, ...]]:
        """The dims of parameters, whole and as a loop over their first dim sees them."""
        names = [tuple(dim.name for dim in tensor.dims) for tensor in self.tensors if tensor.is_parameter]
        return {*names, *(dims[1:] for dims in names)}

    def layout(self, rules: Sequence[RuleSet], axes: Sequence[str]) -> Layout:
        """The layout that gives each axis its rules, in the order of the dims."""
        written = {rule: [axis for axis, held in zip(axes, rules, strict=True) if rule in held] for rule in self.rules}
        return Layout({rule: held for rule, held in written.items() if held})


def stores_in(rules: RuleSet) -> list[str]:
    """The kinds of storage that rules split: `params`, `optimizer`."""
    return [store for store in STORES if any(rule.startswith(f"{store}.") for rule in rules)]


def searched_dims(args: Any) -> Sequence[str] | None:
    """The `searched_dims` of a model among the arguments: those worth splitting."""

    def says(x: Any) -> bool:
        return hasattr(type(x), "searched_dims")

    return next((x.searched_dims for x in jax.tree.leaves(args, is_leaf=says) if says(x)), None)


def tensors_of(program: Program, args: Any) -> list[TensorDims]:
    """The tensors of a program and of its arguments, those of like dims once."""
    arguments = [leaf for leaf in jax.tree.leaves(args, is_leaf=is_tensor) if is_tensor(leaf)]
    tensors = [TensorDims(tuple(leaf.dims), is_stored(leaf)) for leaf in arguments]
    tensors += [TensorDims(tuple(placed.dims), False) for placed in program.tensors]
    return list(dict.fromkeys(tensors))


def shapes(processors: int, most_axes: int) -> list[MeshShape]:
    """Every mesh shape of so many processors with at most so many axes.

    >>> shapes(8, 2)
    [(8,), (2, 4), (4, 2)]
    """
    return [shape for count in range(1, most_axes + 1) for shape in _products(processors, count)] or [(1,)]


def _products(number: int, count: int) -> Iterator[MeshShape]:
    if count == 1:
        if number > 1:
            yield (number,)
        return
    for size in range(2, number // 2 + 1):
        if number % size == 0:
            yield from ((size, *rest) for rest in _products(number // size, count - 1))


def named_axes(shape: MeshShape) -> dict[str, int]:
    """A mesh of this shape with axes called x, y, z."""
    return dict(zip(AXES, shape, strict=False))
