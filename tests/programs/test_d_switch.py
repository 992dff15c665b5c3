"""A switch layer with capacity: tokens sent to experts, and back, by name."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf

from .everywhere import (
    assert_close,
    at_each,
    outcome,
    plain_outcome,
    sends,
    values,
    weights,
    with_gradients,
)

B, T, D, F, R, Cap = wf.dims(batch=4, length=8, d_model=8, d_ff=16, router=4, capacity=3)
E, EB = wf.Dim("experts", R.size), wf.Dim("expert_batch", B.size, follows="batch")

# ---- as a user writes it


# fmt: off
def switch(p, x):
    gate  = wf.softmax(wf.einsum(x, p["gate"], over=D), over="router")
    who   = wf.argmax(gate, over="router")
    hot   = wf.one_hot(who, R, dtype="int32")
    place = wf.cumsum(hot, over=T) - 1                        # position within the expert; beyond capacity: one_hot gives zeros  # noqa: E501
    send  = hot * wf.one_hot(wf.sum(place * hot, over=R), Cap)
    z     = wf.einsum(send, x, out=[B, R, Cap, D]).rename(batch=EB, router=E)      # batch:x,experts:x → one all-to-all; batch:x alone → nothing  # noqa: E501
    h     = wf.einsum(wf.relu(wf.einsum(z, p["w1"], over=D)), p["w2"], over=F)
    y     = wf.einsum(send * wf.max(gate, over=R), h.rename(expert_batch=B, experts=R), out=[B, T, D])
    return y
# fmt: on


# ---- what it leaves out


def plain(p: Any, x: Any) -> Any:
    """Every token by the weights of its own expert, those that found room."""
    hidden = jax.nn.relu(jnp.einsum("btd,btdf->btf", x, p["w1"][WHO]))
    y = jnp.einsum("btf,btfd->btd", hidden, p["w2"][WHO])
    chance = jnp.take_along_axis(jax.nn.softmax(x @ p["gate"]), WHO[..., None], -1)
    return jnp.where(ROOM[..., None], y * chance, 0)


def found_room(who: np.ndarray) -> np.ndarray:
    """Which tokens come among the first of their row at their expert."""
    before = [[(row[:t] == row[t]).sum() for t in range(T.size)] for row in who]
    return np.array(before) < Cap.size


P = weights(gate=[D, R], w1=[E, D, F], w2=[E, F, D])
X = wf.tensor(values([B, T, D], 6), [B, T, D])
WHO = np.argmax(np.asarray(X.array) @ np.asarray(P["gate"].array), -1)
ROOM = found_room(WHO)
TERMS = B.size * T.size * F.size


@functools.cache
def unsplit() -> Any:
    return outcome(None, switch, P, X)


def test_without_a_mesh_it_is_what_plain_jnp_gives():
    assert ROOM.any() and not ROOM.all()
    assert_close(unsplit(), plain_outcome(plain, P, X), TERMS)


@pytest.mark.quick(
    "x=4 length:x", "x=2,y=2 batch:x,experts:x,d_ff:y", "x=2,y=2 experts:x,router:y", "x=2,y=2 batch:x+y,experts:x+y"
)
@at_each(
    ("x=4", "batch:x,experts:x"),
    ("x=4", "batch:x"),
    ("x=4", "length:x"),
    ("x=2,y=2", "batch:x,experts:x,d_ff:y"),
    ("x=2,y=2", "batch:x,length:y"),
    ("x=2,y=2", "experts:x,router:y"),
    ("x=2,y=2", "batch:x+y,experts:x+y"),
)
def test_it_is_the_same_everywhere(place):
    assert_close(outcome(place, switch, P, X), unsplit(), TERMS)


def test_experts_beside_the_batch_are_one_all_to_all_each_way():
    assert sends(("x=4", "batch:x,experts:x"), switch, P, X) == {("all_to_all", "x"): 2}
    tokens = 4 * B.size // 4 * R.size * Cap.size * D.size
    rows = wf.trace(switch, P, X, mesh="x=4", layout="batch:x,experts:x").ledger
    assert [row.bytes for row in rows] == [tokens, tokens]
    back = sends(("x=4", "batch:x,experts:x"), with_gradients(switch), P, X)
    assert back == {("all_to_all", "x"): 4, ("all_reduce", "x"): 1}  # the gradient of the gate


def test_a_batch_alone_moves_no_token():
    assert sends(("x=4", "batch:x"), switch, P, X) == {}


def test_places_along_a_split_length_cost_one_total_each():
    rows = wf.trace(switch, P, X, mesh="x=4", layout="length:x").ledger.rows
    tokens = 4 * B.size * R.size * Cap.size * D.size
    totals = 4 * 4 * B.size * R.size
    assert [(row.collective, row.bytes) for row in rows] == [("all_gather", totals), ("all_reduce", tokens)]
