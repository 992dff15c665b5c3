"""Dropless experts against a loop over experts; under layouts; what is sent and computed; shared experts."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.ops.test_meanings import EPS
from tests.programs.everywhere import assert_close, outcome, plain_outcome
from weft import nn

from .cases import B, D, E, F, T, X, made

TOKENS = B.size * T.size
TOKEN_BYTES = TOKENS * D.size * 4
TERMS = 2 * TOKENS


def layer(**how: Any) -> nn.MixtureOfExperts:
    return made(nn.MixtureOfExperts(D, F, E, **({"gating": "dropless"} | how)))


def by_loop(layer: nn.MixtureOfExperts, x: Any) -> Any:
    """Every expert on every token, and of that only what the gate chose."""
    share = jax.nn.softmax(x @ layer.gate, -1)
    best, chosen = jax.lax.top_k(share, layer.top_k)
    best = best / best.sum(-1, keepdims=True) if layer.top_k > 1 else best
    y = jnp.zeros_like(x)
    for e in range(E.size):
        hidden = jax.nn.relu(x @ layer.w_in[e])
        if layer.w_gate is not None:
            hidden = jax.nn.relu(x @ layer.w_gate[e]) * (x @ layer.w_in[e])
        y = y + hidden @ layer.w_out[e] * jnp.sum(jnp.where(chosen == e, best, 0), -1, keepdims=True)
    if layer.shared is not None:
        y = y + jax.nn.relu(x @ layer.shared.w_in) @ layer.shared.w_out
    return y


CASES = {
    "one": dict(top_k=1),
    "three, gated": dict(top_k=3, gated=True),
    "shared": dict(top_k=2, shared_experts=2),
    "all": dict(top_k=8),
}


def run(layer: Any, x: wf.Tensor) -> Any:
    return layer(x)[0]


@pytest.mark.quick("three, gated")
@pytest.mark.parametrize("case", [*list(CASES)[:3], pytest.param("all", marks=pytest.mark.slow)])
def test_values_and_gradients_are_those_of_a_loop_over_experts(case):
    made_layer = layer(**CASES[case])
    assert_close(outcome(None, run, made_layer, X), plain_outcome(by_loop, made_layer, X), TERMS)


def test_no_token_is_dropped_where_all_choose_one_expert():
    x = wf.tensor(np.abs(np.asarray(X.array)) + 0.1, X.dims)
    gate = np.zeros((D.size, E.size), "float32")
    gate[:, 5] = 50.0
    one = layer(top_k=1)
    one = eqx.tree_at(lambda m: m.gate, one, wf.parameter(gate, one.gate.dims))
    want = by_loop(jax.tree.map(lambda w: w.array, one, is_leaf=lambda w: isinstance(w, wf.Tensor)), x.array)
    for place in (None, ("x=8", "batch:x,experts:x")):
        fn = jax.jit(lambda m, x: m(x)) if place is None else wf.spmd(lambda m, x: m(x), mesh=place[0], layout=place[1])
        y, told = fn(one, x)
        np.testing.assert_allclose(y.array, want, rtol=0, atol=256 * EPS)
        assert float(told["dropped"]) == 0 and float(told["routed"]) == TOKENS


def test_its_report_is_that_of_every_gating():
    slotted = made(nn.MixtureOfExperts(D, F, E, gating="top_k", top_k=3, capacity=100.0))
    want, got = jax.jit(lambda a, b, x: (a(x), b(x)))(slotted, layer(top_k=3), X)
    np.testing.assert_allclose(got[0].array, want[0].array, rtol=0, atol=256 * EPS)
    for name, value in want[1].items():
        assert float(got[1][name]) == pytest.approx(float(value), rel=64 * EPS), name


def test_single_tokens_go_to_the_same_experts():
    whole, single = jax.jit(lambda m, x: (run(m, x)["length", 3], run(m, x["length", 3])))(layer(top_k=2), X)
    np.testing.assert_allclose(single.array, whole.array, rtol=0, atol=256 * EPS)


def test_padding_reaches_no_gradient():
    both = layer(top_k=2)
    padded = wf.tensor(np.concatenate([np.asarray(X.array), np.full((2, T.size, D.size), np.nan, "float32")]),
                       [wf.Dim("batch", 10, valid=8), T, D])  # fmt: skip
    loss = lambda m, x: wf.sum(wf.mean(wf.square(run(m, x)), over="batch length"), over=D)  # noqa: E731
    found, want = (jax.tree.leaves(jax.jit(wf.grad(loss))(both, x)) for x in (padded, X))
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=256 * EPS)


# ---- layouts

PLACES = [
    ("x=4,y=2", "batch:x+y,experts:x"),
    ("x=2,y=2,z=2", "length:x,experts:x,d_ff:y,d_model:z"),
]
MORE = [
    ("x=8", "batch:x"),
    ("x=8", "experts:x"),
    ("x=8", "batch:x,experts:x"),
    ("x=4,y=2", "experts:x,d_ff:y"),
    ("x=4,y=2", "batch:x,experts:x,d_ff:y,params.d_model:x"),
    ("x=4,y=2", "batch:x,length:y,experts:y,params.d_ff:x"),
    ("x=2,y=2,z=2", "batch:x,experts:x+y,length:z"),
    ("x=2,y=2,z=2", "batch:x,experts:y,d_model:z"),
    ("x=2,y=4", "d_model:y,length:x,experts:x"),
    ("x=2,y=2,z=2", "batch:x+y,experts:y+x,d_ff:z,params.experts:z"),
]


def program(layer: Any, x: wf.Tensor) -> Any:
    return layer(x, key=jax.random.key(3))


@functools.cache
def alone(case: str) -> Any:
    return outcome(None, program, layer(**CASES[case], jitter=0.2), X)


@pytest.mark.parametrize(
    ("case", "place"),
    [("shared", PLACES[0]), ("three, gated", PLACES[1])]
    + [pytest.param(case, place, marks=pytest.mark.slow) for case in CASES for place in (*PLACES, *MORE)],
)
def test_no_layout_changes_values_or_gradients(case, place):
    assert_close(outcome(place, program, layer(**CASES[case], jitter=0.2), X), alone(case), TERMS)


def large(place: tuple[str, str], top_k: int = 2, rename: Any = None) -> list[tuple[Any, ...]]:
    """What is sent forward of more than a few numbers for each token."""
    program = lambda layer, x: layer(x, rename=rename)[0]  # noqa: E731
    rows = wf.trace(program, layer(top_k=top_k), X, mesh=place[0], layout=place[1]).ledger.rows
    return [(row.collective, row.axes, row.bytes) for row in rows if row.bytes > 4 * top_k * TOKENS]


def test_tokens_are_sent_once_to_all_who_may_have_their_expert():
    assert large(("x=8", "batch:x")) == []
    assert large(("x=8", "experts:x")) == [("all_reduce", ("x",), TOKEN_BYTES)]
    assert large(("x=8", "d_ff:x")) == [("all_reduce", ("x",), TOKEN_BYTES)]
    both = [("all_gather", ("x",), TOKEN_BYTES), ("reduce_scatter", ("x",), TOKEN_BYTES)]
    assert large(("x=8", "batch:x,experts:x")) == both
    assert large(("x=8", "length:x,experts:x")) == both
    stream = {"length": wf.Dim("stream", T.size, "length")}
    assert large(("x=8", "experts:x,stream:x"), rename=stream) == [("reduce_scatter", ("x",), TOKEN_BYTES)]


@pytest.mark.parametrize("top_k", [1, 3])
def test_flops_are_those_of_the_chosen_experts(top_k):
    gate, expert = 2 * D.size * E.size, 2 * 2 * D.size * F.size
    for layout in ("batch:x", "batch:x,experts:x", "experts:x"):  # of a processor's share, if routing is even
        program = wf.trace(run, layer(top_k=top_k), X, mesh="x=8", layout=layout)
        assert program.flops_useful == TOKENS // 8 * (gate + top_k * expert)
    of = wf.trace(run, layer(top_k=top_k), X, mesh="x=8", layout="batch:x").flops
    assert of == TOKENS // 8 * (gate + top_k * expert)
    loss = lambda layer, x: wf.sum(run(layer, x), over=x.dims)  # noqa: E731
    both = wf.trace(wf.grad(loss, argnums=(0, 1)), layer(top_k=top_k), X, mesh="x=8", layout="batch:x").flops
    assert TOKENS // 8 * 3 * top_k * expert <= both <= TOKENS // 8 * 3 * (gate + top_k * expert)


# ---- errors


def test_more_choices_than_experts_are_refused():
    with pytest.raises(wf.DimError, match="a token goes to 9 of 8 experts"):
        nn.MixtureOfExperts(D, F, E, gating="dropless", top_k=9)


def test_dropout_inside_is_refused():
    with pytest.raises(wf.TensorError, match="dropless experts have none inside"):
        nn.MixtureOfExperts(D, F, E, gating="dropless", dropout=0.1)
