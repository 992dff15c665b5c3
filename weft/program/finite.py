"""Where a program's results stop being finite: the first bad value is named.

Reads the graph and the record that are printed, for a mesh of one processor. The program is compiled twice: once with a
note of each value that says whether it is finite, once more with all there is to say of the few that matter.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..dims import Shape
from ..errors import short_path
from ..graph import Body, Loop, Step, Value
from ..layout import Layout
from ..mesh import Mesh
from ..primitives import Role
from ..record import Entry, Placed
from ..spmd import bind
from ..spmd.partition import partition
from .noting import MOVES, Path, note_at, note_steps
from .reading import Reading
from .trace import trace

FINITE, INFINITE, NAN = range(3)
_PARTS = MOVES | {Role.CAST, Role.SLICE, Role.SPLIT}
"""What gives the values it is given, or some of them."""


@dataclass(frozen=True)
class Bad:
    """Values that are not finite: their kind, how many, and where the first is."""

    kind: str
    """`NaN`, or `inf` where there is none."""
    count: int
    size: int
    index: tuple[int, ...]
    dims: tuple[str, ...] = ()
    """What the places are along, where that is known."""

    def __str__(self) -> str:
        if not self.index:
            return self.kind
        named = ", ".join(f"{dim} {i}" for dim, i in zip(self.dims, self.index, strict=False))
        return f"{self.kind} in {self.count:,} of {self.size:,} values, the first at {named or list(self.index)}"


@dataclass(frozen=True)
class BadArgument:
    """An argument that is not finite; a number in the program has no name."""

    name: str
    bad: Bad

    def __str__(self) -> str:
        return f"`{self.name}` has {self.bad}"


@dataclass(frozen=True)
class BadOperation:
    """An operation that made values that are not finite."""

    op: str
    source: str
    """The file, the line and the function; empty where that is not known."""
    phase: str
    turns: tuple[str, ...]
    """The turns of the loops around it: `layers 1`."""
    bad: Bad
    largest: float | None
    """The largest number it was given, where all were finite."""

    def __str__(self) -> str:
        at = f" at {self.source}" if self.source else ""
        of = "" if self.largest is None else f", given numbers up to {self.largest:.3g}"
        return f"`{self.op}`{at} ({', '.join((self.phase, *self.turns))}) gave {self.bad}{of}"


@dataclass(frozen=True)
class NotFinite:
    """Why results are not finite: arguments, and the operations that made it so."""

    given: tuple[BadArgument, ...] = ()
    made: tuple[BadOperation, ...] = ()
    """At most two: one that made an infinity of finite numbers, and one that made NaN of that."""
    results: tuple[int, ...] = ()
    """Which results are not finite, counted from 0."""

    def __bool__(self) -> bool:
        return bool(self.results)


def not_finite(fn: Callable[..., Any], *args: Any) -> NotFinite:
    """What first made the results of `fn(*args)` not finite, on one processor."""
    bound = bind(fn, Mesh("all=1"), Layout(""))
    program, arrays = trace(bound, *args), partition(args).arrays
    inputs = bound.inputs(*args)
    bad = [_bad_in(x, described.dims) for x, described in zip(arrays, inputs, strict=True)]
    given = [None if x is None else BadArgument(described.name, x) for described, x in zip(inputs, bad, strict=True)]
    body = program.reading.graph
    notes = note_steps(body, arrays, lambda path, args, results: _sums(results))
    search = _Search(program.reading)
    origins = search.body(body, notes, given, _Context())
    results = tuple(i for i, origin in enumerate(origins) if origin is not None)
    spots = [origin for origin in origins if isinstance(origin, _Spot)]
    if not spots:
        return NotFinite(tuple(filter(None, given)), (), results)
    last = min(spots, key=lambda spot: spot.number)
    spots = [last] if last.first is last else [last.first, last]
    watched = {spot.path: spot for spot in spots}

    def note(path: Path, args: Sequence[Any], results: Sequence[Any]) -> Any:
        return _details(args, results[watched[path].result]) if path in watched else None

    notes = note_steps(body, arrays, note)
    return NotFinite(tuple(filter(None, given)), tuple(search.describe(spot, notes) for spot in spots), results)


@dataclass(frozen=True)
class _Context:
    """What holds for every step of a body."""

    path: Path = ()
    turns: tuple[tuple[str, int], ...] = ()
    """The dims, or other words, of the loops around it, and which turn of each."""


@dataclass(frozen=True)
class _Spot:
    """A step that made a value that is not finite."""

    number: int
    """How many were found before it."""
    path: Path
    result: int
    code: int
    step: Step = field(repr=False)
    around: _Context = field(repr=False)
    cause: "_Spot | BadArgument | None"
    """What of what it was given was not finite."""

    @property
    def first(self) -> "_Spot":
        """Where it began: an infinity, unless the program says it, as in a mask."""
        if not isinstance(self.cause, _Spot):
            return self
        found = self.cause.first
        return self if isinstance(found.cause, BadArgument) and not found.cause.name else found


_Origin = _Spot | BadArgument | None


class _Search:
    """Follows values that are not finite from step to step."""

    def __init__(self, reading: Reading):
        self.reading, self.count = reading, 0

    def body(self, body: Body, notes: Sequence[Any], origins_in: Sequence[_Origin], around: _Context) -> list[_Origin]:
        """Where results of a body that are not finite come from; None for others."""
        origins: dict[Value, _Origin] = dict(zip(body.inputs, origins_in, strict=True))

        def origin(value: Value) -> _Origin:
            if value not in origins:
                origins[value] = None if value.number is None else _written_number(value.number)
            return origins[value]

        for i, (step, note) in enumerate(zip(body, notes, strict=True)):
            inside = replace(around, path=(*around.path, i))
            results = self._results(step, note, [origin(value) for value in step.operands], inside)
            origins |= dict(zip(step.results, results, strict=True))
        return [origin(value) for value in body.results]

    def _results(self, step: Step, note: Any, origins: list[_Origin], around: _Context) -> Sequence[_Origin]:
        if isinstance(step, Loop) and step.is_scan:
            return self._scan(step, note, origins, around)
        if isinstance(step, Loop) and step.is_branch:
            taken, inner = note
            inside = replace(around, path=(*around.path, int(taken)))
            return self.body(step.bodies[taken], inner[taken], origins[1:], inside)
        if step.kind in MOVES:
            return origins[: len(step.results)]
        return [self._result(step, i, _code(total), origins, around) for i, total in enumerate(note or ())]

    def _result(self, step: Step, i: int, code: int, origins: list[_Origin], around: _Context) -> _Origin:
        """Where a result comes from: NaN of NaN, infinity of nonfinite, else this step."""
        if code == FINITE:
            return None
        if (step.kind in _PARTS or step.collective == "all_gather") and origins[0] is not None:
            return origins[0]
        spots = [origin for origin in origins if isinstance(origin, _Spot)]
        if passed := next((spot for spot in spots if code == INFINITE or spot.code == NAN), None):
            return passed
        causes: list[_Spot | BadArgument] = [*spots, *(origin for origin in origins if isinstance(origin, BadArgument))]
        self.count += 1
        return _Spot(self.count, around.path, i, code, step, around, causes[0] if causes else None)

    def _scan(self, loop: Loop, note: Any, origins: list[_Origin], around: _Context) -> list[_Origin]:
        (body,), (fixed, carried) = loop.bodies, loop.parts
        entry = self.reading.entry(loop.op)
        word = entry.over[0] if entry is not None and entry.is_block and entry.over else "turn"
        carry = origins[fixed : fixed + carried]
        stacked: list[_Origin] = [None] * (len(loop.results) - carried)
        turns = range(loop.turns or 0)
        for turn in reversed(turns) if loop.is_reversed else turns:
            sums, inner = jax.tree.map(lambda x: x[turn], note)  # noqa: B023
            pieces = [origin if _code(x) else None for origin, x in zip(origins[fixed + carried :], sums, strict=True)]
            inside = replace(around, turns=(*around.turns, (word, turn)))
            results = self.body(body, inner, [*origins[:fixed], *carry, *pieces], inside)
            carry = results[:carried]
            stacked = [old or new for old, new in zip(stacked, results[carried:], strict=True)]
        return [*carry, *stacked]

    # Naming.

    def describe(self, spot: _Spot, notes: Any) -> BadOperation:
        """What there is to say of a step, given the details noted of it."""
        entry, phase = self.reading.entry(spot.step.op), spot.step.phase
        note = note_at(notes, spot.path, [turn for _, turn in spot.around.turns])
        shape = spot.step.results[spot.result].aval.shape
        return BadOperation(
            op=spot.step.row.name if entry is None else entry.op,
            source=self._source(entry),
            phase=phase,
            turns=tuple(f"{word} {turn}" for word, turn in spot.around.turns),
            bad=_bad(spot.code, note, shape, _dims_of(entry, phase, shape)),
            largest=float(note["largest"]) if spot.cause is None and note["largest"] is not None else None,
        )

    def _source(self, entry: Entry | None) -> str:
        if entry is None or entry.code is None:
            return ""
        site = self.reading.site(entry)
        return f"{short_path(entry.code.co_filename)}:{site.line} in {site.function}"


def _dims_of(entry: Entry | None, phase: str, shape: tuple[int, ...]) -> Shape | None:
    """The dims of a value of an op, where its sizes leave no doubt."""
    if entry is None or len(set(shape)) < len(shape):
        return None
    near: list[Placed | None] = [*entry.results, *entry.operands]
    if phase == "backward":
        near = [*entry.operands, *entry.results]
    return next((placed.dims for placed in near if placed is not None and placed.dims.sizes == shape), None)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype if hasattr(x, "dtype") else np.result_type(x), jnp.inexact)


def _sums(values: Sequence[Any]) -> list[Any]:
    """For each value 0, NaN or infinity; None where it is surely finite."""
    # A maximum would be shorter, and on a CPU XLA's passes over NaN.
    return [jnp.sum(jnp.where(jnp.isfinite(x), 0, jnp.abs(x))) if _is_float(x) else None for x in values]


def _code(total: Any) -> int:
    return FINITE if total is None or np.isfinite(total) else NAN if np.isnan(total) else INFINITE


def _details(args: Sequence[Any], x: Any) -> dict[str, Any]:
    """How many numbers are NaN and inf, the first of each, and the largest operand."""
    nan, inf = jnp.isnan(x).ravel(), jnp.isinf(x).ravel()
    sizes = [_largest(arg) for arg in args if _is_float(arg) and arg.size]
    return {
        "count": jnp.stack([jnp.sum(inf), jnp.sum(nan)]),
        "first": jnp.stack([jnp.argmax(inf), jnp.argmax(nan)]),
        "largest": functools.reduce(jnp.maximum, sizes) if sizes else None,
    }


def _largest(x: Any) -> Any:
    size = jnp.abs(x).astype("float32")
    return jnp.max(jnp.where(jnp.isfinite(size), size, 0))


def _bad(code: int, note: dict[str, Any], shape: Sequence[int], dims: Shape | None) -> Bad:
    count, first = int(note["count"][code - 1]), int(note["first"][code - 1])
    # Compiled anew, numbers may be rounded otherwise: then no more is known than the kind.
    index = tuple(int(i) for i in np.unravel_index(first, shape)) if count else ()
    return Bad("NaN" if code == NAN else "inf", count, math.prod(shape), index, () if dims is None else dims.names)


def _bad_in(x: Any, dims: Shape | None = None) -> Bad | None:
    """What is not finite of a value at hand."""
    if not _is_float(x):
        return None
    array = np.asarray(x)
    array = array.astype("float32") if array.dtype.itemsize < 4 else array
    nan, inf = np.isnan(array), np.isinf(array)
    if not (nan.any() or inf.any()):
        return None
    found = {"count": [inf.sum(), nan.sum()], "first": [inf.argmax(), nan.argmax()]}
    return _bad(NAN if nan.any() else INFINITE, found, array.shape, dims)


def _written_number(value: Any) -> BadArgument | None:
    """A number written in the program, if it is not finite."""
    bad = _bad_in(value)
    return None if bad is None else BadArgument("", bad)
