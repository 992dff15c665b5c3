"""Trees split into arrays and the rest, once a call: what is data, what is compiled in, and what is known again."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weft as wf
from weft.spmd import partition as partitions
from weft.spmd import step as steps
from weft.spmd.partition import partition

B, D = wf.dims(batch=8, d=4)
MESH = wf.Mesh("x=4,y=2")
X = wf.tensor(np.arange(32.0, dtype="float32").reshape(8, 4), [B, D])
TREE = {
    "a": True,
    "b": X,
    "c": [None, "relu", jnp.ones(3), wf.tanh, 2.0],
    "d": jnp.float32,
    "e": np.float32(1),
    "f": jax.tree.map(lambda _: "label", X),
}


def test_a_tree_is_arrays_and_a_skeleton():
    parts = partition(TREE)
    assert [np.shape(array) for array in parts.arrays] == [(8, 4), (3,), (), ()]
    assert [leaf for _, leaf in parts.skeleton.statics] == [True, "relu", wf.tanh, jnp.float32, "label"]
    again = parts.combine()
    assert jax.tree.structure(again) == jax.tree.structure(TREE)
    assert all(a is b for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(TREE), strict=True))


def test_jit_sees_the_arrays_and_compiles_anew_where_the_rest_is_another():
    traced = []

    @jax.jit
    def count(parts):
        traced.append(parts.combine()["a"])
        return sum(jnp.sum(array) for array in parts.arrays)

    for flag in (True, False, True):
        count(partition({"a": flag, "b": X}))
        count(partition({"a": flag, "b": X + 1}))
    assert traced == [True, False]


def test_what_could_change_is_not_compiled_in():
    with pytest.raises(wf.TensorError, match="which could change"):
        partitions.hashable_partition({"a": {1, 2}})
    step = wf.train_step(loss, optax.sgd(0.1), mesh=MESH, layout="batch:x+y")
    with pytest.raises(wf.TensorError, match="a static argument is set"):
        step(step.init(weights()), {"x": X, "kinds": {1, 2}})


def weights():
    return {"w": wf.parameter(np.ones(4, "float32"), [D])}


def loss(params, batch, key):
    y = batch["x"] * params["w"]
    return wf.mean(wf.square(y if batch.get("is_short") else y * 2), over=[B, D])


def test_a_batch_that_is_placed_is_not_placed_again(monkeypatch):
    put = []
    monkeypatch.setattr(steps, "put", lambda tree, **where: put.append(tree) or wf.put(tree, **where))
    step = wf.train_step(loss, optax.sgd(0.1), mesh=MESH, layout="batch:x,d:y")
    state = step.init(weights())
    put.clear()
    placed = wf.put({"x": X}, mesh=MESH, layout="batch:x,d:y")
    values = []
    for batch in ({"x": X}, placed, placed, {"x": X}):
        values.append(float(step(state, batch)[1]["loss"]))
    assert len(put) == 2 and len(set(values)) == 1
    elsewhere = wf.put({"x": X}, mesh=MESH, layout="batch:y")
    assert float(step(state, elsewhere)[1]["loss"]) == values[0] and len(put) == 3


def test_a_batch_is_looked_at_every_time():
    step = wf.train_step(loss, optax.sgd(0.1), mesh=MESH, layout="batch:x")
    state, batch = step.init(weights()), wf.put({"x": X}, mesh=MESH, layout="batch:x")
    step(state, batch)
    with pytest.raises(wf.TensorError, match="behind the names"):
        step(state, jax.tree.map(lambda array: array[:4], batch))
    long, short = (float(step(state, {**batch, "is_short": flag})[1]["loss"]) for flag in (False, True))
    assert long == pytest.approx(4 * short, rel=1e-6)
    batch["x"].array.delete()
    with pytest.raises(wf.RegionError, match="given up"):
        step(state, batch)


def test_a_way_of_calling_that_is_known_is_still_checked():
    run = wf.spmd(lambda x, n: x * n, mesh=MESH, layout="batch:x+y")
    for n in (2, 3):
        np.testing.assert_array_equal(run(X, n).array, X.array * n)
    with pytest.raises(wf.TensorError, match="does not fit int32"):
        run(X, 2**40)
    assert run(X, np.float32(0.5)).array[0, 1] == 0.5
    with pytest.raises(wf.TensorError, match="argument 1 is str_"):
        run(X, np.str_("2"))
    with pytest.raises(wf.TensorError, match="no names"):
        run(X, np.ones(3, "float32"))


def test_a_function_bound_anew_keeps_what_is_static_and_what_is_donated():
    bound = wf.spmd(lambda x, shape: x + shape[0], mesh=MESH, layout="batch:x+y", static=1, donate=0)
    program = wf.trace(bound, X, (3,), mesh="z=2", layout="batch:z")
    assert str(program.mesh) == "z=2" and program.tensors
