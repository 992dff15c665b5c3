"""The train step of a language model on one GPU: Weft's against the same step written by hand in plain JAX.

    python benchmarks/gpu.py [--steps 20] [--json FILE]

24 layers, d_model 1024, 16 heads of 64, d_ff 4096, vocab 32768, softmax tied (0.34 B parameters), 16 x 1024 tokens,
computed in bfloat16 with float32 parameters and Adam. Then: fused and plain attention, do they agree.
"""

import argparse
import functools
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import weft as wf
from weft import models

SIZES = dict(layers=24, d_model=1024, heads=16, d_kv=64, d_ff=4096, vocab=32768, batch=16, length=1024)
SMALL = dict(layers=2, d_model=64, heads=2, d_kv=16, d_ff=128, vocab=256, batch=4, length=32)
OPTIMIZER = optax.adam(1e-4)
KERNEL = "cudnn" if jax.default_backend() == "gpu" else None


def config(**changes):
    return models.preset("lm-0.14b", **{**SIZES, "tied": True, "remat": False, "dropout": 0.0, **changes})


def tokens() -> jax.Array:
    return jax.random.randint(jax.random.key(1), (SIZES["batch"], SIZES["length"]), 0, SIZES["vocab"], "int32")


# By hand.


def plain_parameters(key):
    s = SIZES
    shapes = {
        "q": (s["d_model"], s["heads"], s["d_kv"]),
        "k": (s["d_model"], s["heads"], s["d_kv"]),
        "v": (s["d_model"], s["heads"], s["d_kv"]),
        "o": (s["heads"], s["d_kv"], s["d_model"]),
        "w_in": (s["d_model"], s["d_ff"]),
        "w_out": (s["d_ff"], s["d_model"]),
    }

    @jax.jit
    def stacks(key):
        fans = {n: s["d_ff"] if n == "w_out" else s["d_model"] for n in shapes}
        keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
        found = {n: jax.random.normal(keys[n], (s["layers"], *shapes[n])) * fans[n] ** -0.5 for n in shapes}
        return found, jax.random.normal(key, (s["vocab"], s["d_model"]))

    found, embedding = stacks(key)
    layers = [{n: found[n][i] for n in shapes} | {"n1": ones(), "n2": ones()} for i in range(s["layers"])]
    return {"embedding": embedding, "layers": layers, "norm": ones()}


def ones():
    return jnp.ones(SIZES["d_model"])


def rms(x, scale):
    wide = x.astype("float32")
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def plain_loss(p, tokens):
    half = jnp.bfloat16
    inputs = jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
    table = p["embedding"].astype(half)
    place, channel = jnp.arange(tokens.shape[1]), jnp.arange(SIZES["d_model"])
    angle = place[:, None] * jnp.exp(channel // 2 * (-2 * np.log(10000) / SIZES["d_model"]))
    x = (table[inputs] + jnp.sin(angle + channel % 2 * np.pi / 2)).astype(half)
    for w in p["layers"]:
        h = rms(x, w["n1"])
        q, k, v = (jnp.einsum("bld,dhk->blhk", h, w[n].astype(half)) for n in "qkv")
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=KERNEL)
        x = x + jnp.einsum("blhk,hkd->bld", y, w["o"].astype(half))
        h = jax.nn.relu(jnp.einsum("bld,df->blf", rms(x, w["n2"]), w["w_in"].astype(half)))
        x = x + jnp.einsum("blf,fd->bld", h, w["w_out"].astype(half))
    x = rms(x, p["norm"]) * SIZES["d_model"] ** -0.5
    logits = jnp.einsum("bld,vd->blv", x, table, preferred_element_type="float32")
    target = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - target)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def plain_step(p, state, tokens):
    loss, grads = jax.value_and_grad(plain_loss)(p, tokens)
    updates, state = OPTIMIZER.update(grads, state)
    return optax.apply_updates(p, updates), state, loss


def by_hand():
    p = plain_parameters(jax.random.key(0))
    held = [p, OPTIMIZER.init(p)]
    batch = tokens()

    def step():
        *held[:], loss = plain_step(*held, batch)
        return loss

    return step


# Weft's.


def by_weft(**changes):
    model = models.init(config(**changes), jax.random.key(0))
    make = wf.train_step(lambda m, tokens, key: m.loss({"tokens": tokens}), OPTIMIZER)
    make = wf.spmd(make, mesh="x=1", layout="batch:x", donate=0)
    held = [make.init(model)]
    batch = wf.tensor(tokens(), "batch length")

    def step():
        held[0], told = make(held[0], batch)
        return told["loss"]

    return step


CASES = {
    "by hand, unrolled": by_hand,
    "weft, unrolled": functools.partial(by_weft, scanned=False),
    "weft, scanned": by_weft,
    "weft, unrolled, plain attention": functools.partial(by_weft, scanned=False, attention="plain"),
}


def timed(make, steps: int) -> dict:
    """Milliseconds a step, the median of blocks of five; seconds to the first; the losses on the way."""
    start = time.perf_counter()
    step = make()
    first = number(step())
    compiled = time.perf_counter() - start
    for _ in range(3):
        last = step()
    number(last)
    blocks = []
    for _ in range(max(steps // 5, 1)):
        start = time.perf_counter()
        for _ in range(5):
            last = step()
        loss = number(last)
        blocks.append((time.perf_counter() - start) / 5 * 1e3)
    return {"ms": statistics.median(blocks), "least": min(blocks), "first_s": compiled, "loss": [first, loss]}


def number(x) -> float:
    return float(np.asarray(jax.device_get(jax.tree.leaves(x)[0])))


def agreement() -> dict:
    """Loss and gradients with fused and with plain attention: the difference, against the gradients' own size."""
    found = []
    for attention in ("auto", "plain"):
        model = models.init(config(layers=4, attention=attention), jax.random.key(0))
        batch = {"tokens": tokens()}
        loss, grads = wf.value_and_grad(lambda m, batch=batch: m.loss(batch))(model)
        found.append([np.asarray(leaf, "float32") for leaf in jax.tree.leaves((loss, grads))])
        del model, grads
    errors = [np.linalg.norm(a - b) / (np.linalg.norm(b) + 1e-30) for a, b in zip(*found, strict=True)]
    return {"loss": float(errors[0]), "gradients": float(max(errors[1:]))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    parser.add_argument("--small", action="store_true", help="small sizes, to try this script without a GPU")
    args = parser.parse_args()
    SIZES.update(SMALL if args.small else {})
    device = jax.devices()[0]
    print(f"{device.device_kind}, JAX {jax.__version__}, {SIZES}")
    results = {}
    for name, make in CASES.items():
        if args.only not in name:
            continue
        results[name] = timed(make, args.steps)
        row = results[name]
        print(f"{name:34} {row['ms']:8.2f} ms  (least {row['least']:.2f}, first step after {row['first_s']:.1f} s, "
              f"loss {row['loss'][0]:.4f} -> {row['loss'][1]:.4f})", flush=True)  # fmt: skip
        jax.clear_caches()
    if not args.only:
        results["agreement"] = agreement()
        print(f"fused against plain attention, relative: loss {results['agreement']['loss']:.1e}, "
              f"gradients {results['agreement']['gradients']:.1e}")  # fmt: skip
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"device": device.device_kind, "jax": jax.__version__, "cases": results}, file, indent=1)


if __name__ == "__main__":
    main()
