"""Prefetch (FSDP): stored parameters gathered one turn of a loop ahead of use.

A loop's turn is cut in two programs: what gathers of the turn's own slices, and what computes with that. Each turn
computes with what the one before it gathered, and gathers beside that for the next. The backward pass does the same
the other way round by a rule of its own: differentiated as it stands, the loop would keep every layer gathered.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, get_opaque_trace_state, jaxpr_as_fun

from ..compat import is_on_host, recomputing, to_host, without_dead_code
from ..graph import cut_at, keep_results, uses_inputs
from ..lower.collectives import as_varying, varying
from ..lower.fetch import Fetched, collect
from ..lower.recorded import rehearse
from .branches import outputs

Arrays = Sequence[Any]


def gather_ahead(run: Callable[[], Any]) -> list[Fetched | None]:
    """What `run()` gathers, in the order of uses; None for what it gathers itself."""
    uses: list[Fetched | None] = []
    here = get_opaque_trace_state()

    def trace() -> ClosedJaxpr:
        def gather() -> list[Any]:
            with collect(here) as collected:
                run()
            uses[:] = collected
            return [use.array for use in collected if use is not None]

        return jax.make_jaxpr(gather)()

    closed = rehearse(trace)
    arrays = iter(outputs(keep_results(closed, range(len(closed.out_avals))), closed.consts))
    return [None if use is None else replace(use, array=next(arrays)) for use in uses]


def scan_ahead(
    closed: ClosedJaxpr, carry: Arrays, xs: Arrays, ahead: int, *, length: int, reverse: bool, unroll: int
) -> tuple[list[Any], list[Any]]:
    """A scan of a program whose last `ahead` results are what its turn gathers."""
    turn = _Turn(closed, len(carry), ahead)
    shared = [*closed.consts, *turn.gather_fixed()]
    if turn.gathers:
        return _LoopAhead(turn, length, reverse, unroll)(shared, list(carry), list(xs))

    def step(carry: Arrays, x: Arrays) -> tuple[list[Any], list[Any]]:
        return turn.compute(shared, carry, x, [])

    return lax.scan(step, list(carry), list(xs), length=length, reverse=reverse, unroll=unroll)


class _Turn:
    """One turn of a loop, cut in what it gathers and what it computes with that."""

    def __init__(self, closed: ClosedJaxpr, carried: int, ahead: int):
        self._consts, self._carried = closed.consts, carried
        count, last, fixed, own = len(closed.consts), len(closed.out_avals) - ahead, [], []
        for i in range(last, len(closed.out_avals)):
            used = uses_inputs(keep_results(closed, [i]))
            if not any(used[count:]):
                fixed.append(i)  # the same in all turns
            elif not any(used[count : count + carried]):
                own.append(i)
        self._fixed, self._own = keep_results(closed, fixed), keep_results(closed, own)
        self._compute = cut_at(closed, [*fixed, *own], range(last))
        self.gathers = bool(own)
        """Whether there is something that a turn gathers of its own slices."""

    def gather_fixed(self) -> list[Any]:
        """What every turn computes with, gathered."""
        return jaxpr_as_fun(self._fixed.replace(jaxpr=self._fixed.jaxpr.replace(invars=[])))()

    def gather(self, shared: Arrays, x: Arrays) -> list[Any]:
        """What the turn of these slices computes with, gathered."""
        jaxpr = self._own.jaxpr.replace(invars=self._own.jaxpr.invars[self._carried :])
        return outputs(self._own.replace(jaxpr=jaxpr), [*shared[: len(self._consts)], *x])

    def compute(self, shared: Arrays, carry: Arrays, x: Arrays, own: Arrays) -> tuple[list[Any], list[Any]]:
        """The carry after the turn, and the turn's results."""
        count = len(self._consts)
        made = outputs(self._compute, [*shared[:count], *carry, *x, *shared[count:], *own])
        return made[: self._carried], made[self._carried :]


class _LoopAhead:
    """A loop whose turns gather for one another, forward and backward."""

    def __init__(self, turn: _Turn, length: int, reverse: bool, unroll: int):
        self.turn, self.length, self.reverse, self.unroll = turn, length, reverse, unroll

    def __call__(self, shared: Arrays, carry: Arrays, xs: Arrays) -> Any:
        @jax.custom_vjp
        def run(*values: Any) -> Any:
            return self._run(self.turn.compute, *values)

        def forward(*primals: Any) -> Any:
            values, wanted = ([[read(p) for p in part] for part in primals] for read in (_value, _is_wanted))
            linear = _TurnGradients(self.turn, values, wanted)
            last, stacks = self._run(linear.compute, *values)
            count = len(stacks) - linear.kept
            transpose = functools.partial(self._transpose, linear)
            return (last, stacks[:count]), jax.tree_util.Partial(transpose, values[0], values[2], stacks[count:])

        run.defvjp(forward, lambda transpose, gradients: transpose(gradients), symbolic_zeros=True)
        return run(shared, carry, xs)

    def _run(self, compute: Callable[..., Any], shared: Arrays, carry: Arrays, xs: Arrays) -> Any:
        """The last carry, and what the turns make stacked."""

        def step(carry: Arrays, own: Arrays, stacks: Arrays, turn: Any, *, is_last: bool = False) -> Any:
            following = [] if is_last else self.turn.gather(shared, self._slices(xs, turn + 1))
            carry, made = compute(shared, carry, self._slices(xs, turn), own)
            return carry, following, self._write(stacks, made, turn)

        own = self.turn.gather(shared, self._slices(xs, 0))
        made = jax.make_jaxpr(lambda c, o: compute(shared, c, self._slices(xs, 0), o)[1])(carry, own)
        state = list(carry), own, self._stacks(made.out_avals)
        state = self._loop(step, state, jnp.arange(self.length - 1))
        last, _, stacks = _without_dead(functools.partial(step, is_last=True), *state, self.length - 1)
        return last, stacks

    def _transpose(self, linear: "_TurnGradients", shared: Arrays, xs: Arrays, stacks: Arrays, gradients: Any) -> Any:
        """The gradients of what all turns share, of the first carry and of the slices."""
        of_carry, of_results = linear.read_gradients(*gradients)

        def step(
            of_carry: Arrays, own: Arrays, of_shared: Arrays, of_xs: Arrays, turn: Any, *, is_last: bool = False
        ) -> Any:
            with recomputing():
                following = [] if is_last else self.turn.gather(shared, self._slices(xs, turn - 1))
            x, kept, of_made = (self._slices(stack, turn) for stack in (xs, stacks, of_results))
            more, of_carry, of_x = linear.transpose(shared, x, own, kept, of_carry, of_made)
            of_shared = [a + b for a, b in zip(of_shared, more, strict=True)]
            return of_carry, following, of_shared, self._write(of_xs, of_x, turn)

        with recomputing():
            own = self.turn.gather(shared, self._slices(xs, self.length - 1))
        of_shared, of_xs = ([_zeros(v) for v in _pick(part, linear.wanted[i])] for part, i in ((shared, 0), (xs, 2)))
        state = self._loop(step, (of_carry, own, of_shared, of_xs), jnp.arange(1, self.length), reverse=True)
        of_carry, _, of_shared, of_xs = _without_dead(functools.partial(step, is_last=True), *state, 0)
        return tuple(map(_fill, linear.wanted, (of_shared, of_carry, of_xs)))

    def _loop(self, step: Callable[..., Any], state: Any, turns: Any, *, reverse: bool = False) -> Any:
        def body(state: Any, turn: Any) -> Any:
            return _without_dead(step, *state, turn), None

        return lax.scan(body, state, turns, reverse=reverse, unroll=self.unroll)[0] if len(turns) else state

    def _at(self, turn: Any) -> Any:
        return self.length - 1 - turn if self.reverse else turn

    def _slices(self, stacks: Arrays, turn: Any) -> list[Any]:
        return [lax.dynamic_index_in_dim(x, self._at(turn), keepdims=False) for x in stacks]

    def _write(self, stacks: Arrays, made: Arrays, turn: Any) -> list[Any]:
        at = self._at(turn)
        return [lax.dynamic_update_index_in_dim(s, m, at, 0) for s, m in zip(stacks, made, strict=True)]

    def _stacks(self, avals: Arrays) -> list[Any]:
        return [_zeros(aval, (self.length, *aval.shape)) for aval in avals]


class _TurnGradients:
    """A turn's gradients: what is kept of it for them, and what is made again.

    Kept is what depends on the carry. The rest follows from the slices and what is gathered of them again.
    """

    def __init__(self, turn: _Turn, values: Sequence[Arrays], wanted: Sequence[Sequence[bool]]):
        shared, carry, xs = values
        self.turn = turn
        self.wanted = [wanted[0], [_is_float(value) for value in carry], wanted[2]]
        """Of what all turns share, of the carry and of the slices: by what is differentiated."""

        def trace(shared: Arrays, carry: Arrays, xs: Arrays) -> list[Any]:
            x = [lax.index_in_dim(x, 0, keepdims=False) for x in xs]
            self._program = jax.make_jaxpr(self._linearize)(shared, carry, x, turn.gather(shared, x))
            return []

        jax.make_jaxpr(trace)(shared, carry, xs)
        first = len(self._program.out_avals) - self._count
        self._results, self._carried = self._program.out_avals[:first], len(carry)
        before, again = len(self._program.consts) + len(shared), []
        kept: dict[Any, int] = {}
        self._at: list[int | None] = []
        """For each array the gradients are made with its place among what is kept; None for what is made again."""
        for i, var in enumerate(self._program.jaxpr.outvars[first:], first):
            if any(uses_inputs(keep_results(self._program, [i]))[before : before + len(carry)]):
                self._at.append(list(kept).index(var) if var in kept else len(kept))
                kept.setdefault(var, i)
            else:
                self._at.append(None)
                again.append(i)
        self._forward = cut_at(self._program, [], [*range(first), *kept.values()])
        self._again = keep_results(self._program, again)
        self.kept = len(kept)

    def _linearize(self, shared: Arrays, carry: Arrays, x: Arrays, own: Arrays) -> list[Any]:
        """The turn's carry and results, and the arrays its gradients are made with."""
        values = shared, carry, x

        def make(chosen: Sequence[Arrays]) -> Any:
            shared, carry, x = map(_replace, values, self.wanted, chosen)
            carry, results = self.turn.compute(shared, carry, x, own)
            return [*carry, *results]

        results, transpose = jax.vjp(make, list(map(_pick, values, self.wanted)))
        arrays, self._tree = jax.tree.flatten(transpose)
        self._count = len(arrays)
        return [*results, *arrays]

    def compute(self, shared: Arrays, carry: Arrays, x: Arrays, own: Arrays) -> tuple[list[Any], list[Any]]:
        """The carry after the turn, its results and what is kept of it."""
        made = jaxpr_as_fun(self._forward)(*shared, *carry, *x, *own)
        return made[: len(carry)], made[len(carry) :]

    def transpose(
        self, shared: Arrays, x: Arrays, own: Arrays, kept: Arrays, of_carry: Arrays, of_made: Arrays
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """The gradients of what is shared, of the carry before the turn, of the slices."""
        before = [_zeros(aval) for aval in self._again.in_avals[len(shared) : len(shared) + self._carried]]
        again = iter(jaxpr_as_fun(self._again)(*shared, *before, *x, *own))
        arrays = [next(again) if at is None else kept[at] for at in self._at]
        gradients = iter([*of_carry, *of_made])
        transposed = jax.tree.unflatten(self._tree, arrays)
        (slopes,) = transposed(
            [next(gradients) if _is_float(a) else np.zeros(a.shape, jax.dtypes.float0) for a in self._results]
        )
        return slopes

    def read_gradients(self, of_carry: Arrays, of_results: Arrays) -> list[list[Any]]:
        """The gradients of floats among a loop's results, where there are none zeros."""
        return [
            [_zeros(g.aval) if isinstance(g, SymbolicZero) else g for g in part if _is_float(g)]
            for part in (of_carry, of_results)
        ]


def _value(primal: Any) -> Any:
    return primal.value


def _is_wanted(primal: Any) -> bool:
    return primal.perturbed and _is_float(primal.value)


def _is_float(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact)


def _pick(values: Arrays, flags: Sequence[bool]) -> list[Any]:
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def _replace(values: Arrays, flags: Sequence[bool], chosen: Arrays) -> list[Any]:
    left = iter(chosen)
    return [next(left) if flag else value for value, flag in zip(values, flags, strict=True)]


def _fill(flags: Sequence[bool], chosen: Arrays) -> list[Any]:
    return _replace([None] * len(flags), flags, chosen)


def _zeros(like: Any, shape: Sequence[int] | None = None) -> Any:
    """Zeros that vary as a value does, in the memory where it lies."""
    zeros = as_varying(jnp.zeros(like.shape if shape is None else shape, like.dtype), varying(like))
    return to_host(zeros) if is_on_host(like) else zeros


def _without_dead(fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)` without what nothing needs of it: gathers done for their gradient."""
    closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
    lean = ClosedJaxpr(without_dead_code(closed.jaxpr), closed.consts)
    return jax.tree.unflatten(jax.tree.structure(shapes), jaxpr_as_fun(lean)(*jax.tree.leaves(args)))
