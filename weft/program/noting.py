"""An interpreter of a traced program, with a note of each of its steps.

Runs the graph of the program on one processor: the steps of calls stand among the others, loops are gone through turn
by turn, and the notes are nested as the bodies are. What a loop of unknown length does inside is not noted.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..graph import Body, Loop, Step, Value
from ..primitives import VIEWS, Role

Path = tuple[int, ...]
"""Where a step stands: its place in the body, after that of the step whose body it is."""

Note = Callable[[Path, Sequence[Any], Sequence[Any]], Any]
"""What is noted of a step, given where it stands, its operands and its results."""

MOVES = VIEWS | {Role.BROADCAST, Role.TRANSPOSE}
"""What gives the values it is given; of it nothing is noted."""


def note_steps(program: Body, args: Sequence[Any], note: Note) -> Any:
    """The notes of all steps, nested as their bodies are."""
    # Run once: on a CPU most of the time would go into making it fast.
    how = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    constants = [value.number for value in program.constants]

    def run(constants: Sequence[Any], args: Sequence[Any]) -> Any:
        return _run(program, args, note, (), constants)[1]

    return jax.device_get(jax.jit(run, compiler_options=how)(constants, list(args)))


def note_at(notes: Any, path: Path, turns: Sequence[int]) -> Any:
    """The note of one step in one turn of each loop around it."""
    for i in path:
        notes = notes[1][i] if isinstance(notes, tuple) else notes[i]
    return jax.tree.map(lambda x: x[tuple(turns)], notes)


def _run(
    body: Body, args: Sequence[Any], note: Note, path: Path, constants: Sequence[Any] = ()
) -> tuple[list[Any], list[Any]]:
    """The results of a body, and a note for each of its steps."""
    values: dict[Value, Any] = dict(zip(body.inputs, args, strict=True))
    values.update(zip(body.constants, constants, strict=False))
    notes = []

    def array(value: Value) -> Any:
        return values.get(value, value.number)

    for i, step in enumerate(body):
        results, noted = _step(step, [array(value) for value in step.operands], note, (*path, i))
        values.update(zip(step.results, results, strict=True))
        notes.append(noted)
    return [array(value) for value in body.results], notes


def _step(step: Step, args: Sequence[Any], note: Note, path: Path) -> tuple[Sequence[Any], Any]:
    """What a step gives, and its note; what only prints or checks is left out."""
    if not step.results:
        return [], None
    if isinstance(step, Loop) and step.is_scan:
        return _run_scan(step, args, note, path)
    if isinstance(step, Loop) and step.is_branch:
        return _run_branch(step, args, note, path)
    if isinstance(step, Loop):
        results = _run_while(step, args)
    elif step.kind in (Role.COLLECTIVE, Role.VARY):  # alone, a processor gets what it gives
        results = [x.reshape(value.aval.shape) for x, value in zip(args, step.results, strict=True)]
    elif step.kind is Role.AXIS_INDEX:
        results = [jnp.zeros((), "int32")]
    else:
        results = step.run(args)
    return results, None if step.kind in MOVES else note(path, args, results)


def _run_scan(loop: Loop, args: Sequence[Any], note: Note, path: Path) -> tuple[list[Any], Any]:
    """A loop; noted of each turn are the slices it is given, and its steps."""
    (body,), (fixed, carried) = loop.bodies, loop.parts

    def turn(carry: Any, pieces: Any) -> tuple[Any, Any]:
        results, notes = _run(body, [*args[:fixed], *carry, *pieces], note, path)
        return results[:carried], (results[carried:], (note(path, (), pieces), notes))

    how: dict[str, Any] = {"length": loop.turns, "reverse": loop.is_reversed}
    last, (stacked, notes) = lax.scan(turn, list(args[fixed : fixed + carried]), list(args[fixed + carried :]), **how)
    return [*last, *stacked], notes


def _run_branch(branch: Loop, args: Sequence[Any], note: Note, path: Path) -> tuple[list[Any], Any]:
    """A branch; noted is which one was taken, and its steps."""
    sides = [functools.partial(_run, body, note=note, path=(*path, i)) for i, body in enumerate(branch.bodies)]
    shapes = [jax.eval_shape(side, list(args[1:]))[1] for side in sides]

    def alone(i: int, args: Sequence[Any]) -> Any:
        results, notes = sides[i](args)
        unseen = [jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape) for shape in shapes]
        return results, [*unseen[:i], notes, *unseen[i + 1 :]]

    results, notes = lax.switch(args[0], [functools.partial(alone, i) for i in range(len(sides))], list(args[1:]))
    return results, (jnp.clip(args[0], 0, len(sides) - 1), notes)


def _run_while(loop: Loop, args: Sequence[Any]) -> list[Any]:
    """A loop of unknown length, of whose turns nothing is noted."""
    (test, turn), fixed = loop.bodies, loop.parts[0]
    tested = len(test.inputs) - (len(args) - fixed)

    def results(body: Body, same: Sequence[Any], carry: Any) -> Any:
        return _run(body, [*same, *carry], lambda *_: None, ())[0]

    return lax.while_loop(
        lambda carry: results(test, args[:tested], carry)[0],
        lambda carry: results(turn, args[tested:fixed], carry),
        list(args[fixed:]),
    )
