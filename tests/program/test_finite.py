"""The operation that first gives what is not finite is named: with its line, its phase and its turn."""

import inspect

import numpy as np
import pytest

import weft as wf
from weft.program.finite import not_finite

INF = float("inf")
row, col = wf.dims(row=3, col=4)


def vector(*values):
    return wf.tensor(np.array(values, "float32"), [row])


def line_of(text):
    """The line of this file that holds `text` first."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    return next(i for i, line in enumerate(lines, start=1) if text in line)


def only(found):
    (made,) = found.made
    return made


def test_an_overflow_is_named_with_its_line_its_place_and_what_it_was_given():
    def fn(x):
        large = x * 10
        return wf.sum(wf.exp(large), over=row)  # overflows

    made = only(not_finite(fn, vector(1, 2, 20)))
    assert str(made) == (
        f"`exp` at tests/program/test_finite.py:{line_of('# overflows')} in fn (forward) gave "
        "inf in 1 of 3 values, the first at row 2, given numbers up to 200"
    )


def test_it_is_told_which_results_are_not_finite():
    found = not_finite(wf.value_and_grad(lambda x: wf.sum(wf.sqrt(x), over=row)), vector(1, 0, 4))
    assert (only(found).op, only(found).bad.kind, only(found).bad.index) == ("sqrt", "inf", (1,))
    assert found.results == (1,)


def test_a_value_that_was_chosen_away_still_has_a_slope_that_is_named():
    loss = wf.value_and_grad(lambda x: wf.sum(wf.where(x > 0, wf.sqrt(x), 0.0), over=row))
    found = not_finite(loss, vector(1, 0, 4))
    assert [(made.op, made.phase, made.bad.kind) for made in found.made][-1] == ("sqrt", "backward", "NaN")


def test_the_turn_of_a_loop_is_named_forward_and_backward():
    layers = wf.Dim("layers", 5)

    def loss(w, x):
        x, _ = wf.scan(lambda x, w: (x * w, None), x, w, over=layers)
        return wf.sum(x, over=row)

    weights = wf.tensor(np.array([1, 1e30, 1e30, 1, 1], "float32"), [layers])
    forward = only(not_finite(loss, weights, vector(0, 0, 3)))
    assert (forward.op, forward.phase, forward.turns, forward.bad.kind) == ("multiply", "forward", ("layers 2",), "inf")
    backward = only(not_finite(wf.value_and_grad(loss, argnums=1), weights, vector(0, 0, 0)))
    assert (backward.phase, backward.turns, backward.bad.kind) == ("backward", ("layers 1",), "inf")


def test_an_infinity_and_the_nan_it_led_to_are_both_named():
    def fn(x):
        y = wf.exp(x)
        return y - y

    first, then = not_finite(fn, vector(1, 2, 200)).made
    assert (first.op, first.bad.kind, first.largest) == ("exp", "inf", 200)
    assert (then.op, then.bad.kind, then.largest) == ("subtract", "NaN", None)


def test_a_mask_of_infinities_is_not_to_blame():
    seen = wf.tensor(np.eye(3, 4) == 0, [row, col])

    def fn(x):
        share = wf.softmax(wf.where(seen, x, -INF), over=col)
        return wf.log(x) * share

    x = np.ones((3, 4), "float32")
    x[1, 2] = -1
    made = only(not_finite(fn, wf.tensor(x, [row, col])))
    assert (made.op, made.bad.kind, made.bad.dims, made.bad.index) == ("log", "NaN", ("row", "col"), (1, 2))


def test_a_row_that_is_masked_whole_is_the_softmaxs_doing():
    seen = wf.tensor(np.zeros((3, 4), bool), [row, col])
    fn = lambda x: wf.softmax(wf.where(seen, x, -INF), over=col)  # noqa: E731
    assert only(not_finite(fn, wf.ones([row, col]))).op == "softmax"


def test_what_no_result_is_made_of_is_not_named():
    def fn(x):
        return wf.where(x > 0, wf.log(x), 0.0)

    assert not not_finite(fn, vector(1, -1, 2))


def test_arguments_that_are_not_finite_are_named_and_the_operation_that_met_them():
    def fn(weights, x):
        return wf.einsum(wf.cast(weights["w"], "float32"), x, over=row)

    found = not_finite(fn, {"w": wf.cast(vector(1, INF, 2), "bfloat16")}, vector(1, 2, 3))
    assert [str(given) for given in found.given] == ["`weights.w` has inf in 1 of 3 values, the first at row 1"]
    assert (only(found).op, only(found).bad.kind, only(found).largest) == ("einsum", "inf", None)


@pytest.mark.parametrize("of", [wf.remat, lambda fn: lambda x: wf.cond(wf.full([], True), fn, lambda x: x, x)])
def test_recomputed_parts_and_branches_are_gone_into(of):
    loss = wf.value_and_grad(lambda x: wf.sum(of(lambda x: wf.log(x - 1))(x), over=row))
    made = only(not_finite(loss, vector(0, 3, 4)))
    assert (made.op, made.phase, made.bad.kind) == ("log", "forward", "NaN")


def test_one_nan_among_many_numbers_is_seen_where_it_is_made():
    many = wf.Dim("many", 5000)
    x = np.ones(5000, "float32")
    x[1234] = -1
    made = only(not_finite(lambda x: wf.sum(wf.log(x), over=many), wf.tensor(x, [many])))
    assert (made.op, made.bad.index) == ("log", (1234,))


def test_a_number_that_a_narrower_dtype_cannot_hold_is_its_casts_doing():
    made = only(not_finite(lambda x: wf.cast(x, "float16"), vector(1, 2, 1e6)))
    assert (made.op, made.bad.kind, made.largest) == ("cast", "inf", 1e6)


def test_a_loop_of_unknown_length_is_named_as_a_whole():
    def fn(x):
        return wf.while_loop(lambda x: wf.max(x, over=row) < 1e30, lambda x: wf.exp(x), x)

    made = only(not_finite(fn, vector(1, 2, 3)))
    assert (made.op, made.bad.kind) == ("while_loop", "inf")
