"""The workloads in plain JAX, as one writes them by hand for a GPU.

Layers unrolled, cuDNN's attention where it does it, float32 weights and gradients, bfloat16 products and logits.
Weights go by the names of `workloads.weights`, one array for all layers.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from . import workloads
from .workloads import Workload

Weights = dict[str, Any]


def versions() -> dict[str, str]:
    return {"jax": jax.__version__, "device": jax.devices()[0].device_kind}


def peak_bytes() -> int | None:
    """The most memory this process ever held, where the device tells."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def read(x: Any) -> float:
    return float(np.asarray(jax.device_get(x)).reshape(-1)[0])


def optimizer(w: Workload) -> Any:
    if w.optimizer == "adafactor":
        return optax.adafactor(workloads.LEARNING_RATE)
    return optax.adamw(workloads.LEARNING_RATE, weight_decay=workloads.WEIGHT_DECAY)


def init(w: Workload, key: Any) -> Weights:
    """First values, as random as Weft's: each layer's its own array."""

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def normal(key: Any, shape: tuple[int, ...], stddev: float) -> Any:
        return jax.random.normal(key, shape) * stddev if stddev else jnp.ones(shape)

    found = {}
    for number, (name, (shape, stddev)) in enumerate(workloads.weights(w).items()):
        keys = jax.random.split(jax.random.fold_in(key, number), w.layers)
        if ".layers." in name:
            found |= {f"{name}.{i}": normal(keys[i], shape[1:], stddev) for i in range(w.layers)}
        else:
            found[name] = normal(keys[0], shape, stddev)
    return found


def make(w: Workload) -> Callable[[], Any]:
    """What runs a step: weights are made, nothing is compiled yet."""
    p, update = init(w, jax.random.key(0)), optimizer(w)
    if w.new_tokens:
        return _generation(w, p)
    held = [p, jax.jit(update.init)(p)]
    batch = {name: jnp.asarray(value) for name, value in workloads.batch(w).items()}
    keys = iter(list(jax.random.split(jax.random.key(1), 512)) if w.dropout else [None] * 4096)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(p: Weights, state: Any, key: Any) -> Any:
        value, grads = jax.value_and_grad(functools.partial(loss, w))(p, batch, key)
        updates, state = update.update(grads, state, p)
        return optax.apply_updates(p, updates), state, value

    def run() -> Any:
        *held[:], value = step(*held, next(keys))
        return value

    return run


# The model. `half` is the dtype of activations: bfloat16, or float32 where rivals are compared.


def loss(w: Workload, p: Weights, batch: dict[str, Any], key: Any = None, half: Any = jnp.bfloat16) -> Any:
    """The mean cross-entropy of a batch, and what the experts add."""
    drop = Dropout(w.dropout, key)
    targets = batch["targets"] if w.encoder else batch["tokens"]
    before = jnp.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    here = jnp.arange(w.length)[None]
    if w.document:
        segments, here = batch["segments"], batch["positions"]
        before = jnp.where(jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1] == segments, before, 0)
    memory = None
    if w.encoder:
        x = embed(w, p, batch["inputs"], here, half)
        memory, _ = blocks(w, p, "encoder", drop(x), drop, here, None, None)
    x = embed(w, p, before, here, half)
    x, balance = blocks(w, p, "decoder", drop(x), drop, here, batch.get("segments"), memory)
    x = x * (w.d_model**-0.5 if w.tied_scale else 1.0)
    return cross_entropy(x.astype(half), p["embedding.table"].astype(half), targets) + workloads.BALANCE * balance


class Dropout:
    """Dropout with a key of its own at each call; none without a key."""

    def __init__(self, rate: float, key: Any):
        self.rate, self.key = (rate, key) if key is not None else (0.0, None)

    def __call__(self, x: Any) -> Any:
        if not self.rate:
            return x
        self.key, own = jax.random.split(self.key)
        return jnp.where(jax.random.bernoulli(own, 1 - self.rate, x.shape), x / (1 - self.rate), 0)


def embed(w: Workload, p: Weights, ids: Any, here: Any, half: Any) -> Any:
    x = p["embedding.table"].astype(half)[ids]
    if w.positions != "sinusoid":
        return x
    channel = jnp.arange(w.d_model)
    angle = here[..., None] * jnp.exp(channel // 2 * (-2 * math.log(10_000) / w.d_model))
    return (x + jnp.sin(angle + channel % 2 * (math.pi / 2))).astype(half)


def rms(x: Any, scale: Any, epsilon: float) -> Any:
    wide = x.astype("float32")
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + epsilon) * scale).astype(x.dtype)


def blocks(
    w: Workload, p: Weights, side: str, x: Any, drop: Dropout, here: Any, segments: Any, memory: Any
) -> tuple[Any, Any]:
    """The stream after all layers and the norm; the experts' load-balancing loss."""
    causal, balance = side == "decoder", jnp.float32(0)
    bias = relative_bias(w, p[f"{side}.relative.table"], causal).astype(x.dtype) if w.positions == "relative" else None

    def block(x: Any, own: Weights) -> tuple[Any, Any]:
        h = rms(x, own["attention_norm.scale"], w.epsilon)
        x = x + drop(attention(w, own, "attention", h, h, drop, here, causal, segments, bias))
        if memory is not None:
            h = rms(x, own["memory_norm.scale"], w.epsilon)
            x = x + drop(attention(w, own, "memory_attention", h, memory, drop, None, False, None, None))
        h = rms(x, own["feed_forward_norm.scale"], w.epsilon)
        y, more = experts(w, own, h) if w.experts else (feed_forward(own, h, drop), 0.0)
        return x + drop(y), more

    for i in range(w.layers):
        prefix = f"{side}.layers."
        own = {
            name[len(prefix) : -len(f".{i}")]: p[name]
            for name in p
            if name.startswith(prefix) and name.endswith(f".{i}")
        }
        x, more = jax.checkpoint(block)(x, own) if w.weft.get("remat") else block(x, own)
        balance += more
    return drop(rms(x, p[f"{side}.norm.scale"], w.epsilon)), balance


def attention(
    w: Workload, own: Weights, name: str, h: Any, memory: Any, drop: Dropout, here: Any, causal: bool, segments: Any,
    bias: Any,
) -> Any:  # fmt: skip
    """Attention of `h` to `memory`: by cuDNN, or written out where that does not do it."""
    q, k, v, o = (own[f"{name}.{n}"].astype(h.dtype) for n in "qkvo")
    q, o = q.reshape(w.d_model, -1, w.d_kv), o.reshape(-1, w.d_kv, w.d_model)
    if memory is h:  # one product for all three
        joined = jnp.einsum("bld,dhk->blhk", h, jnp.concatenate([q, k, v], 1))
        q, k, v = jnp.split(joined, [q.shape[1], q.shape[1] + w.heads], 2)
    else:
        q, k, v = jnp.einsum("bld,dhk->blhk", h, q), *(jnp.einsum("bld,dhk->blhk", memory, x) for x in (k, v))
    if w.positions == "rotary":
        q, k = rope(q, here, w.rotary_base), rope(k, here, w.rotary_base)
    scale = 1.0 if w.encoder else w.d_kv**-0.5
    if drop.rate:
        mixed = written_out(q, k, v, drop, scale)
    else:
        kernel = "cudnn" if jax.default_backend() == "gpu" else None
        mask = None if segments is None else (segments[:, None, :, None] == segments[:, None, None, :])
        mixed = jax.nn.dot_product_attention(
            q, k, v, bias=bias, mask=mask, is_causal=causal, scale=scale, implementation=kernel
        )
    return jnp.einsum("blhk,hkd->bld", mixed, o)


def written_out(q: Any, k: Any, v: Any, drop: Dropout, scale: float) -> Any:
    """Causal attention with dropout of its probabilities."""
    scores = jnp.einsum("bqhk,bmhk->bhqm", q, k, preferred_element_type="float32") * scale
    length = jnp.arange(q.shape[1])
    share = jax.nn.softmax(jnp.where(length[:, None] >= length, scores, -1e30), -1)
    return jnp.einsum("bhqm,bmhk->bqhk", drop(share).astype(q.dtype), v)


def rope(x: Any, here: Any, base: float) -> Any:
    """RoPE: channels i and i + half turned by position."""
    first, second = jnp.split(x.astype("float32"), 2, -1)
    rate = jnp.exp(jnp.arange(first.shape[-1]) * (-math.log(base) / first.shape[-1]))
    angle = here[..., None, None] * rate
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def relative_bias(w: Workload, table: Any, causal: bool) -> Any:
    """T5's bias of scores by distance: [1 heads length length]."""
    place = np.arange(w.length)
    return table[bucket(place[None] - place[:, None], causal)].transpose(2, 0, 1)[None]


def bucket(distance: np.ndarray, causal: bool) -> np.ndarray:
    """T5's buckets of the distances from queries to keys."""
    buckets = workloads.BUCKETS if causal else workloads.BUCKETS // 2
    start = 0 if causal else np.where(distance > 0, buckets, 0)
    away = np.maximum(-distance, 0) if causal else np.abs(distance)
    exact = buckets // 2
    ratio = np.log(np.maximum(away, 1).astype("float32") / exact) / math.log(workloads.FARTHEST / exact)
    wide = np.minimum(exact + (ratio * (buckets - exact)).astype(int), buckets - 1)
    return start + np.where(away < exact, away, wide)


def feed_forward(own: Weights, h: Any, drop: Dropout) -> Any:
    hidden = h @ own["feed_forward.w_in"].astype(h.dtype)
    if "feed_forward.w_gate" in own:
        hidden = jax.nn.silu(h @ own["feed_forward.w_gate"].astype(h.dtype)) * hidden
    else:
        hidden = jax.nn.relu(hidden)
    return drop(hidden) @ own["feed_forward.w_out"].astype(h.dtype)


def experts(w: Workload, own: Weights, h: Any) -> tuple[Any, Any]:
    """The two best experts of each token, and their load-balancing loss: tokens sorted, ragged products."""
    rows = h.reshape(-1, w.d_model)
    share = jax.nn.softmax(rows.astype("float32") @ own["feed_forward.gate"])
    shares, chosen = jax.lax.top_k(share, 2)
    shares = shares / shares.sum(-1, keepdims=True)
    order = jnp.argsort(chosen.reshape(-1), stable=True)
    sizes = jnp.bincount(chosen.reshape(-1), length=w.experts)
    w_in, w_out = (own[f"feed_forward.{name}"].astype(h.dtype) for name in ("w_in", "w_out"))
    hidden = jax.nn.relu(jax.lax.ragged_dot(rows[order // 2], w_in, sizes))
    made = jax.lax.ragged_dot(hidden, w_out, sizes)[jnp.argsort(order)].reshape(-1, 2, w.d_model)
    y = jnp.einsum("tkd,tk->td", made, shares.astype(h.dtype)).reshape(h.shape)
    first = jax.nn.one_hot(jnp.argmax(share, -1), w.experts).mean(0)
    return y, w.experts * jnp.sum(first * share.mean(0))


@functools.partial(jax.custom_vjp)
def cross_entropy(x: Any, table: Any, targets: Any) -> Any:
    """The mean cross-entropy of logits `x table`, which are kept as they are computed with; one pass backward."""
    return _cross_entropy(x, table, targets)[0]


def _cross_entropy(x: Any, table: Any, targets: Any) -> tuple[Any, Any]:
    logits = jnp.einsum("bld,vd->blv", x, table)
    wide = logits.astype("float32")
    total = jax.nn.logsumexp(wide, -1)
    right = jnp.take_along_axis(wide, targets[..., None], -1)[..., 0]
    return jnp.mean(total - right), (x, table, targets, logits, total)


def _cross_entropy_back(kept: Any, cotangent: Any) -> Any:
    x, table, targets, logits, total = kept
    hot = jnp.arange(table.shape[0]) == targets[..., None]
    share = jnp.exp(logits.astype("float32") - total[..., None]) - hot
    slope = (share * (cotangent / targets.size)).astype(x.dtype)
    return jnp.einsum("blv,vd->bld", slope, table), jnp.einsum("blv,bld->vd", slope, x), None


cross_entropy.defvjp(_cross_entropy, _cross_entropy_back)


# Decoding: the prompt at once, then one token after the other in one compiled loop.


def _generation(w: Workload, p: Weights) -> Callable[[], Any]:
    """What continues prompts by the likeliest tokens, with weights cast once; gives the last of them."""
    p = {name: value.astype("bfloat16") for name, value in p.items()}
    prompts = jnp.asarray(workloads.batch(w)["tokens"])
    run = jax.jit(functools.partial(generate, w))
    return lambda: run(p, prompts)[0, -1]


def generate(w: Workload, p: Weights, prompts: Any) -> Any:
    """The new tokens of each prompt: [batch new_tokens]."""
    shape = (w.batch, w.length + w.new_tokens, w.heads, w.d_kv)
    cache = [(jnp.zeros(shape, "bfloat16"), jnp.zeros(shape, "bfloat16")) for _ in range(w.layers)]
    token, cache = _advance(w, p, prompts, 0, cache)
    new = jnp.zeros((w.batch, w.new_tokens), "int32").at[:, 0].set(token)

    def turn(i: Any, carry: Any) -> Any:
        token, new, cache = carry
        token, cache = _advance(w, p, token[:, None], w.length + i - 1, cache)
        return token, jax.lax.dynamic_update_index_in_dim(new, token, i, 1), cache

    return jax.lax.fori_loop(1, w.new_tokens, turn, (token, new, cache))[1]


def _advance(w: Workload, p: Weights, ids: Any, at: Any, cache: list[Any]) -> tuple[Any, list[Any]]:
    """The likeliest token after `ids`, which stand from place `at` on, and the KV cache with those."""
    here = at + jnp.arange(ids.shape[1])
    x = embed(w, p, ids, here[None], jnp.bfloat16)
    is_seen = jnp.arange(cache[0][0].shape[1]) <= here[:, None]
    kept = []
    for i, (keys, values) in enumerate(cache):
        own = {
            name[15 : -len(f".{i}")]: p[name]
            for name in p
            if name.startswith("decoder.layers.") and name.endswith(f".{i}")
        }
        h = rms(x, own["attention_norm.scale"], w.epsilon)
        joined = jnp.concatenate([own[f"attention.{n}"] for n in "qkv"], 1)
        q, k, v = jnp.split(jnp.einsum("bld,dhk->blhk", h, joined), 3, 2)
        keys, values = (jax.lax.dynamic_update_slice_in_dim(a, b, at, 1) for a, b in ((keys, k), (values, v)))
        kept.append((keys, values))
        mixed = jax.nn.dot_product_attention(q, keys, values, mask=is_seen[None, None])
        x = x + jnp.einsum("blhk,hkd->bld", mixed, own["attention.o"])
        x = x + feed_forward(own, rms(x, own["feed_forward_norm.scale"], w.epsilon), Dropout(0.0, None))
    x = rms(x[:, -1], p["decoder.norm.scale"], w.epsilon) * w.d_model**-0.5
    logits = jnp.einsum("bd,vd->bv", x, p["embedding.table"], preferred_element_type="float32")
    return jnp.argmax(logits, -1).astype("int32"), kept
