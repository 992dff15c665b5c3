"""Mean and variance over split dims: one all-reduce, as exact as two passes over the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf

ROWS, WIDTH = wf.dims(rows=32, width=512)


def moments(x, mesh="x=8", layout="width:x"):
    found = wf.spmd(lambda x: wf.mean_and_var(x, over="width"), mesh=mesh, layout=layout)(x)
    return tuple(np.asarray(y.array, "float64") for y in found)


@pytest.mark.parametrize("offset", [0, 1, 1e2, 1e3, 1e4, -3e4])
def test_the_variance_is_as_exact_as_in_two_passes(offset):
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(32, 512)) + offset * rng.uniform(0.5, 2, size=(32, 1))).astype("float32")
    mean, variance = moments(wf.tensor(rows, [ROWS, WIDTH]))
    exact = rows.astype("float64")
    two_passes = np.asarray(jnp.var(rows, axis=1), "float64")
    error, known = (np.max(np.abs(v / exact.var(1) - 1)) for v in (variance, two_passes))
    # Whichever way it is made, the mean is rounded, and the square of what that takes is in the variance.
    rounded = np.max((2.0**-24 * exact.mean(1)) ** 2 / exact.var(1))
    assert error <= 4 * (known + rounded) + 1e-6
    assert np.max(np.abs(mean - exact.mean(1))) <= 1e-6 * max(1, 2 * abs(offset))


def test_slices_of_very_different_size_are_joined_rightly():
    rng = np.random.default_rng(1)
    scale = np.repeat(10.0 ** np.arange(-4, 4), 64)
    rows = (rng.normal(size=(32, 512)) * scale + 3 * scale).astype("float32")
    mean, variance = moments(wf.tensor(rows, [ROWS, WIDTH]))
    np.testing.assert_allclose(variance, rows.astype("float64").var(1), rtol=1e-5)
    np.testing.assert_allclose(mean, rows.astype("float64").mean(1), rtol=1e-5)


@pytest.mark.parametrize("offset", [3e18, 1e19, -4e19, 1e24])
@pytest.mark.parametrize(("mesh", "layout"), [("x=8", "width:x"), ("a=2,b=2", "width:b+a")])
def test_a_mean_whose_square_is_infinite_has_a_variance(offset, mesh, layout):
    rng = np.random.default_rng(3)
    rows = (offset * (1 + 1e-6 * rng.normal(size=(32, 512)))).astype("float32")
    rows[0], rows[1] = offset, np.where(np.arange(512) % 128 < 64, 1e25, -1e25)
    mean, variance = moments(wf.tensor(rows, [ROWS, WIDTH]), mesh, layout)
    exact = rows.astype("float64")
    np.testing.assert_allclose(mean[2:], exact[2:].mean(1), rtol=1e-6)
    # The sum in float32 of 512 squares, each of a difference of a few units in the last place.
    np.testing.assert_allclose(variance[2:], exact[2:].var(1), rtol=0.05)
    assert variance[0] == 0 and mean[1] == 0 and np.isinf(variance[1])


def test_what_is_not_finite_stays_so():
    rows = np.ones((32, 512), "float32")
    rows[0, 3], rows[1, 400], rows[2] = np.inf, np.nan, 7.0
    mean, variance = moments(wf.tensor(rows, [ROWS, WIDTH]))
    assert np.isinf(mean[0]) and np.isnan(variance[0]) and np.isnan(mean[1]) and np.isnan(variance[1])
    assert mean[2] == 7 and np.all(variance[2:] == 0) and np.all(mean[3:] == 1)


@pytest.mark.parametrize(("mesh", "layout"), [("a=2,b=4", "width:a+b"), ("a=2,b=4", "width:b,rows:a"), ("a=8", "")])
def test_the_gradient_of_a_norm_does_not_depend_on_the_layout(mesh, layout):
    rng = np.random.default_rng(2)
    x = wf.tensor((rng.normal(size=(32, 512)) + 5).astype("float32"), [ROWS, WIDTH])

    def loss(x):
        mean, variance = wf.mean_and_var(x, over="width")
        return wf.sum((x - mean) * wf.rsqrt(variance + 1e-5) * wf.cos(x), over="rows width")

    def plain(x):
        mean, variance = jnp.mean(x, 1, keepdims=True), jnp.var(x, 1, keepdims=True)
        return jnp.sum((x - mean) / jnp.sqrt(variance + 1e-5) * jnp.cos(x))

    gradient = wf.spmd(wf.grad(loss), mesh=wf.Mesh(mesh), layout=layout)(x) if layout else wf.grad(loss)(x)
    np.testing.assert_allclose(gradient.array, jax.grad(plain)(x.array), rtol=2e-4, atol=2e-5)


def test_mean_and_variance_are_one_all_reduce_together_and_nothing_backward():
    x = wf.tensor(np.ones((32, 512), "float32"), [ROWS, WIDTH])

    def both(x):
        return wf.mean_and_var(x, over="width")

    (row,) = wf.trace(both, x, mesh="x=64", layout="width:x").ledger
    assert row.collective == "all_reduce" and row.bytes == 8 * 32 * 4 and row.count == 1
    (row,) = wf.trace(lambda x: wf.var(x, over="width"), x, mesh="x=64", layout="width:x").ledger
    assert row.collective == "all_reduce"

    def loss(x):
        return wf.sum(wf.mean_and_var(x, over="width")[1], over="rows")

    assert len(list(wf.trace(wf.grad(loss), x, mesh="x=64", layout="width:x").ledger)) == 1


@pytest.mark.parametrize(
    "values",
    [[1e38] * 8, [2e38, -2e38] * 4, [np.inf, *[1] * 7], [np.nan, *[1] * 7], [np.inf, -np.inf, *[1] * 6]],
    ids=["a sum too large", "differences too large", "inf", "nan", "both infinities"],
)
def test_moments_of_the_largest_floats_are_those_of_the_whole(values):
    place = wf.Dim("place", 8)
    x = wf.tensor(np.array(values, "float32"), [place])
    due = wf.mean_and_var(x, over=place)
    got = wf.spmd(lambda x: wf.mean_and_var(x, over=place), mesh="x=4", layout="place:x")(x)
    for mine, theirs in zip(got, due, strict=True):
        np.testing.assert_array_equal(mine.array, theirs.array)
