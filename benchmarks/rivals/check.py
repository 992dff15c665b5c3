"""Whether the rivals compute the same models: loss and gradients from the same weights, tiny, in float32.

python benchmarks/rivals/check.py weft FOLDER     # writes each workload's weights, loss and gradients
python benchmarks/rivals/check.py jax FOLDER      # compares with them; `torch`, by the Python that has it, too
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.rivals import workloads
from benchmarks.rivals.workloads import Workload


def workload(name: str) -> Workload:
    """A tiny workload without dropout, whose bits differ."""
    import dataclasses

    return dataclasses.replace(workloads.find(name, is_small=True), dropout=0.0)


def by_weft(w: Workload) -> tuple[dict[str, Any], float, float]:
    """The weights, and with them the loss and the norm of its gradients."""
    import jax

    import weft as wf
    from benchmarks.rivals import by_weft
    from weft import models

    model = models.init(by_weft.config(w, dtype="float32", remat=False, scanned=True), jax.random.key(0))
    loss, grads = jax.jit(wf.value_and_grad(lambda model: model.loss(by_weft.place(w))))(model)
    values = {name: np.asarray(value) for name, value in by_weft.named_weights(model).items()}
    return values, float(loss.array), norm(jax.tree.leaves(grads))


def by_jax(w: Workload, values: dict[str, Any]) -> tuple[float, float]:
    import jax
    import jax.numpy as jnp

    from benchmarks.rivals import by_jax

    p = {}
    for name, value in values.items():
        own = {f"{name}.{i}": x for i, x in enumerate(value)} if ".layers." in name else {name: value}
        p |= {n: jnp.asarray(x) for n, x in own.items()}
    batch = {name: jnp.asarray(value) for name, value in workloads.batch(w).items()}
    loss, grads = jax.jit(jax.value_and_grad(lambda p: by_jax.loss(w, p, batch, None, jnp.float32)))(p)
    return float(loss), norm(grads.values())


def by_torch(w: Workload, values: dict[str, Any]) -> tuple[float, float]:
    import torch

    from benchmarks.rivals import by_torch

    model = by_torch.Model(w, torch.float32)
    by_torch.load(model, values)
    batch = {name: torch.as_tensor(value) for name, value in workloads.batch(w).items()}
    mask = by_torch.block_mask(w, batch)
    with torch.no_grad():  # by FlexAttention itself, where that is used
        forward = float(model(batch, mask))
    loss = model(batch, mask)
    loss.backward()
    assert abs(float(loss) - forward) < 1e-5, (float(loss), forward)
    return float(loss), norm(p.grad.numpy() for p in model.parameters())


def norm(arrays: Any) -> float:
    return float(np.sqrt(sum(np.square(np.asarray(x, "float64")).sum() for x in arrays)))


def main() -> None:
    rival, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for w in (workload(x.name) for x in workloads.TRAINED):
        path = folder / f"{w.name}.npz"
        if rival == "weft":
            values, loss, size = by_weft(w)
            np.savez(path, **values, **{"loss": loss, "gradients": size})
            print(f"{w.name:10} loss {loss:.6f}  gradients {size:.6f}")
            continue
        values = dict(np.load(path))
        known = float(values.pop("loss")), float(values.pop("gradients"))
        found = {"jax": by_jax, "torch": by_torch}[rival](w, values)
        off = [abs(a - b) / b for a, b in zip(found, known, strict=True)]
        print(f"{w.name:10} loss {found[0]:.6f} (off by {off[0]:.1e})  gradients {found[1]:.6f} ({off[1]:.1e})")
        if max(off) > 1e-4:
            sys.exit(f"{rival} computes another {w.name}: {found} against {known}")


if __name__ == "__main__":
    main()
