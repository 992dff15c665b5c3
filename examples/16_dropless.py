"""Dropless experts: every token goes to the experts it likes best, however many like the same.

Run it: `python examples/16_dropless.py`. With a capacity, tokens that find no room are dropped; dropless experts sort
tokens and multiply each with its own expert's matrices (`jax.lax.ragged_dot`). Losses are the same under both layouts;
it fails if they are not, or if a token is dropped.
"""

import sys

import jax
import numpy as np
import optax

import weft as wf
from weft import models

MESH = wf.Mesh("x=4,y=2")
LAYOUTS = {
    "batch:x+y": "every processor holds all experts; no token moves, and the gradients of all experts are summed",
    "batch:x+y,experts:x": "tokens go to all processors along x, and each works on those of its own two experts",
}
SIZES = dict(layers=1, experts=8, d_ff=32, batch=16, length=32, vocab=64)
CONFIG = models.preset("tiny-moe", gating="dropless", top_k=2, shared_experts=1, **SIZES)
TOLERANCE = 1e-4  # of a loss, relative: float32 sums in another order, after several steps


def batch(turn):
    """Sequences that count upwards, each from another number and by steps of another size."""
    random = np.random.default_rng(turn)
    first, by = random.integers(0, 64, (CONFIG.batch, 1)), random.integers(1, 8, (CONFIG.batch, 1))
    return {"tokens": wf.tensor(np.int32((first + by * np.arange(CONFIG.length)) % CONFIG.vocab), "batch length")}


def loss(model, batch, key):  # the loss, and metrics: `dropped` and `routed` tokens among them
    return model.loss_and_metrics(batch, key)


def train(layout):
    """The metrics of each step, and the program of one."""
    step = wf.train_step(loss, optax.adam(3e-3), mesh=MESH, layout=layout, has_aux=True)
    state, told = step.init(models.init(CONFIG, jax.random.key(0), MESH, layout)), []
    for turn in range(20):
        state, metrics = step(state, batch(turn), jax.random.key(turn))
        told.append({name: float(value) for name, value in metrics.items()})
    return told, wf.trace(step, state, batch(0), jax.random.key(0))


def main():
    print(f"{CONFIG.param_count:,} parameters; a token goes to {CONFIG.top_k} of {CONFIG.experts} experts")
    losses = []
    for layout, meaning in LAYOUTS.items():
        told, program = train(layout)
        losses.append([now["loss"] for now in told])
        print(f"\n{layout}: {meaning}")
        print(f"  loss {losses[-1][0]:.4f} to {losses[-1][-1]:.4f}, {told[-1]['dropped']:.0f} tokens dropped")
        for row in program.ledger:
            if row.phase == "forward" and row.collective in ("all_gather", "reduce_scatter"):
                print(f"  {row.collective:14} over {'+'.join(row.axes)} {row.bytes:7,} bytes {row.reason}")
        if any(now["dropped"] for now in told):
            sys.exit("FAILED: a token was dropped")
    if not np.allclose(*losses, rtol=TOLERANCE):
        sys.exit("FAILED: losses differ")

    tight = models.init(models.preset("tiny-moe", gating="top2", capacity=1.0, **SIZES), jax.random.key(0))
    dropped, tokens = tight.loss_and_metrics(batch(0))[1]["dropped"], CONFIG.batch * CONFIG.length
    print(f"\nThe same losses. With room for a fair share of tokens alone, {dropped:.0f} of {tokens} would be dropped.")


if __name__ == "__main__":
    main()
