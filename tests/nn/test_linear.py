"""Linear maps, embeddings and feed-forward parts against numpy."""

import math

import jax
import numpy as np
import pytest

import weft as wf
from tests.ops.test_meanings import EPS
from weft import nn
from weft.nn.weights import apply_dropout

from .cases import FAMILIES, IDS, B, D, F, T, V, X

x = np.asarray(X.array, "float64")
# Sums of up to 256 products of numbers below 4, of variance about 1.
CLOSE = {"rtol": 0, "atol": 256 * EPS}


def arrays(name):
    layer = FAMILIES["maps"][name].layer
    return layer, {k: np.asarray(v.array, "float64") for k, v in vars(layer).items() if isinstance(v, wf.Tensor)}


@pytest.mark.parametrize(
    ("name", "how", "dims"),
    [
        ("linear", "btd,df->btf", "batch length d_ff"),
        ("linear to itself", "btd,de->bte", "batch length d_model"),
        ("linear from and to several", "btd,tdhk->bhk", "batch heads d_kv"),
        ("linear partly to itself", "btd,tdeh->beh", "batch d_model heads"),
    ],
)
def test_a_linear_map_goes_from_any_dims_to_any_dims(name, how, dims):
    layer, w = arrays(name)
    got = layer(X)
    assert got.dims.names == tuple(dims.split())
    np.testing.assert_allclose(got.array, np.einsum(how, x, w["weight"]) + w.get("bias", 0), **CLOSE)


def test_a_linear_map_takes_the_dims_it_goes_from_in_any_order():
    layer, _ = arrays("linear from and to several")
    turned = wf.tensor(x.astype("float32").transpose(2, 1, 0), [D, T, B])
    np.testing.assert_allclose(layer(turned).array, np.asarray(layer(X).array), **CLOSE)


def test_first_weights_keep_the_variance():
    layer = nn.Linear([T, D], wf.Dim("out", 512), key=jax.random.key(0))
    assert np.std(layer.weight.array) == pytest.approx(256**-0.5, rel=0.02)
    wide = nn.FeedForward(wf.Dim("d_model", 256), wf.Dim("d_ff", 512), key=jax.random.key(0))
    assert np.std(wide.w_in.array) == pytest.approx(256**-0.5, rel=0.02)
    assert np.std(wide.w_out.array) == pytest.approx(512**-0.5, rel=0.02)
    assert np.std(nn.Linear(D, wf.Dim("out", 512), stddev=3.0, key=jax.random.key(0)).weight.array) == pytest.approx(
        3.0, rel=0.05
    )


def test_an_embedding_is_a_row_of_its_table_and_logits_are_products_with_all_rows():
    layer, w = arrays("embedding")
    np.testing.assert_array_equal(layer(IDS).array, w["table"][np.asarray(IDS.array)].astype("float32"))
    assert layer(IDS, "bfloat16").dtype == "bfloat16"
    logits = layer.logits(X)
    assert logits.dims.find("vocab") == V and logits.dtype == "float32"
    want = np.einsum("btd,vd->btv", x, w["table"])[..., : V.count]
    np.testing.assert_allclose(np.asarray(logits.array)[..., : V.count], want, **CLOSE)


def gelu(a):
    return a * 0.5 * (1 + np.vectorize(math.erf)(a / math.sqrt(2)))


def silu(a):
    return a / (1 + np.exp(-a))


def gelu_tanh(a):
    return 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))


@pytest.mark.parametrize(
    ("name", "activate"),
    [("relu", lambda a: np.maximum(a, 0)), ("gelu", gelu), ("gelu_tanh", gelu_tanh), ("silu", silu)],
    ids=["relu", "gelu", "gelu_tanh", "silu"],
)
def test_a_feed_forward_part_is_up_activate_gate_down(name, activate):
    layer, w = arrays(name)
    up = x @ w["w_in"] + w["in_bias"]
    hidden = activate(up) if layer.w_gate is None else activate(x @ w["w_gate"]) * up
    np.testing.assert_allclose(layer(X).array, hidden @ w["w_out"] + w["out_bias"], **CLOSE)


def test_exact_gelu_is_not_its_approximation():
    layers = [nn.FeedForward(D, F, activation=name, key=jax.random.key(1)) for name in ("gelu", "gelu_tanh")]
    exact, about = (np.asarray(layer(X).array) for layer in layers)
    assert 1e-5 < np.abs(exact - about).max() < 1e-2


def test_a_feed_forward_part_takes_dims_of_any_name():
    named = nn.FeedForward(wf.Dim("width", 16), wf.Dim("hidden", 32), key=jax.random.key(1))
    usual = nn.FeedForward(D, F, key=jax.random.key(1))
    got = named(X.rename(d_model="width")).rename(width="d_model")
    np.testing.assert_allclose(got.array, np.asarray(usual(X).array), **CLOSE)


def test_dropout_falls_on_the_hidden_channels_and_needs_a_key():
    layer, w = arrays("relu")
    np.testing.assert_array_equal(layer(X, dropout=0.5).array, layer(X).array)
    key = jax.random.key(3)
    hidden = np.maximum(x @ w["w_in"] + w["in_bias"], 0)
    kept = np.asarray(apply_dropout(wf.ones([B, T, F]), 0.5, key).array)
    want = (hidden * kept) @ w["w_out"] + w["out_bias"]
    np.testing.assert_allclose(layer(X, key=key, dropout=0.5).array, want, **CLOSE)
