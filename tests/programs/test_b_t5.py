"""T5: relative bias, packed examples, cross attention, sequence parallel."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from weft import nn

from .everywhere import assert_close, at_each, outcome, plain_outcome, sends, values, weights

B, T, M, D, V, H, K = wf.dims(batch=4, length=8, memory_length=8, d_model=8, vocab=16, heads=4, d_kv=4)
S = wf.Dim("stream", T.size, follows="length")
BUCKETS = wf.Dim("buckets", 6)


def bucket(distance):  # small distances each have their own, large ones share the last
    return wf.clip(wf.abs(distance), max=3) + wf.where(distance > 0, 2, 0)


# ---- as a user writes it


def bias(p, like):  # only this processor's part of [length memory_length] is ever made
    return wf.take(p["rel"], bucket(wf.arange(M, like=like) - wf.arange(T, like=like)), over="buckets")


def mask(segment):  return segment.rename(length=M) == segment  # fmt: skip


def decoder(p, targets, segment, memory, weight):
    x    = wf.shift(targets, over=T, by=1, fill=0)  # fmt: skip
    stream = wf.take(p["embed"], x, over=V).rename(length=S)
    o = self_attention(p, stream.rename(stream=T), segment)
    x    = stream + wf.einsum(o, p["o"], over=[H, K], rename={"length": S})  # reduce-scatter when stream:c and heads:c  # fmt: skip  # noqa: E501
    o = cross_attention(p, x.rename(stream=T), memory)
    x = x + wf.einsum(o, p["cross_o"], over=[H, K], rename={"length": S})
    logits = wf.einsum(x.rename(stream=T), p["embed"], over=D)
    nll = wf.logsumexp(logits, over=V) - wf.sum(logits * wf.one_hot(targets, V), over=V)
    loss = wf.sum(nll * weight, over=[B, T]) / wf.sum(weight, over=[B, T])
    return loss, nll


# ---- what it leaves out


def self_attention(p: Any, h: wf.Tensor, segment: wf.Tensor) -> wf.Tensor:
    q, k, v = (wf.einsum(h, p[n], over=D) for n in "qkv")
    scores = wf.einsum(q, k.rename(length=M), over=K) + bias(p, like=h)
    may_see = mask(segment) & (wf.arange(M, like=h) <= wf.arange(T, like=h))
    scores = wf.where(may_see, scores, -1e9)
    return wf.einsum(wf.softmax(scores, over=M), v.rename(length=M), over=M)


def cross_attention(p: Any, h: wf.Tensor, memory: wf.Tensor) -> wf.Tensor:
    q, k, v = (wf.einsum(x, p[f"cross_{n}"], over=D) for x, n in ((h, "q"), (memory, "k"), (memory, "v")))
    return wf.einsum(wf.softmax(wf.einsum(q, k, over=K), over=M), v, over=M)


def plain(p: Any, targets: Any, segment: Any, memory: Any, weight: Any) -> Any:
    """One example after another, on arrays."""
    distance = np.arange(T.size)[None] - np.arange(T.size)[:, None]  # of what is seen from who sees
    bucket = np.minimum(np.abs(distance), 3) + np.where(distance > 0, 2, 0)

    def attend(q: Any, k: Any, v: Any, extra: Any, seen: Any) -> Any:
        scores = jnp.where(seen, jnp.einsum("lhk,mhk->hlm", q, k) + extra, -jnp.inf)
        return jnp.einsum("hlm,mhk->lhk", jax.nn.softmax(scores), v)

    def example(targets: Any, segment: Any, memory: Any) -> Any:
        x = p["embed"][jnp.concatenate([jnp.zeros(1, targets.dtype), targets[:-1]])]
        q, k, v = (jnp.einsum("ld,dhk->lhk", x, p[n]) for n in "qkv")
        seen = (segment[None] == segment[:, None]) & (distance <= 0)
        o = attend(q, k, v, p["rel"][bucket].transpose(2, 0, 1), seen)
        x = x + jnp.einsum("lhk,hkd->ld", o, p["o"])
        q, k, v = (jnp.einsum("ld,dhk->lhk", y, p[f"cross_{n}"]) for y, n in ((x, "q"), (memory, "k"), (memory, "v")))
        x = x + jnp.einsum("lhk,hkd->ld", attend(q, k, v, 0, True), p["cross_o"])
        return -jnp.take_along_axis(jax.nn.log_softmax(x @ p["embed"].T), targets[:, None], 1)[:, 0]

    nll = jax.vmap(example)(targets, segment, memory)
    return jnp.sum(nll * weight) / jnp.sum(weight), nll


def data() -> tuple[wf.Tensor, ...]:
    """Two or three examples packed into each row; the last places of a row are none."""
    random = np.random.default_rng(3)
    targets = random.integers(1, V.size, (B.size, T.size))
    segment = np.sort(random.integers(1, 4, (B.size, T.size)), axis=1)
    segment[:, -1] = 0
    named = [wf.tensor(a.astype("int32"), [B, T]) for a in (targets, segment)]
    return (*named, wf.tensor(values([B, M, D], 4), [B, M, D]), wf.tensor((segment > 0).astype("float32"), [B, T]))


P = weights(
    embed=[V, D], rel=[BUCKETS, H], o=[H, K, D], cross_o=[H, K, D],
    **{n: [D, H, K] for n in "q k v cross_q cross_k cross_v".split()},
)  # fmt: skip
DATA = data()
TERMS = B.size * T.size * H.size


@functools.cache
def unsplit() -> Any:
    return outcome(None, decoder, P, *DATA)


def test_without_a_mesh_it_is_what_plain_jnp_gives():
    want = plain_outcome(plain, P, *DATA)
    assert_close(unsplit(), want, TERMS)


@pytest.mark.quick(
    "b=2,c=2 batch:b,stream:c,heads:c", "a=4 memory_length:a", "a=2,b=2,c=2 length:a,memory_length:b,heads:c,vocab:c"
)
@at_each(
    ("b=2,c=2", "batch:b,stream:c,heads:c"),
    ("c=4", "stream:c,heads:c"),
    ("c=4", "length:c"),
    ("a=2,b=2", "length:a,memory_length:b"),
    ("a=4", "memory_length:a"),
    ("a=2,b=2,c=2", "length:a,memory_length:b,heads:c,vocab:c"),
)
def test_it_is_the_same_everywhere(place):
    assert_close(outcome(place, decoder, P, *DATA), unsplit(), TERMS)


def test_sequence_parallel_is_a_gather_into_a_block_and_a_reduce_scatter_out_of_it():
    found = sends(("c=4", "stream:c,heads:c"), decoder, P, *DATA)
    # Into self attention, cross attention and the logits; out of the two attentions.
    assert found == {("all_gather", "c"): 3, ("reduce_scatter", "c"): 2}


def test_where_the_stream_lies_as_its_sequence_a_block_has_no_border():
    found = sends(("c=4", "length:c"), decoder, P, *DATA)
    # Keys, values and the segments they are of; the word before a slice.
    assert found == {("all_gather", "c"): 3, ("permute", "c"): 1}


def test_only_a_processors_part_of_the_bias_is_made():
    given = {"rel": P["rel"]}, wf.zeros([B, T])
    program = wf.trace(bias, *given, mesh="a=2,b=2,c=2", layout="length:a,memory_length:b,heads:c")
    (region,) = (eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "shard_map")
    made = [var.aval.size for eqn in region.params["jaxpr"].eqns for var in eqn.outvars]
    assert max(made) == T.size * M.size * H.size // 8
    assert len(program.ledger) == 0


def test_a_layer_from_d_model_to_d_model_has_one_weight_and_gives_d_model_again():
    key, x = jax.random.key(0), wf.tensor(values([B, T, D], 3), [B, T, D])
    layer = nn.Linear(D, D, key=key)
    h    = nn.Linear(D, D, key=key)(x)  # d_model to d_model: one weight [d_model d_model_out], the result has d_model again  # fmt: skip  # noqa: E501
    assert layer.weight.dims.names == ("d_model", "d_model_out")
    assert h.dims.names == ("batch", "length", "d_model")
    np.testing.assert_allclose(h, np.asarray(x) @ np.asarray(layer.weight), rtol=1e-5, atol=1e-5)
    # Split, it is summed over the one side and leaves scattered along the other.
    assert sends(("c=4", "d_model:c"), lambda layer, x: layer(x), layer, x) == {("reduce_scatter", "c"): 1}
