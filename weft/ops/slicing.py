"""Along a dim: slice, pad, concat, flip, roll, shift, update, indexing by name.

Along a split dim each processor gets its part of the result from those that hold it (`exchange_window`); the dim keeps
its name with its new size.
"""

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..checks import is_whole
from ..dims import UNSHOWN, Dim, DimLike, Shape, union
from ..dtypes import need_room
from ..errors import DimError, TensorError
from ..lower.along import ANYTHING, Along, places
from ..lower.collectives import first_place, permute
from ..lower.exchange import exchange_indices, exchange_window, slice_at
from ..lower.meet import Meeting, meet, need_tensor, note_together, operand
from ..lower.move import align, result, settle
from ..lower.recorded import recorded
from ..operators import operation
from ..tensor import Tensor, is_tensor, make
from .create import arange
from .elementwise import cast, greater_equal, less, logical_and, logical_not, where
from .index import need_kind, take
from .reshape import rename


def _take_window(
    along: Along,
    starts: Callable[[int, int], int],
    size: int,
    *,
    wraps: bool = False,
    place: int = 0,
    fill: Any = 0,
) -> Tensor:
    """The tensor whose dim has `size`; part i, of n places, starts at `starts(i, n)`."""
    dims, region, kind = along.resized(size), along.meeting.region, along.meeting.kind
    local = Meeting(region, dims, kind).local_sizes([dims[along.position]])[0]
    begins = [starts(i, local) for i in builtins.range(along.ways)]

    def compute(*arrays: Any) -> Any:
        where = {"starts": begins, "size": local, "wraps": wraps, "fill": fill}
        return exchange_window(arrays[-1], along.position, along.axes, along.ways, **where)

    return result(along.meeting.run(compute, [*(0,) * place, along.x]), dims, region, kind)


def _whole(value: Any, what: str, name: str, least: int | None = None) -> int:
    value = _as_int(value)
    if isinstance(value, jax.core.Tracer):
        fix = f"give a number that is known while tracing, e.g. `{name}=1`, or an argument that is static"
        raise DimError(f"{what} got {name}={value!r}, and sizes may not be traced", fix=fix)
    if not is_whole(value, least):
        wanted = "a whole number" if least is None else f"a whole number of at least {least}"
        raise DimError(f"{what} got {name}={value!r}", fix=f"give {wanted}, e.g. `{name}=1`")
    return value


def _as_int(value: Any) -> Any:
    """A whole number of NumPy's as one of Python's: it is known now, and checked now."""
    return int(value) if isinstance(value, np.integer) else value


@recorded
def slice(x: Tensor, *, over: DimLike, start: Any, size: int) -> Tensor:
    """`size` values along the dim `over` from `start` on; `start` may be traced."""
    along = Along(x, over, "slice", padding=ANYTHING)
    size, there = _whole(size, "slice", "size", 1), along.dim.count
    if size > there:
        raise DimError(
            f"slice takes {size} of `{along.dim.name}` (size {there})", fix=f"take at most all of it: `size={there}`"
        )
    start, along = _as_int(start), along.rearrange(size)
    if is_whole(start):
        if not 0 <= start <= there - size:
            raise DimError(
                f"slice takes [{start}, {start + size}) of `{along.dim.name}` (size {there})",
                fix=f"start between 0 and {there - size}",
            )
        return _take_window(along, lambda i, n: start + i * n, size)
    return _slice_at(along, start, size)


def _slice_at(along: Along, start: Any, size: int) -> Tensor:
    """A slice from a traced start: each puts in what it holds, and parts are summed."""
    start = _one_integer(start, "slice got {} for `start`", "give one whole number, e.g. `start=0`")
    dims = along.resized(size)

    def compute(array: Any, start: Any) -> Any:
        start = _clip(start, along.dim.count - size)
        if not along.axes:
            return lax.dynamic_slice_in_dim(array, start, size, along.position)
        return slice_at(array, along.position, start - along.start(), size)

    array = along.meeting.run(compute, [along.x, start])
    have = tuple(() if dim.name == along.dim.name else axes for dim, axes in zip(
        dims, along.meeting.placement(along.x.dims), strict=True))  # fmt: skip
    region, kind = along.meeting.region, along.meeting.kind
    return settle(array, dims, have, region, partial=along.axes, one_holds=True, kind=kind)


def _one_integer(value: Any, fact: str, fix: str) -> Any:
    """`value`, if it is one whole number, traced or not."""
    sizes = value.dims if is_tensor(value) else getattr(value, "shape", None)
    if sizes is None or len(sizes) or not jnp.issubdtype(value.dtype, jnp.integer):
        raise TensorError(fact.format(f"{value!r:.60}"), fix=fix)
    return operand(value, "an index")


def _clip(at: Any, last: int) -> Any:
    """A place between 0 and `last`, in a dtype that holds any place."""
    return jnp.clip(at.astype("int32") if at.dtype.itemsize < 4 else at, 0, last)


@recorded
def pad(x: Tensor, *, over: DimLike, before: int = 0, after: int = 0, value: Any = 0) -> Tensor:
    """`x` with `before` and `after` values more along the dim `over`."""
    along = Along(x, over, "pad")
    before, after = _whole(before, "pad", "before", 0), _whole(after, "pad", "after", 0)
    size = along.dim.size + before + after
    if _is_number(along.x, value):
        return _take_window(along, lambda i, n: i * n - before, size, fill=value)
    made = _take_window(along, lambda i, n: i * n - before, size)
    return _fill_outside(made, along.dim.name, before, before + along.dim.size, value)


def _is_number(x: Tensor, value: Any) -> bool:
    """Whether `x`'s filling is known now: zero, or another number, which is checked."""
    if not isinstance(value, int | float):
        return False
    if value != 0:
        _check_filling(x, value)
    return True


def _check_filling(x: Tensor, value: Any) -> None:
    value = operand(value, "filling")
    if is_tensor(value) and value.dims:
        raise TensorError(f"{x!r} was to be filled with {value!r}", fix="give one number to fill with, e.g. 0")
    need_room(value, x.dtype)
    need_kind(
        x.dtype,
        jnp.result_type(value.local_array if is_tensor(value) else value),
        f"{x!r} was to be filled with {value!r}",
        "value",
    )


def _fill_outside(x: Tensor, name: str, first: int, last: int, value: Any) -> Tensor:
    """`x` with `value` outside the stretch [first, last) of a dim."""
    _check_filling(x, value)
    meeting = meet([x, value])
    position, axes = x.dims.position(name), meeting.axes([x.dim(name)])

    def compute(array: Any, value: Any) -> Any:
        at = places(name, x.dims, axes, array.shape[position])
        return jnp.where((at >= first) & (at < last), array, jnp.asarray(value).astype(array.dtype))

    return result(meeting.run(compute, [x, value]), x.dims, meeting.region)


@recorded
def shift(x: Tensor, *, over: DimLike, by: int, fill: Any = 0) -> Tensor:
    """`x` moved `by` places up along the dim `over`; what comes in is `fill`."""
    along, by = Along(x, over, "shift", padding=ANYTHING), _whole(by, "shift", "by")
    if _is_number(along.x, fill) and not (along.dim.is_padded and by < 0):
        return _take_window(along, lambda i, n: i * n - by, along.dim.size, fill=fill)
    moved = _take_window(along, lambda i, n: i * n - by, along.dim.size)
    return _fill_outside(moved, along.dim.name, max(by, 0), along.dim.count + min(by, 0), fill)


@recorded
def roll(x: Tensor, *, over: DimLike, by: int) -> Tensor:
    """`x` moved along the dim `over` by `by` places, going round, as jnp.roll."""
    along, by = Along(x, over, "roll", padding=ANYTHING), _whole(by, "roll", "by")
    along = along.rearrange(along.dim.size)
    by %= along.dim.count
    if along.dim.is_padded:  # what leaves the values at one end comes in at the other
        low = _take_window(along, lambda i, n: i * n - by + along.dim.count, along.dim.size)
        high = _take_window(along, lambda i, n: i * n - by, along.dim.size)
        return _join_at(low, high, along.dim.name, by)
    if by > along.dim.size // 2:  # the shorter way round
        by -= along.dim.size
    return _take_window(along, lambda i, n: i * n - by, along.dim.size, wraps=True)


@recorded
def flip(x: Tensor, *, over: DimLike) -> Tensor:
    """`x` with the dim `over` reversed; each slice goes to its mirror processor."""
    along = Along(x, over, "flip", padding=ANYTHING)
    along = along.rearrange(along.dim.size)
    starts = [i * along.own + along.dim.size - along.dim.count for i in builtins.range(along.ways)]

    def compute(array: Any) -> Any:
        array = jnp.flip(array, along.position)
        if along.axes:
            array = permute(array, along.axes, [(i, along.ways - 1 - i) for i in builtins.range(along.ways)])
        if not along.dim.is_padded:
            return array
        # The padding came first.
        return exchange_window(array, along.position, along.axes, along.ways, starts=starts, size=along.own)

    return result(along.meeting.run(compute, [along.x]), along.x.dims, along.meeting.region, along.meeting.kind)


@recorded
def concat(xs: Sequence[Tensor], *, over: DimLike) -> Tensor:
    """Tensors joined along the dim `over`, which may differ in size between them."""
    if not isinstance(xs, list | tuple) or not xs:
        raise TensorError(f"concat got {xs!r:.60}", fix="give a list of tensors: `wf.concat([x, y], over='channels')`")
    name = over.name if isinstance(over, Dim) else over  # its size differs between them
    alongs = [Along(x, name, "concat") for x in xs]
    first = alongs[0].x
    union(*(a.x.dims.without([a.dim]) for a in alongs))  # one size for each other name
    for a in alongs[1:]:
        if set(a.x.dims.names) != set(first.dims.names):
            raise DimError(
                f"concat got [{first.dims}] and [{a.x.dims}]",
                fix="give tensors of the same dims; broadcast what lacks one",
            )
    note_together([a.x for a in alongs])
    total = sum(a.dim.size for a in alongs)
    if all(a.x.kind.store is not None for a in alongs):
        alongs = [a.rearrange(total) for a in alongs]
    made: Tensor | None = None
    begin = 0
    for place, a in enumerate(alongs):
        part = _take_window(a, lambda i, n, begin=begin: i * n - begin, total, place=place)  # type: ignore[misc]
        made = part if made is None else _join_at(made, part, alongs[0].dim.name, begin)
        begin += a.dim.size
    assert made is not None
    return made


def _join_at(left: Tensor, right: Tensor, name: str, at: int) -> Tensor:
    """`left` up to the place `at` of a dim, `right` from there on."""
    meeting = meet([left, right], first=left.dims, into=left.dims)
    position, axes = left.dims.position(name), meeting.axes([left.dim(name)])

    def compute(a: Any, b: Any) -> Any:
        b = align(b, right.dims, left.dims)
        kind = jnp.result_type(a, b)
        return jnp.where(places(name, left.dims, axes, a.shape[position]) < at, a.astype(kind), b.astype(kind))

    return result(meeting.run(compute, [left, right]), left.dims, meeting.region, meeting.kind)


@recorded
def update(x: Tensor, new: Tensor, *, over: DimLike, at: Any) -> Tensor:
    """`x` with `new` in place of what it holds from index `at` of the dim `over` on.

    `new` lacks that dim (one place) or has a stretch of it. Nothing of `x` moves. `at` may be traced; it is clipped.
    """
    along, new = Along(x, over, "update", padding=ANYTHING), need_tensor(new, "update")
    stretch, there = new.dim(along.dim.name).size if new.dims.has(along.dim.name) else 1, along.dim.count
    if stretch > there:
        raise DimError(f"update puts {stretch} into `{along.dim.name}` (size {there})", fix=f"give at most {there}")
    at = _as_int(at)
    if is_whole(at):
        if not 0 <= at <= there - stretch:
            raise DimError(
                f"update puts [{at}, {at + stretch}) into `{along.dim.name}` (size {there})",
                fix=f"start between 0 and {there - stretch}",
            )
    else:
        at = _one_integer(at, "update got {} for `at`", "give one whole number, e.g. `at=0`")
    need_kind(x.dtype, new.dtype, f"update puts {new.dtype} into {x.dtype}", "new")
    if extra := next((d.name for d in new.dims if not x.dims.has(d.name)), None):
        raise DimError(
            f"update's new values have `{extra}`, which {x!r} has not", fix=f"sum over `{extra}`, or take one"
        )
    if isinstance(at, int):
        if new.dims.has(along.dim.name) and not along.dim.is_padded and Along(new, along.dim.name, "update").axes:
            return _update_split(x, new, along.dim, at)
        at = jnp.asarray(at, "int32")
    whole = _make_whole(new, along.dim.name)
    meeting = meet([x, whole, at], first=x.dims)
    target = Shape(Dim(_STRETCH, stretch) if d.name == along.dim.name else d for d in x.dims)
    axes, own = meeting.axes([along.dim]), meeting.local_sizes([along.dim])[0]  # `x` alone may have no layout yet

    def compute(array: Any, value: Any, at: Any) -> Any:
        value = align(value, whole.dims, target).astype(array.dtype)
        value = jnp.broadcast_to(value, [stretch if i == along.position else n for i, n in enumerate(array.shape)])
        first = _clip(at, there - stretch) - first_place(axes, own)
        if not axes:
            return lax.dynamic_update_slice_in_dim(array, value, first, along.position)
        return _put_in(array, value, first, along.position)

    return result(meeting.run(compute, [x, whole, at]), x.dims, meeting.region)


def _update_split(x: Tensor, new: Tensor, dim: Dim, at: int) -> Tensor:
    """`x` with new values split along the dim too; each gets those of its slice."""
    note_together([x, new])
    spread = _take_window(Along(new, dim.name, "update"), lambda i, n: i * n - at, dim.size, place=1)
    here = arange(spread.dim(dim.name), like=spread)
    is_new = logical_and(greater_equal(here, at), less(here, at + new.size(dim.name)))
    return where(logical_not(is_new), x, cast(spread, x.dtype))  # in the order of the dims of `x`


def _put_in(array: Any, new: Any, first: Any, position: int) -> Any:
    """A slice with that part of `new` that falls into it.

    Place 0 of `new` falls on `first`, inside or outside. Only a stretch is read, changed and written, so that a slice
    carried by a loop is changed in place.
    """
    own, stretch = array.shape[position], new.shape[position]
    size = min(own, stretch)
    begin = jnp.clip(first, 0, own - size)
    old = lax.dynamic_slice_in_dim(array, begin, size, position)
    skipped = begin - first  # what of `new` comes before this slice
    moved = new if stretch == 1 else slice_at(new, position, skipped, size)
    at = lax.broadcasted_iota("int32", old.shape, position) + skipped
    mixed = jnp.where((at >= 0) & (at < stretch), moved, old)
    return lax.dynamic_update_slice_in_dim(array, mixed, begin, position)


_STRETCH = f"{UNSHOWN}stretch"


def _make_whole(new: Tensor, name: str) -> Tensor:
    """The new values whole on every processor, under a name that no rule splits."""
    return rename(new, **{name: _STRETCH}) if new.dims.has(name) else new


@operation("getitem")
def getitem(x: Tensor, place: Any) -> Tensor:
    """`x["length", 3:7]`: a stretch of a dim; `x["length", 3]`: one place.

    `x["length", ::2]` is every other place; one place is without the dim. Several pairs may stand in a row.
    """
    x = need_tensor(x, "indexing")
    pairs = place if isinstance(place, tuple) else (place,)
    if len(pairs) % 2 or not all(isinstance(name, str | Dim) for name in pairs[::2]):
        name = x.dims[0].name if x.dims else "length"
        raise TensorError(
            f"{x!r} was indexed with {place!r}",
            fix=f'name the dim: `x["{name}", 3:7]` or `x["{name}", 0]`; many places: `wf.take(x, ids, over="{name}")`',
        )
    for name, at in zip(pairs[::2], pairs[1::2], strict=True):
        x = _at(x, x.dim(name), at)
    return x


def _at(x: Tensor, dim: Dim, at: Any) -> Tensor:
    at = _as_int(at)
    if isinstance(at, builtins.slice):
        at = builtins.slice(*map(_as_int, (at.start, at.stop, at.step)))
        if not all(part is None or is_whole(part) for part in (at.start, at.stop)):
            raise DimError(
                f"a stretch of `{dim.name}` from {at.start!r} to {at.stop!r}",
                fix=f"give whole numbers, e.g. 0:{dim.size}; where the start is traced: "
                f"`wf.slice(x, over='{dim.name}', start=start, size=1)`",
            )
        if at.step == 0 or not (at.step is None or is_whole(at.step)):
            raise DimError(
                f"a stretch of `{dim.name}` with step {at.step!r}", fix="give a whole number that is not 0, e.g. 0:8:2"
            )
        first, last, step = at.indices(dim.count)
        places = builtins.range(first, last, step)
        if not places:
            shown = f"{first}:{last}" if step == 1 else f"{first}:{last}:{step}"
            raise DimError(
                f"the stretch {shown} of `{dim.name}` (size {dim.count}) is empty",
                fix="take at least one place, e.g. 0:1",
            )
        if step != 1:
            return _slice_strided(x, over=dim, places=places)
        return slice(x, over=dim, start=first, size=last - first)
    if is_whole(at):
        if not -dim.count <= at < dim.count:
            raise DimError(f"place {at} of `{dim.name}` (size {dim.count})", fix=f"use one from 0 to {dim.count - 1}")
        at = jnp.asarray(at % dim.count, "int32")
    return take(x, _scalar(at, dim.name), over=dim)


def _slice_strided(x: Tensor, *, over: Dim, places: builtins.range) -> Tensor:
    """Places along a dim at equal distances, either way; each gets its own."""
    along = Along(x, over, "slice", padding=ANYTHING).rearrange(len(places))
    dims, kind = along.resized(len(places)), along.meeting.kind
    ways, at = along.ways, along.position
    Meeting(along.meeting.region, dims, kind)  # it divides
    held, wanted = np.arange(along.dim.size).reshape(ways, -1), np.asarray(places).reshape(ways, -1)

    def compute(array: Any) -> Any:
        if along.axes:
            return exchange_indices(array, at, along.axes, held, wanted)
        end = places.stop if places.stop >= 0 else None
        return array[(builtins.slice(None),) * at + (builtins.slice(places.start, end, places.step),)]

    return result(along.meeting.run(compute, [along.x]), dims, along.meeting.region, kind)


_slice_strided = recorded(name="slice")(_slice_strided)


def _scalar(at: Any, name: str) -> Tensor:
    fix = f"give one whole number or a stretch: `x['{name}', 0:1]`; many places: `wf.take(x, ids, over='{name}')`"
    at = _one_integer(at, f"a place of `{name}` that is {{}}", fix)
    return at if is_tensor(at) else make(jnp.asarray(at), (), None)


@operation("setitem")
def setitem(x: Tensor, place: Any, value: Any) -> None:
    """Refused: a tensor is a value."""
    name = place[0] if isinstance(place, tuple) and place and isinstance(place[0], str) else "length"
    raise TensorError(f"{x!r} cannot be changed", fix=f"make a new one: `x = wf.update(x, new, over='{name}', at=0)`")
