"""Ops on values: compiled as a whole, and the same as when they run as they are written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from weft.lower import eager

A, B, C = wf.dims(a=4, b=6, c=5)
X = wf.tensor(jnp.arange(24.0).reshape(4, 6) / 7 - 1, [A, B])
Y = wf.tensor(jnp.arange(30.0).reshape(6, 5) / 9, [B, C])
IDS = wf.tensor(jnp.array([3, 0, 1]), "n")
KEY = jax.random.key(3)

CALLS = {
    "add": lambda: X + X,
    "add by name": lambda: X + wf.tensor(jnp.ones(6), [B]),
    "number": lambda: 2 - X,
    "whole power": lambda: X**3,
    "where": lambda: wf.where(X > 0, X, 0.0),
    "clip": lambda: wf.clip(X, -1, 1.5),
    "einsum": lambda: wf.einsum(X, Y, over=B),
    "mean": lambda: wf.mean(X, over="a"),
    "softmax": lambda: wf.softmax(X, over=B),
    "take": lambda: wf.take(X, IDS, over=A),
    "top_k": lambda: wf.top_k(X, over=B, k=wf.Dim("top", 2)),
    "concat": lambda: wf.concat([X, X], over=A),
    "roll": lambda: wf.roll(X, over=A, by=1),
    "dropout": lambda: wf.dropout(X, 0.5, KEY),
    "arange": lambda: wf.arange(A),
    "function of JAX": lambda: wf.elementwise(jnp.tanh, X),
}


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    monkeypatch.setattr(eager, "_compiled", {})
    monkeypatch.setattr(eager, "_called_once", set())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_op_gives_the_same_compiled_and_as_it_is_written(call, monkeypatch):
    results = [call() for _ in range(3)]
    assert any(program is not None for program in eager._compiled.values())
    monkeypatch.setattr(eager, "run_compiled", lambda *_, **__: NotImplemented)
    written = call()
    for result in results:
        assert jax.tree.structure(result) == jax.tree.structure(written)
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(written), strict=True):
            assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)
            np.testing.assert_allclose(a, b, rtol=4e-7, atol=1e-7)  # a few roundings of float32


def compiled():
    return [program for program in eager._compiled.values() if program is not None]


def test_numbers_that_change_compile_nothing_anew():
    traced = []
    for number in (0.1, 0.2, 0.3, -0.0):
        np.testing.assert_array_equal((X * number).array, X.array * number)
        traced.append(len(compiled()))
    assert traced == [1] * 4
    for by in (1, 2, 3):
        np.testing.assert_array_equal(wf.roll(X, over=A, by=by).array, jnp.roll(X.array, by, 0))
    assert len(compiled()) == 1
    wf.roll(X, over=A, by=3)
    assert len(compiled()) == 2


def test_equal_numbers_of_other_types_are_other_calls():
    for exponent in (2, 2.0, 2, 2.0, True):
        got, want = X**exponent, X.array**exponent
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.array, want)
    ints = wf.tensor(jnp.arange(4), [A])
    for number in (1, 1.0, True, 1, 1.0, True):
        assert (ints * number).dtype == (ints.array * number).dtype
    signs = [wf.full([A], zero).array for zero in (0.0, -0.0, 0.0, -0.0)]
    assert [bool(jnp.signbit(array[0])) for array in signs] == [False, True, False, True]


def test_what_is_given_back_is_not_copied():
    for _ in range(3):
        assert wf.cast(X, "float32") is X
        assert X.rename(a="q").array is X.array
    assert compiled() == []


def test_functions_of_ones_own_run_as_they_are_written():
    factors = {"one": 1.0}

    def scale(v):
        return v * factors["one"]

    for factors["one"] in (2.0, 3.0):
        np.testing.assert_array_equal(wf.elementwise(scale, X).array, X.array * factors["one"])
    assert compiled() == []


def test_errors_are_those_of_the_op():
    for _ in range(3):
        with pytest.raises(wf.DimError, match="not among the dims"):
            wf.sum(X, over="zzz")
        with pytest.raises(wf.TensorError, match="does not fit uint32"):
            wf.tensor(jnp.arange(4), [A]) + 2**40
    gone = wf.tensor(jnp.ones(4), [A])
    gone + 1
    gone.array.delete()
    with pytest.raises(wf.RegionError, match="given up"):
        gone + 1


def test_a_dict_by_dims_is_no_error():
    image = wf.tensor(jnp.ones((4, 6)), [A, B])
    assert wf.max_pool(image, window={A: 2, B: 2}).dims.sizes == (2, 3)


def test_inside_someones_trace_nothing_is_compiled_apart():
    jaxpr = jax.make_jaxpr(lambda v: wf.einsum(wf.tensor(v, [A, B]), Y, over=B).array)(X.array)
    constants = jax.make_jaxpr(lambda: wf.add(Y, Y).array)()
    assert compiled() == []
    assert "run" not in str(jaxpr) + str(constants)


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(eager, "_MOST", 3)
    for size in range(1, 9):
        wf.sum(wf.tensor(jnp.ones(size), [wf.Dim("n", size)]), over="n")
        wf.roll(X, over=A, by=size)
    assert len(eager._compiled) <= 3 and len(eager._called_once) <= 3
