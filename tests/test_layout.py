"""Layouts: every way to write one, and what it makes of a tensor on a mesh."""

import numpy as np
import pytest

import weft as wf
from weft.layout import Region, as_layout, spec

batch, length, d, d_ff = wf.dims(batch=8, length=8, d=16, d_ff=32)
stream = wf.Dim("stream", 8, follows="length")
MESH = wf.Mesh("rows=4,cols=2")


def placed(layout, dims, store=None, mesh=MESH):
    """For each dim the axes it is split over, written as in a layout."""
    return ["+".join(axes) for axes in Region(mesh, wf.Layout(layout)).placement(dims, store)]


SPELLINGS = [
    "batch:rows,d_ff:cols", "batch:rows, d_ff:cols", "batch:rows;d_ff:cols", "batch:rows d_ff:cols",
    " batch : rows , d_ff : cols ", "batch:rows,d_ff:cols,", "d_ff:cols,batch:rows",
    {"batch": "rows", "d_ff": "cols"}, {"batch": ["rows"], "d_ff": ("cols",)}, wf.Layout("batch:rows,d_ff:cols"),
]  # fmt: skip


@pytest.mark.parametrize("written", SPELLINGS, ids=repr)
def test_every_spelling(written):
    layout = wf.Layout(written)
    assert layout.rules == {"batch": ("rows",), "d_ff": ("cols",)}
    assert layout == wf.Layout("batch:rows,d_ff:cols") == as_layout(written)
    assert hash(layout) == hash(wf.Layout("batch:rows,d_ff:cols"))


@pytest.mark.parametrize("written", ["batch:rows+cols", "batch: rows + cols", {"batch": ["rows", "cols"]}], ids=repr)
def test_a_dim_over_two_axes(written):
    assert wf.Layout(written).rules == {"batch": ("rows", "cols")}


def test_the_order_of_axes_matters_and_that_of_rules_does_not():
    assert wf.Layout("batch:rows+cols") != wf.Layout("batch:cols+rows")
    assert wf.Layout("a:x,b:y") == wf.Layout("b:y,a:x")


@pytest.mark.parametrize("written", ["", " ", {}, None, wf.Layout("")], ids=repr)
def test_the_empty_layout(written):
    layout = as_layout(written)
    assert layout == wf.Layout("") == wf.Layout() and str(layout) == "" and not layout.axes
    assert placed(layout, [batch, d]) == ["", ""]


def test_storage_rules_are_kept_apart():
    layout = wf.Layout("batch:x, params.d_model:x, optimizer.d_ff:y+z")
    assert layout.rules == {"batch": ("x",)}
    assert layout.params == {"d_model": ("x",)} and layout.optimizer == {"d_ff": ("y", "z")}
    assert layout.axes == {"x", "y", "z"}
    assert layout != wf.Layout("batch:x,d_model:x,optimizer.d_ff:y+z")
    assert wf.Layout({"params.d_model": "x"}) == wf.Layout("params.d_model:x")


@pytest.mark.parametrize("text", ["batch:rows,d_ff:cols", "batch:rows+cols", "a:x,params.b:x+y,optimizer.c:y", ""])
def test_text_and_repr_can_be_read_again(text):
    layout = wf.Layout(text)
    assert str(layout) == text and wf.Layout(str(layout)) == layout and repr(layout) == f"Layout({text!r})"


def test_drop_leaves_the_rules_of_the_others():
    layout = wf.Layout("batch:x,d:y,params.d:x,optimizer.d:z")
    assert layout.drop("batch") == wf.Layout("d:y,params.d:x,optimizer.d:z")
    assert layout.drop("params.d") == wf.Layout("batch:x,d:y,optimizer.d:z")
    assert layout.drop("d", "optimizer.d") == layout.drop("d optimizer.d") == wf.Layout("batch:x,params.d:x")
    assert layout.drop(wf.Dim("batch", 8)) == layout.drop("batch")
    assert str(layout) == "batch:x,d:y,params.d:x,optimizer.d:z"  # a layout is never changed
    assert layout.drop() == layout


@pytest.mark.parametrize(
    "dims", [["batch", "d_ff"], [batch, d_ff], "batch d_ff", (batch, "d_ff", d), {"batch", "d_ff"}]
)
def test_rules_can_be_checked_against_the_dims_of_a_model(dims):
    assert wf.Layout("batch:rows,params.d_ff:cols", dims=dims) == wf.Layout("batch:rows,params.d_ff:cols")


def test_a_rule_of_a_dim_that_others_follow_is_known():
    assert wf.Layout("length:rows", dims=[length, stream]).rules == {"length": ("rows",)}


def test_placement_follows_the_rules():
    assert placed("batch:rows,d_ff:cols", [batch, d, d_ff]) == ["rows", "", "cols"]
    assert placed("batch:rows+cols", [d, batch]) == ["", "rows+cols"]


def test_axes_of_size_one_split_nothing():
    assert placed("batch:one,d:rows", [batch, d], mesh=wf.Mesh("rows=4,one=1")) == ["", "rows"]
    assert placed("batch:rows+one", [batch], mesh=wf.Mesh("rows=4,one=1")) == ["rows"]


def test_local_sizes_and_partition_specs():
    region = Region(MESH, wf.Layout("batch:rows+cols,d:rows"))
    assert region.local_sizes([batch, d_ff], region.placement([batch, d_ff])) == (1, 32)
    assert region.local_sizes([d], region.placement([d])) == (4,)
    assert tuple(spec(region.placement([batch, d_ff]))) == (("rows", "cols"), None)
    assert tuple(spec(region.placement([d]))) == ("rows",)


def test_a_dim_takes_the_rule_of_the_dim_it_follows():
    assert placed("length:rows", [stream, d]) == ["rows", ""]
    assert placed("length:rows+cols", [stream]) == ["rows+cols"]


def test_a_rule_of_its_own_comes_before_the_one_it_follows():
    assert placed("length:rows,stream:cols", [stream, d]) == ["cols", ""]
    assert placed("length:rows,stream:cols", [length, stream]) == ["rows", "cols"]


def test_following_goes_one_step():
    far = wf.Dim("far", 8, follows="stream")
    assert placed("stream:rows", [far]) == ["rows"]


def test_an_inherited_axis_is_given_up_to_an_explicit_rule():
    assert placed("length:rows,d:rows", [stream, d]) == ["", "rows"]
    assert placed("length:rows,d:rows", [d, stream]) == ["rows", ""]
    assert placed("length:rows+cols,d:rows", [stream, d]) == ["cols", "rows"]


def test_experts_take_the_axis_that_batch_lends():
    expert_batch, experts = wf.Dim("expert_batch", 8, follows="batch"), wf.Dim("experts", 8)
    assert placed("batch:rows", [expert_batch, experts, d]) == ["rows", "", ""]
    assert placed("batch:rows,experts:rows", [expert_batch, experts, d]) == ["", "rows", ""]


def test_a_dim_and_one_that_follows_it_in_one_tensor():
    # The followed dim holds the axis by its own rule; the other gives it up.
    assert placed("length:rows", [length, stream]) == ["rows", ""]


def test_an_inherited_axis_given_up_changes_no_value():
    x = wf.tensor(np.arange(128.0, dtype="float32").reshape(8, 16), [stream, d])
    y = wf.tensor(np.arange(8.0, dtype="float32"), [length])

    def net(x, y):
        rows = wf.sum(x, over="d")
        return x * 2, rows, wf.einsum(rows.rename(stream=length), y, over="length"), y

    expected = net(x, y)
    found = wf.spmd(net, mesh="rows=4", layout="length:rows,d:rows")(x, y)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.array, b.array, rtol=1e-6)


def test_parameters_are_stored_by_the_rules_of_params():
    assert placed("batch:rows,params.d:rows", [d, d_ff]) == ["", ""]
    assert placed("batch:rows,params.d:rows", [d, d_ff], "params") == ["rows", ""]
    assert placed("d_ff:cols,params.d_ff:rows", [d, d_ff], "params") == ["", "cols+rows"]
    assert placed("d:rows,params.d:rows+cols", [d], "params") == ["rows+cols"]


def test_a_storage_axis_that_an_ordinary_rule_holds_is_given_up():
    assert placed("d_ff:rows,params.d:rows+cols", [d, d_ff], "params") == ["cols", "rows"]


def test_optimizer_state_is_stored_finer_than_its_parameters():
    layout = "d_ff:cols,optimizer.d:rows"
    assert placed(layout, [d, d_ff], "params") == ["", "cols"]
    assert placed(layout, [d, d_ff], "optimizer") == ["rows", "cols"]
    assert placed("params.d:rows", [d, d_ff], "optimizer") == ["rows", ""]  # by default, as the parameters


def test_a_stored_parameter_lies_as_the_rules_say():
    w = wf.parameter(np.ones((16, 32), "float32"), [d, d_ff])
    lies = wf.put(w, mesh=MESH, layout="d_ff:cols,params.d:rows")
    assert tuple(lies.array.sharding.spec) == ("rows", "cols")
    plain = wf.put(wf.tensor(np.ones((16, 32), "float32"), [d, d_ff]), mesh=MESH, layout="d_ff:cols,params.d:rows")
    assert tuple(plain.array.sharding.spec) == (None, "cols")


def test_stored_optimizer_state_lies_as_the_rules_say():
    import optax

    params = {"w": wf.parameter(np.ones((16, 32), "float32"), [d, d_ff])}
    loss = lambda params, x, key: wf.mean(wf.einsum(x, params["w"], over="d"), over="batch d_ff")  # noqa: E731
    step = wf.train_step(loss, optax.adam(1e-3), mesh=MESH, layout="batch:rows,d_ff:cols,optimizer.d:rows")
    state = step.init(params)
    assert tuple(state.params["w"].array.sharding.spec) == (None, "cols")
    assert tuple(state.optimizer[0].mu["w"].sharding.spec) == ("rows", "cols")


def test_storage_rules_may_end_on_the_host():
    layout = wf.Layout("batch:x, params.d_model:y+host, params.d_ff:x, optimizer.*:host")
    assert layout.params == {"d_model": ("y",), "d_ff": ("x",)} and layout.optimizer == {}
    assert layout.host == {"params": ("d_model",), "optimizer": ("*",)} and layout.axes == {"x", "y"}
    assert str(layout) == "batch:x,params.d_model:y+host,params.d_ff:x,optimizer.*:host"
    assert layout == wf.Layout(str(layout)) == wf.Layout({rule: list(axes) for rule, axes in layout.written.items()})
    assert layout != wf.Layout("batch:x,params.d_model:y,params.d_ff:x,optimizer.*:host") and hash(layout)
    assert layout.drop("optimizer.*").host["optimizer"] == ()


def test_where_what_is_stored_lies_follows_from_its_dims():
    d_model, d_ff = wf.Dim("d_model", 4), wf.Dim("d_ff", 8)
    region = Region(wf.Mesh("x=2"), wf.Layout("params.d_ff:x+host"))
    assert region.is_on_host([d_model, d_ff], "params") and region.is_on_host([d_ff], "optimizer")
    assert not region.is_on_host([d_model], "params") and not region.is_on_host([d_ff], None)
    for_all = Region(wf.Mesh("x=2"), wf.Layout("optimizer.*:host"))
    assert for_all.is_on_host([d_model], "optimizer") and not for_all.is_on_host([d_model], "params")
    assert not for_all.is_on_host([], "optimizer")  # a number


@pytest.mark.parametrize(
    "rule, said",
    [
        ("batch:host", r"`batch:host` puts `batch` on the host.*fix: store parameters there \(`params.batch:host`"),
        ("params.*:x", r"`params.\*:x` splits `\*`.*fix: name the dim that is split \(`params.d_model:x`\)"),
        ("*:x", r"`\*:x` splits `\*`, all dims"),
        ("params.d:host+x", r"goes on after `host`.*fix: end on it: `params.d:x\+host`"),
        ("params.*:host+x", r"goes on after `host`.*fix: end on it: `params.\*:host`"),
        ("params.d:x,params.d:host", r"two rules.*write one, e.g. `params.d:x\+host`"),
    ],
)
def test_rules_that_cannot_end_on_the_host_say_what_can(rule, said):
    with pytest.raises(wf.LayoutError, match=f"(?s){said}"):
        wf.Layout(rule)


def test_no_axis_is_named_host():
    with pytest.raises(wf.MeshError, match=r"(?s)named `host`, which is the memory of the host.*fix:.*`hosts=2`"):
        wf.Mesh("host=2,x=4")


def test_a_rule_for_parameters_on_the_host_needs_parameters():
    fn = wf.spmd(lambda x: x, mesh="x=2", layout="batch:x,params.*:host")
    with pytest.raises(wf.LayoutError, match=r"rule `params.\*:host` matches nothing"):
        fn(wf.tensor(np.ones(4), "batch"))
