"""Running a traced program as it is on one processor, with a note of each of its equations.

Reads the jaxpr alone. Calls are gone into, loops turn by turn; the notes are nested as the bodies are. What a loop of
unknown length does inside is not noted.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

from ..lower.collectives import PRIMITIVES
from .walk import loop_parts

Path = tuple[int, ...]
"""Where an equation stands: its place in the body, after that of the equation whose body it is."""

Note = Callable[[Path, Sequence[Any], Sequence[Any]], Any]
"""What is noted of an equation, given where it stands, its operands and its results."""

CALLS = frozenset("jit pjit closed_call core_call checkpoint remat custom_jvp_call custom_vjp_call shard_map".split())
"""What leads to the body it calls, once."""
MOVES = frozenset("broadcast_in_dim reshape squeeze transpose copy name stop_gradient pvary".split())
"""What gives the values it is given; of it nothing is noted."""


def noted(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], note: Note) -> Any:
    """The notes of all equations, nested as their bodies are."""
    # Run once: on a CPU most of the time would go into making it fast.
    how = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    run = jax.jit(lambda consts, args: _run(jaxpr, consts, args, note, ())[1], compiler_options=how)
    return jax.device_get(run(list(consts), list(args)))


def note_at(notes: Any, path: Path, turns: Sequence[int]) -> Any:
    """The note of one equation in one turn of each loop around it."""
    for i in path:
        notes = notes[1][i] if isinstance(notes, tuple) else notes[i]
    return jax.tree.map(lambda x: x[tuple(turns)], notes)


def _run(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], note: Note, path: Path) -> tuple[list[Any], list[Any]]:
    """The results of a body, and a note for each of its equations."""
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    notes = []

    def value(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else values[var]

    for i, eqn in enumerate(jaxpr.eqns):
        results, noted = _equation(eqn, [value(var) for var in eqn.invars], note, (*path, i))
        values.update(zip(eqn.outvars, results, strict=True))
        notes.append(noted)
    return [value(var) for var in jaxpr.outvars], notes


def _equation(eqn: Any, args: Sequence[Any], note: Note, path: Path) -> tuple[Sequence[Any], Any]:
    """What an equation gives, and its note; what only prints or checks is left out."""
    kind = eqn.primitive.name
    if not eqn.outvars:
        return [], None
    if kind in CALLS:
        return _run(*body_of(eqn), args, note, path)
    if kind == "scan":
        return _scanned(eqn, args, note, path)
    if kind == "cond":
        return _branched(eqn, args, note, path)
    if kind in PRIMITIVES or kind == "pvary":  # alone, a processor gets what it gives
        results = [x.reshape(var.aval.shape) for x, var in zip(args, eqn.outvars, strict=True)]
    elif kind == "axis_index":
        results = [jnp.zeros((), "int32")]
    elif kind == "while":
        results = _looped(eqn, args)
    else:
        found = eqn.primitive.bind(*args, **eqn.params)
        results = list(found) if eqn.primitive.multiple_results else [found]
    return results, None if kind in MOVES else note(path, args, results)


def body_of(eqn: Any) -> tuple[Any, Sequence[Any]]:
    """The body of a call and its constants."""
    found = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
    return getattr(found, "jaxpr", found), getattr(found, "consts", ())


def _scanned(eqn: Any, args: Sequence[Any], note: Note, path: Path) -> tuple[list[Any], Any]:
    """A loop; noted of each turn are the slices it is given, and its equations."""
    body, (fixed, carried) = eqn.params["jaxpr"], loop_parts(eqn)

    def turn(carry: Any, pieces: Any) -> tuple[Any, Any]:
        found, notes = _run(body.jaxpr, body.consts, [*args[:fixed], *carry, *pieces], note, path)
        return found[:carried], (found[carried:], (note(path, (), pieces), notes))

    how = {name: eqn.params[name] for name in ("length", "reverse")}
    last, (stacked, notes) = lax.scan(turn, list(args[fixed : fixed + carried]), list(args[fixed + carried :]), **how)
    return [*last, *stacked], notes


def _branched(eqn: Any, args: Sequence[Any], note: Note, path: Path) -> tuple[list[Any], Any]:
    """A branch; noted is which one was taken, and its equations."""
    bodies = [
        functools.partial(_run, body.jaxpr, body.consts, note=note, path=(*path, i))
        for i, body in enumerate(eqn.params["branches"])
    ]
    shapes = [jax.eval_shape(body, list(args[1:]))[1] for body in bodies]

    def alone(i: int, args: Sequence[Any]) -> Any:
        results, own = bodies[i](args)
        unseen = [jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape) for shape in shapes]
        return results, [*unseen[:i], own, *unseen[i + 1 :]]

    results, notes = lax.switch(args[0], [functools.partial(alone, i) for i in range(len(bodies))], list(args[1:]))
    return results, (jnp.clip(args[0], 0, len(bodies) - 1), notes)


def _looped(eqn: Any, args: Sequence[Any]) -> list[Any]:
    """A loop of unknown length, of whose turns nothing is noted."""
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    first = eqn.params["cond_nconsts"]
    last = first + eqn.params["body_nconsts"]

    def results(closed: Any, own: Sequence[Any], carry: Any) -> Any:
        return _run(closed.jaxpr, closed.consts, [*own, *carry], lambda *_: None, ())[0]

    return lax.while_loop(
        lambda carry: results(test, args[:first], carry)[0],
        lambda carry: results(body, args[first:last], carry),
        list(args[last:]),
    )
