"""Convolutions of images along named dims, and transposed ones, in 1-3 D.

Where height, width or depth is split, neighbours send the halo that the kernel reaches, and nothing else. Split
channels are summed by one all-reduce of the result.
"""

import math
from typing import Any

import equinox as eqx

from .. import ops as wf
from ..checks import is_whole
from ..dims import Dim, Shape
from ..errors import DimError, public
from ..lower.halos import number_by_dim
from ..ops.conv import Padding, Steps
from ..tensor import Tensor
from .arguments import check_dim, check_dims, check_divisor
from .weights import cast_weight, full, normal


class Conv(eqx.Module):
    """A convolution from the channels `ins` to the channels `outs`; other dims stay.

    `kernel={"height": 3, "width": 3}` says along which dims it slides and how far it reaches; `stride`, `dilation`,
    `groups` and `padding` are those of `wf.conv`. From channels to themselves they keep their name; in as many groups
    as there are channels it is depthwise.
    """

    weight: Tensor
    bias: Tensor | None
    ins: Dim = eqx.field(static=True)
    outs: Dim = eqx.field(static=True)
    how: dict[str, Any] = eqx.field(static=True)

    @public
    def __init__(
        self,
        ins: Dim,
        outs: Dim,
        kernel: dict[Any, int],
        *,
        key: Any = None,
        bias: bool = False,
        stride: Steps = 1,
        dilation: Steps = 1,
        groups: int = 1,
        padding: Padding = "SAME",
        stddev: float | None = None,
    ):
        _, dims = _kernel_dims(ins, outs, kernel, groups)
        self.ins, self.outs = ins, outs
        self.how = {"stride": stride, "dilation": dilation, "groups": groups, "padding": padding}
        spread = math.prod(dim.count for dim in dims[:-1]) ** -0.5 if stddev is None else stddev
        self.weight = normal(dims, stddev=spread, key=key, name="weight")
        self.bias = full(dims[-1:], 0.0, key=key, name="bias") if bias else None

    @public
    def __call__(self, x: Tensor) -> Tensor:
        over, made = _slides(self, x)
        y = wf.conv(x, cast_weight(self.weight, x.dtype), over=over, channels=(self.ins, made), **self.how)
        return _finish(self, y, made)


class ConvTranspose(eqx.Module):
    """A transposed convolution (up-convolution) from channels `ins` to `outs`.

    With padding SAME a dim comes out `stride` times as large. The rest as in `Conv`, and as in `wf.conv_transpose`.
    """

    weight: Tensor
    bias: Tensor | None
    ins: Dim = eqx.field(static=True)
    outs: Dim = eqx.field(static=True)
    how: dict[str, Any] = eqx.field(static=True)

    @public
    def __init__(
        self,
        ins: Dim,
        outs: Dim,
        kernel: dict[Any, int],
        *,
        key: Any = None,
        bias: bool = False,
        stride: Steps = 1,
        dilation: Steps = 1,
        groups: int = 1,
        padding: Padding = "SAME",
        stddev: float | None = None,
    ):
        slides, dims = _kernel_dims(ins, outs, kernel, groups)
        self.ins, self.outs = ins, outs
        self.how = {"stride": stride, "dilation": dilation, "groups": groups, "padding": padding}
        strides = number_by_dim(stride, slides, "ConvTranspose", "stride")
        # Between the places of the image zeros are spread: of the kernel only every stride-th place meets one.
        met = math.prod(max(dims.find(_KERNEL + dim.name).size / strides[dim.name], 1) for dim in slides)
        summed = math.prod(dim.count for dim in dims[len(slides) : -1])
        spread = (met * summed) ** -0.5 if stddev is None else stddev
        self.weight = normal(dims, stddev=spread, key=key, name="weight")
        self.bias = full(dims[-1:], 0.0, key=key, name="bias") if bias else None

    @public
    def __call__(self, x: Tensor) -> Tensor:
        over, made = _slides(self, x)
        y = wf.conv_transpose(x, cast_weight(self.weight, x.dtype), over=over, channels=(self.ins, made), **self.how)
        return _finish(self, y, made)


_KERNEL = "kernel_"


def _kernel_dims(ins: Any, outs: Any, kernel: Any, groups: Any) -> tuple[Shape, Shape]:
    """The dims a kernel slides along; and its own, channels last."""
    ins, outs = check_dim(ins, "ins"), check_dim(outs, "outs")
    for channels, others in ((ins, outs), (outs, ins)):
        check_divisor(groups, "groups", divides=channels.size, of=channels.name, beside=others.size)
    if not isinstance(kernel, dict) or not kernel or not all(is_whole(size, 1) for size in kernel.values()):
        raise DimError(
            f"`kernel` is {kernel!r}", fix="give each dim it slides along a size: `kernel={'height': 3, 'width': 3}`"
        )
    slides = Shape(Dim(dim.name if isinstance(dim, Dim) else dim, size) for dim, size in kernel.items())
    own = [dim.renamed(_KERNEL + dim.name) for dim in slides]
    if ins == outs and groups == ins.size:  # depthwise: the kernel has the channels once
        return slides, Shape([*own, outs])
    summed = ins if groups == 1 else Dim(f"{ins.name}_in_group", ins.size // groups)
    return slides, Shape([*own, summed, _name_result(ins, outs, groups)])


def _name_result(ins: Dim, outs: Dim, groups: int) -> Dim:
    """The channels that come out, under a name that those that go in do not have."""
    is_depthwise = ins == outs and groups == ins.size
    if ins.name != outs.name or is_depthwise:
        return outs
    return Dim(f"{outs.name}_out", outs.size, outs.name, outs.valid)


def _slides(layer: Any, x: Tensor) -> tuple[dict[str, Dim], Dim]:
    """The dims a kernel slides along with its own, and the channels that come out."""
    check_dims(x, [layer.ins])
    over = {dim.name.removeprefix(_KERNEL): dim for dim in layer.weight.dims if dim.name.startswith(_KERNEL)}
    return over, _name_result(layer.ins, layer.outs, layer.how["groups"])


def _finish(layer: Any, y: Tensor, made: Dim) -> Tensor:
    """What was made, with the layer's bias, its channels under their own name."""
    if layer.bias is not None:
        y = wf.add(y, wf.cast(layer.bias, y.dtype), names="subset")
    return y if made == layer.outs else y.rename(**{made.name: layer.outs})
