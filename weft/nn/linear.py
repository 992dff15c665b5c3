"""Linear maps from any dims to any dims, and tables of embeddings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx

from .. import ops as wf
from ..dims import Dim, DimLike, Dims, Shape, new_dims
from ..dtypes import DTypeLike
from ..errors import public
from ..tensor import Tensor
from .arguments import check_dim, check_dims
from .weights import cast_weight, full, normal


class Linear(eqx.Module):
    """A linear map from the dims `ins` to the dims `outs`; any other dims stay.

    From a dim to itself it has one weight `[d_model d_model_out]`, and the result has `d_model` again.
    """

    weight: Tensor
    bias: Tensor | None
    ins: Shape = eqx.field(static=True)
    names: dict[str, Dim] = eqx.field(static=True)

    @public
    def __init__(self, ins: Dims, outs: Dims, *, key: Any = None, bias: bool = False, stddev: float | None = None):
        self.ins, outs = Shape(new_dims(ins, what="ins")), Shape(new_dims(outs, what="outs"))
        new_outs = [Dim(f"{d.name}_out", d.size, d.name, d.valid) if self.ins.has(d.name) else d for d in outs]
        self.names = {new.name: dim for new, dim in zip(new_outs, outs, strict=True) if new.name != dim.name}
        spread = math.prod(dim.count for dim in self.ins) ** -0.5 if stddev is None else stddev
        self.weight = normal([*self.ins, *new_outs], stddev=spread, key=key, name="weight")
        self.bias = full(new_outs, 0.0, key=key, name="bias") if bias else None

    @public
    def __call__(self, x: Tensor) -> Tensor:
        check_dims(x, self.ins, makes=self.weight.dims.without(self.ins))
        weight = cast_weight(self.weight, x.dtype)
        if self.bias is None:
            return wf.einsum(x, weight, over=self.ins, rename=self.names)
        y = wf.add(wf.einsum(x, weight, over=self.ins), wf.cast(self.bias, x.dtype), names="subset")
        return y.rename(**self.names) if self.names else y


class Embedding(eqx.Module):
    """A vector for each of `ids`; and, turned round, a logit for each from a vector."""

    computed: ClassVar[Sequence[str]] = ("table",)
    table: Tensor
    ids: str = eqx.field(static=True)

    @public
    def __init__(self, ids: Dim, dims: Dims, *, key: Any = None, stddev: float = 1.0):
        self.ids = check_dim(ids, "ids").name
        self.table = normal([ids, *new_dims(dims, what="dims")], stddev=stddev, key=key, name="table")

    @public
    def __call__(
        self, ids: Tensor, dtype: DTypeLike | None = None, *, rename: Mapping[Any, DimLike] | None = None
    ) -> Tensor:
        """The vectors of some ids; of a split table only what is found is sent.

        `rename` are new names for dims of the result, which leaves split by those (`wf.take`).
        """
        table = self.table if dtype is None else wf.cast(self.table, dtype)
        return wf.take(table, ids, over=self.ids, rename=rename)

    @public
    def logits(self, x: Tensor, dtype: DTypeLike = "float32") -> Tensor:
        """The product of `x` with every vector."""
        over = self.table.dims.without([self.ids])
        check_dims(x, over, makes=[self.table.dims.find(self.ids)])
        table = wf.cast(self.table, x.dtype)
        return wf.einsum(x, table, over=over, dtype=dtype)
