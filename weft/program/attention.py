"""The scores of attention that a GPU does by one fused kernel, which stores none.

A program is traced with no devices, so its attention is written out; who wrote it says in the record which ops a GPU
does by one kernel. Of each row of scores that kernel keeps one number, for the gradients.
"""

import math
from collections.abc import Sequence

from ..graph import Body, Loop, Value
from ..record import FusedAttention
from .reading import Reading


def count_scores(reading: Reading) -> dict[FusedAttention, int]:
    """How many scores one processor has, of each attention that a GPU fuses."""
    counts: dict[FusedAttention, int] = {}
    for entry in reading.entries:
        kernel = entry.attention
        if kernel is not None and kernel not in counts:  # the first op makes the scores
            ways = math.prod(reading.mesh.axes[axis] for axes in entry.dims.values() for axis in axes)
            counts[kernel] = kernel.block or math.prod(entry.results[0].dims.sizes) // ways
    return counts


def find_scores(reading: Reading) -> dict[Value, int]:
    """The values that are such scores, and how many rows of them each has.

    Where keys are fewer than a head has channels, scores are as few as what they are made from, and are left as they
    are.
    """
    counts = count_scores(reading)
    kernels = {entry.id: kernel for entry in reading.entries if (kernel := entry.attention) is not None}
    least = {
        op: (counts[kernel], kernel.memory_length)
        for op, kernel in kernels.items()
        if min(kernel.length, kernel.memory_length) > kernel.width
    }
    scores: dict[Value, int] = {}

    def look(body: Body) -> None:
        for step in body:
            if isinstance(step, Loop):
                for inner in step.bodies:
                    _copy(step.operands[len(step.operands) - len(inner.inputs) :], inner.inputs, scores)
                    look(inner)
                    if not step.eqn.params.get("cond_jaxpr"):
                        _copy(inner.results, step.results, scores)
            elif step.op in least:
                count, columns = least[step.op]
                for value in step.results:
                    elements = math.prod(value.aval.shape)
                    is_one = elements == count if kernels[step.op].block else elements >= count
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
