"""Which values of a traced program are in memory when: its equations as a line of work, and who needs what how long.

Reads the jaxpr alone. Calls, regions and recomputed parts are inlined; a loop is one piece of work with its body
inside. What a compiler folds into the next kernel is not stored, and what goes into it is then kept that much longer.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.extend.core import Literal, jaxprs_in_params

from ..ops.collectives import PRIMITIVES
from .noting import CALLS
from .update import split_of

# What leaves the bytes where they are.
SAME_BYTES = frozenset(
    """pvary name reshape squeeze expand_dims stop_gradient optimization_barrier copy copy_p random_wrap random_unwrap
    bitcast_convert_type reshard""".split()
)

# What a compiler folds into the kernel that uses it.
ELEMENTWISE = frozenset(
    """abs acos acosh add add_any and asin asinh atan atan2 atanh broadcast_in_dim cbrt ceil clamp
    convert_element_type cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow iota
    is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or polygamma population_count pow real
    reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt
    square sub tan tanh xor transpose slice dynamic_slice pad rev concatenate random_bits random_fold_in
    random_split random_seed axis_index threefry2x32 gather""".split()
)
REDUCTIONS = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin".split()
)


@dataclass(eq=False, slots=True)
class Value:
    """An array on one processor, and the work that makes it and uses it."""

    bytes: int
    aval: Any
    maker: "Work | None" = None
    given: int | None = None
    """Which of its body's inputs it is, where it is one."""
    uses: list["Work"] = field(default_factory=list)
    is_stored: bool = True
    last: int = -1
    """The last piece of work that needs it, by its place; that of its body's end where it is a result."""


@dataclass(eq=False, slots=True)
class Work:
    """One equation."""

    kind: str
    eqn: Any
    scopes: str
    is_global: bool
    operands: list[Value]
    results: list[Value]
    bodies: list["Body"] = field(default_factory=list)
    at: int = 0


@dataclass(eq=False, slots=True)
class Body:
    """Work in order, what it is given and what it gives."""

    given: list[Value]
    results: list[Value]
    work: list[Work]


def read(closed: Any, mesh_axes: dict[str, int]) -> Body:
    """The program as one body; of its arguments each processor holds its slice."""
    reader = _Reader(mesh_axes)
    jaxpr = closed.jaxpr
    splits = _splits(jaxpr)
    given = [Value(reader.bytes(var.aval, splits.get(var, split_of(var))), var.aval) for var in jaxpr.invars]
    return reader.body(jaxpr, closed.consts, given, "", True)


def _splits(jaxpr: Any) -> dict[Any, Any]:
    """How the arguments that go into a region lie, by what it says of them."""
    found: dict[Any, Any] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            for var, spec in zip(eqn.invars, eqn.params["in_specs"], strict=True):
                if not isinstance(var, Literal):
                    axes = [() if part is None else part if isinstance(part, tuple) else (part,) for part in spec]
                    found[var] = tuple(axes)
    return found


class _Reader:
    def __init__(self, mesh_axes: dict[str, int]):
        self.mesh_axes = mesh_axes

    def bytes(self, aval: Any, split: Any = ()) -> int:
        """The bytes of an array, of which each processor holds a slice."""
        shape, dtype = getattr(aval, "shape", ()), getattr(aval, "dtype", None)
        size = math.prod(shape) * _itemsize(dtype)
        ways = math.prod(self.mesh_axes.get(axis, 1) for axes in split for axis in axes)
        return -(-size // ways)

    def body(self, jaxpr: Any, consts: Sequence[Any], given: list[Value], scopes: str, is_global: bool) -> Body:
        work: list[Work] = []
        for i, value in enumerate(given):
            value.given = i
        names = dict(zip(jaxpr.invars, given, strict=True))
        fixed = [Value(self.bytes(var.aval), var.aval) for var in jaxpr.constvars]
        names |= dict(zip(jaxpr.constvars, fixed, strict=True))
        self._equations(jaxpr, names, scopes, is_global, work)
        return Body(given, [self._value(var, names) for var in jaxpr.outvars], work)

    def _value(self, var: Any, names: dict[Any, Value]) -> Value:
        return Value(0, var.aval) if isinstance(var, Literal) else names[var]

    def _equations(self, jaxpr: Any, names: dict[Any, Value], scopes: str, is_global: bool, work: list[Work]) -> None:
        for eqn in jaxpr.eqns:
            kind = eqn.primitive.name
            within = f"{scopes}/{eqn.source_info.name_stack}"
            operands = [self._value(var, names) for var in eqn.invars]
            if kind in CALLS or (kind not in _BODIES and kind not in PRIMITIVES and self._is_call(eqn)):
                self._call(eqn, operands, names, within, is_global and kind != "shard_map", work)
            elif kind in SAME_BYTES and len(eqn.outvars) <= len(operands) and self._is_same(eqn, operands, is_global):
                names.update(zip(eqn.outvars, operands, strict=False))
            else:
                made = Work(kind, eqn, within, is_global, operands, [])
                made.results = [
                    Value(self.bytes(var.aval, split_of(var) if is_global else ()), var.aval, made)
                    for var in eqn.outvars
                ]
                names.update(zip(eqn.outvars, made.results, strict=True))
                made.bodies = [self._inner(sub, within, is_global) for sub in self._bodies(eqn)]
                work.append(made)

    def _is_same(self, eqn: Any, operands: list[Value], is_global: bool) -> bool:
        sizes = [self.bytes(var.aval, split_of(var) if is_global else ()) for var in eqn.outvars]
        return all(size == value.bytes for size, value in zip(sizes, operands, strict=False))

    def _is_call(self, eqn: Any) -> bool:
        inner = list(jaxprs_in_params(eqn.params))
        return len(inner) == 1 and len(getattr(inner[0], "jaxpr", inner[0]).invars) == len(eqn.invars)

    def _call(
        self, eqn: Any, operands: list[Value], names: dict[Any, Value], scopes: str, is_global: bool, work: list[Work]
    ) -> None:
        sub = next(iter(jaxprs_in_params(eqn.params)))
        jaxpr = getattr(sub, "jaxpr", sub)
        inner = dict(zip(jaxpr.invars, operands, strict=True))
        inner |= {var: Value(self.bytes(var.aval), var.aval) for var in jaxpr.constvars}
        self._equations(jaxpr, inner, scopes, is_global, work)
        names.update(zip(eqn.outvars, (self._value(var, inner) for var in jaxpr.outvars), strict=True))

    def _bodies(self, eqn: Any) -> list[Any]:
        if eqn.primitive.name not in _BODIES:
            return []
        return [getattr(sub, "jaxpr", sub) for sub in jaxprs_in_params(eqn.params)]

    def _inner(self, jaxpr: Any, scopes: str, is_global: bool) -> Body:
        given = [Value(self.bytes(var.aval, split_of(var) if is_global else ()), var.aval) for var in jaxpr.invars]
        return self.body(jaxpr, (), given, scopes, is_global)


_BODIES = frozenset(("scan", "while", "cond"))


def _itemsize(dtype: Any) -> int:
    try:
        return int(np.dtype(dtype).itemsize)
    except TypeError:
        return int(getattr(dtype, "itemsize", 8))  # a random key: two words


def all_work(body: Body) -> Iterator[Work]:
    """All pieces of work, those of bodies after the one they stand in."""
    for work in body.work:
        yield work
        for inner in work.bodies:
            yield from all_work(inner)
