"""Loops, branches, microbatches, local functions and gradients given what they cannot do, and that the fixes work."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft as wf

from .raised import error_of, is_inside, on_rows

x = wf.tensor(np.arange(128, dtype="float32").reshape(8, 16), "batch d")
ids = wf.tensor(np.arange(8, dtype="int32"), "batch")
steps = wf.Dim("steps", 3)


def total(carry, row):
    return carry + wf.sum(row, over="d"), None


def test_scan_over_a_split_dim():
    act = lambda: on_rows(lambda x: wf.scan(total, wf.zeros([]), x, over="batch")[0])(x)  # noqa: E731
    error = error_of(act, wf.LayoutError)
    assert error.fact == "scan goes over `batch` in turn, and `batch` is split over `rows`" and is_inside(error)
    assert "x.rename(batch='batch_whole')" in error.fix and "drop `batch:rows`" in error.fix
    assert "drop `" in error.fix


def test_scan_over_a_split_dim_fix():
    def net(x):
        return wf.scan(total, wf.zeros([]), x.rename(batch="batch_whole"), over="batch_whole")[0]

    assert float(on_rows(net)(x)) == 8128
    dropped = wf.Layout("batch:rows,d:rows").drop("batch")
    assert float(on_rows(lambda x: wf.scan(total, wf.zeros([]), x, over="batch")[0], dropped)(x)) == 8128


def test_scan_carry_that_changes_dims():
    error = error_of(lambda: wf.scan(lambda c, row: (c + row, None), wf.zeros([]), x, over="batch"), wf.TensorError)
    assert error.fact == "the carry of scan enters as [] and leaves as [d=16]"
    assert "start it with the dims it leaves with" in error.fix
    last, _ = wf.scan(lambda c, row: (c + row, None), wf.zeros([x.dim("d")]), x, over="batch")
    np.testing.assert_array_equal(last.array, x.array.sum(0))
    last, _ = wf.scan(total, wf.zeros([]), x, over="batch")
    assert float(last) == 8128


def test_scan_carry_that_changes_dtype():
    def halve(c, _):
        return c / 2, None

    start = wf.full([], 8, dtype="int32")
    error = error_of(lambda: wf.scan(halve, start, None, over=steps), wf.TensorError)
    assert error.fact == "the carry of scan, [], enters as int32 and leaves as float32"
    assert "start it as float32" in error.fix and "wf.cast(x, 'int32')" in error.fix
    assert float(wf.scan(halve, wf.cast(start, "float32"), None, over=steps)[0]) == 1
    cast = lambda c, _: (wf.cast(c / 2, "int32"), None)  # noqa: E731
    assert int(wf.scan(cast, start, None, over=steps)[0]) == 1


def test_scan_carry_that_changes_structure():
    error = error_of(lambda: wf.scan(lambda c, row: ((c, c), None), wf.zeros([]), x, over="batch"), wf.TensorError)
    assert "the carry of scan enters as" in error.fact and "same structure" in error.fix


def test_scan_function_that_gives_no_pair():
    error = error_of(lambda: wf.scan(lambda c, row: c, wf.zeros([]), x, over="batch"), wf.TensorError)
    assert "returned Tensor" in error.fact and "`(carry, result)`" in error.fix
    wf.scan(lambda c, row: (c, None), wf.zeros([]), x, over="batch")


def test_scan_with_nothing_to_go_along():
    error = error_of(lambda: wf.scan(lambda c, _: (c + 1, None), 0.0, None, over="steps"), wf.DimError)
    assert "'steps'" in error.fact and "`wf.Dim('steps', 8)`" in error.fix
    assert float(wf.scan(lambda c, _: (c + 1, None), 0.0, None, over=wf.Dim("steps", 8))[0]) == 8


@pytest.mark.parametrize(
    "act",
    [
        lambda: wf.scan(total, wf.zeros([]), x, over="bacth"),
        lambda: wf.scan(total, wf.zeros([]), x, over="batch d"),
        lambda: wf.scan(total, wf.zeros([]), (x, wf.zeros([steps])), over="batch"),
        lambda: wf.scan(lambda c, row: (c, wf.zeros([x.dim("batch")])), wf.zeros([]), x, over="batch"),
        lambda: wf.vmap(wf.exp, over="bacth")(x),
        lambda: wf.vmap(wf.exp, over="batch d")(x),
        lambda: wf.vmap(wf.exp, over="batch")(3.0),
        lambda: wf.vmap(lambda row: wf.zeros([x.dim("batch")]), over="batch")(x),
        lambda: wf.vmap(lambda row: wf.sum(row, over="batch"), over="batch")(x),
    ],
)
def test_dims_that_a_loop_or_map_cannot_find(act):
    error_of(act, wf.DimError)


@pytest.mark.parametrize(
    "loop",
    [
        lambda carry, body: wf.while_loop(lambda c: True, body, carry),
        lambda carry, body: wf.fori_loop(0, 3, lambda i, c: body(c), carry),
        lambda carry, body: wf.fori_loop(jnp.int32(0), jnp.int32(3), lambda i, c: body(c), carry),
    ],
)
@pytest.mark.parametrize("body", [lambda c: wf.sum(c, over="d"), lambda c: wf.cast(c, "int32"), lambda c: (c, c)])
def test_other_loops_keep_the_type_of_their_carry_too(loop, body):
    error = error_of(lambda: loop(x, body), wf.TensorError)
    assert "enters as" in error.fact and "leaves as" in error.fact


def test_reverse_gradient_of_a_while_loop():
    doubled = lambda x: wf.while_loop(lambda c: wf.sum(c, over="batch d") < 1e5, lambda c: c * 2, x)  # noqa: E731
    error = error_of(lambda: wf.grad(lambda x: wf.sum(doubled(x), over="batch d"))(x), wf.WeftError)
    assert "wf.scan" in error.fix or "wf.fori_loop" in error.fix
    fixed = lambda x: wf.sum(wf.fori_loop(0, 4, lambda i, c: c * 2, x), over="batch d")  # noqa: E731
    np.testing.assert_array_equal(wf.grad(fixed)(x).array, np.full((8, 16), 16))


def on_true(x):
    return wf.sum(x, over="batch")


def on_false(x):
    return wf.sum(x * 2, over="batch")


def test_collective_under_a_predicate_that_varies():
    def net(x):
        return wf.cond(x.local_array[0, 0] > 40, on_true, on_false, x)

    error = error_of(lambda: on_rows(net)(x), wf.RegionError)
    assert "cond has a predicate that differs between processors (over rows)" in error.fact
    assert "collective" in error.fact and is_inside(error)
    assert "wf.any(x, over=...)" in error.fix and "wf.where" in error.fix


def test_collective_under_a_predicate_that_varies_fix():
    def agreed(x):
        return wf.cond(wf.any(x > 40, over="batch d"), on_true, on_false, x)

    def chosen(x):
        return wf.where(wf.any(x > 40, over="batch d"), on_true(x), on_false(x))

    for net in (agreed, chosen):
        np.testing.assert_array_equal(on_rows(net)(x).array, x.array.sum(0))


def test_a_loop_whose_condition_varies():
    def net(x):
        return wf.while_loop(lambda c: x.local_array[0, 0] > 40, lambda c: c + wf.sum(x, over="batch"), x)

    error = error_of(lambda: on_rows(net)(x), wf.RegionError)
    assert "while_loop has a predicate that differs" in error.fact and is_inside(error)


def test_branches_without_a_collective_may_differ_between_processors():
    def net(x):
        return wf.cond(x.local_array[0, 0] > 40, lambda x: x * 3, lambda x: x, x)

    expected = np.where(np.repeat(x.array[::2, :1] > 40, 2, 0), x.array * 3, x.array)
    np.testing.assert_array_equal(on_rows(net)(x).array, expected)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (lambda x: x, lambda x: wf.sum(x, over="d"), "f32[batch d] and f32[batch]"),
        (lambda x: x, lambda x: wf.cast(x, "int32"), "float32[8, 16] and int32[8, 16]"),
        (lambda x: x, lambda x: (x, x), "different trees"),
        (lambda x: x, lambda x: 1.0, "f32[batch d] and"),
    ],
)
def test_branches_that_differ(first, second, told):
    error = error_of(lambda: wf.cond(True, first, second, x), wf.TensorError)
    assert "the branches of cond give" in error.fact and told in error.fact


def test_branches_that_differ_fix():
    error = error_of(lambda: wf.cond(True, lambda x: x, lambda x: wf.cast(x, "int32"), x), wf.TensorError)
    assert "`wf.cast(x, 'float32')`" in error.fix
    fixed = wf.cond(True, lambda x: x, lambda x: wf.cast(wf.cast(x, "int32"), "float32"), x)
    np.testing.assert_array_equal(fixed.array, x.array)


@pytest.mark.parametrize("predicate", [x > 0, np.array([True, False]), "yes", None])
def test_predicates_that_are_not_one_boolean(predicate):
    error = error_of(lambda: wf.cond(predicate, lambda x: x, lambda x: x, x), wf.TensorError)
    assert "predicate" in error.fact and "one boolean" in error.fix
    error_of(lambda: wf.while_loop(lambda c: predicate, lambda c: c, x), wf.TensorError)
    np.testing.assert_array_equal(wf.cond(True, lambda x: x * 2, lambda x: x, x).array, x.array * 2)


def summed(params, rows):
    return wf.sum(rows, over="batch d"), wf.sum(rows * 0 + 1, over="batch d")


def test_accumulate_that_does_not_divide():
    error = error_of(lambda: wf.accumulate(summed, None, x, count=3), wf.DimError)
    assert "`batch` (size 8, split 1 ways) does not divide into 3 microbatches" in error.fact
    assert "multiple of 3" in error.fix and "nearest: " in error.fix and "9" in error.fix and "`count`" in error.fix
    inside = error_of(lambda: on_rows(lambda x: wf.accumulate(summed, None, x, count=4))(x), wf.DimError)
    assert "split 4 ways" in inside.fact and "16" in inside.fix and is_inside(inside)


def test_accumulate_that_does_not_divide_fix():
    np.testing.assert_allclose(on_rows(lambda x: wf.accumulate(summed, None, x, count=2))(x).array, 63.5)
    longer = wf.tensor(np.ones((16, 16), "float32"), "batch d")
    np.testing.assert_allclose(on_rows(lambda x: wf.accumulate(summed, None, x, count=4))(longer).array, 1)


@pytest.mark.parametrize(
    "act",
    [
        lambda: wf.accumulate(summed, None, x, count=0),
        lambda: wf.accumulate(summed, None, x, count=2.0),
        lambda: wf.accumulate(summed, None, x, count="2"),
        lambda: wf.accumulate(summed, None, x, over="bacth", count=2),
        lambda: wf.accumulate(summed, None, x, over=3, count=2),
        lambda: wf.accumulate(summed, None, x, over="batch d", count=2),
        lambda: wf.accumulate(summed, None, 3.0, count=2),
        lambda: wf.accumulate(lambda p, rows: wf.sum(rows, over="batch d"), None, x, count=2),
        lambda: wf.accumulate(lambda p, rows: (rows, 1.0), None, x, count=2),
        lambda: wf.accumulate(lambda p, rows: ("a", 1.0), None, x, count=2),
        lambda: wf.accumulate(lambda p, data: summed(p, data[0]), None, (x, np.ones(8)), count=2),
        lambda: wf.accumulate(3, None, x, count=2),
    ],
)
def test_accumulate_given_what_it_cannot_use(act):
    error_of(act, wf.WeftError)


def test_local_with_a_whole_dim_that_is_split():
    act = lambda: on_rows(lambda x: wf.local(jnp.sort, x, out="d batch", whole="batch"))(x)  # noqa: E731
    error = error_of(act, wf.LayoutError)
    assert error.fact == "local needs `batch` whole, and it is split over `rows`" and is_inside(error)
    assert "x.rename(batch='batch_whole')" in error.fix and "drop `batch:rows`" in error.fix


def test_local_with_a_whole_dim_that_is_split_fix():
    def net(x):
        y = x.rename(batch="batch_whole")
        return wf.local(lambda a: a[::-1], y, out="batch_whole d", whole="batch_whole")

    np.testing.assert_array_equal(on_rows(net)(x).array, x.array[::-1])


def test_local_with_a_split_dim_missing_from_out():
    act = lambda: on_rows(lambda x: wf.local(lambda a: a.sum(0), x, out="d"))(x)  # noqa: E731
    error = error_of(act, wf.LayoutError)
    assert "local's result lacks `batch`, which is split over `rows`" in error.fact and is_inside(error)
    assert "`out`" in error.fix and "`summed`" in error.fix and "x.rename(batch='batch_whole')" in error.fix


@pytest.mark.parametrize(
    "net",
    [
        lambda x: wf.local(lambda a: a.sum(0), x, out="d", summed="batch"),
        lambda x: wf.local(lambda a: a.sum(0), x.rename(batch="batch_whole"), out="d"),
        lambda x: wf.sum(wf.local(lambda a: a, x, out="batch d"), over="batch"),
    ],
)
def test_local_with_a_split_dim_missing_from_out_fix(net):
    np.testing.assert_array_equal(on_rows(net)(x).array, x.array.sum(0))


def test_local_with_a_result_of_the_wrong_shape():
    error = error_of(lambda: on_rows(lambda x: wf.local(jnp.transpose, x, out="batch d"))(x), wf.TensorError)
    assert "gave an array of shape (16, 2) where the slice of [batch=8 d=16] has (2, 16)" in error.fact
    assert "the order of `out`" in error.fix and is_inside(error)
    np.testing.assert_array_equal(on_rows(lambda x: wf.local(jnp.transpose, x, out="d batch"))(x).array, x.array.T)


@pytest.mark.parametrize(
    "net",
    [
        lambda x: wf.local(lambda a: (a, a), x, out=[["batch", "d"]]),
        lambda x: wf.local(lambda a: a, x, out=[["batch", "d"], ["batch", "d"]]),
        lambda x: wf.local(lambda a: (a, a), x, out="batch d"),
        lambda x: wf.local(lambda a: None, x, out="batch d"),
        lambda x: wf.local(lambda a: "a", x, out="batch d"),
        lambda x: wf.local(lambda a: a, x, out="batch q"),
        lambda x: wf.local(lambda a: a, x, out=3),
        lambda x: wf.local(lambda a: a, x, out="batch d", whole="q"),
        lambda x: wf.local(lambda a: a, x, out="batch d", summed="q"),
        lambda x: wf.local(lambda a: a, x, out="batch d", summed="batch"),
        lambda x: wf.local(3, x, out="batch d"),
        lambda x: wf.local(lambda a, here: a + here.start("q"), x, out="batch d"),
        lambda x: wf.local(lambda a: a @ a, x, out="batch d"),
        lambda x: wf.local(lambda a: x, x, out="batch d"),
        lambda x: wf.local(lambda a: a * lax.axis_index("cols"), x, out="batch d"),
    ],
)
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_local_given_what_it_cannot_use(net):
    error_of(lambda: wf.spmd(net, mesh="rows=4,cols=2", layout="batch:rows")(x), wf.WeftError)


def test_gradient_of_what_is_not_one_number():
    error = error_of(lambda: wf.value_and_grad(lambda x: x * 2)(x), wf.TensorError)
    assert error.fact == "the function to differentiate gave f32[batch d]" and "wf.mean(loss, over=[...])" in error.fix
    inside = error_of(lambda: on_rows(wf.grad(lambda x: wf.sum(x, over="d")))(x), wf.TensorError)
    assert "f32[batch/rows]" in inside.fact and is_inside(inside)


def test_gradient_of_what_is_not_one_number_fix():
    value, slope = wf.value_and_grad(lambda x: wf.mean(x * 2, over=["batch", "d"]))(x)
    assert float(value) == 127
    np.testing.assert_array_equal(slope.array, np.full((8, 16), 2 / 128, "float32"))


def test_gradient_with_respect_to_no_float_tensor():
    loss = lambda ids, x: wf.sum(x, over="batch d")  # noqa: E731
    error = error_of(lambda: wf.value_and_grad(loss)(ids, x), wf.TensorError)
    assert error.fact == "there is no float tensor to differentiate" and "`argnums`" in error.fix
    np.testing.assert_array_equal(wf.grad(loss, argnums=1)(ids, x).array, np.ones((8, 16)))
    error = error_of(lambda: wf.grad(lambda a: a.sum())(np.ones(3, "float32")), wf.TensorError)
    assert "wf.tensor" in error.fix


@pytest.mark.parametrize(
    "act",
    [
        lambda: wf.grad(lambda x: wf.sum(x, over="batch d"), argnums=1)(x),
        lambda: wf.grad(lambda x: wf.sum(x, over="batch d"), argnums="x")(x),
        lambda: wf.grad(lambda x: wf.sum(x, over="batch d"), argnums=0.5)(x),
        lambda: wf.grad(lambda x: wf.sum(x, over="batch d"), has_aux=True)(x),
        lambda: wf.grad(lambda x: wf.sum(x, over="batch d"), sum_dtype="flot")(x),
        lambda: wf.grad(lambda x: wf.cast(wf.sum(x, over="batch d"), "int32"))(x),
        lambda: wf.grad(lambda x: None)(x),
        lambda: wf.grad(lambda x: "a")(x),
        lambda: wf.grad(lambda: x)(),
        lambda: wf.grad(3)(x),
    ],
)
def test_gradients_given_what_they_cannot_use(act):
    error_of(act, wf.TensorError)


def test_a_loss_that_brings_more_without_saying_so():
    error = error_of(lambda: wf.grad(lambda x: (wf.sum(x, over="batch d"), x))(x), wf.TensorError)
    assert "tuple" in error.fact and "has_aux=True" in error.fix
    slope, aux = wf.grad(lambda x: (wf.sum(x, over="batch d"), x), has_aux=True)(x)
    np.testing.assert_array_equal(slope.array, np.ones((8, 16)))
    np.testing.assert_array_equal(aux.array, x.array)


def test_a_check_that_fails_names_the_first_bad_index():
    for act in (lambda: wf.check(x < 37, "small", x=x), lambda: on_rows(lambda x: wf.check(x < 37, "small", x=x))(x)):
        error = error_of(act, wf.CheckError)
        assert error.fact == "check failed: small at [batch=2 d=5] (x=37.0)" and "91 of 128 values fail" in error.state
    wf.check(x < 128, "small", x=x)


@pytest.mark.parametrize("predicate", [x, True, np.array([True]), "a", None])
def test_a_check_of_what_is_no_boolean_tensor(predicate):
    error_of(lambda: wf.check(predicate, "message"), wf.TensorError)


def test_remat_is_to_keep_a_name_nothing_has():
    def net(x):
        return wf.sum(wf.name(wf.tanh(x), "attn"), over="batch d")

    error = error_of(lambda: wf.grad(wf.remat(net, save=["atn"]))(x), wf.TensorError)
    assert error.fact == "remat is to keep `atn`, a name nothing in it has" and error.fix == "did you mean `attn`?"
    wf.grad(wf.remat(net, save=["attn"]))(x)
