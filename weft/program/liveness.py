"""Which values of a traced program are in memory when: its equations as a line of work, and who needs what how long.

Reads the jaxpr alone. Calls, regions and recomputed parts are inlined; a loop is one piece of work with its body
inside. What a compiler folds into the next kernel is not stored, and what goes into it is then kept that much longer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.extend.core import Literal, jaxprs_in_params

from ..compat import scopes_of
from .noting import CALLS
from .update import is_untyped, split_of
from .walk import loop_parts

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
    random_split random_seed axis_index threefry2x32 gather split""".split()
)
REDUCTIONS = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin".split()
)

BARRIER = "barrier"
"""Before a part that is recomputed: what goes in is stored there, so that the compiler cannot take the part back."""


@dataclass(eq=False, slots=True)
class Value:
    """An array on one processor, and the work that makes it and uses it."""

    bytes: int
    aval: Any
    maker: "Work | None" = None
    given: int | None = None
    """Which of its body's inputs it is, where it is one."""
    is_written: bool = False
    """Whether it is a number in the program."""
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


Size = Callable[[Sequence[int], int], int]
"""The bytes of an array, by its sizes and the bytes of one element."""

_Seen = dict[Any, list[Value]]
"""The results of equations, by what makes them what they are: XLA computes equal ones once."""


def read(closed: Any, mesh_axes: dict[str, int], size: "Size | None" = None) -> Body:
    """The program as one body; of its arguments each processor holds its slice, and `size` says how large that is."""
    reader = _Reader(mesh_axes, size or plain_size)
    jaxpr = closed.jaxpr
    splits = _splits(jaxpr)
    reader.known = {tuple(var.aval.shape): split_of(var) for var in jaxpr.invars if any(split_of(var))}
    given = [Value(reader.bytes(var.aval, splits.get(var, split_of(var))), var.aval) for var in jaxpr.invars]
    body = reader.body(jaxpr, closed.consts, given, "", True)
    used = {id(value) for work in body.work for value in work.operands} | {id(value) for value in body.results}
    for value in body.given:
        value.bytes *= id(value) in used  # jit leaves out what nothing needs
    return body


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
    def __init__(self, mesh_axes: dict[str, int], size: Size):
        self.mesh_axes, self.size = mesh_axes, size
        self.known: dict[tuple[int, ...], Any] = {}
        """How arrays of a shape lie among the arguments, for those of which JAX does not say it."""

    def bytes(self, aval: Any, split: Any = ()) -> int:
        """The bytes of an array, of which each processor holds a slice."""
        shape = list(getattr(aval, "shape", ()))
        if is_untyped(aval):
            split = self.known.get(tuple(shape), ())
        for dim, axes in enumerate(split):
            shape[dim] = -(-shape[dim] // math.prod(self.mesh_axes.get(axis, 1) for axis in axes))
        return self.size(shape, _itemsize(getattr(aval, "dtype", None)))

    def body(self, jaxpr: Any, consts: Sequence[Any], given: list[Value], scopes: str, is_global: bool) -> Body:
        work: list[Work] = []
        for i, value in enumerate(given):
            value.given = i
        names = dict(zip(jaxpr.invars, given, strict=True))
        fixed = [Value(self.bytes(var.aval), var.aval) for var in jaxpr.constvars]
        names |= dict(zip(jaxpr.constvars, fixed, strict=True))
        self._equations(jaxpr, names, scopes, is_global, work, {})
        return Body(given, [self._value(var, names) for var in jaxpr.outvars], work)

    def _value(self, var: Any, names: dict[Any, Value]) -> Value:
        return Value(self.bytes(var.aval), var.aval, is_written=True) if isinstance(var, Literal) else names[var]

    def _equations(
        self, jaxpr: Any, names: dict[Any, Value], scopes: str, is_global: bool, work: list[Work], seen: _Seen
    ) -> None:
        for eqn in jaxpr.eqns:
            kind = eqn.primitive.name
            within = f"{scopes}/{scopes_of(eqn)}"
            operands = [self._value(var, names) for var in eqn.invars]
            if kind in _INLINED and self._is_call(eqn):
                inside = seen
                if eqn.params.get("prevent_cse") and eqn.params.get("differentiated"):
                    inside = {}
                    work.append(Work(BARRIER, eqn, within, is_global, [value for value in operands if value.bytes], []))
                self._call(eqn, operands, names, within, is_global and kind != "shard_map", work, inside)
            elif kind in SAME_BYTES and len(eqn.outvars) <= len(operands) and self._is_same(eqn, operands, is_global):
                names.update(zip(eqn.outvars, operands, strict=False))
            elif (key := self._key(eqn, operands)) is not None and key in seen:
                names.update(zip(eqn.outvars, seen[key], strict=True))
            else:
                made = Work(kind, eqn, within, is_global, operands, [])
                made.results = [
                    Value(self.bytes(var.aval, split_of(var) if is_global else ()), var.aval, made)
                    for var in eqn.outvars
                ]
                names.update(zip(eqn.outvars, made.results, strict=True))
                made.bodies = [self._inner(sub, within, is_global) for sub in self._bodies(eqn)]
                work.append(made)
                if key is not None:
                    seen[key] = made.results

    def _key(self, eqn: Any, operands: list[Value]) -> Any:
        """What two equations have in common that give the same; None where they may not."""
        if eqn.effects or eqn.primitive.name in _BODIES:
            return None
        given = [
            (str(var.val), str(var.aval)) if isinstance(var, Literal) else id(value)
            for var, value in zip(eqn.invars, operands, strict=True)
        ]
        shapes = tuple(var.aval.shape for var in eqn.outvars)
        key = (eqn.primitive.name, shapes, tuple(given), tuple(eqn.params.items()))
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _is_same(self, eqn: Any, operands: list[Value], is_global: bool) -> bool:
        sizes = [self.bytes(var.aval, split_of(var) if is_global else ()) for var in eqn.outvars]
        return all(size == value.bytes for size, value in zip(sizes, operands, strict=False))

    def _is_call(self, eqn: Any) -> bool:
        inner = list(jaxprs_in_params(eqn.params))
        return len(inner) == 1 and len(getattr(inner[0], "jaxpr", inner[0]).invars) == len(eqn.invars)

    def _call(
        self,
        eqn: Any,
        operands: list[Value],
        names: dict[Any, Value],
        scopes: str,
        is_global: bool,
        work: list[Work],
        seen: _Seen,
    ) -> None:
        sub = next(iter(jaxprs_in_params(eqn.params)))
        jaxpr = getattr(sub, "jaxpr", sub)
        inner = dict(zip(jaxpr.invars, operands, strict=True))
        inner |= {var: Value(self.bytes(var.aval), var.aval) for var in jaxpr.constvars}
        self._equations(jaxpr, inner, scopes, is_global, work, seen)
        names.update(zip(eqn.outvars, (self._value(var, inner) for var in jaxpr.outvars), strict=True))

    def _bodies(self, eqn: Any) -> list[Any]:
        if eqn.primitive.name not in _BODIES:
            return []
        return [getattr(sub, "jaxpr", sub) for sub in jaxprs_in_params(eqn.params)]

    def _inner(self, jaxpr: Any, scopes: str, is_global: bool) -> Body:
        given = [Value(self.bytes(var.aval, split_of(var) if is_global else ()), var.aval) for var in jaxpr.invars]
        return self.body(jaxpr, (), given, scopes, is_global)


_BODIES = frozenset(("scan", "while", "cond"))
_INLINED = CALLS | {"remat2"}


def plain_size(shape: Sequence[int], each: int) -> int:
    """The bytes of an array as it is."""
    return math.prod(shape) * each


def tiled_size(shape: Sequence[int], each: int) -> int:
    """The bytes of an array in the tiles of a TPU, 8 by 128 elements, laid so that least is lost.

    >>> tiled_size((6, 1024), 4), tiled_size((384,), 4), tiled_size((), 4)
    (32768, 2048, 512)
    """
    if len(shape) < 2:
        words = -(-math.prod(shape) * each // 4)
        tile = min(1024, max(128, 1 << max(words - 1, 0).bit_length()))
        return -(-words // tile) * tile * 4
    whole = math.prod(shape)
    if whole == 0:
        return 0
    best = None
    for minor, width in enumerate(shape):
        for second, height in enumerate(shape):
            if minor != second:
                rows = next((rows for rows in (1, 2, 4) if height <= rows), -(-height // 8) * 8)
                padded = whole // (width * height) * rows * (-(-width // 128) * 128)
                best = padded if best is None else min(best, padded)
    return max((best or 0) * each, _LEAST_TILED)


_LEAST_TILED = 512


def _itemsize(dtype: Any) -> int:
    try:
        return int(np.dtype(dtype).itemsize)
    except TypeError:
        return int(getattr(dtype, "itemsize", 8))  # a random key: two words


def cast_before_loops(body: Body, size: Size) -> None:
    """Casts as a whole, before a loop, what the loop casts turn by turn, as the XLA of TPUs does."""
    casts: dict[tuple[int, Any], Value] = {}
    for work in list(body.work):
        if work.kind != "scan":
            continue
        inner, first = work.bodies[0], sum(loop_parts(work.eqn))
        for i, piece in enumerate(inner.given[first:], first):
            uses = [each for each in inner.work if piece in each.operands]
            found = [each for each in uses if each.kind == "convert_element_type"]
            is_cast = found and all(each in found or each.kind == BARRIER for each in uses)
            if not is_cast or piece in inner.results or found[0].results[0].bytes >= piece.bytes:
                continue
            dtype, outer = found[0].results[0].aval.dtype, work.operands[i]
            if (id(outer), dtype) not in casts:
                made = Work("convert_element_type", found[0].eqn, found[0].scopes, work.is_global, [outer], [])
                aval = outer.aval.update(dtype=dtype)
                shape = (work.eqn.params["length"], *piece.aval.shape)
                casts[id(outer), dtype] = Value(size(shape, _itemsize(dtype)), aval, made)
                made.results = [casts[id(outer), dtype]]
                body.work.insert(body.work.index(work), made)
            work.operands[i] = casts[id(outer), dtype]
            piece.bytes, piece.aval = found[0].results[0].bytes, found[0].results[0].aval
            _replace(inner, {id(each.results[0]): piece for each in found})
            inner.work = [each for each in inner.work if each not in found]


def cast_before_barriers(body: Body) -> None:
    """Makes of values that are cast after a barrier ones that are cast before it, as the TPU's XLA does."""
    for work in body.work:
        for inner in work.bodies:
            cast_before_barriers(inner)
    for barrier in [work for work in body.work if work.kind == BARRIER]:
        for i, value in enumerate(barrier.operands):
            uses = [work for work in body.work if value in work.operands and work is not barrier]
            is_cast = uses and all(work.kind == "convert_element_type" for work in uses) and value.maker is not None
            if not is_cast or uses[0].results[0].bytes >= value.bytes or value in body.results:
                continue
            barrier.operands[i] = uses[0].results[0]
            body.work.remove(uses[0])
            body.work.insert(body.work.index(barrier), uses[0])


def _replace(body: Body, by: dict[int, Value]) -> None:
    for work in body.work:
        work.operands = [by.get(id(value), value) for value in work.operands]
    body.results = [by.get(id(value), value) for value in body.results]
