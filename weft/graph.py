"""The graph of a traced program: the one place that goes through jaxprs.

`graph` reads a closed jaxpr as bodies of steps joined by the values they give each other. Calls are inlined, as JAX
does it when it compiles; a loop or a branch is one step with its bodies inside. Each step has its op in the record, its
phase and how often it runs. Everyone who reads a program starts from here; who only looks for something in a jaxpr
goes through it with `visits`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal, jaxprs_in_params

from .compat import backward_depth, phase_in, scopes_of, without_dead_code
from .primitives import CALLS, LOOPS, VIEWS, Primitive, Role, axes_sent_over, flops_of, kind_of, row_of
from .record import ArgumentName, entry_and_operand

PHASES = ("forward", "recompute", "backward", "update")


@dataclass(eq=False, slots=True)
class Value:
    """An array of the program."""

    aval: Any
    maker: "Step | None" = None
    index: int | None = None
    """Which of its body's inputs it is, where it is one."""
    number: Any = None
    """What it is, where that is written in the program."""
    is_literal: bool = False
    local: Any = None
    """Its type on one processor, where it goes into a region."""
    spec: Any = None
    """How it is split, where it goes into a region or comes out of one."""
    origin: ArgumentName | None = None
    """The argument it is, merely cast, sliced or moved."""


@dataclass(eq=False, slots=True)
class Step:
    """One equation of the program."""

    eqn: Any
    row: Primitive
    scopes: str
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
    remat: "Step | None"
    """The innermost call around it that is computed again for its gradients: what goes in is stored before it."""
    operands: list[Value]
    results: list[Value] = field(default_factory=list)

    @property
    def kind(self) -> Role:
        return self.row.kind

    @property
    def collective(self) -> str | None:
        """The collective it is, as a ledger calls it."""
        return None if self.is_global else self.row.collective

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the mesh that it goes over, where it is a collective."""
        return axes_sent_over(self.eqn)

    @property
    def carried(self) -> list[Any]:
        """The types of the arrays that it carries, where it is a collective."""
        return [var.aval for var in (self.eqn.outvars if self.collective == "all_gather" else self.eqn.invars)]

    @property
    def instruction(self) -> tuple[str, str]:
        """What it does with its operands, whatever they are."""
        return self.row.name, str(self.eqn.params)

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Its results for other operands."""
        results = self.eqn.primitive.bind(*arrays, **self.eqn.params)
        return list(results) if self.eqn.primitive.multiple_results else [results]

    @property
    def order(self) -> int:
        """How many differentiations it is part of the backward pass of."""
        return backward_depth(self.scopes)

    @property
    def origin(self) -> ArgumentName | None:
        """The argument its first operand is, merely cast, sliced or moved."""
        return None if self.is_global or not self.operands else self.operands[0].origin

    @property
    def is_trivial(self) -> bool:
        """Whether it only brings values into shape, or adds up gradients."""
        return self.row.kind in _TRIVIAL

    @property
    def flops(self) -> int:
        """Its multiplications and additions in one turn, on the shapes it is traced with."""
        return flops_of(self.eqn)


@dataclass(eq=False, slots=True)
class Body:
    """Steps in order, what they are given and what they give."""

    inputs: list[Value]
    constants: list[Value]
    results: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)


@dataclass(eq=False, slots=True)
class Loop(Step):
    """A loop or a branch."""

    bodies: list[Body] = field(default_factory=list)
    """Of a `while` the test and the turn, of a branch one for each number it goes by."""

    @property
    def is_branch(self) -> bool:
        return self.row.kind is Role.COND

    @property
    def is_scan(self) -> bool:
        return self.row.kind is Role.SCAN

    @property
    def turns(self) -> int | None:
        """How many turns it has, where that is known."""
        return self.eqn.params["length"] if self.is_scan else None

    @property
    def is_reversed(self) -> bool:
        """Whether a scan goes from the last turn to the first."""
        return self.is_scan and bool(self.eqn.params["reverse"])

    @property
    def parts(self) -> tuple[int, int]:
        """How many operands stay the same, how many are carried; a scan slices the rest."""
        return loop_parts(self.eqn)


Tree = Body | list[Step]

_TRIVIAL = VIEWS | {
    Role.TRANSPOSE,
    Role.BROADCAST,
    Role.CAST,
    Role.AXIS_INDEX,
    Role.ADD_GRADIENTS,
    Role.TRANSFER,
}
# What leaves a value what it was: the name of the argument still fits.
_SAME_VALUE = VIEWS | {Role.CAST, Role.TRANSPOSE, Role.SLICE, Role.TRANSFER}


def graph(closed: Any, arguments: Sequence[ArgumentName] = ()) -> Body:
    """The graph of a traced program; `arguments` are the arrays its region is given."""
    inputs = [Value(var.aval) for var in closed.jaxpr.invars]
    return _Builder(list(arguments)).body(closed.jaxpr, closed.consts, inputs, _Around())


@dataclass(frozen=True, slots=True)
class _Around:
    """What holds for every equation of a jaxpr."""

    scopes: str = ""
    count: int = 1
    is_each_turn: bool = False
    is_global: bool = True
    is_update: bool = False
    """In a region of the optimizer's update, which works on slices by itself."""
    remat: Step | None = None


class _Builder:
    def __init__(self, arguments: list[ArgumentName]):
        self.arguments = arguments
        self._known: dict[tuple[str, bool], tuple[int | None, int | None, str]] = {}

    def body(self, jaxpr: Any, consts: Sequence[Any], inputs: list[Value], around: _Around) -> Body:
        for i, value in enumerate(inputs):
            value.index = i
        body = Body(inputs, _constants(jaxpr, consts))
        values = dict(zip((*jaxpr.invars, *jaxpr.constvars), (*inputs, *body.constants), strict=True))
        body.results = self._inline(jaxpr, values, around, body.steps)
        return body

    def _inline(self, jaxpr: Any, values: dict[Any, Value], around: _Around, steps: list[Step]) -> list[Value]:
        """Adds the steps of a jaxpr; its results."""
        for eqn in jaxpr.eqns:
            row, operands = row_of(eqn), [_value(var, values) for var in eqn.invars]
            scopes = f"{around.scopes}/{scopes_of(eqn)}"
            inner = bodies_of(eqn) if row.kind in _WITH_BODIES else []
            step: Step
            if row.kind in LOOPS:
                step = self._loop(eqn, row, scopes, operands, around, inner)
            elif len(inner) == 1 and len(inner[0].jaxpr.invars) == len(operands):
                results = self._call(eqn, row, scopes, operands, around, inner[0], steps)
                values.update(zip(eqn.outvars, results, strict=True))
                continue
            else:
                step = Step(eqn, row, *self._read_scopes(scopes, around), operands=operands)
            step.results = [Value(var.aval, step) for var in eqn.outvars]
            if len(step.results) <= len(operands) and (row.kind in _SAME_VALUE or row.collective == "all_gather"):
                for result, operand in zip(step.results, operands, strict=False):
                    result.origin = operand.origin
            values.update(zip(eqn.outvars, step.results, strict=True))
            steps.append(step)
        return [_value(var, values) for var in jaxpr.outvars]

    def _read_scopes(
        self, scopes: str, around: _Around
    ) -> tuple[str, int | None, int | None, str, int, bool, bool, Step | None]:
        """What a step's scopes and surroundings say of it."""
        is_outside = around.is_global or around.is_update
        known = self._known.get((scopes, is_outside))
        if known is None:
            known = (*entry_and_operand(scopes), phase_of(scopes, is_outside))
            self._known[scopes, is_outside] = known
        return scopes, *known, around.count, around.is_each_turn, around.is_global, around.remat

    def _call(
        self,
        eqn: Any,
        row: Primitive,
        scopes: str,
        operands: list[Value],
        around: _Around,
        closed: ClosedJaxpr,
        steps: list[Step],
    ) -> list[Value]:
        jaxpr, inside = closed.jaxpr, replace(around, scopes=scopes)
        if row.kind is Role.REMAT and eqn.params.get("prevent_cse") and eqn.params.get("differentiated"):
            inside = replace(inside, remat=Step(eqn, row, *self._read_scopes(scopes, around), operands=operands))
        if row.kind is Role.REGION:
            is_update = phase_of(scopes, around.is_global) == "update"
            inside = replace(inside, is_global=False, is_update=is_update)
            self._enter(eqn, jaxpr, operands, [] if is_update else self.arguments)
        values = dict(zip(jaxpr.invars, operands, strict=True))
        values |= dict(zip(jaxpr.constvars, _constants(jaxpr, closed.consts), strict=True))
        results = self._inline(jaxpr, values, inside, steps)
        if row.kind is Role.REGION:
            for value, spec in zip(results, eqn.params["out_specs"], strict=True):
                value.spec = spec
        return results

    def _enter(self, eqn: Any, jaxpr: Any, operands: list[Value], arguments: list[ArgumentName]) -> None:
        """Says of the values that go into a region what they are inside."""
        for value, var, spec in zip(operands, jaxpr.invars, eqn.params["in_specs"], strict=True):
            value.local, value.spec = var.aval, spec
        # What the region closes over comes before its arguments.
        for value, argument in zip(operands[-len(arguments) :], arguments, strict=False):
            value.origin = argument

    def _loop(
        self, eqn: Any, row: Primitive, scopes: str, operands: list[Value], around: _Around, inner: list[ClosedJaxpr]
    ) -> Loop:
        loop = Loop(eqn, row, *self._read_scopes(scopes, around), operands=operands)
        inside = replace(
            around,
            scopes=scopes,
            count=around.count * (loop.turns or 1),
            is_each_turn=around.is_each_turn or row.kind is Role.WHILE,
        )
        for closed, taken in zip(inner, _operands_of_bodies(loop), strict=True):
            pairs = zip(closed.jaxpr.invars, taken, strict=True)
            inputs = [Value(var.aval, origin=outer.origin) for var, outer in pairs]
            loop.bodies.append(self.body(closed.jaxpr, closed.consts, inputs, inside))
        return loop


def _constants(jaxpr: Any, consts: Sequence[Any]) -> list[Value]:
    numbers = [*consts, *[None] * (len(jaxpr.constvars) - len(consts))]
    return [Value(var.aval, number=number) for var, number in zip(jaxpr.constvars, numbers, strict=True)]


def _value(var: Any, values: dict[Any, Value]) -> Value:
    return Value(var.aval, number=var.val, is_literal=True) if isinstance(var, Literal) else values[var]


def loop_parts(eqn: Any) -> tuple[int, int]:
    """How many operands of a loop stay the same, and how many are carried over."""
    if kind_of(eqn) is Role.WHILE:
        fixed = eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
        return fixed, len(eqn.invars) - fixed
    if kind_of(eqn) is Role.COND:
        return len(eqn.invars), 0
    # By rank, which stacks have one more of: how JAX's parameters say it changed in 0.11.
    body = eqn.params["jaxpr"].jaxpr
    carried = sum(a.aval.ndim == b.aval.ndim for a, b in zip(eqn.outvars, body.outvars, strict=True))
    sliced = sum(a.aval.ndim != b.aval.ndim for a, b in zip(eqn.invars, body.invars, strict=True))
    return len(eqn.invars) - carried - sliced, carried


def _operands_of_bodies(loop: Loop) -> list[Sequence[Value]]:
    """Which operands each body is given."""
    operands = loop.operands
    if loop.kind is Role.SCAN:
        return [operands]
    if loop.kind is Role.COND:
        return [operands[1:]] * len(loop.eqn.params["branches"])
    tested = loop.eqn.params["cond_nconsts"]
    return [[*operands[:tested], *operands[loop.parts[0] :]], operands[tested:]]


def steps(tree: Tree, larger: Callable[[Tree], float] | None = None) -> Iterator[Step]:
    """All steps in order, those of loops too; of a branch only its `larger` body."""
    for step in tree:
        if not isinstance(step, Loop):
            yield step
            continue
        bodies = [max(step.bodies, key=larger)] if step.is_branch and larger is not None else step.bodies
        for body in bodies:
            yield from steps(body, larger)


_GRADIENT = re.compile(r"\bwf\d+_gradient\b")
_UPDATE = re.compile(r"(?:^|[/(])update(?:[/)]|$)")


def phase_of(scopes: str, is_global: bool) -> str:
    """The phase of what stands in these scopes of JAX."""
    if phase := phase_in(scopes):
        return phase
    if _GRADIENT.search(scopes):
        return "backward"
    return "update" if is_global and _UPDATE.search(scopes) else "forward"


_WITH_BODIES = CALLS | LOOPS | {Role.OTHER}


def bodies_of(eqn: Any) -> list[ClosedJaxpr]:
    """The bodies of an equation: what it calls, a loop's turn, a branch's sides."""
    if kind_of(eqn) is Role.WHILE:
        return [eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]]
    if kind_of(eqn) is Role.COND:
        return list(eqn.params["branches"])
    if kind_of(eqn) not in _WITH_BODIES:
        return []  # how a reduction joins two numbers is no body
    closed = [param for param in eqn.params.values() if isinstance(param, ClosedJaxpr)]
    return closed or [ClosedJaxpr(jaxpr, ()) for jaxpr in jaxprs_in_params(eqn.params)]


@dataclass
class Visit:
    """An equation on the way through a jaxpr; its bodies come next unless taken away."""

    eqn: Any
    scopes: str
    bodies: list[Any]
    callers: tuple[tuple[Any, Any], ...]
    """The equations around it, the outermost first, and the body of each that it is in."""


def visits(jaxpr: Any, scopes: str = "", callers: tuple[tuple[Any, Any], ...] = ()) -> Iterator[Visit]:
    """All equations of a jaxpr and of those within it, as they stand."""
    for eqn in jaxpr.eqns:
        visit = Visit(eqn, f"{scopes}/{scopes_of(eqn)}", [body.jaxpr for body in bodies_of(eqn)], callers)
        yield visit
        for body in visit.bodies:
            yield from visits(body, visit.scopes, (*callers, (eqn, body)))


def map_equations(closed: ClosedJaxpr, change: Callable[[Any], Any]) -> ClosedJaxpr:
    """A program with each of its equations changed."""
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=[change(eqn) for eqn in closed.jaxpr.eqns]))


def prune(eqn: Any) -> Any:
    """A call less the dead code of its body: what none of its results needs."""
    inner = eqn.params.get("jaxpr")
    if inner is None:
        return eqn
    body = without_dead_code(getattr(inner, "jaxpr", inner))
    return eqn.replace(params={**eqn.params, "jaxpr": inner.replace(jaxpr=body) if hasattr(inner, "jaxpr") else body})


def uses_inputs(closed: ClosedJaxpr) -> list[bool]:
    """Which constants and inputs a program uses."""
    jaxpr = closed.jaxpr
    used = _variables([*jaxpr.outvars, *(var for eqn in jaxpr.eqns for var in eqn.invars)])
    return [var in used for var in (*jaxpr.constvars, *jaxpr.invars)]


def keep_results(closed: ClosedJaxpr, results: Sequence[int]) -> ClosedJaxpr:
    """A program with these results alone, and no more equations than they need."""
    outvars = [closed.jaxpr.outvars[i] for i in results]
    needed, eqns = _variables(outvars), []
    for eqn in reversed(closed.jaxpr.eqns):
        if needed & set(eqn.outvars):
            eqns.append(eqn)
            needed |= _variables(eqn.invars)
    return ClosedJaxpr(closed.jaxpr.replace(eqns=eqns[::-1], outvars=outvars), closed.consts)


def cut_at(closed: ClosedJaxpr, given: Sequence[int], results: Sequence[int]) -> ClosedJaxpr:
    """A program that makes these results, and is given those others after its inputs."""
    jaxpr = closed.jaxpr
    inputs, outvars = [jaxpr.outvars[i] for i in given], [jaxpr.outvars[i] for i in results]
    eqns = [eqn for eqn in jaxpr.eqns if not set(inputs) & set(eqn.outvars)]
    cut = jaxpr.replace(eqns=eqns, invars=[*jaxpr.invars, *inputs], outvars=outvars)
    return ClosedJaxpr(without_dead_code(cut), closed.consts)


def _variables(atoms: Sequence[Any]) -> set[Any]:
    return {atom for atom in atoms if not isinstance(atom, Literal)}
