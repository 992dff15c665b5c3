"""What attention in blocks asks of a kernel, and where its queries and keys are."""

from typing import Any

import jax

from ..kernels.choice import AttentionCase, Chip, read_chip
from ..tensor import Tensor
from .blockwise import MaskLike

MASK_TENSORS = ("prefix", "positions", "memory_positions", "segments", "memory_segments")


def chip_of(x: Tensor) -> Chip:
    """What `x` is, or will be, on; of no kind in a region that has no devices."""
    return read_chip(jax.devices()[0]) if x.region is None else x.region.mesh.chip


def block_case(
    q: Tensor, k: Tensor, mask: MaskLike, bias: Any = None, softcap: float | None = None, dropout: float = 0.0
) -> AttentionCase:
    """What an attention asks of a kernel that does its blocks: one without a mask."""
    own, memory = (x.size(dim) // x.ways(dim) for x, dim in ((q, "length"), (k, "memory_length")))
    return AttentionCase(
        str(q.dtype),
        own,
        memory,
        q.dims[-1].size,
        causal=mask.causal,
        window=mask.window,
        bias="" if bias is None else "shared",
        softcap=softcap is not None,
        dropout=bool(dropout),
        is_in_blocks=True,
        refusal=_why_not_blocks(q, k, mask, bias, softcap, dropout, own, memory),
    )


def _why_not_blocks(
    q: Tensor, k: Tensor, mask: MaskLike, bias: Any, softcap: Any, dropout: float, own: int, memory: int
) -> str:
    outer = [name for name in q.dims.names if name != "length"][:-1]
    of_keys = [name for name in k.dims.names if name != "memory_length"][:-1]
    asked = [name for name in ("window", *MASK_TENSORS) if getattr(mask, name) is not None]
    asked += [name for name, x in (("bias", bias), ("softcap", softcap)) if x is not None] + ["dropout"] * bool(dropout)
    if asked:
        return f"blocks are fused where attention is plain or causal, and this has {asked[0]}"
    if outer[:2] != of_keys or len(outer) > 3:
        return f"blocks are fused of queries [batch length heads (group) channel], and these are [{q.dims}]"
    if mask.causal and not (is_ordered(q, k, mask) and own % 2 == 0 and memory % own == 0):
        return f"causal blocks are fused of even size, as many keys as queries, and a slice has {own} and {memory}"
    if padded := next((dim.name for dim in (*q.dims, *k.dims) if dim.is_padded), ""):
        return f"`{padded}` is padded"
    return ""


def is_ordered(q: Tensor, k: Tensor, mask: MaskLike) -> bool:
    """Whether places count from 0, each query sees itself and none after it."""
    is_plain = mask.causal and mask.prefix is mask.positions is mask.memory_positions is None
    sees_itself = mask.segments is None or mask.is_within
    return is_plain and sees_itself and q.size("length") == k.size("memory_length")
