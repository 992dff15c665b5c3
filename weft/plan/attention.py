"""Where a program attends as `weft.nn` writes it, and whether a GPU does it by one kernel.

A program is traced with no devices, so its attention is written out; on a GPU the same function takes a fused kernel
where it can. The conditions are those of `weft/nn/attention.py`, read off the record: a plain score, a mask of
positions alone, narrow floats, whole lengths.
"""

import math
from dataclasses import dataclass

from ..program.reading import Reading
from ..record import Entry

_FUNCTION, _FILE = "attend", "attention.py"
_WIDEST = 128
_DTYPES = ("bfloat16", "float16")
_OPS = {"einsum", "cast", "multiply", "where", "softmax"}
_TILE = 128  # rows and columns of scores that the kernel works on at once


@dataclass(frozen=True)
class Group:
    """One attention: its sizes on one processor."""

    length: int
    memory: int
    width: int
    scores: int
    """How many there are."""
    is_causal: bool

    @property
    def seen_share(self) -> float:
        """The share of the scores that are computed: tiles above the diagonal are left out."""
        if not self.is_causal:
            return 1.0
        tiles = max(self.memory / _TILE, 1.0)
        return (tiles + 1) / (2 * tiles)


def groups_of(reading: Reading) -> dict[int | None, Group]:
    """For each entry of an attention that is fused on a GPU the attention it belongs to."""
    found: dict[int | None, Group] = {}
    run: list[Entry] = []
    for entry in reading.entries:
        if entry.code is None or entry.code.co_name != _FUNCTION or not entry.code.co_filename.endswith(_FILE):
            continue
        run.append(entry)
        if entry.op == "einsum" and len(run) > 1:
            if (group := _group(reading, run)) is not None:
                found.update((each.id, group) for each in run)
            run = []
    return found


def _group(reading: Reading, run: list[Entry]) -> Group | None:
    """The attention these entries are, if the fused kernel can do it."""
    first, last = run[0], run[-1]
    q, k = first.operands[0], first.operands[1] if len(first.operands) > 1 else None
    if q is None or k is None or {entry.op for entry in run} - _OPS or str(q.dtype) not in _DTYPES:
        return None
    if tuple(q.dims.names) not in (("batch", "length", "heads", "d_kv"), ("batch", "length", "heads", "group", "d_kv")):
        return None
    if not all(k.dims.has(name) for name in ("memory_length", "d_kv")):
        return None
    whole = all(not first.dims.get(name) for name in ("length", "memory_length", "d_kv"))
    width = q.dims.find("d_kv").size
    is_padded = any(dim.is_padded for dim in (*q.dims, *k.dims))
    masks = [entry.operands[0] for entry in run if entry.op == "where"]
    is_simple = all(mask is None or set(mask.dims.names) <= {"length", "memory_length"} for mask in masks)
    maker = last.makers[0] if last.makers else None
    is_undropped = maker is not None and maker in {entry.id for entry in run}
    if not whole or width > _WIDEST or width % 8 or is_padded or not is_simple or not is_undropped:
        return None
    placed = first.results[0]
    ways = math.prod(reading.mesh.axes[axis] for axes in first.dims.values() for axis in axes)
    return Group(
        q.dims.find("length").size,
        k.dims.find("memory_length").size,
        width,
        math.prod(placed.dims.sizes) // ways,
        is_causal=bool(masks),
    )
