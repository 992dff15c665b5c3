"""A GPT block: grouped queries, rotary positions, one code for training and for cached decoding."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import weft as wf

from .everywhere import assert_close, at_each, outcome, plain_outcome, sends, values, weights

# ---- as a user writes it

B, T, M, D, F, V, L = wf.dims(batch=4, length=8, memory_length=8, d_model=16, d_ff=32, vocab=64, layers=2)
H, G, K = wf.dims(heads=4, group=2, d_kv=4)  # query heads = heads x group; k and v have `heads`


def rotary(x, pos):
    two, half = wf.dims(two=2, half=K.size // 2)
    a, b = wf.unstack(wf.split(x, d_kv=[two, half]), over=two)
    angle = wf.cast(pos, "float32") * wf.exp(wf.arange(half, like=x) * (-9.21 / half.size))
    return wf.merge(wf.stack([a * wf.cos(angle) - b * wf.sin(angle), b * wf.cos(angle) + a * wf.sin(angle)], two), [two, half], into=K)  # fmt: skip  # noqa: E501


def attention(p, x, pos, cache=None, at=None):  # x: [batch length d_model], or [batch d_model] when decoding
    q = rotary(wf.einsum(x, p["q"], over=D), pos)  # over=: whatever other dims x has are kept
    k, v = (wf.einsum(x, p[n], over=D) for n in "kv")
    k = rotary(k, pos)
    if cache is None:
        k, v, where = k.rename(length=M), v.rename(length=M), pos.rename(length=M)
    else:
        k, v = (wf.update(cache[n], new, over=M, at=at) for n, new in (("k", k), ("v", v)))
        where = wf.arange(M, like=x)
    scores = wf.where(where <= pos, wf.einsum(q, k, over=K) / K.size**0.5, -1e9)
    return wf.einsum(wf.einsum(wf.softmax(scores, over=M), v, over=M), p["o"], over=[H, G, K])


# ---- what it leaves out


def training(p: Any, x: wf.Tensor) -> wf.Tensor:
    return wf.broadcast(attention(p, x, wf.arange(T, like=x)), "batch length d_model")


def decoding(p: Any, x: wf.Tensor) -> wf.Tensor:
    """The same, a position at a time, each seeing the cache of those before it."""

    def step(cache: Any, this: Any) -> Any:
        x, at = this
        y = attention(p, x, at, cache, at)
        new = {"k": rotary(wf.einsum(x, p["k"], over=D), at), "v": wf.einsum(x, p["v"], over=D)}
        return {n: wf.update(cache[n], new[n], over=M, at=at) for n in cache}, y

    empty = wf.zeros([x.dim("batch"), M, H, K])
    _, y = wf.scan(step, {"k": empty, "v": empty}, (x, wf.arange(T)), over=T)
    return wf.broadcast(y, "batch length d_model")


def plain(p: Any, x: Any) -> Any:
    """Every head by itself, on arrays."""

    def turned(a: Any) -> Any:  # [batch length d_kv]
        pairs = a[..., : K.size // 2] + 1j * a[..., K.size // 2 :]
        speed = jnp.exp(-9.21 * jnp.arange(K.size // 2) / (K.size // 2))
        pairs = pairs * jnp.exp(1j * jnp.arange(T.size)[:, None] * speed)
        return jnp.concatenate([pairs.real, pairs.imag], -1)

    y = jnp.zeros_like(x)
    for h in range(H.size):
        k, v = turned(x @ p["k"][:, h]), x @ p["v"][:, h]
        for g in range(G.size):
            scores = turned(x @ p["q"][:, h, g]) @ k.swapaxes(1, 2) / jnp.sqrt(K.size)
            scores = jnp.where(jnp.tril(jnp.ones((T.size, T.size), bool)), scores, -jnp.inf)
            y = y + jax.nn.softmax(scores) @ v @ p["o"][h, g]
    return y


P = weights(q=[D, H, G, K], k=[D, H, K], v=[D, H, K], o=[H, G, K, D])
X = {size: wf.tensor(values([B.resized(size), T, D], 9), [B.resized(size), T, D]) for size in (1, 4)}
TERMS = B.size * T.size * H.size


@functools.cache
def unsplit(batch: int) -> Any:
    return outcome(None, training, P, X[batch])


@pytest.mark.quick("4")
@pytest.mark.parametrize("batch", [1, 4])
def test_without_a_mesh_it_is_what_plain_jnp_gives(batch):
    want = plain_outcome(plain, P, X[batch])
    assert_close(unsplit(batch), want, TERMS)


@pytest.mark.quick(
    "a=4,b=2 heads:a,group:b", "a=2,b=2 length:a,memory_length:b", "a=2,b=4 batch:a,heads:b,params.d_model:a"
)
@at_each(
    ("a=2,b=4", "batch:a,heads:b"),
    ("a=4,b=2", "heads:a,group:b"),
    ("a=4", "length:a"),
    ("a=2,b=2", "length:a,memory_length:b"),
    ("a=2,b=4", "batch:a,heads:b,params.d_model:a"),
)
def test_training_is_the_same_everywhere(place):
    assert_close(outcome(place, training, P, X[4]), unsplit(4), TERMS)


def test_training_on_one_example_is_the_same_with_its_heads_split():
    assert_close(outcome(("a=4", "heads:a"), training, P, X[1]), unsplit(1), TERMS)


@pytest.mark.quick("a=4,b=2 heads:a,group:b", "a=4 memory_length:a")
@at_each(("a=2,b=4", "batch:a,heads:b"), ("a=4,b=2", "heads:a,group:b"), ("a=4", "memory_length:a"))
def test_decoding_with_a_cache_gives_what_training_gives_at_every_position(place):
    assert_close(outcome(place, decoding, P, X[4]), unsplit(4), TERMS)


@pytest.mark.quick("heads:a,memory_length:b")
@pytest.mark.parametrize("layout", ["heads:a", "heads:a,memory_length:b"])
def test_decoding_one_example_gives_what_training_gives_at_every_position(layout):
    assert_close(outcome(("a=4,b=2", layout), decoding, P, X[1]), unsplit(1), TERMS)


def test_what_is_sent():
    assert sends(("a=2,b=4", "batch:a,heads:b"), training, P, X[4]) == {("all_reduce", "b"): 1}
    assert sends(("a=4,b=2", "heads:a,group:b"), training, P, X[4]) == {("all_reduce", "a+b"): 1}
    assert sends(("a=4", "length:a"), training, P, X[4]) == {("all_gather", "a"): 3}  # k, v, and where they stand
    assert sends(("a=4", "heads:a"), decoding, P, X[1]) == {("all_reduce", "a"): T.size}  # one a position
