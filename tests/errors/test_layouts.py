"""Layouts and meshes that do not fit, and that each fix does what it says."""

import warnings

import jax
import numpy as np
import optax
import pytest

import weft as wf

from .raised import error_of, is_inside, on_rows

x = wf.tensor(np.arange(128, dtype="float32").reshape(8, 16), "batch d")
w = wf.parameter(np.ones((16, 6), "float32"), "d f")
MESH = "rows=4,cols=2"


def double(x):
    return x * 2


def runs(layout, mesh=MESH, argument=x):
    """Doubling under this layout gives the double, with no error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)
        out = wf.spmd(double, mesh=mesh, layout=layout)(argument)
    np.testing.assert_array_equal(out.array, np.asarray(argument.array) * 2)


def test_unknown_dim_in_a_rule():
    error = error_of(lambda: on_rows(double, "bacth:rows")(x), wf.LayoutError)
    assert error.fact == "rule `bacth:rows` matches nothing: no tensor of this program has that dim"
    assert "did you mean `batch`?" in error.fix and "layout.drop('bacth')" in error.fix
    assert is_inside(error, "bacth:rows")


def test_unknown_dim_in_a_rule_fix():
    runs("batch:rows", "rows=4")
    runs(wf.Layout("bacth:rows").drop("bacth"))


def test_unknown_dim_in_a_rule_is_seen_before_anything_runs():
    abstract = wf.tensor(jax.ShapeDtypeStruct((8, 16), "float32"), "batch d")
    act = lambda: wf.trace(double, abstract, mesh="rows=4", layout="bacth:rows")  # noqa: E731
    assert "`bacth:rows` matches nothing" in error_of(act, wf.LayoutError).fact


def test_a_rule_for_a_dim_made_inside_the_region_is_known():
    out = on_rows(lambda x: wf.einsum(x, wf.ones([x.dim("d"), wf.Dim("f", 4)]), over="d"), "f:rows")(x)
    np.testing.assert_allclose(out.array, np.repeat(x.array.sum(1, keepdims=True), 4, 1))


def test_unknown_dim_of_a_model():
    names = ["batch", wf.Dim("d_ff", 8)]
    error = error_of(lambda: wf.Layout("batch:rows,dff:cols", dims=names), wf.LayoutError)
    assert error.fact == "rule `dff:cols` matches nothing: no dim of the model has that name"
    assert "layout: batch:rows,dff:cols" in error.state and "did you mean `d_ff`?" in error.fix
    assert wf.Layout("batch:rows,d_ff:cols", dims=names).rules == {"batch": ("rows",), "d_ff": ("cols",)}
    assert wf.Layout("batch:rows,d_ff:cols", dims="batch d_ff") == wf.Layout("batch:rows,d_ff:cols")


@pytest.mark.parametrize("store", ["params", "optimizer"])
def test_unknown_dim_in_a_storage_rule(store):
    region = on_rows(lambda x, w: wf.einsum(x, w, over="d"), f"{store}.dd:rows")
    error = error_of(lambda: region(x, w), wf.LayoutError)
    assert f"rule `{store}.dd:rows` matches nothing" in error.fact
    assert "did you mean `d`?" in error.fix and f"layout.drop('{store}.dd')" in error.fix
    fixed = on_rows(lambda x, w: wf.einsum(x, w, over="d"), f"{store}.d:rows")(x, w)
    np.testing.assert_allclose(fixed.array, x.array @ w.array)


def test_a_params_rule_with_no_parameter():
    error = error_of(lambda: on_rows(double, "batch:rows,params.d:rows")(x), wf.LayoutError)
    assert "rule `params.d:rows` matches nothing" in error.fact and "wf.parameter" in error.fact
    assert "layout.drop('params.d')" in error.fix
    runs(wf.Layout("batch:rows,params.d:rows").drop("params.d"), "rows=4")
    runs("params.d:rows", "rows=4", wf.parameter(x.array, "batch d"))


@pytest.mark.parametrize("store", ["params", "optimizer"])
def test_a_storage_rule_whose_axis_another_dim_has_everywhere(store):
    weights = wf.parameter(np.ones((16, 8), "float32"), "d g")
    step = wf.train_step(lambda weights, batch, key: wf.mean(wf.square(weights), over="d g"), optax.adam(0.1))
    trace = lambda layout: wf.trace(step, step.init(weights), None, None, mesh="rows=4", layout=layout)  # noqa: E731
    with pytest.warns(wf.WeftWarning) as said:
        trace(f"g:rows,{store}.d:rows")
    (error,) = {warning.message.error.fact: warning.message.error for warning in said}.values()
    assert said[0].filename == __file__
    assert error.fact == f"rule `{store}.d:rows` stores nothing: whatever has `d` is split over `rows` by its dim `g`"
    assert f"layout.drop('{store}.d')" in error.fix
    with warnings.catch_warnings():
        warnings.simplefilter("error", wf.WeftWarning)
        for right in ("g:rows", f"g:rows,{store}.g:rows", f"{store}.d:rows"):
            trace(right)


def test_a_storage_rule_that_one_tensor_follows_is_kept():
    scale = wf.parameter(np.ones(16, "float32"), "d")
    wide = wf.parameter(np.ones((16, 8), "float32"), "d g")
    out = on_rows(lambda x, w, scale: wf.einsum(x * scale, w, over="d"), "g:rows,params.d:rows")(x, wide, scale)
    np.testing.assert_allclose(out.array, x.array @ wide.array)


def test_axis_not_in_the_mesh():
    error = error_of(lambda: wf.spmd(double, mesh=MESH, layout="batch:rwos"), wf.LayoutError)
    assert error.fact == "a rule names axis `rwos`, which the mesh does not have"
    assert is_inside(error, "batch:rwos", MESH) and error.fix == "did you mean `rows`?"


@pytest.mark.parametrize(
    "act",
    [
        lambda: wf.put(x, mesh=MESH, layout="batch:rwos"),
        lambda: wf.trace(double, x, mesh=MESH, layout="batch:rwos"),
        lambda: wf.spmd(double, mesh=MESH, layout="batch:rows,params.d:rwos"),
        lambda: wf.spmd(double, mesh=MESH, layout="batch:rows+rwos"),
    ],
)
def test_axis_not_in_the_mesh_is_seen_everywhere(act):
    assert "axis `rwos`" in error_of(act, wf.LayoutError).fact


def test_axis_not_in_the_mesh_fix():
    runs("batch:rows")


@pytest.mark.parametrize(
    ("size", "layout", "over", "nearest", "sizes"),
    [
        (6, "batch:rows", "axis `rows` (size 4)", "nearest: 4, 8", [4, 8]),
        (3, "batch:rows", "axis `rows` (size 4)", "nearest: 4", [4]),
        (12, "batch:rows+cols", "axes `rows+cols` (size 8)", "nearest: 8, 16", [8, 16]),
    ],
)
def test_size_that_does_not_divide(size, layout, over, nearest, sizes):
    y = wf.tensor(np.ones((size, 16), "float32"), "batch d")
    region = wf.spmd(double, mesh=MESH if "cols" in layout else "rows=4", layout=layout)
    error = error_of(lambda: region(y), wf.LayoutError)
    assert error.fact == f"dim `batch` (size {size}) does not divide over mesh {over}"
    assert f"({nearest})" in error.fix and f"drop `{layout}`" in error.fix
    assert is_inside(error, layout, MESH if "cols" in layout else "rows=4")
    for fixed in sizes:
        runs(layout, argument=wf.tensor(np.ones((fixed, 16), "float32"), "batch d"))
    runs(wf.Layout(layout).drop("batch"), argument=y)


def test_size_that_does_not_divide_of_a_tensor_made_inside():
    act = lambda: on_rows(lambda x: wf.zeros([wf.Dim("k", 6)], like=x), "k:rows")(x)  # noqa: E731
    error = error_of(act, wf.LayoutError)
    assert "dim `k` (size 6)" in error.fact and is_inside(error, "k:rows")
    assert on_rows(lambda x: wf.zeros([wf.Dim("k", 8)], like=x), "k:rows")(x).dims.sizes == (8,)


def test_size_that_does_not_divide_as_a_parameter_is_stored():
    region = wf.spmd(lambda x, w: wf.einsum(x, w, over="d"), mesh="rows=4", layout="batch:rows,params.f:rows")
    error = error_of(lambda: region(x, w), wf.LayoutError)
    assert "dim `f` (size 6)" in error.fact and "drop `params.f:rows`" in error.fix
    region = wf.spmd(lambda x, w: wf.einsum(x, w, over="d"), mesh="rows=4", layout="batch:rows")
    np.testing.assert_allclose(region(x, w).array, x.array @ w.array)


def test_two_dims_of_a_tensor_on_one_axis():
    layout = "batch:rows,d:rows"
    error = error_of(lambda: on_rows(double, layout)(x), wf.LayoutError)
    assert error.fact == "dims `batch` and `d` of [batch=8 d=16] are both split over axis `rows`"
    assert is_inside(error, layout)
    assert "layout.drop('d')" in error.fix and "x.rename(d='d_whole')" in error.fix and "another axis" in error.fix


def test_two_dims_of_a_tensor_on_one_axis_fix():
    runs(wf.Layout("batch:rows,d:rows").drop("d"), "rows=4")
    runs("batch:rows,d:cols")
    y = wf.tensor(np.ones((16, 3), "float32"), "d k")
    region = on_rows(lambda x, y: (wf.sum(x, over="batch"), y * 2), "batch:rows,d:rows")
    out, _ = region(x.rename(d="d_whole"), y)
    np.testing.assert_allclose(out.array, x.array.sum(0))


def test_two_dims_on_one_axis_that_meet_in_an_op():
    a, b = wf.tensor(np.ones(8, "float32"), "batch"), wf.tensor(np.ones(16, "float32"), "d")
    layout = "batch:rows,d:rows"
    error = error_of(lambda: on_rows(lambda a, b: a * b, layout)(a, b), wf.LayoutError)
    assert "`batch` and `d` of [batch=8 d=16]" in error.fact and is_inside(error, layout)
    fixed = on_rows(lambda a, b: (a * b.rename(d="d_whole"), b), layout)(a, b)[0]
    np.testing.assert_array_equal(fixed.array, np.ones((8, 16)))


def test_unused_axis_is_a_warning():
    with pytest.warns(wf.WeftWarning) as caught:
        region = wf.spmd(double, mesh=MESH, layout="batch:rows")
    text = str(caught[0].message)
    assert "no rule of the layout uses mesh axis `cols`: each piece of work is done 2 times" in text
    assert "layout: batch:rows   mesh: rows=4,cols=2" in text and "test_layouts.py" in text
    assert text.splitlines()[-1].strip().startswith("fix: ")
    np.testing.assert_array_equal(region(x).array, x.array * 2)


def test_unused_axis_is_an_error_when_strict():
    act = lambda: wf.spmd(double, mesh=MESH, layout="batch:rows", strict=True)  # noqa: E731
    error = error_of(act, wf.LayoutError)
    assert "mesh axis `cols`" in error.fact and is_inside(error, "batch:rows", MESH)
    assert "leave `cols` out of the mesh" in error.fix
    error = error_of(lambda: wf.spmd(double, mesh="a=2,b=2,c=2", layout="", strict=True), wf.LayoutError)
    assert "`a`, `b`, `c`" in error.fact and "8 times" in error.fact


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [("rows=4", "batch:rows"), (MESH, "batch:rows,d:cols"), (MESH, "batch:rows+cols"), ("rows=4,one=1", "batch:rows")],
)
def test_unused_axis_fix(mesh, layout):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        region = wf.spmd(double, mesh=mesh, layout=layout, strict=True)
    np.testing.assert_array_equal(region(x).array, x.array * 2)


def test_the_rule_an_unused_axis_is_given_for_example_can_be_written():
    error = error_of(lambda: wf.spmd(double, mesh=MESH, layout="batch:rows", strict=True), wf.LayoutError)
    rule = error.fix.split("e.g. `")[1].split("`")[0]
    dim = rule.split(":")[0]
    kept = wf.Layout("batch:rows")
    kept = kept.drop(dim) if dim in kept.rules else kept
    assert "rows" in wf.Layout(f"{kept},{rule}").axes  # following it leaves no other axis unused


@pytest.mark.parametrize(
    "text",
    [
        "batch", "batch:", ":rows", "batch:rows:cols", "batch:rows+", "batch:+rows", "batch=rows", "batch:1",
        "ba-tch:rows", "batch:ro-ws", "foo.batch:rows", "params.:rows", "params.params.d:rows", ".d:rows",
        "batch->rows",
    ],
)  # fmt: skip
def test_malformed_layouts(text):
    error = error_of(lambda: wf.Layout(text), wf.LayoutError)
    assert "rule" in error.fact and "dim" in error.fix
    error_of(lambda: wf.spmd(double, mesh=MESH, layout=text), wf.LayoutError)


def test_malformed_layout_fix():
    error = error_of(lambda: wf.Layout("batch rows"), wf.LayoutError)
    assert "`batch` in layout 'batch rows' is not a rule" in error.fact
    assert "`dim:axis`, `dim:axis+axis` or `params.dim:axis`" in error.fix
    for text in ("d:rows", "d:rows+cols", "params.d:rows"):
        assert str(wf.Layout(text)) == text


def test_two_rules_for_one_dim():
    error = error_of(lambda: wf.Layout("batch:rows,batch:cols"), wf.LayoutError)
    assert "two rules for `batch`" in error.fact and "`batch:rows+cols`" in error.fix
    runs("batch:rows+cols")


def test_an_axis_twice_in_a_rule():
    error = error_of(lambda: wf.Layout("batch:rows+rows"), wf.LayoutError)
    assert error.fact == "rule `batch:rows+rows` names an axis twice" and "once" in error.fix
    runs("batch:rows")


@pytest.mark.parametrize("rules", [3, 4.5, ["batch:rows"], {"batch": 3}, {3: "rows"}, {"batch": None}, {"batch": []}])
def test_layouts_of_the_wrong_type(rules):
    error_of(lambda: wf.Layout(rules), wf.LayoutError)
    error_of(lambda: wf.spmd(double, mesh=MESH, layout=rules), wf.LayoutError)


def test_a_rule_to_drop_that_is_not_there():
    error = error_of(lambda: wf.Layout("batch:rows").drop("bacth"), wf.LayoutError)
    assert "'batch:rows' has no rule for `bacth`" in error.fact and error.fix == "did you mean `batch`?"
    assert wf.Layout("batch:rows").drop("batch") == wf.Layout("")
    error_of(lambda: wf.Layout("batch:rows").drop(3), wf.WeftError)


@pytest.mark.parametrize("dims", [3, [3], 4.5, object()])
def test_model_dims_of_the_wrong_type(dims):
    error_of(lambda: wf.Layout("batch:rows", dims=dims), wf.WeftError)


@pytest.mark.parametrize("text", ["", " ", ",", {}, None])
def test_an_empty_mesh(text):
    error = error_of(lambda: wf.Mesh(text), wf.MeshError)
    assert error.fact == "a mesh with no axes has no processors" and "`Mesh('all=1')`" in error.fix
    assert wf.Mesh("all=1").size == 1
    runs("batch:all", "all=1")


@pytest.mark.parametrize(
    "text", ["rows", "rows=", "=4", "rows=4=2", "rows=four", "4", "rows=4.0", "rows==4", "rows=4,cols", "rows=-1"]
)
def test_malformed_meshes(text):
    error = error_of(lambda: wf.Mesh(text), wf.MeshError)
    assert "is not `axis=size`" in error.fact and repr(text) in error.fact
    assert "`rows=4,cols=2` or `rows:4;cols:2`" in error.fix
    assert wf.Mesh("rows=4,cols=2") == wf.Mesh("rows:4;cols:2")


def test_an_axis_twice_in_a_mesh():
    error = error_of(lambda: wf.Mesh("rows=4,rows=2"), wf.MeshError)
    assert error.fact == "mesh 'rows=4,rows=2' names axis `rows` twice" and "`rows_2`" in error.fix
    assert wf.Mesh("rows=4,rows_2=2").size == 8
    error_of(lambda: wf.Mesh("rows=4", rows=2), wf.MeshError)


@pytest.mark.parametrize("axes", [{"rows": 0}, {"rows": "4"}, {"rows": True}, {"rows": None}, {"rows": 2.0}, "rows=0"])
def test_malformed_axis_sizes(axes):
    error = error_of(lambda: wf.Mesh(axes), wf.MeshError)
    assert "axis `rows` has size" in error.fact and "`rows=4`" in error.fix


@pytest.mark.parametrize("axes", ["ro-ws=4", "1rows=4", {3: 4}, {"": 4}])
def test_malformed_axis_names(axes):
    assert "axis cannot be named" in error_of(lambda: wf.Mesh(axes), wf.MeshError).fact


@pytest.mark.parametrize("mesh", [3, 4.5, ["rows"], ("rows", 4), object()])
def test_meshes_of_the_wrong_type(mesh):
    error = error_of(lambda: wf.Mesh(mesh), wf.MeshError)
    assert "a mesh cannot be made of" in error.fact and "`Mesh('rows=4,cols=2')` or `Mesh(rows=4, cols=2)`" in error.fix
    error_of(lambda: wf.spmd(double, mesh=mesh, layout=""), wf.MeshError)
    assert wf.Mesh("rows=4,cols=2") == wf.Mesh(rows=4, cols=2)


def test_no_mesh_at_all():
    error_of(lambda: wf.spmd(double, mesh=None, layout=""), wf.MeshError)
    error = error_of(lambda: wf.trace(double, x), wf.RegionError)
    assert "no mesh" in error.fact and "mesh=" in error.fix
    assert wf.trace(double, x, mesh="rows=4", layout="batch:rows").jaxpr
