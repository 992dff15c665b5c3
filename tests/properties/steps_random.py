"""Random steps that sample: the bits must be those of jax.random on the whole shape."""

import jax
import jax.numpy as jnp

import weft as wf
from tests.properties.programs import Form, Plain, elementwise, flip_coin, form, shuffled
from tests.properties.steps_moving import some_dim

SAMPLERS = {
    "normal": ({}, lambda key, sizes: jax.random.normal(key, sizes)),
    "uniform": (
        {"minval": -1.0, "maxval": 2.0},
        lambda key, sizes: jax.random.uniform(key, sizes, minval=-1, maxval=2),
    ),
    "bernoulli": ({"p": 0.3}, lambda key, sizes: jax.random.bernoulli(key, 0.3, sizes)),
    "truncated_normal": (
        {"lower": -1.0, "upper": 1.5},
        lambda key, sizes: jax.random.truncated_normal(key, -1.0, 1.5, sizes),
    ),
    "gumbel": ({}, lambda key, sizes: jax.random.gumbel(key, sizes)),
    "randint": ({"minval": -2, "maxval": 3}, lambda key, sizes: jax.random.randint(key, sizes, -2, 3)),
}


def _sampler(name):
    given, sample = SAMPLERS[name]

    def draw_it(rng, p, dims):
        key, like = jax.random.key(rng.randint(0, 9)), flip_coin(rng)
        order = shuffled(rng, dims)

        def weft(x):
            noise = getattr(wf.random, name)(key, order, like=x if like else None, **given)
            return wf.tanh(x * wf.cast(noise, "float32"))

        def plain(x):
            noise = Plain(sample(key, tuple(dim.size for dim in order)).astype("float32"), tuple(order))
            return elementwise(lambda x, noise: jnp.tanh(x * noise), x, noise)

        return Form(f"{name}(like={like})", weft, plain)

    draw_it.__name__ = name
    form(draw_it)


for _name in SAMPLERS:
    _sampler(_name)


@form
def dropout(rng, p, dims):
    key = jax.random.key(rng.randint(0, 9))

    def plain(x):
        keep = jax.random.bernoulli(key, 0.6, x.array.shape)
        return x.like(jnp.where(keep, x.array / 0.6, 0))

    return Form("dropout", lambda x: wf.dropout(x, 0.4, key), plain)


@form
def categorical(rng, p, dims):
    dim, key = some_dim(rng, dims), jax.random.key(rng.randint(0, 9))
    if dim is None:
        return None

    def plain(x):
        places = jax.random.categorical(key, x.array, axis=x.axis(dim.name))
        return x.replaced(0.1 * places.astype("float32"), dim.name)

    return Form(
        f"categorical({dim.name})",
        lambda x: 0.1 * wf.cast(wf.random.categorical(key, x, over=dim.name), "float32"),
        plain,
        is_ordering=True,
    )


@form
def random_split(rng, p, dims):
    """A key for each place of a dim, mapped or scanned over."""
    dim, key = some_dim(rng, dims), jax.random.key(rng.randint(0, 9))
    if dim is None:
        return None
    like, by_scan = flip_coin(rng), flip_coin(rng)

    def noisy(x, key):
        return x * wf.random.uniform(key, x.dims, like=x if like else None)

    def weft(x):
        keys = wf.random.split(key, dim)
        if by_scan:
            return wf.scan(lambda total, row: (total, noisy(*row)), wf.zeros([]), (x, keys), over=dim)[1]
        return wf.vmap(noisy, over=dim)(x, keys)

    def plain(x):
        keys, at = jax.random.split(key, dim.size), x.axis(dim.name)
        return x.like(jax.vmap(lambda a, key: a * jax.random.uniform(key, a.shape), (at, 0), at)(x.array, keys))

    return Form(f"random.split({dim.name}, scan={by_scan})", weft, plain, whole=[dim.name] if by_scan else [])
