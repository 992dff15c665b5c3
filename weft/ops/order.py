"""Order along one dim: argmax, top k, running sums and maxima, sorting.

On a split dim each processor works on its slice and what is exchanged is small: one value (and its place) for an
extreme, k for `top_k`, one total for what runs along; `sort` moves the split to another dim and back. NaN, ties and
signed zeros mean what they mean in jnp, wherever the slices lie.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..dims import Dim, DimLike
from ..errors import DimError, TensorError
from ..lower.along import Along
from ..lower.collectives import (
    all_gather,
    all_gather_equal,
    all_max,
    all_min,
    all_to_all,
    as_ordered,
    index,
    own_slice,
    permute,
)
from ..lower.padding import highest, lowest
from ..lower.recorded import recorded
from ..tensor import Tensor


def _need_order(x: Any, over: DimLike, what: str, padding: Any) -> Along:
    """The dim to go along, of a tensor whose values have an order."""
    along = Along(x, over, what, padding=padding)
    if jnp.issubdtype(along.x.dtype, jnp.complexfloating):
        raise TensorError(
            f"{what} got {along.x!r}, and complex numbers have no order",
            fix="give it `wf.abs(x)`, `wf.real(x)` or `wf.imag(x)`",
        )
    return along


@recorded
def argmax(x: Tensor, *, over: DimLike) -> Tensor:
    """The first place along the dim `over` where `x` is largest; NaN wins."""
    return _place(x, over, "argmax", lax.argmax, all_max, lowest)


@recorded
def argmin(x: Tensor, *, over: DimLike) -> Tensor:
    """The first place along the dim `over` where `x` is smallest; NaN wins."""
    return _place(x, over, "argmin", lax.argmin, all_min, highest)


def _place(
    x: Any, over: DimLike, what: str, local: Callable[..., Any], across: Callable[..., Any], worst: Callable[[Any], Any]
) -> Tensor:
    along = _need_order(x, over, what, worst)

    def best(a: Any) -> tuple[Any, Any]:
        a = lax.stop_gradient(a)
        place = local(a, along.position, jnp.int32)
        return place, _pick(a, jnp.expand_dims(place, along.position), along.position)

    if not along.axes:
        return along.drop(along.local(lambda a: best(a)[0].astype(int)), ())
    place, value = along.local(best)
    value = jnp.squeeze(value, along.position)
    extreme = across(value, along.axes)
    is_here = (value == extreme) | ((value != value) & (extreme != extreme))
    place = jnp.where(is_here, place + along.start(), along.dim.size)
    return along.drop(all_min(place, along.axes).astype(int), ())


def _pick(a: Any, places: Any, position: int) -> Any:
    """The entries at places that are all inside."""
    return jnp.take_along_axis(a, places, axis=position, mode="promise_in_bounds")


@recorded
def top_k(x: Tensor, *, over: DimLike, k: Dim) -> tuple[Tensor, Tensor]:
    """The `k` largest values along the dim `over`, largest first, and their places.

    Both have the dim `k` in its stead. Of equal values the first comes first, and NaN is largest. On a split dim each
    processor sends its own k.
    """
    along = _need_order(x, over, "top_k", lowest)
    _check_k(along, k)
    at, count = along.position, min(k.size, along.own)
    width = along.x.dtype.itemsize
    if along.axes and count * (width + 4) >= along.own * width:  # the slice itself is no more
        whole = all_gather_equal(along.local(lambda a: a), along.axes, at)
        values, places = _largest(whole, k.size, at)
    elif along.axes:
        values, places = along.local(lambda a: _largest(a, count, at))
        values = all_gather_equal(values, along.axes, at)
        places = all_gather_equal(places + along.start(), along.axes, at)
        values, chosen = _largest(values, k.size, at)
        places = _pick(places, chosen, at)
    else:
        values, places = along.local(lambda a: _largest(a, k.size, at))
    return along.drop(values, (k,)), along.drop(places, (k,))


def _check_k(along: Along, k: Any) -> None:
    if not isinstance(k, Dim):
        size = k if isinstance(k, int) and k > 1 else 1
        raise DimError(f"top_k got k={k!r}", fix=f"give the dim the results have instead: `k=wf.Dim('top', {size})`")
    if k.size > along.dim.count:
        raise DimError(
            f"top_k takes {k.size} of `{along.dim.name}`, whose size is {along.dim.count}",
            fix=f"take at most {along.dim.count}: `wf.Dim('{k.name}', {along.dim.count})`",
        )
    if along.x.dims.without([along.dim]).has(k.name):
        raise DimError(
            f"top_k gives the dim `{k.name}`, which [{along.x.dims}] has already",
            fix=f"choose another name: `wf.Dim('{k.name}_top', {k.size})`",
        )


def _largest(a: Any, count: int, position: int) -> tuple[Any, Any]:
    """The `count` largest along an axis and their places, where the gradient goes."""
    keys = lax.stop_gradient(a)
    if jnp.issubdtype(a.dtype, jnp.floating):  # a NaN or a zero with a sign would be ordered by it
        keys = jnp.where(jnp.isnan(keys), jnp.full_like(keys, jnp.nan), keys)
        keys = jnp.where(keys == 0, jnp.zeros_like(keys), keys)
    places = lax.top_k(keys, count, axis=position)[1]
    return _pick(a, places, position), places


@recorded
def cumsum(x: Tensor, *, over: DimLike, reverse: bool = False) -> Tensor:
    """The running sum of `x` along `over`, each value included; or in `reverse`."""
    return _run_along(x, over, reverse, "cumsum", jnp.cumsum, jnp.add, 0)


@recorded
def cumprod(x: Tensor, *, over: DimLike, reverse: bool = False) -> Tensor:
    """The running product of `x` along `over`, each value included; or in `reverse`."""
    return _run_along(x, over, reverse, "cumprod", jnp.cumprod, jnp.multiply, 1)


def _run_along(
    x: Any, over: DimLike, reverse: bool, what: str, scan: Callable[..., Any], join: Callable[..., Any], neutral: int
) -> Tensor:
    along = Along(x, over, what, padding=neutral)
    at = along.position

    def run(a: Any) -> Any:
        if jnp.issubdtype(a.dtype, jnp.floating) and a.dtype.itemsize < 4:
            a = a.astype("float32")
        return _flip_if(scan(_flip_if(a, reverse, at), axis=at), reverse, at)

    running = along.local(run)
    if along.axes:
        before = scan(_totals(running, along, reverse), axis=0)
        none = jnp.full_like(before[:1], neutral)
        running = join(_for_here(jnp.concatenate([none, before[:-1]]), along, reverse), running)
    is_float = jnp.issubdtype(along.x.dtype, jnp.floating)
    return along.same_shape(running.astype(along.x.dtype) if is_float else running)


def _flip_if(a: Any, reverse: bool, position: int) -> Any:
    return jnp.flip(a, position) if reverse else a


def _totals(running: Any, along: Along, reverse: bool) -> Any:
    """The last value of every processor's slice, in order, on a new first axis."""
    end = lax.index_in_dim(running, 0 if reverse else along.own - 1, along.position, keepdims=False)
    return _flip_if(all_gather(end[None], along.axes, 0), reverse, 0)


def _for_here(before: Any, along: Along, reverse: bool) -> Any:
    """Of what comes before each slice, what comes before this processor's."""
    here = index(along.axes)
    here = along.ways - 1 - here if reverse else here
    return jnp.expand_dims(lax.dynamic_index_in_dim(before, here, 0, keepdims=False), along.position)


@recorded
def cummax(x: Tensor, *, over: DimLike, reverse: bool = False) -> Tensor:
    """The largest value of `x` so far along the dim `over`.

    From the end with `reverse`. NaN wins. The gradient goes to the first place that holds the value.
    """
    along = _need_order(x, over, "cummax", lowest)
    at = along.position
    running = along.local(lambda a: _flip_if(_running_max(_flip_if(a, reverse, at), at), reverse, at))
    if along.axes:
        before = _running_max(_totals(running, along, reverse), 0)
        before = _for_here(jnp.concatenate([before[:1], before[:-1]]), along, reverse)
        here = index(along.axes)
        is_first = here == (along.ways - 1 if reverse else 0)
        running = jnp.where(is_first | _exceeds(running, before), running, before)
    return along.same_shape(running)


def _exceeds(a: Any, b: Any) -> Any:
    """Where `a` takes the place of `b`, which came before it."""
    if a.dtype == bool:
        return a & ~b
    return ~(a <= b) & (b == b)  # NaN is larger than all but NaN


def _running_max(a: Any, position: int) -> Any:
    """The running maximum along an axis; of equal values the first stays."""
    keys = as_ordered(lax.stop_gradient(a))
    best = lax.cummax(keys, axis=position)
    is_new = keys > jnp.roll(best, 1, axis=position)  # at the first place, whatever it says, the place is 0
    places = jnp.where(is_new, lax.broadcasted_iota("int32", a.shape, position), 0)
    return _pick(a, lax.cummax(places, axis=position), position)


@recorded
def sort(x: Tensor, *, over: DimLike) -> Tensor:
    """`x` in ascending order along the dim `over`, stably; NaN comes last.

    A split dim is made whole while another takes its axes, by two all-to-alls. Where none divides, processors merge
    with each other by pairs, or gather the whole, whichever sends less.
    """
    along = _need_order(x, over, "sort", _last)
    at = along.position
    if not along.axes:
        return along.same_shape(along.local(lambda a: jnp.sort(a, axis=at)))
    slices = along.local(lambda a: a)
    sizes = [size if i != at else 0 for i, size in enumerate(slices.shape)]
    target = next((i for i, size in enumerate(sizes) if size and size % along.ways == 0), None)
    if target is None and _merging_is_less(along.ways, slices.dtype.itemsize):
        return along.same_shape(_merge_slices(slices, along))
    if target is None:
        whole = jnp.sort(all_gather_equal(slices, along.axes, at), axis=at)
        return along.same_shape(own_slice(whole, along.axes, at, along.ways))
    whole = jnp.sort(all_to_all(slices, along.axes, split=target, join=at), axis=at)
    return along.same_shape(all_to_all(whole, along.axes, split=at, join=target))


def _last(dtype: Any) -> Any:
    """The value that nothing comes after."""
    return jnp.nan if jnp.issubdtype(dtype, jnp.floating) else highest(dtype)


def _merging_is_less(ways: int, width: int) -> bool:
    """Whether merging sends less than a gather; places travel along, to order ties."""
    if ways & (ways - 1):
        return False
    depth = ways.bit_length() - 1
    return depth * (depth + 1) // 2 * (width + 4) < (ways - 1) * width


def _merge_slices(slices: Any, along: Along) -> Any:
    """Slices sorted as one by a bitonic network of merges; for a power of two."""
    at, own, here = along.position, along.own, index(along.axes)
    places = lax.broadcasted_iota("int32", slices.shape, at) + along.start()
    held = list(lax.sort([slices, places], dimension=at, num_keys=2))
    run = 2
    while run <= along.ways:
        hop = run // 2
        while hop:
            pairs = [(i, i ^ hop) for i in range(along.ways)]
            both = [jnp.concatenate([a, permute(a, along.axes, pairs)], axis=at) for a in held]
            merged = lax.sort(both, dimension=at, num_keys=2)
            keeps_low = ((here & hop) == 0) == ((here & run) == 0)
            low, high = ([lax.slice_in_dim(a, start, start + own, axis=at) for a in merged] for start in (0, own))
            held = [jnp.where(keeps_low, a, b) for a, b in zip(low, high, strict=True)]
            hop //= 2
        run *= 2
    return held[0]
