"""A Transformer language model under the three layouts of the Mesh-TensorFlow poster: one model, the same losses.

Run it: `python examples/08_transformer_lm.py`. It reads the source of Python's own modules, byte by byte, and fails if
a loss differs. Then the paper's largest model, 4.9 billion parameters, planned for 512 processors that are not there.
"""

import heapq
import inspect
import sys
import textwrap

import jax
import numpy as np
import optax

import weft as wf
from weft import models

LAYOUTS = {  # of the poster, each with a mesh for here and one for the plan
    "data parallel": ("batch:m0", "m0=8", "m0=512"),
    "model parallel": ("vocab:m0,heads:m0,d_ff:m0", "m0=8", "m0=256"),  # the largest has 256 heads
    "both": ("batch:m0,vocab:m1,heads:m1,d_ff:m1", "m0=4,m1=2", "m0=16,m1=32"),
}
TOLERANCE = 1e-4  # of a loss, relative: float32 sums in another order, after several steps


def batches(steps, batch, length):
    """Stretches of the text, the same for every layout."""
    text = np.frombuffer("".join(map(inspect.getsource, (heapq, inspect, textwrap))).encode(), "uint8")
    starts = np.random.default_rng(0).integers(0, len(text) - length, (steps, batch, 1))
    return [{"tokens": wf.tensor(np.int32(text[start + np.arange(length)]), "batch length")} for start in starts]


def train(config, mesh, layout, data):
    """The loss of each step."""
    step = wf.train_step(lambda model, batch, key: model.loss(batch, key), optax.adam(3e-3), mesh=mesh, layout=layout)
    state, losses = step.init(models.init(config, jax.random.key(0), mesh, layout)), []
    for batch, key in zip(data, jax.random.split(jax.random.key(1), len(data)), strict=True):
        state, metrics = step(state, batch, key)  # with a key there is dropout, the same under every layout
        losses.append(float(metrics["loss"]))
    return losses


def plan(config, mesh, layout):
    """What one processor holds and sends in a step, as text; no device is needed and nothing is computed."""
    held = []

    def measured(model, batch, key):
        held.append(sum(leaf.size for leaf in jax.tree.leaves(model)))  # inside a region leaves are slices
        return model.loss(batch, key)

    step = wf.train_step(measured, optax.adafactor(1e-3))
    tokens = wf.tensor(jax.ShapeDtypeStruct((config.batch, config.length), "int32"), "batch length")
    given = step.init(models.shapes(config)), {"tokens": tokens}, jax.random.key(0)
    ledger = wf.trace(step, *given, mesh=mesh, layout=layout).ledger
    sent = [f"{ledger.bytes(axis) / 2**20:.4g} MiB over {axis}" for axis in wf.Mesh(mesh).axes]
    return f"{mesh:12} holds {held[0]:13,} parameters, sends {' and '.join(sent)}"


def main():
    small = models.preset("tiny-lm", layers=2, d_model=64, d_ff=256, vocab=256, batch=16, length=64)
    large = models.preset("lm-4.90b", batch=512)
    data, losses = batches(20, small.batch, small.length), {}
    print(f"{small.name} with {small.param_count:,} parameters: losses in nats a byte, every fifth step")
    for name, (layout, mesh, _) in LAYOUTS.items():
        losses[name] = train(small, mesh, layout, data)
        print(f"  {name:15} {layout:36}", *(f"{value:.4f}" for value in losses[name][4::5]))
    if not all(np.allclose(found, losses["both"], rtol=TOLERANCE) for found in losses.values()):
        sys.exit("FAILED: a loss differs")
    for config, place in (small, 1), (large, 2):
        print(f"\n{config.name} with {config.param_count:,} parameters, on a batch of {config.batch}: one processor")
        for name, row in LAYOUTS.items():
            print(f"  {name:15}", plan(config, row[place], row[0]))


if __name__ == "__main__":
    main()
