"""Random steps of the core: elementwise, reductions, einsum, names, new tensors, `local`."""

import functools

import jax
import jax.numpy as jnp

import weft as wf
from tests.properties.programs import (
    SIZES,
    Form,
    Plain,
    elementwise,
    flip_coin,
    form,
    joined,
    named,
    pick,
    show,
    shuffled,
    subset,
)
from tests.properties.steps_moving import some_dim

UNARY = {
    "tanh": lambda lib, x: lib.tanh(x),
    "sin": lambda lib, x: lib.sin(x),
    "relu": lambda lib, x: lib.maximum(x, 0),
    "half": lambda lib, x: x * 0.5,
    "minus": lambda lib, x: 1 - x,
    "square": lambda lib, x: lib.square(lib.tanh(x)),
    "clipped": lambda lib, x: lib.clip(x, -1.0, 1.0),
}


@form
def unary(rng, p, dims):
    name = pick(rng, sorted(UNARY))
    return Form(name, lambda x: UNARY[name](wf, x), lambda x: x.like(UNARY[name](jnp, x.array)))


@form
def stopped(rng, p, dims):
    return Form(
        "stopped",
        lambda x: x - 0.5 * wf.stop_gradient(x),
        lambda x: x.like(x.array - 0.5 * jax.lax.stop_gradient(x.array)),
    )


@form
def binary(rng, p, dims):
    other, name = p.partner(rng, dims), pick(rng, ["add", "multiply", "subtract", "hypot"])
    if other is None:
        return None
    plain = getattr(jnp, name)
    return Form(
        name,
        lambda x, y: wf.tanh(getattr(wf, name)(x, y)),
        lambda x, y: elementwise(lambda a, b: jnp.tanh(plain(a, b)), x, y),
        [other],
    )


REDUCE = {
    "sum": jnp.sum,
    "mean": jnp.mean,
    "max": jnp.max,
    "min": jnp.min,
    "logsumexp": jax.nn.logsumexp,
    "var": jnp.var,
    "prod": jnp.prod,
}


@form
def reduce(rng, p, dims):
    name = pick(rng, sorted(REDUCE))
    if not dims:
        return None
    over = [d.name for d in subset(rng, dims)]

    def ready(lib, x):
        return 1 + 0.1 * lib.tanh(x) if name == "prod" else x

    def plain(x):
        axes = tuple(x.axis(name) for name in over)
        return Plain(
            jnp.tanh(REDUCE[name](ready(jnp, x.array), axis=axes)), tuple(d for d in x.dims if d.name not in over)
        )

    return Form(
        f"{name}({over})",
        lambda x: wf.tanh(getattr(wf, name)(ready(wf, x), over=over)),
        plain,
        is_ordering=name in ("max", "min"),
    )


@form
def normalize(rng, p, dims):
    name = pick(rng, ["softmax", "log_softmax"])
    if not dims:
        return None
    over = [d.name for d in subset(rng, dims)]
    plain = getattr(jax.nn, name)
    return Form(
        f"{name}({over})",
        lambda x: 0.5 * getattr(wf, name)(x, over=over),
        lambda x: x.like(0.5 * plain(x.array, axis=tuple(x.axis(name) for name in over))),
    )


@form
def einsum(rng, p, dims):
    met, more = list(dims), []
    for _ in range(rng.randint(0, 2)):
        other = p.partner(rng, met)
        if other is not None:
            more.append(other)
            met = joined(met, p.nodes[other].dims)
    if not met:
        return None
    kept = subset(rng, met, 0, 3)
    rename = {}
    if kept and flip_coin(rng):
        old = pick(rng, kept)
        rename = {old.name: p.fresh(rng, old.size, [*kept, *(d for d in met if d.size != old.size)])}

    def plain(*xs):
        letters = {name: chr(ord("a") + i) for i, name in enumerate(d.name for d in met)}
        terms = ["".join(letters[name] for name in x.names) for x in xs]
        text = f"{','.join(terms)}->{''.join(letters[d.name] for d in kept)}"
        array = jnp.einsum(text, *(x.array for x in xs))
        return Plain(jnp.tanh(0.5 * array), tuple(rename.get(d.name, d) for d in kept))

    return Form(
        f"einsum([{show(kept)}], {rename})",
        lambda *xs: wf.tanh(0.5 * wf.einsum(*xs, out=[d.name for d in kept], rename=rename)),
        plain,
        more,
    )


@form
def rename(rng, p, dims):
    if not dims:
        return None
    new = {}
    for dim in subset(rng, dims, 1, 2):
        new[dim.name] = p.fresh(rng, dim.size, [*dims, *new.values()])
    return Form(
        f"rename({new})",
        lambda x: x.rename(**new),
        lambda x: Plain(x.array, tuple(new.get(d.name, d) for d in x.dims)),
    )


@form
def swap(rng, p, dims):
    pairs = [(a, b) for a in dims for b in dims if a.name < b.name]
    if not pairs:
        return None
    a, b = pick(rng, pairs)
    new = {a.name: named(b.name, a.size), b.name: named(a.name, b.size)}
    return Form(
        f"swap({a.name}, {b.name})",
        lambda x: x.rename(**new),
        lambda x: Plain(x.array, tuple(new.get(d.name, d) for d in x.dims)),
    )


@form
def broadcast(rng, p, dims):
    free = [name for name in SIZES if name not in {d.name for d in dims} | p.outside]
    into = shuffled(rng, [*dims, named(pick(rng, free))])
    return Form(
        f"broadcast([{show(into)}])",
        lambda x: wf.broadcast(x, into),
        lambda x: Plain(jnp.broadcast_to(x.along(into), [d.size for d in into]), tuple(into)),
    )


@form
def masked(rng, p, dims):
    dim, like = some_dim(rng, dims), flip_coin(rng)
    if dim is None:
        return None

    def plain(x):
        places = Plain(jnp.arange(dim.size), (dim,)).along(x.dims)
        return x.like(jnp.where(places % 3 == 1, x.array, -0.5))

    return Form(
        f"masked({dim.name}, {like})",
        lambda x: wf.where(wf.arange(dim, like=x if like else None) % 3 == 1, x, -0.5),
        plain,
    )


@form
def made(rng, p, dims):
    like, name = flip_coin(rng), pick(rng, ["ones", "full"])
    new = [p.fresh(rng, pick(rng, [2, 4, 8]), dims)] + subset(rng, dims, 0, 1)
    make = wf.ones if name == "ones" else functools.partial(wf.full, value=0.3)
    value = 1 if name == "ones" else 0.3
    return Form(
        f"{name}([{show(new)}], {like})",
        lambda x: x + make(new, like=x if like else None),
        lambda x: elementwise(jnp.add, x, Plain(jnp.full([d.size for d in new], value), tuple(new))),
    )


@form
def local(rng, p, dims):
    dim, is_summed = some_dim(rng, dims), flip_coin(rng)
    if dim is None:
        return None
    at = [d.name for d in dims].index(dim.name)
    if is_summed:
        rest = [d.name for d in dims if d.name != dim.name]
        return Form(
            f"local(sum, {dim.name})",
            lambda x: wf.tanh(wf.local(lambda a: jnp.sum(a, at), x, out=rest, summed=dim.name)),
            lambda x: x.replaced(jnp.tanh(jnp.sum(x.array, at)), dim.name),
        )

    def shifted(a, first, count):
        return a + 0.1 * (first + jnp.arange(count)).reshape([-1 if k == at else 1 for k in range(a.ndim)])

    return Form(
        f"local(places, {dim.name})",
        lambda x: wf.local(lambda a, here: shifted(a, here.start(dim), here.size(dim)), x, out=x.dims),
        lambda x: x.like(shifted(x.array, 0, dim.size)),
    )
