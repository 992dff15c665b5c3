"""Pipelines: stages split over processors give what a loop over stages gives, and send and compute by formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf

B, D, F = wf.dims(batch=16, d_model=8, d_ff=8)
ROWS = np.random.default_rng(1).normal(size=(B.size, D.size)).astype("float32")
x = wf.tensor(ROWS, [B, D])


def weights(stages, rounds=1):
    dims = [*([wf.Dim("rounds", rounds)] if rounds > 1 else []), wf.Dim("stage", stages)]
    shape = [dim.size for dim in (*dims, D, F)]
    rng = np.random.default_rng(stages * rounds)
    return {
        "w_in": wf.parameter((rng.normal(size=shape) / 3).astype("float32"), [*dims, D, F]),
        "w_out": wf.parameter((rng.normal(size=shape) / 3).astype("float32"), [*dims, F, D]),
        "scale": wf.parameter(rng.uniform(0.5, 1, size=shape[:-1]).astype("float32"), [*dims, D]),
    }


def stage(x, w, key):
    """A norm without epsilon, so that a row of zeros would have no finite gradient; and a nonlinear extra."""
    h = x * (wf.mean(x * x, over=D) ** -0.5) * w["scale"]
    h = wf.tanh(wf.einsum(h, w["w_in"], over=D))
    h = h if key is None else wf.dropout(h, 0.3, key)
    y = x + wf.einsum(h, w["w_out"], over=F)
    return y, {"spread": wf.mean(y * y, over=[D, "batch"]) ** 2}


def loss(w, x, *, micro, rounds=1, key=None):
    y, extras = wf.pipeline(stage, x, w, micro=micro, rounds=rounds, key=key)
    return wf.mean(wf.sin(y) * x, over=[B, D]) + 0.1 * extras["spread"]  # of which rows it matters


def plain_loss(w, x, micro):
    rows = x
    w = {name: value.array.reshape(-1, *value.array.shape[-1 - (name != "scale") :]) for name, value in w.items()}
    extra = 0.0
    for i in range(len(w["scale"])):
        h = x * (x * x).mean(-1, keepdims=True) ** -0.5 * w["scale"][i]
        x = x + jnp.tanh(h @ w["w_in"][i]) @ w["w_out"][i]
        extra += sum((x[j::micro] ** 2).mean() ** 2 for j in range(micro))
    return (jnp.sin(x) * rows).mean() + 0.1 * extra


def on(mesh, layout, w, **how):
    return wf.spmd(wf.value_and_grad(functools.partial(loss, **how)), mesh=wf.Mesh(mesh), layout=layout)(w, x)


def whole(w, **how):
    return jax.jit(wf.value_and_grad(functools.partial(loss, **how)))(w, x)


def agree(a, b):
    """Two orders of summing a few hundred terms of f32, each off by one rounding of the largest."""
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        np.testing.assert_allclose(one, other, rtol=0, atol=2**-23 * 64 * max(np.abs(other).max(), 1e-3))


@pytest.mark.slow  # the contract table has a smaller one
def test_a_whole_pipeline_is_a_loop_over_stages_and_microbatches():
    w = weights(4)
    value, gradients = whole(w, micro=4)
    arrays = {name: v.array for name, v in w.items()}
    rename = lambda arrays: {name: wf.parameter(a, w[name].dims) for name, a in arrays.items()}  # noqa: E731
    wanted = jax.value_and_grad(lambda arrays: plain_loss(rename(arrays), jnp.asarray(ROWS), 4))(arrays)
    agree((value, {name: g.array for name, g in gradients.items()}), wanted)


CASES = [
    ("p=2,x=2", "stage:p,batch:x,params.d_model:x", 4, {"micro": 4, "rounds": 2, "key": jax.random.key(5)}),
    ("p=4,x=2", "stage:p,batch:x", 4, {"micro": 4}),
    ("p=2,y=2,x=2", "stage:p,d_ff:y,batch:x", 4, {"micro": 4, "rounds": 2}),
    ("p=2,x=2", "stage:p,batch:x+p,params.d_model:x", 2, {"micro": 4, "rounds": 3, "key": jax.random.key(5)}),
    ("p=4,z=2", "stage:p,batch:z,params.d_model:z", 4, {"micro": 8, "key": jax.random.key(5)}),
]


@pytest.mark.parametrize(
    "mesh, layout, stages, how",
    [pytest.param(*case, id=" ".join(case[:2]), marks=pytest.mark.slow if i else ()) for i, case in enumerate(CASES)],
)
def test_split_stages_give_the_values_and_gradients_of_whole_ones(mesh, layout, stages, how):
    w = weights(stages, how.get("rounds", 1))
    agree(on(mesh, layout, w, **how), whole(w, **how))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.sampled_from([1, 2, 4]), st.integers(1, 2), st.integers(1, 3), st.booleans(), st.data())
def test_any_number_of_stages_microbatches_and_rounds(ways, deep, rounds, drops, data):
    micro = data.draw(st.sampled_from([m for m in (1, 2, 4, 8) if m % ways == 0]))
    rows = data.draw(st.sampled_from([n for n in (1, 2) if micro * n <= B.size]))
    w, key = weights(ways * deep, rounds), jax.random.key(7) if drops else None
    how = {"micro": micro, "rounds": rounds, "key": key}
    agree(on(f"p={ways},x={rows}", "stage:p,batch:x", w, **how), whole(w, **how))


def test_random_numbers_of_a_microbatch_are_those_of_its_rows():
    key = jax.random.key(3)

    def noise(x, w, key):
        whole = wf.random.randint(key, x.dims, like=x, minval=0, maxval=1000)  # which splits its key
        kept = wf.random.bernoulli(key, x.dims, like=x, p=0.4)
        return x + wf.cast(whole, "float32") + wf.cast(kept, "float32"), {}

    w = wf.parameter(np.zeros(2, "float32"), "stage")
    numbers = [jax.random.fold_in(key, i) for i in range(2)]
    wanted = sum(jax.random.randint(k, (16, 8), 0, 1000) + jax.random.bernoulli(k, 0.4, (16, 8)) for k in numbers)
    run = functools.partial(wf.pipeline, noise, micro=4, key=key)
    zeros = wf.tensor(np.zeros((16, 8), "float32"), [B, D])
    for mesh, layout in [("p=2,x=2", "stage:p,batch:x"), ("p=1,x=1", "")]:
        found = wf.spmd(lambda x, w: run(x, w)[0], mesh=wf.Mesh(mesh), layout=layout)(zeros, w)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def test_a_stage_may_give_its_dims_in_another_order():
    w = wf.parameter(np.arange(1, 5, dtype="float32")[:, None] * np.ones((4, 8), "float32"), [wf.Dim("stage", 4), D])

    def turned(x, w, key):
        return wf.einsum(w, x, out=[D, "batch"]), {}

    found = wf.spmd(lambda x, w: wf.pipeline(turned, x, w, micro=4)[0], mesh=wf.Mesh("p=4"), layout="stage:p")(x, w)
    np.testing.assert_allclose(np.asarray(found), 24 * ROWS, rtol=1e-6)


@pytest.mark.quick("stage:p,mb:p", "mb:x")
@pytest.mark.parametrize("layout", ["stage:p", "stage:p,mb:p", "stage:p,mb:x", "mb:x"])
def test_microbatches_may_come_split_otherwise_than_the_stages(layout):
    w = wf.parameter(np.linspace(0.5, 1.5, 32, dtype="float32").reshape(4, 8), "stage d_model")
    dealt = wf.tensor(ROWS.reshape(4, 4, 8), "mb batch d_model")

    def summed(w, x):
        y = wf.pipeline(lambda x, w, key: (x * w, {}), x, w, micro="mb")[0]
        return wf.sum(y * y, over=["mb", "batch", "d_model"])

    value, grad = wf.spmd(wf.value_and_grad(summed), mesh=wf.Mesh("p=2,x=2"), layout=layout)(w, dealt)
    wanted, slope = jax.value_and_grad(lambda w: ((jnp.prod(w, axis=0) * dealt.array) ** 2).sum())(w.array)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(grad, slope, rtol=1e-5)


def test_it_sends_two_permutes_a_tick_and_one_gradient_sum_a_parameter():
    w, micro, ways = weights(4), 8, 4
    traced = functools.partial(wf.trace, wf.value_and_grad(functools.partial(loss, micro=micro)), w, x)
    program = traced(mesh=wf.Mesh("p=4,x=2"), layout="stage:p,batch:x")
    ticks, state = micro + ways - 1, B.size // micro // 2 * D.size * 4
    permutes = [row for row in program.ledger if row.collective == "permute"]
    assert [(row.phase, row.count, row.bytes) for row in permutes] == [
        (phase, ticks, state) for phase in ("forward", "forward", "backward", "backward")
    ]
    large = [row for row in program.ledger if row.collective != "permute" and row.bytes > 4]
    parameters = sorted(value.array.nbytes // 4 for value in w.values())
    rows = B.size // 2 * D.size * 4
    assert sorted((row.collective, row.count, row.bytes) for row in large) == sorted(
        [("all_reduce", 1, size) for size in parameters] + [("all_gather", 1, rows), ("reduce_scatter", 1, rows)]
    )


@pytest.mark.parametrize("micro, rounds", [(4, 1), (8, 1), (4, 2)])
def test_the_bubble_is_in_the_work(micro, rounds):
    w, ways = weights(4, rounds), 4
    fn = wf.value_and_grad(functools.partial(loss, micro=micro, rounds=rounds))
    alone = wf.trace(fn, w, x, mesh=wf.Mesh("p=1"), layout="")
    split = wf.trace(fn, w, x, mesh=wf.Mesh("p=4"), layout="stage:p")
    ticks = micro * rounds + ways - 1
    assert alone.flops_idle == 0 and split.flops == alone.flops // ways * ticks // (micro * rounds)
    assert split.flops_idle / split.flops == (ways - 1) / ticks
    assert split.flops_useful == alone.flops_useful / ways and split.flops_duplicated == 0
    assert f"{round(100 * (ways - 1) / ticks)} % of the work is the bubble of a pipeline" in str(split)


def test_memory_falls_with_the_stages():
    w = weights(8)
    fn = wf.value_and_grad(functools.partial(loss, micro=8))
    peaks = [
        wf.trace(fn, w, x, mesh=wf.Mesh(f"p={ways}"), layout="stage:p" if ways > 1 else "").memory.peak
        for ways in (1, 2, 4, 8)
    ]
    assert sorted(peaks, reverse=True) == peaks and len(set(peaks)) == len(peaks), peaks
