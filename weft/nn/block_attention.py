"""Attention in an image cut into blocks (local attention), in 1-3 D.

Each place sees its own block, and those beside it. Where the image is split, blocks lie whole on their processors, and
a block of keys and values is what neighbours send: their halo. Memory grows with the image, not with its square.
"""

import math
from typing import Any

import equinox as eqx

from .. import ops as wf
from ..checks import is_whole
from ..dims import Dim
from ..errors import DimError, public
from ..tensor import Tensor
from .arguments import check_dims, check_divisor
from .attention import Attention
from .mask import Mask


class BlockAttention(eqx.Module):
    """Self-attention of each block of an image to itself and the blocks around it.

    `blocks={"height": 8, "width": 8}` are their sizes; without `neighbours` each sees itself alone, and nothing is
    sent.
    """

    attention: Attention
    blocks: dict[str, int] = eqx.field(static=True)
    neighbours: bool = eqx.field(static=True)

    @public
    def __init__(
        self,
        channels: Dim,
        heads: Dim,
        d_kv: Dim,
        blocks: dict[Any, int],
        *,
        neighbours: bool = True,
        key: Any = None,
    ):
        if not isinstance(blocks, dict) or not blocks or not all(is_whole(size, 1) for size in blocks.values()):
            raise DimError(
                f"`blocks` is {blocks!r}", fix="give blocks a size along each dim: `blocks={'height': 8, 'width': 8}`"
            )
        self.attention = Attention(channels, heads, d_kv, key=key)
        self.blocks = {dim.name if isinstance(dim, Dim) else dim: size for dim, size in blocks.items()}
        self.neighbours = neighbours

    @public
    def __call__(self, x: Tensor) -> Tensor:
        check_dims(x, self.attention.q.dims[:1])
        cut = {name: _cut(x, name, size) for name, size in self.blocks.items()}
        inside = [places for _, places in cut.values()]
        length = Dim("length", math.prod(dim.size for dim in inside))
        h = wf.merge(wf.split(x, **cut), inside, into=length)
        q = self.attention.query(h, None)
        k, v = self.attention.keys_and_values(h, None)
        mask = Mask()
        if self.neighbours:
            along = [block for block, _ in cut.values()]
            there = wf.ones([*along, length.renamed("memory_length")], dtype="int32")
            k, v, there = (_with_neighbours(t, along) for t in (k, v, there))
            mask = Mask(segments=wf.ones([], dtype="int32"), memory_segments=there)
        y = self.attention.out(self.attention.attend(q, k, v, mask=mask))
        y = wf.split(y, length=inside)
        for name, parts in cut.items():
            y = wf.merge(y, parts, into=x.dim(name))
        return wf.broadcast(y, x.dims)


def _cut(x: Tensor, name: str, size: int) -> list[Dim]:
    """The blocks of a dim, split as it is, and the places in each."""
    dim = x.dim(name)
    count = dim.size // check_divisor(size, "blocks", divides=dim.size, of=name)
    if count % (ways := x.ways(name)):
        most = max(n for n in range(1, size + 1) if dim.size // ways % n == 0)
        raise DimError(
            f"`{name}` (size {dim.size}) has {count} blocks of {size}, which do not divide over {ways} processors",
            fix=f"take blocks that divide {dim.size // ways}, e.g. `blocks={{'{name}': {most}}}`",
        )
    return [Dim(f"{name}_blocks", count, follows=name), Dim(f"{name}_in_block", size)]


def _with_neighbours(x: Tensor, along: list[Dim]) -> Tensor:
    """`x` of each block with that of the blocks around; beyond the image, zeros."""
    sides = {block.name: Dim(f"{block.name}_side", 3) for block in along}
    memory = x.dim("memory_length")
    x = wf.windows(x, over=sides)
    return wf.merge(x, [*sides.values(), memory], into=memory.resized(3 ** len(sides) * memory.size))
