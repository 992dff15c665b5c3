"""A pipeline and a ring compiled for 512 H100 and 512 v5p: XLA's memory and collectives beside Weft's.

    python benchmarks/proof.py [pipeline|ring] [h100:1x64x8|v5p:8x8x8]

Llama 1 B, Adam, remat. It needs weft's extras `cuda` and `tpu`, no such device, and half a minute (H100) or minutes
(v5p) of an idle core for each. It exits with 1 where bytes differ for a reason that is not known, or the peak lies
outside its range.
"""

import sys
from typing import Any

import jax
import optax

import weft as wf
from weft import models
from weft.plan import compiled_for

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "pipeline": (
        dict(stages=8, pipeline_microbatches=16, batch=128, length=2048),
        "rows=8,p=8,cols=8",
        "stage:p,batch:rows,heads:cols,d_ff:cols,vocab:cols",
    ),
    "ring": (
        dict(batch=16, length=65536),
        "rows=16,x=32",
        "batch:rows,length:x,memory_length:x,params.d_model:rows",
    ),
}
TARGETS = ("h100:1x64x8", "v5p:8x8x8")


def prove(case: str, target: str) -> bool:
    """Prints both sides of one program on one machine; whether they agree."""
    sizes, mesh, layout = CASES[case]
    config = models.preset("llama-1b", remat=True, **sizes)
    step = wf.train_step(lambda model, batch, key: model.loss(batch, key), optax.adam(1e-3), donate=True)
    key = jax.eval_shape(lambda: jax.random.key(0))
    args = step.init(models.shapes(config)), config.batch_shapes(), key
    program = wf.trace(step, *args, mesh=mesh, layout=layout)
    proof = compiled_for(step, args, mesh, layout, target, timeout=3600)
    text = proof.beside(program)
    print(f"{case}: {layout} on {mesh}, compiled in {proof.seconds:.0f} s\n{text}\n", flush=True)
    low, high = program.memory_on("gpu" if target.startswith("h100") else "tpu").range
    return low <= proof.peak_bytes <= high and "not known" not in text


def main() -> None:
    words = sys.argv[1:]
    cases = [case for case in CASES if case in words] or list(CASES)
    targets = [target for target in TARGETS if target in words] or TARGETS
    agree = [prove(case, target) for target in targets for case in cases]
    sys.exit(not all(agree))


if __name__ == "__main__":
    main()
