"""Mixtures of experts against a slow loop over tokens; what is sent; single tokens."""

import math
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import weft as wf
from tests.ops.test_meanings import EPS
from tests.programs.everywhere import sends, total
from weft import nn
from weft.nn.weights import mark_frozen

from .cases import GATINGS, B, D, E, F, T, X, made, normal

TOKENS = B.size * T.size
CAPACITIES = [0.3, 0.75, 1.25, 4.0, 100.0]
# Results are sums of 16 and of 32 products.
CLOSE = {"rtol": 0, "atol": 256 * EPS}


def experts(**how: Any) -> nn.MixtureOfExperts:
    return made(nn.MixtureOfExperts(D, F, E, **how))


def shares(layer: nn.MixtureOfExperts, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores = x.astype("float64") @ np.asarray(layer.gate.array, "float64")
    chance = np.exp(scores - scores.max(-1, keepdims=True))
    return scores, chance / chance.sum(-1, keepdims=True)


def by_expert(layer: nn.MixtureOfExperts, e: int, token: np.ndarray) -> np.ndarray:
    w_in, w_out = (np.asarray(w.array, "float64")[e] for w in (layer.w_in, layer.w_out))
    hidden = np.maximum(token @ w_in, 0)
    if layer.w_gate is not None:
        hidden = np.maximum(token @ np.asarray(layer.w_gate.array, "float64")[e], 0) * (token @ w_in)
    return hidden @ w_out


def placed(layer: nn.MixtureOfExperts, share: np.ndarray, room: int) -> dict[tuple[int, int], float]:
    """Of one sequence: which token found a place at which expert, and with what share it comes back."""
    length, count = share.shape
    if layer.gating == "choice":
        ranked = [sorted(range(length), key=lambda t: (-share[t, e], t))[:room] for e in range(count)]
        return {(t, e): share[t, e] for e in range(count) for t in ranked[e]}
    choices = [sorted(range(count), key=lambda e: (-share[t, e], e)) for t in range(length)]
    taken, found = [0] * count, {}
    for turn in range(layer.top_k):
        for t in range(length):
            e = choices[t][turn]
            if taken[e] < room:
                found[t, e] = share[t, e] / (share[t, choices[t][: layer.top_k]].sum() if layer.top_k > 1 else 1)
            taken[e] += 1
    return found


def reference(layer: nn.MixtureOfExperts, x: np.ndarray, room: int) -> tuple[np.ndarray, dict[str, float]]:
    """One sequence and one token after another, each by the weights of its own expert."""
    scores, share = shares(layer, x)
    y, taken, dropped = np.zeros(x.shape), 0, 0
    for b, sequence in enumerate(x.astype("float64")):
        found = placed(layer, share[b], room)
        for (t, e), part in found.items():
            y[b, t] += part * by_expert(layer, e, sequence[t])
        taken += len(found)
        dropped += len(sequence) - len({t for t, _ in found})
    firsts = np.bincount(share.argmax(-1).ravel(), minlength=share.shape[-1]) / share[..., 0].size
    told = {
        "balance_loss": share.shape[-1] * np.sum(firsts * share.mean((0, 1))),
        "router_z_loss": np.mean(np.log(np.exp(scores).sum(-1)) ** 2),
        "dropped": dropped,
        "routed": taken,
    }
    return y, told


def room_for(gating: str, capacity: float) -> int:
    fair = T.size * (2 if gating == "top2" else 1) / E.size
    return min(max(math.ceil(fair * capacity), 1), T.size)


@pytest.mark.quick("switch-0.3", "switch-100.0", "top2-0.3", "top2-1.25", "choice-0.75", "choice-4.0")
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("gating", GATINGS)
def test_every_gating_is_what_a_loop_over_tokens_gives(gating, capacity):
    layer = experts(gating=gating, capacity=capacity, gated=gating == "top2")
    got, told = jax.jit(lambda m, x: m(x))(layer, X)
    want, want_told = reference(layer, np.asarray(X.array), room_for(gating, capacity))
    np.testing.assert_allclose(got.array, want, **CLOSE)
    assert {name: float(value.array) for name, value in told.items()} == pytest.approx(want_told, rel=64 * EPS)


@pytest.mark.parametrize(("top_k", "capacity"), [(1, 0.75), (3, 0.75), (3, 1.25), (8, 1.0)])
def test_any_number_of_experts_may_have_a_token(top_k, capacity):
    layer = experts(gating="top_k", top_k=top_k, capacity=capacity)
    got, told = jax.jit(lambda m, x: m(x))(layer, X)
    room = min(math.ceil(T.size * top_k / E.size * capacity), T.size)
    want, want_told = reference(layer, np.asarray(X.array), room)
    np.testing.assert_allclose(got.array, want, **CLOSE)
    assert {name: float(value.array) for name, value in told.items()} == pytest.approx(want_told, rel=64 * EPS)


BIAS = wf.tensor(np.array([-3.0, 0.1, -0.2, 0.3, 0.0, -0.4, 0.2, -2.0], "float32"), [E.renamed("router")])


@pytest.mark.quick("True-dropless")
@pytest.mark.parametrize("gating", ["top_k", "dropless"])
@pytest.mark.parametrize("normalised", [True, False])
def test_experts_scored_by_themselves_are_chosen_with_a_bias_that_their_shares_lack(gating, normalised):
    """As DeepSeek-V3's, by a loop over tokens; under a layout too, and with padding no expert more."""
    how = dict(gating=gating, top_k=3, normalised=normalised, scoring="sigmoid", choice_bias=True, routed_scale=2.5)
    layer = made(nn.MixtureOfExperts(D, F, E, **how))
    layer = eqx.tree_at(lambda m: m.choice_bias, layer, mark_frozen(wf.parameter(BIAS.array, BIAS.dims)))
    x = np.asarray(X.array, "float64")
    share = 1 / (1 + np.exp(-x @ np.asarray(layer.gate.array, "float64")))
    want = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:2]):
        best = np.argsort(-(share[place] + np.asarray(BIAS.array)))[:3]
        parts = 2.5 * share[place][best] / (share[place][best].sum() if normalised else 1)
        want[place] = sum(part * by_expert(layer, e, x[place]) for part, e in zip(parts, best, strict=True))
    run = lambda m, x: m.run(x, drops=False)[0]  # noqa: E731
    found = jax.jit(run)(layer, X)
    np.testing.assert_allclose(found.array, want, **CLOSE)
    split = wf.spmd(run, mesh="x=2,y=2", layout="batch:x,experts:x,d_ff:y")(layer, X)
    np.testing.assert_allclose(split.array, want, **CLOSE)
    slopes = wf.grad(lambda m: wf.sum(run(m, X), over=X.dims))(layer)
    assert slopes.choice_bias is None and np.abs(slopes.gate.array).max() > 0


def test_experts_beyond_a_padding_are_never_chosen():
    """A sigmoid of padding is no share, also where a bias makes all others small."""
    few = wf.Dim("experts", 5)
    how = dict(gating="dropless", top_k=2, scoring="sigmoid", choice_bias=True)
    plain, padded = (made(nn.MixtureOfExperts(D, F, dim, **how)) for dim in (few, few.padded_to(8)))
    low = np.full(5, -9.0, "float32")
    for layer in (plain, padded):
        router = layer.gate.dims[1]
        bias = wf.parameter(np.pad(low, (0, router.size - 5)), [router])
        object.__setattr__(layer, "choice_bias", mark_frozen(bias))
    want, found = (jax.jit(lambda m, x: m.run(x)[0])(layer, X) for layer in (plain, padded))
    np.testing.assert_allclose(found.array, want.array, **CLOSE)


@pytest.mark.parametrize("gating", GATINGS)
def test_no_token_is_lost_silently(gating):
    """Every place taken and every token that found none is counted, however few places there are."""
    for capacity in (0.3, 1.25, 100.0):
        layer = experts(gating=gating, capacity=capacity)
        send, _, told = jax.jit(lambda m: m.route(X))(layer)
        by_token = wf.sum(send, over="router slots").array
        send, dropped, routed = np.asarray(send.array), float(told["dropped"].array), float(told["routed"].array)
        assert routed == send.sum() and dropped == np.sum(np.asarray(by_token) == 0)
        if gating == "switch":
            assert routed + dropped == TOKENS
        elif gating == "top2":
            assert TOKENS - dropped <= routed <= 2 * (TOKENS - dropped)
        else:
            assert routed == B.size * E.size * room_for(gating, capacity)
        if capacity == 100.0:
            assert dropped == 0
        if capacity == 0.3:
            assert dropped > 0


def test_a_slot_holds_one_token():
    for gating in GATINGS:
        send = experts(gating=gating, capacity=0.75).route(X)[0]
        assert float(wf.max(wf.sum(send, over="length"), over="batch router slots").array) == 1


@pytest.mark.parametrize("gating", GATINGS)
def test_the_gate_learns_from_the_result_and_from_its_losses(gating):
    parts = (lambda y, told: wf.sum(y * y, over=y.dims), lambda y, told: told["balance_loss"],
             lambda y, told: told["router_z_loss"])  # fmt: skip

    @jax.jit
    def gradients(layer):
        return [wf.grad(lambda m, part=part: part(*m(X)))(layer).gate.array for part in parts]

    for gradient in gradients(experts(gating=gating)):
        assert np.all(np.isfinite(gradient)) and np.abs(gradient).max() > 1e-6


def test_a_gate_that_likes_no_expert_better_has_a_balance_loss_of_1():
    layer = experts()
    same = nn.init(nn.MixtureOfExperts(D, F, E), jax.random.key(0))
    flat = jax.tree.unflatten(jax.tree.structure(same), [a * 0 for a in jax.tree.leaves(same)])
    assert float(flat(X)[1]["balance_loss"].array) == pytest.approx(1, rel=8 * EPS)
    assert float(layer(X)[1]["balance_loss"].array) > 1


def test_ties_go_to_the_first_expert_and_the_earliest_token():
    layer = experts(capacity=1.0)
    zero = jax.tree.map(lambda a: a * 0, layer)
    send = np.asarray(wf.broadcast(zero.route(X)[0], "batch length router slots").array)
    assert [tuple(i) for i in np.argwhere(send[0])] == [(0, 0, 0), (1, 0, 1)]


# ---- without drops, and single tokens


@pytest.mark.parametrize("gating", ["switch", "top2"])
def test_without_drops_every_token_goes_where_it_wants(gating):
    layer = experts(gating=gating, capacity=0.3)
    got, told = layer(X, drops=False)
    want, _ = reference(layer, np.asarray(X.array), T.size)
    np.testing.assert_allclose(got.array, want, **CLOSE)
    assert float(told["dropped"].array) == 0
    assert float(told["routed"].array) == TOKENS * (2 if gating == "top2" else 1)


@pytest.mark.parametrize("gating", ["switch", "top2"])
def test_a_token_without_a_length_is_a_sequence_of_one_with_room(gating):
    layer = experts(gating=gating, capacity=0.3, gated=True)
    x = normal([B, D], 8)
    got, told = jax.jit(lambda m: m(x))(layer)
    one, one_told = jax.jit(lambda m: m(wf.broadcast(x, [B, wf.Dim("length", 1), D]), drops=False))(layer)
    assert got.dims == x.dims
    np.testing.assert_allclose(got.array, np.asarray(one.array)[:, 0], **CLOSE)
    for name, value in told.items():
        assert float(value.array) == pytest.approx(float(one_told[name].array), rel=16 * EPS), name
    assert float(told["dropped"].array) == 0


def test_a_token_among_others_goes_where_it_goes_alone():
    layer = experts(gating="top2")
    whole, _ = layer(X, drops=False)
    alone, _ = layer(X["length", 5])
    np.testing.assert_allclose(alone.array, np.asarray(whole.array)[:, 5], **CLOSE)


# ---- names, padding, noise


def test_dims_of_experts_may_have_any_name():
    named = nn.MixtureOfExperts(D.renamed("width"), F.renamed("hidden"), E.renamed("expert"), key=jax.random.key(1))
    usual = nn.MixtureOfExperts(D, F, E, key=jax.random.key(1))
    got, _ = named(X.rename(d_model="width"))
    np.testing.assert_allclose(got.array, np.asarray(usual(X)[0].array), **CLOSE)


@pytest.mark.quick("choice")
@pytest.mark.parametrize("gating", ["top2", "choice"])
def test_experts_that_are_padding_get_no_token(gating):
    few = nn.MixtureOfExperts(D, F, wf.Dim("experts", 5), gating=gating, key=jax.random.key(1))
    more = nn.MixtureOfExperts(D, F, wf.Dim("experts", 5).padded_to(8), gating=gating, key=jax.random.key(1))
    alone = jax.jit(lambda m, x: m(x))
    want, want_told = alone(few, X)
    for place in (None, ("x=8", "batch:x,experts:x")):
        run = alone if place is None else wf.spmd(lambda m, x: m(x), mesh=place[0], layout=place[1])
        got, told = run(more, X)
        np.testing.assert_allclose(got.array, np.asarray(want.array), **CLOSE)
        for name, value in told.items():
            assert float(value.array) == pytest.approx(float(want_told[name].array), rel=64 * EPS), name


def test_jitter_and_dropout_need_a_key():
    noisy, calm = experts(jitter=0.3, dropout=0.5), experts()
    np.testing.assert_array_equal(noisy(X)[0].array, calm(X)[0].array)
    assert np.any(np.asarray(noisy(X, key=jax.random.key(0))[0].array) != np.asarray(calm(X)[0].array))


# ---- what is sent


def forward(layer: Any, x: wf.Tensor) -> Any:
    return layer(x)


def backward(layer: Any, x: wf.Tensor) -> Any:
    return wf.grad(lambda layer, x: total(layer(x)), argnums=(0, 1))(layer, x)


def calls(layout: str, program: Any, gating: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for (collective, _), count in sends(("x=8", layout), program, experts(gating=gating), X).items():
        found[collective] = found.get(collective, 0) + count
    return found


@pytest.mark.parametrize("gating", GATINGS)
def test_experts_beside_the_batch_are_one_all_to_all_each_way(gating):
    assert calls("batch:x,experts:x", forward, gating).get("all_to_all") == 2
    assert calls("batch:x,experts:x", backward, gating).get("all_to_all") == 4
    assert "all_gather" not in calls("batch:x,experts:x", backward, gating)


@pytest.mark.quick("switch-batch:x+y,experts:y", "top2-batch:x+y,experts:x", "choice-batch:x+y,experts:x+y")
@pytest.mark.parametrize("layout", ["batch:x+y,experts:x", "batch:x+y,experts:y", "batch:x+y,experts:x+y"])
@pytest.mark.parametrize("gating", GATINGS)
def test_experts_beside_any_axis_of_the_batch_are_sent_each_slot_once_each_way(gating, layout):
    layer = experts(gating=gating, capacity=1.0)
    rows = wf.trace(backward, layer, X, mesh="x=4,y=2", layout=layout).ledger.rows
    axes = tuple(layout.split(":")[-1].split("+"))
    slots = (
        E.size * room_for(gating, 1.0) * B.size * D.size * 4 // 8
    )  # bytes of the slots one of eight processors fills
    sent = [(row.axes, row.bytes) for row in rows if row.collective != "all_reduce"]
    assert {row.collective for row in rows} == {"all_to_all", "all_reduce"}
    assert sent == [(axes, slots)] * 4


def large(layer: Any, x: wf.Tensor, mesh: str, layout: str, rename: Any = None) -> list[tuple[Any, ...]]:
    """What is sent of more than a number for each token and choice, forward and then backward."""

    def loss(layer: Any, x: wf.Tensor) -> wf.Tensor:
        y, told = layer(x, rename=rename)
        return wf.sum(y * y, over=y.dims) + told["balance_loss"]

    rows = wf.trace(wf.grad(loss, argnums=1), layer, x, mesh=mesh, layout=layout).ledger.rows
    most = 4 * layer.top_k * TOKENS
    return [(row.phase, row.collective, row.axes, row.bytes) for row in rows if row.bytes > most]


TOKEN_BYTES = TOKENS * D.size * 4


@pytest.mark.parametrize("gating", ["switch", "top2", "top_k"])
def test_experts_alone_on_their_axis_send_the_sum_of_what_tokens_get(gating):
    layer = experts(gating=gating)
    both = [(phase, "all_reduce", ("x",), TOKEN_BYTES) for phase in ("forward", "backward")]
    assert large(layer, X, "x=8", "experts:x") == both
    # Beside a split d_ff it is one sum over both axes, after the slots are combined.
    rows = large(layer, X, "x=4,y=2", "experts:x,d_ff:y")
    assert rows[0] == ("forward", "all_reduce", ("x", "y"), TOKEN_BYTES)
    assert all(row[1] == "all_reduce" and row[3] == TOKEN_BYTES for row in rows)


def test_a_split_d_ff_is_summed_after_the_slots_are_combined():
    slots = E.size * room_for("switch", 1.25) * B.size * D.size * 4 // 4
    rows = large(experts(), X, "x=4,y=2", "batch:x,experts:x,d_ff:y")
    exchange = ("all_to_all", ("x",), slots)
    assert rows == [("forward", *exchange)] * 2 + [("forward", "all_reduce", ("y",), TOKEN_BYTES // 4)] + [
        ("backward", *exchange)
    ] * 2 + [("backward", "all_reduce", ("y",), TOKEN_BYTES // 4)]


@pytest.mark.parametrize("layout", ["experts:x,stream:x", "d_ff:x,stream:x"])
def test_what_experts_give_is_scattered_into_a_stream(layout):
    rows = large(experts(), X, "x=8", layout, rename={"length": wf.Dim("stream", T.size, "length")})
    assert ("forward", "reduce_scatter", ("x",), TOKEN_BYTES) in rows
    assert not [row for row in rows if row[0] == "forward" and row[1] != "reduce_scatter"]


@pytest.mark.parametrize("gating", GATINGS)
def test_a_batch_alone_moves_no_token(gating):
    rows = wf.trace(forward, experts(gating=gating), X, mesh="x=8", layout="batch:x").ledger.rows
    assert [(row.collective, row.bytes) for row in rows] == [("all_reduce", 4 * 5 * E.size)]  # the report's statistics
    assert set(calls("batch:x", backward, gating)) <= {"all_reduce"}
