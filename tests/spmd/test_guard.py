"""Plain JAX functions inside a region: right on each value alone, refused where they look along a slice."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weft as wf

batch, d_model = wf.dims(batch=8, d_model=4)
x = wf.tensor(np.random.default_rng(0).normal(size=(8, 4)).astype("float32"), [batch, d_model])


def mapped(fn):
    return lambda x: jax.tree.map(fn, x)


def updated(transformation):
    def run(x):
        tree = {"w": x}
        return transformation.update(tree, transformation.init(tree), tree)[0]["w"]

    return run


LOOK_ALONG = {
    "softmax": mapped(jax.nn.softmax),
    "minus its mean": mapped(lambda a: a - jnp.mean(a)),
    "sort": mapped(jnp.sort),
    "cumsum": mapped(lambda a: jnp.cumsum(a, 0)),
    "roll": mapped(lambda a: jnp.roll(a, 1)),
    "norm": mapped(lambda a: a / jnp.linalg.norm(a)),
    "noise": mapped(lambda a: a + jax.random.normal(jax.random.key(0), a.shape)),
    "in a checkpoint": jax.checkpoint(mapped(jax.nn.softmax)),
    "in a jit": jax.jit(mapped(jax.nn.softmax)),
    "in a scan": lambda x: wf.scan(lambda c, _: (mapped(jax.nn.softmax)(c), None), x, over=wf.Dim("turn", 2))[0],
    "in a map": lambda x: wf.vmap(mapped(jax.nn.softmax), over="batch")(x),
    "differentiated": wf.grad(lambda x: wf.sum(mapped(jax.nn.softmax)(x), over="batch d_model")),
    "clip_by_global_norm": updated(optax.clip_by_global_norm(0.1)),
    "lamb": updated(optax.lamb(0.1)),
}


@pytest.mark.parametrize("name", LOOK_ALONG)
def test_what_looks_along_slices_is_refused_by_spmd_and_trace(name):
    for call in (
        lambda: wf.spmd(LOOK_ALONG[name], mesh="x=4", layout="batch:x")(x),
        lambda: wf.trace(LOOK_ALONG[name], x, mesh="x=4", layout="batch:x"),
    ):
        with pytest.raises(wf.TensorError, match="plain JAX function") as caught:
            call()
        assert "its result would depend on the layout" in caught.value.fact
        assert "layout: batch:x   mesh: x=4   at tests/spmd/test_guard.py:" in caught.value.state
        assert "wf.local(fn, x, out=..., whole=...)" in caught.value.fix


two = wf.tensor(2.0, [])
ON_EACH_VALUE = {
    "a function of each value": mapped(lambda a: jnp.tanh(2 * a) + jnp.ones(a.shape) - jnp.zeros_like(a)),
    "adam": updated(optax.adam(0.1)),
    "sgd with momentum and decay": updated(optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, momentum=0.9))),
    "clip by value": updated(optax.clip(0.1)),
    "times a number": lambda x: wf.grad(lambda s: wf.sum(s * mapped(jnp.sin)(x), over="batch d_model"))(two),
    "a kernel of one's own": lambda x: wf.local(jax.nn.softmax, x, out=x.dims, whole="d_model"),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_EACH_VALUE)
def test_what_works_on_each_value_alone_is_the_same_on_slices(name):
    fn = ON_EACH_VALUE[name]
    got = wf.spmd(fn, mesh="x=4", layout="batch:x")(x)
    np.testing.assert_allclose(got.array, fn(x).array, rtol=1e-6, atol=2 * np.finfo("float32").eps)  # of up to 2


def centre(array):
    return array - jax.lax.pmean(jnp.mean(array), "x")


def test_who_asks_for_the_slice_may_send_by_hand():
    got = wf.spmd(lambda x: wf.local(centre, x, out=x.dims), mesh="x=4", layout="batch:x")(x)
    np.testing.assert_allclose(got.array, x.array - np.mean(x.array), rtol=1e-5, atol=1e-6)


SENDS = {
    "psum of a sum": lambda x: mapped(lambda a: jax.lax.psum(a, "x"))(wf.sum(x, over="batch")),
    "psum of a tensor": lambda x: jax.lax.psum(wf.mean(x, over="batch"), "x"),
    "psum of a gradient": lambda x: mapped(lambda a: jax.lax.psum(a, "x"))(
        wf.grad(lambda s: wf.sum(s * x, over="batch d_model"))(x)
    ),
    "a gather": mapped(lambda a: jax.lax.all_gather(a, "x", axis=0, tiled=True)[: a.shape[0]]),
    "a permute": mapped(lambda a: jax.lax.ppermute(a, "x", [(i, (i + 1) % 4) for i in range(4)])),
    "a mean and its exchange": mapped(centre),
}


@pytest.mark.parametrize("layout", ["batch:x", "d_model:x"])
@pytest.mark.parametrize("name", SENDS)
def test_what_sends_behind_the_names_is_refused(name, layout):
    with pytest.raises(wf.TensorError, match="behind the names"):
        wf.spmd(SENDS[name], mesh="x=4", layout=layout)(x)


def test_a_train_step_refuses_before_it_gives_up_its_state():
    def loss(params, batch, key):
        return wf.mean(jax.tree.map(jax.nn.softmax, params["w"]) * batch, over="batch d_model")

    step = wf.spmd(wf.train_step(loss, optax.sgd(0.1)), mesh="x=4", layout="batch:x", donate=0)
    state = step.init({"w": wf.parameter(x)})
    with pytest.raises(wf.TensorError, match="looks along one processor's slice"):
        step(state, x, None)
    assert np.isfinite(np.asarray(state.params["w"].array)).all()


def test_reading_a_region_traces_it_no_second_time():
    calls = []

    def loss(params, batch, key):
        calls.append(1)
        return wf.mean(params["w"] * batch, over="batch d_model")

    step = wf.train_step(loss, optax.sgd(0.1), mesh="x=4", layout="batch:x")
    state = step.init({"w": wf.parameter(x)})
    before = len(calls)
    for _ in range(3):
        state, _ = step(state, x, None)
    assert len(calls) == before + 1


def test_who_asks_for_a_slice_may_look_along_it():
    def louder_where_a_slice_is_loud(x):
        return wf.cond(jnp.max(x.local_array) > 1, lambda x: 2 * x, lambda x: x, x)

    found = wf.spmd(louder_where_a_slice_is_loud, mesh="x=4", layout="batch:x")(x)
    is_loud = np.repeat(np.asarray(x.array).reshape(4, 8).max(1) > 1, 2)
    np.testing.assert_array_equal(found.array, np.where(is_loud[:, None], 2, 1) * x.array)
