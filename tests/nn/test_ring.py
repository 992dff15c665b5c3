"""Ring attention: what it gives, what goes round, what it holds and computes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.programs.everywhere import assert_close, outcome
from weft import nn
from weft.kernels.choice import Chip
from weft.nn import attention
from weft.ops import blockwise, ring

B, T, M, H, G, K, D = wf.dims(batch=2, length=32, memory_length=16, heads=2, group=2, d_kv=8, d_model=8)
KEY = jax.random.key(5)
RANDOM = np.random.default_rng(0)
SAME = T.renamed("memory_length")


def floats(*dims: wf.Dim) -> wf.Tensor:
    return wf.tensor(RANDOM.normal(size=[dim.size for dim in dims]).astype("float32"), dims)


Q, K1, V1, K2, V2 = floats(B, T, H, G, K), *(floats(B, m, H, K) for m in (SAME, SAME, M, M))
X = floats(B, T, D)
SEGMENTS = wf.tensor(np.sort(RANDOM.integers(0, 3, (2, 32))).astype("int32"), [B, T])
UNMET = wf.tensor(RANDOM.integers(2, 5, (2, 32)).astype("int32"), [B, T])  # some see no key at all
MEMORY_SEGMENTS = wf.tensor(RANDOM.integers(0, 3, (2, 16)).astype("int32"), [B, M])
POSITIONS = wf.tensor(RANDOM.permuted(np.tile(np.arange(32), (2, 1)), axis=1).astype("int32"), [B, T])
PREFIX = wf.tensor(np.array([3, 20], "int32"), [B])
BUCKETS = wf.Dim("buckets", 8)


def attends(mask: Any = nn.Mask, *, bias: bool = False, cross: bool = False, **how: Any) -> Any:
    """A program of queries, keys, values and the bias's table; dropout is on unless `dropout=0.0`."""
    dropout = how.pop("dropout", 0.25)
    layer = nn.init(nn.Attention(D, H, K, group=G, **how), KEY)

    def program(q: wf.Tensor, k: wf.Tensor, v: wf.Tensor, relative: Any, *given: wf.Tensor) -> wf.Tensor:
        own = relative if bias else None
        return layer.attend(q, k, v, mask=mask(*given), bias=own, key=KEY, dropout=dropout)

    return program


RELATIVE = nn.init(nn.RelativeBias(BUCKETS, [H, G], is_causal=False, farthest=12), KEY)
SELF, CROSS = (Q, K1, V1, RELATIVE), (Q, K2, V2, RELATIVE)


def causal(**how: Any) -> nn.Mask:
    return nn.Mask(causal=True, **how)


def in_segments(own: wf.Tensor) -> nn.Mask:
    return nn.Mask.within(segments=own, causal=True)


def at_positions(own: wf.Tensor) -> nn.Mask:
    return nn.Mask.within(positions=own, causal=True, window=9)


CASES = {
    "zigzag: causal, segments, capped": (attends(in_segments, softcap=2.0), (*SELF, SEGMENTS)),
    "zigzag: causal, relative bias": (attends(causal, bias=True), SELF),
    "all see all": (attends(), SELF),
    "a prefix": (attends(lambda n: causal(prefix=n)), (*SELF, PREFIX)),
    "a window": (attends(lambda: causal(window=7)), SELF),
    "a window both ways, relative bias": (attends(lambda: nn.Mask(window=7), bias=True), SELF),
    "positions": (attends(at_positions, bias=True), (*SELF, POSITIONS)),
    "cross, segments": (
        attends(lambda a, b: nn.Mask(segments=a, memory_segments=b)),
        (*CROSS, UNMET, MEMORY_SEGMENTS),
    ),
    "causal, other segments": (
        attends(lambda a, b: nn.Mask(causal=True, segments=a, memory_segments=b.rename(length="memory_length"))),
        (*SELF, UNMET, SEGMENTS),
    ),
}  # fmt: skip
PLACES = [("x=4,y=2", "length:x,memory_length:x,heads:y"), ("x=2,y=2,z=2", "length:z+x,memory_length:z+x,batch:y")]
QUICK = {("zigzag: causal, segments, capped", PLACES[0])}


@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, id=f"{name} {place[1]}", marks=() if (name, place) in QUICK else pytest.mark.slow)
        for name in CASES
        for place in PLACES
    ],
)
@pytest.mark.parametrize("longest", [1024, pytest.param(2, marks=pytest.mark.slow)])
def test_values_gradients_and_dropout_are_those_of_one_processor(name, place, longest, monkeypatch):
    monkeypatch.setattr(blockwise, "LONGEST", longest)
    monkeypatch.setattr(blockwise, "_SHORTEST", 1)
    program, given = CASES[name]
    assert_close(outcome(place, program, *given), outcome(None, program, *given), terms=2 * T.size * K.size)


LONG_PLACES = [("x=4,y=2", "length:x,heads:y"), ("y=2", "batch:y")]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, id=f"{name} {place[1]}", marks=() if (name, place) == quick else pytest.mark.slow)
        for quick in [("zigzag: causal, segments, capped", LONG_PLACES[0])]
        for name in CASES
        for place in LONG_PLACES
    ],
)
def test_long_scores_are_made_block_by_block_where_keys_are_whole(name, place, monkeypatch):
    program, given = CASES[name]
    want = outcome(None, program, *given)
    monkeypatch.setattr(ring, "LARGEST", 16)
    monkeypatch.setattr(blockwise, "LONGEST", 4)
    monkeypatch.setattr(blockwise, "_SHORTEST", 1)
    assert_close(outcome(place, program, *given), want, terms=2 * T.size * K.size)


def plain(q: Any, k: Any, v: Any) -> Any:
    """Causal attention in plain jnp."""
    scores = jnp.einsum("blhgd,bmhd->bhglm", q, k) * 8**-0.5
    scores = jnp.where(jnp.arange(32)[:, None] >= jnp.arange(32), scores, -jnp.inf)
    return jnp.einsum("bhglm,bmhd->blhgd", jax.nn.softmax(scores, axis=-1), v)


def test_a_ring_gives_what_plain_jnp_gives():
    program = attends(causal, dropout=0.0)
    run = wf.spmd(lambda *given: program(*given, None), mesh="x=8", layout="length:x,memory_length:x")
    want = jax.jit(plain)(Q.array, K1.array, V1.array)
    np.testing.assert_allclose(run(Q, K1, V1).array, want, rtol=0, atol=2e-6)


def traced(n: int, mask: Any, *tensors: Any) -> Any:
    program = attends(mask, dropout=0.0)

    def loss(q: Any, k: Any, v: Any, *given: Any) -> Any:
        return wf.sum(program(q, k, v, None, *given), over=q.dims)

    run = wf.value_and_grad(loss, argnums=(0, 1, 2))
    return wf.trace(run, *tensors, mesh=wf.Mesh(f"x={n}"), layout="length:x,memory_length:x")


def size(*xs: wf.Tensor) -> int:
    return sum(4 * x.array.size for x in xs)


SENT = ("all_gather", "reduce_scatter")
LOSS = 4  # the loss itself is summed over x


@pytest.mark.parametrize("n", [2, 8])
def test_keys_and_values_go_round_once_forward_and_once_more_with_their_gradients(n):
    program = traced(n, nn.Mask, Q, K1, V1)
    own = size(K1, V1) // n
    assert program.ledger.bytes(phase="forward") == (n - 1) * own + LOSS
    assert program.ledger.bytes(phase="backward") == (2 * n - 1) * own  # gradients make one hop more, home
    assert {row.collective for row in program.ledger} == {"permute", "all_reduce"}


@pytest.mark.parametrize("n", [2, 8])
def test_a_causal_ring_moves_to_a_zigzag_and_back_and_computes_half(n):
    program, all_see_all = traced(n, causal, Q, K1, V1), traced(n, nn.Mask, Q, K1, V1)
    kv, q = size(K1, V1) // n, size(Q) // n
    assert program.ledger.bytes(phase="forward") == (n - 1) * kv + (kv + 2 * q) + LOSS
    assert program.ledger.bytes(phase="backward") == (2 * n - 1) * kv + (kv + 2 * q)
    # Of n blocks 3/4 of the first (its own) and one half of each other.
    assert program.flops * 4 * n == all_see_all.flops * (3 + 2 * (n - 1))


def test_a_window_stops_the_ring_where_it_ends():
    program = traced(8, lambda: causal(window=6), Q, K1, V1)  # 4 places each: 5 back reach two pieces
    own = size(K1, V1) // 8
    assert program.ledger.bytes(phase="forward") == 2 * own + LOSS
    assert program.ledger.bytes(phase="backward") == 5 * own


@pytest.mark.parametrize("largest", [0, 2**26], ids=["by blocks", "written out"])
def test_where_length_alone_is_split_keys_and_values_are_gathered(largest, monkeypatch):
    monkeypatch.setattr(ring, "LARGEST", largest)
    layer = nn.init(nn.Attention(D, H, K), KEY)

    def loss(layer: Any, x: wf.Tensor) -> wf.Tensor:
        return wf.sum(layer(x, mask=causal()), over="batch length d_model")

    program = wf.trace(wf.grad(loss, argnums=1), layer, X, mesh=wf.Mesh("x=8"), layout="length:x")
    whole = 2 * 4 * B.size * T.size * H.size * K.size  # of keys and values together
    sent = {name: sum(r.bytes * r.count for r in program.ledger if r.collective == name) for name in SENT}
    assert sent == {"all_gather": whole, "reduce_scatter": whole}  # forward, and of the gradients
    assert program.ledger.bytes() == 2 * whole


def test_segments_travel_with_their_keys():
    program = traced(4, in_segments, Q, K1, V1, SEGMENTS)
    plain = traced(4, causal, Q, K1, V1)
    segments = size(SEGMENTS) // 4
    # To the zigzag those of queries and of keys, then round with the keys, twice.
    assert program.ledger.bytes(phase="forward") - plain.ledger.bytes(phase="forward") == (2 + 3) * segments
    assert program.ledger.bytes(phase="backward") - plain.ledger.bytes(phase="backward") == 3 * segments


@pytest.mark.parametrize(
    ("how", "layout", "fact", "fix"),
    [
        ({"talking": True}, "length:x,memory_length:x", "talking heads mix all scores", "drop one of the rules"),
        (
            {},
            "length:x,memory_length:x,d_kv:y",
            "by blocks needs `d_kv` whole, and it is split over `y`",
            "drop `d_kv:y`",
        ),
    ],
)
def test_what_a_ring_cannot_do_is_told_with_its_cure(how, layout, fact, fix):
    with pytest.raises(wf.WeftError, match=fact) as error:
        wf.trace(attends(dropout=0.0, **how), Q, K1, V1, None, mesh=wf.Mesh("x=4,y=2"), layout=layout)
    assert fix in str(error.value)


def held(n: int, length: int, layout: str) -> int:
    """Bytes on each processor at the peak of attention and its gradients."""
    places = wf.Dim("length", length)
    dims = [B, places, H, K], [B, places.renamed("memory_length"), H, K]
    q, k = (wf.tensor(jax.ShapeDtypeStruct([dim.size for dim in own], "float32"), own) for own in dims)
    layer = nn.init(nn.Attention(D, H, K), KEY)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return wf.sum(layer.attend(q, k, v, mask=causal()), over=q.dims)

    run = wf.value_and_grad(loss, argnums=(0, 1, 2))
    return wf.trace(run, q, k, k, mesh=wf.Mesh(f"x={n}"), layout=layout).memory.peak


def test_memory_falls_as_processors_grow_and_grows_with_the_length_alone(monkeypatch):
    monkeypatch.setattr(blockwise, "LONGEST", 64)
    ring = "length:x,memory_length:x"
    base = held(8, 2**14, ring)
    assert held(16, 2**14, ring) == pytest.approx(base / 2, rel=0.1)
    assert held(64, 2**17, ring) == pytest.approx(base, rel=0.1)
    assert held(8, 2**12, "length:x") > base  # written out, a quarter of the length holds more


class WrittenOut:
    """What the fused kernel computes, in plain jnp; the kernel itself needs a GPU."""

    calls = 0

    def __init__(self, scale: float):
        self.scale = scale

    def _scores(self, q: Any, k: Any, causal: bool) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, jnp.repeat(k, q.shape[1] // k.shape[1], axis=1)) * self.scale
        return jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf) if causal else scores

    def forward(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        WrittenOut.calls += 1
        scores = self._scores(*(x.astype("float32") for x in (q, k)), causal)
        values = jnp.repeat(v.astype("float32"), q.shape[1] // v.shape[1], axis=1)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), values)
        return mixed.astype(q.dtype), jax.nn.logsumexp(scores, axis=-1)

    def backward(self, q: Any, k: Any, v: Any, log_sum: Any, result: Any, gradient: Any, *, causal: bool) -> Any:
        """The gradients of shares exp(scores - log_sum) of all keys, not of these alone."""
        q, k, v, result, gradient = (x.astype("float32") for x in (q, k, v, result, gradient))
        delta = jnp.sum(result * gradient, axis=-1, keepdims=True)

        def part(q: Any, k: Any, v: Any) -> Any:
            share = jnp.exp(self._scores(q, k, causal) - log_sum[..., None])
            values = jnp.repeat(v, q.shape[1] // v.shape[1], axis=1)
            return jnp.sum(jnp.einsum("bhqk,bhkd->bhqd", share, values) * gradient) - jnp.sum(share * delta)

        return tuple(d.astype("bfloat16") for d in jax.grad(part, argnums=(0, 1, 2))(q, k, v))


@pytest.mark.parametrize(
    ("mask", "place"),
    [
        (causal, ("x=4,y=2", "length:x,memory_length:x,heads:y")),
        pytest.param(causal, ("x=4,y=2", "length:x,heads:y"), marks=pytest.mark.slow),
        pytest.param(nn.Mask, ("x=4,y=2", "length:x,memory_length:x,batch:y"), marks=pytest.mark.slow),
    ],
)
def test_on_a_gpu_blocks_are_done_by_the_fused_kernel(mask, place, monkeypatch):
    program = attends(mask, dropout=0.0)
    given = (*(wf.cast(x, "bfloat16") for x in (Q, K1, V1)), RELATIVE)
    want = outcome(None, program, *given)
    for room in (ring, attention):
        monkeypatch.setattr(room, "chip_of", lambda x: Chip("gpu"))
    monkeypatch.setattr(ring, "attention_kernel", WrittenOut)
    WrittenOut.calls = 0
    found = outcome(place, program, *given)
    assert WrittenOut.calls
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, "float32"), np.asarray(b, "float32")
        np.testing.assert_allclose(a, b, rtol=0, atol=2**-5 * np.abs(b).max())  # a few roundings to 8 bits


def test_a_plan_prices_blocks_as_the_fused_kernel_and_what_goes_round_beside_them():
    places = wf.Dim("length", 4096)
    dims = [B, places, H, K], [B, places.renamed("memory_length"), H, K]
    q, k = (wf.tensor(jax.ShapeDtypeStruct([dim.size for dim in own], "bfloat16"), own) for own in dims)
    layer = nn.init(nn.Attention(D, H, K), KEY)
    run = wf.trace(
        lambda q, k, v: layer.attend(q, k, v, mask=causal()), q, k, k, mesh="x=4", layout="length:x,memory_length:x"
    )
    plan, written_out = wf.Plan(run, "h100"), wf.Plan(run, "h100", fused=False)
    assert plan.kinds["attention"] > 0 and "attention" not in written_out.kinds
    assert plan.sending == written_out.sending and plan.sending["x",] > 0
    assert plan.seconds < written_out.seconds


def of_odd_length(dim: wf.Dim, seed: int) -> wf.Tensor:
    """Floats along a dim of 29 places that is padded to 32, of NaN in the padding."""
    array = np.full([B.size, dim.size, 3, K.size], np.nan, "float32")
    array[:, : dim.count] = np.random.default_rng(seed).normal(size=[B.size, dim.count, 3, K.size])
    return wf.tensor(array, [B, dim, wf.Dim("heads", 3), K])


@pytest.mark.slow
@pytest.mark.parametrize("mask", [causal, nn.Mask, lambda: causal(window=9)])
@pytest.mark.parametrize("layout", ["length:x,memory_length:x", "length:x"])
def test_padding_of_either_length_changes_nothing(mask, layout, monkeypatch):
    monkeypatch.setattr(ring, "LARGEST", 16)
    padded = wf.Dim("length", 29).padded_to(8)
    layer = nn.init(nn.Attention(D, wf.Dim("heads", 3), K), KEY)
    q, k, v = (of_odd_length(dim, i) for i, dim in enumerate([padded, *[padded.renamed("memory_length")] * 2]))
    found, gradients = outcome(("x=4", layout), lambda *x: layer.attend(*x, mask=mask(), key=KEY, dropout=0.2), q, k, v)
    monkeypatch.setattr(ring, "LARGEST", 2**26)
    names = "batch length heads d_kv", *["batch memory_length heads d_kv"] * 2
    whole = [wf.tensor(x.array[:, :29], own) for x, own in zip((q, k, v), names, strict=True)]
    want, wanted = outcome(None, lambda *x: layer.attend(*x, mask=mask(), key=KEY, dropout=0.2), *whole)
    for a, b in zip(jax.tree.leaves((found, gradients)), jax.tree.leaves((want, wanted)), strict=True):
        np.testing.assert_allclose(np.asarray(a)[:, :29], b, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["zigzag: causal, segments, capped", "zigzag: causal, relative bias", "cross, segments"]
)
def test_in_short_floats_a_ring_is_as_near_as_one_processor(name):
    program, (q, k, v, *rest) = CASES[name]
    exact = outcome(None, program, q, k, v, *rest)
    short = [wf.cast(x, "bfloat16") for x in (q, k, v)]
    alone, split = (outcome(place, program, *short, *rest) for place in (None, PLACES[0]))
    for a, b, c in zip(*map(jax.tree.leaves, (alone, split, exact)), strict=True):
        a, b, c = (np.asarray(x, "float32") for x in (a, b, c))
        assert np.abs(b - c).max() <= 2 * np.abs(a - c).max() + 1e-6


def test_elsewhere_two_dims_on_one_axis_stay_an_error_that_names_the_ring():
    with pytest.raises(wf.LayoutError, match=r"`length` and `memory_length` .* both split over axis `x`") as error:
        wf.trace(lambda q, k: wf.einsum(q, k, over="d_kv"), Q, K1, mesh="x=4", layout="length:x,memory_length:x")
    assert "attention alone brings both together, as a ring" in str(error.value)
