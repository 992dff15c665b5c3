"""One token of decoding on one GPU: planned by `wf.Plan` against measured.

    python benchmarks/decode_step.py [--hardware h200] [--seconds 170] [--only PART] [--small]

Language models of 0.1, 1.2 and 8 billion random bfloat16 weights, some contexts and batch sizes, layers in a loop
(`scanned`) and written out. Each case is planned, compiled and run in two ways: `loop_ms`, many tokens in one compiled
loop, as `decode.generate` runs them; `call_ms`, one compiled step called again and again, its KV cache overwritten.
`read_ms` is how long reading weights and cache once takes at the full bandwidth. A JSON line a case; the most telling
cases come first, and none begins after `--seconds`.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp

import weft as wf
from weft import models
from weft.models.unrolled import prepare
from weft.plan.hardware import hardware

SMALL = dict(layers=2, d_model=64, heads=4, group=1, d_kv=16, d_ff=128, vocab=256)
TENTH = dict(layers=12, d_model=768, heads=12, group=1, d_kv=64, d_ff=2048, vocab=32768)
MODELS = {"8 B": ("llama-8b", {}), "1.2 B": ("llama-1b", {}), "0.1 B": ("llama-1b", TENTH)}

# The model, whether its layers are a loop, the contexts and the batch sizes.
CASES = [
    ("8 B", True, [(8192, 1), (1024, 1), (32768, 1), (2048, 16)]),
    ("8 B", False, [(8192, 1)]),
    ("1.2 B", True, [(8192, 1), (1024, 1), (1024, 32)]),
    ("1.2 B", False, [(8192, 1), (1024, 32)]),
    ("0.1 B", True, [(8192, 1), (1024, 1), (1024, 32)]),
    ("0.1 B", False, [(8192, 1), (1024, 1)]),
]


def config_of(name: str, *, scanned: bool, small: bool):
    preset, sizes = MODELS[name]
    return models.preset(preset, **{**sizes, **(SMALL if small else {})}, scanned=scanned, param_dtype="bfloat16")


def empty(shapes):
    """A KV cache with zeros for values: what they are changes no time."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def run_calls(step, model, tokens, cache_shapes, steps: int) -> float:
    """Seconds a token, one compiled step called again and again."""
    cache = empty(cache_shapes)

    def run(count: int) -> float:
        nonlocal cache
        begin = time.perf_counter()
        for _ in range(count):
            logits, cache = step(model, tokens, cache)
        jax.block_until_ready(logits.array)
        return (time.perf_counter() - begin) / count

    run(3)
    return statistics.median(run(steps) for _ in range(3))


def run_loop(model, tokens, cache_shapes, steps: int) -> float:
    """Seconds a token in one compiled loop, each the likeliest after the one before.

    The model is prepared for it once, as `decode.generate` does before its loop.
    """

    def tokens_in_a_row(model, tokens, cache):
        def turn(_, carry):
            tokens, cache = carry
            logits, cache = model.step(tokens, cache)
            return wf.argmax(logits, over="vocab"), cache

        return wf.fori_loop(0, steps, turn, (tokens, cache))

    loop = wf.spmd(tokens_in_a_row, mesh="x=1", layout="", donate="cache")
    model, cache = wf.spmd(prepare, mesh="x=1", layout="")(model, empty(cache_shapes))
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        last, cache = loop(model, tokens, cache)
        jax.block_until_ready(last.array)
        times.append((time.perf_counter() - begin) / steps)
    return statistics.median(times[1:])  # the first compiles


def case(name: str, config, model, context: int, batch: int, on: str, steps: int) -> dict:
    step, (shapes, _, cache_shapes) = models.decode_step(config, context, batch)
    tokens = wf.tensor(jnp.arange(batch, dtype="int32"), "batch")
    row = {"model": name, "scanned": config.scanned, "context": context, "batch": batch}
    plan = wf.Plan(wf.trace(step, shapes, tokens, cache_shapes), on)
    read = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((shapes, cache_shapes)))
    read -= shapes.embedding.table.array.size * 2 if shapes.softmax is not None else 0  # one row of it is looked up
    row |= {"read_ms": read / hardware(on).bandwidth * 1e3, "planned_ms": plan.seconds * 1e3}
    row["planned_by"] = {kind: round(took * 1e3, 4) for kind, took in plan.kinds.items()}
    begin = time.perf_counter()
    try:
        row["loop_ms"] = run_loop(model, tokens, cache_shapes, steps) * 1e3
        row["call_ms"] = run_calls(step, model, tokens, cache_shapes, steps) * 1e3
        row["planned_to_loop"] = row["planned_ms"] / row["loop_ms"]
    except Exception as error:  # out of memory, say: the others still count
        row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    row["took_s"] = time.perf_counter() - begin
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--only", default="")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try this script without a GPU")
    args = parser.parse_args()
    device, begin = jax.devices()[0], time.perf_counter()
    print(json.dumps({"device": device.device_kind, "jax": jax.__version__, "weft": wf.__version__}), flush=True)
    made, model = None, None
    for name, scanned, sizes in CASES:
        if args.only not in name:
            continue
        config = config_of(name, scanned=scanned, small=args.small)
        if made != name:  # the same weights serve scanned and written out
            del model
            made, model = name, models.init(config, jax.random.key(0), "x=1", "")
        model = jax.tree.unflatten(jax.tree.structure(models.shapes(config)), jax.tree.leaves(model))
        for context, batch in sizes:
            if time.perf_counter() - begin > args.seconds:
                continue
            context = min(context, 64) if args.small else context
            print(json.dumps(case(name, config, model, context, batch, args.hardware, args.steps)), flush=True)
            jax.clear_caches()
    print(json.dumps({"seconds": round(time.perf_counter() - begin, 1)}))


if __name__ == "__main__":
    main()
