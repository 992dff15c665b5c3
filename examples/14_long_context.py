"""Long sequences: context parallelism by ring attention and by Ulysses, on sequences that no one processor could hold.

Run it: `python examples/14_long_context.py [TOKENS]`, 65,536 unless said otherwise. One step of a tiny model on
8 processors, its attention exact; what it holds there as processors grow; and a million tokens planned on 64 GPUs.
"""

import sys
import time

import jax
import numpy as np
import optax

import weft as wf
from weft import models

RING = "length:x, memory_length:x"  # keys and values go round; each processor has its own queries
ULYSSES = "stream:x, queries:x, vocab:x"  # heads trade places with positions, and back
GATHERED = "length:x"  # keys and values are gathered


def tiny(length, heads=1):
    sizes = dict(layers=1, d_model=16, heads=heads, d_kv=8, d_ff=32, vocab=256)
    return models.LMConfig(name="tiny", length=length, positions="rotary", dtype="float32", remat=False, **sizes)


def train_step(config, mesh, layout):
    step = wf.train_step(lambda model, batch, key: model.loss(batch, key), optax.adam(1e-3), mesh=mesh, layout=layout)
    return step, step.init(models.init(config, jax.random.key(0), mesh, layout))


def tokens(length):
    return {"tokens": wf.tensor(np.random.default_rng(0).integers(0, 256, (1, length)), "batch length")}


def trace(config, mesh, layout):
    """A training step, read and not run."""
    step = wf.train_step(lambda model, batch, key: model.loss(batch), optax.adam(1e-3))
    ids = wf.tensor(jax.ShapeDtypeStruct((1, config.length), "int32"), "batch length")
    return wf.trace(step, step.init(models.shapes(config)), {"tokens": ids}, mesh=mesh, layout=layout)


def main(length=65_536):
    short = min(length, 2048)
    losses = {}
    for layout in (RING, ULYSSES, GATHERED):
        step, state = train_step(tiny(short, heads=8), "x=8", layout)
        losses[layout] = [float(step(state, tokens(short))[1]["loss"])]
        print(f"{short:,} tokens under {layout:30} loss {losses[layout][0]:.6f}")
    assert np.ptp(list(losses.values())) < 1e-4

    step, state = train_step(tiny(length), "x=8", RING)
    start = time.perf_counter()
    loss = float(step(state, tokens(length))[1]["loss"])
    print(f"\n{length:,} tokens on 8 processors: loss {loss:.4f} after {time.perf_counter() - start:.0f} s")

    print("\nmemory of each processor for the same sequence, beside the model itself:")
    for n in (2, 8, 32):
        memory = trace(tiny(length), f"x={n}", RING).memory
        print(f"  x={n:<3} {(memory.peak - memory.arguments) / 2**20:8.1f} MiB")

    million = models.preset("llama-1b", batch=1, length=2**20, loss_chunks=64)
    print(f"\n{wf.Plan(trace(million, 'x=64', f'{RING}, params.d_model:x'), 'h100')}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
