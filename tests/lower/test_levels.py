"""Collectives over several levels of a mesh go level by level, and give what one step gives."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lower.on_all import in_steps, on_all
from weft.lower import collectives

TWO, THREE = "hosts=2 | x=4", "pods=2 | hosts=2 | x=2"
ORDERS = {
    TWO: [("hosts", "x"), ("x", "hosts")],
    THREE: [("pods", "hosts", "x"), ("x", "pods", "hosts"), ("hosts", "x"), ("pods", "x")],
}


@pytest.fixture
def any_size():
    with in_steps():
        yield


def both(mesh, fn, *arrays):
    """What `fn` gives on a mesh, and on the same without its bars."""
    flat = mesh.replace("|", ",")
    return jax.tree.map(np.asarray, (on_all(mesh, fn, *arrays), on_all(flat, fn, *arrays)))


def numbers(dtype, *shape):
    return (np.random.default_rng(math.prod(shape)).normal(size=(8, *shape)) * 8).astype(jnp.dtype(dtype))


def assert_near(got, wanted, terms=8):
    """Equal, but for the order of a sum of so many."""
    dtype = wanted.dtype
    if not jnp.issubdtype(dtype, jnp.inexact):
        np.testing.assert_array_equal(got, wanted)
        return
    largest = float(np.max(np.abs(wanted), initial=0)) or 1.0
    allowed = terms * float(jnp.finfo(dtype).eps) * largest
    np.testing.assert_allclose(*(x.astype("complex128") for x in (got, wanted)), rtol=0, atol=allowed)


SHAPES = [(8, 3), (3, 8), (5, 7), (1,), (), (2, 24)]


@pytest.mark.parametrize("mesh", ORDERS)
def test_sums_and_maxima_are_those_of_one_step(mesh, any_size):
    dtypes = ["float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64"]
    shapes = SHAPES if mesh == TWO else SHAPES[2:4]
    arrays = {f"{d} {s}": numbers(d, *s) for d, s in [("float32", s) for s in shapes] + [(d, (5, 7)) for d in dtypes]}

    def reduce(x):
        found = {}
        for axes in ORDERS[mesh]:
            some = x if axes == ORDERS[mesh][0] else {"float32 (5, 7)": x["float32 (5, 7)"]}
            found["sum", axes] = {name: collectives.all_reduce(a, axes) for name, a in some.items()}
            found["max", axes] = {name: collectives.all_max(a, axes) for name, a in some.items()}
            found["min", axes] = collectives.all_min(x["float32 (5, 7)"], axes)
            found["shift", axes] = collectives.max_for_shift(x["float32 (5, 7)"], axes)
        return {str(key): value for key, value in found.items()}

    got, wanted = both(mesh, reduce, arrays)
    jax.tree.map(assert_near, got, wanted)
    maxima = [name for name in got if name.startswith(("('max'", "('min'"))]
    assert all(jax.tree.all(jax.tree.map(np.array_equal, got[name], wanted[name])) for name in maxima)


@pytest.mark.parametrize("mesh", ORDERS)
def test_slices_lie_where_one_step_puts_them(mesh, any_size):
    arrays = numbers("float32", 3, 16, 8), numbers("int32", 8, 2)

    def move(x, y):
        found = {}
        for axes in ORDERS[mesh]:
            found["scatter", axes] = collectives.reduce_scatter(x, axes, 1), collectives.reduce_scatter(y > 0, axes, 0)
            found["gather", axes] = collectives.all_gather(x, axes, 1), collectives.all_gather_equal(y, axes, 0)
            found["exchange", axes] = [
                collectives.all_to_all(x, axes, split=s, join=j) for s, j in [(1, 2), (2, 1), (1, 0), (2, 0)]
            ]
        return {str(key): value for key, value in found.items()}

    got, wanted = both(mesh, move, *arrays)
    jax.tree.map(assert_near, got, wanted)
    exact = [name for name in got if "scatter" not in name]
    assert all(jax.tree.all(jax.tree.map(np.array_equal, got[name], wanted[name])) for name in exact)


@pytest.mark.parametrize("mesh", ORDERS)
def test_gradients_are_those_of_one_step(mesh, any_size):
    x, c = numbers("float32", 16, 3), numbers("float32", 16, 3)
    sends = {
        "sum": lambda x, axes: collectives.all_reduce(x, axes),
        "scatter": lambda x, axes: collectives.reduce_scatter(x, axes, 0),
        "gather": lambda x, axes: collectives.all_gather(x, axes, 0),
        "equal": lambda x, axes: collectives.all_gather_equal(x, axes, 0),
        "exchange": lambda x, axes: collectives.all_to_all(collectives.all_gather(x, axes, 1), axes, split=0, join=1),
        "cast": lambda x, axes: collectives.as_varying(collectives.all_reduce(x, axes) ** 2, axes),
    }

    def differentiate(x, c):
        found = {}
        for axes in ORDERS[mesh][:2]:
            for name, send in sends.items():

                def loss(x, send=send, axes=axes):
                    sent = send(jnp.sin(x / 8), axes)
                    return jnp.sum(sent * jnp.resize(c, sent.shape))

                def turns(x, loss=loss):
                    return jax.lax.scan(lambda y, _: (y + jax.checkpoint(loss)(x), None), x, None, 2)[0].sum()

                found[f"{name} {axes}"] = jax.grad(loss)(x)
                if mesh == TWO and axes == ORDERS[mesh][0]:
                    found[f"{name} in a loop"] = jax.grad(turns)(x)
                    found[f"{name} of each"] = jax.vmap(jax.grad(loss))(jnp.stack([x, 2 * x]))
        return found

    got, wanted = both(mesh, differentiate, x, c)
    jax.tree.map(lambda a, b: assert_near(a, b, 64), got, wanted)
