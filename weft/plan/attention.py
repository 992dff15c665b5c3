"""Attention that a GPU does by one fused kernel, and what that kernel leaves out.

A program is traced with no devices, so its attention is written out; who wrote it says in the record which ops a GPU
does by one kernel.
"""

import math
from dataclasses import dataclass

from ..program.reading import Reading
from ..record import FusedAttention

_TILE = 128  # rows and columns of scores that the kernel works on at once


@dataclass(frozen=True)
class FusedGroup:
    """One attention: its sizes on one processor."""

    length: int
    memory: int
    width: int
    scores: int
    """How many there are."""
    is_causal: bool
    is_block: bool = False
    """Whether it is one of many blocks, each a kernel of its own, left out where nothing of it is seen."""
    is_one_kernel: bool = False
    """Whether the blocks of a long one are all done by one kernel."""

    @property
    def seen_share(self) -> float:
        """The share of the scores computed: tiles above the diagonal are left out."""
        if not self.is_causal:
            return 1.0
        tiles = max(self.memory / _TILE, 1.0)
        return (tiles + 1) / (2 * tiles)


def is_fused(kind: str, fused: bool | None) -> bool:
    """Whether attention is one kernel: on a GPU, which Weft has it for, or as said."""
    return kind == "gpu" if fused is None else fused


def groups_of(reading: Reading) -> dict[int | None, FusedGroup]:
    """For each entry of an attention that a GPU fuses, the attention it belongs to."""
    groups: dict[FusedAttention, FusedGroup] = {}
    by_entry: dict[int | None, FusedGroup] = {}
    for entry in reading.entries:
        if (kernel := entry.attention) is None:
            continue
        if kernel not in groups:  # the first op makes the scores
            scores = math.prod(entry.results[0].dims.sizes)
            ways = math.prod(reading.mesh.axes[axis] for axes in entry.dims.values() for axis in axes)
            sizes = kernel.length, kernel.memory_length, kernel.width
            groups[kernel] = FusedGroup(*sizes, scores // ways, kernel.is_causal)
            if kernel.block is not None:
                is_causal = kernel.is_causal and kernel.is_one_kernel
                groups[kernel] = FusedGroup(
                    *sizes, kernel.block, is_causal, is_block=True, is_one_kernel=kernel.is_one_kernel
                )
        by_entry[entry.id] = groups[kernel]
    return by_entry
