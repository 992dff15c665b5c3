"""The training loop: steps, and what comes between them.

Imports all rooms of training. What a run learns follows from its configuration and the step alone: it can be stopped at
any moment and resumes from its last checkpoint as if it had not been.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..libraries import need_libraries
from ..spmd.step import TrainState
from .compilation import open_cache, telling
from .config import RunConfig
from .folder import Folder
from .foresight import choose_layout
from .interface import OPTIONS, Listener, NullListener, Options, Outcome, TrainingError
from .prepare import Prepared, prepare
from .saver import Saver
from .step import make_step
from .stopping import Interrupted, Stop

__all__ = ["OPTIONS", "Listener", "NullListener", "Options", "Outcome", "Trainer", "TrainingError", "train"]


class Trainer:
    """A run in a folder."""

    def __init__(
        self, config: RunConfig, folder: Path | str, listener: Listener | None = None, options: Options = OPTIONS
    ):
        self.folder, self.options = Path(folder), options
        self.listener: Listener = listener or NullListener()
        self.config = choose_layout(config, self.folder, self.listener)
        self.mesh, self.layout = self.config.runs_on
        self.model = self.config.sized_model

    def run(self) -> Outcome:
        """Trains to the last step, or until it is asked to stop."""
        config, listener, options = self.config, self.listener, self.options
        need_libraries("training", "orbax.checkpoint", "tomli_w")
        stop = Stop(is_own=options.is_own)
        saver = Saver(config, self.folder, listener, stop, options.command)
        folder = Folder(self.folder, saver.checkpoints, config, may_change=options.changed, say=listener.say)
        with open_cache(config.train.compilation_cache, self.mesh, listener.say), folder.open(), stop:
            try:
                saver.stand_at_last()
                step = make_step(config, self.mesh, self.layout)
                finished = saver.check_finished(step)
                if finished is not None and not (finished.not_finite and options.find_nan):
                    return finished
                prepared = prepare(config, folder, step, saver, listener, stop, options)
                try:
                    with prepared.open():
                        outcome = train(prepared) if finished is None else finished
                        if finished is not None and prepared.nan_search is not None:  # the step that it ended with
                            log = prepared.log_from(saver.at)
                            prepared.nan_search.check(prepared.state, saver.at, skipped=saver.skipped, log=log)
                except TrainingError as error:
                    folder.write_outcome(finished or saver.end_by(error))
                    raise
            except Interrupted as error:
                if stop.has_begun:
                    raise
                return Outcome(saver.at, config.train.steps, error.reason, is_begun=False)
            folder.write_outcome(outcome)
            return outcome


def train(run: Prepared) -> Outcome:
    """Takes steps until the last one, or until a stop is wanted after one of them."""
    saver, stop, steps = run.saver, run.stop, run.config.train.steps
    state, at = run.state, saver.at
    log, not_finite, is_stopped = run.log_from(at), "", False
    run.batches.seek(at + saver.skipped, saver.data)
    stop.check()
    while at < steps and not is_stopped:
        state, metrics = _step(run, state, at)
        at += 1
        run.watchdog.see(at)
        run.listener.step(at, steps)
        is_stopped = stop.is_wanted()
        is_last = at == steps or is_stopped

        spike = log.write()  # of the step before: it is done by now, and this one is under way
        saver.report_failure(is_last=is_last)
        log.take(at, metrics, state, is_last=is_last)
        if run.nan_search is not None:
            run.nan_search.check(state, at, skipped=saver.skipped, log=log)
        is_evaluated, is_saved = run.evaluation.is_due(at), is_last or saver.is_due(at)
        if is_evaluated or is_saved:
            now = log.write()
            spike = spike or now
        if spike is not None and run.rollback is not None:
            del state  # two of them may not fit
            state, at = run.rollback(spike), saver.at
            log = run.log_from(at)
            run.batches.seek(at + saver.skipped, saver.data)
            continue

        loss = None
        if is_evaluated:
            with log.paused(state):
                loss = run.evaluation(state, at)
            is_stopped = stop.is_wanted()
        if is_saved or is_stopped:
            not_finite = log.not_finite(loss) if at == steps else ""
            with log.paused(state):
                is_end, data = is_last or is_stopped, run.batches.state
                saver.save(state, at, loss=loss, not_finite=not_finite, is_last=is_end, data=data)
    saver.finish()
    reason = (stop.reason or "") if is_stopped else ""
    return Outcome(at, steps, reason, saver.is_saved, not_finite=not_finite, kept=saver.last_kept)


def _step(run: Prepared, state: TrainState, at: int) -> tuple[TrainState, dict[str, Any]]:
    """One step; the first is compiled, and after it there is something to save."""
    with run.profile.step(at):
        if run.stop.has_begun:
            return run.step(state, next(run.batches), np.int32(at))
        with telling(run.listener.say), run.listener.stage("compiling the step"):
            state, metrics = run.step(state, next(run.batches), np.int32(at))
            jax.block_until_ready(metrics)
            run.stop.begin_steps()
            return state, metrics
