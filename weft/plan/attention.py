"""Attention that hardware does by one kernel, and what that kernel leaves out."""

from dataclasses import dataclass

from ..kernels.choice import AttentionCase
from ..program.attention import attentions_of, count_scores, is_fused
from ..program.reading import Reading
from ..record import NotedAttention
from .machine import Hardware

_TILE = 128  # rows and columns of scores that the kernel works on at once
# Measured on one H200, 16 x 1024 tokens, 16 heads of 64, causal, forward and backward: 0.556 ms by cuDNN, 1.334 with a
# bias and its gradient, 0.729 with dropout by Weft's kernel (benchmarks/attention_kernels.py).
_BIASED, _DROPPED = 1.334 / 0.556, 0.729 / 0.556


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
    slower: float = 1.0
    """Times what cuDNN takes without a bias or dropout."""

    @property
    def seen_share(self) -> float:
        """The share of the scores computed: tiles above the diagonal are left out."""
        if not self.is_causal:
            return 1.0
        tiles = max(self.memory / _TILE, 1.0)
        return (tiles + 1) / (2 * tiles)


def slowness_of(case: AttentionCase) -> float:
    """How many times as long a case takes as by cuDNN without a bias or dropout."""
    return _BIASED if case.bias else _DROPPED if case.dropout else 1.0


def groups_of(reading: Reading, hardware: Hardware, fused: bool | None) -> dict[int | None, FusedGroup]:
    """For each entry of an attention that the hardware fuses, that attention."""
    groups: dict[NotedAttention, FusedGroup] = {}
    for attention, entry in attentions_of(reading):
        if is_fused(attention, hardware.chip, fused):
            case, is_block = attention.case, attention.block is not None
            sizes = attention.length, attention.memory_length, case.width
            skips = case.causal and case.goes_by_place and (attention.is_one_kernel or not is_block)
            scores = count_scores(reading, attention, entry)
            one = attention.is_one_kernel
            groups[attention] = FusedGroup(*sizes, scores, skips, is_block, one, slowness_of(case))
    return {entry.id: groups[entry.attention] for entry in reading.entries if entry.attention in groups}
