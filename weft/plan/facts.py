"""What one traced program does, in parts that `compose.py` puts together."""

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

from ..program.array_type import ArrayType
from ..record import Entry
from . import roofline
from .compose import Facts, Held, Key, Sending
from .cost import Plan
from .kernel import Kernel
from .traffic import kernels


def facts_of(plan: Plan) -> Facts:
    """A plan's work, collectives and memory, by names the same in every layout."""
    run = kernels(plan.program.reading, plan.hardware, fused=plan.fused)
    memory = plan.memory
    beside = memory.peak - memory.arguments
    margin = (memory.range[1] - memory.arguments) / beside if beside else 1.0  # arguments are exact
    held = []
    seen: Counter[str] = Counter()
    for alive in memory.alive:
        is_argument = alive.kind == "argument"
        number = (alive.name, seen[alive.name]) if is_argument else None
        seen[alive.name] += is_argument
        held.append(Held(alive.name, _dims(alive.array_type), alive.bytes * (1.0 if is_argument else margin), number))
    reading = plan.program.reading
    choosing = frozenset(str(reading.site(entry)) for entry in reading.entries if entry.choice)
    parts = _work(plan, run), _find_sending(plan, run), held, memory.arguments, memory.peak
    dims = {_name(plan, entry): frozenset(_dims_of(entry)) for entry in reading.entries}
    return Facts(*parts, is_pipeline=bool(plan.bubbles), choosing=choosing, dims=dims)


def _work(plan: Plan, run: Sequence[Kernel]) -> dict[Key, tuple[float, float]]:
    reading, updates = plan.program.reading, itertools.count()
    work: dict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kernel in run:
        if kernel.row is not None:
            continue
        entry = reading.entry(kernel.op)
        named = str(next(updates)) if entry is None else _name(plan, entry)
        key = (kernel.body, named, kernel.phase, kernel.kind)
        for side, part in enumerate(_sides(kernel)):
            took, _ = roofline.seconds(part, plan.hardware, 1)
            work[key][side] += took * kernel.count
    return {key: (computing, moving) for key, (computing, moving) in work.items()}


def _name(plan: Plan, entry: Entry) -> str:
    return " ".join([str(plan.program.reading.site(entry)), *_dims_of(entry)])


def _dims_of(entry: Entry) -> list[str]:
    return [name for placed in (*entry.results, *entry.operands) if placed for name in placed.dims.names]


def _find_sending(plan: Plan, run: Sequence[Kernel]) -> dict[Key, Sending]:
    """The rows of the ledger, each with its body and whether it can hide there."""
    places = defaultdict(list)
    for kernel in run:
        if kernel.row is not None:
            row = kernel.row
            places[row.collective, row.axes, row.bytes, row.phase].append(kernel)
    sent: dict[Key, Sending] = {}
    seen: Counter[Key] = Counter()
    for row in plan.program.ledger:
        like = (row.source, row.phase, row.collective, row.dtype, row.dims)
        key = (*like, seen[like])
        seen[like] += 1
        if waiting := places[row.collective, row.axes, row.bytes, row.phase]:
            kernel = waiting.pop(0)
            place = kernel.is_beside, kernel.body
            sent[key] = Sending(row.collective, row.dims, row.phase, row.bytes, row.count, *place)
    return sent


def _sides(kernel: Kernel) -> tuple[Kernel, Kernel]:
    """A kernel that only computes, and one that only moves bytes."""
    return dataclasses.replace(kernel, bytes=0), dataclasses.replace(kernel, flops=0, work=0)


def _dims(array: ArrayType) -> tuple[str, ...] | None:
    """The dims of an array in memory; None where the first has no name."""
    return array.names if array.dims and array.dims[0].name is not None else None
