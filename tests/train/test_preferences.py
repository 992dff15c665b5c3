"""DPO: the loss worked out by hand, the same under layouts; a run that learns what is preferred."""

import json

import jax
import numpy as np
import optax
import pytest

import weft as wf
from weft import models
from weft.nn import lora
from weft.tensor import tensor
from weft.train import Run
from weft.train.config import ConfigError
from weft.train.interface import Options
from weft.train.preferences import REFERENCE, dpo_loss, reference_of

from .running import BOTH, MODEL, config_of, losses, run, sums

CONFIG = models.preset(
    "tiny-lm", layers=1, d_model=16, heads=4, d_kv=4, d_ff=32, vocab=64, batch=8, length=16, dropout=0.0
)
SIDES = ("chosen", "rejected")


def batch_of():
    """Random pairs, of which the last is none."""
    rng, batch = np.random.default_rng(0), {}
    for side in SIDES:
        ids = rng.integers(0, 64, (8, 17)).astype(np.int32)
        batch |= {f"{side}_inputs": ids[:, :-1], f"{side}_targets": ids[:, 1:]}
        batch[f"{side}_weights"] = (rng.random((8, 16)) > 0.4).astype(np.float32)
    return {**batch, "weights": np.array([1] * 7 + [0], np.float32)}


def by_hand(model, first, batch, beta):
    """The loss and its metrics in NumPy, from the logits of both models."""

    def log_probs(model, side):
        logits = np.asarray(model.logits(batch[f"{side}_inputs"]), np.float64)
        table = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        each = np.take_along_axis(table, batch[f"{side}_targets"][..., None], axis=-1)[..., 0]
        return (each * batch[f"{side}_weights"]).sum(axis=1)[:7]

    chosen, rejected = (beta * (log_probs(model, side) - log_probs(first, side)) for side in SIDES)
    margin = chosen - rejected
    return {
        "loss": np.log1p(np.exp(-margin)).mean(),
        "margin": margin.mean(),
        "accuracy": (margin > 0).mean(),
        "chosen_reward": chosen.mean(),
        "rejected_reward": rejected.mean(),
        "pairs": 7,
    }


def stepped(mesh, layout):
    """The metrics of a step, and the weights after it."""
    model, first = (models.init(CONFIG, jax.random.key(seed), mesh, layout) for seed in (0, 1))
    batch = {name: tensor(x, "batch length" if x.ndim == 2 else "batch") for name, x in batch_of().items()}
    step = wf.train_step(
        lambda model, batch, key: dpo_loss(model, batch, key, beta=0.5),
        optax.sgd(0.1),
        has_aux=True,
        mesh=mesh,
        layout=layout,
    )
    reference = reference_of(first)
    state, metrics = step(step.init(model), {**batch, REFERENCE: reference})
    return metrics, state.params, reference


def test_the_loss_and_its_metrics_are_those_worked_out_by_hand():
    model, first = (models.init(CONFIG, jax.random.key(seed)) for seed in (0, 1))
    wanted = by_hand(model, first, batch_of(), 0.5)
    batch = {name: tensor(x, "batch length" if x.ndim == 2 else "batch") for name, x in batch_of().items()}
    loss, metrics = dpo_loss(model, {**batch, REFERENCE: reference_of(first)}, None, beta=0.5)
    assert {name: float({**metrics, "loss": loss}[name]) for name in wanted} == pytest.approx(wanted, rel=1e-4)


def arrays(params):
    return [np.asarray(x) for x in jax.tree.leaves(params)]


@pytest.mark.quick("x=8-batch:x,params.d_model:x")
@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        ("x=2,y=4", "batch:x,heads:y,d_ff:y,vocab:y"),
        ("x=8", "batch:x,params.d_model:x"),
        ("x=2,y=4", "batch:x,length:y"),
        ("x=8", "batch:x,optimizer.d_model:x"),
    ],
    ids=lambda value: value,
)
def test_a_layout_changes_neither_the_loss_nor_the_weights_after_it(mesh, layout):
    wanted, before, _ = stepped("all=1", "batch:all")
    found, after, reference = stepped(mesh, layout)
    for name in wanted:
        assert float(found[name]) == pytest.approx(float(wanted[name]), rel=1e-4, abs=1e-5), name
    for one, other in zip(arrays(before), arrays(after), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)
    if "params" in layout:  # it is stored as the policy is
        assert all(x.array.addressable_shards[0].data.size == x.array.size // 8 for x in reference.values())


def test_of_adapters_alone_is_there_a_reference():
    model = lora.add(models.init(CONFIG, jax.random.key(0)), rank=2, key=jax.random.key(2))
    reference = reference_of(model)
    assert reference and all(path.endswith((".down", ".up")) for path in reference)


def dpo_config(folder, **changes):
    path = folder / "pairs.jsonl"
    lines = [{"prompt": f"{i % 10}?", "chosen": "yes", "rejected": "no"} for i in range(80)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = {
        "model": MODEL | {"vocab": 264, "layers": 1, "dropout": 0.0},
        "tokenizer": {"kind": "bytes", "specials": True},
        "data": {"path": str(path), "format": "preferences", "held_out": 8},
        "train": {"objective": "dpo", "steps": 6, "batch": 8, "length": 8},
        "checkpoint": {"every": 2},
        **BOTH,
    }
    merged = {
        key: {**values.get(key, {}), **value} if isinstance(value, dict) else value for key, value in changes.items()
    }
    return config_of(path, **(values | merged))


@pytest.mark.slow
def test_a_run_learns_what_is_preferred_and_goes_on_with_the_same_bits(tmp_path):
    outcome, heard = run(dpo_config(tmp_path, eval={"every": 6}), tmp_path / "straight")
    rows = [row for row in heard.rows if "margin" in row]
    assert outcome.is_finished and rows[0]["loss"] == pytest.approx(np.log(2), rel=1e-5)
    assert rows[-1]["margin"] > 0.1 and rows[-1]["accuracy"] == 1
    evaluation = next(row["eval"] for row in heard.rows if "eval" in row)
    assert evaluation["pairs"] == 8 and evaluation["accuracy"] == 1 and evaluation["loss"] < np.log(2)
    run(dpo_config(tmp_path), tmp_path / "crashed", crash_at=5)
    run(dpo_config(tmp_path), tmp_path / "crashed")
    assert sums(tmp_path / "crashed", 6) == sums(tmp_path / "straight", 6)
    assert losses(tmp_path / "crashed") == losses(tmp_path / "straight")
    Run(tmp_path / "straight").load()
    other = dpo_config(tmp_path, train={"microbatches": 2}, mesh="", layout="")
    run(other, tmp_path / "micro")
    assert losses(tmp_path / "micro") == pytest.approx(losses(tmp_path / "straight"), rel=1e-3)


@pytest.mark.slow
def test_a_run_whose_first_weights_changed_stops(tmp_path):
    run(dpo_config(tmp_path, mesh="", layout="", train={"steps": 2}), tmp_path / "first")
    changes = {"init_from": str(tmp_path / "first"), "mesh": "", "layout": ""}
    run(dpo_config(tmp_path, **changes), tmp_path / "run", crash_at=3)
    run(dpo_config(tmp_path, mesh="", layout="", train={"steps": 4}), tmp_path / "first", options=Options(changed=True))
    with pytest.raises(ConfigError, match=r"the weights in .*first are others than those the run in .* began with"):
        run(dpo_config(tmp_path, **changes), tmp_path / "run")


@pytest.mark.parametrize(("objective", "form"), [("dpo", "text"), ("likelihood", "preferences")])
def test_an_objective_and_data_that_do_not_fit_are_told(objective, form, tmp_path):
    config = dpo_config(tmp_path, train={"objective": objective}, data={"format": form}, mesh="", layout="")
    with pytest.raises(ConfigError, match=f'`train.objective` is "{objective}", and .* is read as {form}') as caught:
        run(config, tmp_path / "run")
    assert "preferences" in caught.value.fix or 'objective = "dpo"' in caught.value.fix
