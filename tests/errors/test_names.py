"""Names and sizes that do not fit together, and that each fix does what it says."""

import jax
import numpy as np
import pytest

import weft as wf
from weft import nn

from .raised import error_of, is_inside, on_rows

batch, length, d, f = wf.dims(batch=8, length=4, d=16, f=32)
x = wf.tensor(np.arange(128, dtype="float32").reshape(8, 16), [batch, d])
w = wf.tensor(np.ones((16, 32), "float32"), [d, f])


def test_one_name_with_two_sizes():
    y = wf.tensor(np.ones(4, "float32"), "batch")
    error = error_of(lambda: x + y, wf.DimError)
    assert error.fact == "dim `batch` has size 8 in one tensor and 4 in another"
    assert "x.rename(batch='batch_2')" in error.fix
    inside = error_of(lambda: on_rows(lambda x, y: x + y)(x, y), wf.DimError)
    assert inside.fact == error.fact and is_inside(inside)


def test_one_name_with_two_sizes_fix():
    y = wf.tensor(np.ones(4, "float32"), "batch")
    assert (x + y.rename(batch="batch_2")).dims.names == ("batch", "d", "batch_2")
    same = wf.tensor(np.ones(8, "float32"), "batch")
    np.testing.assert_array_equal((x + same).array, x.array + 1)


@pytest.mark.parametrize(
    "act",
    [
        lambda: wf.einsum(x, wf.tensor(np.ones((4, 2)), "d k"), over="d"),
        lambda: wf.where(x > 0, x, wf.tensor(np.ones(4), "d")),
        lambda: wf.take(w, wf.tensor(np.zeros((3, 5), "int32"), "f k"), over="d"),
        lambda: wf.sum(x, over=wf.Dim("d", 4)),
        lambda: wf.broadcast(x, [batch, d.resized(4)]),
        lambda: wf.scan(lambda c, x: (c, None), 0.0, (x, wf.tensor(np.ones(4), "batch")), over="batch"),
        lambda: wf.vmap(lambda a, b: a, over="batch")(x, wf.tensor(np.ones(4), "batch")),
        lambda: wf.accumulate(
            lambda p, b: (wf.sum(b[0], over="batch d"), 1.0), None, (x, wf.tensor(np.ones(4), "batch")), count=2
        ),
    ],
)
def test_one_name_with_two_sizes_is_seen_by_every_op(act):
    assert "has size" in error_of(act, wf.DimError).fact


def test_one_name_that_follows_two_dims():
    first, second = wf.Dim("stream", 4, follows="length"), wf.Dim("stream", 4, follows="batch")
    act = lambda: wf.zeros([first]) + wf.zeros([second])  # noqa: E731
    error = error_of(act, wf.DimError)
    assert "follows `length` in one tensor and `batch` in another" in error.fact
    assert (wf.zeros([first]) + wf.zeros([second]).rename(stream="stream_2")).dims.names == ("stream", "stream_2")


def test_a_name_twice_in_a_tensor():
    error = error_of(lambda: wf.tensor(np.ones((2, 2)), "batch batch"), wf.DimError)
    assert error.fact == "shape [batch=2 batch=2] names `batch` twice"
    assert "`batch_2`" in error.fix


def test_a_name_twice_in_a_tensor_fix():
    assert wf.tensor(np.ones((2, 2)), "batch batch_2").dims.names == ("batch", "batch_2")


def test_a_name_twice_in_over_is_to_be_written_once():
    error = error_of(lambda: wf.sum(x, over="d d"), wf.DimError)
    assert "`over`" in error.fact and "`d` twice" in error.fact
    assert "rename" not in error.fix and "once" in error.fix
    np.testing.assert_array_equal(wf.sum(x, over="d").array, x.array.sum(1))


def test_array_shape_against_dims():
    error = error_of(lambda: wf.tensor(np.ones((16, 8)), [batch, d]), wf.DimError)
    assert error.fact == "an array of shape (16, 8) does not fit dims [batch=8 d=16]"
    assert "(16, 8)" in error.fix and "transpose" in error.fix


def test_array_shape_against_dims_fix():
    assert wf.tensor(np.ones((16, 8)).T, [batch, d]).dims.sizes == (8, 16)
    assert wf.tensor(np.ones((16, 8)), [d, batch]).dims.sizes == (16, 8)


def test_array_rank_against_names():
    error = error_of(lambda: wf.tensor(np.ones((2, 3)), "batch length d"), wf.DimError)
    assert "(2, 3)" in error.fact and "3 names: batch length d" in error.fact
    assert "2 names" in error.fix
    assert wf.tensor(np.ones((2, 3)), "batch d").dims.sizes == (2, 3)


def test_array_shape_is_checked_for_parameters_and_abstract_arrays_too():
    error_of(lambda: wf.parameter(np.ones((2, 3)), [batch, d]), wf.DimError)
    error_of(lambda: wf.tensor(jax.ShapeDtypeStruct((2, 3), "float32"), [batch, d]), wf.DimError)
    error_of(lambda: wf.Tensor(np.ones(3), "batch d"), wf.DimError)


def test_foreign_out_dim():
    error = error_of(lambda: wf.einsum(x, w, out="batch ff"), wf.DimError)
    assert error.fact == "`out` names `ff`, which is not among the dims at hand: [batch=8 d=16 f=32]"
    assert error.fix == "did you mean `f`?"
    inside = error_of(lambda: on_rows(lambda x, w: wf.einsum(x, w, out="batch ff"))(x, w), wf.DimError)
    assert inside.fact == error.fact and is_inside(inside)


def test_foreign_out_dim_fix():
    np.testing.assert_allclose(wf.einsum(x, w, out="batch f").array, x.array @ w.array, rtol=1e-6)


@pytest.mark.parametrize("op", [wf.sum, wf.mean, wf.max, wf.prod, wf.var, wf.softmax, wf.logsumexp])
def test_foreign_over_dim(op):
    error = error_of(lambda: op(x, over="bacth"), wf.DimError)
    assert error.fact == "`over` names `bacth`, which is not among the dims at hand: [batch=8 d=16]"
    assert error.fix == "did you mean `batch`?"
    op(x, over="batch")


def test_a_name_near_none_lists_all():
    assert error_of(lambda: wf.sum(x, over="zzz")).fix == "use one of: `batch`, `d`"


def test_missing_out_and_over():
    error = error_of(lambda: wf.einsum(x, w), wf.DimError)
    assert error.fact == "einsum got neither `out` nor `over`"
    assert "dims at hand: [batch=8 d=16 f=32]" in error.state
    assert "`out=[...]`" in error.fix and "`over=[...]`" in error.fix


def test_both_out_and_over():
    error = error_of(lambda: wf.einsum(x, w, out="batch f", over="d"), wf.DimError)
    assert error.fact == "einsum got both `out` and `over`"


def test_out_or_over_fix():
    expected = x.array @ w.array
    np.testing.assert_allclose(wf.einsum(x, w, out=[batch, f]).array, expected, rtol=1e-6)
    np.testing.assert_allclose(wf.einsum(x, w, over=[d]).array, expected, rtol=1e-6)


def test_einsum_of_nothing():
    error = error_of(lambda: wf.einsum(out=""), wf.TensorError)
    assert error.fact == "einsum got no tensor" and "wf.einsum(x, w, over='d_model')" in error.fix


def test_einsum_of_a_list():
    error = error_of(lambda: wf.einsum([x, w], out=[batch, f]), wf.TensorError)
    assert error.fact == "einsum got a list of operands" and "one by one" in error.fix


def test_an_einsum_of_letters_is_answered_with_names():
    error = error_of(lambda: wf.einsum("bd,df->bf", x, x), wf.TensorError)
    assert error.fact == "einsum got 'bd,df->bf': dims are matched by name, not by letter"
    assert "`wf.einsum(x, w, over='d_model')`" in error.fix and "out=" in error.fix


def test_a_pair_of_tensors_where_one_is_asked_for_is_to_be_taken_apart():
    error = error_of(lambda: wf.mean((x, x), over=x.dims), wf.TensorError)
    assert error.fact.startswith("mean got tuple (f32") and "which has no dims" not in error.fact
    assert error.fix == "give one of them, e.g. `[0]` of it, or call this for each"


def test_a_wrong_call_shows_shapes_and_types_not_numbers():
    error = error_of(lambda: wf.tensor(np.ones((4, 8))), wf.TensorError)
    assert "called as `wf.tensor(ndarray(4, 8))`" in error.state
    assert "dtype=float)" in error_of(lambda: wf.zeros(4, 8), wf.TensorError).fix


def test_a_layer_without_values():
    layer = nn.LayerNorm(d)
    error = error_of(lambda: layer(x), wf.TensorError)
    assert error.fact == "multiply got a weight [d=16] of a layer without values" and "nn.init(layer, key)" in error.fix
    assert nn.init(layer, jax.random.key(0))(x).dims == x.dims
    lookup = nn.Embedding(d, f)
    assert "nn.init" in error_of(lambda: lookup(wf.argmax(x, over=d)), wf.TensorError).fix


def test_rename_onto_an_existing_dim():
    error = error_of(lambda: x.rename(batch="d"), wf.DimError)
    assert error.fact == "dim `batch` was renamed to `d`, which [batch=8 d=16] has already"
    assert "`d='d_2'`" in error.fix
    inside = error_of(lambda: on_rows(lambda x: x.rename(batch="d"))(x), wf.DimError)
    assert inside.fact == error.fact and is_inside(inside)
    error_of(lambda: wf.einsum(x, w, over="d", rename={"batch": "f"}), wf.DimError)


def test_rename_onto_an_existing_dim_fix():
    assert x.rename(batch="d", d="d_2").dims.names == ("d", "d_2")
    assert x.rename(batch="rows").dims.names == ("rows", "d")
    out = on_rows(lambda x: x.rename(batch="d", d="d_2"))(x)
    np.testing.assert_array_equal(out.array, x.array)
    assert x.rename(batch="d", d="batch").dims.names == ("d", "batch")  # a swap is no clash


def test_rename_of_a_dim_that_is_not_there():
    error = error_of(lambda: x.rename(bacth="rows"), wf.DimError)
    assert error.fact == "there is no dim `bacth` to rename in [batch=8 d=16]"
    assert error.fix == "did you mean `batch`?"
    assert x.rename(batch="rows").dims.names == ("rows", "d")


def test_rename_to_a_dim_of_another_size():
    error = error_of(lambda: x.rename(batch=wf.Dim("rows", 4)), wf.DimError)
    assert error.fact == "dim `batch` (size 8) was renamed to `rows` of size 4" and "must have size 8" in error.fix
    assert x.rename(batch=wf.Dim("rows", 8)).dims.sizes == (8, 16)


def test_dim_of_a_tensor_that_is_not_there():
    for act in (lambda: x.dim("bacth"), lambda: x.size("bacth"), lambda: x.ways("bacth")):
        error = error_of(act, wf.DimError)
        assert error.fact == "there is no dim `bacth` in [batch=8 d=16]" and error.fix == "did you mean `batch`?"
    assert (x.dim("batch"), x.size("batch"), x.ways("batch")) == (batch, 8, 1)


def test_a_name_without_a_size_makes_no_new_dim():
    error = error_of(lambda: wf.zeros("batch"), wf.DimError)
    assert "the name `batch` alone" in error.fact and "`wf.Dim('batch', 8)`" in error.fix
    assert wf.zeros(wf.Dim("batch", 8)).dims == (batch,)
    assert wf.zeros("batch", like=x).dims == (batch,)


def test_broadcast_may_not_leave_a_dim_out():
    error = error_of(lambda: wf.broadcast(x, [batch, f]), wf.DimError)
    assert "leaves out `d`" in error.fact and "wf.sum(x, over='d')" in error.fix
    assert wf.broadcast(wf.sum(x, over="d"), [batch, f]).dims == (batch, f)


def test_ids_that_have_the_dim_they_look_along():
    table = wf.tensor(np.arange(12.0).reshape(4, 3), "length k")
    ids = wf.tensor(np.array([2, 0, 1, 1]), "length")
    error = error_of(lambda: wf.take(table, ids, over="length"), wf.DimError)
    assert "`length`" in error.fact and "ids.rename(length='length_2')" in error.fix
    found = wf.take(table, ids.rename(length="length_2"), over="length")
    np.testing.assert_array_equal(found.array, np.asarray(table.array)[[2, 0, 1, 1]])


@pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", "é", "a.b", 3, None, b"a"])
def test_malformed_dim_names(name):
    error = error_of(lambda: wf.Dim(name, 8), wf.DimError)
    assert repr(name) in error.fact and "`Dim('batch', 8)`" in error.fix
    assert wf.Dim("batch", 8).size == 8


@pytest.mark.parametrize("size", [0, -1, 2.0, "8", True, None, [8]])
def test_malformed_dim_sizes(size):
    error = error_of(lambda: wf.Dim("batch", size), wf.DimError)
    assert error.fact == f"dim `batch` has size {size!r}" and "`Dim('batch', 8)`" in error.fix


@pytest.mark.parametrize("followed", [3, "a b", "", "batch", ["length"]])
def test_malformed_follows(followed):
    error = error_of(lambda: wf.Dim("batch", 8, follows=followed), wf.DimError)
    assert "dim `batch` follows" in error.fact
    assert wf.Dim("batch", 8, follows="length").follows == "length"


@pytest.mark.parametrize("dims", [3, None, [3], ["a", 3], 4.5, object(), [None]])
def test_malformed_dims_of_a_tensor(dims):
    error_of(lambda: wf.tensor(np.ones((3, 3)), dims), wf.DimError)


@pytest.mark.parametrize("over", [3, None, [3], 4.5, [None], x])
def test_malformed_over(over):
    error = error_of(lambda: wf.sum(x, over=over), wf.WeftError)
    assert "over" in error.fact or "iterated" in error.fact


def test_malformed_over_fix():
    error = error_of(lambda: wf.sum(x, over=3), wf.DimError)
    assert error.fact == "`over` is 3, which names no dims"
    assert "over='batch d'" in error.fix and "over=[batch, d]" in error.fix
    assert error_of(lambda: nn.LayerNorm(96), wf.DimError).fix.endswith("e.g. `wf.Dim('d_model', 96)`")
    y = wf.zeros([batch, length])
    assert wf.sum(y, over="batch length").dims == wf.sum(y, over=[batch, length]).dims == ()


def test_a_product_without_names_names_the_dim_that_both_have():
    w = wf.ones(wf.dims(d=x.size("d"), hidden=4))
    assert error_of(lambda: x @ w, wf.TensorError).fix == "use `wf.einsum(x, w, over='d')`"


def test_classes_under_another_name_than_the_default_are_named():
    logits, labels = wf.ones(wf.dims(batch=4, classes=8)), wf.zeros(wf.dims(batch=4), dtype="int32")
    error = error_of(lambda: nn.cross_entropy(logits, labels), wf.DimError)
    assert "the classes are along `vocab` unless said" in error.fact and "`over='classes'`" in error.fix


def test_a_rule_the_wrong_way_round_is_turned_round():
    error = error_of(lambda: wf.spmd(lambda x: x, mesh="rows=2", layout="rows:batch")(x), wf.LayoutError)
    assert "the dim comes first: `batch:rows`" in error.fix


@pytest.mark.parametrize(
    ("act", "fix"),
    [
        (lambda: x.to("cuda"), "for another place, `wf.put(x, mesh=..., layout=...)`"),
        (lambda: nn.ReLU(), "write `wf.relu(x)`"),
        (lambda: nn.MSELoss(), "`wf.mean(wf.square(x - y), over=x.dims)`"),
        (lambda: nn.CrossEntropyLoss(), "`nn.cross_entropy(logits, targets, over='classes')[1]`"),
        (lambda: wf.optim.AdamW(1e-3), "write `optax.adamw(1e-3)`"),
        (lambda: wf.optim.sgd(1e-3), "write `optax.sgd(1e-3)`"),
    ],
)
def test_names_that_pytorch_has_are_answered_with_ours(act, fix):
    assert fix in error_of(act, wf.UnknownNameError).fix
