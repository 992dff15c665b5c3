"""A table of inputs nobody should give: each is a named error, never a traceback of JAX or Python."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weft as wf

from .raised import error_of, on_rows

batch, length, d, vocab = wf.dims(batch=8, length=4, d=16, vocab=12)
x = wf.tensor(np.arange(128, dtype="float32").reshape(8, 16), [batch, d])
w = wf.tensor(np.ones((16, 32), "float32"), "d f")
ids = wf.tensor(np.zeros((8, 4), "int32"), [batch, length])
key = jax.random.key(0)


class Odd:
    """An object that is no array, no number and no tree."""


WRONG = {
    # what a tensor is made of
    "tensor of an object": lambda: wf.tensor(Odd(), []),
    "tensor of text": lambda: wf.tensor("abc", []),
    "tensor of None": lambda: wf.tensor(None, []),
    "tensor of a ragged list": lambda: wf.tensor([[1, 2], [3]], "batch d"),
    "tensor of words": lambda: wf.tensor(np.array(["a", "b"]), "batch"),
    "tensor of objects": lambda: wf.tensor(np.array([Odd()]), "batch"),
    "tensor of dates": lambda: wf.tensor(np.array(["2018-01-01"], "datetime64[D]"), "batch"),
    "tensor of a tensor": lambda: wf.tensor(x, "batch d"),
    "tensor of no rows": lambda: wf.tensor(np.ones((0, 4)), "batch d"),
    "parameter of a tensor of other dims": lambda: wf.parameter(x, "batch k"),
    # operands
    "add text": lambda: x + "a",
    "add None": lambda: x + None,
    "add a list": lambda: x + [1, 2],
    "add an object": lambda: x + Odd(),
    "compare with None": lambda: x == None,  # noqa: E711
    "add a number too large": lambda: ids + 2**40,
    "power of text": lambda: x ** "a",
    "and of floats": lambda: x & x,
    "invert floats": lambda: ~x,
    "negative of booleans": lambda: -(x > 0),
    "exp of nothing": lambda: wf.exp(),
    "exp of a number": lambda: wf.exp(2.0),
    "exp of two": lambda: wf.exp(x, x),
    "where of text": lambda: wf.where("a", x, x),
    "gelu of text": lambda: wf.gelu("a"),
    "elementwise of no function": lambda: wf.elementwise(3, x),
    "elementwise of a sum": lambda: wf.elementwise(jnp.sum, x),
    "elementwise that gives a pair": lambda: wf.elementwise(lambda a: (a, a), x),
    "elementwise that gives nothing": lambda: wf.elementwise(lambda a: None, x),
    "elementwise of a product": lambda: wf.elementwise(lambda a: a @ a, x),
    "stop_gradient of text": lambda: wf.stop_gradient("a"),
    # dtypes
    "cast to no dtype": lambda: wf.cast(x, "flot32"),
    "cast to a number": lambda: wf.cast(x, 3),
    "cast to None": lambda: wf.cast(x, None),
    "cast of text": lambda: wf.cast("a", "float32"),
    "einsum in no dtype": lambda: wf.einsum(x, w, over="d", dtype="flot"),
    "sum in no dtype": lambda: wf.sum(x, over="d", dtype="flot"),
    "zeros of no dtype": lambda: wf.zeros([batch], dtype="flot"),
    "arange of no dtype": lambda: wf.arange(batch, dtype="flot"),
    "one_hot of no dtype": lambda: wf.one_hot(ids, vocab, dtype="flot"),
    # einsum and reductions
    "einsum of text": lambda: wf.einsum("bd,df->bf", x, w, out="batch f"),
    "einsum of a number": lambda: wf.einsum(x, 2.0, over="d"),
    "einsum of booleans": lambda: wf.einsum(x > 0, over="d"),
    "einsum renamed by text": lambda: wf.einsum(x, w, over="d", rename="f"),
    "einsum renamed by a summed dim": lambda: wf.einsum(x, w, over="d", rename={"d": "d_2"}),
    "einsum renamed to another size": lambda: wf.einsum(x, w, over="d", rename={"f": wf.Dim("g", 3)}),
    "einsum with a name twice in out": lambda: wf.einsum(x, w, out="batch batch"),
    "einsum out of a number": lambda: wf.einsum(x, w, out=3),
    "sum of a number": lambda: wf.sum(3.0, over="d"),
    "mean of text": lambda: wf.mean("x", over="d"),
    "softmax of integers over nothing known": lambda: wf.softmax(ids, over="vocab"),
    "logsumexp over a number": lambda: wf.logsumexp(x, over=0),
    # ids
    "take with ids of floats": lambda: wf.take(w, x.rename(d="k"), over="d"),
    "take with ids of booleans": lambda: wf.take(w, ids > 0, over="d"),
    "take over two dims": lambda: wf.take(w, ids, over="d f"),
    "take from a raw table": lambda: wf.take(np.ones((3, 4)), ids, over="d"),
    "one_hot of floats": lambda: wf.one_hot(x, vocab),
    "one_hot along a name": lambda: wf.one_hot(ids, "vocab"),
    "one_hot along a dim it has": lambda: wf.one_hot(ids, batch),
    # new tensors
    "zeros of a number": lambda: wf.zeros(3),
    "zeros like an array": lambda: wf.zeros([batch], like=np.ones(8)),
    "full of text": lambda: wf.full([batch], "a"),
    "full of a tensor with dims": lambda: wf.full([batch], x),
    "full of an array": lambda: wf.full([batch], np.ones(8)),
    "arange of two dims": lambda: wf.arange([batch, d]),
    "arange of a number": lambda: wf.arange(8),
    "broadcast to a number": lambda: wf.broadcast(x, 3),
    "broadcast to a new name": lambda: wf.broadcast(x, "batch d new"),
    "rename to a number": lambda: x.rename(batch=3),
    "rename to no name": lambda: x.rename(batch="a b"),
    "rename of an array": lambda: wf.rename(np.ones(3), a="b"),
    # random numbers
    "normal with a key of the old kind": lambda: wf.random.normal(jax.random.PRNGKey(0), [batch]),
    "normal with a number for its key": lambda: wf.random.normal(0, [batch]),
    "normal with no key": lambda: wf.random.normal(None, [batch]),
    "normal with several keys": lambda: wf.random.normal(jax.random.split(key, 3), [batch]),
    "normal with a key of another kind": lambda: wf.random.normal(jax.random.key(0, impl="rbg"), [batch]),
    "normal with a tensor for its key": lambda: wf.random.normal(x, [batch]),
    "normal of integers": lambda: wf.random.normal(key, [batch], dtype="int32"),
    "normal along a name alone": lambda: wf.random.normal(key, "batch"),
    "uniform of integers": lambda: wf.random.uniform(key, [batch], dtype="int32"),
    "uniform from text": lambda: wf.random.uniform(key, [batch], minval="a"),
    "bernoulli with chances for each": lambda: wf.random.bernoulli(key, [batch], p=x),
    "bernoulli with a chance of 2": lambda: wf.random.bernoulli(key, [batch], p=2),
    "truncated_normal of integers": lambda: wf.random.truncated_normal(key, [batch], dtype="int32"),
    "dropout at rate 2": lambda: wf.dropout(x, 2, key),
    "dropout at rate 1": lambda: wf.dropout(x, 1.0, key),
    "dropout at rate -0.1": lambda: wf.dropout(x, -0.1, key),
    "dropout at no number": lambda: wf.dropout(x, float("nan"), key),
    "dropout at text": lambda: wf.dropout(x, "a", key),
    "dropout without a key": lambda: wf.dropout(x, 0.5, None),
    "dropout with rate and key swapped": lambda: wf.dropout(x, key, 0.5),
    # functions that are none
    "spmd of a number": lambda: wf.spmd(3, mesh="rows=4", layout="batch:rows"),
    "trace of a number": lambda: wf.trace(3, x, mesh="rows=4", layout="batch:rows"),
    "scan of a number": lambda: wf.scan(3, wf.zeros([]), x, over="batch"),
    "cond of a number": lambda: wf.cond(True, 3, lambda x: x, x),
    "cond without a second branch": lambda: wf.cond(True, lambda x: x, x),
    "while_loop of a number": lambda: wf.while_loop(3, lambda c: c, x),
    "fori_loop from text": lambda: wf.fori_loop("a", 3, lambda i, c: c, x),
    "fori_loop to None": lambda: wf.fori_loop(0, None, lambda i, c: c, x),
    "fori_loop to a fraction": lambda: wf.fori_loop(0, 3.5, lambda i, c: c, x),
    "fori_loop to a tensor with dims": lambda: wf.fori_loop(0, ids, lambda i, c: c, x),
    "vmap of a number": lambda: wf.vmap(3, over="batch")(x),
    "remat of a number": lambda: wf.remat(3)(x),
    "remat that saves a number": lambda: wf.remat(lambda x: x, save=3)(x),
    "remat that gives text": lambda: wf.remat(lambda x: "a")(x),
    "name that is a number": lambda: wf.name(x, 3),
    "name of an array": lambda: wf.name(np.ones(3), "a"),
    "train_step of a number": lambda: wf.train_step(3, optax.sgd(0.1)),
    "train_step by a number": lambda: wf.train_step(lambda p, b, k: p, 3),
    # trees
    "a scan's carry of text": lambda: wf.scan(lambda c, row: (c, None), "a", x, over="batch"),
    "a scan's results of text": lambda: wf.scan(lambda c, row: (c, "a"), 0.0, x, over="batch"),
    "a scan along an array": lambda: wf.scan(lambda c, row: (c, None), 0.0, np.ones(8), over=batch),
    "a scan unrolled by text": lambda: wf.scan(lambda c, row: (c, None), 0.0, x, over="batch", unroll="a"),
    "a branch that gives text": lambda: wf.cond(True, lambda x: "a", lambda x: "a", x),
    "a branch on text": lambda: wf.cond(True, lambda s: s, lambda s: s, "abc"),
    "a map that gives text": lambda: wf.vmap(lambda row: "a", over="batch")(x),
    # arguments of a region
    "an argument of words": lambda: on_rows(lambda x, s: x)(x, np.array("a")),
    "an argument that is an object array": lambda: on_rows(lambda x, s: x)(x, np.array(Odd())),
    "an argument that cannot be hashed": lambda: on_rows(lambda x, s: x)(x, bytearray(b"a")),
    "an argument too large": lambda: on_rows(lambda x, n: x * n)(x, 2**40),
    "several keys": lambda: on_rows(lambda x, k: x)(x, jax.random.split(key, 3)),
    "a rule for a dim that a partial hides": lambda: on_rows(functools.partial(lambda n, x: x * n, 2), "q:rows")(x),
    # printing
    "print of a number for its text": lambda: wf.print(3, x),
    "print of an array": lambda: wf.print("{}", np.ones(3)),
    "print of too few": lambda: wf.print("{} {}", x),
    # placing
    "put on a number": lambda: wf.put(x, mesh=3, layout=""),
    "put by a number": lambda: wf.put(x, mesh="rows=4", layout=3),
    "put of rows that do not divide": lambda: wf.put(
        wf.zeros([wf.Dim("batch", 6)]), mesh="rows=4", layout="batch:rows"
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_input_is_a_named_error(case):
    error_of(WRONG[case])


NEEDS_NO_MORE = ["cast to no dtype", "dropout at rate 2", "one_hot of floats", "normal with a key of the old kind"]


def test_the_fixes_of_some_of_them():
    fixes = {case: error_of(WRONG[case]).fix for case in NEEDS_NO_MORE}
    assert "float32" in fixes["cast to no dtype"]
    assert "[0, 1)" in fixes["dropout at rate 2"] and "0.1" in fixes["dropout at rate 2"]
    assert "wf.cast(ids, 'int32')" in fixes["one_hot of floats"]
    assert "jax.random.key(seed)" in fixes["normal with a key of the old kind"]
    assert wf.cast(x, "float32").dtype == "float32"
    assert wf.dropout(x, 0.1, key).dims == x.dims
    assert wf.one_hot(wf.cast(x, "int32"), vocab).dims == (batch, d, vocab)
    np.testing.assert_array_equal(wf.random.normal(key, [batch]).array, jax.random.normal(key, (8,)))


def test_more_names_than_the_alphabet_has_letters_are_no_error():
    many = [wf.tensor(np.full(1, 2, "float32"), f"a{i}") for i in range(60)]
    assert float(wf.einsum(*many, out=[])) == 2.0**60


def test_a_function_given_too_few_arguments_is_told_which():
    with pytest.raises(wf.TensorError, match="missing 1 required positional argument: 'y'"):
        on_rows(lambda x, y: x)(x)
