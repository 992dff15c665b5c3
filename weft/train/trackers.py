"""Trackers of experiments: Weights & Biases and MLflow, where they are asked for.

Imports the metrics' names. The libraries are loaded when a run begins, and an error then says how to install them.
Rows are sent by a thread of their own: a service that is slow holds no step up, and one that fails is said once.
"""

import contextlib
import math
import queue
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..data.atomic import write_atomic
from ..errors import WeftError
from ..libraries import import_library
from ..small_files import Reader, summed
from .metrics import Row, Say, flat, numbers
from .tables import Tracking

_FILE = "trackers.json"
_WAITING = 10_000  # rows kept while a service does not take them
_AT_ONCE = 100  # as many as an MLflow server takes of parameters in a request
_SECONDS = 30.0  # for the last rows, at the end
Send = Callable[[int, Mapping[str, float]], None]


class TrackerError(WeftError):
    """A tracker that is asked for and cannot be used."""


class Trackers:
    """The trackers of a run; while it is open rows are sent to each."""

    def __init__(self, settings: Tracking, folder: Path, config: Mapping[str, Any], say: Say):
        self._senders: list[_Sender] = []
        ids = _known_ids(folder)
        if settings.wandb:
            import_library("wandb", "`metrics.wandb`", TrackerError)
            self._senders.append(_Sender("Weights & Biases", lambda: _open_wandb(settings, folder, config, ids), say))
        if settings.mlflow:
            import_library("mlflow", "`metrics.mlflow`", TrackerError)
            self._senders.append(_Sender("MLflow", lambda: _open_mlflow(settings, folder, config, ids), say))

    def __enter__(self) -> "Trackers":
        for sender in self._senders:
            sender.open()
        return self

    def __exit__(self, *_: object) -> None:
        for sender in self._senders:
            sender.close()

    def __call__(self, row: Row) -> None:
        """Sends the numbers of a row, as `train/NAME` and `eval/NAME`."""
        values = {
            name.replace(".", "/") if name.startswith("eval.") else f"train/{name}": value
            for name, value in numbers(row).items()
            if math.isfinite(value)
        }
        for sender in self._senders if values else ():
            sender.add(int(row["step"]), values)


class _Sender:
    """Sends rows to one service, by a thread, until it fails."""

    def __init__(self, name: str, connect: Callable[[], tuple[Send, Callable[[], None]]], say: Say):
        self._name, self._connect, self._say = name, connect, say
        self._rows: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="weft-tracker", daemon=True)
        self._has_failed = False

    def open(self) -> None:
        """Begins to send."""
        self._thread.start()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Sends a row when its turn comes; one too many is left out."""
        if not self._has_failed:
            try:
                self._rows.put_nowait((step, values))
            except queue.Full:
                self._fail(f"{_WAITING:,} rows wait for it")

    def close(self) -> None:
        """Waits a while for the last rows."""
        with contextlib.suppress(queue.Full):
            self._rows.put_nowait(None)
        self._thread.join(_SECONDS)
        if self._thread.is_alive() and not self._has_failed:
            self._fail(f"it took no rows for {_SECONDS:.0f} seconds")

    def _run(self) -> None:
        try:
            send, finish = self._connect()
            while (row := self._rows.get()) is not None:
                send(*row)
            finish()
        except Exception as error:  # of a service or its library, which raise many kinds
            self._fail(textwrap.shorten(f"{error}", 200) or type(error).__name__)

    def _fail(self, why: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._say(f"{self._name} IS SENT NO MORE METRICS: {why}. Training goes on; they are all in metrics.jsonl.")


def _open_wandb(
    settings: Tracking, folder: Path, config: Mapping[str, Any], ids: dict[str, str]
) -> tuple[Send, Callable[[], None]]:
    wandb = import_library("wandb", "`metrics.wandb`", TrackerError)
    ids.setdefault("wandb", uuid.uuid4().hex[:16])
    options = {"project": settings.project, "name": folder.name, "dir": str(folder), "config": dict(config)}
    run = wandb.init(id=ids["wandb"], resume="allow", **options)
    _keep_ids(folder, ids)

    def send(step: int, values: Mapping[str, float]) -> None:
        run.log(dict(values), step=step)

    return send, run.finish


def _open_mlflow(
    settings: Tracking, folder: Path, config: Mapping[str, Any], ids: dict[str, str]
) -> tuple[Send, Callable[[], None]]:
    mlflow = import_library("mlflow", "`metrics.mlflow`", TrackerError)
    entities = import_library("mlflow.entities", "`metrics.mlflow`", TrackerError)
    client = mlflow.MlflowClient(tracking_uri=settings.mlflow)
    if "mlflow" not in ids:
        found = client.get_experiment_by_name(settings.project)
        experiment = client.create_experiment(settings.project) if found is None else found.experiment_id
        ids["mlflow"] = client.create_run(experiment, run_name=folder.name).info.run_id
        params = [entities.Param(key, str(value)[:500]) for key, value in flat(dict(config)).items()]
        for first in range(0, len(params), _AT_ONCE):
            client.log_batch(ids["mlflow"], params=params[first : first + _AT_ONCE])
        _keep_ids(folder, ids)

    def send(step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [entities.Metric(name, value, now, step) for name, value in values.items()]
        client.log_batch(ids["mlflow"], metrics=metrics)

    return send, lambda: client.set_terminated(ids["mlflow"])


def _known_ids(folder: Path) -> dict[str, str]:
    """Under which names a run that goes on is known."""
    with contextlib.suppress(TrackerError):
        return dict(Reader(TrackerError).summed_json(folder / _FILE, {"ids": {str: str}})["ids"])
    return {}


def _keep_ids(folder: Path, ids: Mapping[str, str]) -> None:
    with contextlib.suppress(OSError):  # a new name is taken then
        write_atomic(folder / _FILE, summed({"ids": dict(ids)}))
