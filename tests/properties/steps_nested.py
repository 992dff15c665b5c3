"""Random steps in loops, maps, branches and gradients: any other step, in the place where it is hardest."""

import jax
import jax.numpy as jnp

import weft as wf
from tests.properties.programs import FORMS, Form, Plain, fits, flip_coin, form, pick
from tests.properties.steps_moving import some_dim


def inner(rng, p, dims):
    """Any step but one of these, on a tensor of these dims."""
    word = pick(rng, sorted(name for name in FORMS if name not in NESTED))
    found = FORMS[word](rng, p, dims)
    if found is None:
        return None
    shape = jax.eval_shape(found.weft, wf.tensor(_struct(dims), dims), *(p.nodes[i].shape for i in found.more))
    found.words, found.shapes = [word], [shape.dims]
    return found if len(shape.dims) < 4 and fits(shape.dims) else None


def _struct(dims):
    return jax.ShapeDtypeStruct([d.size for d in dims], "float32")


def wrapped(found, text, weft, plain, whole=()):
    return Form(
        f"{text} {found.text}",
        weft,
        plain,
        found.more,
        is_ordering=found.is_ordering,
        whole=[*found.whole, *whole],
        words=found.words,
        shapes=found.shapes,
    )


def mapped_plain(found, dim):
    """The plain form of a step for each place of a dim, which comes first in the result."""

    def plain(x, *more):
        at = x.axis(dim.name)
        rest = tuple(d for d in x.dims if d.name != dim.name)
        result = jax.vmap(lambda a: found.plain(Plain(a, rest), *more), at, 0)(x.array)
        return Plain(result.array, (dim, *result.dims))

    return plain


def draw_inside(rng, p, dims):
    """A dim, and a step on what remains without it."""
    dim = some_dim(rng, dims)
    if dim is None:
        return None, None
    with p.inside(dim.name):
        return dim, inner(rng, p, [d for d in dims if d.name != dim.name])


@form
def vmap(rng, p, dims):
    dim, found = draw_inside(rng, p, dims)
    if found is None:
        return None
    as_argument = flip_coin(rng)

    def weft(x, *more):
        if as_argument:
            return wf.vmap(found.weft, over=dim.name)(x, *more)
        return wf.vmap(lambda row: found.weft(row, *more), over=dim.name)(x)

    return wrapped(found, f"vmap({dim.name})", weft, mapped_plain(found, dim))


@form
def scan(rng, p, dims):
    dim, found = draw_inside(rng, p, dims)
    if found is None:
        return None
    reverse = flip_coin(rng)

    def weft(x, *more):
        def turn(total, row):
            made = found.weft(row, *more)
            total = wf.tanh(total + wf.sum(made, over=made.dims))
            return total, made + 0.1 * total

        return wf.scan(turn, wf.zeros([]), x, over=dim.name, reverse=reverse)[1]

    def plain(x, *more):
        at = x.axis(dim.name)
        rest = tuple(d for d in x.dims if d.name != dim.name)

        def turn(total, row):
            made = found.plain(Plain(row, rest), *more)
            total = jnp.tanh(total + jnp.sum(made.array))
            return total, made.like(made.array + 0.1 * total)

        rows = jax.lax.scan(turn, jnp.zeros(()), jnp.moveaxis(x.array, at, 0), reverse=reverse)[1]
        return Plain(rows.array, (dim, *rows.dims))

    return wrapped(found, f"scan({dim.name}, {reverse})", weft, plain, whole=[dim.name])


@form
def cond(rng, p, dims):
    found, ids = inner(rng, p, dims), p.leaf(rng, [], ids=(0, 2))
    if found is None:
        return None

    def weft(x, *more):
        *more, number = more
        return wf.cond(number == 1, found.weft, lambda x, *more: wf.tanh(found.weft(0.5 * x, *more)), x, *more)

    def plain(x, *more):
        *more, number = more
        one, other = found.plain(x, *more), found.plain(x.like(0.5 * x.array), *more)
        return one.like(jnp.where(number.array == 1, one.array, jnp.tanh(other.array)))

    made = wrapped(found, "cond", weft, plain)
    made.more = [*found.more, ids]
    return made


@form
def cond_by_row(rng, p, dims):
    """A branch that each row of a map takes or does not take, and what it closes over."""
    dim, found = draw_inside(rng, p, dims)
    if found is None:
        return None
    ids = p.leaf(rng, [dim], ids=(0, 2))

    def weft(x, *more):
        *more, numbers = more

        def one(row, number):
            on_false = lambda row: wf.tanh(found.weft(0.5 * row, *more))  # noqa: E731
            return wf.cond(number == 1, lambda row: found.weft(row, *more), on_false, row)

        return wf.vmap(one, over=dim.name)(x, numbers)

    def plain(x, *more):
        *more, numbers = more
        one, other = mapped_plain(found, dim)(x, *more), mapped_plain(found, dim)(x.like(0.5 * x.array), *more)
        is_on = jnp.reshape(numbers.array == 1, [-1] + [1] * (one.array.ndim - 1))
        return one.like(jnp.where(is_on, one.array, jnp.tanh(other.array)))

    made = wrapped(found, f"cond by row of {dim.name}", weft, plain)
    made.more = [*found.more, ids]
    return made


@form
def loop_by_row(rng, p, dims):
    """Turns as many as each row of a map says; no gradient flows through them."""
    dim, found = draw_inside(rng, p, dims)
    if found is None or found.is_ordering:
        return None
    ids = p.leaf(rng, [dim], ids=(0, 3))

    def weft(x, *more):
        *more, numbers = map(wf.stop_gradient, more)

        def one(row, number):
            def turn(i, row):
                made = found.weft(row, *more)
                return wf.tanh(row + 0.1 * wf.mean(made, over=made.dims) + 0.01 * i)

            return wf.fori_loop(0, number, turn, row)

        return wf.vmap(one, over=dim.name)(wf.stop_gradient(x), numbers)

    def plain(x, *more):
        *more, numbers = (each.like(jax.lax.stop_gradient(each.array)) for each in more)
        at, rest = x.axis(dim.name), tuple(d for d in x.dims if d.name != dim.name)

        def one(row, number):
            for i in range(2):
                made = found.plain(Plain(row, rest), *more)
                row = jnp.where(i < number, jnp.tanh(row + 0.1 * jnp.mean(made.array) + 0.01 * i), row)
            return row

        return Plain(jax.vmap(one, (at, 0), 0)(jax.lax.stop_gradient(x.array), numbers.array), (dim, *rest))

    made = wrapped(found, f"loop by row of {dim.name}", weft, plain)
    made.more = [*found.more, ids]
    return made


@form
def loop(rng, p, dims):
    """Turns that keep the shape, whatever the step inside makes of it."""
    found = inner(rng, p, dims)
    if found is None or found.is_ordering:
        return None

    def weft(x, *more):
        def turn(i, x):
            made = found.weft(x, *more)
            return wf.tanh(x + 0.1 * wf.mean(made, over=made.dims) + 0.01 * i)

        return wf.fori_loop(0, 2, turn, x)

    def plain(x, *more):
        for i in range(2):
            x = x.like(jnp.tanh(x.array + 0.1 * jnp.mean(found.plain(x, *more).array) + 0.01 * i))
        return x

    return wrapped(found, "loop", weft, plain)


@form
def remat(rng, p, dims):
    found = inner(rng, p, dims)
    return found and wrapped(found, "remat", lambda *xs: wf.remat(found.weft)(*xs), found.plain)


@form
def inner_gradient(rng, p, dims):
    """The gradient of a step is a step: what differentiates it is a second derivative."""
    found = inner(rng, p, dims)
    if found is None:
        return None

    def weft(x, *more):
        def energy(x):
            y = found.weft(wf.tanh(x), *more)
            return 0.5 * wf.sum(y * y, over=y.dims)

        return wf.tanh(wf.grad(energy)(x))

    def plain(x, *more):
        def energy(array):
            return 0.5 * jnp.sum(found.plain(x.like(jnp.tanh(array)), *more).array ** 2)

        return x.like(jnp.tanh(jax.grad(energy)(x.array)))

    return wrapped(found, "gradient of", weft, plain)


@form
def per_example(rng, p, dims):
    """The gradient of a step with respect to what every example shares, for each example."""
    dim, found = draw_inside(rng, p, dims)
    if found is None or not [d for d in dims if d.name != dim.name]:
        return None
    rest = [d for d in dims if d.name != dim.name]
    shared = p.leaf(rng, rest)
    closed = flip_coin(rng)

    def weft(x, *more):
        *more, shared = more

        def energy(shared, row):
            y = found.weft(row * shared, *more)
            return 0.5 * wf.sum(y * y, over=y.dims)

        if closed:
            return wf.tanh(wf.vmap(lambda row: wf.grad(energy)(shared, row), over=dim.name)(x))
        return wf.tanh(wf.vmap(wf.grad(energy), over=dim.name)(shared, x))

    def plain(x, *more):
        *more, shared = more
        inside = tuple(d for d in x.dims if d.name != dim.name)

        def energy(weights, row):
            return 0.5 * jnp.sum(found.plain(Plain(row * weights, inside), *more).array ** 2)

        array = jax.vmap(jax.grad(energy), (None, x.axis(dim.name)))(shared.along(inside), x.array)
        return Plain(jnp.tanh(array), (dim, *inside))

    made = wrapped(found, f"per example of {dim.name}", weft, plain)
    made.more, made.is_ordering = [*found.more, shared], False
    return None if found.is_ordering else made


NESTED = {"vmap", "scan", "cond", "cond_by_row", "loop", "loop_by_row", "remat", "inner_gradient", "per_example"}
