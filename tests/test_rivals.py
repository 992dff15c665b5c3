"""The rivals of `benchmarks/gpu.py` compute the models they are said to, and rows go on where they stopped."""

import argparse

import pytest

import weft as wf
from benchmarks import gpu
from benchmarks.rivals import by_weft, check, workloads
from weft import models

TRAINED = [w.name for w in workloads.TRAINED]
SHORTEST = ("packed", "llama")


def program(w):
    step = wf.spmd(wf.train_step(lambda m, b, k: m.loss(b), by_weft.optimizer(w)), mesh="x=1", layout="", donate=0)
    config = by_weft.config(w, attention="plain")
    return wf.trace(step, step.init(models.shapes(config)), by_weft.place(w))


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_rivals_have_the_weights_that_weft_has(name):
    w = workloads.WORKLOADS[name]
    shapes = by_weft.named_weights(models.shapes(by_weft.config(w)))
    assert {path: leaf.shape for path, leaf in shapes.items()} == {n: s for n, (s, _) in workloads.weights(w).items()}
    assert workloads.parameters(w) == by_weft.config(w).param_count


@pytest.mark.parametrize("name", ["deep", "llama", "t5"])
def test_operations_are_those_of_the_traced_products_but_for_what_the_mask_hides(name):
    w = workloads.find(name, is_small=True)
    hidden = w.batch * w.length**2 * (3 if w.encoder else 1) - workloads.pairs(w)
    heads = w.layers * w.heads * w.group * w.d_kv
    assert program(w).flops == workloads.flops(w) + 12 * heads * hidden


def test_documents_are_packed_in_order_and_as_long_as_said():
    w = workloads.WORKLOADS["packed"]
    batch = workloads.batch(w)
    starts = (batch["positions"] == 0).sum()
    assert starts == pytest.approx(w.tokens / w.document + w.batch, rel=0.2)  # the last of each row is cut off
    steps = batch["segments"][:, 1:] - batch["segments"][:, :-1]
    assert ((steps == 1) == (batch["positions"][:, 1:] == 0)).all() and steps.min() == 0
    assert workloads.pairs(w) < w.batch * w.length * (w.length + 1) / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in SHORTEST[:1] else pytest.mark.slow) for n in TRAINED]
)
def test_jax_by_hand_has_the_loss_and_the_gradients_of_weft(name):
    w = check.workload(name)
    values, loss, size = check.by_weft(w)
    assert check.by_jax(w, values) == pytest.approx((loss, size), rel=1e-5)


def row(workload, rival, sitting, ms=2.0, **more):
    return dict(workload=workload, rival=rival, sitting=sitting, gpus=1, ms=ms, least=ms, most=ms, **more)


def test_a_row_is_done_when_one_call_ran_both():
    rows = [row("deep", "torch", 1), row("deep", "weft", 2), row("t5", "torch", 1), row("t5", "weft", 1)]
    failed = [{"workload": "moe", "rival": rival, "sitting": 1, "gpus": 1, "error": "?"} for rival in gpu.RIVALS]
    assert not gpu.is_done(rows, "deep", 1) and gpu.is_done(rows, "t5", 1) and not gpu.is_done(rows, "t5", 8)
    assert not gpu.is_done(failed, "moe", 1)


def test_only_rows_that_are_not_done_are_run_again(tmp_path, monkeypatch):
    ran = []

    def result_of(pair, args):
        ran.append(pair)
        is_failed = pair == ("t5", "weft") and len(ran) == 4
        times = {"ms": 3.0, "least": 2.9, "most": 3.1, "loss": 1, "first_s": 9}
        return {"error": "out of memory"} if is_failed else times

    monkeypatch.setattr(gpu, "start", lambda workload, rival, args, *, seconds: (workload, rival))
    monkeypatch.setattr(gpu, "result_of", result_of)
    args = argparse.Namespace(out=str(tmp_path / "rows.json"), only="deep,t5", rivals="torch,weft", gpus=1, warm=0)
    vars(args).update(again=False, budget=1e9, seconds=1, small=False)
    gpu.measure_rows(args)
    assert ran == [("deep", "torch"), ("deep", "weft"), ("t5", "torch"), ("t5", "weft")]
    ran.clear()
    rows = gpu.measure_rows(args)
    assert ran == [("t5", "torch"), ("t5", "weft")]
    told = gpu.table(rows, 1).splitlines()
    assert len(told) == 4 and "**1.000**" in told[2] and "T5" in told[3]
