"""A traced program as bodies of equations joined by the values they give each other.

Calls are inlined as JAX does it; a loop's body stands by itself, with how often it runs. Sizes are those one processor
holds. What costs nothing (a reshape, a cast of type alone) is gone: its result is its operand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import Literal, jaxprs_in_params

from ..compat import scopes_of
from ..lower.collectives import PRIMITIVES
from ..program.reading import Reading
from ..program.update import split_of
from ..program.walk import loop_parts, phase_of
from ..record import entry_and_operand

_FREE = frozenset(
    """pvary reshape squeeze expand_dims copy copy_p name stop_gradient reshard optimization_barrier random_wrap
    random_unwrap transpose sharding_constraint""".split()
)


class Value:
    """An array as one processor holds it."""

    __slots__ = ("bytes", "elements", "from_carry", "maker", "uses", "ways")

    def __init__(self, aval: Any, ways: int = 1, *, maker: "Node | None" = None, from_carry: bool = False):
        shape = getattr(aval, "shape", ())
        self.ways, self.maker, self.from_carry = ways, maker, from_carry
        self.elements = math.prod(shape) // ways
        self.bytes = self.elements * _itemsize(aval)
        self.uses: list[Node] = []


def _itemsize(aval: Any) -> int:
    dtype = getattr(aval, "dtype", None)
    return int(getattr(dtype, "itemsize", 0) or 0)


class Node:
    """One equation: its operands and results."""

    __slots__ = ("eqn", "ins", "is_global", "is_hard", "is_joined", "kind", "leaves", "op", "outs", "phase", "stage")

    def __init__(self, eqn: Any, kind: str, ins: list[Value], op: int | None, phase: str, is_global: bool):
        self.eqn, self.kind, self.ins, self.op, self.phase, self.is_global = eqn, kind, ins, op, phase, is_global
        self.outs: list[Value] = []
        self.stage = 0
        self.leaves: frozenset[Value] = frozenset()
        self.is_joined = self.is_hard = False


@dataclass
class Body:
    """The equations of one body, in order, and what becomes of its results."""

    count: int = 1
    is_turn: bool = False
    """Whether it is a turn of a loop, whose next turn needs `kept`."""
    nodes: list[Node] = field(default_factory=list)
    kept: list[Value] = field(default_factory=list)
    """Results, and what crosses the region's border."""
    stacked: list[Value] = field(default_factory=list)
    """Results of a loop's turn that are written into a stack."""
    sliced: list[Value] = field(default_factory=list)
    """What a loop's turn is given a slice of."""
    choices: list[list[list["Body"]]] = field(default_factory=list)
    """For each branch in the body its sides, of which one runs: the bodies of each."""


def bodies_of(reading: Reading) -> list[Body]:
    """All bodies of a program, that of the program itself first."""
    return _Reader(reading).program()


class _Reader:
    def __init__(self, reading: Reading):
        self.reading, self.bodies = reading, [Body()]
        self._scopes: dict[str, tuple[int | None, str]] = {}
        self._mesh = reading.mesh.axes

    def program(self) -> list[Body]:
        jaxpr = self.reading.jaxpr.jaxpr
        ways = self._ways_of_arguments(jaxpr)
        given = [Value(var.aval, ways.get(var, 1)) for var in jaxpr.invars]
        known = dict(zip(jaxpr.invars, given, strict=True))
        known |= {var: Value(var.aval) for var in jaxpr.constvars}
        self.bodies[0].kept += self.inline(jaxpr, known, self.bodies[0], "", True)
        return self.bodies

    def _ways_of_arguments(self, jaxpr: Any) -> dict[Any, int]:
        """Over how many processors each argument is split: by its type, or by what the region takes of it."""
        found = {var: self._ways(split_of(var)) for var in jaxpr.invars}
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "shard_map":
                pairs = zip(eqn.invars, eqn.params["in_specs"], strict=False)
                found |= {var: self._ways(_axes(spec)) for var, spec in pairs if not isinstance(var, Literal)}
        return found

    def _ways(self, split: Sequence[Sequence[str]]) -> int:
        return math.prod(self._mesh.get(axis, 1) for axes in split for axis in axes)

    def inline(self, jaxpr: Any, known: dict[Any, Value], body: Body, scopes: str, is_global: bool) -> list[Value]:
        """Puts the equations of a jaxpr into a body; gives its results."""

        def value(var: Any) -> Value:
            if isinstance(var, Literal):
                return Value(var.aval)
            found = known.get(var)
            if found is None:
                found = known[var] = Value(var.aval)
            return found

        for eqn in jaxpr.eqns:
            ins = [value(var) for var in eqn.invars if not isinstance(var, Literal)]
            outs = self._equation(eqn, ins, value, body, f"{scopes}/{scopes_of(eqn)}", is_global)
            known.update(zip(eqn.outvars, outs, strict=True))
        return [value(var) for var in jaxpr.outvars]

    def _equation(
        self, eqn: Any, ins: list[Value], value: Any, body: Body, scopes: str, is_global: bool
    ) -> list[Value]:
        kind = eqn.primitive.name
        inner = () if kind in PRIMITIVES else jaxprs_in_params(eqn.params)
        subs = [getattr(sub, "jaxpr", sub) for sub in inner]
        if kind in _FREE and len(eqn.outvars) == len(eqn.invars):
            return [self._same(value(a), b) for a, b in zip(eqn.invars, eqn.outvars, strict=True)]
        if not subs:
            return self._node(eqn, kind, ins, body, scopes, is_global)
        if kind == "scan":
            return self._scan(eqn, ins, value, body, scopes, is_global, subs[0])
        if kind in ("while", "cond"):
            return self._bodies(eqn, ins, body, scopes, is_global, subs)
        if kind == "shard_map":
            return self._region(eqn, value, body, scopes, subs[0])
        outs: list[Value] = []
        for sub in subs[:1] if kind.startswith("custom_") else subs:
            given = [value(var) for var in eqn.invars][-len(sub.invars) :] if sub.invars else []
            outs = self.inline(sub, dict(zip(sub.invars, given, strict=True)), body, scopes, is_global)
        return outs

    def _same(self, given: Value, var: Any) -> Value:
        """A value under another shape; one laid otherwise (a reshard) has another size here."""
        ways = self._ways(split_of(var))
        if given.maker is None and given.elements * given.ways == 0:
            return given
        if ways > 1 and ways != given.ways and given.maker is None:
            given.elements = given.elements * given.ways // ways
            given.bytes, given.ways = given.bytes * given.ways // ways, ways
        return given

    def _node(self, eqn: Any, kind: str, ins: list[Value], body: Body, scopes: str, is_global: bool) -> list[Value]:
        node = Node(eqn, kind, ins, *self._op_and_phase(scopes, is_global), is_global)
        for each in ins:
            each.uses.append(node)
        for var in eqn.outvars:
            ways = 1
            if is_global:
                size = math.prod(getattr(var.aval, "shape", ()))
                alike = [each.ways for each in ins if each.elements * each.ways == size]
                ways = self._ways(split_of(var)) if any(split_of(var)) else max(alike, default=1)
            node.outs.append(Value(var.aval, ways, maker=node))
        body.nodes.append(node)
        return node.outs

    def _op_and_phase(self, scopes: str, is_global: bool) -> tuple[int | None, str]:
        found = self._scopes.get(scopes)
        if found is None:
            found = self._scopes[scopes] = (entry_and_operand(scopes)[0], phase_of(scopes, is_global))
        return found

    def _region(self, eqn: Any, value: Any, body: Body, scopes: str, sub: Any) -> list[Value]:
        given = [value(var) for var in eqn.invars][-len(sub.invars) :]
        known = dict(zip(sub.invars, given, strict=True))
        for var, each in known.items():  # the same array, as one processor has it
            each.elements = math.prod(var.aval.shape)
            each.bytes = each.elements * _itemsize(var.aval)
        outs = self.inline(sub, known, body, scopes, False)
        body.kept += outs
        found = []
        for local, spec in zip(outs, eqn.params["out_specs"], strict=True):
            local.ways = self._ways(_axes(spec))
            found.append(local)
        return found

    def _scan(
        self, eqn: Any, ins: list[Value], value: Any, body: Body, scopes: str, is_global: bool, sub: Any
    ) -> list[Value]:
        fixed, carried = loop_parts(eqn)
        turn = Body(body.count * eqn.params["length"], is_turn=True)
        self.bodies.append(turn)
        outer = [value(var) for var in eqn.invars]
        inner = [
            Value(var.aval, outer[i].ways if is_global else 1, from_carry=fixed <= i < fixed + carried)
            for i, var in enumerate(sub.invars)
        ]
        turn.sliced = inner[fixed + carried :]
        outs = self.inline(sub, dict(zip(sub.invars, inner, strict=True)), turn, scopes, is_global)
        turn.kept, turn.stacked = outs[:carried], outs[carried:]
        node = self._node(eqn, "loop", ins, body, scopes, is_global)
        for outside, inside in zip(node, outs, strict=True):
            outside.ways = inside.ways
        return node

    def _bodies(
        self, eqn: Any, ins: list[Value], body: Body, scopes: str, is_global: bool, subs: Sequence[Any]
    ) -> list[Value]:
        """A loop of unknown length, counted for one turn, or a branch."""
        sides: list[list[Body]] = []
        before = self.bodies
        for sub in subs:
            self.bodies = [Body(body.count)]
            given = {var: Value(var.aval, from_carry=True) for var in sub.invars}
            self.bodies[0].kept = self.inline(sub, given, self.bodies[0], scopes, is_global)
            sides.append(self.bodies)
        self.bodies = before
        if eqn.primitive.name == "cond":
            body.choices.append(sides)
        else:
            self.bodies += [each for side in sides for each in side]
        return self._node(eqn, "loop", ins, body, scopes, is_global)


def _axes(spec: Any) -> list[tuple[str, ...]]:
    return [() if part is None else part if isinstance(part, tuple) else (part,) for part in spec]
