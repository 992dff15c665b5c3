"""Recurrent: a sequential scan, one that splits, and the gradients of each example by itself."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import weft as wf

from .everywhere import assert_close, at_each, outcome, plain_outcome, sends, values, weights

B, T, N, D = wf.dims(batch=4, length=8, hidden=8, d_model=4)

# ---- as a user writes it


def lstm(p, xs):
    def cell(carry, x):
        h, c = carry
        i, f, g, o = (wf.einsum(x, p[n], over=D) + wf.einsum(h.rename(hidden="state"), p["h" + n], over="state") for n in "ifgo")  # fmt: skip  # noqa: E501
        c = wf.sigmoid(f) * c + wf.sigmoid(i) * wf.tanh(g)
        h = wf.sigmoid(o) * wf.tanh(c)
        return (h, c), h

    (h, c), ys = wf.scan(cell, (wf.zeros([B, N]), wf.zeros([B, N])), xs, over=T)  # length:x → a clear error
    return h, c, ys


def linear(decay, inputs):
    _, ys = wf.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decay, inputs), over=T)  # length:x → local scan + a small exchange  # fmt: skip  # noqa: E501
    return ys


def loss(p, x):  # of one example, [length d_model]
    ys = linear(wf.sigmoid(wf.einsum(x, p["i"], over=D)), wf.einsum(x, p["g"], over=D))
    return wf.sum(wf.square(ys), over=[T, N])


per_example = wf.vmap(wf.grad(loss), over=B)

# ---- what it leaves out


def plain_lstm(p: Any, xs: Any) -> Any:
    h = c = jnp.zeros((B.size, N.size))
    ys = []
    for t in range(T.size):
        i, f, g, o = (xs[:, t] @ p[n] + h @ p["h" + n] for n in "ifgo")
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        ys.append(h)
    return h, c, jnp.stack(ys)


def plain_linear(decay: Any, inputs: Any) -> Any:
    y, ys = jnp.zeros((B.size, N.size)), []
    for t in range(T.size):
        y = decay[:, t] * y + inputs[:, t]
        ys.append(y)
    return jnp.stack(ys, axis=1)


def plain_per_example(p: Any, xs: Any) -> Any:
    def loss(p: Any, x: Any) -> Any:
        y, total = jnp.zeros(N.size), 0.0
        for t in range(T.size):
            y = jax.nn.sigmoid(x[t] @ p["i"]) * y + x[t] @ p["g"]
            total += jnp.sum(y * y)
        return total

    return jax.vmap(jax.grad(loss), in_axes=(None, 0))(p, xs)


P = weights(**{n: [D, N] for n in "ifgo"}, **{"h" + n: [wf.Dim("state", N.size), N] for n in "ifgo"})
FEW = {n: P[n] for n in "ig"}
XS = wf.tensor(values([B, T, D], 8), [B, T, D])
DECAY, INPUTS = (wf.tensor(values([B, T, N], seed), [B, T, N]) for seed in (9, 10))
GIVEN = {lstm: (P, XS), linear: (DECAY, INPUTS), per_example: (FEW, XS)}
TERMS = B.size * T.size * N.size


@functools.cache
def unsplit(program: Any) -> Any:
    return outcome(None, program, *GIVEN[program])


@pytest.mark.parametrize(
    ("program", "plain"), [(lstm, plain_lstm), (linear, plain_linear), (per_example, plain_per_example)]
)
def test_without_a_mesh_it_is_what_plain_jnp_gives(program, plain):
    assert_close(unsplit(program), plain_outcome(plain, *GIVEN[program]), TERMS)


@pytest.mark.quick("x=4 hidden:x", "x=2,y=2 batch:x,state:y")
@at_each(("x=4", "batch:x"), ("x=4", "hidden:x"), ("x=2,y=2", "batch:x,hidden:y"), ("x=2,y=2", "batch:x,state:y"))
def test_a_sequential_scan_is_the_same_everywhere(place):
    assert_close(outcome(place, lstm, *GIVEN[lstm]), unsplit(lstm), TERMS)


@pytest.mark.quick("x=2,y=2 length:y+x", "x=2,y=4 batch:x,length:y")
@at_each(("x=4", "length:x"), ("x=2,y=2", "length:y+x"), ("x=2,y=4", "batch:x,length:y"), ("x=4", "hidden:x"))
def test_an_associative_scan_is_the_same_everywhere(place):
    assert_close(outcome(place, linear, *GIVEN[linear]), unsplit(linear), TERMS)


@pytest.mark.quick("x=2,y=2 batch:x,length:y", "x=2,y=4 batch:x,hidden:y")
@at_each(("x=4", "batch:x"), ("x=2,y=2", "batch:x,length:y"), ("x=2,y=4", "batch:x,hidden:y"))
def test_gradients_of_each_example_are_the_same_everywhere(place):
    assert_close(outcome(place, per_example, *GIVEN[per_example]), unsplit(per_example), TERMS)


def test_a_sequential_scan_along_a_split_dim_is_a_clear_error():
    with pytest.raises(wf.LayoutError) as caught:
        wf.spmd(lstm, mesh="x=4", layout="length:x")(P, XS)
    assert "scan goes over `length`" in caught.value.fact and "`x`" in caught.value.fact
    assert "rename" in caught.value.fix and "wf.associative_scan" in caught.value.fix
    assert "test_e_recurrent.py" in caught.value.state and "length:x" in caught.value.state


def test_an_associative_scan_sends_one_total_of_each_slice():
    rows = wf.trace(linear, DECAY, INPUTS, mesh="x=4", layout="length:x").ledger.rows
    assert [(row.collective, row.bytes) for row in rows] == [("all_gather", 4 * 4 * B.size * N.size)] * 2


def test_gradients_of_each_example_are_not_summed():
    assert sends(("x=4", "batch:x"), per_example, FEW, XS) == {}
