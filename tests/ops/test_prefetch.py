"""Prefetch: what a loop gathers ahead is what it would gather, and gives what it would give."""

import jax
import numpy as np
import pytest

import weft as wf

L, D, F, B = wf.dims(layers=3, d_model=8, d_ff=16, batch=8)
FSDP = ("x=8", "batch:x,params.d_model:x")
WHERE = [FSDP, ("dp=2,fs=4", "batch:dp+fs,params.d_model:fs"), ("x=4,y=2", "batch:x,d_ff:y,params.d_model:x")]


def numbers(*dims, seed=0):
    return np.random.default_rng(seed).normal(size=[d.size for d in dims]).astype("float32")


PARAMS = {
    "w": wf.parameter(numbers(L, D, F), [L, D, F]),
    "v": wf.parameter(numbers(L, F, D, seed=1), [L, F, D]),
    "shared": wf.parameter(numbers(D, seed=2), [D]),
}
X = wf.tensor(numbers(B, D, seed=3), [B, D])
HOW = {"plain": lambda fn: fn, "remat": wf.remat, "names": lambda fn: wf.remat(fn, save=["hidden"])}


def loss_by(how, **options):
    """Layers in a loop, of which each gives a number too; one weight is the same in all of them."""

    def loss(params, x):
        def layer(x, weights):
            w, v = weights
            h = wf.name(wf.tanh(wf.einsum(x, w, over=D)), "hidden")
            x = wf.tanh(x * params["shared"] + wf.einsum(h, v, over=F))
            return x, wf.mean(x, over=[B, D])

        y, means = wf.scan(HOW[how](layer), x, (params["w"], params["v"]), over=L, **options)
        return wf.mean(wf.square(y), over=[B, D]) + wf.sum(means, over=L)

    return wf.value_and_grad(loss)


def sent(program, least=5):
    """Bytes of each collective in each phase; numbers alone aside."""
    return {
        (phase, collective): sum(
            r.bytes * r.count for r in program.ledger if (r.phase, r.collective) == (phase, collective)
        )
        for phase, collective in {(r.phase, r.collective) for r in program.ledger if r.bytes >= least}
    }


def check_equal(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), wf.get(found), wf.get(expected))


@pytest.mark.quick("plain", "names")
@pytest.mark.parametrize("how", HOW)
def test_a_loop_that_gathers_ahead_sends_what_it_did_and_its_shared_weight_once(how):
    mesh, layout = FSDP
    programs = [wf.trace(loss_by(how, prefetch=ahead), PARAMS, X, mesh=mesh, layout=layout) for ahead in (False, True)]
    plain, ahead = map(sent, programs)
    own, shared = 4 * 2 * L.size * D.size * F.size, 4 * D.size
    assert ahead == {
        ("forward", "all_gather"): own + shared,
        ("recompute", "all_gather"): own,
        ("backward", "reduce_scatter"): own + shared,
    }
    # Without, the shared weight is gathered again in every turn of the backward pass; it is scattered once either way.
    assert plain == ahead | {("recompute", "all_gather"): own + L.size * shared}
    check_equal(wf.spmd(loss_by(how, prefetch=True), mesh=mesh, layout=layout)(PARAMS, X), loss_by(how)(PARAMS, X))


@pytest.mark.quick(
    "options0-x=4,y=2-batch:x,d_ff:y,params.d_model:x", "options1-dp=2,fs=4-batch:dp+fs,params.d_model:fs"
)
@pytest.mark.parametrize(("mesh", "layout"), WHERE[1:])
@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 2}])
def test_values_and_gradients_are_those_of_one_processor(mesh, layout, options):
    found = wf.spmd(loss_by("remat", prefetch=True, **options), mesh=mesh, layout=layout)(PARAMS, X)
    check_equal(found, loss_by("remat", **options)(PARAMS, X))


def test_a_turn_computes_with_what_the_one_before_it_gathered():
    """In the loop's body no product needs what is gathered there: it leaves with the carry."""
    program = wf.trace(loss_by("remat", prefetch=True), PARAMS, X, mesh=FSDP[0], layout=FSDP[1])
    loops = [step for step in program.reading.graph if getattr(step, "is_scan", False)]
    assert [loop.turns for loop in loops] == [L.size - 1] * 2
    for loop in loops:
        made = [step for step in loop.bodies[0] if step.collective == "all_gather"]
        assert len(made) == 2
        results = {id(value) for value in loop.bodies[0].results}
        used = {id(value) for step in loop.bodies[0] for value in step.operands}
        for step in made:
            assert id(step.results[0]) in results and id(step.results[0]) not in used


def test_a_loop_that_gathers_ahead_keeps_no_layer_for_the_backward_pass():
    program = wf.trace(loss_by("plain", prefetch=True), PARAMS, X, mesh=FSDP[0], layout=FSDP[1])
    forward, backward = (step for step in program.reading.graph if getattr(step, "is_scan", False))
    whole = [(D.size, F.size), (F.size, D.size)]
    for loop in (forward, backward):
        made = [value.aval.shape for value in loop.results]
        assert [
            shape for shape in made if shape in whole
        ] == whole  # a layer comes out of the loop, and no stack of them
        assert not [shape for shape in made if shape[1:] in whole]


def test_nothing_changes_where_nothing_is_stored():
    plain, ahead = (wf.trace(loss_by("remat", prefetch=a), PARAMS, X, mesh="x=8", layout="batch:x") for a in (0, 1))
    assert sent(plain) == sent(ahead)
    check_equal(loss_by("plain", prefetch=True)(PARAMS, X), loss_by("plain")(PARAMS, X))


def test_one_layer_is_gathered_before_it_and_nothing_else():
    one = jax.tree.map(lambda x: x, PARAMS) | {name: PARAMS[name]["layers", 0:1] for name in ("w", "v")}

    def loss(params, x):
        y, _ = wf.scan(
            lambda x, w: (wf.tanh(wf.einsum(wf.einsum(x, w[0], over=D), w[1], over=F)), None),
            x,
            (params["w"], params["v"]),
            over="layers",
            prefetch=True,
        )
        return wf.sum(y * params["shared"], over=[B, D])

    found = wf.spmd(wf.value_and_grad(loss), mesh=FSDP[0], layout=FSDP[1])(one, X)
    check_equal(found, wf.value_and_grad(loss)(one, X))


def test_what_is_not_differentiated_is_not_scattered_and_sums_travel_as_asked():
    def loss(trained, other, x):
        def layer(x, weights):
            w, v = (wf.cast(weight, "bfloat16") for weight in weights)
            y = wf.einsum(wf.tanh(wf.einsum(x, w, over=D)), v, over=F)
            return x + y, None

        y, _ = wf.scan(wf.remat(layer), wf.cast(x, "bfloat16"), (trained, other), over=L, prefetch=True)
        return wf.mean(wf.square(wf.cast(y, "float32")), over=[B, D])

    gradient = wf.grad(loss, sum_dtype="float32")
    # Weights so small that what bfloat16 rounds does not grow from layer to layer.
    args = *(jax.tree.map(lambda x: x / 4, PARAMS[name]) for name in ("w", "v")), X
    rows = [r for r in wf.trace(gradient, *args, mesh=FSDP[0], layout=FSDP[1]).ledger if r.bytes > 4]
    assert {(r.collective, str(r.dtype)) for r in rows} == {("all_gather", "bfloat16"), ("reduce_scatter", "float32")}
    scattered = sum(r.bytes * r.count for r in rows if r.collective == "reduce_scatter")
    assert scattered == 4 * L.size * D.size * F.size  # of `w` alone
    found, expected = (wf.get(f(*args)) for f in (wf.spmd(gradient, mesh=FSDP[0], layout=FSDP[1]), gradient))
    np.testing.assert_allclose(found, expected, rtol=2**-5, atol=2**-8)


def test_a_loop_within_a_turn_gathers_for_itself():
    inner = wf.Dim("inner", 2)

    def loss(params, x):
        def layer(x, weights):
            w, v = weights
            x = wf.einsum(wf.tanh(wf.einsum(x, w, over=D)), v, over=F)
            return wf.scan(lambda x, _: (wf.tanh(x * wf.mean(v, over=F)), None), x, None, over=inner)[0], None

        return wf.sum(wf.scan(layer, x, (params["w"], params["v"]), over=L, prefetch=True)[0], over=[B, D])

    found = wf.spmd(wf.value_and_grad(loss), mesh=FSDP[0], layout=FSDP[1])(PARAMS, X)
    check_equal(found, wf.value_and_grad(loss)(PARAMS, X))
