"""Which leaves are trained, which are data and which are static: the same everywhere."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weft as wf
from weft import models
from weft.leaves import is_data, is_trained

B, D, H = wf.dims(batch=8, d=4, h=8)
MESH = wf.Mesh("x=4,y=2")
LAYOUTS = [None, "batch:x", "batch:x,h:y", "batch:x,params.d:x,params.h:y", "batch:x+y,optimizer.h:y,optimizer.d:x"]


def numbers(*dims, seed=0):
    return wf.tensor(np.random.default_rng(seed).normal(size=[d.size for d in dims]).astype("float32"), dims)


W, V, X = wf.parameter(numbers(D, H)), numbers(D, H, seed=1), numbers(B, D, seed=2)
STATIC = {"none": None, "flag": True, "word": "relu", "fn": wf.tanh, "dtype": jnp.float32}
KEPT = {"count": 3, "ids": wf.cast(V, "int32"), "key": jax.random.key(0), "flags": np.bool_(True)}


def placed(layout):
    return {} if layout is None else {"mesh": MESH, "layout": layout}


def loss(params, x, key=None):
    y = wf.einsum(x, params["w"] * params["scale"] + params["v"], over=D)
    return wf.mean(wf.square(wf.tanh(y) + jnp.exp(params["shift"])), over=[B, H])


def plain(params, x):
    y = x @ (params["w"] * params["scale"] + params["v"])
    return jnp.mean(jnp.square(jnp.tanh(y) + jnp.exp(params["shift"])))


PARAMS = {"w": W, "v": V, "scale": jnp.float32(3.0), "shift": np.float32(0.5)}
ARRAYS = {"w": W.array, "v": V.array, "scale": jnp.float32(3.0), "shift": jnp.float32(0.5)}


def test_floats_are_trained_all_else_is_not():
    assert all(is_trained(leaf) for leaf in (W, V, jnp.float32(1), np.float32(1), 1.0, np.ones(3)))
    assert all(is_data(leaf) and not is_trained(leaf) for leaf in KEPT.values())
    assert not any(is_data(leaf) or is_trained(leaf) for leaf in STATIC.values())


@pytest.mark.parametrize("layout", LAYOUTS[:4])
def test_a_plain_float_has_the_gradient_that_jax_gives_it(layout):
    expected = jax.grad(plain)(ARRAYS, X.array)
    run = wf.grad(loss) if layout is None else wf.spmd(wf.grad(loss), **placed(layout))
    found = run({**PARAMS, **STATIC, **KEPT}, X)
    for name, gradient in expected.items():
        np.testing.assert_allclose(wf.get(found[name]), gradient, rtol=1e-5, atol=1e-6)
    assert all(found[name] is None for name in (*STATIC, *KEPT))
    assert not hasattr(found["scale"], "dims")  # a number, as it was


def test_a_number_of_pythons_has_a_gradient_too():
    def area(side, w):
        return wf.sum(w * side, over=[D, H])

    expected = float(np.sum(W.array))
    assert float(wf.grad(area)(2.0, W)) == pytest.approx(expected, rel=1e-5)
    split = wf.spmd(wf.grad(area, argnums=(0, 1)), mesh=MESH, layout="d:x,h:y")(2.0, W)
    assert float(split[0]) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_array_equal(wf.get(split[1]), np.full((4, 8), 2, "float32"))


def test_each_example_has_its_own_gradient_by_a_plain_float():
    def each(scale, x):
        return wf.vmap(lambda row: wf.grad(lambda s: wf.sum(row * s, over=D))(scale), over=B)(x)

    found = wf.spmd(each, mesh=MESH, layout="batch:x,d:y")(jnp.float32(2), X)
    np.testing.assert_allclose(wf.get(found), X.array.sum(1), rtol=1e-5)

    def with_weights(scale, x, w):  # which are the same for every example
        slope = wf.grad(lambda s, row: wf.sum(wf.einsum(row, wf.tanh(w * s) * s, over=D), over=H))
        return wf.vmap(lambda row: slope(scale, row), over=B)(x)

    expected = with_weights(jnp.float32(2), X, W)
    for layout in ("batch:x,d:y", "batch:x,h:y", "batch:x+y,params.d:x"):
        found = wf.spmd(with_weights, mesh=MESH, layout=layout)(jnp.float32(2), X, W)
        np.testing.assert_allclose(wf.get(found), wf.get(expected), rtol=1e-4, atol=1e-5)


def test_a_plain_array_to_differentiate_by_must_be_named():
    with pytest.raises(wf.TensorError) as caught:
        wf.grad(lambda a: wf.sum(a["w"], over=[D, H]))({"w": W, "b": jnp.ones(3)})
    assert "shape (3,)" in caught.value.fact and "wf.tensor(array, [...])" in caught.value.fix


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_trains_every_float_among_its_parameters(layout):
    optimizer = optax.sgd(0.1, momentum=0.9)
    step = wf.train_step(loss, optimizer, **placed(layout))
    state = step.init({**PARAMS, **STATIC, **KEPT})
    assert {name for name, mean in state.optimizer[0].trace.items() if mean is not None} == set(ARRAYS)
    params, moments = ARRAYS, optimizer.init(ARRAYS)
    for _ in range(2):
        state, metrics = step(state, X)
        value, slopes = jax.value_and_grad(plain)(params, X.array)
        updates, moments = optimizer.update(slopes, moments, params)
        params = optax.apply_updates(params, updates)
        assert float(metrics["loss"]) == pytest.approx(float(value), rel=1e-5)
    for name, expected in params.items():
        np.testing.assert_allclose(wf.get(state.params[name]), expected, rtol=1e-4, atol=1e-5)
    for name, before in {**STATIC, "count": 3}.items():
        assert state.params[name] is before or state.params[name] == before


def test_a_plain_tensor_among_the_parameters_of_a_step_is_stored_as_one():
    step = wf.train_step(loss, optax.adam(0.1), mesh=MESH, layout="batch:x,params.d:x")
    state = step.init(PARAMS)
    for _ in range(2):
        assert all(state.params[name].array.sharding.spec[0] == "x" for name in "wv")
        assert repr(state.params["v"]) == "param f32[d h]"
        state, _ = step(state, X)
    program = wf.trace(step, step.init(PARAMS), X)
    assert {row.collective for row in program.ledger if row.bytes > 4} == {"all_gather", "reduce_scatter"}
    by_hand = step(wf.train_step(loss, optax.adam(0.1)).init(PARAMS)._replace(params=PARAMS), X)[0]
    assert repr(by_hand.params["v"]) == "param f32[d h]"


def test_a_python_float_among_the_parameters_is_asked_about():
    step = wf.train_step(loss, optax.adam(0.1))
    with pytest.raises(wf.TensorError) as caught:
        step.init({**PARAMS, "shift": 0.5})
    assert "params['shift']" in caught.value.fact and "`wf.parameter(0.5, [])`" in caught.value.fix

    def by_tensor(params, x, key):
        return wf.mean(wf.square(wf.einsum(x, params["w"], over=D) * params["shift"]), over=[B, H])

    step = wf.train_step(by_tensor, optax.sgd(0.1))
    state, _ = step(step.init({"w": W, "shift": wf.parameter(0.5, [])}), X)
    assert float(state.params["shift"]) != 0.5


@pytest.mark.parametrize("layout", [None, "batch:x,params.d:x"])
def test_a_donated_state_is_overwritten_and_used_again_is_an_error(layout):
    # The optimizer keeps the parameters themselves, and one array is there twice: each is given up once.
    keeping = optax.GradientTransformation(lambda p: p, lambda g, s, p: (jax.tree.map(lambda a: -0.1 * a, g), p))
    w = jnp.ones((4, 8))
    params = {
        "w": wf.parameter(w, [D, H]),
        "v": wf.parameter(w, [D, H]),
        "scale": jnp.float32(2),
        "shift": jnp.float32(0),
    }
    donating, other = (wf.train_step(loss, keeping, donate=d, **placed(layout)) for d in (True, False))
    state = donating.init(params)
    expected, _ = other(other.init(jax.tree.map(jnp.copy, params)), X)
    after, _ = donating(state, X)
    np.testing.assert_allclose(wf.get(after.params["w"]), wf.get(expected.params["w"]), rtol=1e-6)
    with pytest.raises(wf.RegionError) as caught:
        donating(state, X)
    assert "was given up to an earlier step" in caught.value.fact and "donate=False" in caught.value.fix
    for use in (lambda x: x + 1, np.asarray, wf.get, lambda x: wf.spmd(lambda x: x, mesh=MESH, layout="")(x)):
        with pytest.raises(wf.RegionError, match="given up to an earlier call"):
            use(state.params["w"])
    assert str(state.params["w"]) == "param f32[d h]"
    assert other(expected, X)[0].step == other(expected, X)[0].step == 2


def test_a_donated_state_used_again_is_an_error_on_one_processor_too():
    def of_one(params, x, key):
        return wf.mean(wf.square(wf.einsum(x, params["w"], over=D)), over=[B, H])

    step = wf.train_step(of_one, optax.sgd(0.1), donate=True, mesh="all=1", layout="batch:all")
    state = step.init({"w": wf.parameter(jnp.ones((4, 8)), [D, H])})
    after, _ = step(state, X)
    with pytest.raises(wf.RegionError, match="was given up to an earlier step"):
        step(state, X)
    assert step(after, X)[0].step == 2


def test_a_loss_that_takes_other_arguments_says_which_it_must_take():
    for bad in (lambda params, batch: 0.0, lambda: 0.0, lambda a, b, c, d: 0.0):
        with pytest.raises(wf.TensorError) as caught:
            wf.train_step(bad, optax.sgd(0.1))
        assert "(params, batch, key)" in caught.value.fact and "def loss(params, batch, key)" in caught.value.fix
    with pytest.raises(wf.TensorError, match="donate=True"):
        wf.train_step(loss, optax.sgd(0.1), donate=0)


def test_a_region_made_anew_of_one_function_is_traced_once():
    count = 0

    def double(x):
        nonlocal count
        count += 1
        return x * 2

    def bound(layout="batch:x", **how):
        return wf.spmd(double, mesh="x=4,y=2", layout=layout, **how)

    for _ in range(3):
        np.testing.assert_array_equal(bound()(X).array, X.array * 2)
    assert count == 1
    bound("d:x")(X), bound("d:x")(X)
    assert count == 2
    bound(donate=0)(numbers(B, D, seed=3))
    assert count == 3


def test_a_function_that_names_something_else_is_another():
    scale = 2.0

    def inner(x):
        return x * scale

    def times(x):
        return inner(x)

    def run():
        return wf.get(wf.spmd(times, mesh="x=4", layout="batch:x")(X))

    np.testing.assert_array_equal(run(), X.array * 2)
    scale = 3.0
    np.testing.assert_array_equal(run(), X.array * 3)


def test_what_is_remembered_goes_with_the_function():
    def make():
        def double(x):
            return x * 2

        wf.spmd(double, mesh="x=4", layout="batch:x")
        return weakref.ref(double)

    gone = make()
    gc.collect()
    assert gone() is None


def test_a_step_bound_anew_is_traced_once():
    count = []

    def counted(params, x, key):
        count.append(1)
        return loss(params, x)

    step = wf.train_step(counted, optax.sgd(0.1))
    bound = wf.spmd(step, mesh=MESH, layout="batch:x,h:y")
    state = bound.init(PARAMS)
    for _ in range(2):
        wf.spmd(step, mesh=MESH, layout="batch:x,h:y")(state, X)
    assert len(count) == 1


@pytest.mark.parametrize("name, more", [("tiny-lm", {"layers": 2}), ("tiny-moe", {"layers": 4, "every": 2})])
def test_a_rule_for_layers_that_does_not_divide_is_named_as_it_was_written(name, more):
    with pytest.raises(wf.LayoutError) as caught:
        models.init(models.preset(name, **more), jax.random.key(0), MESH, "batch:y,layers:x")
    assert caught.value.fix.endswith("or drop `layers:x`") and "params." not in caught.value.state
