"""What must not change when code is only rearranged, as figures in one file; two such files compared.

    python -m tests.figures before.json            # every program of tests/goldens, five losses, random bits
    python -m tests.figures before.json after.json # what differs; exit 1 where anything does

Of printed programs the columns of names, expressions and functions are dropped: types, collectives, bytes, counts and
their order stay. Public names alone are used, so that the same file runs before a change and after it.
"""

import hashlib
import json
import math
import re
import sys
import warnings
from pathlib import Path
from typing import Any

_TYPE = re.compile(r"\b(?:bool|bf16|[fiuc]\d+|key<\w+>)\w*\[[^\]]*\]")
_SENT = re.compile(r">> (\S+ over \S+)\s+(.*? x[\d,]+(?: a turn)?)(?:\s|$)")
_LOOP = re.compile(r"^ *((?:scan|vmap|cond|while_loop|fori_loop|associative_scan|remat|accumulate)\b.*? x[\d,?]+)")
_TARGETS = ("cpu", "gpu", "tpu")
_HARDWARE = ("h100", "v5p", "a100")


def skeleton(printed: str) -> list[str]:
    """A printed program's lines without the words a person chose: a type, a collective with its bytes, a loop."""
    lines = []
    for line in printed.splitlines():
        if sent := _SENT.search(line):
            lines.append(f">> {sent[1]} {sent[2]}")
        elif loop := _LOOP.match(line):
            lines.append(loop[1])
        elif kind := _TYPE.search(line):
            lines.append(kind[0])
        elif line and not line.startswith(" ") and not line.startswith("work:"):
            lines.append(line)
    return lines


def figures_of(program: Any, plan: Any) -> dict[str, Any]:
    """The figures of one program: its skeleton, ledger, FLOPs, memory on each kind of target, seconds on hardware."""
    rows = [(r.phase, r.collective, r.axes, r.dtype, r.bytes, r.count, r.ways) for r in program.ledger]
    seconds = {name: plan(program, name).seconds for name in _HARDWARE}
    memory = {}
    for target in _TARGETS:
        held = program.memory_on(target)
        memory[target] = {"peak": held.peak, "range": held.range}
    return {
        "lines": skeleton(program.text(lines=False)),
        "ledger": rows,
        "flops": [program.flops, program.flops_useful, program.flops_recomputed],
        "memory": memory,
        "seconds": seconds,
    }


def losses() -> dict[str, Any]:
    """Five losses of three small models on two layouts, and a digest of the weights after them."""
    import jax
    import numpy as np
    import optax

    import weft as wf
    from weft import models

    found = {}
    for name in ("tiny-lm", "tiny-mt", "tiny-moe"):
        for layout in ("", "batch:rows,d_ff:cols"):
            config = models.preset(name)
            key = jax.random.key(0)
            model = models.init(config, key)
            ids = jax.random.randint(key, (config.batch, config.length), 0, 32)
            batch = {"inputs": wf.tensor(ids, "batch length"), "targets": wf.tensor(ids, "batch length")}
            step = wf.train_step(
                lambda model, batch, key: model.loss(batch, key=key) if key is not None else model.loss(batch),
                optax.adam(1e-3), mesh="rows=2,cols=2", layout=layout,
            )  # fmt: skip
            state, values = step.init(model), []
            for _ in range(5):
                state, told = step(state, batch)
                values.append(float(told["loss"]))
            digest = hashlib.sha256()
            for leaf in jax.tree.leaves(wf.get(state.params)):
                digest.update(np.asarray(leaf).tobytes())
            found[f"{name} {layout}"] = {"losses": values, "weights": digest.hexdigest()}
    return found


def bits() -> dict[str, str]:
    """Digests of random numbers under a layout."""
    import jax
    import numpy as np

    import weft as wf

    a, b = wf.dims(a=8, b=6)
    key = jax.random.key(7)
    makers = {
        "normal": lambda: wf.random.normal(key, [a, b]),
        "uniform": lambda: wf.random.uniform(key, [a, b]),
        "gumbel": lambda: wf.random.gumbel(key, [a, b]),
        "bernoulli": lambda: wf.random.bernoulli(key, [a, b], p=0.3),
        "randint": lambda: wf.random.randint(key, [a, b], minval=0, maxval=9),
        "dropout": lambda: wf.dropout(wf.ones([a, b]), 0.4, key),
    }
    found = {}
    for name, make in makers.items():
        made = wf.spmd(make, mesh="x=2", layout="a:x")()
        found[name] = hashlib.sha256(np.asarray(made).tobytes()).hexdigest()
    return found


def collect() -> dict[str, Any]:
    """All figures of the code at hand."""
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    import weft as wf
    from tests import test_goldens as goldens

    warnings.filterwarnings("ignore", category=wf.WeftWarning)

    found = {file: figures_of(make(), wf.Plan) for file, make in goldens.PROGRAMS.items()}
    return {"programs": found, "losses": losses(), "bits": bits()}


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Where two trees of figures differ, by path; of a list the first place alone."""
    if isinstance(before, dict) and isinstance(after, dict):
        gone = [f"{path}/{key}: only {'before' if key in before else 'after'}" for key in before.keys() ^ after.keys()]
        both = [key for key in before if key in after]
        return [*gone, *(line for key in both for line in differences(before[key], after[key], f"{path}/{key}"))]
    if before == after or (isinstance(before, float) and math.isclose(before, after, rel_tol=1e-12)):
        return []  # sums of seconds may be formed in another order
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        i = next(i for i, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])
        return [f"{path}[{i}]: {before[i]} -> {after[i]}"]
    if isinstance(before, list):
        return [f"{path}: {len(before)} -> {len(after)} items"]
    return [f"{path}: {before} -> {after}"]


def main(args: list[str]) -> int:
    if len(args) == 1:
        Path(args[0]).write_text(json.dumps(collect()), encoding="utf-8")
        return 0
    before, after = (json.loads(Path(arg).read_text(encoding="utf-8")) for arg in args)
    lines = differences(before, after)
    print("\n".join(lines) or "nothing differs")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
