"""Ten layouts of a language model's train step on 8 virtual CPU processors: ranked by `wf.Plan`, and by the clock.

    python benchmarks/plan_ranking.py [--rounds 9] [--only PART] [--out FILE] [--fresh]

Every layout is planned on `this` machine and compiled; then rounds of one step of each, in turning order, so that what
else the machine does meets all of them alike. Prints predicted and median measured times, both ranks, and Spearman's
correlation; exits with 1 where that is below 0.8. Beside the clock's time stands that of the cores, divided by their
number: what a step takes at least when nothing else runs. `--fresh` measures this machine again first.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

import weft as wf
from weft import models
from weft.plan import this_machine

LEAST_CORRELATION = 0.8
MESH = "rows=2,cols=4"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
MODELS = {
    "unrolled": dict(
        layers=2, d_model=256, heads=8, d_kv=32, d_ff=1024, vocab=1024, batch=16, length=32, scanned=False
    ),
    "scanned": dict(
        layers=4, d_model=128, heads=4, d_kv=32, d_ff=768, vocab=4096, batch=8, length=64, positions="rotary"
    ),
    "held out": dict(
        layers=3, d_model=192, heads=8, d_kv=16, d_ff=1536, vocab=512, batch=24, length=24, tied=True, scanned=False
    ),
}
LAYOUTS = {
    "all alike": "",
    "data, rows": "batch:rows",
    "data": "batch:rows+cols",
    "model": "heads:cols,d_ff:cols,vocab:cols",
    "feed-forward alone": "d_ff:cols",
    "vocab alone": "vocab:cols",
    "data and model": "batch:rows,heads:cols,d_ff:cols,vocab:cols",
    "fully sharded": "batch:rows+cols,params.d_model:rows+cols",
    "data and length": "batch:rows,length:cols",
    "data and model, sharded": "batch:rows,heads:cols,d_ff:cols,vocab:cols,params.d_model:rows",
}


def config_of(sizes: dict):
    """A language model in float32, as large as `sizes` say."""
    return models.preset("tiny-lm", **{"dropout": 0.0, **sizes})


def bound_step(layout: str):
    def loss(model, tokens, key):
        return model.loss({"tokens": tokens}, None)

    return wf.spmd(wf.train_step(loss, optax.adam(1e-4)), mesh=MESH, layout=layout, donate=0)


def plan_of(config, layout: str) -> wf.Plan:
    step = bound_step(layout)
    ids = jax.ShapeDtypeStruct((config.batch, config.length), "int32")
    return wf.Plan(wf.trace(step, step.init(models.shapes(config)), wf.tensor(ids, "batch length"), None), "this")


def compiled_step(config, layout: str) -> Callable[[], tuple[float, float]]:
    """One step under a layout, compiled and run once; each call runs another: its seconds, and those of a core."""
    step = bound_step(layout)
    state = step.init(models.init(config, jax.random.key(0)))
    ids = np.random.default_rng(0).integers(0, config.vocab, (config.batch, config.length), "int32")
    tokens = wf.tensor(jnp.asarray(ids), "batch length")

    def run() -> tuple[float, float]:
        nonlocal state
        begin, of_cores = time.perf_counter(), time.process_time()
        state, told = step(state, tokens, None)
        jax.block_until_ready((jax.tree.leaves(state), jax.tree.leaves(told)))
        return time.perf_counter() - begin, (time.process_time() - of_cores) / CORES

    run()
    return run


def timed(steps: dict[str, Callable[[], tuple[float, float]]], rounds: int) -> dict[str, tuple[float, ...]]:
    """Median seconds of each step, and of a core; the order changes from round to round, the first does not count."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    order = random.Random(0)
    for round_ in range(rounds + 1):
        for name in order.sample(list(steps), len(steps)):
            seconds = steps[name]()
            if round_:
                took[name].append(seconds)
        print(f"  round {round_} of {rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
    return {name: tuple(map(statistics.median, zip(*found, strict=True))) for name, found in took.items()}


def ranks(values: Sequence[float]) -> list[int]:
    """The rank of each value, 1 for the least.

    >>> ranks([0.3, 0.1, 0.2])
    [3, 1, 2]
    """
    order = sorted(values)
    return [order.index(value) + 1 for value in values]


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """The correlation of two rankings.

    >>> spearman([1, 2, 3], [10, 20, 30]), spearman([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    n = len(x)
    apart = sum((a - b) ** 2 for a, b in zip(ranks(x), ranks(y), strict=True))
    return 1 - 6 * apart / (n * (n * n - 1))


def compare(name: str, sizes: dict, rounds: int) -> dict:
    """The layouts of one model, planned and timed; prints them as a table."""
    config = config_of(sizes)
    told = " ".join(f"{key}={value}" for key, value in sizes.items())
    print(f"\n{name} ({config.param_count:,} parameters): {told}", flush=True)
    plans = {layout: plan_of(config, text) for layout, text in LAYOUTS.items()}
    steps = {}
    for layout, text in LAYOUTS.items():
        begin = time.perf_counter()
        steps[layout] = compiled_step(config, text)
        print(f"  compiled `{text}` in {time.perf_counter() - begin:.1f} s", flush=True)
    took = timed(steps, rounds)
    predicted = [plans[layout].seconds for layout in LAYOUTS]
    measured, cores = zip(*(took[layout] for layout in LAYOUTS), strict=True)
    columns = zip(LAYOUTS.values(), predicted, measured, cores, ranks(predicted), ranks(measured), strict=True)
    rows = [
        dict(zip(("layout", "predicted", "measured", "cores", "rank", "place"), row, strict=True)) for row in columns
    ]
    found = {"model": name, "sizes": sizes, "rows": rows, "spearman": spearman(predicted, measured)}
    print_table(found)
    print(f"\nSpearman {found['spearman']:.3f} (at least {LEAST_CORRELATION});", end=" ")
    print(f"with the time of the cores {spearman(predicted, cores):.3f}", flush=True)
    return found


def print_table(found: dict) -> None:
    print("\n| layout | predicted, ms | measured | cores | predicted / measured | / cores | rank | measured rank |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in sorted(found["rows"], key=lambda row: row["measured"]):
        p, m, c = (row[name] * 1e3 for name in ("predicted", "measured", "cores"))
        layout = f"`{row['layout']}`" if row["layout"] else "empty"
        print(
            f"| {layout} | {p:.0f} | {m:.0f} | {c:.0f} | {p / m:.2f} | {p / c:.2f} | {row['rank']} | {row['place']} |"
        )


def main() -> int:
    warnings.simplefilter("ignore", wf.WeftWarning)  # that work is done several times is the point of some layouts
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="steps of each layout that are timed")
    parser.add_argument("--only", default="", help="a part of a model's name")
    parser.add_argument("--out", help="a file for the figures, as JSON")
    parser.add_argument("--fresh", action="store_true", help="measure this machine again")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    if args.fresh:
        this_machine.cache_file().unlink(missing_ok=True)
    figures = this_machine.machine_figures()
    print(
        f"{figures['cpu']}, {figures['cores']} cores, JAX {jax.__version__}, mesh {MESH}, load {os.getloadavg()[0]:.1f}"
    )
    print({name: f"{value:.3g}" for name, value in figures.items() if isinstance(value, float)}, flush=True)
    found = []
    for name, sizes in MODELS.items():
        if args.only in name:
            found.append(compare(name, sizes, args.rounds))
            jax.clear_caches()
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump({"figures": figures, "models": found}, file, indent=1)
    return 0 if all(each["spearman"] >= LEAST_CORRELATION for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
