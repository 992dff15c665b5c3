"""Gradients of one's own: written once with wf operations, right on every layout."""

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of

B, D, F = wf.dims(batch=8, d_model=8, d_ff=8)
STEPS = wf.Dim("steps", 3)
_random = np.random.default_rng(6)
X = wf.tensor(_random.normal(size=(8, 8)).astype("float32"), [B, D])
W = wf.parameter(_random.normal(size=(8, 8)).astype("float32") / 3, [D, F])


@wf.custom_vjp
def layer(x, w):
    """A layer whose gradient is three times the true one, so that it shows which was used."""
    return wf.tanh(wf.einsum(x, w, over=D))


def forward(x, w):
    y = layer.fn(x, w)
    return y, (x, w, y)


def backward(kept, gradient):
    x, w, y = kept
    slope = 3 * gradient * (1 - y * y)
    return wf.einsum(slope, w, over=F), wf.einsum(x, slope, over=B)


layer.defvjp(forward, backward)


def plainly(x, w):
    return wf.sum(wf.sin(layer(x, w)), over=[B, F])


def in_a_loop(x, w):
    last, _ = wf.scan(lambda x, _: (wf.remat(layer)(x, w).rename(d_ff=D), None), x, None, over=STEPS)
    return wf.sum(wf.sin(last), over=[B, D])


def test_the_gradient_given_is_the_one_used():
    def true(x, w):
        return wf.sum(wf.sin(layer.fn(x, w)), over=[B, F])

    for found, expected in zip(
        wf.grad(plainly, argnums=(0, 1))(X, W), wf.grad(true, argnums=(0, 1))(X, W), strict=True
    ):
        np.testing.assert_allclose(found.array, 3 * expected.array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", [plainly, in_a_loop])
@pytest.mark.parametrize("layout", ["batch:a,d_ff:b", "batch:a+b", "batch:a,d_model:b", "d_ff:a,params.d_model:b"])
def test_a_gradient_of_ones_own_does_not_depend_on_the_layout(loss, layout):
    both = wf.value_and_grad(loss, argnums=(0, 1))
    expected = jax.tree.leaves(both(X, W))
    found = jax.tree.leaves(wf.spmd(both, mesh="a=2,b=4", layout=layout)(X, W))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_its_collectives_stand_in_the_program_with_their_lines():
    program = wf.trace(wf.grad(plainly, argnums=(0, 1)), X, W, mesh="a=2,b=4", layout="batch:a,d_ff:b")
    found = [(row.collective, row.axes, row.phase, row.reason) for row in program.ledger]
    assert found == [
        ("all_reduce", ("b",), "backward", "because d_ff is summed and split over b"),
        ("all_reduce", ("a",), "backward", "because batch is summed and split over a"),
    ]


def test_trees_none_and_what_is_no_tensor():
    @wf.custom_vjp
    def scaled(tree, ids, how):
        return {"y": tree["x"] * 2, "at": ids + 1} if how == "twice" else None

    scaled.defvjp(
        lambda tree, ids, how: (scaled.fn(tree, ids, how), None),
        lambda _, g: ({"x": 5 * g["y"], "unused": None}, None, None),
    )
    ids = wf.tensor(np.arange(8), [B])

    def loss(x, w):
        return wf.sum(scaled({"x": x, "unused": w}, ids, "twice")["y"], over=[B, D])

    for run in (wf.grad(loss, argnums=(0, 1)), wf.spmd(wf.grad(loss, argnums=(0, 1)), mesh="x=4", layout="batch:x")):
        dx, dw = run(X, W)
        assert np.all(np.asarray(dx.array) == 5) and np.all(np.asarray(dw.array) == 0)


@pytest.mark.parametrize("layout", ["copies:a", "copies:b,batch:a", "batch:a,d_ff:b"])
def test_inside_a_map_each_example_has_its_own_gradient_and_a_shared_weight_the_sum(layout):
    many = wf.tensor(_random.normal(size=(4, 8, 8)).astype("float32"), [wf.Dim("copies", 4), B, D])

    def loss(x, w):
        return wf.sum(wf.sin(wf.vmap(lambda x: layer(x, w), over="copies")(x)), over=["copies", B, F])

    both = wf.value_and_grad(loss, argnums=(0, 1))
    found = jax.tree.leaves(wf.spmd(both, mesh="a=2,b=4", layout=layout)(many, W))
    for one, other in zip(found, jax.tree.leaves(both(many, W)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_arguments_may_be_named():
    np.testing.assert_array_equal(layer(w=W, x=X).array, layer(X, W).array)
    error = error_of(lambda: layer(X), wf.TensorError)
    assert "missing a required argument" in error.fact and "layer(x, w)" in error.fix


def test_a_closure_that_would_lose_a_gradient_is_told():
    def loss(w):
        bent = wf.tanh(w)
        fn = wf.custom_vjp(lambda x: wf.einsum(x, bent, over=D))
        fn.defvjp(lambda x: (fn.fn(x), None), lambda _, g: (wf.einsum(g, bent, over=F),))
        return wf.sum(fn(X), over=[B, F])

    for run in (wf.grad(loss), wf.spmd(wf.grad(loss), mesh="x=4", layout="d_ff:x")):
        error = error_of(lambda run=run: run(W), wf.TensorError)
        assert "closes over `bent`" in error.fact and "pass `bent` as an argument" in error.fix


def test_what_is_wrong_with_a_custom_vjp_is_told():
    def custom(forward, backward):
        fn = wf.custom_vjp(lambda x: x * 2)
        fn.defvjp(forward, backward)
        return lambda: wf.grad(lambda x: wf.sum(fn(x), over=[B, D]))(X)

    error = error_of(lambda: wf.custom_vjp(lambda x: x)(X), wf.TensorError)
    assert "without a gradient" in error.fact and "f.defvjp(forward, backward)" in error.fix
    error = error_of(custom(lambda x: x, lambda kept, g: (g,)), wf.TensorError)
    assert "forward function" in error.fact and "`(result, kept)`" in error.fix
    error = error_of(custom(lambda x: (x, None), lambda kept, g: g), wf.TensorError)
    assert "gave Tensor for 1 arguments" in error.fact and "a tuple with one gradient" in error.fix
    error = error_of(custom(lambda x: (x, None), lambda kept, g: (wf.sum(g, over=B),)), wf.TensorError)
    assert "for an argument [batch=8 d_model=8]" in error.fact and "dims of the argument" in error.fix
    error = error_of(custom(lambda x: (x, None), lambda kept, g: ((g, g),)), wf.TensorError)
    assert "gave 2 gradients for an argument of 1" in error.fact and "a tree like the argument" in error.fix
    error = error_of(lambda: wf.custom_vjp(3), wf.TensorError)
    assert "no function" in error.fact
