"""Patches: an image, a volume or a signal cut into pieces, each made a vector.

Pieces are cut where they lie: of a split height each processor makes the patches of its own rows, and nothing is sent.
"""

import math
from typing import Any

import equinox as eqx

from .. import ops as wf
from ..checks import is_whole
from ..dims import UNSHOWN, Dim
from ..errors import DimError, public
from ..tensor import Tensor
from .arguments import check_dim, check_dims
from .weights import cast_weight, full, normal

_PATCH = "patch_"


class Patches(eqx.Module):
    """A linear map of each patch to `outs`; patches are counted along `into`.

    `nn.Patches(channels, d_model, {"height": 16, "width": 16})` makes of [.. height width channels] what a
    Transformer reads: [.. length d_model], row by row. Unless a rule names `length`, it is split as the first side is.
    """

    weight: Tensor
    bias: Tensor | None
    ins: Dim = eqx.field(static=True)
    outs: Dim = eqx.field(static=True)
    into: str = eqx.field(static=True)

    @public
    def __init__(
        self,
        ins: Dim,
        outs: Dim,
        patch: dict[Any, int],
        *,
        into: str = "length",
        bias: bool = True,
        stddev: float | None = None,
        key: Any = None,
    ):
        self.ins, self.outs, self.into = check_dim(ins, "ins"), check_dim(outs, "outs"), into
        if not isinstance(patch, dict) or not patch or not all(is_whole(size, 1) for size in patch.values()):
            fix = "give the size of a patch along each dim: `{'height': 16, 'width': 16}`"
            raise DimError(f"`patch` is {patch!r}", fix=fix)
        sides = [Dim(f"{_PATCH}{getattr(dim, 'name', dim)}", size) for dim, size in patch.items()]
        summed = [*sides, ins]
        spread = math.prod(dim.count for dim in summed) ** -0.5 if stddev is None else stddev
        self.weight = normal([*summed, outs], stddev=spread, key=key, name="weight")
        self.bias = full([outs], 0.0, key=key, name="bias") if bias else None

    @public
    def __call__(self, x: Tensor) -> Tensor:
        sides = [dim for dim in self.weight.dims if dim.name.startswith(_PATCH)]
        names = [side.name.removeprefix(_PATCH) for side in sides]
        check_dims(x, [self.ins], makes=[self.outs])
        counts = [
            Dim(f"{UNSHOWN}{name}", self._count(x, name, side), name) for name, side in zip(names, sides, strict=True)
        ]
        cut = wf.split(x, **{name: [c, side] for name, c, side in zip(names, counts, sides, strict=True)})
        kept = cut.dims.without([*counts, *sides, self.ins])
        y = wf.einsum(cut, cast_weight(self.weight, x.dtype), out=[*kept, *counts, self.outs])
        if self.bias is not None:
            y = wf.add(y, wf.cast(self.bias, x.dtype), names="subset")
        return wf.merge(y, counts, into=Dim(self.into, math.prod(dim.size for dim in counts), names[0]))

    def _count(self, x: Tensor, name: str, side: Dim) -> int:
        """How many patches there are along a dim."""
        size = x.size(name)
        if more := -size % side.size:
            raise DimError(
                f"`{name}` has size {size}, and patches of {side.size} do not fill it",
                fix=f"pad it to {size + more}: `wf.pad(x, over='{name}', after={more})`, or take another size of patch",
            )
        return size // side.size
