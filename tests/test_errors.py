"""The form all errors share: the fact, the state with the user's own line, the fix."""

import warnings

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of, is_inside, line_of, marked_line, on_rows
from weft.errors import closest

KINDS = [wf.DimError, wf.MeshError, wf.LayoutError, wf.TensorError, wf.RegionError, wf.CheckError]


def ones(names: str, *sizes: int) -> wf.Tensor:
    return wf.tensor(np.ones(sizes, "float32"), names)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_descends_from_the_root(kind):
    assert issubclass(kind, wf.WeftError) and issubclass(wf.WeftError, Exception)


def test_text_is_fact_state_and_fix_a_line_each():
    error = wf.WeftError("the fact", state="layout: batch:rows", fix="do this")
    assert (error.fact, error.fix) == ("the fact", "do this")
    assert error.given_state == "layout: batch:rows"
    assert error.state.startswith("layout: batch:rows   at ") and "test_errors.py" in error.state
    assert [line.strip() for line in str(error).splitlines()] == ["the fact", error.state, "fix: do this"]


@pytest.mark.parametrize("part", ["fact", "state", "fix", "at"])
def test_half_a_character_in_any_part_is_escaped(part):
    parts = {"fact": "a", "fix": "b", part: "c\udce9"}
    assert r"c\udce9" in str(wf.WeftError(parts.pop("fact"), **parts)).encode().decode()


def test_warnings_of_weft_can_be_told_from_others():
    assert issubclass(wf.WeftWarning, UserWarning)


def test_line_is_that_of_the_op_outside_a_region():
    def act():
        x = ones("batch", 8)
        y = ones("batch", 4)
        return wf.exp(x + y)  # here

    assert line_of(error_of(act)) == marked_line(test_line_is_that_of_the_op_outside_a_region)


def test_line_is_that_of_the_op_inside_a_region():
    def net(x):
        y = wf.exp(x)
        return wf.sum(y, over="bacth")  # here

    error = error_of(lambda: on_rows(net)(ones("batch d", 8, 4)))
    assert line_of(error) == marked_line(test_line_is_that_of_the_op_inside_a_region)
    assert "in net" in error.state and is_inside(error)


def test_line_is_that_of_the_op_inside_loops_gradients_and_recomputation():
    def loss(x):
        def turn(carry, row):
            return carry + wf.sum(row, over="dd"), None  # here

        return wf.scan(wf.remat(turn), wf.zeros([]), x, over="length")[0]

    act = jax.jit(lambda: on_rows(wf.grad(loss))(ones("batch length d", 8, 2, 4)))
    error = error_of(lambda: act())
    expected = marked_line(test_line_is_that_of_the_op_inside_loops_gradients_and_recomputation)
    assert line_of(error) == expected and "in turn" in error.state


def test_line_is_that_of_the_call_where_the_border_fails():
    region = on_rows(lambda x: x)

    def act():
        x = ones("batch", 6)
        return region(x)  # here

    assert line_of(error_of(act)) == marked_line(test_line_is_that_of_the_call_where_the_border_fails)


def test_line_of_a_dim_is_where_it_was_made():
    def act():
        return wf.Dim("batch", 0)  # here

    assert line_of(error_of(act)) == marked_line(test_line_of_a_dim_is_where_it_was_made)


def test_line_of_a_check_is_where_it_stands():
    def net(x):
        wf.check(x > 1, "too small")  # here
        return x

    error = error_of(lambda: on_rows(net)(ones("batch", 8)), wf.CheckError)
    assert line_of(error) == marked_line(test_line_of_a_check_is_where_it_stands)


def test_a_warning_points_at_the_users_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wf.spmd(lambda x: x, mesh="rows=4,cols=2", layout="batch:rows")  # here
    assert caught[0].filename == __file__
    assert caught[0].lineno == marked_line(test_a_warning_points_at_the_users_line)


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("bacth", ["batch", "length"], "did you mean `batch`?"),
        ("batch_size", ["batch", "length"], "did you mean `batch`?"),
        ("zzz", ["b", "a", "b"], "use one of: `a`, `b`"),
    ],
)
def test_closest_names_the_nearest_word_or_all(name, known, hint):
    assert closest(name, known) == hint


def test_closest_of_nothing_says_so():
    assert "none" in closest("batch", [])
