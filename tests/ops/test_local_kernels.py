"""`wf.local` takes what JAX takes: Pallas kernels with plain shapes, loops that begin with constants, own gradients.

Each function is one that JAX refuses inside a region for the types it gives values there. What it gives under every
layout is compared with the same program without a mesh, which is compared with plain `jnp`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

import weft as wf

batch, length, d_model = wf.dims(batch=8, length=4, d_model=4)
x = wf.tensor(np.linspace(-1, 1, 8 * 4 * 4, dtype="float32").reshape(8, 4, 4), [batch, length, d_model])
w = wf.parameter(np.linspace(0.5, 2, 4, dtype="float32"), [d_model])

LAYOUTS = [
    "batch:x",
    "length:y",
    "batch:x+y",
    "batch:x,length:y,params.d_model:z",
    pytest.param("batch:x,d_model:z", marks=pytest.mark.slow),
    pytest.param("batch:y,params.d_model:x", marks=pytest.mark.slow),
    pytest.param("batch:z+x,d_model:y", marks=pytest.mark.slow),
]
pytestmark = pytest.mark.filterwarnings("ignore::weft.WeftWarning")


def like(a):
    return jax.ShapeDtypeStruct(a.shape, a.dtype)


def scale_rows(a, w):
    """`tanh(a * w)` as a Pallas kernel over blocks of rows, with a backward kernel of its own."""

    def kernel(a, w, out):
        out[...] = jnp.tanh(a[...] * w[...])

    def backward_kernel(a, w, g, da, dw):
        g = g[...] * (1 - jnp.tanh(a[...] * w[...]) ** 2)
        da[...] = g * w[...]
        dw[...] = jnp.sum(g * a[...], axis=(0, 1))[None]

    def row(i):
        return (i, 0, 0)

    block = pl.BlockSpec((1, *a.shape[1:]), row)
    whole = pl.BlockSpec(w.shape, lambda i: (0,))

    @jax.custom_vjp
    def run(a, w):
        call = pl.pallas_call(
            kernel, like(a), grid=(a.shape[0],), in_specs=[block, whole], out_specs=block, interpret=True
        )
        return call(a, w)

    def backward(kept, g):
        a, w = kept
        parts = jax.ShapeDtypeStruct((a.shape[0], *w.shape), w.dtype)
        part = pl.BlockSpec((1, *w.shape), lambda i: (i, 0))
        call = pl.pallas_call(
            backward_kernel,
            [like(a), parts],
            grid=(a.shape[0],),
            in_specs=[block, whole, block],
            out_specs=[block, part],
            interpret=True,
        )
        da, dw = call(a, w, g)
        return da, jnp.sum(dw, 0)

    run.defvjp(lambda a, w: (run(a, w), (a, w)), backward)
    return run(a, w)


def add_up_thrice(a, w):
    return lax.fori_loop(0, 3, lambda i, c: c + a * w, jnp.zeros(a.shape))


def powers(a, w):
    def turn(carry, _):
        carry = carry * a * w
        return carry, carry

    return jnp.sum(lax.scan(turn, jnp.ones(a.shape), None, length=3)[1], 0)


def choose(a, w):
    return lax.cond(jnp.sum(w) > -100, lambda: a * w, lambda: jnp.zeros(a.shape))


def with_zero_gradient(a, w):
    """A gradient by hand that is a constant for one operand, which JAX refuses only in the backward pass."""

    @jax.custom_vjp
    def run(a, w):
        return a * w

    run.defvjp(lambda a, w: (a * w, w), lambda w, g: (g * w, jnp.zeros(w.shape)))
    return run(a, w)


def at_places(a, w, here):
    """Reads where its slice lies, and closes over a constant."""
    positions = here.start("length") + jnp.arange(here.size("length"), dtype="float32")
    table = jnp.asarray([1.0, 2.0, 3.0, 4.0])
    return lax.fori_loop(0, 2, lambda i, c: c + jnp.sin(positions)[:, None] * a * w + table[i], jnp.zeros(a.shape))


FUNCTIONS = {
    fn.__name__: (fn, plain)
    for fn, plain in [
        (scale_rows, lambda a, w: jnp.tanh(a * w)),
        (add_up_thrice, lambda a, w: 3 * a * w),
        (powers, lambda a, w: a * w + (a * w) ** 2 + (a * w) ** 3),
        (choose, lambda a, w: a * w),
        (with_zero_gradient, lambda a, w: a * lax.stop_gradient(w)),
        (at_places, lambda a, w: 2 * jnp.sin(jnp.arange(4.0))[:, None] * a * w + 3.0),
    ]
}


def score(fn):
    def run(x, w):
        return wf.mean(wf.square(wf.local(fn, x, w, out=x.dims)), over="batch length d_model")

    return run


def gradients_of(run, layout=None):
    both = wf.value_and_grad(run, argnums=(0, 1))
    value, (dx, dw) = (both if layout is None else wf.spmd(both, mesh="x=2,y=2,z=2", layout=layout))(x, w)
    return [np.asarray(t.array) for t in (value, dx, dw)]


def assert_close(got, due):
    for mine, theirs in zip(got, due, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_a_mesh_it_is_the_plain_function(name):
    fn, plain = FUNCTIONS[name]
    value, due = jax.value_and_grad(lambda a, w: jnp.mean(plain(a, w) ** 2), argnums=(0, 1))(x.array, w.array)
    assert_close(gradients_of(score(fn)), [value, *due])


@pytest.mark.quick(
    "scale_rows-batch:x+y",
    "scale_rows-batch:x,length:y,params.d_model:z",
    "add_up_thrice-batch:x+y",
    "add_up_thrice-batch:x,length:y,params.d_model:z",
    "powers-batch:x+y",
    "powers-batch:x,length:y,params.d_model:z",
    "choose-batch:x+y",
    "choose-batch:x,length:y,params.d_model:z",
    "with_zero_gradient-batch:x+y",
    "with_zero_gradient-batch:x,length:y,params.d_model:z",
    "at_places-batch:x+y",
    "at_places-batch:x,length:y,params.d_model:z",
)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_layout_changes_neither_its_value_nor_its_gradients(name, layout):
    run = score(FUNCTIONS[name][0])
    assert_close(gradients_of(run, layout), gradients_of(run))


def call(x, w):
    return wf.local(scale_rows, x, w, out=x.dims)


def map_rows(x, w):
    def of_row(row):
        return wf.local(lambda a, w: scale_rows(a[None], w)[0], row, w, out=row.dims)

    return wf.vmap(of_row, over="batch")(x)


def repeat(x, w):
    return wf.scan(lambda carry, _: (call(carry, w), None), x, over=wf.Dim("turn", 2))[0]


AROUND = {"vmap": map_rows, "scan": repeat, "remat": wf.remat(call), "checkpoint": jax.checkpoint(call)}


@pytest.mark.parametrize("around", AROUND)
def test_a_kernel_may_stand_in_what_maps_repeats_or_recomputes(around):
    def run(x, w):
        return wf.mean(wf.square(AROUND[around](x, w)), over="batch length d_model")

    assert_close(gradients_of(run, "batch:x,length:y,params.d_model:z"), gradients_of(run))


def test_gradients_of_gradients_are_those_without_a_mesh():
    def steepness(x):
        loss = lambda x: wf.mean(wf.local(powers, x, w, out=x.dims), over="batch length d_model")  # noqa: E731
        return wf.sum(wf.square(wf.grad(loss)(x)), over="batch length d_model")

    due = wf.grad(steepness)(x)
    got = wf.spmd(wf.grad(steepness), mesh="x=2,y=2", layout="batch:x,length:y")(x)
    np.testing.assert_allclose(got.array, due.array, rtol=1e-5, atol=1e-9)


def test_what_it_sums_is_added_up_once():
    def count(ids, out=5):
        return lax.fori_loop(0, ids.size, lambda i, c: c.at[ids.reshape(-1)[i]].add(1), jnp.zeros(out, "int32"))

    ids = wf.tensor(np.arange(32).reshape(8, 4) % 5, [batch, length])
    vocab = wf.Dim("vocab", 5)
    run = wf.spmd(
        lambda ids: wf.local(count, ids, out=[vocab], summed=["batch", "length"]),
        mesh="x=2,y=2",
        layout="batch:x,length:y",
    )
    np.testing.assert_array_equal(run(ids).array, np.bincount(np.arange(32) % 5))


def test_the_kernel_of_a_traced_program_is_one_line_and_sends_what_its_weight_needs():
    both = wf.value_and_grad(score(scale_rows), argnums=(0, 1))
    program = wf.trace(both, x, w, mesh="x=4", layout="batch:x")
    assert str(program).count("local(fn, x, w)") == 1
    assert [(row.collective, row.bytes) for row in program.ledger if "w is whole" in row.reason] == [("all_reduce", 16)]


def test_what_fails_alone_is_told_with_all_that_jax_says():
    def grow(a):
        return lax.fori_loop(0, 3, lambda i, c: jnp.concatenate([c, c]), a)

    with pytest.raises(wf.TensorError) as caught:
        wf.spmd(lambda x: wf.local(grow, x, out=x.dims), mesh="x=4", layout="batch:x")(x)
    assert "slices of shapes (2, 4, 4)" in caught.value.fact
    assert "float32[2,4,4]" in caught.value.fact and "float32[4,4,4]" in caught.value.fact
    assert caught.value.fix == "mend the function: called alone on arrays of these shapes it fails in the same way"
    assert "manual" not in str(caught.value) and "varying" not in str(caught.value)
