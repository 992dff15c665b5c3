"""Pooling, windows and upsampling along named dims, by halo exchange."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..dims import Dim, Shape
from ..errors import DimError, TensorError
from ..lower.collectives import first_place, index
from ..lower.halos import SlidingWindow, View, number_by_dim, paddings_of, sliding_window
from ..lower.meet import meet, need_tensor
from ..lower.move import align, result, settle
from ..lower.padding import lowest, need_no_padding
from ..lower.recorded import note_over, recorded
from ..tensor import Tensor
from .conv import Padding, Steps
from .reduce import mean_dtype


@recorded
def max_pool(
    x: Tensor, *, window: Mapping[Any, int], stride: Steps | None = None, padding: Padding = "VALID"
) -> Tensor:
    """The largest value in each window: `window={"height": 2, "width": 2}`; NaN wins.

    The stride is the window's size, if not given; `padding` as in `conv`. What is padded is never the largest.
    """
    x, view = _view(x, window, stride, padding, "max_pool")
    least = np.asarray(lowest(x.dtype), x.dtype)
    seen = view.halos(x, fill=least)

    def compute(array: Any) -> Any:
        return _reduce_windows(array, least, lax.max, view, x.dims)

    return result(meet([seen]).run(compute, [seen]), _dims_after(x, view), view.after.region)


@recorded
def avg_pool(
    x: Tensor, *, window: Mapping[Any, int], stride: Steps | None = None, padding: Padding = "VALID"
) -> Tensor:
    """The mean of each window, over what is inside the tensor: pads do not count.

    The stride is the window's size, if not given; `padding` as in `conv`.
    """
    x, view = _view(x, window, stride, padding, "avg_pool")
    dtype = mean_dtype(x.dtype)
    seen = view.halos(x)

    def compute(array: Any) -> Any:
        array = array.astype(jnp.promote_types(dtype, jnp.float32))
        total = _reduce_windows(array, np.zeros((), array.dtype), lax.add, view, x.dims)
        for s in view.stretches:
            total = total / align(_counts(s, view), [s.dim], x.dims).astype(total.dtype)
        return total.astype(dtype)

    return result(meet([seen]).run(compute, [seen]), _dims_after(x, view), view.after.region)


def _view(x: Any, window: Mapping[Any, int], stride: Steps | None, padding: Padding, what: str) -> tuple[Tensor, View]:
    x = need_tensor(x, what)
    if x.dtype == bool:
        raise TensorError(f"{what} got booleans", fix="cast them to numbers: `wf.cast(x, 'float32')`")
    dims, windows = _sizes_by_dim(window, x.dims, what, "window")
    strides = windows if stride is None else number_by_dim(stride, dims, what, "stride")
    paddings = paddings_of(padding, dims, what)
    for dim in dims:
        pads = paddings[dim.name]
        if not isinstance(pads, str) and max(pads) >= windows[dim.name]:
            raise DimError(
                f"{what} has pads {pads} and a window of {windows[dim.name]} along `{dim.name}`: "
                "a window may lie in the pads alone",
                fix=f"give pads of at most {windows[dim.name] - 1}",
            )
    stretches = [sliding_window(d, windows[d.name], strides[d.name], 1, paddings[d.name], what) for d in dims]
    return x, View(meet([x]), stretches)


def _sizes_by_dim(sizes: Any, dims: Shape, what: str, name: str) -> tuple[Shape, dict[str, int]]:
    """The dims a dict names, and a whole number for each."""
    if not isinstance(sizes, dict) or not sizes:
        raise DimError(f"{what} got {name}={sizes!r}", fix=f"give a dim and its size: `{name}={{'height': 2}}`")
    named = Shape(dims.find(dim) for dim in sizes)
    need_no_padding(named, what)
    note_over(named)
    return named, number_by_dim(sizes, named, what, name)


def _dims_after(x: Tensor, view: View) -> Shape:
    return Shape(view.after.dims.find(dim.name) for dim in x.dims)


def _reduce_windows(array: Any, start: Any, combine: Any, view: View, dims: Shape) -> Any:
    sizes, strides, pads = [1] * array.ndim, [1] * array.ndim, [(0, 0)] * array.ndim
    for s in view.stretches:
        at = dims.position(s.dim.name)
        sizes[at], strides[at], pads[at] = s.reach, s.stride, view.pads(s)
    return lax.reduce_window(array, start, combine, sizes, strides, pads)


def _counts(s: SlidingWindow, view: View) -> Any:
    """How much of each window lies inside the dim."""
    if s.low <= 0 and s.size_seen(1) - s.low <= s.dim.size:  # it has no pads
        return jnp.full(1, s.reach)
    first = (jnp.arange(view.out(s)) + first_place(view.axes(s), view.out(s))) * s.stride - s.low
    return jnp.minimum(first + s.reach, s.dim.size) - jnp.maximum(first, 0)


@recorded
def windows(x: Tensor, *, over: Mapping[Any, Dim], stride: Steps = 1, padding: Padding = "SAME") -> Tensor:
    """The window around each place of some dims, along dims of its own (unfold).

    `over={"height": wf.Dim("kh", 3)}` gives `x` a last dim `kh`: what `conv` would multiply by its kernel, and sent as
    for one. Outside the tensor there are zeros; `padding` as in `conv`.
    """
    x = need_tensor(x, "windows")
    if not isinstance(over, dict) or not over or not all(isinstance(dim, Dim) for dim in over.values()):
        raise DimError(f"windows got over={over!r}", fix="give new dims: `over={'height': wf.Dim('kh', 3)}`")
    added = Shape(over.values())
    if twice := next((dim for dim in added if x.dims.has(dim.name)), None):
        raise DimError(
            f"windows are to lie along `{twice.name}`, which x [{x.dims}] has already",
            fix=f"name it anew, e.g. `wf.Dim('{twice.name}_window', {twice.size})`",
        )
    x, view = _view(x, {dim: new.size for dim, new in over.items()}, stride, padding, "windows")
    seen = view.halos(x)

    def compute(array: Any) -> Any:
        pads = {x.dims.position(s.dim.name): view.pads(s) for s in view.stretches}
        array = jnp.pad(array, [pads.get(i, (0, 0)) for i in range(array.ndim)])
        for s in view.stretches:
            at, last = x.dims.position(s.dim.name), (view.out(s) - 1) * s.stride + 1
            parts = [lax.slice_in_dim(array, i, i + last, s.stride, axis=at) for i in range(s.reach)]
            array = jnp.stack(parts, axis=-1)
        return array

    dims = _dims_after(x, view)
    placed = (*view.after.placement(dims), *((),) * len(added))
    return settle(meet([seen]).run(compute, [seen]), Shape([*dims, *added]), placed, view.after.region)


@recorded
def upsample(x: Tensor, *, by: Mapping[Any, int], method: str = "nearest") -> Tensor:
    """`x` with dims so many times as large, `by={"height": 2}`, as jax.image.resize.

    "nearest" repeats each value, and nothing is sent; "linear" goes straight from the middle of each to the middle of
    the next, and stays at the outermost value beyond its middle: one place of each neighbour is sent.
    """
    x = need_tensor(x, "upsample")
    dims, times = _sizes_by_dim(by, x.dims, "upsample", "by")
    if method not in ("nearest", "linear"):
        raise TensorError(f"upsample got method={method!r}", fix="use 'nearest' or 'linear'")
    after = x.dims.resized({dim.name: dim.size * times[dim.name] for dim in dims})
    if method == "nearest":
        meeting = meet([x])

        def repeat(array: Any) -> Any:
            for dim in dims:
                array = jnp.repeat(array, times[dim.name], axis=x.dims.position(dim))
            return array

        return result(meeting.run(repeat, [x]), after, meeting.region)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise TensorError(f"upsample got {x.dtype} for method 'linear'", fix="cast it: `wf.cast(x, 'float32')`")
    view = View(meet([x]), [sliding_window(dim, 3, 1, 1, "SAME", "upsample") for dim in dims if times[dim.name] > 1])
    seen = view.halos(x)

    def compute(array: Any) -> Any:
        array = array.astype(jnp.promote_types(x.dtype, jnp.float32))
        for s in view.stretches:
            at = x.dims.position(s.dim.name)
            array = _interpolate(_with_edges(array, at, s, view), at, times[s.dim.name])
        return array.astype(x.dtype)

    return result(meet([seen]).run(compute, [seen]), after, view.after.region)


def _with_edges(array: Any, at: int, s: SlidingWindow, view: View) -> Any:
    """The array with a place more on either side; beyond the whole, its outermost."""
    if not view.axes(s):
        return jnp.pad(array, [(1, 1) if i == at else (0, 0) for i in range(array.ndim)], mode="edge")
    low, inner, high = jnp.split(array, [1, array.shape[at] - 1], axis=at)
    here = index(view.axes(s))
    low = lax.select(here == 0, lax.slice_in_dim(inner, 0, 1, axis=at), low)
    high = lax.select(here == view.ways(s) - 1, lax.slice_in_dim(inner, -1, None, axis=at), high)
    return jnp.concatenate([low, inner, high], axis=at)


def _interpolate(array: Any, at: int, times: int) -> Any:
    """`times` values around each but the outermost, on the lines to its neighbours."""
    size = array.shape[at] - 2
    low, inner, high = (lax.slice_in_dim(array, i, i + size, axis=at) for i in range(3))
    parts = []
    for i in range(times):
        offset = (i + 0.5) / times - 0.5
        other = low if offset < 0 else high
        parts.append(inner if offset == 0 else (1 - abs(offset)) * inner + abs(offset) * other)
    shape = (*array.shape[:at], size * times, *array.shape[at + 1 :])
    return jnp.stack(parts, axis=at + 1).reshape(shape)
