"""Norms: RMSNorm, LayerNorm, ScaleNorm, GroupNorm and BatchNorm.

Statistics are in float32, by one all-reduce where the dims they go over are split.
"""

import math
from typing import Any

import equinox as eqx

from .. import ops as wf
from ..dims import UNSHOWN, Dim, Dims, Shape, new_dims, resolve
from ..errors import DimError, public
from ..tensor import Tensor
from .arguments import check_dim, check_divisor
from .weights import full, mark_frozen

EPSILON = 1e-6


class RMSNorm(eqx.Module):
    """`x` with the root of its mean square over the dims made 1, then scaled.

    With `offset=1.0` it is scaled by one more than the weight, which begins at 0 (Gemma).
    """

    scale: Tensor
    epsilon: float = eqx.field(static=True)
    offset: float = eqx.field(static=True)

    @public
    def __init__(self, dims: Dims, *, key: Any = None, epsilon: float = EPSILON, offset: float = 0.0):
        self.epsilon, self.offset = epsilon, offset
        self.scale = full(new_dims(dims, what="dims"), 1.0 - offset, key=key, name="scale")

    @public
    def __call__(self, x: Tensor) -> Tensor:
        wide = wf.cast(x, "float32")
        square = wide * wide
        mean_square = wf.mean(square, over=self.scale.dims)
        normed = wide * wf.rsqrt(mean_square + self.epsilon)
        if self.offset:
            return wf.cast(wf.multiply(normed, self.scale, names="subset") + self.offset * normed, x.dtype)
        return wf.cast(wf.multiply(normed, self.scale, names="subset"), x.dtype)


class LayerNorm(eqx.Module):
    """`x` with mean 0 and variance 1 over the dims, then scaled and shifted."""

    scale: Tensor
    bias: Tensor | None
    epsilon: float = eqx.field(static=True)

    @public
    def __init__(self, dims: Dims, *, key: Any = None, bias: bool = True, epsilon: float = EPSILON):
        dims = new_dims(dims, what="dims")
        self.epsilon = epsilon
        self.scale = full(dims, 1.0, key=key, name="scale")
        self.bias = full(dims, 0.0, key=key, name="bias") if bias else None

    @public
    def __call__(self, x: Tensor) -> Tensor:
        wide = wf.cast(x, "float32")
        mean, variance = wf.mean_and_var(wide, over=self.scale.dims)
        normed = (wide - mean) * wf.rsqrt(variance + self.epsilon)
        scaled = wf.multiply(normed, self.scale, names="subset")
        return wf.cast(scaled if self.bias is None else wf.add(scaled, self.bias, names="subset"), x.dtype)


class ScaleNorm(eqx.Module):
    """`x` with its length over the dims made one learned number."""

    scale: Tensor
    over: tuple[str, ...] = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    @public
    def __init__(self, dims: Dims, *, key: Any = None, epsilon: float = EPSILON):
        shape = Shape(new_dims(dims, what="dims"))
        self.over, self.epsilon = shape.names, epsilon
        self.scale = full([], math.prod(dim.count for dim in shape) ** 0.5, key=key, name="scale")

    @public
    def __call__(self, x: Tensor) -> Tensor:
        wide = wf.cast(x, "float32")
        square = wf.sum(wide * wide, over=self.over)
        return wf.cast(wf.multiply(wide * wf.rsqrt(square + self.epsilon), self.scale, names="subset"), x.dtype)


class GroupNorm(eqx.Module):
    """`x` with mean 0 and variance 1 in each group of channels, over some other dims.

    In as many groups as there are channels it is InstanceNorm.
    """

    scale: Tensor
    bias: Tensor
    groups: int = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    @public
    def __init__(self, channels: Dim, groups: int, *, key: Any = None, epsilon: float = 1e-5):
        channels = check_dim(channels, "channels")
        self.groups = check_divisor(groups, "groups", divides=channels.size, of=channels.name)
        self.epsilon = epsilon
        self.scale = full([channels], 1.0, key=key, name="scale")
        self.bias = full([channels], 0.0, key=key, name="bias")

    @public
    def __call__(self, x: Tensor, *, over: Dims) -> Tensor:
        """`over` are the dims beside the channels, such as height and width."""
        (channels,) = self.scale.dims
        wide = wf.cast(x, "float32")
        means, variances = wf.mean_and_var(wide, over=_other_dims(channels, x, over))
        # Groups that lie across processors are joined by the few statistics of their channels.
        is_whole = self.groups % x.ways(channels.name) == 0
        group = Dim(f"{UNSHOWN}groups", self.groups, follows=channels.name if is_whole else None)
        member = Dim(f"{UNSHOWN}{channels.name}", channels.size // self.groups)
        cut = {channels.name: [group, member]}
        mean, between = wf.mean_and_var(wf.split(means, **cut), over=member)
        variance = wf.mean(wf.split(variances, **cut), over=member) + between

        def spread(x: Tensor) -> Tensor:
            return wf.merge(wf.broadcast(x, [*x.dims, member]), [group, member], into=channels)

        normed = (wide - spread(mean)) * spread(wf.rsqrt(variance + self.epsilon))
        return wf.cast(wf.add(wf.multiply(normed, self.scale, names="subset"), self.bias, names="subset"), x.dtype)


class BatchNorm(eqx.Module):
    """`x` with mean 0 and variance 1 in each channel, over a whole batch.

    For inference there are running statistics. The batch is the whole one, however it is split: the statistics do not
    depend on the layout.
    """

    scale: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum: float = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    @public
    def __init__(self, channels: Dim, *, key: Any = None, momentum: float = 0.9, epsilon: float = 1e-5):
        channels = check_dim(channels, "channels")
        self.momentum, self.epsilon = momentum, epsilon
        self.scale, self.bias = (full([channels], v, key=key, name=n) for v, n in ((1.0, "scale"), (0.0, "bias")))
        self.running_mean = full([channels], 0.0, key=key, name="running_mean", is_trained=False)
        self.running_var = full([channels], 1.0, key=key, name="running_var", is_trained=False)

    @public
    def __call__(self, x: Tensor, *, over: Dims, training: bool = True) -> tuple[Tensor, "BatchNorm"]:
        """The result, and the norm with its running statistics moved to the batch's."""
        wide = wf.cast(x, "float32")
        wide.dims.find(self.scale.dims[0])
        mean, variance = wf.stop_gradient(self.running_mean), wf.stop_gradient(self.running_var)
        moved = self
        if training:
            mean, variance = wf.mean_and_var(wide, over=self._all_other_dims(x, over))
            moved = self._move_statistics(wf.stop_gradient(mean), wf.stop_gradient(variance))
        normed = (wide - mean) * wf.rsqrt(variance + self.epsilon)
        y = wf.add(wf.multiply(normed, self.scale, names="subset"), self.bias, names="subset")
        return wf.cast(y, x.dtype), moved

    def _all_other_dims(self, x: Tensor, over: Dims) -> Shape:
        (channels,) = self.scale.dims
        dims = _other_dims(channels, x, over)
        if kept := x.dims.without([channels, *dims]):
            raise DimError(
                f"`over` leaves out `{kept[0].name}`, and there is one mean for each of `{channels.name}` alone",
                fix=f"go over all other dims: `over='{' '.join(x.dims.without([channels]).names)}'`",
            )
        return dims

    def _move_statistics(self, mean: Tensor, variance: Tensor) -> "BatchNorm":
        kept = self.momentum
        new = (
            wf.stop_gradient(self.running_mean) * kept + mean * (1 - kept),
            wf.stop_gradient(self.running_var) * kept + variance * (1 - kept),
        )
        return eqx.tree_at(lambda norm: (norm.running_mean, norm.running_var), self, tuple(map(mark_frozen, new)))


def _other_dims(channels: Dim, x: Tensor, over: Dims) -> Shape:
    """The dims `over`, none of them the channels."""
    x.dims.find(channels)
    dims = resolve(over, x.dims, what="over")
    if dims.has(channels):
        raise DimError(
            f"`over` names `{channels.name}`, which are the channels",
            fix=f"leave it out: `over='{' '.join(dims.without([channels]).names)}'`",
        )
    return dims
