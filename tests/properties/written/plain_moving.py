"""The plain language's operations that move, look up and regroup."""

import builtins
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import weft
from tests.properties.written.plain import Named, _joined, _names


def broadcast(x: Named, into: Any) -> Named:
    return Named(jnp.broadcast_to(x.along(into), [d.size for d in into]), tuple(into))


def slice(x: Named, *, over: str, start: Any, size: int) -> Named:
    at = x.axis(over)
    start = start.array if isinstance(start, Named) else start
    return x.like(lax.dynamic_slice_in_dim(x.array, jnp.clip(start, 0, x.array.shape[at] - size), size, at))


def update(x: Named, new: Named, *, over: str, at: Any) -> Named:
    place = at.array if isinstance(at, Named) else at
    given = new if over in new.names else Named(new.array[None], (weft.Dim(over, 1), *new.dims))
    count = given.array.shape[given.axis(over)]
    whole = [d.resized(count) if d.name == over else d for d in x.dims]
    block = jnp.broadcast_to(given.along(whole), [d.size for d in whole]).astype(x.dtype)
    place = jnp.clip(place, 0, x.array.shape[x.axis(over)] - count)
    return Named(lax.dynamic_update_slice_in_dim(x.array, block, place, x.axis(over)), x.dims)


def pad(x: Named, *, over: str, before: int = 0, after: int = 0, value: Any = 0) -> Named:
    pads = [(before, after) if d.name == over else (0, 0) for d in x.dims]
    return x.like(jnp.pad(x.array, pads, constant_values=jnp.asarray(value).astype(x.dtype)))


def flip(x: Named, *, over: str) -> Named:
    return Named(jnp.flip(x.array, x.axis(over)), x.dims)


def roll(x: Named, *, over: str, by: int) -> Named:
    return Named(jnp.roll(x.array, by, x.axis(over)), x.dims)


def shift(x: Named, *, over: str, by: int, fill: Any = 0) -> Named:
    n, at = x.array.shape[x.axis(over)], x.axis(over)
    wide = pad(x, over=over, before=max(by, 0), after=max(-by, 0), value=fill)
    return Named(lax.slice_in_dim(wide.array, max(-by, 0), max(-by, 0) + n, axis=at), x.dims)


def concat(xs: Sequence[Named], *, over: str) -> Named:
    first = xs[0]
    arrays = [x.along([x.dims[x.axis(d.name)] for d in first.dims]) for x in xs]
    return first.like(jnp.concatenate(arrays, first.axis(over)))


def stack(xs: Sequence[Named], dim: weft.Dim) -> Named:
    dims = _joined(*(x.dims for x in xs))
    return Named(jnp.stack([broadcast(x, dims).array for x in xs]), (dim, *dims))


def unstack(x: Named, *, over: str) -> tuple[Named, ...]:
    array = jnp.moveaxis(x.array, x.axis(over), 0)
    return tuple(x.replaced(part, over) for part in array)


def split(x: Named, **parts: Sequence[weft.Dim]) -> Named:
    for name, new in parts.items():
        at = x.axis(name)
        sizes = (*x.array.shape[:at], *(d.size for d in new), *x.array.shape[at + 1 :])
        x = x.replaced(x.array.reshape(sizes), name, *new)
    return x


def merge(x: Named, dims: Any, *, into: weft.Dim) -> Named:
    parts = [x.dims[x.axis(n)] for n in _names(dims)]
    rest = [d for d in x.dims if d not in parts]
    return Named(
        x.along([*rest, *parts]).reshape([*(d.size for d in rest), math.prod(d.size for d in parts)]), (*rest, into)
    )


def _chosen(x: Named, ids: Named, into: Sequence[weft.Dim], over: str) -> Any:
    """The values at the ids, zero where an id lies outside."""
    size = x.array.shape[x.axis(over)]
    sources = Named(x.array, tuple(weft.Dim("source", size) if d.name == over else d for d in x.dims))
    order = [*into, weft.Dim("source", size)]
    sizes = [d.size for d in into]
    values = jnp.broadcast_to(sources.along(order), [*sizes, size])
    places = jnp.broadcast_to(ids.along(into), sizes)
    found = jnp.take_along_axis(values, jnp.clip(places, 0, size - 1)[..., None], -1)[..., 0]
    return jnp.where((places >= 0) & (places < size), found, jnp.zeros((), x.dtype))


def take(x: Named, ids: Named, *, over: str) -> Named:
    into = _joined([d for d in x.dims if d.name != over], ids.dims)
    return Named(_chosen(x, ids, into, over), into)


def gather(x: Named, ids: Named, *, over: str) -> Named:
    into = _joined([d for d in x.dims if d.name != over], ids.dims)
    return Named(_chosen(x, ids, into, over), into)


def one_hot(ids: Named, dim: weft.Dim, *, dtype: Any = "float32") -> Named:
    return Named((ids.array[..., None] == jnp.arange(dim.size)).astype(dtype), (*ids.dims, dim))


def scatter_add(x: Named, ids: Named, updates: Named, *, over: str) -> Named:
    ids, updates = (
        Named(y.array, tuple(d.renamed("source") if d.name == over else d for d in y.dims)) for y in (ids, updates)
    )
    summed = [d for d in ids.dims if d.name not in x.names]
    order = [*x.dims, *summed]
    sizes = [d.size for d in order]
    here = Named(jnp.arange(x.array.shape[x.axis(over)]), (x.dims[x.axis(over)],)).along(order)
    flat = (*x.array.shape, math.prod(d.size for d in summed))
    ours = jnp.broadcast_to(ids.along(order) == here, sizes).reshape(flat)
    values = jnp.broadcast_to(updates.along(order), sizes).reshape(flat)
    total = x.array
    for i in builtins.range(flat[-1]):  # in turn, and nothing where nothing is added: the sign of a zero stays
        total = jnp.where(ours[..., i], total + values[..., i].astype(x.dtype), total)
    added = jnp.sum(jnp.where(ours, values, jnp.zeros_like(values)), axis=-1)
    return Named(_valued(jnp.where(added == 0, x.array, total), total), x.dims)


@jax.custom_jvp
def _valued(value: Any, sloped: Any) -> Any:
    """The value of one array with the slope of another."""
    return value


_valued.defjvp(lambda primals, tangents: (primals[0], tangents[1]))
