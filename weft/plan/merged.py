"""Collectives that XLA makes once: of what the same body sent before.

A parameter stored split is gathered for each op that uses it. Where two of them stand in one body of the program, with
nothing between that keeps them apart (a loop, a recomputation), XLA's common-subexpression elimination (its pass `cse`)
finds that the second gives what the first gave, and leaves it out.
"""

from collections.abc import Iterator
from typing import Any

from ..graph import VIEWS, Body, Loop, Step, Value
from ..primitives import Role
from ..program import Program
from ..program.ledger import Row, rows_of

_SIMPLE = VIEWS | {Role.CAST, Role.TRANSPOSE, Role.SLICE, Role.BROADCAST, Role.COLLECTIVE}
"""What is compared: the way of a parameter to where it is gathered."""


def merged_rows(program: Program) -> list[Row]:
    """The rows of a ledger that XLA leaves out, as it has sent the same before."""
    return [row for step in _find_repeated(program.reading.graph) for row in rows_of(program.reading, step)]


def _find_repeated(body: Body) -> Iterator[Step]:
    """Collectives of a body, and of its loops, that give what one before them gave."""
    numbers: dict[Value, Any] = {}
    known: dict[Any, int] = {}

    def number(value: Value) -> Any:
        if value.is_literal:
            return "literal", str(value.number)
        return numbers.setdefault(value, ("value", len(numbers)))

    for step in body:
        if isinstance(step, Loop):
            for inner in step.bodies if not step.is_branch else ():
                yield from _find_repeated(inner)
        elif step.kind is Role.VARY:
            numbers.update(zip(step.results, map(number, step.operands), strict=True))
        elif step.kind in _SIMPLE and not step.is_global:
            # What a recomputation is given XLA is told to take for something new.
            key = step.instruction, id(step.remat), tuple(map(number, step.operands))
            if key in known and step.collective is not None:
                yield step
            first = known.setdefault(key, len(known))
            numbers.update((result, ("result", first, i)) for i, result in enumerate(step.results))
