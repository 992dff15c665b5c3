"""Random steps that move stretches of a dim, and cut and join dims."""

import builtins

import jax.numpy as jnp
from jax import lax

import weft as wf
from tests.properties.programs import LARGEST, Form, Plain, flip_coin, form, pick, show, shuffled, subset


def some_dim(rng, dims, least=1):
    """One of the dims, if one is as large."""
    found = [dim for dim in dims if dim.size >= least]
    return pick(rng, found) if found else None


def some_size(rng, least, most):
    """A size in a range, more often one that divides well."""
    even = [size for size in range(least, most + 1) if size % 2 == 0]
    return pick(rng, even) if even and not flip_coin(rng, 6) else rng.randint(least, most)


@form
def slice(rng, p, dims):
    dim = some_dim(rng, dims, 2)
    if dim is None:
        return None
    size = some_size(rng, 1, dim.size)
    start = rng.randint(0, dim.size - size)
    return Form(
        f"slice({dim.name}, {start}, {size})",
        lambda x: wf.slice(x, over=dim.name, start=start, size=size),
        lambda x: x.resized(lax.slice_in_dim(x.array, start, start + size, axis=x.axis(dim.name))),
    )


@form
def slice_traced(rng, p, dims):
    dim = some_dim(rng, dims, 2)
    if dim is None:
        return None
    size = some_size(rng, 1, dim.size)
    at = p.leaf(rng, [], ids=(-1, dim.size + 1))

    def plain(x, at):
        start = jnp.clip(at.array, 0, dim.size - size)
        return x.resized(lax.dynamic_slice_in_dim(x.array, start, size, x.axis(dim.name)))

    return Form(
        f"slice({dim.name}, traced, {size})",
        lambda x, at: wf.slice(x, over=dim.name, start=at, size=size),
        plain,
        [at],
    )


def padded(x, name, before, after, value=0.0):
    pads = [(before, after) if dim.name == name else (0, 0) for dim in x.dims]
    return x.resized(jnp.pad(x.array, pads, constant_values=value))


@form
def pad(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None or dim.size > 12:
        return None
    extra = some_size(rng, dim.size, min(2 * dim.size, 16)) - dim.size
    before, value = rng.randint(0, extra), pick(rng, [0, 1.5])
    return Form(
        f"pad({dim.name}, {before}, {extra - before}, {value})",
        lambda x: wf.pad(x, over=dim.name, before=before, after=extra - before, value=value),
        lambda x: padded(x, dim.name, before, extra - before, value),
    )


@form
def shift(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None:
        return None
    by, fill = rng.randint(-dim.size - 1, dim.size + 1), pick(rng, [0, 0.7])

    def plain(x):
        n, at = dim.size, x.axis(dim.name)
        wide = padded(x, dim.name, max(by, 0), max(-by, 0), fill)
        return x.like(lax.slice_in_dim(wide.array, max(-by, 0), max(-by, 0) + n, axis=at))

    return Form(f"shift({dim.name}, {by}, {fill})", lambda x: wf.shift(x, over=dim.name, by=by, fill=fill), plain)


@form
def roll(rng, p, dims):
    dim, by = some_dim(rng, dims), rng.randint(-10, 10)
    if dim is None:
        return None
    return Form(
        f"roll({dim.name}, {by})",
        lambda x: wf.roll(x, over=dim.name, by=by),
        lambda x: x.like(jnp.roll(x.array, by, x.axis(dim.name))),
    )


@form
def flip(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None:
        return None
    return Form(
        f"flip({dim.name})",
        lambda x: wf.flip(x, over=dim.name),
        lambda x: x.like(jnp.flip(x.array, x.axis(dim.name))),
    )


@form
def concat(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None or dim.size >= 16:
        return None
    more = []
    total = dim.size
    for _ in range(rng.randint(1, 2)):
        size = some_size(rng, total + 1, total + 8) - total
        total += size
        others = shuffled(rng, [d.resized(size) if d.name == dim.name else d for d in dims])
        more.append(p.leaf(rng, others))
    at, twice = rng.randint(0, len(more)), flip_coin(rng)

    def order(x, ys, half):
        return [*ys[:at], x, *ys[at:], *([half] if twice else [])]

    def plain(x, *ys):
        parts = order(x, list(ys), x.like(0.5 * x.array))
        arrays = [y.along([*(y.dims[y.axis(d.name)] for d in x.dims)]) for y in parts]
        return x.resized(jnp.concatenate(arrays, x.axis(dim.name)))

    return Form(
        f"concat({dim.name}, {at}, {twice})",
        lambda x, *ys: wf.concat(order(x, list(ys), 0.5 * x), over=dim.name),
        plain,
        more,
    )


@form
def update(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None:
        return None
    rest = [d for d in dims if d.name != dim.name]
    stretch = rng.randint(0, dim.size)  # 0: one place, without the dim
    new = shuffled(rng, [*subset(rng, rest, 0), *([dim.resized(stretch)] if stretch else [])])
    most = dim.size - max(stretch, 1)
    value, is_traced = p.leaf(rng, new), flip_coin(rng)
    at = rng.randint(0, most)
    more = [value, p.leaf(rng, [], ids=(-1, dim.size + 1))] if is_traced else [value]

    def plain(x, new, traced=None):
        start = at if traced is None else jnp.clip(traced.array, 0, most)
        whole = [d.resized(max(stretch, 1)) if d.name == dim.name else d for d in x.dims]
        given = new if stretch else Plain(new.array[None], (dim.resized(1), *new.dims))
        block = jnp.broadcast_to(given.along(whole), [d.size for d in whole])
        return x.like(lax.dynamic_update_slice_in_dim(x.array, block, start, x.axis(dim.name)))

    return Form(
        f"update({dim.name}, [{show(new)}], {'traced' if is_traced else at})",
        lambda x, new, traced=None: wf.update(x, new, over=dim.name, at=at if traced is None else traced),
        plain,
        more,
    )


@form
def getitem(rng, p, dims):
    if not dims:
        return None
    pairs = []
    for dim in subset(rng, dims, 1, 2):
        start = rng.randint(0, dim.size - 1)
        stop = start + some_size(rng, 1, dim.size - start)
        far = [builtins.slice(start, stop), builtins.slice(start - dim.size, stop), builtins.slice(None, stop)]
        pairs += [dim.name, pick(rng, [start, start - dim.size, *far])]

    def plain(x):
        for name, at in zip(pairs[::2], pairs[1::2], strict=True):
            index = [at if other == name else builtins.slice(None) for other in x.names]
            array = x.array[tuple(index)]
            x = x.replaced(array, name) if isinstance(at, int) else x.resized(array)
        return x

    return Form(f"x[{pairs}]", lambda x: x[tuple(pairs)], plain)


@form
def split(rng, p, dims):
    dim = some_dim(rng, dims, 2)
    if dim is None:
        return None
    first = pick(rng, [n for n in range(1, dim.size + 1) if dim.size % n == 0])
    others = [d for d in dims if d.name != dim.name]
    one = p.fresh(rng, first, others)
    two = p.fresh(rng, dim.size // first, [*others, one])
    shape = {d.name: d.size for d in dims}

    def plain(x):
        sizes = [n for d in x.dims for n in ([one.size, two.size] if d.name == dim.name else [shape[d.name]])]
        return x.replaced(x.array.reshape(sizes), dim.name, one, two)

    return Form(f"split({dim.name}, [{show([one, two])}])", lambda x: wf.split(x, **{dim.name: [one, two]}), plain)


@form
def merge(rng, p, dims):
    if len(dims) < 2:
        return None
    parts = subset(rng, dims, 2, 3)
    size = 1
    for dim in parts:
        size *= dim.size
    if size > LARGEST:
        return None
    rest = [d for d in dims if d not in parts]
    into = p.fresh(rng, size, rest)

    def plain(x):
        return Plain(x.along([*rest, *parts]).reshape([*(d.size for d in rest), size]), (*rest, into))

    return Form(
        f"merge([{show(parts)}], {into.name})", lambda x: wf.merge(x, [d.name for d in parts], into=into), plain
    )


@form
def stack(rng, p, dims):
    count = pick(rng, [2, 4])
    new = p.fresh(rng, count, dims)
    other = p.leaf(rng, shuffled(rng, dims))
    scales = [1.0, 0.5, -0.5, 0.25][:count]
    which = [flip_coin(rng) for _ in scales]

    def parts(x, y):
        return [(x if is_x else y) * scale for is_x, scale in zip(which, scales, strict=True)]

    return Form(
        f"stack({new.name}={count}, {which})",
        lambda x, y: wf.stack(parts(x, y), new),
        lambda x, y: Plain(jnp.stack(parts(x.array, y.along(x.dims))), (new, *x.dims)),
        [other],
    )


@form
def unstack(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None:
        return None
    i, j = rng.randint(0, dim.size - 1), rng.randint(-dim.size, -1)

    def weft(x):
        parts = wf.unstack(x, over=dim.name)
        assert len(parts) == dim.size
        return parts[i] - 0.5 * parts[j]

    def plain(x):
        array = jnp.moveaxis(x.array, x.axis(dim.name), 0)
        return x.replaced(array[i] - 0.5 * array[j], dim.name)

    return Form(f"unstack({dim.name})[{i}], [{j}]", weft, plain)
