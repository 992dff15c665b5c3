"""A mixture of experts: tokens stay where their sequences are, or go to where their experts are and come back.

Run it: `python examples/10_experts.py`. Under both layouts the losses, and the tokens that find no room with an expert,
are the same; it fails if they are not.
"""

import sys
from collections import Counter

import jax
import numpy as np
import optax

import weft as wf
from weft import models

MESH = wf.Mesh("x=8")
LAYOUTS = {
    "batch:x": "every processor holds all experts; no token moves, and the gradients of all experts are summed",
    "batch:x,experts:x": "every processor holds one expert; tokens go to theirs by one all-to-all and back by another",
}
CONFIG = models.preset("tiny-moe", layers=2, experts=8, capacity=1.25, d_ff=256, batch=16, length=32, vocab=64)
TOLERANCE = 1e-4  # of a loss, relative: float32 sums in another order, which in the end send a token to another expert


def batches(steps):
    """Sequences that count upwards, each from another number and by steps of another size."""
    random = np.random.default_rng(0)
    for _ in range(steps):
        first, by = random.integers(0, 64, (CONFIG.batch, 1)), random.integers(1, 8, (CONFIG.batch, 1))
        yield {"tokens": wf.tensor(np.int32((first + by * np.arange(CONFIG.length)) % CONFIG.vocab), "batch length")}


def loss(model, batch, key):  # the loss, and metrics: `dropped` and `routed` tokens among them
    return model.loss_and_metrics(batch, key)


def train(step):
    """The metrics of each step, and the last state."""
    state, found = step.init(models.init(CONFIG, jax.random.key(0), step.mesh, step.layout)), []
    for i, batch in enumerate(batches(20)):
        state, metrics = step(state, batch, jax.random.key(i))
        found.append({name: float(value) for name, value in metrics.items()})
    return found, state


def main():
    told = {}
    print(f"{CONFIG.param_count:,} parameters, {CONFIG.experts} experts in each of {CONFIG.layers} layers, on {MESH}")
    tokens = CONFIG.batch * CONFIG.length * CONFIG.layers
    for layout, meaning in LAYOUTS.items():
        print(f"\n{layout}: {meaning}")
        step = wf.train_step(loss, optax.adam(3e-3), mesh=MESH, layout=layout, has_aux=True)
        told[layout], state = train(step)
        for turn in (0, 4, 9, 19):
            now = told[layout][turn]
            print(f"  step {turn + 1:3}  loss {now['loss']:.4f}  dropped {now['dropped']:3.0f} of {tokens} tokens")
        ledger = wf.trace(step, state, next(batches(1)), jax.random.key(0)).ledger
        sent = Counter()
        for row in ledger:
            sent[row.phase, row.collective] += row.bytes * row.count
        for (phase, collective), size in sent.items():
            print(f"  {phase:9} {collective:11} {size:9,} bytes")
        for row in ledger:
            if row.collective == "all_to_all":
                print(f"  {row.phase:9} {row.collective} of {row.bytes:,} bytes x{row.count} {row.reason}")

    whole, split = told.values()
    for name in ("loss", "dropped"):
        if not np.allclose([now[name] for now in whole], [now[name] for now in split], rtol=TOLERANCE):
            sys.exit(f"FAILED: `{name}` differs")
    print("\nThe same losses, and the same tokens dropped.")


if __name__ == "__main__":
    main()
