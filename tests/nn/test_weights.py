"""First values of weights: the same under every layout, each processor making its own slices alone."""

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft import nn
from weft.nn import weights

from .cases import D, E, F, H, K, V, X

KEY = jax.random.key(11)


def blueprint():
    return [
        nn.FeedForward(D, F, gated=True, bias=True),
        nn.Linear(E, [H, K]),
        nn.Embedding(V, D),
    ]


LAYERS = wf.Dim("layers", 4)


def tensors(tree):
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, wf.Tensor))


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        pytest.param("x=8", "d_model:x", marks=pytest.mark.slow),
        pytest.param("a=2,b=4", "d_ff:b,heads:b,vocab:b,params.d_model:a", marks=pytest.mark.slow),
        ("a=2,b=2,c=2", "d_kv:c,vocab:a+c,params.d_ff:b+a,params.experts:b"),
        pytest.param("x=8", "", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("stacked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_values_do_not_depend_on_the_layout_and_each_processor_holds_its_slice(mesh, layout, stacked):
    plan = weights.stack(blueprint(), LAYERS) if stacked else blueprint()
    whole, split = nn.init(plan, KEY), nn.init(plan, KEY, mesh, layout)
    ways = {axis: int(size) for axis, size in (part.split("=") for part in mesh.split(","))}
    rules = dict(rule.split(":") for rule in layout.split(",") if rule)
    for want, got in zip(tensors(whole), tensors(split), strict=True):
        np.testing.assert_array_equal(got.array, want.array)
        assert got.dims == want.dims
        shape = []
        for dim in got.dims:
            axes = {*rules.get(dim.name, "").split("+"), *rules.get(f"params.{dim.name}", "").split("+")} - {""}
            shape.append(dim.size // int(np.prod([ways[axis] for axis in axes])))
        for shard in got.array.addressable_shards:
            assert shard.data.shape == tuple(shape), (got.dims, shard.data.shape)
            np.testing.assert_array_equal(shard.data, np.asarray(want.array)[shard.index])


def test_stacked_weights_are_those_of_the_layers_one_by_one():
    plan = nn.FeedForward(D, F, bias=True)
    stack = nn.init(weights.stack(plan, LAYERS), KEY)
    again = nn.init(weights.stack(plan, LAYERS.resized(2)), KEY)
    assert len({np.asarray(stack.w_in.array)[i].tobytes() for i in range(4)}) == 4
    np.testing.assert_array_equal(again.w_in.array, np.asarray(stack.w_in.array)[:2])
    for name in ("w_in", "w_out"):
        own = weights.key_for(KEY, name)
        for i in range(LAYERS.size):
            one = weights.init_whole(getattr(plan, name), jax.random.fold_in(own, i))
            np.testing.assert_array_equal(getattr(stack, name).array[i], one.array)


def test_modules_in_a_list_have_values_of_their_own():
    one, other = nn.init([nn.Linear(D, F), nn.Linear(D, F)], KEY)
    assert np.any(np.asarray(one.weight.array) != np.asarray(other.weight.array))


def test_a_layer_made_with_a_key_is_the_one_init_makes():
    for layer, made in (
        (nn.FeedForward(D, F, gated=True), nn.FeedForward(D, F, gated=True, key=KEY)),
        (nn.Attention(D, H, K), nn.Attention(D, H, K, key=KEY)),
        (nn.RMSNorm(D), nn.RMSNorm(D, key=KEY)),
    ):
        for want, got in zip(tensors(nn.init(layer, KEY)), tensors(made), strict=True):
            np.testing.assert_array_equal(got.array, want.array)


def test_padding_does_not_change_the_valid_values():
    tables = [nn.init(nn.Embedding(wf.Dim("vocab", 61).padded_to(n), D), KEY).table for n in (1, 8, 128)]
    assert [table.array.shape[0] for table in tables] == [61, 64, 128]
    for table in tables:
        np.testing.assert_array_equal(np.asarray(table.array)[:61], tables[0].array)
    split = nn.init(nn.Embedding(wf.Dim("vocab", 61).padded_to(8), D), KEY, "x=8", "vocab:x").table
    np.testing.assert_array_equal(np.asarray(split.array)[:61], tables[0].array)


def test_shapes_are_those_of_the_values_and_hold_none():
    plan = weights.stack(blueprint(), LAYERS)
    for shape, made in zip(tensors(nn.shapes(plan)), tensors(nn.init(plan, KEY)), strict=True):
        assert isinstance(shape.array, jax.ShapeDtypeStruct)
        assert (shape.dims, shape.dtype) == (made.dims, made.dtype)
    assert weights.count(nn.Embedding(V, D)) == 61 * 16
    assert weights.count(weights.stack(nn.Linear(D, F, bias=True), LAYERS)) == 4 * (16 * 32 + 32)


def test_a_layer_of_shapes_is_traced_like_one_of_values():
    layer = nn.FeedForward(D, F)
    ledgers = [
        wf.trace(lambda m, x: m(x), given, X, mesh="x=8", layout="d_ff:x").ledger
        for given in (nn.shapes(layer), nn.init(layer, KEY))
    ]
    assert ledgers[0] == ledgers[1] and len(ledgers[0]) == 1


def test_init_inside_a_region_without_a_mesh_gives_the_whole_values():
    layer = nn.FeedForward(D, F)
    got = wf.spmd(lambda x: nn.init(layer, KEY)(x), mesh="x=8", layout="batch:x")(X)
    np.testing.assert_allclose(got.array, np.asarray(nn.init(layer, KEY)(X).array), rtol=0, atol=1e-5)


def test_init_refuses_what_it_cannot_do():
    layer = nn.FeedForward(D, F)
    assert "one of mesh and layout" in error_of(lambda: nn.init(layer, KEY, "x=8"), wf.RegionError).fact
    assert "one of mesh and layout" in error_of(lambda: nn.init(layer, KEY, layout="d_ff:x")).fact
    for key in (0, None, jax.random.PRNGKey(0), jax.random.split(KEY, 2)):
        assert "jax.random.key(seed)" in error_of(lambda key=key: nn.init(layer, key), wf.TensorError).fix
    assert "d_ff" in error_of(lambda: nn.init(layer, KEY, "x=8", "d_f:x"), wf.LayoutError).fix
    assert "multiple of 3" in error_of(lambda: nn.init(layer, KEY, "x=3", "d_ff:x"), wf.LayoutError).fix

    def inside(x):
        return nn.init(layer, KEY, "x=8", "d_ff:x")(x)

    run = wf.spmd(inside, mesh="x=8", layout="batch:x")
    assert "outside" in error_of(lambda: run(X), wf.RegionError).fix
