"""What the steps of a run tell: rows of metrics, steps that were not finite, and spikes.

Imports the step and the metrics. All of it is read one step later than it is made: the step after is under way by then.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..mesh import Mesh
from ..spmd.step import TrainState
from .config import RunConfig
from .evaluation import number
from .foresight import Forecast
from .metrics import Metrics, Row
from .speed import flops_per_token, peak_flops
from .spikes import Spike
from .step import told_of
from .telling import Listener, TrainingError


class Log:
    """The log of a run from step `at` on."""

    def __init__(
        self, config: RunConfig, mesh: Mesh, note: Metrics, listener: Listener, forecast: Forecast | None, *, at: int
    ):
        self.config, self.note, self.listener, self.forecast = config, note, listener, forecast
        self.first, self.from_step = at + 1, at
        self.since, self.rows = time.perf_counter(), 0
        self.loss = math.nan
        """The last that was told."""
        self.in_a_row = 0.0
        """How many of the last steps were not finite."""
        self._held: tuple[int, bool, dict[str, Any]] | None = None
        self._watched: tuple[int, dict[str, Any]] | None = None
        own = config.train.peak_flops
        peak = own if own is not None else peak_flops(mesh.jax_mesh().devices.flat[0])
        self._peak = None if peak is None else peak * mesh.size
        self._work = None if peak is None else flops_per_token(config)

    def take(self, at: int, told: dict[str, Any], state: TrainState, *, is_last: bool) -> None:
        """Takes what a step told; the state is overwritten by the next one, so what it tells is copied."""
        own = self.config.train
        is_row = is_last or is_due(at, own.log_every)
        is_told = is_row or at == self.first  # the first after a start is for people; in the metrics it is no row
        if is_told or at % own.bad_steps == 0 or own.spikes != "keep":
            found = jax.tree.map(jax.numpy.copy, told_of(state))
            self._watched = (at, found)
            if is_told:
                self._held = (at, is_row, {**told, **found})

    def write(self) -> Spike | None:
        """Tells of the step that was taken, when it is done; raises where too many steps were not finite."""
        spike = None
        if self._held is not None:
            (at, is_row, told), self._held = self._held, None
            row = self._row(at, told)
            if is_row:
                self.note(row)
            self.listener.logged(row)
        if self._watched is not None:
            (at, told), self._watched = self._watched, None
            spike = _spike_in(at, told.get("spike"))
            if spike is not None and self.config.train.spikes == "skip":
                self.listener.said(f"{spike}; it is left out")
                self.note({"step": at, "spike": spike._asdict()})
            self.in_a_row = number(told["bad_in_a_row"])
            self._check(at)
        return spike

    def _row(self, at: int, told: dict[str, Any]) -> Row:
        config = self.config
        row: Row = {
            name: number(value) for name, value in told.items() if np.ndim(getattr(value, "_array", value)) == 0
        }
        row["loss"] /= config.train.loss_scale or 1.0
        self.loss = row["loss"]
        now = time.perf_counter()
        tokens = config.batch * config.length * (at - self.from_step) / (now - self.since)
        if self.forecast is not None and self.rows > 1 and at > self.from_step:
            self.forecast.compare((now - self.since) / (at - self.from_step))
        self.since, self.from_step, self.rows = now, at, self.rows + 1
        used = None if self._peak is None or self._work is None else tokens * self._work / self._peak
        return {"step": at, **row, "tokens_per_s": tokens, "mfu": used}

    def _check(self, at: int) -> None:
        if self.in_a_row >= self.config.train.bad_steps:
            raise TrainingError(
                f"{self.in_a_row:.0f} steps in a row were not finite, up to step {at}",
                fix="lower `schedule.rate`, or see which operation it is: `weft train ... --find-nan`",
            )

    @contextlib.contextmanager
    def paused(self, state: TrainState) -> Iterator[None]:
        """What is done inside is no step: its time does not count, once the steps before it are done."""
        jax.block_until_ready(state.step)
        began = time.perf_counter()
        yield
        self.since += time.perf_counter() - began


def is_due(at: int, log_every: int) -> bool:
    """Whether a step has a row in the metrics, whenever the run was started; the last step has one too."""
    return at == 1 or at % log_every == 0


def _spike_in(at: int, last: Any) -> Spike | None:
    if last is None:
        return None
    is_one, *numbers = np.asarray(last.addressable_data(0)).tolist()
    return Spike(at, *numbers) if is_one else None
