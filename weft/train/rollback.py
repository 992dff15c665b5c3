"""Rollback after a loss spike: to the last checkpoint, past its batches."""

from ..spmd.step import TrainState, TrainStep
from .interface import Listener, TrainingError
from .metrics import Metrics
from .saver import Saver
from .spikes import Spike

MOST_ROLLBACKS = 3  # to one checkpoint


class Rollback:
    """Restores the state before a spike; the batches up to it are left out."""

    def __init__(self, saver: Saver, step: TrainStep, metrics: Metrics, listener: Listener):
        self._saver, self._step, self._metrics, self._listener = saver, step, metrics, listener
        self._count = 0

    def __call__(self, spike: Spike) -> TrainState:
        """The state of the last checkpoint, whose step is `saver.at`."""
        saver, before = self._saver, self._saver.at
        saver.wait()
        state = saver.restore(self._step)
        self._count = self._count + 1 if saver.at == before else 1
        if self._count > MOST_ROLLBACKS:
            raise TrainingError(
                f"{spike}, and the {self._count}th that follows step {saver.at}",
                fix='lower `schedule.rate`, or leave spikes out one by one: `--changed --set train.spikes="skip"`',
                step=spike.step,
            )
        skipped = spike.step - saver.at
        saver.skipped += skipped
        self._listener.say(f"{spike}; it goes back to step {saver.at}, and past {skipped} batches")
        self._metrics.go_back(saver.at)
        self._metrics({"step": saver.at + 1, "spike": {**spike._asdict(), "back_to": saver.at}})
        return state
