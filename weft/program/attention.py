"""Attention as a program has it: which kernel does it, and what that stores.

A program is traced with no devices, so its attention is written out; who wrote it says in the record what it asks of a
kernel. One that is fused stores no scores: of each row of them it keeps one number, for the gradients.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ..graph import Body, Loop, Value
from ..kernels.choice import Chip, KernelChoice, choose
from ..record import Entry, NotedAttention
from .reading import Reading


def attentions_of(reading: Reading) -> Iterator[tuple[NotedAttention, Entry]]:
    """Each attention of a program, and the first of its ops, which makes the scores."""
    seen: set[NotedAttention] = set()
    for entry in reading.entries:
        if entry.attention is not None and not entry.is_gone and entry.attention not in seen:
            seen.add(entry.attention)
            yield entry.attention, entry


def choice_of(attention: NotedAttention, chip: Chip) -> KernelChoice:
    """The kernel that does an attention: that it was traced by, or the chip's."""
    return KernelChoice(attention.kernel) if attention.kernel else choose(attention.case, chip)


def is_fused(attention: NotedAttention, chip: Chip, fused: bool | None) -> bool:
    """Whether an attention that is written out is one kernel on a chip, or as said."""
    if attention.kernel or fused is False:
        return False
    return choose(attention.case, Chip("gpu") if fused else chip).is_fused


def explain_attention(reading: Reading, chip: Chip) -> list[str]:
    """A line for each kind of attention of a program: its sizes, and what does it."""
    counts: Counter[str] = Counter()
    for attention, _ in attentions_of(reading):
        sizes = f"{attention.length} x {attention.memory_length}, heads of {attention.case.width}"
        counts[f"attention {sizes}: {choice_of(attention, chip)}"] += 1
    return [line if count == 1 else f"{line} ({count} times)" for line, count in counts.items()]


def count_scores(reading: Reading, attention: NotedAttention, entry: Entry) -> int:
    """How many scores one processor has at once of an attention written out."""
    ways = math.prod(reading.mesh.axes[axis] for axes in entry.dims.values() for axis in axes)
    return attention.block or math.prod(entry.results[0].dims.sizes) // ways


def find_scores(reading: Reading, chip: Chip, fused: bool | None = None) -> dict[Value, int]:
    """The values that are scores a chip does not store, and how many rows each has.

    Where keys are fewer than a head has channels, scores are as few as what they are made from, and are left as they
    are.
    """
    counts = {
        attention: count_scores(reading, attention, entry)
        for attention, entry in attentions_of(reading)
        if is_fused(attention, chip, fused)
    }
    kernels = {entry.id: kernel for entry in reading.entries if (kernel := entry.attention) in counts}
    least = {
        op: (counts[kernel], kernel.memory_length)
        for op, kernel in kernels.items()
        if kernel is not None and min(kernel.length, kernel.memory_length) > kernel.case.width
    }
    blocks = {op for op, kernel in kernels.items() if kernel is not None and kernel.block}
    scores: dict[Value, int] = {}

    def look(body: Body) -> None:
        for step in body:
            if isinstance(step, Loop):
                for inner in step.bodies:
                    _copy(step.operands[len(step.operands) - len(inner.inputs) :], inner.inputs, scores)
                    look(inner)
                    if step.is_scan or step.is_branch:
                        _copy(inner.results, step.results, scores)
            elif step.op in least:
                count, columns = least[step.op]
                for value in step.results:
                    elements = math.prod(value.aval.shape)
                    is_one = elements == count if step.op in blocks else elements >= count
                    if is_one and value.aval.ndim > 1:
                        scores[value] = elements // columns

    look(reading.graph)
    return scores


def _copy(given: Sequence[Value], taken: Sequence[Value], scores: dict[Value, int]) -> None:
    """Says of values that come out of a loop, or go into it, what they are there."""
    for one, other in zip(given, taken, strict=False):
        if one in scores:
            times = math.prod(other.aval.shape) / max(math.prod(one.aval.shape), 1)  # the loop's turns
            scores[other] = int(scores[one] * times)
