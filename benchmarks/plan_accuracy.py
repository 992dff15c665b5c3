"""Train steps of language models on one GPU: predicted by `wf.Plan` against measured.

    python benchmarks/plan_accuracy.py [--out FILE] [--only PART] [--steps 15] [--hardware h200] [--predict-only]

Each configuration is planned, compiled, run, and printed as soon as it is done, its memory beside what XLA says of it.
Weights start as constants: what they are changes no time. `--fitted` shows those the model's constants were fitted to,
with the times measured then. A program is traced with no devices, so its memory holds scores of attention that a fused
kernel never stores: how much of it they are is said too.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import weft as wf
from weft import models

WIDE = dict(layers=24, d_model=1024, heads=16, d_kv=64, d_ff=4096, vocab=32768, batch=16, length=1024)
BYTES = dict(
    layers=12,
    d_model=768,
    heads=12,
    d_kv=64,
    d_ff=3072,
    vocab=256,
    batch=64,
    length=512,
    scanned=False,
    norm="layer",
    positions="rotary",
    activation="gelu_tanh",
)
PAPER = dict(layers=6, d_model=1024, d_kv=256, vocab=32768, length=256, tied=True)

# Measured on one H200: milliseconds. The first ten before this model was made, the others when they were held out.
FITTED = {
    "0.34 B unrolled": (dict(WIDE, scanned=False), "adam", 77.3),
    "0.34 B unrolled, plain attention": (dict(WIDE, scanned=False, attention="plain"), "adam", 128.1),
    "0.34 B scanned": (dict(WIDE), "adam", 97.3),
    "0.34 B scanned, twice the batch": (dict(WIDE, batch=32), "adam", 179.0),
    "0.11 B of the paper, scanned": (dict(PAPER, heads=4, d_ff=4096, batch=128), "adam", 53.3),
    "0.11 B of the paper, unrolled": (dict(PAPER, heads=4, d_ff=4096, batch=128, scanned=False), "adam", 44.6),
    "0.34 B of the paper, scanned": (dict(PAPER, heads=16, d_ff=16384, batch=128), "adam", 144.6),
    "4.87 B of the paper": (dict(PAPER, heads=256, d_ff=262144, batch=32, remat=True), "sgd", 542.0),
    "0.09 B of bytes": (dict(BYTES), "adamw", 47.1),
    "0.09 B of bytes, dropout": (dict(BYTES, dropout=0.1), "adamw", 85.4),
    "0.12 B unrolled": (
        dict(layers=12, d_model=768, heads=12, d_kv=64, d_ff=3072, vocab=50304, batch=32, length=1024, scanned=False),
        "adamw", 55.0,
    ),
    "0.13 B scanned, short": (
        dict(layers=16, d_model=768, heads=6, d_kv=128, d_ff=3072, vocab=16384, batch=128, length=256), "adam", 72.5,
    ),
    "0.4 B scanned, remat": (
        dict(layers=20, d_model=1280, heads=20, d_kv=64, d_ff=5120, vocab=32768, batch=16, length=1024, remat=True),
        "adam", 102.2,
    ),
    "0.7 B unrolled, gated": (
        dict(layers=12, d_model=2048, heads=16, d_kv=128, d_ff=5632, gated=True, activation="silu", vocab=32768,
             batch=8, length=2048, scanned=False),
        "adamw", 110.2,
    ),
    "1.3 B scanned, remat": (
        dict(layers=24, d_model=2048, heads=16, d_kv=128, d_ff=8192, vocab=32768, batch=8, length=2048, remat=True),
        "adam", 250.8,
    ),
    "2.5 B scanned, remat": (
        dict(PAPER, heads=128, d_ff=131072, batch=64, remat=True), "adam", 516.8,
    ),
    "4.9 B scanned, remat": (
        dict(layers=24, d_model=4096, heads=32, d_kv=128, d_ff=16384, vocab=32768, batch=4, length=2048, remat=True),
        "sgd", 449.4,
    ),
}  # fmt: skip

# Not fitted to: width, heads, depth, vocab, batch, length, optimizer, loop and recomputation differ from those above.
CASES = {
    "0.18 B unrolled, few wide heads": (
        dict(layers=10, d_model=1152, heads=9, d_kv=128, d_ff=4608, vocab=20480, batch=24, length=768, scanned=False),
        "sgd",
    ),
    "0.28 B scanned, large vocab": (
        dict(layers=14, d_model=1024, heads=16, d_kv=64, d_ff=4096, vocab=98304, batch=12, length=1024), "adafactor",
    ),
    "0.9 B unrolled, remat, long": (
        dict(layers=10, d_model=2560, heads=20, d_kv=128, d_ff=10240, vocab=40960, batch=2, length=4096, scanned=False,
             remat=True),
        "adamw",
    ),
    "1.9 B scanned, gated, remat": (
        dict(layers=32, d_model=2304, heads=36, d_kv=64, d_ff=5120, gated=True, activation="silu", vocab=24576,
             batch=16, length=1024, remat=True),
        "adamw",
    ),
    "3.6 B scanned, remat": (
        dict(layers=28, d_model=3072, heads=24, d_kv=128, d_ff=14336, vocab=50304, batch=6, length=1536, remat=True),
        "adafactor",
    ),
}  # fmt: skip
GIB = 2**30
SMALL = dict(layers=2, d_model=64, heads=2, d_kv=16, d_ff=128, vocab=256, batch=4, length=32)


def config_of(sizes: dict):
    return models.preset("lm-0.14b", **{"tied": True, "remat": False, "dropout": 0.0, **sizes})


def loss(model, tokens, key):
    return model.loss({"tokens": tokens}, key if model.config.dropout else None)


def bound_step(optimizer: str):
    step = wf.train_step(loss, getattr(optax, optimizer)(1e-4))
    return wf.spmd(step, mesh="x=1", layout="batch:x", donate=0)


def plan_of(config, optimizer: str, hardware: str) -> wf.Plan:
    ids = jax.ShapeDtypeStruct((config.batch, config.length), "int32")
    step = bound_step(optimizer)
    args = step.init(models.shapes(config)), wf.tensor(ids, "batch length"), jax.eval_shape(lambda: jax.random.key(0))
    return wf.Plan(wf.trace(step, *args), hardware, fused=config.attention != "plain")


def constant_model(config):
    """The model with small constants for weights: made in a moment, and as fast to train as any."""

    def constant(leaf):
        return jnp.full(leaf.shape, 0.01, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return jax.jit(lambda: jax.tree.map(constant, models.shapes(config)))()


def measured(config, optimizer: str, steps: int) -> dict:
    """Milliseconds a step, the median of blocks of three, the seconds to the first, and XLA's memory."""
    start = time.perf_counter()
    step = bound_step(optimizer)
    state = step.init(constant_model(config))
    ids = np.random.default_rng(0).integers(0, config.vocab, (config.batch, config.length), "int32")
    tokens, key = wf.tensor(jnp.asarray(ids), "batch length"), jax.random.key(0)
    # The step's own program, compiled once: what runs is what XLA is asked about.
    compiled = step.lower(state, tokens, key).compile()
    found = memory_of(compiled)
    (program,) = step._programs.values()
    program.jitted, program._is_read = compiled, True

    def run(count: int) -> float:
        nonlocal state
        begin = time.perf_counter()
        for _ in range(count):
            state, told = step(state, tokens, key)
        jax.block_until_ready(jax.tree.leaves(told))
        return (time.perf_counter() - begin) / count

    run(1)
    found["first_s"] = time.perf_counter() - start
    run(3)
    blocks = [run(3) for _ in range(max(steps // 3, 1))]
    return found | {"ms": statistics.median(blocks) * 1e3, "least": min(blocks) * 1e3}


def memory_of(compiled) -> dict:
    """What XLA says the program needs: its own peak, and all that it sets aside."""
    told = compiled.memory_analysis()
    if told is None:
        return {}
    sizes = {name: getattr(told, f"{name}_size_in_bytes") for name in ("argument", "temp", "output", "alias")}
    needed = sizes["argument"] + sizes["temp"] + sizes["output"] - sizes["alias"]
    return {"xla_peak": getattr(told, "peak_memory_in_bytes", None), "xla_needed": needed, "xla_sizes": sizes}


def row_of(name: str, plan: wf.Plan, config, optimizer: str) -> dict:
    return {
        "name": name,
        "parameters": config.param_count,
        "optimizer": optimizer,
        "predicted_ms": plan.seconds * 1e3,
        "mfu": plan.mfu,
        "phases": plan.phases,
        "by": by_kind(plan),
        "memory": plan.memory.peak,
        "memory_range": plan.memory.range,
        "memory_scores": sum(alive.bytes for alive in plan.memory.alive if "memory_length" in alive.array_type.names),
    }


def by_kind(plan: wf.Plan) -> dict[str, float]:
    """Milliseconds of each kind of kernel."""
    return {kind: seconds * 1e3 for kind, seconds in plan.kinds.items()}


def text_of(row: dict) -> str:
    told = f"{row['name']:34} {row['parameters'] / 1e9:5.2f} B  predicted {row['predicted_ms']:7.1f} ms"
    if "ms" in row:
        told += f"  measured {row['ms']:7.1f} ms  ratio {row['ratio']:5.2f}"
    told += f"  memory {row['memory'] / GIB:6.2f} GiB (scores {row['memory_scores'] / GIB:.2f})"
    if row.get("xla_peak"):
        told += f", XLA's peak {row['xla_peak'] / GIB:6.2f} GiB, ratio {row['memory'] / row['xla_peak']:5.2f}"
    if "xla_needed" in row:
        told += f", set aside {row['xla_needed'] / GIB:6.2f} GiB"
    if "first_s" in row:
        told += f"  (first step after {row['first_s']:.1f} s)"
    return told + (f"  {row['error']}" if "error" in row else "")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--predict-only", action="store_true")
    parser.add_argument("--fitted", action="store_true")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try this script without a GPU")
    args = parser.parse_args()
    rows = []
    cases = FITTED if args.fitted else CASES
    for name, (sizes, optimizer, *known) in cases.items():
        if args.only not in name:
            continue
        config = config_of({**sizes, **(SMALL if args.small else {})})
        row = row_of(name, plan_of(config, optimizer, args.hardware), config, optimizer)
        if known:
            row["ms"] = known[0]
        elif not args.predict_only:
            try:
                row |= measured(config, optimizer, args.steps)
            except Exception as error:  # out of memory, say: the others still count
                row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            jax.clear_caches()
        if "ms" in row:
            row["ratio"] = row["predicted_ms"] / row["ms"]
        rows.append(row)
        print(text_of(row), flush=True)
        if args.out:
            with open(args.out, "w") as file:
                json.dump(
                    {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "rows": rows}, file, indent=1
                )
    off = [abs(row["ratio"] - 1) for row in rows if "ratio" in row]
    if off:
        print(f"{sum(each <= 0.2 for each in off)} of {len(off)} within 20 %, the worst {max(off):.0%} off")


if __name__ == "__main__":
    main()
