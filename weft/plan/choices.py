"""The choices of a search: sets of rules for one mesh axis, shapes of meshes.

A layout is one set of rules for each axis (`batch` and `d_ff` over x, `heads` over y, ...). Which sets are legal
follows from the tensors of one traced program: no tensor may have two of its dims on one axis. So sets are found once,
and a layout is any choice of one set an axis whose dims divide.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ..dims import Dim
from ..errors import LayoutError, closest
from ..layout import Layout, Region
from ..mesh import Mesh
from ..program import Program
from ..tensor import is_tensor

MOST_RULES = 12
"""Where no dims are named, and there are no more than this with `params.` rules, these are searched too."""
MOST_SETS = 4000
AXES = ("x", "y", "z", "u", "v", "w")

RuleSet = tuple[str, ...]
MeshShape = tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    """The dims of a tensor, and whether it is a parameter.

    Rules that begin with `params.` may split a parameter further.
    """

    dims: tuple[Dim, ...]
    is_parameter: bool


class Choices:
    """The sets of rules one axis can hold, for one program."""

    def __init__(self, program: Program, args: Any, rules: Sequence[str] | None):
        self.tensors = tensors_of(program, args)
        self.rules = self._usual(args) if rules is None else self._known(rules)
        self._divisors = {rule: self._divisor(rule) for rule in self.rules}
        self._follows = {dim.name: dim.follows for kept in self.tensors for dim in kept.dims if dim.follows}
        self.sets = self._legal_sets()

    def _usual(self, args: Any) -> RuleSet:
        """What is searched where no dims are named.

        A model among the arguments may say it of itself; else it is every dim.
        """
        names = self._names(self.tensors)
        stored = [f"params.{name}" for name in self._names([kept for kept in self.tensors if kept.is_parameter])]
        found = [rule for rule in (*names, *stored) if self._divisor(rule) > 1]
        if (own := _searched_dims(args)) is not None:
            found = [rule for rule in own if rule in (*names, *stored)]
        elif len(found) > MOST_RULES:
            found = [rule for rule in found if rule not in stored]
        if not found:
            raise LayoutError(
                "the program has no dim that can be split",
                state=f"dims of the program: {', '.join(names) or 'none'}",
                fix="give it tensors with dims of 2 and more",
            )
        return tuple(found)

    @property
    def left_out(self) -> RuleSet:
        """The dims of the program that are not searched, though they could be split."""
        return tuple(name for name in self._names(self.tensors) if name not in self.rules and self._divisor(name) > 1)

    def _names(self, tensors: Sequence[Kept]) -> list[str]:
        """The dims of these tensors, but for those that follow another's rule."""
        dims = (dim for kept in tensors for dim in kept.dims)
        return list(dict.fromkeys(d.name for d in dims if d.follows is None and d.is_shown))

    def _known(self, rules: Sequence[str]) -> RuleSet:
        """The rules a person named, each of which must match a dim of the program."""
        names = sorted({dim.name for kept in self.tensors for dim in kept.dims if dim.is_shown})
        stored = sorted({dim.name for kept in self.tensors if kept.is_parameter for dim in kept.dims})
        for rule in rules:
            store, _, name = rule.rpartition(".")
            if name not in (stored if store else names) or store not in ("", "params"):
                raise LayoutError(
                    f"there is no dim `{rule}` to search over",
                    state=f"dims of the program: {', '.join(names)}"
                    + (f"   of its parameters: {', '.join(stored)}" if store else ""),
                    fix=closest(rule, [f"params.{each}" for each in stored] if store else names),
                )
        return tuple(dict.fromkeys(rules))

    def _divisor(self, rule: str) -> int:
        name = rule.rpartition(".")[2]
        return math.gcd(*(dim.size for kept in self.tensors for dim in kept.dims if dim.name == name))

    def _legal_sets(self) -> list[RuleSet]:
        """Every set of rules one axis can hold, the empty one first.

        Of sets that place all tensors alike, the shortest is kept.
        """
        found: dict[Any, RuleSet] = {}
        larger: list[RuleSet] = [()]
        while larger:  # a set is legal only if it is without its last rule
            legal = [(rules, placed) for rules in larger if (placed := self.placed(rules)) is not None]
            for rules, placed in legal:
                found.setdefault(placed, rules)
            if len(found) > MOST_SETS:
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
        return list(found.values())

    def placed(self, rules: RuleSet) -> tuple[str | None, ...] | None:
        """For each tensor the dim that an axis with these rules splits.

        None where it would split two dims of one tensor.
        """
        layout = Layout(dict.fromkeys(rules, AXES[0]))
        region = Region(Mesh({AXES[0]: 2}), layout)
        found = []
        for kept in self.tensors:
            try:
                axes = region.axes(kept.dims, "params" if kept.is_parameter else None)
            except LayoutError:
                return None
            found.append(next((dim.name for dim, held in zip(kept.dims, axes, strict=True) if held), None))
        return tuple(found)

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
        found = {1}
        for _ in range(axes):
            found |= {a * b for a in found for each in ways for b in each if a * b < below}
        return max(n for n in found if self._can(n, ways, axes))

    def _can(self, count: int, ways: list[list[int]], axes: int) -> bool:
        """Whether dims, each at most as often as it divides, cut into so many parts."""
        left = {1}
        for each in ways:
            left |= {a * b for a in left for b in each if count % (a * b) == 0}
        return count in left

    def rule_of(self, dim: str) -> str:
        """The rule a dim is split by: its own, or that of the dim it follows."""
        return dim if dim in self.rules else self._follows.get(dim) or dim

    @functools.cached_property
    def parameters(self) -> set[tuple[str, ...]]:
        """The dims of parameters, whole and as a loop over their first dim sees them."""
        names = [tuple(dim.name for dim in kept.dims) for kept in self.tensors if kept.is_parameter]
        return {*names, *(each[1:] for each in names)}

    def layout(self, rules: Sequence[RuleSet], axes: Sequence[str]) -> Layout:
        """The layout that gives each axis its rules, in the order of the dims."""
        written = {rule: [axis for axis, held in zip(axes, rules, strict=True) if rule in held] for rule in self.rules}
        return Layout({rule: held for rule, held in written.items() if held})


def _searched_dims(args: Any) -> Sequence[str] | None:
    """The `searched_dims` of a model among the arguments: those worth splitting."""

    def says(x: Any) -> bool:
        return hasattr(type(x), "searched_dims")

    return next((x.searched_dims for x in jax.tree.leaves(args, is_leaf=says) if says(x)), None)


def tensors_of(program: Program, args: Any) -> list[Kept]:
    """The tensors of a program and of its arguments, those of like dims once."""
    given = [leaf for leaf in jax.tree.leaves(args, is_leaf=is_tensor) if is_tensor(leaf)]
    kept = [Kept(tuple(leaf.dims), leaf.kind.store is not None) for leaf in given]
    return list(dict.fromkeys([*kept, *(Kept(tuple(placed.dims), False) for placed in program.tensors)]))


def shapes(processors: int, most_axes: int) -> list[MeshShape]:
    """Every mesh shape of so many processors with at most so many axes.

    Each size is at least 2; sizes stand in every order.

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


def named(shape: MeshShape) -> dict[str, int]:
    """A mesh of this shape with axes called x, y, z."""
    return dict(zip(AXES, shape, strict=False))
