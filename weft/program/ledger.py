"""The ledger: every collective of a program, how often it runs and how much it carries.

Read off the traced jaxpr alone, which is what is compiled. A loop of known length multiplies what is in it, a branch
counts its larger side, and a `while_loop` counts one turn.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend.core import jaxprs_in_params

from ..ops.collectives import PRIMITIVES


@dataclass(frozen=True)
class Row:
    """One collective: what one call of it carries on one processor, and how many calls there are."""

    collective: str
    axes: tuple[str, ...]
    dtype: str
    bytes: int
    count: int

    def __str__(self) -> str:
        return f"{self.collective} over {'+'.join(self.axes)}  {self.bytes} B x{self.count}  {self.dtype}"


class Ledger:
    """The collectives of a program, one row each."""

    def __init__(self, rows: list[Row]):
        self.rows = rows

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def bytes(self, axis: str | None = None) -> int:
        """Bytes of all calls; with `axis`, of those that go over it."""
        return sum(row.bytes * row.count for row in self.rows if axis is None or axis in row.axes)

    def count(self, axis: str | None = None) -> int:
        """The number of all calls; with `axis`, of those that go over it."""
        return sum(row.count for row in self.rows if axis is None or axis in row.axes)


def read(closed: Any) -> Ledger:
    """The ledger of a closed jaxpr."""
    return Ledger(list(_rows(closed.jaxpr, 1)))


def _rows(jaxpr: Any, times: int) -> Iterator[Row]:
    for eqn in jaxpr.eqns:
        if (kind := PRIMITIVES.get(eqn.primitive.name)) is not None:
            yield from _row(eqn, kind, times)
            continue
        inner = [getattr(sub, "jaxpr", sub) for sub in jaxprs_in_params(eqn.params)]
        turns = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        if eqn.primitive.name == "cond":
            yield from max((list(_rows(sub, turns)) for sub in inner), key=lambda rows: Ledger(rows).bytes())
        else:
            for sub in inner:
                yield from _rows(sub, turns)


def _row(eqn: Any, kind: str, times: int) -> Iterator[Row]:
    axes = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
    axes = axes if isinstance(axes, tuple) else (axes,)
    carried = eqn.outvars if kind == "all_gather" else eqn.invars
    for var in carried:
        size = math.prod(var.aval.shape) * var.aval.dtype.itemsize
        yield Row(kind, tuple(map(str, axes)), str(var.aval.dtype), size, times)
