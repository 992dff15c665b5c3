"""Plan before you run: how long a step takes and what it holds, on hardware that is not here.

Run it: `python examples/11_plan_before_you_run.py`. Nothing is computed. `weft plan` does the same from the command
line, and `weft hardware` lists what can be planned for.
"""

import jax
import optax

import weft as wf
from weft import models

MESH = "rows=16, cols=32"
LAYOUT = "batch:rows, vocab:cols, heads:cols, d_ff:cols"


def program(layout):
    """The paper's train step of 4.9 billion parameters on 512 processors."""
    config = models.preset("lm-4.90b")
    dims = wf.dims(batch=config.batch, length=config.length)
    ids = wf.tensor(jax.ShapeDtypeStruct((config.batch, config.length), "int32"), dims)
    step = wf.train_step(lambda model, batch, key: model.loss(batch, key), optax.adafactor(1e-3))
    state = step.init(models.shapes(config))
    key = jax.eval_shape(lambda: jax.random.key(0))
    return wf.trace(step, state, {"inputs": ids, "targets": ids}, key, mesh=MESH, layout=layout)


def main():
    paper = program(LAYOUT)
    for name in ("h100", "v5p"):
        plan = wf.Plan(paper, name)
        print(plan, end="\n\n")
        assert plan.fits

    print(paper.memory)

    print("\nWould data parallelism do, all 512 processors on the tokens?")
    alone = wf.Plan(program("batch:rows, length:cols"), "h100")
    print(f"it needs {alone.memory.peak / 2**30:.0f} GiB of {alone.capacity / 2**30:.0f}: fits = {alone.fits}")
    print(f"{1000 * alone.seconds:.0f} ms a step: {alone.why}")


if __name__ == "__main__":
    main()
