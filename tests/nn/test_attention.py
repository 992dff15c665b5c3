"""Attention against a loop over queries and the keys each of them sees."""

import math
from typing import Any

import jax
import numpy as np
import pytest

import weft as wf
from tests.ops.test_meanings import EPS
from weft import nn

from .cases import FAMILIES, MEMORY, POSITIONS, PREFIX, SEGMENTS, B, H, T, X
from .test_position import t5_bucket

positions, segments, prefix = (np.asarray(t.array) for t in (POSITIONS, SEGMENTS, PREFIX))
ROWS = range(2, B.size, 3)  # some of the batch: the loop is slow
# Scores of a few units are sums of 16 and of 8 products; the results are sums of 16, of 8 and of 8 heads.
CLOSE = {"rtol": 0, "atol": 512 * EPS}


def turned(x: np.ndarray, at: int, base: float) -> np.ndarray:
    """The last dim's channels as complex numbers, turned by a position."""
    half = x.shape[-1] // 2
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * at * base ** (-np.arange(half) / half))
    return np.concatenate([z.real, z.imag], -1)


def normed(x: np.ndarray, norm: Any) -> np.ndarray:
    """QK-norm: the root of the mean square over the last dims, those of the scale, made 1."""
    if norm is None:
        return x
    scale = np.asarray(norm.scale.array, "float64")
    over = tuple(range(-scale.ndim, 0))
    return x / np.sqrt(np.mean(x**2, over, keepdims=True) + norm.epsilon) * scale


def reference(layer: nn.Attention, h: np.ndarray, memory: np.ndarray, sees: Any, at: Any = None, bias: Any = None):
    """One example, one query after another; `sees(q, k)` says which keys count, `at(i)` where a token stands."""
    w = {n: np.asarray(getattr(layer, n).array, "float64") for n in "qkvo"}
    biases = {n: 0 if (b := getattr(layer, f"{n}_bias")) is None else np.asarray(b.array, "float64") for n in "qkvo"}
    grouped = w["q"] if w["q"].ndim == 4 else w["q"][:, :, None]
    out = w["o"] if w["o"].ndim == 4 else w["o"][:, None]
    keys = np.einsum("md,dhk->mhk", memory, w["k"]) + biases["k"]
    values = np.einsum("md,dhk->mhk", memory, w["v"]) + biases["v"]
    keys = normed(keys, layer.k_norm)
    bias_of_q = biases["q"] if np.ndim(biases["q"]) != 2 else biases["q"][:, None]
    if layer.rotary is not None:
        keys = np.stack([turned(k, at(i), layer.rotary) for i, k in enumerate(keys)])
    y = np.zeros((len(h), w["o"].shape[-1]))
    for i, token in enumerate(h):
        q = np.einsum("d,dhgk->hgk", token, grouped) + bias_of_q
        q = normed(q, layer.q_norm)
        if layer.rotary is not None:
            q = turned(q, at(i), layer.rotary)
        seen = [j for j in range(len(memory)) if sees(i, j)]
        scores = np.einsum("hgk,jhk->hgj", q, keys[seen]) * layer.scale
        if bias is not None:
            scores = scores + np.stack([bias(i, j) for j in seen], -1)[:, None]
        if layer.softcap is not None:
            scores = layer.softcap * np.tanh(scores / layer.softcap)
        if layer.talking is not None:
            scores = np.einsum("hgj,hx->xgj", scores, np.asarray(layer.talking[0].array))
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        if layer.talking is not None:
            share = np.einsum("hgj,hx->xgj", share, np.asarray(layer.talking[1].array))
        y[i] = np.einsum("hgk,hgkd->d", np.einsum("hgj,jhk->hgk", share, values[seen]), out) + biases["o"]
    return y


def check(layer: nn.Attention, sees: Any, *, mask: Any = None, at: Any = None) -> None:
    got = np.asarray(layer(X, mask=mask).array)
    for b in ROWS:
        x = np.asarray(X.array[b], "float64")
        want = reference(layer, x, x, lambda q, k, b=b: sees(b, q, k), None if at is None else lambda i, b=b: at(b, i))
        np.testing.assert_allclose(got[b], want, **CLOSE)


def layer_of(name: str) -> Any:
    return FAMILIES["attention"][name].layer


def test_without_a_mask_all_see_all_and_every_map_may_have_a_bias():
    layer = layer_of("all see all")
    assert layer.scale == 8**-0.5
    check(layer, lambda b, q, k: True)


def test_causal_attention_looks_back_and_keys_and_queries_are_rotated():
    check(layer_of("causal"), lambda b, q, k: k <= q, mask=nn.Mask(causal=True), at=lambda b, i: i)


def test_a_prefix_is_seen_by_all_and_scores_are_capped():
    mask = nn.Mask(causal=True, prefix=PREFIX)
    check(layer_of("prefix"), lambda b, q, k: k <= q or k < prefix[b], mask=mask)


def test_a_causal_window_counts_the_own_place_and_queries_share_heads_of_keys():
    mask = nn.Mask(causal=True, window=3)
    check(layer_of("window back"), lambda b, q, k: q - 3 < k <= q, mask=mask)


def test_a_window_both_ways_and_talking_heads():
    check(layer_of("window both ways"), lambda b, q, k: abs(q - k) < 3, mask=nn.Mask(window=3))


@pytest.mark.parametrize("of", ["each head", "all heads"])
def test_queries_and_keys_are_normed_before_they_are_rotated(of):
    layer = layer_of(f"qk-norm of {of}")
    assert layer.q_norm.scale.dims.names == (("d_kv",) if of == "each head" else ("heads", "group", "d_kv"))
    check(layer, lambda b, q, k: k <= q, mask=nn.Mask(causal=True), at=lambda b, i: i)


def test_segments_do_not_see_each_other():
    mask = nn.Mask.within(segments=SEGMENTS, causal=True)
    check(layer_of("segments"), lambda b, q, k: k <= q and segments[b, q] == segments[b, k],
          mask=mask, at=lambda b, i: i)  # fmt: skip


def test_positions_that_are_given_say_what_is_before_what_is_near_and_how_it_is_rotated():
    mask = nn.Mask.within(positions=POSITIONS, causal=True, window=5)
    p = positions
    check(layer_of("positions"), lambda b, q, k: p[b, q] - 5 < p[b, k] <= p[b, q],
          mask=mask, at=lambda b, i: p[b, i])  # fmt: skip


def test_cross_attention_sees_a_memory_of_another_length():
    layer = layer_of("cross")
    got = np.asarray(layer(X, MEMORY).array)
    also = np.asarray(layer(X, MEMORY.rename(memory_length="length")).array)
    for b in ROWS:
        want = reference(layer, np.asarray(X.array[b]), np.asarray(MEMORY.array[b]), lambda q, k: True)
        np.testing.assert_allclose(got[b], want, **CLOSE)
        np.testing.assert_allclose(also[b], want, **CLOSE)


def test_a_relative_bias_is_added_to_the_scores():
    case = FAMILIES["attention"]["relative bias"]
    layer, table = case.layer["attention"], np.asarray(case.layer["bias"].table.array)
    got = np.asarray(case.run(case.given).array)
    for b in ROWS:
        x = np.asarray(X.array[b], "float64")
        want = reference(layer, x, x, lambda q, k: True, bias=lambda q, k: table[t5_bucket(k - q, False, 8, 128)])
        np.testing.assert_allclose(got[b], want, **CLOSE)


def test_a_memory_mask_by_segments_hides_padding_of_the_memory():
    layer = layer_of("cross")
    here = wf.ones([B, T], dtype="int32")
    there = wf.cast(wf.arange("memory_length", like=MEMORY) < 5, "int32")
    got = layer(X, MEMORY, mask=nn.Mask(segments=here, memory_segments=there))
    want = layer(X, MEMORY["memory_length", :5])
    np.testing.assert_allclose(got.array, np.asarray(want.array), **CLOSE)


def test_one_query_without_a_length_gives_what_it_gives_among_others():
    layer = layer_of("window back")
    whole = layer(X, mask=nn.Mask(causal=True))
    keys, values = layer.keys_and_values(X, None)
    at = wf.tensor(np.array(9), [])
    mask = nn.Mask(causal=True, positions=at)
    one = layer.out(layer.attend(layer.query(X["length", 9], None), keys, values, mask=mask))
    np.testing.assert_allclose(one.array, np.asarray(whole.array)[:, 9], **CLOSE)


def test_dropout_falls_on_the_shares_and_needs_a_key():
    layer = layer_of("all see all")
    np.testing.assert_array_equal(layer(X, dropout=0.5).array, layer(X).array)
    key = jax.random.key(3)
    identity = np.broadcast_to(np.eye(16, dtype="float32"), (8, 16, 16))  # values that show the shares themselves
    v = wf.tensor(np.repeat(identity[:, :, None], H.size, 2), [B, T.renamed("memory_length"), H, wf.Dim("d_kv", 16)])
    q = wf.zeros([B, T, H, wf.Dim("d_kv", 16)])
    share = np.asarray(layer.attend(q, v, v, mask=nn.Mask(), key=key, dropout=0.5).array)
    assert set(np.unique(share)) == {0.0, np.float32(2 / 16)}
    assert abs((share > 0).mean() - 0.5) < 4 * math.sqrt(0.25 / share.size)


@pytest.mark.parametrize("how", [{}, {"group": wf.Dim("group", 2)}], ids=["heads", "groups"])
def test_first_weights_keep_the_variance(how):
    layer = nn.Attention(wf.Dim("d_model", 64), H, wf.Dim("d_kv", 16), key=jax.random.key(0), **how)
    assert np.std(layer.q.array) == pytest.approx(1 / 8, rel=0.05)
    count = np.prod(layer.o.array.shape[:-1])
    assert np.std(layer.o.array) == pytest.approx(count**-0.5, rel=0.05)
