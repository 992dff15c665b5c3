"""The largest model that trains on one GPU, with and without what saves memory: planned, then tried.

    python benchmarks/largest.py --predict-only                 # what the plan says, without a GPU
    python benchmarks/largest.py [--only WORDS] [--trials 3] [--out FILE]

Models are Llama-like and 4096 wide, 218 M parameters a layer, one sequence of 2048 tokens, every layer recomputed; only
their number of layers is searched. The plan says how many layers fit; then so many are trained for three steps, each
trial in a process of its own, and by bisection more or fewer. A trial that runs out of memory, or out of time, failed.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import weft as wf
from weft import models

SIZES = dict(
    kind="lm", name="llama", d_model=4096, heads=8, group=4, d_kv=128, d_ff=14336, vocab=32768, batch=1, length=2048,
    norm="rms", positions="rotary", activation="silu", gated=True, remat=True, dtype="bfloat16",
)  # fmt: skip
SMALL = dict(d_model=64, heads=2, group=1, d_kv=32, d_ff=128, vocab=256, length=64)
# What is changed of the model, the optimizer, and the layout.
WAYS = {
    "AdamW": ({}, "adamw", "batch:x"),
    "AdamW, 8-bit": ({}, "adamw8bit", "batch:x"),
    "AdamW, fp8": ({"matmul_dtype": "float8"}, "adamw", "batch:x"),
    "AdamW, 8-bit, fp8": ({"matmul_dtype": "float8"}, "adamw8bit", "batch:x"),
    "AdamW, 8-bit, bfloat16 weights": ({"param_dtype": "bfloat16"}, "adamw8bit", "batch:x"),
}
RULES = {"adamw": optax.adamw, "adamw8bit": wf.optim.adamw8bit}
SHARE = 0.95  # of the memory, for JAX


def config_of(way: str, layers: int, small: bool) -> models.LMConfig:
    return config_with(WAYS[way][0], layers, small)


def config_with(changes: dict, layers: int, small: bool) -> models.LMConfig:
    fields = SIZES | changes | (SMALL if small else {})
    return models.from_fields({**fields, "layers": layers}, where="benchmarks/largest.py")


def loss(model, tokens, key):
    return model.loss({"tokens": tokens}, None)


def whole_batch(config: models.LMConfig) -> wf.Tensor:
    """The shape of a batch."""
    return wf.tensor(jax.ShapeDtypeStruct((config.batch, config.length), "int32"), "batch length")


def step_of(way: str):
    _, optimizer, layout = WAYS[way]
    return wf.spmd(wf.train_step(loss, RULES[optimizer](1e-4)), mesh="x=1", layout=layout, donate=0)


def planned_bytes(way: str, layers: int, small: bool) -> int:
    """What a step holds at its peak, by the plan."""
    config, step = config_of(way, layers, small), step_of(way)
    return wf.trace(step, step.init(models.shapes(config)), whole_batch(config), None).memory_on("gpu").peak


def planned_layers(way: str, capacity: int, small: bool) -> int:
    """How many layers fit, by two plans and a line through them."""
    few, more = (planned_bytes(way, layers, small) for layers in (8, 16))
    return max(int(8 + (capacity - few) / ((more - few) / 8)), 1)


def try_to_train(way: str, layers: int, small: bool) -> None:
    """Three steps of training; prints what became of them."""
    config, step = config_of(way, layers, small), step_of(way)

    def constant(leaf):
        return jnp.full(leaf.shape, 0.01, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    state = step.init(jax.jit(lambda: jax.tree.map(constant, models.shapes(config)))())
    ids = np.random.default_rng(0).integers(0, config.vocab, (config.batch, config.length), "int32")
    tokens, times = wf.tensor(jnp.asarray(ids), "batch length"), []
    for _ in range(3):
        begin = time.perf_counter()
        state, told = step(state, tokens, None)
        value = float(wf.get(told["loss"]))
        times.append(time.perf_counter() - begin)
    used = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    print(json.dumps({"loss": value, "seconds": min(times), "first_s": times[0], "peak_bytes": used}))


def run_trial(way: str, layers: int, small: bool, timeout: float) -> dict:
    """One trial in a process of its own."""
    environment = os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": str(SHARE), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, "--try", way, str(layers), *(["--small"] if small else [])]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"more than {timeout:g} s"}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    told = next((line for line in lines if "RESOURCE_EXHAUSTED" in line), lines[-1] if lines else "")
    return {"error": told.strip()[:160]}


def search(way: str, planned: int, args) -> dict:
    """The most layers that trained, and the fewest that did not, in so many trials."""
    best, least_bad, at, trials = 0, None, planned, []
    while len(trials) < args.trials and at > best and at != least_bad:
        told = run_trial(way, at, args.small, args.timeout)
        trials.append({"layers": at, **told})
        print(f"  {way}: {at} layers: {told.get('error') or 'trained'}", file=sys.stderr, flush=True)
        if "error" in told:
            least_bad = at
        else:
            best = at
        step = max(round(planned * 0.06), 1)
        if least_bad is None:
            at = best + step
        else:
            at = (best + least_bad) // 2 if best else least_bad - step
    return {"layers": best, "failed_at": least_bad, "trials": trials}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="ways whose name is this, or all; several are parted by `;`")
    parser.add_argument("--memory", type=float, default=150_754_820_096, help="bytes of the GPU, for the plan")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=120, help="seconds of one trial")
    parser.add_argument("--predict-only", action="store_true")
    parser.add_argument("--planned", help="a file with what was planned before (`--predict-only --out`)")
    parser.add_argument("--out", help="a file that lines are added to")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try this script without a GPU")
    parser.add_argument("--try", nargs=2, metavar=("WAY", "LAYERS"), dest="trial", help="one trial, in this process")
    args = parser.parse_args()
    if args.trial:
        return try_to_train(args.trial[0], int(args.trial[1]), args.small)
    known = {}
    if args.planned:
        with open(args.planned, encoding="utf-8") as file:
            known = {row["way"]: row["planned_layers"] for row in map(json.loads, file)}
    for way in WAYS:
        if args.only and way not in args.only.split(";"):
            continue
        planned = known.get(way) or planned_layers(way, int(args.memory * SHARE), args.small)
        row = {"way": way, "planned_layers": planned, "planned": config_of(way, planned, args.small).param_count}
        if not args.predict_only:
            row |= search(way, planned, args)
            row["parameters"] = config_of(way, row["layers"], args.small).param_count if row["layers"] else 0
        line = json.dumps(row)
        print(line, flush=True)
        if args.out:
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
