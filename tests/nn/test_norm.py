"""Norms against their formulas in numpy; the running statistics of a batch norm."""

from typing import Any

import jax
import numpy as np
import pytest

import weft as wf
from tests.ops.test_meanings import EPS
from weft import nn

from .cases import FAMILIES, B, D, T, X

x = np.asarray(X.array, "float64")
# A mean of up to 256 terms, its square and a root: each rounds by half an ulp of values below 8.
CLOSE = {"rtol": 0, "atol": 256 * EPS}


def layer_of(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The norm of a case, and its weights as arrays."""
    layer = FAMILIES["norms"][name].layer
    return layer, {k: np.asarray(v.array, "float64") for k, v in vars(layer).items() if isinstance(v, wf.Tensor)}


def standard(x: np.ndarray, axes: Any, epsilon: float) -> np.ndarray:
    mean = x.sum(axes, keepdims=True) / np.prod([x.shape[a] for a in axes])
    spread = ((x - mean) ** 2).sum(axes, keepdims=True) / np.prod([x.shape[a] for a in axes])
    return (x - mean) / np.sqrt(spread + epsilon)


def test_a_layer_norm_has_mean_0_and_variance_1_before_it_is_scaled_and_shifted():
    layer, w = layer_of("layer")
    np.testing.assert_allclose(layer(X).array, standard(x, (2,), 1e-6) * w["scale"] + w["bias"], **CLOSE)


def test_a_layer_norm_may_go_over_two_dims_and_have_no_bias():
    layer, w = layer_of("layer of two dims")
    assert layer.bias is None
    np.testing.assert_allclose(layer(X).array, standard(x, (1, 2), 1e-6) * w["scale"], **CLOSE)


def test_an_rms_norm_divides_by_the_root_of_the_mean_square():
    layer, w = layer_of("rms")
    want = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * w["scale"]
    np.testing.assert_allclose(layer(X).array, want, **CLOSE)


def test_a_scale_norm_gives_every_vector_one_length():
    layer, w = layer_of("scale")
    got = np.asarray(layer(X).array)
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), np.full((8, 16), w["scale"]), rtol=16 * EPS)
    np.testing.assert_allclose(got, x / np.linalg.norm(x, axis=-1, keepdims=True) * w["scale"], **CLOSE)
    assert float(nn.ScaleNorm(D, key=jax.random.key(0)).scale.array) == D.size**0.5


@pytest.mark.parametrize(("name", "groups"), [("group", 4), ("group of one", 1)])
def test_a_group_norm_goes_over_the_channels_of_each_group_and_over_dims_beside(name, groups):
    layer, w = layer_of(name)
    cut = x.reshape(8, 16, groups, 16 // groups)
    want = standard(cut, (1, 3), 1e-5).reshape(x.shape) * w["scale"] + w["bias"]
    np.testing.assert_allclose(layer(X, over="length").array, want, **CLOSE)


def test_a_group_norm_keeps_the_order_of_dims_whatever_it_is():
    turned = wf.tensor(np.asarray(X.array).transpose(2, 0, 1), [D, B, T])
    layer, _ = layer_of("group")
    got = layer(turned, over="length")
    want = np.asarray(layer(X, over="length").array)
    np.testing.assert_allclose(wf.broadcast(got, X.dims).array, want, **CLOSE)


def test_a_batch_norm_in_training_uses_the_batch_and_moves_its_running_statistics():
    layer, w = layer_of("batch")
    got, moved = layer(X, over="batch length")
    np.testing.assert_allclose(got.array, standard(x, (0, 1), 1e-5) * w["scale"] + w["bias"], **CLOSE)
    flat = x.reshape(-1, 16)
    np.testing.assert_allclose(moved.running_mean.array, 0.9 * w["running_mean"] + 0.1 * flat.mean(0), **CLOSE)
    np.testing.assert_allclose(moved.running_var.array, 0.9 * w["running_var"] + 0.1 * flat.var(0), **CLOSE)
    np.testing.assert_array_equal(moved.scale.array, layer.scale.array)


def test_a_batch_norm_at_inference_uses_its_running_statistics_and_does_not_move():
    layer, w = layer_of("batch at inference")
    got, same = layer(X, over="batch length", training=False)
    want = (x - w["running_mean"]) / np.sqrt(w["running_var"] + 1e-5) * w["scale"] + w["bias"]
    np.testing.assert_allclose(got.array, want, **CLOSE)
    assert same is layer


def test_running_statistics_have_no_gradient():
    layer, _ = layer_of("batch")

    def loss(layer: Any, x: wf.Tensor) -> Any:
        y, moved = layer(x, over="batch length")
        return wf.sum(y * y, over=y.dims) + wf.sum(moved.running_mean + moved.running_var, over="d_model")

    gradients = wf.grad(loss)(layer, X)
    assert not np.any(gradients.running_mean.array) and not np.any(gradients.running_var.array)
    assert np.any(gradients.scale.array)


@pytest.mark.parametrize("layout", ["", "batch:x", "batch:x,params.d_model:x", "d_model:x"])
def test_a_moved_batch_norm_is_a_batch_norm_again_inside_and_outside_a_region(layout):
    layer, _ = layer_of("batch")

    def twice(layer: Any, x: wf.Tensor) -> Any:
        _, once = layer(x, over="batch length")
        return once(x, over="batch length")

    step = wf.spmd(twice, mesh="x=8", layout=layout)
    y, moved = step(layer, X)
    want_y, want = twice(layer, X)
    np.testing.assert_allclose(y.array, want_y.array, **CLOSE)
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(getattr(moved, name).array, getattr(want, name).array, **CLOSE)
    _, again = step(moved, X)
    np.testing.assert_allclose(again.running_var.array, twice(want, X)[1].running_var.array, **CLOSE)


def test_norms_of_half_precision_keep_statistics_in_float32():
    small = wf.cast(X + 100, "bfloat16")
    wide = np.asarray(small.array, "float64")
    for name, want in (
        ("layer", standard(wide, (2,), 1e-6)),
        ("rms", wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True))),
    ):
        layer, w = layer_of(name)
        got = layer(small)
        assert got.dtype == "bfloat16"
        want = want * w["scale"] + w.get("bias", 0)
        np.testing.assert_allclose(np.asarray(got.array, "float64"), want, rtol=2**-8, atol=2**-8)
