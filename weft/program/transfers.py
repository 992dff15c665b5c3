"""Transfers between the memory of the host and that of the processors (offload).

Each is a row like those of the ledger, over `host` in the place of mesh axes: a `fetch` comes from the host, a `store`
goes there. No processor sends to another by it, so that the ledger's own rows and sums have none.
"""

import math
from typing import Any

from ..compat import is_on_host
from ..graph import Step, Tree, steps
from ..layout import HOST
from ..primitives import Role
from ..text import plural, size_text
from .ledger import Ledger, Row
from .reading import Reading
from .update import split_of


def transfers_of(reading: Reading, step: Step) -> list[Row]:
    """The rows of one equation: one for each array it brings to the other memory."""
    if step.kind is not Role.TRANSFER:
        return []
    entry = reading.entry(step.op)
    site = reading.update_site if step.phase == "update" else reading.site(entry)
    ways = [_ways(reading, step, value) for value in step.operands]
    return [
        Row(
            collective="store" if is_on_host(value.aval) else "fetch",
            axes=(HOST,),
            dims=(),
            dtype=str(value.aval.dtype),
            bytes=math.prod(value.aval.shape) * value.aval.dtype.itemsize // over,
            count=step.count,
            phase=step.phase,
            source=str(site),
            function=site.function,
            reason=_reason(step),
            exact=True,
            ways=1,
            is_each_turn=step.is_each_turn,
        )
        for value, over in zip(step.results, ways, strict=True)
    ]


def _ways(reading: Reading, step: Step, value: Any) -> int:
    """Into how many slices a global value is split."""
    split = split_of(value) if step.is_global else ()
    return math.prod(reading.mesh.axes[axis] for axes in split for axis in axes)


def _reason(step: Step) -> str:
    if step.phase == "update":
        return "because it lies on the host and is updated here, in pieces"
    if step.origin is not None:
        return f"because {step.origin.name} lies on the host (`params.` rules)"
    if step.phase == "backward" and is_on_host(step.results[0].aval):
        return "because the gradient of what lies on the host goes there"
    return "because remat keeps it on the host"


def read_transfers(reading: Reading) -> Ledger:
    """All transfers of a program, in its order."""

    def count_moved(tree: Tree) -> float:
        return sum(row.bytes * row.count for step in steps(tree, count_moved) for row in transfers_of(reading, step))

    return Ledger([row for step in steps(reading.graph, count_moved) for row in transfers_of(reading, step)], [HOST])


def transfers_text(transfers: Ledger) -> list[str]:
    """One line: what is fetched from the host and what is stored there, if any."""
    parts = []
    for direction, word in (("fetch", "fetched"), ("store", "stored")):
        rows = [row for row in transfers if row.collective == direction]
        if rows:
            total, calls = sum(row.bytes * row.count for row in rows), sum(row.count for row in rows)
            parts.append(f"{size_text(total)} {word} in {plural(calls, 'call')}")
    return [f"host: {', '.join(parts)}"] if parts else []
