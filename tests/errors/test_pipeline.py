"""Pipelines given what cannot flow through them, and that the fixes work."""

import jax
import numpy as np
import pytest

import weft as wf

from .raised import error_of

x = wf.tensor(np.ones((8, 4), "float32"), "batch d")
w = wf.parameter(np.ones((4, 4), "float32"), "stage d")
twice = wf.parameter(np.ones((2, 4, 4), "float32"), "rounds stage d")


def stage(x, w, key):
    return x * w, {}


def split(fn, layout="stage:p"):
    return wf.spmd(fn, mesh=wf.Mesh("p=4,x=2"), layout=layout)


def flow(fn=stage, x=x, w=w, **how):
    return wf.pipeline(fn, x, w, **{"micro": 4, **how})


@pytest.mark.parametrize(
    "act, kind, fact",
    [
        (lambda: flow(x=w), wf.DimError, "has no dim `batch`"),
        (lambda: flow(x=(x, 3.0)), wf.DimError, "pipeline got 3.0 among what flows through its stages"),
        (lambda: flow(w=x), wf.DimError, "pipeline goes over `stage`, which no weight has"),
        (lambda: flow(rounds=0), wf.DimError, "pipeline got rounds=0"),
        (lambda: flow(rounds=2), wf.DimError, "pipeline goes 2 times round, and a weight is [stage=4 d=4]"),
        (lambda: flow(w=twice), wf.DimError, "pipeline goes 1 times round, and a weight is [rounds=2 stage=4 d=4]"),
        (lambda: flow(micro=0), wf.DimError, "pipeline got micro=0"),
        (lambda: flow(micro=True), wf.DimError, "pipeline got micro=True"),
        (lambda: flow(micro=2.0), wf.DimError, "pipeline got micro=2.0"),
        (lambda: flow(micro="a b"), wf.DimError, "pipeline got micro='a b' where one dim is due"),
        (lambda: flow(micro="microbatch"), wf.DimError, "microbatch"),
        (lambda: flow(x=(), micro="microbatch"), wf.DimError, "pipeline got nothing that flows"),
        (lambda: flow(micro=3), wf.DimError, "`batch` (size 8, split 1 ways) does not divide into 3 microbatches"),
        (lambda: flow(lambda x, w, key: x), wf.TensorError, "a stage of the pipeline gave no pair"),
        (
            lambda: flow(lambda x, w, key: ((x, x), {})),
            wf.TensorError,
            "what flows through the pipeline enters a stage",
        ),
        (lambda: flow(lambda x, w, key: (x, {"a": x})), wf.TensorError, "an extra of a pipeline's stage is"),
        (
            lambda: flow(lambda x, w, key: (wf.sum(x, over="d"), {})),
            wf.TensorError,
            "enters a stage as f32[batch d] and leaves as f32[batch]",
        ),
        (lambda: flow(lambda x, w, key: (x > 0, {})), wf.TensorError, "leaves as bool[batch d]"),
        (lambda: flow(lambda x, w, key: (3.0, {})), wf.TensorError, "leaves as 3.0"),
        (lambda: flow(lambda x, w: (x, {})), wf.TensorError, "3 arguments"),
        (lambda: flow(key=3), wf.WeftError, "key"),
    ],
)
def test_what_cannot_flow_is_told(act, kind, fact):
    error = error_of(act, kind)
    assert fact in str(error) and error.fix


def test_microbatches_that_do_not_divide_over_the_stages():
    error = error_of(lambda: split(lambda x, w: wf.pipeline(stage, x, w, micro=2)[0])(x, w), wf.DimError)
    assert error.fact == "2 microbatches do not divide over the 4 processors of `stage`"
    assert "mesh: p=4,x=2" in error.state
    assert "multiple of 4 (nearest: 4)" in error.fix
    np.testing.assert_array_equal(split(lambda x, w: wf.pipeline(stage, x, w, micro=4)[0])(x, w), np.ones((8, 4)))


def test_a_padded_batch_does_not_flow():
    padded = wf.pad_to(wf.tensor(np.ones((7, 4), "float32"), "batch d"), "batch", 8)
    error = error_of(lambda: flow(x=padded), wf.DimError)
    assert "pipeline" in error.fact


def test_a_key_is_each_stages_own():
    def noise(x, w, key):
        return x + wf.random.normal(key, x.dims, like=x), {}

    key = jax.random.key(0)
    found = flow(noise, key=key)[0]
    wanted = 1 + sum(jax.random.normal(jax.random.fold_in(key, i), (8, 4)) for i in range(4))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
