"""The walk: a traced program as a tree of steps and loops, each step with its op, its phase and its count.

Reads the jaxpr alone. Scopes of JAX carry the op's number through differentiation and recomputation; what JAX
inlines when it compiles (calls, recomputed parts) is inlined here too.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax.extend.core import Literal, jaxprs_in_params

from ..compat import scopes_of
from ..lower.collectives import PRIMITIVES
from ..record import Argument, entry_and_operand

PHASES = ("forward", "recompute", "backward", "update")


@dataclass
class Step:
    """One equation of the program."""

    eqn: Any
    op: int | None
    """The number of the op's entry in the record."""
    operand: int | None
    phase: str
    count: int
    """How often it runs: the turns of all loops around it."""
    is_each_turn: bool
    """Inside a loop of unknown length: `count` is for one turn."""
    is_global: bool
    """Outside the region, where arrays are whole: the optimizer's update."""
    order: int = 0
    """How many differentiations it is part of the backward pass of."""
    origin: Argument | None = None
    """The argument its first operand comes from, where it is one, merely cast, sliced or moved."""

    @property
    def collective(self) -> str | None:
        return None if self.is_global else PRIMITIVES.get(self.eqn.primitive.name)


@dataclass
class Loop:
    """A loop or a branch: its bodies, each a list of steps and loops."""

    kind: str
    op: int | None
    phase: str
    turns: int | None
    bodies: list[list["Step | Loop"]] = field(default_factory=list)


Tree = list[Step | Loop]


@dataclass(frozen=True)
class _Around:
    """What holds for every equation of a jaxpr."""

    scopes: str = ""
    count: int = 1
    is_each_turn: bool = False
    is_global: bool = True


# What leaves a value what it was: a name given to the argument still fits.
SAME_VALUE = frozenset(
    "pvary convert_element_type transpose reshape squeeze copy slice dynamic_slice all_gather all_gather_invariant "
    "name optimization_barrier reshard".split()
)


def walk(closed: Any, arguments: Sequence[Argument] = ()) -> Tree:
    """The tree of a traced program; `arguments` are the arrays its region is given."""
    return list(_Reader(list(arguments)).body(closed.jaxpr, {}, _Around()))


class _Reader:
    def __init__(self, arguments: list[Argument]):
        self.arguments = arguments

    def body(self, jaxpr: Any, names: dict[Any, Argument], around: _Around) -> Iterator[Step | Loop]:
        for eqn in jaxpr.eqns:
            scopes = f"{around.scopes}/{scopes_of(eqn)}"
            inside = replace(around, scopes=scopes)
            origin = _name(eqn.invars[0], names) if eqn.invars else None
            if origin and eqn.primitive.name in SAME_VALUE:
                names[eqn.outvars[0]] = origin
            yield from self._read(eqn, names, inside, origin)

    def _read(
        self, eqn: Any, names: dict[Any, Argument], around: _Around, origin: Argument | None
    ) -> Iterator[Step | Loop]:
        kind = eqn.primitive.name
        inner = [getattr(sub, "jaxpr", sub) for sub in jaxprs_in_params(eqn.params)]
        op, operand = entry_and_operand(around.scopes)
        phase = phase_of(around.scopes, around.is_global)
        if not inner or kind in PRIMITIVES:
            yield Step(
                eqn,
                op,
                operand,
                phase,
                around.count,
                around.is_each_turn,
                around.is_global,
                order=around.scopes.count("transpose("),
                origin=origin,
            )
        elif kind == "scan":
            turns = eqn.params["length"]
            yield self._loop(eqn, kind, inner, names, around, turns)
        elif kind in ("while", "cond"):
            yield self._loop(eqn, kind, inner, names, around, None)
        elif kind == "shard_map":
            # What the region closes over comes before its arguments.
            given = dict(zip(inner[0].invars[-len(self.arguments) :], self.arguments, strict=False))
            yield from self.body(inner[0], given, replace(around, is_global=False))
        else:
            for sub in inner:
                known = _passed(eqn.invars, sub.invars, names)
                yield from self.body(sub, known, around)
                names.update(_passed(sub.outvars, eqn.outvars, known))

    def _loop(
        self, eqn: Any, kind: str, inner: Sequence[Any], names: dict[Any, Argument], around: _Around, turns: int | None
    ) -> Loop:
        op, _ = entry_and_operand(around.scopes)
        is_each_turn = around.is_each_turn or kind == "while"
        inside = replace(around, count=around.count * (turns or 1), is_each_turn=is_each_turn)
        loop = Loop(kind, op, phase_of(around.scopes, around.is_global), turns)
        for sub, given in zip(inner, _operands(eqn, kind, inner), strict=True):
            loop.bodies.append(list(self.body(sub, _passed(given, sub.invars, names), inside)))
        return loop


def _operands(eqn: Any, kind: str, inner: Sequence[Any]) -> list[Sequence[Any]]:
    """Which operands each body is given."""
    if kind == "cond":
        return [eqn.invars[1:]] * len(inner)
    if kind == "while":
        split = eqn.params["cond_nconsts"]
        middle = split + eqn.params["body_nconsts"]
        both = [[*eqn.invars[:split], *eqn.invars[middle:]], eqn.invars[split:]]
        return both if eqn.params["cond_jaxpr"].jaxpr is inner[0] else both[::-1]
    return [eqn.invars]


def _passed(given: Sequence[Any], taken: Sequence[Any], names: dict[Any, Argument]) -> dict[Any, Argument]:
    """The names of a body's inputs."""
    if len(given) != len(taken):
        return {}
    return {inner: name for outer, inner in zip(given, taken, strict=True) if (name := _name(outer, names))}


def _name(var: Any, names: dict[Any, Argument]) -> Argument | None:
    return None if isinstance(var, Literal) else names.get(var)


_GRADIENT = re.compile(r"\bwf\d+_gradient\b")
_UPDATE = re.compile(r"(?:^|[/(])update(?:[/)]|$)")


def loop_parts(eqn: Any) -> tuple[int, int]:
    """How many operands of a scan are the same in each turn, and how many go from turn to turn."""
    # By rank, which stacks have one more of: how JAX's parameters say it changed in 0.11.
    body = eqn.params["jaxpr"].jaxpr
    carried = sum(a.aval.ndim == b.aval.ndim for a, b in zip(eqn.outvars, body.outvars, strict=True))
    sliced = sum(a.aval.ndim != b.aval.ndim for a, b in zip(eqn.invars, body.invars, strict=True))
    return len(eqn.invars) - carried - sliced, carried


def phase_of(scopes: str, is_global: bool) -> str:
    at = scopes.rfind("transpose(")
    if at >= 0:
        return "recompute" if "rematted_computation" in scopes[at:] else "backward"
    if _GRADIENT.search(scopes):
        return "backward"
    return "update" if is_global and _UPDATE.search(scopes) else "forward"


def steps(tree: Tree, larger: Callable[[Tree], float] | None = None) -> Iterator[Step]:
    """All steps in order; of a branch only the body that measures larger, where a measure is given."""
    for item in tree:
        if isinstance(item, Step):
            yield item
            continue
        bodies = [max(item.bodies, key=larger)] if item.kind == "cond" and larger is not None else item.bodies
        for body in bodies:
            yield from steps(body, larger)
