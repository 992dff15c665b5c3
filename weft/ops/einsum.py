"""Einsum: products of any number of tensors, summed over some of their dims.

An all-reduce over the axes of the dims summed out, or one reduce-scatter where the result leaves under a name that
is split over such an axis.
"""

from typing import Any

import jax.numpy as jnp

from ..dims import Dim, Shape, resolve
from ..errors import DimError, TensorError
from ..tensor import Tensor, as_dtype
from .meet import meet, need_tensor
from .move import settle
from .recorded import recorded
from .reshape import renamed


@recorded
def einsum(*xs: Tensor, out: Any = None, over: Any = None, rename: Any = None, dtype: Any = None) -> Tensor:
    """The product of `xs` with the dims `out`, or with all dims but those summed, `over`.

    `rename={"length": stream}` lets the result leave under a new name, by one reduce-scatter where the axis summed
    is the new dim's. `dtype` is that of the result and of its collective.
    """
    if not xs:
        raise TensorError("einsum got no tensor", fix="give at least one: `wf.einsum(x, w, over='d_model')`")
    xs = tuple(need_tensor(x, "einsum") for x in xs)
    meeting = meet(xs)
    kept = _kept(meeting.dims, out, over)
    gone = meeting.dims.without(kept)
    numbers = {name: i for i, name in enumerate(meeting.dims.names)}
    orders = [[numbers[dim.name] for dim in shape] for shape in (*(x.dims for x in xs), kept)]
    dtype = None if dtype is None else as_dtype(dtype)
    given = {} if dtype is None else {"preferred_element_type": dtype}
    array = meeting.run(lambda *arrays: _product(orders, arrays, given), xs)
    if dtype is not None:
        array = array.astype(dtype)
    names = checked_rename(rename)
    return settle(array, renamed(kept, names), meeting.placement(kept), meeting.region, partial=meeting.axes(gone))


def _product(orders: list[list[int]], arrays: tuple[Any, ...], given: dict[str, Any]) -> Any:
    if all(array.dtype == bool for array in arrays):
        raise TensorError("einsum got only booleans", fix="cast one to numbers: `wf.cast(x, 'int32')`, or use wf.any")
    pairs = [item for pair in zip(arrays, orders, strict=False) for item in pair]
    return jnp.einsum(*pairs, orders[-1], **given)


def _kept(dims: Shape, out: Any, over: Any) -> Shape:
    if (out is None) == (over is None):
        both = "both `out` and `over`" if out is not None else "neither `out` nor `over`"
        raise DimError(
            f"einsum got {both}",
            state=f"dims at hand: [{dims}]",
            fix="say either which dims stay (`out=[...]`) or which are summed (`over=[...]`)",
        )
    if out is not None:
        return resolve(out, dims, what="out")
    return dims.without(resolve(over, dims, what="over"))


def checked_rename(rename: Any) -> dict[str, Any]:
    if rename is None:
        return {}
    if not isinstance(rename, dict):
        raise DimError(f"`rename` is {rename!r}", fix="give old and new names, e.g. `rename={'length': stream}`")
    return {old.name if isinstance(old, Dim) else old: new for old, new in rename.items()}
