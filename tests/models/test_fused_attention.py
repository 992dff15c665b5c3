"""Whole models whose attention is done by kernels have the loss and gradients of those whose attention is plain."""

from typing import Any

import jax
import numpy as np
import pytest

import weft as wf
from tests.nn.stand_in import StandIn, pretend
from weft import models
from weft.nn import fused

PACKED = ("segments", "positions")
KEY = jax.random.key(1)
CASES: dict[str, Any] = {
    "packed": ("tiny-lm", "batch:x,heads:y", dict(dropout=0.0), PACKED, None),
    "packed, dropout, remat": ("tiny-lm", "batch:x,heads:y", dict(dropout=0.1, remat=True), PACKED, KEY),
    "dropout, softcap, a slice": ("tiny-lm", "length:x", dict(dropout=0.1, softcap=5.0), (), KEY),
    "dropout in a pipeline": ("tiny-lm", "stage:x", dict(dropout=0.1, stages=2, pipeline_microbatches=2), (), KEY),
    "packed, Ulysses": ("tiny-lm", "stream:x,queries:x", dict(dropout=0.0), PACKED, None),
    "GQA, stored in slices": ("tiny-lm", "batch:x,params.d_model:x", dict(dropout=0.0, heads=2, group=2), (), None),
    "relative bias": ("tiny-mt", "batch:x", dict(dropout=0.0, positions="relative"), (), None),
    "relative bias, packed": ("tiny-mt", "batch:x,heads:y", dict(dropout=0.0, positions="relative"), PACKED, None),
}


def batch_of(config: Any, packed: tuple[str, ...], sides: dict[str, str]) -> dict[str, wf.Tensor]:
    """Tokens of each side, and of a packed batch segments and positions."""
    random, sizes = np.random.default_rng(0), (4, config.length)
    segments = np.sort(random.integers(1, 3, sizes), axis=1)
    place = np.arange(config.length)
    starts = np.where(np.diff(segments, axis=1, prepend=0) > 0, place, 0)
    said = {"segments": segments, "positions": place - np.maximum.accumulate(starts, axis=1)}
    batch = {name: random.integers(1, 20, sizes) for name in sides}
    batch |= {f"{prefix}{name}": said[name] for prefix in sides.values() for name in packed}
    return {name: wf.tensor(x.astype("int32"), "batch length") for name, x in batch.items()}


@pytest.mark.parametrize("kernels", [("cudnn", "flash"), pytest.param(("flash",), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "packed" else pytest.mark.slow) for name in CASES]
)
def test_kernels_change_no_loss_and_no_gradient(name, kernels, monkeypatch):
    preset, layout, options, packed, key = CASES[name]
    config = models.preset(preset, layers=2, **options)
    sides = {"tokens": ""} if preset == "tiny-lm" else {"inputs": "input_", "targets": "target_"}
    given = models.init(config, jax.random.key(0)), batch_of(config, packed, sides)
    mesh = "x=2,y=2" if ":y" in layout else "x=2"

    def outcome() -> Any:
        run = wf.spmd(wf.value_and_grad(lambda model, batch: model.loss(batch, key)), mesh=mesh, layout=layout)
        return jax.tree.map(np.asarray, wf.get(run(*given)))

    want = outcome()
    pretend(monkeypatch, *kernels)
    calls, flash = [], fused.flash_attention
    monkeypatch.setattr(fused, "flash_attention", lambda *x, **how: calls.append(how) or flash(*x, **how))
    found = outcome()
    assert calls or StandIn.calls
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(np.abs(b).max(), 1e-3))
