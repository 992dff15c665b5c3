"""A run from its configuration to its last step: data, steps, evaluations, checkpoints, and what is told on the way.

Imports all rooms of training. What a run learns follows from its configuration and the step alone: it can be stopped at
any moment and goes on from its last checkpoint as if it had not been.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from .. import data
from ..errors import WeftError
from ..models import Seq2SeqConfig
from ..spmd.step import TrainState
from ..spmd.together import agreed, wait_for_all
from .checkpoints import CheckpointError, Checkpoints, OtherModelError
from .config import ConfigError, RunConfig
from .evaluation import Judge, number
from .feeding import Feed
from .folder import Folder
from .foresight import Forecast, with_layout
from .metrics import Metrics
from .processes import Stop
from .profiling import Profile
from .runs import CACHE, CHECKPOINTS, Lock
from .speed import flops_per_token, peak_flops
from .start import first_weights
from .step import arrays_of, judged_model, make_step, refilled, shapes_of_model, told_of
from .watchdog import Watchdog


class TrainingError(WeftError):
    """A run that cannot go on."""


class Listener(Protocol):
    """What hears of a run."""

    def said(self, text: str) -> None: ...

    def logged(self, row: dict[str, Any]) -> None: ...

    def progress(self, what: str, done: int, whole: int) -> None: ...

    def stage(self, what: str) -> contextlib.AbstractContextManager[Any]: ...

    def step(self, at: int, steps: int) -> None: ...


class Unheard:
    """A listener that tells nobody; the base of one that tells of some things only."""

    def said(self, text: str) -> None: ...

    def logged(self, row: dict[str, Any]) -> None: ...

    def progress(self, what: str, done: int, whole: int) -> None: ...

    def stage(self, what: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def step(self, at: int, steps: int) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """How a run ended: at which step, of how many, and why if that was not the last."""

    step: int
    steps: int
    reason: str = ""
    is_saved: bool = True
    was_finished: bool = False
    """Whether there was nothing left to do."""

    @property
    def is_finished(self) -> bool:
        return self.step >= self.steps


@dataclass(frozen=True)
class Options:
    """What a person asks of one start of a run, beside its configuration."""

    changed: bool = False
    """Whether it may go on with a configuration that learns otherwise."""
    find_nan: bool = False
    profile: tuple[int, int] | None = None
    """The steps that are profiled: from the first up to the second."""
    plan: bool = False
    """Whether it shows at the start what it will take, and says where that was far off."""


OPTIONS = Options()


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
        own = config.checkpoint
        self.checkpoints = Checkpoints(self.folder / CHECKPOINTS, keep=own.keep, best=own.best)

    def run(self) -> Outcome:
        """Trains to the last step, or until it is asked to stop."""
        first = self.mesh.jax_mesh().devices.flat[0]  # raises where there are too few processors
        if first.platform == "cpu" and self.mesh.size > 1 and jax.config.values.get("jax_compilation_cache_dir"):
            # Read back from there, a program's collectives are no longer in one order on all virtual processors.
            jax.config.update("jax_enable_compilation_cache", False)
            self.listener.said("JAX's compilation cache is left out: virtual processors may wait for ever with it")
        with self._opened_folder(), Stop() as stop:
            if (at := agreed(self._last_unbroken(self.checkpoints.steps, quiet=True))) >= self.config.train.steps:
                return Outcome(at, self.config.train.steps, was_finished=True)
            tokenizer, learned, held_out = self._opened_data()
            self.learned = learned
            if held_out is None and self.config.eval.metrics:
                fix = "say `held_out` or `evaluation` in `data`, or leave `eval.metrics` out"
                raise ConfigError("`eval.metrics` asks for scores, and no data are held out for them", fix=fix)
            self.feed = Feed(self.model, self.mesh, self.layout, seed=self.config.seed)
            self.judge = None if held_out is None else Judge(self.config, self.feed, held_out, tokenizer)
            self.step = make_step(self.config, self.mesh, self.layout)
            if self.options.plan:
                self.forecast = Forecast(self.config, self.listener)
                self.listener.said(str(self.forecast))
            state, at = self._first_or_last_state()
            if jax.process_index() == 0:
                with self.opened.written():
                    self.opened.write(tokenizer)
            steps = self.config.train.steps
            self.profile = Profile(self.folder, self.options.profile, at=at, steps=steps, said=self.listener.said)
            if at:
                self.listener.said(f"goes on from step {at}")
            batches = self.feed.batches(learned)
            batches.seek(at)
            is_writer = jax.process_index() == 0
            metrics = Metrics(self.folder, from_step=at, is_writer=is_writer, said=self.listener.said)
            minutes = self.config.train.watchdog_minutes
            self.watchdog = Watchdog(self.folder, minutes, process=jax.process_index())
            with data.prefetched(batches, self.feed.placed) as placed, metrics as note, self.profile, self.watchdog:
                try:
                    return self._steps(state, at, placed, note, stop)
                finally:
                    batches.close()
                    with contextlib.suppress(CheckpointError):  # said where it was to be saved
                        self.checkpoints.close()

    # The steps.

    def _steps(self, state: TrainState, at: int, placed: Iterator[Any], note: Metrics, stop: Stop) -> Outcome:
        config, steps, first = self.config, self.config.train.steps, at
        log = _Log(self, note, at)
        is_stopped, is_saved = jax.process_count() == 1 and stop.reason is not None, True
        while at < steps and not is_stopped:
            with (
                self.profile.step(at),
                self.listener.stage("compiling the step") if at == first else contextlib.nullcontext(),
            ):
                state, told = self.step(state, next(placed), np.int32(at))
                if at == first:
                    jax.block_until_ready(told)
            at += 1
            self.watchdog.see(at)
            self.listener.step(at, steps)
            is_stopped = stop.is_wanted(at)
            is_last = at == steps or is_stopped
            log.write()
            if self.checkpoints.has_failed:
                self._said_if_not_saved(self.checkpoints.wait, is_last)
            if at % config.train.log_every == 0 or is_last or at == first + 1:
                log.hold(at, told, state)
            elif at % config.train.bad_steps == 0:
                log.watch(at, state)
            if self.options.find_nan:
                self._find_nan(state, at, log)
            loss = None
            if self.judge is not None and config.eval.every and (at % config.eval.every == 0 or at == steps):
                log.write()
                with log.paused(state):
                    loss = self._judged(state, at, note)
            if is_last or (config.checkpoint.every and at % config.checkpoint.every == 0):
                log.write()
                with log.paused(state):
                    is_saved = self._saved(at, state, loss, is_last)
        log.write()
        is_saved = self._closed() and is_saved
        return Outcome(at, steps, (stop.reason or "") if is_stopped else "", is_saved)

    def _judged(self, state: TrainState, at: int, note: Metrics) -> float:
        assert self.judge is not None
        with self.listener.stage(f"evaluating step {at}"), self.watchdog.paused():
            found = self.judge(judged_model(state))
        row = {"step": at, "eval": found}
        note(row)
        self.listener.logged(row)
        return found["loss"]

    def _find_nan(self, state: TrainState, at: int, log: "_Log") -> None:
        """Where a step was not finite, says which operation was the first."""
        if not number(told_of(state)["bad_in_a_row"]):
            return
        from .nonfinite import first_bad_operation

        with contextlib.suppress(TrainingError):  # that too many steps were not finite is no news
            log.write()
        with self.listener.stage(f"doing step {at} again on one processor"):
            found = first_bad_operation(self.config, state.params, self.feed, self.learned, at - 1)
        raise TrainingError(f"step {at} is not finite: {found}", fix="mend that operation, or lower `schedule.rate`")

    # Checkpoints.

    def _saved(self, at: int, state: TrainState, loss: float | None, is_last: bool) -> bool:
        if not is_last and number(told_of(state)["bad_in_a_row"]):
            return True  # nothing has changed, and one from before it all went wrong would have to go
        told = {"config": self.config.to_dict(), "loss": loss}
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

    def _first_or_last_state(self) -> tuple[TrainState, int]:
        """The state of the last whole checkpoint and its step; a broken one is named and passed over."""
        if jax.process_index() == 0:
            self.checkpoints.remove_torn()
        steps = every = self.checkpoints.steps if jax.process_index() == 0 else []
        tried = False
        while True:
            at = agreed(self._last_unbroken(steps))
            if at < 0:
                break
            try:
                shapes = self.step.shapes(shapes_of_model(self.config, self.mesh, self.layout))
                with self.listener.stage(f"reading the checkpoint of step {at}"):
                    found = refilled(shapes, self.checkpoints.load(at, arrays_of(shapes)))
                for broken in [number for number in every if number > at]:
                    self.checkpoints.set_aside(broken)
                return found, at
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
        with self.listener.stage("making the first weights"):
            return self.step.init(first_weights(self.config, self.mesh, self.layout)), 0

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

    def _opened_data(self) -> tuple[Any, Any, Any]:
        """The tokenizer, what is learned from, and what is held out to judge by; None for what there is not."""
        with _first_alone():
            found = open_data(self.config, self.folder, self.listener.progress)
            if jax.process_index() == 0:
                self.opened.check_data(found[0])
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
                    self.opened.check_config()
            wait_for_all("folder")
            yield


def open_data(config: RunConfig, folder: Path, progress: data.Progress) -> tuple[Any, Any, Any]:
    """The tokenizer of a run, what it learns from, and what is held out; None for what there is not."""
    cache = folder / CACHE
    with _in_file(config, "data"):
        source = data.open_source(config.data)
    is_pair_model = isinstance(config.model, Seq2SeqConfig)
    if is_pair_model != source.is_pairs:
        needs, has = ("pairs of texts", "texts") if is_pair_model else ("texts", "pairs of texts")
        raise ConfigError(
            f"`{config.model.name}` learns from {needs}, and {source.files[0]} holds {has}",
            fix="choose a model of the other kind, or other data (`data.format` says how they are read)",
        )
    with _in_file(config, "tokenizer"):
        is_text = source.format != "tokens"
        tokenizer = data.open_tokenizer(config.tokenizer, source, cache, progress) if is_text else None
    how: dict[str, Any] = {"length": config.length, "pack": config.train.pack, "cache": cache, "progress": progress}
    make: Any = data.pair_dataset if source.is_pairs else data.lm_dataset
    how |= {"buckets": config.train.buckets or None} if source.is_pairs else {"across": config.train.across}
    is_held_out = bool(source.held_out) or source.held_apart is not None
    with _in_file(config, "data"):
        learned = make(source, tokenizer, part="train", **how)
        held_out = make(source, tokenizer, part="evaluation", **how) if is_held_out else None
    with _in_file(config, "model"):
        data.check_vocab_of(learned, config.model.vocab)
    return tokenizer, learned, held_out


@contextlib.contextmanager
def _in_file(config: RunConfig, table: str) -> Iterator[None]:
    """Says of what is wrong with data where in the run's file they are named."""
    try:
        yield
    except data.DataError as error:
        fact = f"in `{table}`: {error.fact}"
        raise data.DataError(fact, state=error.given_state, fix=error.fix, at=config.place(table)) from error


@contextlib.contextmanager
def _first_alone() -> Iterator[None]:
    """The first process goes through alone, then the others: they find what it made."""
    if jax.process_index() > 0:
        wait_for_all("data")
    yield
    if jax.process_index() == 0:
        wait_for_all("data")


class _Log:
    """Rows of metrics, read one step later than they are made: the step after is under way by then."""

    def __init__(self, trainer: Trainer, note: Metrics, at: int):
        self.trainer, self.note = trainer, note
        self.since, self.from_step, self.rows = time.perf_counter(), at, 0
        self.held: tuple[int, dict[str, Any]] | None = None
        self.watched: tuple[int, Any] | None = None
        self.work = flops_per_token(trainer.model)
        own = trainer.config.train.peak_flops
        peak = own if own is not None else peak_flops(trainer.mesh.jax_mesh().devices.flat[0])
        self.peak = None if peak is None else peak * trainer.mesh.size

    def hold(self, at: int, told: dict[str, Any], state: TrainState) -> None:
        """Takes what a step told; the state is overwritten by the next one, so what it tells is copied."""
        self.held = (at, {**told, **jax.tree.map(jax.numpy.copy, told_of(state))})

    def watch(self, at: int, state: TrainState) -> None:
        """Takes from a step that has no row how many in a row were not finite."""
        self.watched = (at, jax.numpy.copy(told_of(state)["bad_in_a_row"]))

    def write(self) -> None:
        """Writes the row that is held, when its step is done; raises where too many steps were not finite."""
        if self.watched is not None:
            (at, in_a_row), self.watched = self.watched, None
            self._check(at, number(in_a_row))
        if self.held is None:
            return
        (at, told), self.held = self.held, None
        config = self.trainer.config
        row: dict[str, Any] = {
            name: number(value) for name, value in told.items() if np.ndim(getattr(value, "_array", value)) == 0
        }
        row["loss"] /= config.train.loss_scale or 1.0
        now = time.perf_counter()
        tokens = config.batch * config.length * (at - self.from_step) / (now - self.since)
        if self.trainer.forecast is not None and self.rows > 1 and at > self.from_step:
            self.trainer.forecast.compare((now - self.since) / (at - self.from_step))
        self.since, self.from_step, self.rows = now, at, self.rows + 1
        used = None if self.peak is None else tokens * self.work / self.peak
        row = {"step": at, **row, "tokens_per_s": tokens, "mfu": used}
        self.note(row)
        self.trainer.listener.logged(row)
        self._check(at, row["bad_in_a_row"])

    def _check(self, at: int, in_a_row: float) -> None:
        if in_a_row >= self.trainer.config.train.bad_steps:
            raise TrainingError(
                f"{in_a_row:.0f} steps in a row were not finite, up to step {at}",
                fix="lower `schedule.rate`, or see which operation it is: `weft train ... --find-nan`",
            )

    @contextlib.contextmanager
    def paused(self, state: TrainState) -> Iterator[None]:
        """What is done inside is no step: its time does not count, once the steps before it are done."""
        jax.block_until_ready(state.step)
        began = time.perf_counter()
        yield
        self.since += time.perf_counter() - began
