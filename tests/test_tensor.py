"""Tensors: what they are made of, how they print, and how they stand in trees."""

import copy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import on_rows

batch, d_ff = wf.dims(batch=8, d_ff=32)
array = np.arange(256, dtype="float32").reshape(8, 32)
x = wf.tensor(array, [batch, d_ff])


def seen_inside(look, *args, mesh="rows=4,cols=2", layout="batch:rows,d_ff:cols"):
    """What `look` sees of its arguments inside a region."""
    seen = []

    def net(*args):
        seen.append(look(*args))
        return args[0]

    wf.spmd(net, mesh=mesh, layout=layout)(*args)
    return seen[0]


@pytest.mark.parametrize(
    "made",
    [array, jnp.asarray(array), array.tolist(), jax.ShapeDtypeStruct((8, 32), "float32")],
    ids=["numpy", "jax", "lists", "abstract"],
)
@pytest.mark.parametrize(
    "dims", ["batch d_ff", "batch,d_ff", ["batch", "d_ff"], [batch, d_ff], [batch, "d_ff"]], ids=repr
)
def test_every_way_to_make_one(made, dims):
    for y in (wf.tensor(made, dims), wf.parameter(made, dims)):
        assert isinstance(y, wf.Tensor) and y.dims == (batch, d_ff) and y.dtype == np.dtype("float32")


def test_numbers_are_tensors_without_dims():
    assert wf.tensor(2.5, []).dims == () and float(wf.tensor(2.5, "")) == 2.5
    assert wf.tensor(3, []).dtype == jnp.asarray(3).dtype and wf.tensor(True, []).dtype == bool


def test_what_a_tensor_says_of_itself():
    assert x.dims == (batch, d_ff) and x.dtype == "float32" and x.layout == wf.Layout("")
    assert x.dim("batch") is batch and x.dim(batch) is batch and x.size("d_ff") == x.size(d_ff) == 32
    assert x.ways("batch") == 1
    np.testing.assert_array_equal(x.array, array)
    np.testing.assert_array_equal(x.local_array, array)


def test_what_a_tensor_says_of_itself_inside_a_region():
    def look(x):
        return x.dims, str(x.layout), x.size("batch"), x.ways("batch"), x.ways(d_ff), x.local_array.shape, repr(x)

    told = ((batch, d_ff), "batch:rows,d_ff:cols", 8, 4, 2, (2, 16), "f32[batch/rows d_ff/cols]")
    assert seen_inside(look, x) == told


@pytest.mark.parametrize(
    ("dtype", "shown"),
    [("float32", "f32"), ("bfloat16", "bf16"), ("float16", "f16"), ("int32", "i32"), ("uint8", "u8"), ("bool", "bool"),
     ("complex64", "c64"), ("int8", "i8"), ("float8_e4m3fn", "f8_e4m3fn")],
)  # fmt: skip
def test_repr_shows_dtype_dims_and_axes(dtype, shown):
    y = wf.tensor(jnp.zeros((8, 32), dtype), "batch d_ff")
    assert repr(y) == f"{shown}[batch d_ff]"
    assert seen_inside(repr, y) == f"{shown}[batch/rows d_ff/cols]"


@pytest.mark.parametrize(
    ("layout", "shown"),
    [
        ("batch:rows+cols", "f32[batch/rows+cols d_ff]"),
        ("d_ff:cols+rows", "f32[batch d_ff/cols+rows]"),
        ("batch:cols", "f32[batch/cols d_ff]"),
        ("", "f32[batch d_ff]"),
    ],
)
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_repr_shows_every_placement(layout, shown):
    assert seen_inside(repr, x, layout=layout) == shown


def test_repr_of_a_stored_parameter_shows_how_it_lies():
    w = wf.parameter(np.ones((16, 32), "float32"), "d d_ff")
    assert (
        seen_inside(lambda x, w: repr(w), x, w, layout="batch:rows,d_ff:cols,params.d:rows")
        == "param f32[d/rows d_ff/cols]"
    )


def test_repr_of_a_number_has_no_dims_and_its_value_where_that_is_known():
    assert repr(wf.tensor(1.5, [])) == str(wf.tensor(1.5, [])) == "f32[] 1.5"
    assert repr(wf.parameter(2.0, [])) == "param f32[] 2.0" and repr([wf.tensor(3, [])]) == "[i32[] 3]"
    assert repr(wf.tensor(jax.ShapeDtypeStruct((), "float32"), [])) == "f32[]"
    assert seen_inside(lambda x: repr(wf.sum(x, over=x.dims)), x) == "f32[]"
    seen = []
    jax.jit(lambda n: seen.append(repr(n)))(wf.tensor(1.5, []))
    assert seen == ["f32[]"]


def test_text_has_the_values_where_there_are_some():
    assert str(x).startswith("f32[batch d_ff]\n[[") and f"{x}" == str(x)
    assert seen_inside(str, x) == "f32[batch/rows d_ff/cols]"
    assert str(wf.tensor(jax.ShapeDtypeStruct((8,), "float32"), "batch")) == "f32[batch]"
    assert f"{wf.tensor(2.0, []):.3f}" == "2.000"


def test_a_number_converts_to_python():
    y = wf.tensor(np.float32(2), [])
    assert float(y) == 2.0 and int(y) == 2 and bool(y) is True
    np.testing.assert_array_equal(np.asarray(x), array)
    assert np.asarray(x, dtype="float64").dtype == "float64"


def test_tree_map_reaches_the_array_and_keeps_the_names():
    doubled = jax.tree.map(lambda a: a * 2, {"w": x})["w"]
    assert doubled.dims == x.dims
    np.testing.assert_array_equal(doubled.array, array * 2)
    assert jax.tree.leaves(x)[0] is x.array
    added = jax.tree.map(jnp.add, x, x)
    np.testing.assert_array_equal(added.array, array * 2)


def test_tree_paths_name_the_array():
    (path, _), *_ = jax.tree_util.tree_flatten_with_path({"w": x})[0]
    assert jax.tree_util.keystr(path) == "['w'].array"


def test_trees_of_other_dims_do_not_match():
    assert jax.tree.structure(x) == jax.tree.structure(wf.tensor(array * 2, [batch, d_ff]))
    others = [x.rename(batch="rows"), wf.parameter(array, [batch, d_ff]), wf.tensor(array.T, [d_ff, batch])]
    assert all(jax.tree.structure(x) != jax.tree.structure(y) for y in others)
    with pytest.raises(ValueError):
        jax.tree.map(jnp.add, x, others[0])


def test_the_tree_structure_differs_by_layout():
    structures = [
        jax.tree.structure(x),
        seen_inside(jax.tree.structure, x, layout="batch:rows,d_ff:cols"),
        seen_inside(jax.tree.structure, x, layout="batch:cols,d_ff:rows"),
    ]
    assert len(set(structures)) == 3
    assert all(a != b for i, a in enumerate(structures) for b in structures[:i])


def test_one_jit_compiles_anew_for_another_layout():
    traced = []
    step = jax.jit(lambda x: (traced.append(repr(x)), wf.sum(x, over="batch"))[1])
    for layout in ("batch:rows", "d_ff:rows", "batch:rows"):
        out = on_rows(lambda x: step(x), layout)(x)
        np.testing.assert_allclose(out.array, array.sum(0))
    assert {"f32[batch/rows d_ff]", "f32[batch d_ff/rows]"} == set(traced)


LEAVES = [
    object(), None, "text", 3, True, float("nan"), (), [1, 2], {"a": 1}, lambda: 0, np.ones((3, 3)),
    jax.ShapeDtypeStruct((2,), "float32"), jax.sharding.PartitionSpec("rows"),
]  # fmt: skip


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: type(leaf).__name__)
def test_anything_may_stand_in_a_tensors_place_and_print(leaf):
    leaves, structure = jax.tree.flatten(x)
    odd = jax.tree.unflatten(structure, [leaf])
    assert isinstance(odd, wf.Tensor) and odd.dims == x.dims
    assert isinstance(repr(odd), str) and isinstance(str(odd), str)
    assert jax.tree.leaves(odd, is_leaf=lambda node: node is leaf)[0] is leaf
    assert jax.tree.unflatten(structure, leaves).array is x.array


def test_trees_may_be_turned_inside_out():
    pairs = jax.tree.map(lambda a: (a, a + 1), {"w": x})
    first, second = jax.tree.transpose(jax.tree.structure({"w": x}), jax.tree.structure((0, 0)), pairs)
    np.testing.assert_array_equal(second["w"].array, first["w"].array + 1)


class Layer(eqx.Module):
    """A module that holds tensors, and something that is none."""

    w: wf.Tensor
    b: wf.Tensor
    counts: wf.Tensor
    act: object = eqx.field(static=True)

    def __call__(self, x):
        return self.act(wf.einsum(x, self.w, over="d_ff") + self.b)


def layer():
    w = wf.parameter(np.ones((32, 4), "float32") / 32, "d_ff d_out")
    return Layer(w, wf.parameter(np.ones(4, "float32"), "d_out"), wf.tensor(np.zeros(4, "int32"), "d_out"), wf.relu)


def test_a_module_of_tensors_is_filtered_and_parted():
    module = layer()
    trained, rest = eqx.partition(module, eqx.is_inexact_array)
    assert trained.counts.array is None and rest.w.array is None and repr(rest.w)
    whole = eqx.combine(trained, rest)
    assert jax.tree.structure(whole) == jax.tree.structure(module)
    np.testing.assert_array_equal(whole.w.array, module.w.array)
    kept = eqx.filter(module, eqx.is_array)
    assert kept.w.dims == module.w.dims
    assert eqx.tree_at(lambda m: m.b, module, module.b * 2).b.array[0] == 2
    assert "d_ff" in repr(module)


def test_a_module_of_tensors_runs_in_a_region_and_is_differentiated():
    module = layer()
    expected = module(x).array
    out = wf.spmd(lambda m, x: m(x), mesh="rows=4,cols=2", layout="batch:rows,d_ff:cols")(module, x)
    np.testing.assert_allclose(out.array, expected, rtol=1e-6)
    slopes = wf.grad(lambda m, x: wf.sum(m(x), over="batch d_out"))(module, x)
    assert isinstance(slopes, Layer) and slopes.counts is None
    np.testing.assert_allclose(slopes.b.array, np.full(4, 8))
    jitted = eqx.filter_jit(lambda m, x: m(x))(module, x)
    np.testing.assert_allclose(jitted.array, expected, rtol=1e-6)


def test_a_module_goes_in_and_comes_out_of_a_region():
    module = layer()
    same = wf.spmd(lambda m: m, mesh="rows=4", layout="d_ff:rows")(module)
    assert isinstance(same, Layer) and same.act is wf.relu
    assert jax.tree.structure(same) == jax.tree.structure(module)
    np.testing.assert_array_equal(same.w.array, module.w.array)


def test_plain_transformations_take_tensors_as_they_are():
    jitted = jax.jit(lambda x: wf.exp(x / 256))(x)
    assert jitted.dims == x.dims
    shapes = jax.eval_shape(lambda x: wf.sum(x, over="batch"), x)
    assert shapes.dims == (d_ff,) and repr(shapes) == "f32[d_ff]"
    slopes = jax.grad(lambda x: wf.sum(x * x, over="batch d_ff").array)(x)
    np.testing.assert_array_equal(slopes.array, array * 2)
    kept = jax.grad(lambda x: jax.checkpoint(lambda x: wf.sum(x * x, over="batch d_ff"))(x).array)(x)
    np.testing.assert_array_equal(kept.array, array * 2)


def test_a_tensor_is_not_hashed_and_compares_elementwise():
    assert (x == x).dtype == bool and (x == x).dims == x.dims and bool(wf.all(x == x, over="batch d_ff"))
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


def test_a_tensor_can_be_copied_and_pickled():
    import pickle

    for same in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert same.dims == x.dims
        np.testing.assert_array_equal(same.array, array)


def test_operators_leave_numbers_and_arrays_of_one_number_alone():
    for two in (2, 2.0, np.float32(2), jnp.float32(2), np.array(2, "float32"), wf.tensor(np.float32(2), [])):
        np.testing.assert_array_equal((x * two).array, array * 2)
        np.testing.assert_array_equal((two * x).array, array * 2)
        np.testing.assert_array_equal((two - x).array, 2 - array)
        np.testing.assert_array_equal((two > x).array, array < 2)


def test_completion_shows_what_a_user_calls_and_nothing_of_the_inside():
    shown = [name for name in dir(wf.tensor([1.0], "a")) if not name.startswith("__")]
    assert sorted(shown) == ["array", "dim", "dims", "dtype", "layout", "local_array", "rename", "size", "ways"]


def test_numbers_of_numpy_are_shown_in_the_dtype_that_operations_make_of_them():
    x = wf.tensor(np.ones((2, 3)), "a b")
    assert (repr(x), x.dtype, (x * 2).dtype) == ("f32[a b]", np.float32, np.float32)
    assert wf.parameter(np.ones(2, "int64"), "a").dtype == np.int32
