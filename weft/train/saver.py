"""Saving and resuming of a run that trains, and what is said where that fails.

Imports the checkpoints, the step and the first weights. A broken checkpoint is named and the one before it is taken;
one that cannot be written is said and training goes on, unless `checkpoint.stop_if_full` says otherwise.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..models import fields
from ..spmd.step import TrainState, TrainStep
from ..spmd.together import broadcast_int
from .checkpoints import CheckpointError, OtherModelError, checkpoints_of
from .config import RunConfig
from .interface import Listener, Outcome, TrainingError, before_a_step
from .own.model import OwnModel
from .spikes import is_of_spikes
from .start import first_weights
from .step import arrays_of, optimizer_metrics, read_scalar, refill, shapes_of_model
from .stopping import Stop

_CUT = ("stages", "pipeline_rounds")  # how layers are cut: dims of their weights


class Saver:
    """Saves and restores the state of a run; `at` is the step it restored last."""

    def __init__(self, config: RunConfig, folder: Path, listener: Listener, stop: Stop, command: str):
        self.config, self.folder, self.listener = config, folder, listener
        self.checkpoints = checkpoints_of(folder, config.checkpoint)
        self.at, self.skipped, self.is_saved = 0, 0, True
        """Where it resumed, how many batches spikes made it leave out before, and whether the last save went well."""
        self.data: dict[str, Any] | None = None
        """Where the data were when that was saved, of data that have a state."""
        self._stop, self._command = stop, command
        self._saving = 0  # the step whose state was last to be written

    def stand_at_last(self) -> None:
        """Ended before its first step, a start stands where it would have resumed."""
        self._stand_at(max(self.checkpoints.steps, default=0))

    def _stand_at(self, at: int) -> None:
        self.at = at
        self._stop.at, self._stop.lost = before_a_step(at, self.config.train.steps, self._command)

    # Restoring.

    def check_finished(self, step: TrainStep) -> Outcome | None:
        """How the run ended, if it did and its last state is whole."""
        steps = self.config.train.steps
        at = broadcast_int(self._last_unbroken(self.checkpoints.steps))
        self._stand_at(max(at, 0))
        if at < steps:
            return None
        with contextlib.suppress(OtherModelError), self.listener.stage(f"reading the checkpoint of step {at}"):
            try:
                self._load(step, at)
            except OtherModelError:
                raise
            except CheckpointError:  # said where it is passed over
                return None
        not_finite = self.checkpoints.metadata(at).get("not_finite", "")
        return Outcome(at, steps, was_finished=True, not_finite=not_finite)

    def restore(self, step: TrainStep) -> TrainState:
        """The state of the last whole checkpoint, or the first one where there is none."""
        if jax.process_index() == 0:
            self.checkpoints.remove_torn()
        self.is_saved = True
        steps = every = self.checkpoints.steps if jax.process_index() == 0 else []
        is_tried = False
        while (at := broadcast_int(self._last_unbroken(steps, say=self.listener.say))) >= 0:
            self._stand_at(at)
            try:
                with self.listener.stage(f"reading the checkpoint of step {at}"):
                    state = self._load(step, at)
                for broken in [number for number in every if number > at]:
                    self.checkpoints.set_aside(broken)
                self.skipped = max(self.skipped, int(self.checkpoints.metadata(at).get("past", 0)))
                self.data = self.checkpoints.metadata(at).get("data")
                return state
            except OtherModelError as error:
                raise self._of_another_model(error.fact, at) from error
            except CheckpointError as error:
                is_tried = True
                self.listener.say(f"{error.fact}; the one before it is taken")
                steps = [number for number in steps if number < at]
        if is_tried or broadcast_int(len(self.checkpoints.steps)):
            raise TrainingError(
                f"no checkpoint in {self.checkpoints.store} can be read",
                fix="name another folder with --run, or remove this one to begin anew",
            )
        self.checkpoints.check_none_lost()
        self._stand_at(0)
        with self.listener.stage("making the first weights"):
            return step.init(first_weights(self.config, *self.config.runs_on))

    def _of_another_model(self, fact: str, at: int) -> TrainingError:
        """What is told where a checkpoint is of another model, or of other stages."""
        if isinstance(self.config.model, OwnModel):
            fix = "name another folder with --run, or train the model that this one is of"
            return TrainingError(fact, fix=fix, at=str(self.folder))
        model = fields(self.config.model)
        before = self.checkpoints.metadata(at).get("config", {}).get("model", {})
        cut = [name for name in _CUT if name in model and before.get(name, model[name]) != model[name]]
        if not cut:
            fix = "name another folder with --run, or train the model that this one is of"
            return TrainingError(fact, fix=fix, at=str(self.folder))
        changes = ", ".join(f"`model.{name}` was {before[name]} and is {model[name]}" for name in cut)
        back = ", ".join(f"model.{name} = {before[name]}" for name in cut)
        return TrainingError(
            f"{changes}, and a checkpoint keeps its stages: {fact}",
            fix=f"go on with `{back}`, or begin a run in another folder (--run) with the weights of this one: "
            f'`init_from = "{self.folder}"`',
            at=str(self.folder),
        )

    def _load(self, step: TrainStep, at: int) -> TrainState:
        shapes = step.shapes(shapes_of_model(self.config, *self.config.runs_on))
        wanted, stored = arrays_of(shapes), self.checkpoints.dtypes(at)
        new = {path: x for path, x in wanted.items() if is_of_spikes(path) and path not in stored}
        loaded = self.checkpoints.load(at, {path: x for path, x in wanted.items() if path not in new})
        zeros = {path: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding) for path, x in new.items()}
        return refill(shapes, {**loaded, **zeros})

    def _last_unbroken(self, steps: Sequence[int], say: Callable[[str], None] = lambda text: None) -> int:
        """The last of these steps whose files are whole, or -1."""
        for at in reversed(steps):
            problem = self.checkpoints.problem(at)
            if problem is None:
                return at
            before = "the one before it is taken" if at > steps[0] else "there is none before it"
            say(f"the checkpoint of step {at} is broken: {problem}; {before}")
        return -1

    # Saving.

    def is_due(self, at: int) -> bool:
        """Whether the state after so many steps is saved in any case."""
        every = self.config.checkpoint.every
        return bool(every) and at % every == 0

    def save(
        self, state: TrainState, at: int, *, loss: float | None, not_finite: str, is_last: bool, data: Any
    ) -> None:
        """Begins to write the state; after a bad step only if it is the last one."""
        if not is_last and read_scalar(optimizer_metrics(state)["bad_in_a_row"]):
            return  # nothing has changed, and one from before it all went wrong would have to go
        if at == self.config.train.steps and not self.config.checkpoint.last and not self.is_due(at):
            self.listener.say(f"the state after step {at} is not saved: `checkpoint.last` is false")
            return
        metadata = {"config": self.config.to_dict(), "loss": loss, "past": self.skipped, "not_finite": not_finite}
        metadata |= {} if data is None else {"data": data}
        self.wait(is_last=is_last)  # that the one before it failed keeps nothing from it
        self._saving = at
        self.is_saved = self._try(lambda: self.checkpoints.save(at, arrays_of(state), metadata), is_last)

    def report_failure(self, *, is_last: bool) -> None:
        """Says what went wrong with the last checkpoint, if that is known already."""
        if self.checkpoints.has_failed:
            self.wait(is_last=is_last)

    def wait(self, *, is_last: bool = False) -> None:
        """Until the checkpoint that was begun is whole."""
        self._try(self.checkpoints.wait, is_last)

    def finish(self) -> None:
        """Until all is written: then `is_saved` is final."""
        self.is_saved = self._try(self.checkpoints.close, True) and self.is_saved

    @property
    def last_kept(self) -> int | None:
        """The last good checkpoint, where the last state is not saved and there is one."""
        return None if self.is_saved else max(self.checkpoints.steps, default=None)

    def end_by(self, error: TrainingError) -> Outcome:
        """How a run ended that could not go on: what no checkpoint has is lost."""
        self.is_saved = False
        at = self.at if error.step is None else error.step
        steps, kept = self.config.train.steps, self.last_kept
        return Outcome(at, steps, error.fact, is_saved=False, not_finite=error.not_finite, kept=kept)

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(CheckpointError):  # said where it was to be saved
            self.checkpoints.close()

    def _try(self, save: Callable[[], None], is_last: bool) -> bool:
        """Whether it went well; if not that is said, or raised by `stop_if_full`."""
        try:
            save()
            return True
        except CheckpointError as error:
            kept = self.checkpoints.steps
            last = f"the last good checkpoint is of step {kept[-1]}" if kept else "there is no checkpoint yet"
            if self.config.checkpoint.stop_if_full:
                raise TrainingError(f"{error.fact}; {last}", fix=error.fix, step=self._saving) from error
            goes_on = "" if is_last else "; training goes on"
            self.listener.say(f"NOT SAVED: {error.fact}; {last}{goes_on}. fix: {error.fix}")
            return False
