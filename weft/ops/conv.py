"""Convolution along named dims, and its transpose.

Each processor gets the halo its part of the result needs, then convolves as if it were alone; split channels are
summed by one all-reduce.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..checks import is_whole
from ..dims import Dim, DimLike, Shape
from ..errors import DimError, LayoutError, TensorError
from ..lower.collectives import index
from ..lower.halos import Pads, SlidingWindow, View, number_by_dim, paddings_of, sliding_window, with_halos
from ..lower.meet import Meeting, common_region, meet, need_tensor, note_together
from ..lower.move import align, settle
from ..lower.padding import need_no_padding
from ..lower.recorded import recorded
from ..tensor import Tensor, make, placement
from .mapping import vmap
from .regroup import merge, split, stack
from .reshape import broadcast, rename

Steps = int | Mapping[Any, int]
"""A whole number for all spatial dims, or one for each dim named."""
Padding = str | Pads | Mapping[Any, str | Pads]
"""`"SAME"`, `"VALID"` or two pads, for all spatial dims or for each dim named."""


class _Operands:
    """An image and its kernel: which dim is what, checked."""

    def __init__(self, what: str, x: Any, w: Any, over: Any, channels: Any, groups: Any):
        self.what, self.x, self.w = what, need_tensor(x, what), need_tensor(w, what)
        if not isinstance(over, dict) or not over:
            raise DimError(
                f"{what} got over={over!r}", fix="give dims of x with those of the kernel: `over={'height': 'kh'}`"
            )
        if not isinstance(channels, list | tuple) or len(channels) != 2:
            raise DimError(f"{what} got channels={channels!r}", fix="give two: `channels=(channels, channels_out)`")
        self.spatial = Shape(self.x.dims.find(dim) for dim in over)
        self.kernel = Shape(self.w.dims.find(dim) for dim in over.values())
        self.channels_in, self.channels_out = self.x.dims.find(channels[0]), self.w.dims.find(channels[1])
        self.groups = groups
        self._check_groups()
        self._check_names()
        self._check_channels()
        need_no_padding(
            [*self.spatial, *self.kernel, *([self.channels_in, self.channels_out] if groups != 1 else [])], what
        )
        self.rest = self.x.dims.without([*self.spatial, self.channels_in])

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is by itself, and keeps its name."""
        return self.channels_in.name == self.channels_out.name

    def _check_groups(self) -> None:
        groups, name = self.groups, self.channels_in.name
        if not is_whole(groups, 1):
            raise DimError(f"{self.what} got groups={groups!r}", fix="give a whole number of at least 1")
        if self.is_depthwise and groups != self.channels_in.size:
            raise DimError(
                f"`channels` names `{name}` (size {self.channels_in.size}) twice, with groups={groups}",
                fix=f"give the channels that come out a name of their own, e.g. `{name}_out`; "
                f"or let each channel be by itself: `groups={self.channels_in.size}`",
            )

    def _check_names(self) -> None:
        for dim in (*self.kernel, *(() if self.is_depthwise else (self.channels_out,))):
            if self.x.dims.has(dim.name):
                raise DimError(
                    f"{self.what} takes `{dim.name}` of the kernel [{self.w.dims}], and x [{self.x.dims}] has it too",
                    fix=f"rename it in the kernel, e.g. `w.rename({dim.name}='kernel_{dim.name}')`",
                )
        named = {*self.kernel.names, self.channels_in.name, self.channels_out.name}
        if self.spatial.has(self.channels_in.name) or self.kernel.has(self.channels_out.name):
            raise DimError(
                f"{self.what} has one dim in `over` and in `channels`", fix="name each dim in one of the two"
            )
        extra = [dim.name for dim in self.w.dims if dim.name not in named]
        if len(extra) == 1 and not self.w.dims.has(self.channels_in.name) and self.groups > 1:
            return  # the channels of one group, under a name of their own
        if extra:
            raise DimError(
                f"the kernel [{self.w.dims}] has `{extra[0]}`, which is neither in `over` nor in `channels`",
                fix=f"sum over it, take one, or map over it: `wf.vmap(fn, over='{extra[0]}')`",
            )

    def _check_channels(self) -> None:
        groups, name = self.groups, self.channels_in.name
        if self.channels_in.size % groups or self.channels_out.size % groups:
            raise DimError(
                f"{groups} groups do not divide `{name}` (size {self.channels_in.size}) and "
                f"`{self.channels_out.name}` (size {self.channels_out.size})",
                fix=f"take groups that divide both, e.g. {math.gcd(self.channels_in.size, self.channels_out.size)}",
            )
        size = self.channels_in.size // groups
        others = [d.size for d in self.w.dims if d.name not in (*self.kernel.names, self.channels_out.name)]
        has = others[0] if others and not self.is_depthwise else None
        if has != size and not (has is None and size == 1 and (groups > 1 or self.is_depthwise)):
            held = f"`{name}` of size {has}" if has is not None else f"no `{name}`"
            raise DimError(
                f"the kernel [{self.w.dims}] has {held}, and x has {self.channels_in.size} of it in {groups} group(s)",
                fix=f"give the kernel `{name}` of size {size}",
            )

    def slides(
        self, stride: Steps, dilation: Steps, padding: Padding
    ) -> Iterator[tuple[Dim, int, int, int, str | Pads]]:
        """For each spatial dim the kernel's reach, stride, dilation and padding."""
        strides, dilations = (
            number_by_dim(stride, self.spatial, self.what, "stride"),
            number_by_dim(dilation, self.spatial, self.what, "dilation"),
        )
        paddings = paddings_of(padding, self.spatial, self.what)
        for d, k in zip(self.spatial, self.kernel, strict=True):
            yield d, (k.size - 1) * dilations[d.name] + 1, strides[d.name], dilations[d.name], paddings[d.name]

    def meet(self) -> Meeting:
        """Where image and kernel agree; under groups the kernel's channels are renamed."""
        self._need_whole(self.kernel, "which is a dim of the kernel")
        if self.groups > 1 and not self.is_depthwise:
            note_together([self.x, self.w])
            self.w = self._kernel_of_groups()
        meeting = meet([self.x, self.w])
        note_together([self.x, self.w])
        return meeting

    @property
    def groups_follow(self) -> Dim | None:
        """The channels by whose axes groups can be sharded; None where they are whole."""
        region = common_region([self.x, self.w])
        if region is None or self.groups == 1 or self.is_depthwise:
            return None
        axes = {dim: region.axes([dim])[0] for dim in (self.channels_in, self.channels_out)}
        channels = next((dim for dim, over in axes.items() if over), None)
        if channels is not None and self.groups % region.ways(axes[channels]):
            raise LayoutError(
                f"{self.what} has {self.groups} groups, which do not divide over {'+'.join(axes[channels])} "
                f"({region.ways(axes[channels])} ways), where `{channels.name}` is split",
                state=region.state,
                fix=f"take a multiple of {region.ways(axes[channels])} groups, or drop the rule: "
                f"`layout.drop('{channels.name}')`",
                layout=region.layout,
            )
        return channels

    def _kernel_of_groups(self) -> Tensor:
        if not self.w.dims.has(name := self.channels_in.name):
            return self.w
        dims = Shape(dim.renamed(f"{name}_in_group") if dim.name == name else dim for dim in self.w.dims)
        relabeled = make(self.w.raw, dims, self.w.region, self.w.kind)
        # Only where a `params.` rule stores it by the old name does anything move.
        is_same = placement(relabeled) == placement(self.w)
        return relabeled if is_same else rename(self.w, **{name: f"{name}_in_group"})

    def _need_whole(self, dims: Sequence[Dim], why: str) -> None:
        region = common_region([self.x, self.w])
        if region is None:
            return
        for dim, axes in zip(dims, region.axes(dims), strict=True):
            if axes:
                raise LayoutError(
                    f"{self.what} needs `{dim.name}` whole, {why}, and it is split over {'+'.join(axes)}",
                    state=region.state,
                    fix=f"rename it to an unsplit name first: `.rename({dim.name}='{dim.name}_whole')`, "
                    f"or drop the rule: `layout.drop('{dim.name}')`",
                    layout=region.layout,
                )

    def run(self, image: Tensor, compute: Callable[[Any, Any], Any]) -> Any:
        """`compute` of the local arrays of an image, with its halos, and of the kernel."""
        meeting = meet([image, self.w])

        def fill(a: Any, k: Any) -> Any:
            return compute(meeting.fill(a, image.dims, 0), meeting.fill(k, self.w.dims, 0))

        return meeting.run(fill, [image, self.w])

    def convolve(self, image: Any, kernel: Any, **how: Any) -> Any:
        """lax's convolution of the local arrays; dims not spatial or channels are batch."""
        if image.dtype == bool or kernel.dtype == bool:
            raise TensorError(f"{self.what} got booleans", fix="cast them to numbers: `wf.cast(x, 'float32')`")
        dtype = jnp.result_type(image, kernel)
        first = Shape([*self.rest, *(dim for dim in self.x.dims if not self.rest.has(dim.name))])
        image = align(image.astype(dtype), self.x.dims, first)
        count = len(self.rest)
        batch = image.shape[:count]
        image = image.reshape((math.prod(batch), *image.shape[count:]))
        order = [first.position(dim.name) - count + 1 for dim in (self.channels_in, *self.spatial)]
        names = self.w.dims.names
        places = [names.index(dim.name) for dim in (self.channels_out, *self.kernel)]
        inputs = [i for i in range(len(names)) if i not in places]
        kernel = kernel.astype(dtype) if inputs else kernel.astype(dtype)[..., None]
        specs = (0, *order), (places[0], *(inputs or [len(names)]), *places[1:]), (0, *order)
        result = lax.conv_general_dilated(
            image,
            kernel,
            dimension_numbers=lax.ConvDimensionNumbers(*specs),
            feature_group_count=image.shape[order[0]] if self.is_depthwise else self.groups,
            **how,
        )
        result = result.reshape(batch + result.shape[1:])
        return align(result, first, self.x.dims)

    def settle(self, array: Any, view: View) -> Tensor:
        """The result, with the channels made in the place of those given."""
        placed = view.after
        dims = Shape(
            self.channels_out if d.name == self.channels_in.name else placed.dims.find(d.name) for d in self.x.dims
        )
        partial = () if self.is_depthwise else placed.axes([self.channels_in])
        return settle(array, dims, placed.placement(dims), placed.region, partial=partial)


def _by_groups(convolve: Callable[..., Tensor], operands: _Operands, **how: Any) -> Tensor | None:
    """Grouped convolution, each processor its own sharded groups (as in `vmap`)."""
    if (followed := operands.groups_follow) is None:
        return None
    note_together([operands.x, operands.w])
    channels_in, channels_out, count = operands.channels_in, operands.channels_out, operands.groups
    groups = Dim(f"{channels_in.name}_groups", count, follows=followed.name)
    inside, out = (Dim(f"{dim.name}_in_group", dim.size // count) for dim in (channels_in, channels_out))
    kernel = operands._kernel_of_groups()
    in_group = next((d.name for d in kernel.dims if d.name not in (*operands.kernel.names, channels_out.name)), None)
    kernel = rename(kernel, **{in_group: inside}) if in_group is not None else stack([kernel], inside)
    image = split(operands.x, **{channels_in.name: [groups, inside]})
    over = dict(zip(operands.spatial.names, operands.kernel.names, strict=True))

    def one(x: Tensor, w: Tensor) -> Tensor:
        return convolve(x, w, over=over, channels=(inside.name, out.name), **how)

    result = vmap(one, over=groups)(image, split(kernel, **{channels_out.name: [groups, out]}))
    order = [groups if d.name == channels_in.name else result.dim(d.name) for d in operands.x.dims]
    order.insert(order.index(groups) + 1, out)
    return merge(broadcast(result, order), [groups, out], into=channels_out)


@recorded
def conv(
    x: Tensor,
    w: Tensor,
    *,
    over: Mapping[Any, DimLike],
    channels: Sequence[DimLike],
    stride: Steps = 1,
    dilation: Steps = 1,
    groups: int = 1,
    padding: Padding = "SAME",
) -> Tensor:
    """Convolution of `x` with the kernel `w` along the dims `over`.

    `over={"height": "kh", "width": "kw"}` names dims of `x` with those of the kernel. `channels=("channels",
    "channels_out")` are summed and made; all other dims of `x` are its batch. A spatial dim keeps its name with its new
    size. `stride`, `dilation` and `padding` may be dicts by dim; a dim left out has stride 1, dilation 1, no pads. With
    `groups` the kernel's `channels` are those of one group; where each channel is by itself it keeps its name:
    `channels=("channels", "channels"), groups=channels.size`, and the kernel has it once.
    """
    operands = _Operands("conv", x, w, over, channels, groups)
    by_groups = _by_groups(conv, operands, stride=stride, dilation=dilation, padding=padding)
    if by_groups is not None:
        return by_groups
    stretches = [sliding_window(*slide, "conv") for slide in operands.slides(stride, dilation, padding)]
    view = View(operands.meet(), stretches)
    seen = view.halos(operands.x)
    slides = {
        "window_strides": [s.stride for s in stretches],
        "rhs_dilation": [s.dilation for s in stretches],
        "padding": [view.pads(s) for s in stretches],
    }
    array = operands.run(seen, lambda a, k: operands.convolve(a, k, **slides))
    return operands.settle(array, view)


@recorded
def conv_transpose(
    x: Tensor,
    w: Tensor,
    *,
    over: Mapping[Any, DimLike],
    channels: Sequence[DimLike],
    stride: Steps = 1,
    dilation: Steps = 1,
    groups: int = 1,
    padding: Padding = "SAME",
) -> Tensor:
    """Transposed convolution of `x` with the kernel `w`, as jax.lax.conv_transpose.

    `x` is spread out by `stride`, and convolved with the kernel as it is. With SAME a dim comes out `stride` times as
    large, with VALID larger by what the kernel reaches past that; two pads are those of the image once it is spread
    out. The rest as in `conv`.
    """
    what = "conv_transpose"
    operands = _Operands(what, x, w, over, channels, groups)
    by_groups = _by_groups(conv_transpose, operands, stride=stride, dilation=dilation, padding=padding)
    if by_groups is not None:
        return by_groups
    spreads = []
    for d, reach, step, dilated, pads in operands.slides(stride, dilation, padding):
        low, high = _transpose_pads(reach, step, pads)
        size = (d.size - 1) * step + 1 + low + high - reach + 1
        if size < 1:
            raise DimError(
                f"{what} has a window of {reach} along `{d.name}`, which is {size + reach - 1} with its pads",
                fix="use padding='SAME' or more pads",
            )
        spreads.append(SlidingWindow(d, reach, step, dilated, low, size))
    view = View(operands.meet(), spreads)
    needs = [_need_of(s, view.out(s), view.ways(s)) for s in spreads]
    halos = [(s.dim, need.starts, need.size, None) for s, need in zip(spreads, needs, strict=True) if view.axes(s)]
    seen = with_halos(operands.x, view.meeting, halos)

    def compute(image: Any, kernel: Any) -> Any:
        result = operands.convolve(
            image,
            kernel,
            window_strides=[1] * len(spreads),
            lhs_dilation=[s.stride for s in spreads],
            rhs_dilation=[s.dilation for s in spreads],
            padding=[need.pads for need in needs],
        )
        for s, need in zip(spreads, needs, strict=True):
            if not need.is_alike:
                first = (index(view.axes(s)) * view.out(s) - s.low) % s.stride
                position = operands.x.dims.position(s.dim.name)
                result = lax.dynamic_slice_in_dim(result, first, view.out(s), position)
        return result

    array = operands.run(seen, compute)
    return operands.settle(array, view)


def _transpose_pads(reach: int, stride: int, padding: str | Pads) -> Pads:
    """The pads of the spread-out image that lax.conv_transpose takes."""
    if not isinstance(padding, str):
        return padding
    if padding == "VALID":
        return reach - 1, stride - 1 + max(reach - stride, 0)
    total = reach + stride - 2
    low = reach - 1 if stride > reach - 1 else -(-total // 2)
    return low, total - low


@dataclass(frozen=True)
class _Needed:
    """What each processor needs of a spread-out dim, and the pads around it."""

    starts: list[int]
    size: int
    pads: Pads
    is_alike: bool
    """Whether the first place needed lies alike on all; if not, a few more come out, of which some are cut."""


def _need_of(s: SlidingWindow, out: int, ways: int) -> _Needed:
    firsts = [i * out - s.low for i in range(ways)]  # of the spread-out dim
    length = out + s.reach - 1
    if ways == 1:
        spread = (s.dim.size - 1) * s.stride + 1
        return _Needed([0], s.dim.size, (s.low, length - s.low - spread), True)
    if out % s.stride == 0:
        before = s.low % s.stride
        size = -(-(length - before) // s.stride)
        starts = [-(-first // s.stride) for first in firsts]
        return _Needed(starts, size, (before, length - before - (size - 1) * s.stride - 1), True)
    size = -(-(length + s.stride - 1) // s.stride)
    return _Needed([first // s.stride for first in firsts], size, (0, s.stride - 1), False)
