"""The workloads in Weft, through what every user has: `weft.models`, `wf.train_step`, `weft.decode`."""

import collections
import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import weft as wf
from weft import decode, models

from . import workloads
from .workloads import Workload


def versions() -> dict[str, str]:
    return {"jax": jax.__version__, "weft": wf.__version__, "device": jax.devices()[0].device_kind}


def peak_bytes() -> int | None:
    """The most memory this process ever held, where the device tells."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def config(w: Workload, **changes: Any) -> Any:
    """Weft's configuration of a workload."""
    sizes = ("name", "layers", "d_model", "heads", "group", "d_kv", "d_ff", "vocab", "batch", "length")
    fields: dict[str, Any] = {name: getattr(w, name) for name in sizes}
    fields |= dict(tied=True, tied_scale=w.tied_scale, embedding_stddev=w.embedding_stddev, epsilon=w.epsilon)
    fields |= dict(positions=w.positions, rotary_base=w.rotary_base, gated=w.gated, dropout=w.dropout, **w.weft)
    fields |= dict(activation="silu" if w.gated else "relu")
    if w.experts:
        fields |= dict(experts=w.experts, gating="dropless", top_k=2, balance_loss=workloads.BALANCE)
    if not w.encoder:
        return models.LMConfig(**{**fields, **changes})
    fields |= dict(scale_scores=False, buckets=workloads.BUCKETS, farthest=workloads.FARTHEST)
    return models.Seq2SeqConfig(**{**fields, **changes})


def optimizer(w: Workload) -> Any:
    if w.optimizer == "adafactor":
        return optax.adafactor(workloads.LEARNING_RATE)
    return optax.adamw(workloads.LEARNING_RATE, weight_decay=workloads.WEIGHT_DECAY)


def read(x: Any) -> float:
    return float(np.asarray(jax.device_get(jax.tree.leaves(x)[0])).reshape(-1)[0])


def make(w: Workload, **changes: Any) -> Callable[[], Any]:
    """What runs a step, or a generation: weights are made, nothing is compiled yet."""
    if w.new_tokens:
        return _generation(w, **changes)
    step, (state, batch, _) = train_step(w, **changes)
    held = [state]
    del state
    keys = itertools.cycle(list(jax.random.split(jax.random.key(1), 512)) if w.dropout else [None])

    def run() -> Any:
        held[0], told = step(held[0], batch, next(keys))
        return told["loss"]

    return run


def train_step(w: Workload, **changes: Any) -> tuple[Any, tuple[Any, ...]]:
    """A train step on all devices, and its arguments: state, batch and key."""
    mesh = f"x={len(jax.devices())}"
    model = models.init(config(w, **changes), jax.random.key(0), mesh, "batch:x")

    def loss(model: Any, batch: Any, key: Any) -> Any:
        return model.loss(batch, key if w.dropout else None)

    step = wf.spmd(wf.train_step(loss, optimizer(w)), mesh=mesh, layout="batch:x", donate=0)
    return step, (step.init(model), place(w), jax.random.key(1) if w.dropout else None)


def place(w: Workload) -> dict[str, Any]:
    return {name: wf.tensor(value, "batch length") for name, value in workloads.batch(w).items()}


def _generation(w: Workload, **changes: Any) -> Callable[[], Any]:
    """What continues prompts by the likeliest tokens; gives the last of them."""
    model = models.init(config(w, **changes), jax.random.key(0))
    prompts = workloads.batch(w)["tokens"]
    return lambda: decode.generate(model, prompts, max_new_tokens=w.new_tokens).tokens[0, -1]


def profile(run: Callable[[], Any], path: Path, *, steps: int = 3) -> int:
    """Writes how many milliseconds of a step each kernel takes, and how often it runs; gives how many there are."""
    rows = kernels_of(lambda: [run() for _ in range(steps)], times=steps)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=0))
    return len(rows)


def kernels_of(run: Callable[[], Any], *, times: int) -> list[dict[str, Any]]:
    """Each kernel of a GPU's streams: milliseconds and calls of one of so many times, the longest first."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        data = jax.profiler.ProfileData.from_file(str(next(Path(folder).rglob("*.xplane.pb"))))
    took, count = collections.Counter[str](), collections.Counter[str]()
    streams = [line for plane in data.planes if plane.name.startswith("/device:GPU") for line in plane.lines]
    for event in (event for line in streams if "Stream" in line.name for event in line.events):
        took[event.name] += event.duration_ns
        count[event.name] += 1
    return [{"kernel": name, "ms": ns * 1e-6 / times, "calls": count[name] / times} for name, ns in took.most_common()]


def named_weights(model: Any) -> dict[str, Any]:
    """Every weight by its path, for rivals that are to start from the same."""
    found = jax.tree_util.tree_flatten_with_path(model)[0]
    return {jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".array"): leaf for path, leaf in found}
