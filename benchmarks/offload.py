"""Beside memory: steps of training with optimizer state, parameters and activations on the host, on one GPU.

    python benchmarks/offload.py --predict-only [--memory GB] [--host GB]      # what the plan says, without a GPU
    python benchmarks/offload.py --trials "optimizer:8 params:8" [--share 0.95]
    python benchmarks/offload.py --trials "none:6 none:7 params:30" --share 0.17    # as on a card of 24 GB

Models are those of `largest.py`: Llama-like, 4096 wide, 218 M parameters a layer, one sequence of 2048 tokens, float32
weights and AdamW. A trial is a way and a number of layers; each runs three steps in a process of its own, with that
share of the memory, and prints a line of JSON: seconds of a step, the peak in the GPU's memory, what is on the host.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from largest import config_with, loss, whole_batch

import weft as wf
from weft import models, nn

# What is changed of the model, and the layout.
WAYS = {
    "none": ({}, "batch:x"),
    "optimizer": ({}, "batch:x,optimizer.*:host"),
    "params": ({}, "batch:x,params.*:host"),
    "ahead": ({"prefetch": True}, "batch:x,params.*:host"),
    "kept": ({"remat": "attention"}, "batch:x"),
    "attention": ({"remat": "attention@host"}, "batch:x"),
    "stream": ({"remat": "stream@host"}, "batch:x"),
}


def config_of(way: str, layers: int, small: bool) -> models.LMConfig:
    return config_with(WAYS[way][0], layers, small)


def step_of(way: str):
    return wf.spmd(wf.train_step(loss, optax.adamw(1e-4)), mesh="x=1", layout=WAYS[way][1], donate=0)


def plan_of(way: str, layers: int, small: bool) -> wf.Plan:
    """The step on an H200, traced without devices."""
    config, step = config_of(way, layers, small), step_of(way)
    return wf.Plan(wf.trace(step, step.init(models.shapes(config)), whole_batch(config), None), "h200")


def predict(layers: int, memory: float, host: float, small: bool) -> None:
    """What the plan says of each way: seconds, peak, host; and how many layers fit into both memories."""
    for way in WAYS:
        plans = [plan_of(way, count, small) for count in (layers, 2 * layers)]
        most = []
        for capacity, used in ((memory, lambda plan: plan.memory.peak), (host, lambda plan: plan.memory.host)):
            few, more = map(used, plans)
            most.append(int(layers + (capacity * 1e9 - few) / ((more - few) / layers)) if more > few else None)
        held = [figure / 1e9 for figure in (plans[0].memory.peak, plans[0].memory.host)]
        print(
            f"{way:10} {layers} layers: {plans[0].seconds:.3f} s, {held[0]:.1f} GB at the peak, {held[1]:.1f} GB on "
            f"the host; layers in {memory:.0f} GB: {most[0]}, in {host:.0f} GB of the host: {most[1]}",
            flush=True,
        )


def try_to_train(way: str, layers: int, small: bool) -> None:
    """Three steps of training; prints what became of them."""
    start = time.perf_counter()
    config, step = config_of(way, layers, small), step_of(way)
    model = nn.init(config.blueprint(), jax.random.key(0), mesh=step.mesh, layout=step.layout, dims=config.dims)
    state = step.init(model)
    ids = np.random.default_rng(0).integers(0, config.vocab, (config.batch, config.length), "int32")
    tokens, times, losses = wf.tensor(jnp.asarray(ids), "batch length"), [], []
    made = time.perf_counter() - start
    for _ in range(4):
        start = time.perf_counter()
        state, metrics = step(state, tokens, None)
        losses.append(float(metrics["loss"].array))
        times.append(time.perf_counter() - start)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.sharding.memory_kind == "pinned_host")
    stats = jax.devices()[0].memory_stats() or {}
    figures = {
        "way": way,
        "layers": layers,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "seconds": min(times[1:]),
        "compiling": times[0],
        "making": made,
        "peak_gb": stats.get("peak_bytes_in_use", 0) / 1e9,
        "state_on_host_gb": held / 1e9,
        "process_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "losses": losses,
    }
    print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict-only", action="store_true")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--memory", type=float, default=150.0 * 0.95)
    parser.add_argument("--host", type=float, default=110.0)
    parser.add_argument("--trials", default="")
    parser.add_argument("--share", type=float, default=0.95)
    parser.add_argument("--limit", type=float, default=100.0, help="seconds of a trial")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--one", default="")
    args = parser.parse_args()
    if args.predict_only:
        return predict(args.layers, args.memory, args.host, args.small)
    if args.one:
        way, layers = args.one.split(":")
        return try_to_train(way, int(layers), args.small)
    more = {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": str(args.share),
        "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB": str(int(args.host)),  # of pinned memory; 64 unless told
    }
    for trial in args.trials.split():
        command = [sys.executable, __file__, "--one", trial] + ["--small"] * args.small
        try:
            ran = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=args.limit)
        except subprocess.TimeoutExpired:
            print(json.dumps({"trial": trial, "failed": f"took more than {args.limit} s"}), flush=True)
            continue
        lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
        error = next((line for line in reversed(ran.stderr.splitlines()) if line.strip()), "")
        print(lines[-1] if lines else json.dumps({"trial": trial, "failed": error[:300]}), flush=True)


if __name__ == "__main__":
    main()
