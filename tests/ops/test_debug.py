"""Printing global values once, and checks that raise after the call."""

from pathlib import Path

import jax
import numpy as np
import pytest

import weft as wf
from weft.ops.in_turn import in_turn

B, D = wf.dims(batch=8, d=4)
X = wf.tensor(np.arange(32.0, dtype="float32").reshape(8, 4), [B, D])


@pytest.mark.parametrize("layout", ["", "batch:x", "d:y", "batch:x,d:y", "batch:x+y"])
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_print_shows_the_global_value_once(layout, capfd):
    def show(x):
        wf.print("rows {} total {}", wf.sum(x, over=D), wf.sum(x, over="batch d"))
        return x

    wf.spmd(show, mesh="x=2,y=4", layout=layout)(X)
    jax.effects_barrier()
    printed = capfd.readouterr().out
    assert printed.count("total 496.0") == 1
    assert "rows [  6.  22.  38.  54.  70.  86. 102. 118.]" in printed


def test_print_needs_no_mesh(capfd):
    wf.print("x is {}", wf.sum(X, over="batch d"))
    jax.effects_barrier()
    assert capfd.readouterr().out == "x is 496.0\n"


def test_print_in_a_loop_prints_each_turn(capfd):
    def run(x):
        def turn(carry, row):
            wf.print("sum {}", wf.sum(row, over=B))
            return carry, None

        return wf.scan(turn, x, x, over=D)[0]

    wf.spmd(run, mesh="x=2", layout="batch:x")(X)
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "sum 112.0", "sum 120.0", "sum 128.0", "sum 136.0"]


@pytest.mark.parametrize("layout", ["batch:x", "d:y", "batch:x,d:y"])
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_check_raises_after_the_call_with_the_first_bad_index(layout):
    def run(x):
        wf.check(x < 21, "too large", x=x, row=wf.sum(x, over=D))
        return x * 2

    fn = wf.spmd(run, mesh="x=2,y=2", layout=layout)
    with pytest.raises(wf.CheckError, match=r"too large at \[batch=5 d=1\] \(x=21.0, row=86.0\)") as error:
        fn(X)
    assert "11 of 32 values fail" in error.value.state and f"layout: {layout}" in error.value.state
    np.testing.assert_array_equal(fn(X * 0).array, np.zeros((8, 4)))  # the same program, with good values
    with pytest.raises(wf.CheckError):
        fn(X)


def test_check_needs_no_mesh():
    wf.check(X >= 0, "negative", x=X)
    with pytest.raises(wf.CheckError, match=r"negative at \[batch=0 d=0\] \(x=-1.0\)"):
        wf.check(X - 1 >= 0, "negative", x=X - 1)


def test_a_failed_check_is_not_left_behind_for_the_next_call():
    bad = wf.spmd(lambda x: (wf.check(x < 0, "no"), x)[1], mesh="x=2", layout="batch:x")
    good = wf.spmd(lambda x: (wf.check(x >= 0, "yes"), x)[1], mesh="x=2", layout="batch:x")
    with pytest.raises(wf.CheckError, match="no"):
        bad(X)
    good(X)


def test_a_check_in_someones_own_jit_raises_there_and_nowhere_else():
    inside = jax.jit(wf.spmd(lambda x: (wf.check(x < 0, "no"), x)[1], mesh="x=2", layout="batch:x"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="check failed: no"):
        jax.block_until_ready(inside(X).array)
        jax.effects_barrier()
    wf.spmd(lambda x: (wf.check(x >= 0, "yes"), x)[1], mesh="x=2", layout="batch:x")(X)


def _check_and_send(x):
    """Sends in and after a loop that checks: a processor that stops there leaves the others waiting for it."""

    def turn(carry, column):
        wf.check(column < 21, "large", row=column)
        return carry + column * wf.sum(column, over=B), None

    return wf.sum(wf.scan(turn, wf.sum(x, over=D) * 0, x, over=D)[0], over=B)


def test_a_check_raises_where_the_gradient_is_taken_outside_the_region():
    run = wf.value_and_grad(wf.spmd(_check_and_send, mesh="x=4", layout="batch:x"))
    with pytest.raises(wf.CheckError, match=r"check failed: large at \[batch=6\] \(row=24.0\)") as error:
        run(X)
    assert f"{Path(__file__).name}:" in str(error.value)
    value, _ = run(X * 0.5)  # nothing is left behind, and good values pass
    np.testing.assert_allclose(value.array, _check_and_send(X * 0.5).array, rtol=1e-6)
    with pytest.raises(jax.errors.JaxRuntimeError, match="check failed: large"):
        jax.block_until_ready(jax.jit(run)(X)[0].array)


@pytest.mark.parametrize("layout", ["batch:x", "batch:x+y"])
def test_a_check_may_stand_in_a_map_over_a_split_dim(layout):
    run = wf.spmd(
        lambda x: wf.vmap(lambda row: (wf.check(row < 21, "large", row=row), row * 2)[1], over=B)(x),
        mesh="x=2,y=2",
        layout=layout,
    )
    with pytest.raises(wf.CheckError, match="large"):
        run(X)
    np.testing.assert_array_equal(run(X * 0).array, np.zeros((8, 4)))


K, S = wf.dims(k=2, stage=2)


def _square(carry, row):
    wf.check(row < 21, "large", row=row)
    return carry + row * row, None


def _scan(x, turn=_square):
    return wf.sum(wf.scan(turn, wf.sum(x, over=D) * 0, x, over=D)[0], over=B)


def _nested(x):
    def turn(carry, k):
        return wf.scan(_square, carry, x * k, over=D)[0], None

    return wf.sum(wf.scan(turn, wf.sum(x, over=D) * 0, wf.ones([K]), over=K)[0], over=B)


def _in_turns_that_all_see_one_row(x):
    def turn(carry, row):
        return wf.scan(lambda c, k: (_square(c, row)[0] * k, None), carry, wf.ones([K]), over=K)[0], None

    return _scan(x, turn)


def _branch_that_only_checks(x):
    is_on = wf.sum(x, over="batch d") > -1

    def turn(carry, row):
        wf.cond(is_on, lambda r: wf.check(r < 21, "large", row=r), lambda r: None, row)
        return carry + row * row, None

    return _scan(x, turn)


def _mapped(x):
    def turn(carry, row):
        return carry + wf.vmap(lambda r: _square(r * 0, r)[0], over=B)(row), None

    return _scan(x, turn)


def _accumulated(x):
    def sums(scale, x):
        wf.check(x < 24, "large", row=x)
        return wf.sum(x * x * scale, over="batch d"), 1.0

    return wf.accumulate(sums, wf.mean(x, over="batch d"), x, count=2)


def _pipelined(x):
    def stage(x, least, key):
        wf.check((x >= least) & (x < 124), "large", row=x)
        return x + 100, wf.sum(x, over="batch d")

    # A stage that waits for its first microbatch works on one that has not been through the stages before.
    last, total = wf.pipeline(stage, x, wf.tensor(np.float32([0, 100]), [S]), over=S, micro=2)
    return wf.sum(last * last, over="batch d") + total


_LOOPS = {
    "scan": (_scan, r"at \[batch=6\] \(row=24.0\)"),
    "nested": (_nested, r"at \[batch=6\] \(row=24.0\)"),
    "turns that all see one row": (_in_turns_that_all_see_one_row, r"at \[batch=6\] \(row=24.0\)"),
    "remat": (lambda x: _scan(x, wf.remat(_square)), r"at \[batch=6\] \(row=24.0\)"),
    "branch": (_branch_that_only_checks, r"at \[batch=6\] \(row=24.0\)"),
    "vmap": (_mapped, r"\(row=24.0\)"),
    "accumulate": (_accumulated, r"at \[batch=3 d=0\] \(row=24.0\)"),  # row 6 is row 3 of microbatch 0
    "pipeline": (_pipelined, r"at \[batch=3 d=0\] \(row=124.0\)"),
}


@pytest.mark.parametrize("loop", _LOOPS)
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_a_check_in_a_loop_raises_where_the_loop_is_differentiated(loop):
    fn, found = _LOOPS[loop]
    layout = "batch:x,stage:y" if loop == "pipeline" else "batch:x"
    run = wf.spmd(wf.value_and_grad(fn), mesh="x=2,y=2", layout=layout)
    with pytest.raises(wf.CheckError, match=f"check failed: large {found}"):
        run(X)
    value, _ = run(X * 0.5)  # nothing is left behind, and good values pass
    np.testing.assert_allclose(value.array, fn(X * 0.5).array, rtol=1e-6)


@pytest.mark.parametrize("layout", ["", "batch:x"])
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_print_in_a_loop_prints_each_turn_where_it_is_differentiated(layout, capfd):
    def turn(carry, row):
        wf.print("sum {}", wf.sum(row, over=B))
        return carry + row * row, None

    wf.spmd(wf.value_and_grad(lambda x: _scan(x, turn)), mesh="x=2", layout=layout)(X)
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "sum 112.0", "sum 120.0", "sum 128.0", "sum 136.0"]


def test_stages_that_run_in_turn_show_what_is_for_them(capfd):
    def stage(x, least):
        wf.print("least {} of {}", wf.min(x, over="batch d"), least)
        return x + 100, wf.sum(x, over=D)

    def run(x, least):
        return in_turn(stage, x, least)[0]

    wf.spmd(run, mesh="x=2,y=2", layout="batch:x,stage:y")(X, wf.tensor(np.float32([0, 100]), [S]))
    jax.effects_barrier()
    assert capfd.readouterr().out == "least 0.0 of 0.0\nleast 100.0 of 100.0\n"
