"""LSTM, GRU, patches, MLP, Sequential and stacks beside the same in NumPy, whole and split."""

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft import nn
from weft.nn import weights

from .cases import made

B, T, D, H = wf.dims(batch=4, length=5, features=6, hidden=8)
KEY = jax.random.key(3)
SPLIT = {"mesh": "x=2,y=2", "layout": "batch:x,hidden:y"}
X = wf.tensor(np.random.default_rng(0).normal(size=(4, 5, 6)).astype("float32"), [B, T, D])


def array(x):
    return np.asarray(wf.get(x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(layer, x):
    """By the formulas, one place after the other."""
    w, u, b = (array(part) for part in (layer.w_in, layer.w_hidden, layer.in_bias))
    h = c = np.zeros((4, 8))
    outputs = []
    for t in range(5):
        i, f, g, o = np.moveaxis(np.einsum("bd,dgh->bgh", x[:, t], w) + np.einsum("bk,kgh->bgh", h, u) + b, 1, 0)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs, 1), h, c


def gru(layer, x):
    w, u, b, v = (array(part) for part in (layer.w_in, layer.w_hidden, layer.in_bias, layer.hidden_bias))
    h = np.zeros((4, 8))
    outputs = []
    for t in range(5):
        r, z, n = np.moveaxis(np.einsum("bd,dgh->bgh", x[:, t], w) + b, 1, 0)
        own_r, own_z, own_n = np.moveaxis(np.einsum("bk,kgh->bgh", h, u) + v, 1, 0)
        z = sigmoid(z + own_z)
        h = (1 - z) * np.tanh(n + sigmoid(r + own_r) * own_n) + z * h
        outputs.append(h)
    return np.stack(outputs, 1), h


@pytest.mark.parametrize(("kind", "reference"), [pytest.param(nn.LSTM, lstm, marks=pytest.mark.slow), (nn.GRU, gru)])
def test_recurrent_layers_compute_their_formulas_whole_and_split(kind, reference):
    layer = made(kind(D, H))
    outputs, *state = reference(layer, array(X))
    for run in (lambda m, x: m(x), wf.spmd(lambda m, x: m(x), **SPLIT)):
        found, last = run(layer, X)
        assert set(found.dims.names) == {"batch", "length", "hidden"}
        np.testing.assert_allclose(array(wf.broadcast(found, [B, T, H])), outputs, atol=2e-6)
        for one, want in zip(jax.tree.leaves(last, is_leaf=lambda x: isinstance(x, wf.Tensor)), state, strict=True):
            np.testing.assert_allclose(array(wf.broadcast(one, [B, H])), want, atol=2e-6)


def test_a_split_state_sends_once_a_turn():
    """One reduce-scatter of the gates; what comes in is whole, so nothing else is sent."""
    layer = nn.shapes(nn.LSTM(D, H))
    program = wf.trace(lambda m, x: m(x)[0], layer, X, **SPLIT)
    assert [(row.collective, row.count) for row in program.ledger] == [("reduce_scatter", 5)]


@pytest.mark.slow
def test_going_on_from_a_state_is_going_through():
    layer = nn.init(nn.GRU(D, H), KEY)
    whole, last = layer(X)
    first, state = layer(X["length", :2])
    second, again = layer(X["length", 2:], state)
    np.testing.assert_allclose(array(wf.concat([first, second], over="length")), array(whole), atol=1e-6)
    np.testing.assert_allclose(array(again), array(last), atol=1e-6)


def test_patches_are_the_products_of_pieces_row_by_row():
    images = np.random.default_rng(1).normal(size=(4, 6, 8, 3)).astype("float32")
    x = wf.tensor(images, "batch height width channels")
    layer = made(nn.Patches(x.dim("channels"), D, {"height": 3, "width": 2}))
    pieces = images.reshape(4, 2, 3, 4, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(4, 8, 18)
    want = pieces @ array(layer.weight).reshape(18, 6) + array(layer.bias)
    split = wf.spmd(lambda m, x: m(x), mesh="x=2,y=2", layout="batch:x,height:y")
    for run in (lambda m, x: m(x), split):
        found = run(layer, x)
        assert found.dims.names == ("batch", "length", "features")
        np.testing.assert_allclose(array(found), want, atol=1e-5)
    assert not wf.trace(lambda m, x: m(x), layer, x, mesh="y=2", layout="height:y").ledger
    with_five = wf.tensor(images[:, :5], "batch height width channels")
    assert "pad it to 6" in error_of(lambda: layer(with_five), wf.DimError).fix


def test_an_mlp_and_a_sequence_of_its_parts_are_the_same():
    layer = made(nn.MLP([D, H, D], activation="silu"))
    first, second = layer.maps
    same = nn.Sequential([first, nn.Dropout(0.5), wf.silu, second])
    np.testing.assert_allclose(array(same(X)), array(layer(X)), atol=1e-6)
    assert np.any(array(same(X, key=KEY)) != array(layer(X)))
    for one, other in zip(nn.paths(nn.init(layer, KEY)), ("maps.0.weight", "maps.0.bias"), strict=False):
        assert one == other
    again = nn.MLP([D, H, D], key=KEY)
    np.testing.assert_array_equal(array(nn.init(nn.MLP([D, H, D]), KEY).maps[1].weight), array(again.maps[1].weight))


def test_a_stack_is_its_layers_one_after_the_other():
    layers = wf.Dim("layers", 3)
    plan = nn.MLP([D, H, D])
    stacked = nn.init(nn.Stacked(plan, layers), KEY)
    assert stacked.layer.maps[0].weight.dims.names == ("layers", "features", "hidden")
    want = X
    for i in range(3):
        one = jax.tree.map(lambda w, i=i: w["layers", i], stacked.layer, is_leaf=lambda x: isinstance(x, wf.Tensor))
        want = one(want)
    np.testing.assert_allclose(array(stacked(X)), array(want), atol=1e-5)
    loss = lambda m, x: wf.sum(m(x, remat=True) ** 2, over="batch length features")  # noqa: E731
    gradient = wf.grad(loss)(stacked, X)
    assert gradient.layer.maps[1].bias.dims.names == ("layers", "features")
    split = wf.spmd(wf.grad(loss), **SPLIT)(stacked, X)
    for one, other in zip(jax.tree.leaves(split), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-4)


# Weights that a layer of one's own declares.


def limits(key, dims, like=None):
    return wf.random.uniform(key, dims, like=like, minval=-0.5, maxval=0.5)


def whole(key, dims, like=None):
    """As somebody writes it who knows nothing of slices."""
    return wf.random.uniform(key, dims, minval=-0.5, maxval=0.5)


@pytest.mark.parametrize("init", [pytest.param(limits, marks=pytest.mark.slow), whole])
def test_first_values_of_ones_own_are_the_same_under_every_layout(init):
    weight = nn.stack({"w": nn.Weight([D, H], init=init)}, wf.Dim("layers", 2))
    alone = nn.init(weight, KEY)["w"]
    assert np.ptp(array(alone)) > 0.8 and np.abs(array(alone)).max() <= 0.5
    split = nn.init(weight, KEY, "x=2,y=2", "hidden:y,params.features:x")["w"]
    np.testing.assert_array_equal(array(split), array(alone))
    assert {shard.data.shape for shard in split.array.addressable_shards} == {(2, 3, 4)}


def test_weights_that_cannot_be_are_refused():
    assert error_of(lambda: nn.Weight("features")).fix == "give a dim, e.g. `wf.Dim('features', 8)`"
    assert error_of(lambda: nn.Weight([D], stddev=-1.0)).fix == "give a number from 0 on"
    assert "stddev` of a weight [features=6] is 'big'" in error_of(lambda: nn.Weight([D], "big")).fact
    assert "give a function alone" in error_of(lambda: nn.Weight([D], 0.1, init=limits)).fix
    assert "give a function alone" in error_of(lambda: nn.Weight([D], init="uniform")).fix
    wrong = nn.Weight([D, H], init=lambda key, dims, like: wf.random.uniform(key, dims[:1]))
    assert "of a weight [features=6 hidden=8] gave f32[features]" in error_of(lambda: nn.init([wrong], KEY)).fact
    assert "before its weights have values" in error_of(lambda: nn.LSTM(D, H)(X), wf.TensorError).fact


def test_stacks_that_cannot_be_are_refused():
    layers = wf.Dim("layers", 2)
    assert "which is no dim" in error_of(lambda: nn.stack(nn.Linear(D, H), "layers"), wf.DimError).fact
    assert "which is no dim" in error_of(lambda: nn.Stacked(nn.Linear(D, H), 2), wf.DimError).fact
    assert "make it without a key" in error_of(lambda: nn.stack(nn.Linear(D, H, key=KEY), layers)).fix
    twice = error_of(lambda: nn.stack(nn.Stacked(nn.Linear(D, D), layers), layers), wf.DimError)
    assert "cannot be stacked along `layers`, which it has already" in twice.fact


def test_layers_of_layers_that_cannot_be_are_refused():
    assert "`nn.MLP([features, hidden, classes])`" in error_of(lambda: nn.MLP([D]), wf.DimError).fix
    assert "there is no activation 'rellu'" in error_of(lambda: nn.MLP([D, H], activation="rellu")).fact
    assert "Sequential got" in error_of(lambda: nn.Sequential([nn.Linear(D, H), 3]), wf.TensorError).fact
    assert "`rate` is 1.5" in error_of(lambda: nn.Dropout(1.5)).fact
    assert "`patch` is {'height': 0}" in error_of(lambda: nn.Patches(D, H, {"height": 0}), wf.DimError).fact
    assert "`hidden` is 8" in error_of(lambda: nn.GRU(D, 8), wf.DimError).fact
    assert weights.count(nn.GRU(D, H)) == 3 * (6 * 8 + 8 * 8 + 2 * 8)
