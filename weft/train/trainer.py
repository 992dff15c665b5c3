"""A run from its configuration to its last step: data, steps, evaluations, checkpoints, and what is told on the way.

Imports all rooms of training. What a run learns follows from its configuration and the step alone: it can be stopped at
any moment and goes on from its last checkpoint as if it had not been.
"""

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import data
from ..data.whole import remove_left_behind, write_whole
from ..spmd.step import TrainState
from ..spmd.together import agreed, wait_for_all
from .checkpoints import CheckpointError, Checkpoints, OtherModelError
from .config import ConfigError, RunConfig
from .evaluation import Judge, number
from .feeding import Feed, open_data
from .folder import Folder
from .foresight import Forecast, with_layout
from .log import Log, is_due
from .metrics import Metrics
from .profiling import Profile
from .runs import CACHE, CHECKPOINTS, Lock
from .spikes import Spike, is_of_spikes
from .start import first_weights
from .step import arrays_of, judged_model, make_step, refilled, shapes_of_model, told_of
from .stopping import Interrupted, Stop
from .telling import OPTIONS, Listener, Options, Outcome, TrainingError, Unheard, before_a_step
from .watchdog import Watchdog

RUN = "run.json"
MOST_ROLLBACKS = 3  # to one checkpoint


class _LeftError(Exception):
    """An evaluation that is left, as a stop is wanted."""


class Trainer:
    """A run in a folder."""

    def __init__(
        self, config: RunConfig, folder: Path | str, listener: Listener | None = None, options: Options = OPTIONS
    ):
        self.folder, self.options = Path(folder), options
        self.listener: Listener = listener or Unheard()
        self.config = config = with_layout(config, self.folder, self.listener)
        self.mesh, self.layout = config.runs_on
        self.model = config.sized_model
        self.forecast: Forecast | None = None
        self.at, self.past = 0, 0
        """The step it begins with, and how many batches spikes have made it leave out before."""
        self.rollbacks, self.is_stopped = 0, False
        own = config.checkpoint
        self.checkpoints = Checkpoints(self.folder / CHECKPOINTS, keep=own.keep, best=own.best)

    def run(self) -> Outcome:
        """Trains to the last step, or until it is asked to stop."""
        first = self.mesh.jax_mesh().devices.flat[0]  # raises where there are too few processors
        if first.platform == "cpu" and self.mesh.size > 1 and jax.config.values.get("jax_compilation_cache_dir"):
            # Read back from there, a program's collectives are no longer in one order on all virtual processors.
            jax.config.update("jax_enable_compilation_cache", False)
            self.listener.said("JAX's compilation cache is left out: virtual processors may wait for ever with it")
        with self._opened_folder(), Stop(is_own=self.options.is_own) as stop:
            try:
                self._stand_at(stop, max(self.checkpoints.steps, default=0))
                outcome = self._run(stop)
            except Interrupted as error:
                if stop.is_saving:
                    raise
                return Outcome(self.at, self.config.train.steps, error.reason, is_begun=False)
            if not outcome.was_finished and jax.process_index() == 0:
                self._write_down(outcome)
            return outcome

    def _stand_at(self, stop: Stop, at: int) -> None:
        """A run that is ended before its first step is where the checkpoint is that it would have gone on from."""
        self.at = at
        stop.at, stop.lost = before_a_step(at, self.config.train.steps, self.options.command)

    def _write_down(self, outcome: Outcome) -> None:
        try:
            write_whole(self.folder / RUN, json.dumps(asdict(outcome)).encode())
        except OSError as error:
            self.listener.said(f"{self.folder / RUN} CANNOT BE WRITTEN: {error.strerror or error}")

    def _run(self, stop: Stop) -> Outcome:
        self.step = make_step(self.config, self.mesh, self.layout)
        if (finished := self._finished(stop)) is not None:
            return finished
        tokenizer, self.learned, held_out = self._opened_data()
        self.feed = Feed(self.model, self.mesh, self.layout, seed=self.config.seed)
        self.judge = None if held_out is None else Judge(self.config, self.feed, held_out, tokenizer)
        if self.options.plan:
            self.forecast = Forecast(self.config, self.listener)
            self.listener.said(str(self.forecast))
        state = self._first_or_last_state(stop)
        steps, log_every = self.config.train.steps, self.config.train.log_every
        is_writer = jax.process_index() == 0
        if is_writer:
            with self.opened.written():
                self.opened.write(tokenizer)
                (self.folder / RUN).unlink(missing_ok=True)
        self.profile = Profile(self.folder, self.options.profile, at=self.at, steps=steps, said=self.listener.said)
        if self.at:
            self.listener.said(f"goes on from step {self.at}")
        batches = self.feed.batches(self.learned)
        metrics = Metrics(
            self.folder,
            from_step=self.at,
            is_writer=is_writer,
            said=self.listener.said,
            forgets=lambda row: "loss" in row and row["step"] == self.at and not is_due(self.at, log_every),
        )
        self.watchdog = Watchdog(self.folder, self.config.train.watchdog_minutes, process=jax.process_index())
        with metrics as note, self.profile, self.watchdog:
            try:
                while True:
                    batches.seek(self.at + self.past)
                    with data.prefetched(batches, self.feed.placed) as placed:
                        outcome = self._steps(state, placed, note, stop)
                    if isinstance(outcome, Outcome):
                        return outcome
                    del state
                    state = self._gone_back(outcome, note, stop)
                    if self.is_stopped:
                        return Outcome(self.at, steps, stop.reason or "")
            finally:
                batches.close()
                with contextlib.suppress(CheckpointError):  # said where it was to be saved
                    self.checkpoints.close()

    # The steps.

    def _steps(self, state: TrainState, placed: Iterator[Any], note: Metrics, stop: Stop) -> Outcome | Spike:
        """How it ended; or a spike that is to be undone."""
        config, steps, at = self.config, self.config.train.steps, self.at
        log = Log(config, self.mesh, note, self.listener, self.forecast, at=at)
        is_saved, not_finite = True, ""
        stop.check()
        while at < steps and not self.is_stopped:
            is_new = not stop.is_saving
            with self.profile.step(at), self._compiling() if is_new else contextlib.nullcontext():
                state, told = self.step(state, next(placed), np.int32(at))
                if is_new:
                    jax.block_until_ready(told)
                    stop.save()
            at += 1
            self.watchdog.see(at)
            self.listener.step(at, steps)
            self.is_stopped = stop.is_wanted()
            is_last = at == steps or self.is_stopped
            spike = log.write()
            if self.checkpoints.has_failed:
                self._said_if_not_saved(self.checkpoints.wait, is_last)
            log.take(at, told, state, is_last=is_last)
            if self.options.find_nan:
                self._find_nan(state, at, log)
            is_judged = self.judge is not None and _is_at(config.eval.every, at, at == steps)
            is_kept = is_last or _is_at(config.checkpoint.every, at)
            if is_judged or is_kept:
                now = log.write()
                spike = spike or now
            if spike is not None and config.train.spikes == "rollback":
                return spike
            loss = None
            if is_judged:
                with log.paused(state):
                    loss = self._judged(state, at, note, stop)
                self.is_stopped = stop.is_wanted()
                is_last = is_last or self.is_stopped
            if is_kept or self.is_stopped:
                not_finite = _not_finite(log, loss) if at == steps else ""
                with log.paused(state):
                    is_saved = self._saved(at, state, loss, is_last, not_finite)
        is_saved = self._closed() and is_saved
        kept = None if is_saved else max(self.checkpoints.steps, default=None)
        reason = (stop.reason or "") if self.is_stopped else ""
        return Outcome(at, steps, reason, is_saved, not_finite=not_finite, kept=kept)

    def _compiling(self) -> contextlib.AbstractContextManager[Any]:
        return self.listener.stage("compiling the step")

    def _judged(self, state: TrainState, at: int, note: Metrics, stop: Stop) -> float | None:
        """The loss over what is held out; None where a stop is wanted before all of it is judged."""
        assert self.judge is not None

        def leave_if_stopped() -> None:
            if stop.is_wanted():
                raise _LeftError

        try:
            with self.listener.stage(f"evaluating step {at}"), self.watchdog.paused():
                found = self.judge(judged_model(state), between=leave_if_stopped)
        except _LeftError:
            made = f"weft eval {self.folder} --step {at}"
            self.listener.said(f"the evaluation of step {at} is left out, as the run is to stop; made by: {made}")
            return None
        row = {"step": at, "eval": found}
        note(row)
        self.listener.logged(row)
        return found["loss"]

    def _find_nan(self, state: TrainState, at: int, log: Log) -> None:
        """Where a step was not finite, says which operation was the first."""
        if not number(told_of(state)["bad_in_a_row"]):
            return
        from .nonfinite import first_bad_operation

        with contextlib.suppress(TrainingError):  # that too many steps were not finite is no news
            log.write()
        with self.listener.stage(f"doing step {at} again on one processor"):
            how: Any = {"past": self.past} if self.past else {}
            found = first_bad_operation(self.config, state.params, self.feed, self.learned, at - 1, **how)
        raise TrainingError(f"step {at} is not finite: {found}", fix="mend that operation, or lower `schedule.rate`")

    # Checkpoints.

    def _saved(self, at: int, state: TrainState, loss: float | None, is_last: bool, not_finite: str) -> bool:
        if not is_last and number(told_of(state)["bad_in_a_row"]):
            return True  # nothing has changed, and one from before it all went wrong would have to go
        told = {"config": self.config.to_dict(), "loss": loss, "past": self.past, "not_finite": not_finite}
        self._said_if_not_saved(self.checkpoints.wait, is_last)  # that the one before it failed keeps nothing from it
        return self._said_if_not_saved(lambda: self.checkpoints.save(at, arrays_of(state), told), is_last)

    def _closed(self) -> bool:
        return self._said_if_not_saved(self.checkpoints.close, True)

    def _said_if_not_saved(self, save: Any, is_last: bool) -> bool:
        try:
            save()
            return True
        except CheckpointError as error:
            kept = self.checkpoints.steps
            last = f"the last good checkpoint is of step {kept[-1]}" if kept else "there is no checkpoint yet"
            if self.config.checkpoint.stop_if_full:
                raise TrainingError(f"{error.fact}; {last}", fix=error.fix) from error
            goes_on = "" if is_last else "; training goes on"
            self.listener.said(f"NOT SAVED: {error.fact}; {last}{goes_on}. fix: {error.fix}")
            return False

    def _finished(self, stop: Stop) -> Outcome | None:
        """How it ended, if it did and its last state is whole."""
        steps = self.config.train.steps
        at = agreed(self._last_unbroken(self.checkpoints.steps, quiet=True))
        self._stand_at(stop, max(at, 0))
        if at < steps:
            return None
        with contextlib.suppress(OtherModelError), self.listener.stage(f"reading the checkpoint of step {at}"):
            try:
                self._load(at)
            except OtherModelError:
                raise
            except CheckpointError:  # said where it is passed over
                return None
        return Outcome(at, steps, was_finished=True, not_finite=self.checkpoints.told(at).get("not_finite", ""))

    def _load(self, at: int) -> TrainState:
        shapes = self.step.shapes(shapes_of_model(self.config, self.mesh, self.layout))
        wanted = arrays_of(shapes)
        new = {path: x for path, x in wanted.items() if is_of_spikes(path) and path not in self.checkpoints.dtypes(at)}
        found = self.checkpoints.load(at, {path: x for path, x in wanted.items() if path not in new})
        zeros = {path: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding) for path, x in new.items()}
        return refilled(shapes, {**found, **zeros})

    def _first_or_last_state(self, stop: Stop) -> TrainState:
        """The state of the last whole checkpoint, or the first one; a broken checkpoint is named and passed over."""
        if jax.process_index() == 0:
            self.checkpoints.remove_torn()
        steps = every = self.checkpoints.steps if jax.process_index() == 0 else []
        tried = False
        while True:
            at = agreed(self._last_unbroken(steps))
            if at < 0:
                break
            self._stand_at(stop, at)
            try:
                with self.listener.stage(f"reading the checkpoint of step {at}"):
                    found = self._load(at)
                for broken in [number for number in every if number > at]:
                    self.checkpoints.set_aside(broken)
                self.past = max(self.past, int(self.checkpoints.told(at).get("past", 0)))
                return found
            except OtherModelError as error:
                fix = "name another folder with --run, or train the model that this one is of"
                raise TrainingError(error.fact, fix=fix, at=str(self.folder)) from error
            except CheckpointError as error:
                tried = True
                self.listener.said(f"{error.fact}; the one before it is taken")
                steps = [number for number in steps if number < at]
        if tried or agreed(len(self.checkpoints.steps)):
            raise TrainingError(
                f"no checkpoint in {self.checkpoints.folder} can be read",
                fix="name another folder with --run, or remove this one to begin anew",
            )
        self.checkpoints.check_none_lost()
        self._stand_at(stop, 0)
        with self.listener.stage("making the first weights"):
            return self.step.init(first_weights(self.config, self.mesh, self.layout))

    def _gone_back(self, spike: Spike, note: Metrics, stop: Stop) -> TrainState:
        """The state before a spike; the batches up to it are left out from now on."""
        before = self.at
        self._said_if_not_saved(self.checkpoints.wait, False)
        state = self._first_or_last_state(stop)
        self.rollbacks = self.rollbacks + 1 if self.at == before else 1
        if self.rollbacks > MOST_ROLLBACKS:
            raise TrainingError(
                f"{spike}, and the {self.rollbacks}th that follows step {self.at}",
                fix='lower `schedule.rate`, or leave spikes out one by one: `--changed --set train.spikes="skip"`',
            )
        self.past += spike.step - self.at
        self.listener.said(f"{spike}; it goes back to step {self.at}, and past {spike.step - self.at} batches")
        note.go_back(self.at)
        note({"step": self.at + 1, "spike": {**spike._asdict(), "back_to": self.at}})
        return state

    def _last_unbroken(self, steps: list[int], *, quiet: bool = False) -> int:
        for at in reversed(steps):
            problem = self.checkpoints.problem(at)
            if problem is None:
                return at
            if not quiet:
                before = "the one before it is taken" if at > steps[0] else "there is none before it"
                self.listener.said(f"the checkpoint of step {at} is broken: {problem}; {before}")
        return -1

    # Before the first step.

    def _say_that_nothing_is_judged(self) -> None:
        fact = f"`eval.every` is {self.config.eval.every}, and it learns from all of its data: there is no evaluation"
        fix = "before it begins, `held_out = 0.05` or `evaluation = FILE` in `data`; or `eval.every = 0`"
        if agreed(len(self.checkpoints.steps)):
            fix = "judge it by a file it has not seen: `--changed --set data.evaluation=FILE`; or `eval.every = 0`"
        self.listener.said(f"NOTHING IS HELD OUT: {fact}. fix: {fix}")

    def _opened_data(self) -> tuple[Any, Any, Any]:
        """The tokenizer, what is learned from, and what is held out to judge by; None for what there is not."""
        if not self.config.is_data_said:
            fix = '`data = "FOLDER"` in the file, or `--set data=FOLDER`; `data = "python"` if that is meant'
            self.listener.said(f"THE RUN'S FILE NAMES NO DATA: it learns from Python's standard library. fix: {fix}")
        with _first_alone():
            found = open_data(self.config, self.folder, self.listener.progress)
            if jax.process_index() == 0:
                self.opened.check_data(found[0])
        if found[2] is None and self.config.eval.metrics:
            fix = "say `held_out` or `evaluation` in `data`, or leave `eval.metrics` out"
            raise ConfigError("`eval.metrics` asks for scores, and no data are held out for them", fix=fix)
        if found[2] is None and self.config.eval.every:
            self._say_that_nothing_is_judged()
        return found

    @contextlib.contextmanager
    def _opened_folder(self) -> Iterator[None]:
        """The folder as it was left by the same configuration, or new; while it is open nobody else trains in it."""
        may_change, said = self.options.changed, self.listener.said
        self.opened = Folder(self.folder, self.checkpoints, self.config, may_change=may_change, said=said)
        with contextlib.ExitStack() as open_while:
            if jax.process_index() == 0:
                with self.opened.written():
                    self.folder.mkdir(parents=True, exist_ok=True)
                    open_while.enter_context(Lock(self.folder))
                    for place in (self.folder, self.folder / CACHE):
                        remove_left_behind(place)
                    self.opened.check_config()
            wait_for_all("folder")
            yield


@contextlib.contextmanager
def _first_alone() -> Iterator[None]:
    """The first process goes through alone, then the others: they find what it made."""
    if jax.process_index() > 0:
        wait_for_all("data")
    yield
    if jax.process_index() == 0:
        wait_for_all("data")


def _is_at(every: int, at: int, is_too: bool = False) -> bool:
    """Whether something that is done every so many steps (0: never) is due, or is in any case if it is done at all."""
    return bool(every) and (at % every == 0 or is_too)


def _not_finite(log: Log, judged: float | None) -> str:
    """What is not finite of the last step and its evaluation; empty if all is."""
    if log.in_a_row:
        return f"the last {log.in_a_row:.0f} steps were left out"
    if not math.isfinite(log.loss):
        return f"its last loss is {log.loss}"
    return "" if judged is None or math.isfinite(judged) else f"the loss of its last evaluation is {judged}"
