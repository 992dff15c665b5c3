"""A pipeline: layers are cut into stages, each on processors of its own, and microbatches flow through them.

Run it: `python examples/15_pipeline.py`. Four stages in turn, four stages on eight processors, and two stages twice
round have the losses of the uncut model; it fails if they have not. Of its stages' work (p-1)/(m*r+p-1) is a bubble.
"""

import sys

import jax
import numpy as np
import optax

import weft as wf
from weft import models

SIZES = dict(layers=4, d_model=32, heads=4, d_kv=8, d_ff=64, vocab=64, batch=16, length=16, dtype="float32")
CASES = [  # stages, microbatches, rounds; mesh and layout
    (1, 1, 1, wf.Mesh("x=2"), "batch:x"),
    (4, 8, 1, wf.Mesh("p=1,x=2"), "batch:x"),
    (4, 8, 1, wf.Mesh("p=4,x=2"), "stage:p,batch:x"),
    (2, 8, 2, wf.Mesh("p=2,x=2,y=2"), "stage:p,batch:x,heads:y,d_ff:y"),
]
TOLERANCE = 1e-4  # of a loss, relative: float32 sums in another order, after several steps


def batches(steps):
    """Sequences that count upwards, each from another number and by steps of another size."""
    random = np.random.default_rng(0)
    for _ in range(steps):
        first, by = random.integers(0, 64, (16, 1)), random.integers(1, 8, (16, 1))
        yield {"tokens": wf.tensor(np.int32((first + by * np.arange(16)) % 64), "batch length")}


def config(stages, microbatches, rounds):
    if stages == 1:
        return models.LMConfig(name="uncut", **SIZES)
    return models.LMConfig(
        name="cut", **SIZES, stages=stages, pipeline_microbatches=microbatches, pipeline_rounds=rounds
    )


def main():
    found = []
    for stages, microbatches, rounds, mesh, layout in CASES:
        step = wf.train_step(lambda model, batch, key: model.loss(batch), optax.adam(3e-3), mesh=mesh, layout=layout)
        state = step.init(models.init(config(stages, microbatches, rounds), jax.random.key(0), step.mesh, step.layout))
        program = wf.trace(step, state, next(batches(1)))
        losses = []
        for batch in batches(10):
            state, told = step(state, batch)
            losses.append(float(told["loss"]))
        found.append(losses)
        ways = step.mesh.axes.get("p", 1)
        bubble = (ways - 1) / (microbatches * rounds + ways - 1)
        permutes = sum(row.bytes * row.count for row in program.ledger if row.collective == "permute")
        print(f"{stages} stages, {microbatches} microbatches, {rounds} rounds, on {mesh} under {layout}")
        print(f"  loss {losses[0]:.4f} -> {losses[-1]:.4f}")
        print(f"  work {program.flops / 1e6:.1f} MFLOP, idle {program.flops_idle / program.flops:.1%} of it")
        print(f"  bubble of the stages by formula {bubble:.1%}; permutes {permutes:,} bytes a step")
    if not np.allclose(found, found[0], rtol=TOLERANCE):
        sys.exit("the losses differ")
    print("the losses agree")


if __name__ == "__main__":
    main()
