"""The border between global and local: what goes in, what comes out, and where it lies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import weft as wf

B, D, F = wf.dims(batch=8, d_model=4, d_ff=16)
MESH = wf.Mesh("rows=2,cols=4")


def numbers(*dims, seed=0):
    return wf.tensor(np.random.default_rng(seed).normal(size=[d.size for d in dims]).astype("float32"), dims)


X, W = numbers(B, D), wf.parameter(numbers(D, F, seed=1))


def product(x, w):
    return wf.einsum(x, w, over=D)


def test_results_are_global_tensors_that_lie_as_the_layout_says():
    y = wf.spmd(product, mesh=MESH, layout="batch:rows,d_ff:cols")(X, W)
    assert repr(y) == "f32[batch d_ff]"
    assert y.array.sharding.spec == PartitionSpec("rows", "cols")
    np.testing.assert_allclose(y.array, X.array @ W.array, rtol=1e-5)


def test_inside_a_region_a_tensor_shows_its_placement():
    seen = []

    def show(x, w):
        y = product(x, w)
        seen.extend([repr(x), repr(w), repr(y), str(y.layout), y.ways("d_ff"), y.local_array.shape])
        return y

    wf.spmd(show, mesh=MESH, layout="batch:rows,d_ff:cols")(X, W)
    assert seen == [
        "f32[batch/rows d_model]",
        "param f32[d_model d_ff/cols]",
        "f32[batch/rows d_ff/cols]",
        "batch:rows,d_ff:cols",
        4,
        (4, 4),
    ]


def test_numbers_keys_and_scalars_are_replicated_and_the_rest_is_static():
    def fn(x, scale, key, offset, flag, mode, act):
        y = act(x * scale + offset)
        return wf.dropout(y, 0.5, key) if flag and mode == "train" else y

    args = X, 2.0, jax.random.key(0), jnp.float32(1), True, "train", wf.tanh
    expected = fn(*args)
    got = wf.spmd(fn, mesh=MESH, layout="batch:rows,d_model:cols")(*args)
    np.testing.assert_allclose(got.array, expected.array, rtol=1e-6)
    assert got.dtype == jnp.float32


def test_a_static_argument_is_compiled_in_by_position_or_name():
    def fn(x, *, power):
        return x**power if isinstance(power, tuple) is False else x

    run = wf.spmd(
        lambda x, shape: wf.zeros([wf.Dim("new", shape[0])], like=x), mesh=MESH, layout="batch:rows", static=1
    )
    assert run(X, (3,)).dims == (wf.Dim("new", 3),)
    run = wf.spmd(fn, mesh=MESH, layout="batch:rows", static="power")
    np.testing.assert_allclose(run(X, power=2).array, np.asarray(X.array) ** 2, rtol=1e-6)


def test_a_call_with_another_static_is_another_program():
    def fn(x, mode, act):
        return act(x) if mode == "train" else -act(x)

    run = wf.spmd(fn, mesh=MESH, layout="batch:rows,d_model:cols")
    for mode, act in [("train", wf.tanh), ("test", wf.tanh), ("test", wf.exp), ("train", wf.tanh)]:
        np.testing.assert_allclose(run(X, mode, act).array, fn(X, mode, act).array, rtol=1e-6)


def test_results_may_be_any_tree_with_numbers_and_statics():
    def fn(x):
        return {"y": x, "n": jnp.float32(3), "name": "kept", "none": None, "fn": wf.tanh}

    got = wf.spmd(fn, mesh=MESH, layout="batch:rows")(X)
    assert (got["name"], got["none"], got["fn"], float(got["n"])) == ("kept", None, wf.tanh, 3.0)


def test_equinox_modules_and_optax_states_pass():
    class Layer(eqx.Module):
        weight: wf.Tensor
        activation: object
        rate: float = eqx.field(static=True)

        def __call__(self, x):
            return self.activation(product(x, self.weight)) * self.rate

    layer = Layer(W, wf.tanh, 0.5)
    got = wf.spmd(lambda m, x: (m(x), m), mesh=MESH, layout="batch:rows,d_ff:cols")(layer, X)
    np.testing.assert_allclose(got[0].array, np.tanh(np.asarray(X.array) @ np.asarray(W.array)) * 0.5, rtol=1e-5)
    assert got[1].activation is wf.tanh
    state = optax.adam(1e-3).init(layer.weight)
    passed = wf.spmd(lambda s: s, mesh=MESH, layout="d_ff:cols")(state)
    assert jax.tree.structure(passed) == jax.tree.structure(state)
    factored = optax.adafactor(1e-3, min_dim_size_to_factor=2).init(layer.weight)
    passed = wf.spmd(lambda s, x: s, mesh=MESH, layout="batch:rows")(factored, X)
    for a, b in zip(jax.tree.leaves(passed), jax.tree.leaves(factored), strict=True):
        np.testing.assert_array_equal(a, b)


def test_tensors_closed_over_are_whole_and_sliced_where_they_are_used():
    run = wf.spmd(lambda x: product(x, W), mesh=MESH, layout="batch:rows,d_ff:cols")
    np.testing.assert_allclose(run(X).array, X.array @ W.array, rtol=1e-5)


def test_gradients_flow_into_tensors_closed_over_from_outside():
    def outside(w):
        return wf.spmd(
            lambda x: wf.sum(wf.tanh(product(x, w)), over="batch d_ff"), mesh=MESH, layout="batch:rows,d_ff:cols"
        )(X)

    expected = wf.grad(lambda w: wf.sum(wf.tanh(product(X, w)), over="batch d_ff"))(W)
    np.testing.assert_allclose(wf.grad(outside)(W).array, expected.array, rtol=1e-5, atol=1e-6)


def test_gradients_outside_a_region_equal_those_inside():
    def loss(w, x):
        return wf.mean(wf.square(product(x, w)), over="batch d_ff")

    layout = "batch:rows,d_ff:cols,params.d_model:rows"
    inside = wf.spmd(wf.grad(loss), mesh=MESH, layout=layout)(W, X)
    outside = wf.grad(wf.spmd(loss, mesh=MESH, layout=layout))(W, X)
    plain = wf.grad(loss)(W, X)
    np.testing.assert_allclose(inside.array, plain.array, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(outside.array, plain.array, rtol=1e-5, atol=1e-7)


def test_a_region_called_inside_another_of_the_same_mesh_runs_inline():
    inner = wf.spmd(product, mesh=MESH, layout="batch:rows,d_ff:cols")
    run = wf.spmd(lambda x, w: wf.tanh(inner(x, w)), mesh=MESH, layout="batch:rows,d_ff:cols")
    np.testing.assert_allclose(run(X, W).array, np.tanh(X.array @ W.array), rtol=1e-5)
    assert len(wf.trace(run, X, W).ledger) == 0


def test_a_region_of_another_layout_inside_moves_what_crosses_its_border():
    inner = wf.spmd(product, mesh=MESH, layout="d_model:cols,batch:rows")
    run = wf.spmd(lambda x, w: wf.tanh(inner(x, w)), mesh=MESH, layout="batch:rows,d_ff:cols")
    np.testing.assert_allclose(run(X, W).array, np.tanh(X.array @ W.array), rtol=1e-5, atol=1e-6)
    assert {row.collective for row in wf.trace(run, X, W).ledger} == {"all_to_all", "all_reduce"}


def test_a_gathered_tensor_may_leave():
    run = wf.spmd(lambda x: x.rename(batch="rows_whole"), mesh=MESH, layout="batch:rows")
    np.testing.assert_array_equal(run(X).array, X.array)
    odd = wf.tensor(np.arange(6.0, dtype="float32").reshape(2, 3), "batch three")
    total = wf.spmd(lambda x: wf.sum(x.rename(batch="whole"), over="whole"), mesh="rows=2", layout="batch:rows")
    np.testing.assert_array_equal(total(odd).array, [3.0, 5.0, 7.0])


@pytest.mark.parametrize("layout", ["batch:rows", "batch:cols", "batch:rows,d_model:cols"])
def test_a_gradient_by_a_gathered_tensor_is_whole(layout):
    def fn(x, w):
        whole = x.rename(batch="whole")
        first = wf.grad(lambda g: wf.sum(g * g, over=g.dims))(whole)
        second = wf.grad(lambda g: wf.sum(wf.einsum(g, wf.tanh(product(x, w)), out=["d_model"]), over=D))(whole * 2)
        return first, second, wf.vmap(lambda row: row * 2, over="whole")(whole)

    for got, expected in zip(wf.spmd(fn, mesh=MESH, layout=layout)(X, W), fn(X, W), strict=True):
        np.testing.assert_allclose(got.array, expected.array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["batch:rows", "batch:rows,params.d_model:rows", "batch:rows,d_model:cols"])
def test_a_parameter_closed_over_by_vmap_meets_each_example(layout):
    def total(w, a):
        each = wf.vmap(lambda s: wf.sum(w * s, over="d_model d_ff"), over=B)(a)
        return wf.sum(each * a, over=B)

    a = numbers(B, seed=3)
    run = wf.spmd(wf.value_and_grad(total, argnums=(0, 1)), mesh=MESH, layout=layout)
    for got, expected in zip(
        jax.tree.leaves(run(W, a)), jax.tree.leaves(wf.value_and_grad(total, argnums=(0, 1))(W, a)), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_new_tensor_may_be_filled_with_a_number_made_in_the_region():
    got = wf.spmd(lambda x: wf.full([B], wf.sum(x, over="batch d_model")), mesh=MESH, layout="batch:rows")(X)
    np.testing.assert_allclose(got.array, np.full(8, np.sum(X.array)), rtol=1e-5)


def test_a_gradient_inside_a_scan_over_a_gathered_dim_is_whole():
    def fn(x, s):
        slope = wf.grad(lambda row, s: wf.sum(row * s * s, over=D), argnums=(0, 1))
        return wf.scan(lambda c, row: (c, slope(row, s)), wf.zeros([D]), x.rename(batch="whole"), over="whole")[1]

    scale = numbers(D, seed=2)
    run = wf.spmd(fn, mesh="rows=2", layout="batch:rows")
    for got, expected in zip(run(X, scale), fn(X, scale), strict=True):
        np.testing.assert_allclose(got.array, expected.array, rtol=1e-5)


def test_a_loop_index_can_be_folded_into_a_key():
    def fn(x, key):
        return wf.fori_loop(0, 3, lambda i, c: wf.dropout(c, 0.5, jax.random.fold_in(key, i)) + i, x)

    key = jax.random.key(0)
    got = wf.spmd(fn, mesh=MESH, layout="batch:rows,d_model:cols")(X, key)
    np.testing.assert_array_equal(got.array, fn(X, key).array)


def test_the_compiled_form_can_be_had():
    run = wf.spmd(product, mesh=MESH, layout="batch:rows,d_model:cols")
    compiled = jax.jit(run).lower(X, W).compile()
    assert "all-reduce" in compiled.as_text()
    np.testing.assert_allclose(compiled(X, W).array, X.array @ W.array, rtol=1e-5, atol=1e-6)


def test_donated_arguments_are_given_up():
    run = wf.spmd(lambda x, y: x + y, mesh=MESH, layout="batch:rows", donate=0)
    x = wf.put(X, mesh=MESH, layout="batch:rows")
    run(x, X)
    assert x.array.is_deleted()


def test_put_places_and_get_brings_back():
    tree = {"w": W, "x": X, "n": 3, "key": jax.random.key(0)}
    placed = wf.put(tree, mesh=MESH, layout="batch:rows,d_ff:cols,params.d_model:rows")
    assert placed["w"].array.sharding.spec == PartitionSpec("rows", "cols")
    assert placed["x"].array.sharding.spec == PartitionSpec("rows", None)
    back = wf.get(placed)
    assert isinstance(back["w"], np.ndarray) and back["n"] == 3
    np.testing.assert_array_equal(back["w"], W.array)


def test_committed_arrays_are_moved_where_they_belong():
    here = wf.tensor(jax.device_put(np.asarray(X.array), jax.devices()[3]), X.dims)
    got = wf.spmd(lambda x: x + 1, mesh=MESH, layout="batch:rows")(here)
    np.testing.assert_array_equal(got.array, np.asarray(X.array) + 1)


def test_inside_plain_jit_inputs_keep_their_shardings():
    mesh = MESH.jax_mesh()
    layout = "batch:rows,d_ff:cols"
    inside = wf.spmd(product, mesh=MESH, layout=layout)

    @jax.jit
    def program(x, w):
        return inside(wf.tensor(x, [B, D]), wf.tensor(w, [D, F])).array * 2

    x = jax.device_put(np.asarray(X.array), NamedSharding(mesh, PartitionSpec("rows", None)))
    w = jax.device_put(np.asarray(W.array), NamedSharding(mesh, PartitionSpec(None, "cols")))
    text = program.lower(x, w).compile().as_text()
    assert not any(word in text for word in ("all-reduce", "all-gather", "all-to-all", "collective-permute"))
    assert program(x, w).sharding.spec == PartitionSpec("rows", "cols")


OPTIMIZERS = {
    "adam": optax.adam(1e-2),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "clipped sgd": optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)),
    "lamb": optax.lamb(1e-2),
}
LAYOUTS = [
    "batch:rows",
    "batch:rows,d_ff:cols",
    "batch:rows,params.d_model:rows",
    "batch:rows,d_ff:cols,optimizer.d_model:rows",
    "batch:rows,params.d_ff:rows,optimizer.d_model:cols",
]


@pytest.mark.quick(
    "batch:rows,d_ff:cols-adam",
    "batch:rows,params.d_model:rows-adam",
    "batch:rows,d_ff:cols,optimizer.d_model:rows-clipped sgd",
    "batch:rows,d_ff:cols,optimizer.d_model:rows-lamb",
    "batch:rows,params.d_ff:rows,optimizer.d_model:cols-adam",
    "batch:rows,params.d_ff:rows,optimizer.d_model:cols-adafactor",
)
@pytest.mark.parametrize(
    ("layout", "optimizer"),
    [  # one optimizer under every layout, every one under two of them
        pytest.param(layout, optimizer, id=f"{layout}-{name}", marks=() if is_quick else pytest.mark.slow)
        for layout in LAYOUTS
        for name, optimizer in OPTIMIZERS.items()
        for is_quick in [name == "adam" or layout in LAYOUTS[3:]]
    ],
)
def test_training_is_the_same_under_every_layout(optimizer, layout):
    def loss(params, x, key):
        y = product(wf.dropout(x, 0.2, key), params["w"]) + params["b"]
        return wf.mean(wf.square(y - 1), over="batch d_ff")

    params = {"w": W, "b": wf.parameter(np.zeros(F.size, "float32"), [F]), "name": "kept"}
    plain, split = wf.train_step(loss, optimizer), wf.train_step(loss, optimizer, mesh=MESH, layout=layout)
    a, b = plain.init(params), split.init(params)
    for i in range(3):
        key = jax.random.key(i)
        (a, m), (b, n) = plain(a, X, key), split(b, X, key)
        np.testing.assert_allclose(float(n["loss"]), float(m["loss"]), rtol=1e-5)
    assert int(b.step) == 3 and b.params["name"] == "kept"
    for p, q in zip(jax.tree.leaves(wf.get(a.params)), jax.tree.leaves(wf.get(b.params)), strict=True):
        if not isinstance(p, str):
            np.testing.assert_allclose(q, p, rtol=2e-5, atol=2e-6)


def test_optimizer_state_lies_split_as_its_rules_say():
    step = wf.train_step(lambda p, x, key: wf.sum(product(x, p), over="batch d_ff"), optax.adam(1e-2))
    split = wf.spmd(step, mesh=MESH, layout="batch:rows,optimizer.d_model:rows,params.d_ff:cols")
    state = split.init(W)
    state, metrics = split(state, X)
    assert state.params.array.sharding.spec == PartitionSpec(None, "cols")
    assert state.optimizer[0].mu.sharding.spec == PartitionSpec("rows", "cols")
    assert set(metrics) == {"loss"}


def test_metrics_hold_what_comes_with_the_loss():
    def loss(p, x, key):
        value = wf.sum(product(x, p), over="batch d_ff")
        return value, {"norm": wf.sum(wf.square(p), over="d_model d_ff"), "loss": value * 0 - 1}

    step = wf.train_step(loss, optax.sgd(0.1), mesh=MESH, layout="batch:rows,d_ff:cols", has_aux=True)
    _, metrics = step(step.init(W), X, None)
    np.testing.assert_allclose(float(metrics["norm"]), float(np.sum(np.square(W.array))), rtol=1e-5)
    np.testing.assert_allclose(float(metrics["loss"]), float(np.sum(X.array @ W.array)), rtol=1e-4)
