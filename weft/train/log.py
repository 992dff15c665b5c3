"""The log of a run: rows of metrics, steps that were not finite, and spikes.

Imports the step and the metrics. All of it is read one step later than it is made: the step after is under way by then.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..leaves import array_of
from ..spmd.step import TrainState
from .config import RunConfig
from .foresight import Forecast
from .interface import Listener, TrainingError
from .metrics import Metrics, Row
from .own.model import OwnModel
from .speed import flops_per_token, peak_flops
from .spikes import Spike
from .step import optimizer_metrics, read_scalar


class Log:
    """The log of a run from step `at` on."""

    def __init__(self, config: RunConfig, metrics: Metrics, listener: Listener, forecast: Forecast | None, *, at: int):
        self.config, self.metrics, self.listener, self.forecast = config, metrics, listener, forecast
        self.first, self.from_step = at + 1, at
        self.since, self.rows = time.perf_counter(), 0
        self.loss = math.nan
        """The last that was read."""
        self.in_a_row = 0.0
        """How many of the last steps were not finite."""
        self._held: tuple[int, bool, dict[str, Any]] | None = None
        self._watched: tuple[int, dict[str, Any]] | None = None
        mesh, peak = config.runs_on[0], config.train.peak_flops
        peak = peak if peak is not None else peak_flops(mesh.jax_mesh().devices.flat[0])
        self._peak = None if peak is None else peak * mesh.size
        self._work = None if peak is None else flops_per_token(config)

    def take(self, at: int, metrics: dict[str, Any], state: TrainState, *, is_last: bool) -> None:
        """Takes the metrics of a step; those in its state, soon overwritten, are copied."""
        train = self.config.train
        is_row = is_last or is_due(at, train.log_every)
        is_shown = is_row or at == self.first  # the first after a start is for people; in the metrics it is no row
        if is_shown or at % train.bad_steps == 0 or train.spikes != "keep":
            kept = jax.tree.map(jax.numpy.copy, optimizer_metrics(state))
            self._watched = (at, kept)
            if is_shown:
                self._held = (at, is_row, {**metrics, **kept})

    def write(self) -> Spike | None:
        """Waits for the step that was taken and logs it; raises after too many bad ones."""
        spike = None
        if self._held is not None:
            (at, is_row, metrics), self._held = self._held, None
            row = self._row(at, metrics)
            if is_row:
                self.metrics(row)
            self.listener.log(row)
        if self._watched is not None:
            (at, metrics), self._watched = self._watched, None
            spike = _spike_in(at, metrics.get("spike"))
            if spike is not None and self.config.train.spikes == "skip":
                self.listener.say(f"{spike}; it is left out")
                self.metrics({"step": at, "spike": spike._asdict()})
            self.in_a_row = read_scalar(metrics["bad_in_a_row"])
            self._check(at)
        return spike

    def _row(self, at: int, metrics: dict[str, Any]) -> Row:
        config = self.config
        scalars = {name: x for name, x in metrics.items() if np.ndim(array_of(x)) == 0}
        row: Row = {name: read_scalar(x) for name, x in scalars.items()}
        row["loss"] /= config.train.loss_scale or 1.0
        self.loss = row["loss"]
        now = time.perf_counter()
        tokens = config.batch * config.length * (at - self.from_step) / (now - self.since)
        if self.forecast is not None and self.rows > 1 and at > self.from_step:
            self.forecast.compare((now - self.since) / (at - self.from_step))
        self.since, self.from_step, self.rows = now, at, self.rows + 1
        used = None if self._peak is None or self._work is None else tokens * self._work / self._peak
        rate = {"tokens_per_s": tokens}
        if isinstance(config.model, OwnModel):
            rate = {"rows_per_s": tokens / config.length}
        return {"step": at, **row, **rate, "mfu": used}

    def _check(self, at: int) -> None:
        if self.in_a_row >= self.config.train.bad_steps:
            raise TrainingError(
                f"{self.in_a_row:.0f} steps in a row were not finite, up to step {at}",
                fix="lower `schedule.rate`, or see which operation it is: `weft train ... --find-nan`",
                at=self.config.place("schedule.rate"),
                step=at,
                not_finite=self.not_finite(None),
            )

    def not_finite(self, evaluation_loss: float | None) -> str:
        """What is not finite of the last step and its evaluation; empty if all is."""
        if self.in_a_row:
            return f"the last {self.in_a_row:.0f} steps were left out"
        if not math.isfinite(self.loss):
            return f"its last loss is {self.loss}"
        if evaluation_loss is not None and not math.isfinite(evaluation_loss):
            return f"the loss of its last evaluation is {evaluation_loss}"
        return ""

    @contextlib.contextmanager
    def paused(self, state: TrainState) -> Iterator[None]:
        """What is done inside is no step: its time does not count."""
        jax.block_until_ready(state.step)  # the steps before it do count
        began = time.perf_counter()
        yield
        self.since += time.perf_counter() - began


def is_due(at: int, log_every: int) -> bool:
    """Whether a step has a row in the metrics, wherever the run was resumed."""
    return at == 1 or at % log_every == 0


def _spike_in(at: int, last: Any) -> Spike | None:
    if last is None:
        return None
    is_one, *numbers = np.asarray(last.addressable_data(0)).tolist()
    return Spike(at, *numbers) if is_one else None
