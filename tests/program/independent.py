"""What a program sends, read a second and a third time: off its jaxpr, and off the code XLA made of it.

Nothing here knows weft's own ledger. Both give bytes by collective and mesh axes; a reduction and an exchange count
what one processor puts in, a gather what it gets out, loops count every turn and a branch its larger side.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from weft.plan.sent import read_collectives

Sent = Counter[tuple[str, frozenset[str]]]

# For the CPU: its machine code is not optimized, which changes none of the compiled code read here.
QUICKLY = {"xla_backend_optimization_level": 0}

# Off the jaxpr.

REDUCED = {"psum", "psum2", "psum_invariant", "pmax", "pmin"}
EXCHANGED = {
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "psum_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "ppermute": "permute",
}


def walk(closed: Any) -> Sent:
    """The bytes of a closed jaxpr's collectives."""
    return _walked(closed.jaxpr, 1)


def _walked(jaxpr: Any, times: int) -> Sent:
    found: Sent = Counter()
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in REDUCED:
            found["all_reduce", frozenset(eqn.params["axes"])] += times * _size(eqn.invars)
        elif name in EXCHANGED:
            axes = eqn.params["axis_name"]
            axes = frozenset(axes if isinstance(axes, tuple) else (axes,))
            found[EXCHANGED[name], axes] += times * _size(eqn.outvars if "gather" in name else eqn.invars)
        elif name == "cond":
            found += max((_walked(branch.jaxpr, times) for branch in eqn.params["branches"]), key=Counter.total)
        else:
            turns = times * eqn.params["length"] if name == "scan" else times
            for inner in _jaxprs(tuple(eqn.params.values())):
                found += _walked(inner, turns)
    return found


def _size(variables: Any) -> int:
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)


def _jaxprs(value: Any) -> Iterator[Any]:
    if hasattr(value, "eqns"):
        yield value
    elif hasattr(value, "jaxpr"):
        yield value.jaxpr
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _jaxprs(item)


# Off the compiled code.


def compiled(text: str, mesh: dict[str, int]) -> Sent:
    """The bytes of the collectives of a compiled module, by the axes of the mesh its processors are numbered on."""
    found: Sent = Counter()
    for sent in read_collectives(text, mesh):
        found[sent.collective, frozenset(sent.axes)] += sent.bytes * sent.count
    return found


@dataclasses.dataclass(frozen=True)
class Less:
    """By how many bytes XLA sends less than the program, and the passes that bring it about."""

    bytes: dict[tuple[str, str], int]
    passes: str


def difference(one: Sent, other: Sent) -> dict[tuple[str, str], int]:
    """One less the other, where they differ."""
    keys = itertools.chain(one, other)
    return {
        (kind, "+".join(sorted(axes))): one[kind, axes] - other[kind, axes]
        for kind, axes in keys
        if one[kind, axes] != other[kind, axes]
    }
