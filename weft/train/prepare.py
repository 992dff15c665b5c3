"""All that a training loop needs, made before its first step."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import jax

from .. import data
from ..data.streams import OwnStream, StreamBatches
from ..spmd.step import TrainState, TrainStep
from ..spmd.together import broadcast_int, wait_for_all
from .config import ConfigError, RunConfig
from .datasets import RunData, dims_of, open_data
from .evaluation import PeriodicEvaluation, evaluator_of
from .feeding import Feed
from .folder import Folder
from .foresight import Forecast
from .interface import Listener, Options
from .log import Log, is_due
from .metrics import Metrics, Row
from .nonfinite import NanSearch
from .profiling import Profile
from .reference import beside_batches, keep_reference
from .rollback import Rollback
from .saver import Saver
from .stopping import Stop
from .trackers import Trackers
from .watchdog import Watchdog


@dataclass(frozen=True)
class Prepared:
    """A run that is ready for its first step, with the state it starts with."""

    config: RunConfig
    step: TrainStep
    state: TrainState
    batches: data.Batches | StreamBatches
    """Placed on the mesh, by step."""
    listener: Listener
    stop: Stop
    saver: Saver
    metrics: Metrics
    profile: Profile
    watchdog: Watchdog
    evaluation: PeriodicEvaluation
    rollback: Rollback | None
    """None unless `train.spikes` is `rollback`."""
    nan_search: NanSearch | None
    forecast: Forecast | None

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """While steps are taken: files are open, and the watchdog watches."""
        with self.metrics, self.profile, self.watchdog, self.saver, contextlib.closing(self.batches):
            yield

    def log_from(self, at: int) -> Log:
        """A log of the steps after `at`."""
        return Log(self.config, self.metrics, self.listener, self.forecast, at=at)


def prepare(
    config: RunConfig,
    folder: Folder,
    step: TrainStep,
    saver: Saver,
    listener: Listener,
    stop: Stop,
    options: Options,
) -> Prepared:
    """Opens the data, restores or makes the state, and writes the folder's files."""
    tokenizer, training, held_out, template = _open_data(config, folder, saver, listener)
    beside = beside_batches(config, *config.runs_on, folder.path, is_begun=bool(saver.checkpoints.steps))
    feed = Feed(config.sized_model, *config.runs_on, seed=config.seed, dims=dims_of(training), beside=beside)
    evaluator = None if held_out is None else evaluator_of(config, feed, held_out, tokenizer)
    forecast = Forecast(config, listener) if options.plan else None
    if forecast is not None:
        listener.say(str(forecast))
    state = saver.restore(step)
    at, steps, is_writer = saver.at, config.train.steps, jax.process_index() == 0
    if is_writer:
        with folder.reporting_errors():
            folder.write(tokenizer, template)
    with folder.reporting_errors():
        keep_reference(beside, folder.path)
    profile = Profile(folder.path, options.profile, at=at, steps=steps, say=listener.say)
    if at:
        listener.say(f"goes on from step {at}")
    if at and isinstance(training, OwnStream) and not training.is_exact:
        fact = f"`{training.name}` has no state, so other rows come than if it had not been stopped"
        listener.say(f"THE DATA BEGIN ANEW: {fact}")

    def forgets(row: Row) -> bool:
        """Whether a row was written only because the run stopped there."""
        return "loss" in row and row["step"] == at and not is_due(at, config.train.log_every)

    sinks = Trackers(config.metrics, folder.path, config.to_dict(), listener.say) if is_writer else None
    metrics = Metrics(folder.path, from_step=at, is_writer=is_writer, say=listener.say, forgets=forgets, more=sinks)
    watchdog = Watchdog(folder.path, config.train.watchdog_minutes, process=jax.process_index())
    return Prepared(
        config=config,
        step=step,
        state=state,
        batches=feed.batches(training),
        listener=listener,
        stop=stop,
        saver=saver,
        metrics=metrics,
        profile=profile,
        watchdog=watchdog,
        evaluation=PeriodicEvaluation(config, folder.path, evaluator, metrics, listener, watchdog, stop),
        rollback=Rollback(saver, step, metrics, listener) if config.train.spikes == "rollback" else None,
        nan_search=NanSearch(config, feed, training, listener) if options.find_nan else None,
        forecast=forecast,
    )


def _open_data(config: RunConfig, folder: Folder, saver: Saver, listener: Listener) -> RunData:
    """The data of the run, with a word where it will not be evaluated by any."""
    if not config.is_data_said:
        fix = '`data = "FOLDER"` in the file, or `--set data=FOLDER`; `data = "python"` if that is meant'
        listener.say(f"THE RUN'S FILE NAMES NO DATA: it learns from Python's standard library. fix: {fix}")
    with _first_alone():
        opened = open_data(config, folder.path, listener.progress)
        if jax.process_index() == 0:
            folder.check_data(opened.tokenizer)
    if opened.held_out is None and config.eval.metrics:
        fix = "say `held_out` or `evaluation` in `data`, or leave `eval.metrics` out"
        raise ConfigError("`eval.metrics` asks for scores, and no data are held out for them", fix=fix)
    if opened.held_out is None and config.eval.every:
        fact = f"`eval.every` is {config.eval.every}, and it learns from all of its data: there is no evaluation"
        fix = "before it begins, `held_out = 0.05` or `evaluation = FILE` in `data`; or `eval.every = 0`"
        if broadcast_int(len(saver.checkpoints.steps)):
            fix = "judge it by a file it has not seen: `--changed --set data.evaluation=FILE`; or `eval.every = 0`"
        listener.say(f"NOTHING IS HELD OUT: {fact}. fix: {fix}")
    return opened


@contextlib.contextmanager
def _first_alone() -> Iterator[None]:
    """The first process goes through alone, then the others: they find what it made."""
    if jax.process_index() > 0:
        wait_for_all("data")
    yield
    if jax.process_index() == 0:
        wait_for_all("data")
