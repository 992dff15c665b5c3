"""Metrics to Weights & Biases and MLflow: sent by a thread, and a service that fails never ends a run."""

import math
import sys
import threading
import types

import pytest

from weft.train.metrics import Metrics, read
from weft.train.tables import Tracking
from weft.train.trackers import TrackerError, Trackers


class Services:
    """What two services got; as modules that stand for their libraries."""

    def __init__(self, fails_at=None):
        self.rows, self.begun, self.params, self.ended, self.fails_at = [], [], {}, [], fails_at

    def log(self, step, values):
        if step == self.fails_at:
            raise ConnectionError("the service is down\nand so on")
        self.rows.append((step, values))

    def modules(self):
        wandb = types.ModuleType("wandb")
        wandb.init = lambda **how: (
            self.begun.append(how)
            or types.SimpleNamespace(
                log=lambda values, step: self.log(step, values), finish=lambda: self.ended.append("wandb")
            )
        )
        mlflow, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
        entities.Metric = entities.Param = lambda *parts: parts
        mlflow.MlflowClient = lambda tracking_uri: (
            self.begun.append(tracking_uri)
            or types.SimpleNamespace(
                get_experiment_by_name=lambda name: None,
                create_experiment=lambda name: "7",
                create_run=lambda experiment, run_name: types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc")),
                log_batch=lambda run, metrics=(), params=(): (
                    self.log(metrics[0][3], {name: value for name, value, _, _ in metrics})
                    if metrics
                    else self.params.update(params)
                ),
                set_terminated=lambda run: self.ended.append("mlflow"),
            )
        )
        return {"wandb": wandb, "mlflow": mlflow, "mlflow.entities": entities}


ROWS = [
    {"step": 1, "loss": 2.0, "mfu": None},
    {"step": 2, "loss": math.nan, "grad_norm": 1.0},
    {"step": 3, "loss": 1.0},
    {"step": 3, "eval": {"loss": 1.5}},
]
SENT = [(1, {"train/loss": 2.0}), (2, {"train/grad_norm": 1.0}), (3, {"train/loss": 1.0}), (3, {"eval/loss": 1.5})]


def send(folder, monkeypatch, settings, services, rows=ROWS):
    for name, module in services.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    said = []
    trackers = Trackers(settings, folder, {"train": {"steps": 3}}, said.append)
    with Metrics(folder, tensorboard=False, more=trackers) as metrics:
        for row in rows:
            metrics(row)
    return said


@pytest.mark.parametrize("settings", [Tracking(wandb=True, project="p"), Tracking(mlflow="http://here:1")], ids="wm")
def test_rows_are_sent_in_order_under_one_name_whenever_it_goes_on(settings, tmp_path, monkeypatch):
    first, second = Services(), Services()
    assert send(tmp_path, monkeypatch, settings, first) == [] == send(tmp_path, monkeypatch, settings, second)
    assert first.rows == SENT == second.rows and len(first.ended) == 1
    if settings.wandb:
        assert first.begun[0]["id"] == second.begun[0]["id"] and first.begun[0]["project"] == "p"
    else:
        assert first.begun == ["http://here:1"] and first.params == {"train.steps": "3"} and not second.params


def test_a_service_that_fails_is_said_once_and_all_is_in_the_file(tmp_path, monkeypatch):
    services = Services(fails_at=2)
    said = send(tmp_path, monkeypatch, Tracking(wandb=True), services)
    end = "Training goes on; they are all in metrics.jsonl."
    assert said == [f"Weights & Biases IS SENT NO MORE METRICS: the service is down and so on. {end}"]
    assert services.rows == SENT[:1] and len(read(tmp_path)) == len(ROWS)


def test_a_service_that_hangs_holds_no_step_up(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.train.trackers._SECONDS", 0.2)
    services, hung = Services(), threading.Event()
    monkeypatch.setattr(services, "log", lambda step, values: hung.wait(10))
    said = send(tmp_path, monkeypatch, Tracking(mlflow="x"), services)
    hung.set()
    assert len(said) == 1 and "MLflow IS SENT NO MORE METRICS: it took no rows" in said[0]
    assert len(read(tmp_path)) == len(ROWS)


@pytest.mark.parametrize(("settings", "name"), [(Tracking(wandb=True), "wandb"), (Tracking(mlflow="x"), "mlflow")])
def test_a_library_that_is_not_there_is_told_before_the_run_begins(settings, name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TrackerError, match=f"`metrics.{name}` needs `{name}`") as caught:
        Trackers(settings, tmp_path, {}, print)
    assert caught.value.fix == f"run `pip install {name}`"


def test_without_trackers_nothing_is_loaded(tmp_path, monkeypatch):
    assert send(tmp_path, monkeypatch, Tracking(), Services()) == []
    assert not (tmp_path / "trackers.json").exists()
