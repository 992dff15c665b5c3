"""Random steps that look up, add at indices, order, and run along a dim."""

import jax
import jax.numpy as jnp
from jax import lax

import weft as wf
from tests.properties.programs import Form, Plain, elementwise, flip_coin, form, joined, pick, show, shuffled, subset
from tests.properties.steps_moving import some_dim, some_size


def chosen(ids, size):
    """Where each id is each place, with one axis more."""
    return ids[..., None] == jnp.arange(size)


@form
def take(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None:
        return None
    others = [d for d in dims if d.name != dim.name]
    own = [p.fresh(rng, size, dims) for size in subset(rng, [2, 4, 8], 0, 1)]
    index = p.leaf(rng, [*subset(rng, others, 0), *own], ids=(-2, dim.size + 2))

    def plain(x, ids):
        into = joined(others, ids.dims)
        where = chosen(ids.along(into), dim.size)
        return Plain(jnp.sum(jnp.where(where, x.along([*into, dim]), 0), -1), tuple(into))

    return Form(f"take({dim.name})", lambda x, ids: wf.take(x, ids, over=dim.name), plain, [index])


@form
def one_hot(rng, p, dims):
    index = p.leaf(rng, subset(rng, dims, 0, 2), ids=(-2, 10))
    dim = some_dim(rng, [d for d in dims if d not in p.nodes[index].dims])
    if dim is None:
        return None

    def plain(x, ids):
        hot = Plain(chosen(ids.array, dim.size).astype("float32"), (*ids.dims, dim))
        return elementwise(jnp.multiply, x, hot)

    return Form(f"one_hot({dim.name})", lambda x, ids: x * wf.one_hot(ids, dim), plain, [index])


@form
def gather(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None:
        return None
    others = [d for d in dims if d.name != dim.name]
    many = dim.resized(some_size(rng, 1, 10))
    own = [p.fresh(rng, 2, dims)] if flip_coin(rng, 4) else []
    index = p.leaf(rng, shuffled(rng, [many, *subset(rng, others, 0), *own]), ids=(-2, dim.size + 2))

    def plain(x, ids):
        into = joined(others, ids.dims)
        source = dim.renamed("source")
        values = Plain(x.array, tuple(source if d.name == dim.name else d for d in x.dims))
        where = chosen(jnp.broadcast_to(ids.along(into), [d.size for d in into]), dim.size)
        return Plain(jnp.sum(jnp.where(where, values.along([*into, source]), 0), -1), tuple(into))

    return Form(
        f"gather({dim.name}, [{show(p.nodes[index].dims)}])",
        lambda x, ids: wf.gather(x, ids, over=dim.name),
        plain,
        [index],
    )


@form
def scatter_add(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None:
        return None
    others = [d for d in dims if d.name != dim.name]
    own = [p.fresh(rng, size, dims) for size in subset(rng, [2, 4, 8], 0, 1)]
    own += [dim.resized(some_size(rng, 1, 10))] if flip_coin(rng) else []
    ids_dims = shuffled(rng, [*subset(rng, others, 0), *own])
    index = p.leaf(rng, ids_dims, ids=(-2, dim.size + 2))
    values = p.leaf(rng, shuffled(rng, joined(others, ids_dims)))

    def plain(x, ids, updates):
        ids, updates = (
            Plain(y.array, tuple(d.renamed("source") if d.name == dim.name else d for d in y.dims))
            for y in (ids, updates)
        )
        summed = [d for d in ids.dims if d.name not in x.names]
        order = [*x.dims, *summed]
        here = Plain(jnp.arange(dim.size), (dim,)).along(order)
        added = jnp.where(ids.along(order) == here, updates.along(order), 0)
        return x.like(x.array + jnp.sum(added, axis=tuple(range(len(x.dims), len(order)))))

    return Form(
        f"scatter_add({dim.name}, [{show(ids_dims)}])",
        lambda x, ids, updates: wf.tanh(0.5 * wf.scatter_add(x, ids, updates, over=dim.name)),
        lambda x, ids, updates: tamed(plain(x, ids, updates)),
        [index, values],
    )


def tamed(x):
    return x.like(jnp.tanh(0.5 * x.array))


def _place(name, plain_fn):
    def draw_it(rng, p, dims):
        dim = some_dim(rng, dims)
        if dim is None:
            return None
        return Form(
            f"{name}({dim.name})",
            lambda x: 0.1 * wf.cast(getattr(wf, name)(x, over=dim.name), "float32"),
            lambda x: x.replaced(0.1 * plain_fn(x.array, x.axis(dim.name)).astype("float32"), dim.name),
            is_ordering=True,
        )

    draw_it.__name__ = name
    form(draw_it)


_place("argmax", jnp.argmax)
_place("argmin", jnp.argmin)


@form
def top_k(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None:
        return None
    k = p.fresh(rng, some_size(rng, 1, dim.size), [d for d in dims if d.name != dim.name])

    def weft(x):
        values, places = wf.top_k(x, over=dim.name, k=k)
        return values + 0.1 * wf.cast(places, "float32")

    def plain(x):
        last = jnp.moveaxis(x.array, x.axis(dim.name), -1)
        places = jnp.argsort(-last, axis=-1, stable=True)[..., : k.size]
        found = jnp.take_along_axis(last, places, -1) + 0.1 * places.astype("float32")
        return x.replaced(jnp.moveaxis(found, -1, x.axis(dim.name)), dim.name, k)

    return Form(f"top_k({dim.name}, {show([k])})", weft, plain, is_ordering=True)


@form
def sort(rng, p, dims):
    dim = some_dim(rng, dims)
    if dim is None:
        return None

    def plain(x):
        at = x.axis(dim.name)
        places = jnp.argsort(lax.stop_gradient(x.array), axis=at, stable=True)
        return x.like(jnp.take_along_axis(x.array, places, at))

    return Form(f"sort({dim.name})", lambda x: wf.sort(x, over=dim.name), plain, is_ordering=True)


def _backwards(fn, reverse, x, at):
    return jnp.flip(fn(jnp.flip(x, at), at), at) if reverse else fn(x, at)


def _running(name, prepare, plain_fn, finish, is_ordering=False):
    def draw_it(rng, p, dims):
        dim, reverse = some_dim(rng, dims), flip_coin(rng)
        if dim is None:
            return None
        ready, done = prepare(jnp), finish(jnp)
        return Form(
            f"{name}({dim.name}, {reverse})",
            lambda x: finish(wf)(getattr(wf, name)(prepare(wf)(x), over=dim.name, reverse=reverse)),
            lambda x: x.like(done(_backwards(plain_fn, reverse, ready(x.array), x.axis(dim.name)))),
            is_ordering=is_ordering,
        )

    draw_it.__name__ = name
    form(draw_it)


def _largest_so_far(x, at):
    """The running maximum by its places, the first of those that are equal: its gradient goes there."""
    moved = jnp.moveaxis(x, at, 0)
    n = moved.shape[0]
    seen = jnp.arange(n)[None, :] <= jnp.arange(n)[:, None]
    wide = jnp.where(seen.reshape(n, n, *(1,) * (moved.ndim - 1)), moved[None], -jnp.inf)
    places = jnp.argmax(wide, axis=1)
    return jnp.moveaxis(jnp.take_along_axis(moved, places, 0), 0, at)


_running("cumsum", lambda lib: lambda x: x, jnp.cumsum, lambda lib: lambda x: lib.tanh(0.3 * x))
_running("cumprod", lambda lib: lambda x: 1 + 0.2 * lib.tanh(x), jnp.cumprod, lambda lib: lib.tanh)
_running("cummax", lambda lib: lambda x: x, _largest_so_far, lambda lib: lambda x: x, is_ordering=True)


JOINS = {
    "sum": lambda lib, a, b: [a[0] + b[0]],
    "soft maximum": lambda lib, a, b: [lib.logaddexp(a[0], b[0])],
    "recurrence": lambda lib, a, b: [a[0] * b[0], b[0] * a[1] + b[1]],
}


@form
def associative_scan(rng, p, dims):
    dim, kind = some_dim(rng, dims), pick(rng, sorted(JOINS))
    if dim is None:
        return None
    join = JOINS[kind]

    def elements(lib, x):
        return [0.5 * lib.tanh(x) + 0.4, x] if kind == "recurrence" else [x]

    def weft(x):
        found = wf.associative_scan(lambda a, b: join(wf, a, b), elements(wf, x), over=dim.name)
        return wf.tanh(0.3 * found[-1])

    def plain(x):
        rows = [jnp.moveaxis(a, x.axis(dim.name), 0) for a in elements(jnp, x.array)]

        def turn(before, row):
            after = join(jnp, before, row)
            return after, after

        first = [row[0] for row in rows]
        _, rest = jax.lax.scan(turn, first, [row[1:] for row in rows])
        found = jnp.concatenate([rows[-1][:1], rest[-1]])
        return x.like(jnp.tanh(0.3 * jnp.moveaxis(found, 0, x.axis(dim.name))))

    return Form(f"associative_scan({kind}, {dim.name})", weft, plain)
