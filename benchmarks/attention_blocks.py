"""Blocks of attention on a GPU: the fused kernel against the same blocks as XLA compiles them.

Run it on a machine with a GPU: `python benchmarks/attention_blocks.py`. One processor's part of a causal sequence, its
queries a piece of `length`, keys in pieces: what `length:x` and a ring over x do, without the sending.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weft import nn
from weft.compat import attention_kernel
from weft.dims import Shape
from weft.ops.blockwise import Back, KeyPiece, More, Places, QueryPiece, Scoring, State

BATCH, HEADS, GROUP, WIDTH = 1, 8, 4, 128


def scoring(kernel: Any) -> Scoring:
    outer = ("batch", "heads", "group")
    return Scoring(
        outer=outer, outer_of_keys=outer[:2], scale=WIDTH**-0.5, softcap=None, mask=nn.Mask(causal=True), bias=None,
        outer_of_bias=(), memory_count=None, dropout=0.0, share_dims=Shape(()), starts=(), kernel=kernel, dealt=None,
        is_ordered=True,
    )  # fmt: skip


def places(start: int, count: int) -> Places:
    return Places((start + jnp.arange(count)).reshape(1, 1, 1, -1, 1))


def attend(how: Scoring, start: int, q: Any, k: Any, v: Any, gradient: Any) -> Any:
    """The result of queries from `start` on, and the gradients of queries, keys and values."""
    queries = QueryPiece(q, places(start, q.shape[-2]))
    keys = KeyPiece(k, v, places(0, k.shape[-2]))
    state = how.add(State.before(q), queries, keys, None, More(), is_past=False)
    result = state.result(q.dtype)
    delta = jnp.sum(result.astype("float32") * gradient.astype("float32"), axis=-1, keepdims=True)
    back = Back(gradient, state.largest, state.shares, delta, result)
    return result, *how.gradients(queries, back, keys, None, More(), is_past=False)[:3]


def seconds(run: Any, *given: Any) -> float:
    jax.block_until_ready(run(*given))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(run(*given))
        times.append(time.perf_counter() - start)
    return sorted(times)[2]


def main() -> None:
    kernel = attention_kernel(WIDTH**-0.5)
    print(jax.devices()[0].device_kind, jax.__version__, "kernel:", kernel is not None)
    random = np.random.default_rng(0)
    for own, length, start in ((1024, 4096, 1024), (4096, 32768, 28672), (8192, 65536, 57344)):
        q, gradient = (jnp.asarray(random.normal(size=(BATCH, HEADS, GROUP, own, WIDTH)), "bfloat16") for _ in range(2))
        k, v = (jnp.asarray(random.normal(size=(BATCH, HEADS, length, WIDTH)), "bfloat16") for _ in range(2))
        found, times = [], []
        for chosen in (None, kernel):
            run = jax.jit(functools.partial(attend, scoring(chosen), start))
            found.append([np.asarray(x, "float32") for x in run(q, k, v, gradient)])
            times.append(seconds(run, q, k, v, gradient))
        off = [float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(*found, strict=True)]
        print(
            f"{own} queries at {start} of {length} keys: {times[0] * 1e3:.2f} ms by XLA, {times[1] * 1e3:.2f} ms fused"
        )
        print(
            "  apart, of the largest:",
            "  ".join(f"{name} {x:.1e}" for name, x in zip("o q k v".split(), off, strict=True)),
        )


if __name__ == "__main__":
    main()
