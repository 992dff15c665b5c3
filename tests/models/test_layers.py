"""How the layers of a model run: as one loop, or written out; and q, k and v by one product."""

from typing import Any

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft import models
from weft.kernels.choice import Chip
from weft.models import stack
from weft.nn import attention

TOKENS = np.arange(4 * 16).reshape(4, 16) * 7 % 61
SIZES = dict(layers=2, remat=False, dtype="float32", vocab=61, dropout=0.0)


def run(layout: str, **sizes: Any) -> list[np.ndarray]:
    """The loss and its gradients by all weights of a small model."""
    model = models.init(models.preset("tiny-lm", **{**SIZES, **sizes}), jax.random.key(0))
    step = wf.value_and_grad(lambda model, batch: model.loss(batch))
    batch = {"tokens": wf.tensor(TOKENS, "batch length")}
    results = wf.spmd(step, mesh="x=2,y=2", layout=layout)(model, batch)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(wf.get(results))]


MODELS = {
    "heads of their own": {},
    "grouped": dict(group=2, positions="rotary"),
    "with biases": dict(bias="q k v o", norm="layer", scanned=False),
}


_SLOW = pytest.mark.slow
LAYOUTS = ["batch:x,heads:y,d_ff:y,vocab:y", *(pytest.param(rules, marks=_SLOW) for rules in ("", "batch:x,d_model:y"))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name", ["grouped", *(pytest.param(name, marks=_SLOW) for name in MODELS if name != "grouped")]
)
def test_q_k_and_v_by_one_product_are_what_they_are_by_three(name, layout, monkeypatch):
    want, calls = run("", **MODELS[name]), []
    together = attention.Attention._project_together
    monkeypatch.setattr(attention.Attention, "_is_one_product", lambda self, h: h.dims.has("length"))
    monkeypatch.setattr(attention.Attention, "_project_together", lambda *args: calls.append(args) or together(*args))
    for mine, due in zip(run(layout, **MODELS[name]), want, strict=True):
        np.testing.assert_allclose(mine, due, rtol=0, atol=4e-6 * max(1.0, np.abs(due).max()))
    assert calls


def test_one_product_of_split_heads_sends_what_three_do(monkeypatch):
    def ledger() -> Any:
        config = models.preset("tiny-lm", **SIZES)
        return wf.trace(
            wf.grad(lambda model, batch: model.loss(batch)), models.shapes(config), config.batch_shapes(),
            mesh="x=2,y=2", layout="batch:x,heads:y,d_ff:y",
        ).ledger  # fmt: skip

    three = ledger()
    monkeypatch.setattr(attention.Attention, "_is_one_product", lambda self, h: h.dims.has("length"))
    assert [ledger().bytes(axis) for axis in "xy"] == [three.bytes(axis) for axis in "xy"]


@pytest.mark.parametrize(
    ("sizes", "layout", "is_loop"),
    [
        ({}, "batch:x", False),
        (dict(layers=49), "batch:x", True),
        (dict(remat=True), "batch:x", True),
        ({}, "batch:x,params.d_model:x", True),
        (dict(scanned=True), "batch:x", True),
    ],
)
def test_auto_writes_layers_out_on_a_gpu_where_all_is_kept_whole(sizes, layout, is_loop, monkeypatch):
    def has_loop() -> bool:
        config = models.preset("tiny-lm", **{**SIZES, **sizes})
        loss = lambda model, batch: model.loss(batch)  # noqa: E731
        program = wf.trace(loss, models.shapes(config), config.batch_shapes(), mesh="x=2,y=2", layout=layout)
        return "scan over layers" in str(program)

    assert has_loop()  # elsewhere
    monkeypatch.setattr(stack, "chip_of", lambda x: Chip("gpu"))
    assert has_loop() is is_loop


@_SLOW
def test_layers_written_out_and_a_loop_of_them_give_one_loss_and_one_gradient():
    for mine, due in zip(run("batch:x", scanned=False), run("", scanned=True), strict=True):
        np.testing.assert_allclose(mine, due, rtol=0, atol=4e-6 * max(1.0, np.abs(due).max()))


def test_scanned_is_auto_or_a_boolean():
    error = error_of(lambda: models.preset("tiny-lm", scanned="never"), wf.TensorError)
    assert "'never'" in error.fact and "'auto'" in error.fix
