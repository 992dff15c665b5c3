"""8-bit Adam and fp8 products on one GPU: speed of products and of train steps, and how models learn.

    python benchmarks/eight_bits.py products        # milliseconds of single products, bfloat16 and float8
    python benchmarks/eight_bits.py steps           # milliseconds of train steps
    python benchmarks/eight_bits.py curves          # losses on Python's own source, each kind in a process of its own

Each prints a JSON line a case, as soon as it is done; `--small` tries the script without a GPU, `--out FILE` keeps the
lines. Curves run side by side on one GPU: of them only losses are told. XLA tries many kernels of Triton's for 8-bit
products before it takes cuBLAS's, for minutes a step: `XLA_FLAGS=--xla_gpu_enable_triton_gemm=false` spares that.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import weft as wf
from weft import models

# Rows, columns, and how many numbers are summed.
PRODUCTS = [(16384, 8192, 2048), (16384, 2048, 8192), (8192, 8192, 8192), (8192, 28672, 8192)]
LLAMA = dict(
    kind="lm", name="llama", norm="rms", positions="rotary", activation="silu", gated=True, remat=True, dtype="bfloat16"
)
STEPS = {
    "1 B, d_model 2048": dict(
        LLAMA, layers=16, d_model=2048, heads=8, group=4, d_kv=64, d_ff=8192, vocab=32768, batch=8, length=2048
    ),
    "3 B, d_model 8192": dict(
        LLAMA, layers=3, d_model=8192, heads=8, group=8, d_kv=128, d_ff=28672, vocab=32768, batch=4, length=2048
    ),
}
CASES = [
    ("1 B, d_model 2048", "same", "adamw"),
    ("1 B, d_model 2048", "float8", "adamw"),
    ("1 B, d_model 2048", "same", "adamw8bit"),
    ("3 B, d_model 8192", "same", "adamw"),
    ("3 B, d_model 8192", "float8", "adamw"),
]
SMALL = dict(layers=2, d_model=64, heads=2, group=1, d_kv=32, d_ff=128, vocab=256, batch=4, length=64)
MEDIUM = dict(layers=4, d_model=128, heads=4, d_kv=32, d_ff=512, batch=8, length=64)
BYTES = dict(
    layers=12, d_model=768, heads=12, d_kv=64, d_ff=3072, vocab=256, batch=32, length=256, norm="rms",
    positions="rotary", activation="gelu_tanh", remat=False,
)  # fmt: skip
# Activations, products, optimizer, b2, seed.
CURVES = {
    "bfloat16, AdamW": ("bfloat16", "same", "adamw", 0.95, 0),
    "bfloat16, AdamW, another seed": ("bfloat16", "same", "adamw", 0.95, 1),
    "float32, AdamW": ("float32", "same", "adamw", 0.95, 0),
    "float8, AdamW": ("bfloat16", "float8", "adamw", 0.95, 0),
    "bfloat16, AdamW 8-bit": ("bfloat16", "same", "adamw8bit", 0.95, 0),
    "float8, AdamW 8-bit": ("bfloat16", "float8", "adamw8bit", 0.95, 0),
    "bfloat16, AdamW, b2 0.999": ("bfloat16", "same", "adamw", 0.999, 0),
    "bfloat16, AdamW 8-bit, b2 0.999": ("bfloat16", "same", "adamw8bit", 0.999, 0),
}
RULES = {"adamw": optax.adamw, "adamw8bit": wf.optim.adamw8bit}


def milliseconds(run, steps: int) -> float:
    """The median of blocks of three calls."""

    def block() -> float:
        begin = time.perf_counter()
        for _ in range(3):
            done = run()
        jax.block_until_ready(done)
        return (time.perf_counter() - begin) / 3 * 1e3

    block()
    return statistics.median(block() for _ in range(max(steps // 3, 1)))


# Products.


def products(args) -> None:
    for rows, columns, summed in [(64, 128, 32)] if args.small else PRODUCTS:
        n, m, k = wf.dims(n=rows, m=columns, k=summed)
        a, b, g = (
            wf.tensor(jax.random.normal(jax.random.key(seed), sizes, "bfloat16"), names)
            for seed, (names, sizes) in enumerate(
                [([n, k], (rows, summed)), ([k, m], (summed, columns)), ([n, m], (rows, columns))]
            )
        )
        row = {"rows": rows, "columns": columns, "summed": summed}
        for name, dtype in (("bfloat16", None), ("float8", "float8")):

            def forward(a, b, dtype=dtype):
                return wf.einsum(a, b, over=k, matmul_dtype=dtype)  # noqa: B023

            def both(a, b, g, forward=forward):
                y, back = jax.vjp(forward, a, b)
                return y, back(g)

            calls = (functools.partial(jax.jit(forward), a, b), functools.partial(jax.jit(both), a, b, g))
            row[f"{name}_ms"], row[f"{name}_with_gradients_ms"] = (milliseconds(call, args.steps) for call in calls)
            text = jax.jit(both).lower(a, b, g).compile().as_text()
            row[f"{name}_kernels"] = {word: text.count(word) for word in ("cublas$lt$matmul$f8", "__triton_gemm")}
        narrow = [x.array.astype("float8_e4m3fn") for x in (a, b)]
        for name, how in (("narrow_already", None), ("narrow_already_precise", jax.lax.Precision.HIGHEST)):
            multiply = functools.partial(jax.lax.dot, precision=how, preferred_element_type=jnp.bfloat16)
            row[f"{name}_ms"] = milliseconds(functools.partial(jax.jit(multiply), *narrow), args.steps)
        tell(args, row)


# Train steps.


def loss(model, tokens, key):
    return model.loss({"tokens": tokens}, None)


def drawn_model(config):
    """The model with small random weights: on constants a GPU is faster than it is in earnest."""

    def draw(leaf):
        is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
        return jax.random.normal(jax.random.key(0), leaf.shape, leaf.dtype) * 0.02 if is_shape else leaf

    return jax.jit(lambda: jax.tree.map(draw, models.shapes(config)))()


def config_of(fields: dict, **changes) -> models.LMConfig:
    return models.from_fields({**fields, **changes}, where="benchmarks/eight_bits.py")


def steps(args) -> None:
    for name, dtype, optimizer in CASES:
        if args.only not in f"{name}/{dtype}/{optimizer}":
            continue
        config = config_of(STEPS[name], **(SMALL if args.small else {}), matmul_dtype=dtype)
        step = wf.spmd(wf.train_step(loss, RULES[optimizer](1e-4)), mesh="x=1", layout="batch:x", donate=0)
        shapes = step.init(models.shapes(config))
        ids = jax.ShapeDtypeStruct((config.batch, config.length), "int32")
        plan = wf.Plan(wf.trace(step, shapes, wf.tensor(ids, "batch length"), None), "h200")
        row = {"step": name, "matmul_dtype": dtype, "optimizer": optimizer, "parameters": config.param_count}
        row |= {"predicted_ms": plan.seconds * 1e3, "predicted_memory": plan.memory.peak, "flops": plan.program.flops}
        state = step.init(drawn_model(config))
        row["optimizer_bytes"] = sum(leaf.nbytes for leaf in jax.tree.leaves(state.optimizer))
        ids = np.random.default_rng(0).integers(0, config.vocab, (config.batch, config.length), "int32")
        tokens, begin = wf.tensor(jnp.asarray(ids), "batch length"), time.perf_counter()

        def run():
            nonlocal state
            state, told = step(state, tokens, None)  # noqa: B023
            return told

        jax.block_until_ready(run())
        row["first_s"] = time.perf_counter() - begin
        row["ms"] = milliseconds(run, args.steps)
        told = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        tell(args, row | {"most_memory_so_far": told})
        del state
        jax.clear_caches()


# Loss curves.


def python_source() -> np.ndarray:
    """The bytes of Python's own library, file after file."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    files = [path for path in files if "site-packages" not in path.parts and "test" not in path.parts]
    return np.frombuffer(b"\n".join(path.read_bytes() for path in files), "uint8")


def curve(args, name: str) -> None:
    """One curve: the mean loss of every 20 steps, and that of texts held out."""
    dtype, matmul_dtype, optimizer, b2, seed = CURVES[name]
    changes = SMALL if args.small else MEDIUM if args.medium else {}
    sizes = {**BYTES, **changes, "dtype": dtype, "matmul_dtype": matmul_dtype}
    config = models.preset("lm-0.14b", tied=True, dropout=0.0, **sizes)
    text = python_source()
    held_out, text = text[-len(text) // 20 :], text[: -len(text) // 20]
    rng = np.random.default_rng(seed)

    def batch(source):
        at = rng.integers(0, len(source) - config.length, config.batch)
        return wf.tensor(np.stack([source[i : i + config.length] for i in at]).astype("int32"), "batch length")

    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-3, args.train // 10, args.train, 1e-4)
    step = wf.train_step(loss, RULES[optimizer](rate, 0.9, b2, weight_decay=0.1), donate=True)
    state, losses = step.init(models.init(config, jax.random.key(seed))), []
    begin = time.perf_counter()
    for _ in range(args.train):
        state, told = step(state, batch(text))
        losses.append(told["loss"].array)
    losses = [float(x) for x in losses]
    rng = np.random.default_rng(7)  # the same texts for all
    evaluate = jax.jit(lambda model, tokens: loss(model, tokens, None).array)
    held = [float(evaluate(state.params, batch(held_out))) for _ in range(2 if args.small else 32)]
    means = [float(np.mean(losses[i : i + 20])) for i in range(0, len(losses), 20)]
    row = {"curve": name, "parameters": config.param_count, "steps": args.train, "every": 20, "losses": means}
    tell(args, row | {"held_out": float(np.mean(held)), "seconds": time.perf_counter() - begin})


def curves(args) -> None:
    """All curves at once, each in a process that has a share of the memory."""
    environment = os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.11"}
    command = [sys.executable, __file__, "curve", "--train", str(args.train)]
    command += [f"--{size}" for size in ("small", "medium") if getattr(args, size)]
    command += ["--out", args.out] if args.out else []
    running = [
        subprocess.Popen([*command, "--only", name], env=environment) for name in CURVES if _asked(args.only, name)
    ]
    for process in running:
        process.wait()


def _asked(only: str, name: str) -> bool:
    return not only or name in only.split(";")


def tell(args, row: dict) -> None:
    line = json.dumps({"device": jax.devices()[0].device_kind, "jax": jax.__version__} | row)
    print(line, flush=True)
    if args.out:
        with open(args.out, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["products", "steps", "curves", "curve"])
    parser.add_argument(
        "--only", default="", help="curves, or steps like `1 B, d_model 2048/float8/adamw`, that hold this"
    )
    parser.add_argument("--steps", type=int, default=15, help="how many calls are timed")
    parser.add_argument("--train", type=int, default=500, help="how many steps a curve has")
    parser.add_argument("--out", help="a file that lines are added to")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try this script without a GPU")
    parser.add_argument("--medium", action="store_true", help="curves of 1 M parameters, for a CPU")
    args = parser.parse_args()
    if args.part == "curve":
        curve(args, args.only)
    else:
        {"products": products, "steps": steps, "curves": curves}[args.part](args)


if __name__ == "__main__":
    main()
