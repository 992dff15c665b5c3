"""`weft train`: a run from its TOML file; the same command goes on with it."""

import os
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import jax
import typer

from ..errors import WeftError
from ..train import elastic
from ..train.checkpoints import CHECKPOINTS, checkpoints_of
from ..train.config import CONFIG, read
from ..train.foresight import choose_layout
from ..train.interface import NOTHING_LOST, before_a_step
from ..train.processes import LAUNCHED
from ..train.runs import RunError
from ..train.trainer import Options, Outcome, Trainer
from .model import TRUST
from .progress import Reporter
from .terminal import allow_code, reported, write

EXAMPLES = """Examples:

\b
  weft train configs/tiny.toml
  weft train configs/tiny.toml --run runs/second --set train.steps=1000 --set seed=1
"""
NOT_SAVED = NOT_FINITE = 1  # the exit codes of a run whose last steps are not on disk, and of one that ends in NaN


def train(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The run's TOML file, or a run's folder, to go on.")],
    run: Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder; runs/NAME if not said.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the file, like train.steps=1000.")
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Go on with a run whose configuration was another.")
    ] = False,
    find_nan: Annotated[
        bool, typer.Option("--find-nan", help="Stop at the first step that is not finite, and name the operation.")
    ] = False,
    profile: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Profile these steps, like 10:20, into the run's folder.")
    ] = None,
    trust: TRUST = False,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the first of several processes listens.")
    ] = None,
    processes_: Annotated[
        int | None, typer.Option("--processes", min=1, metavar="N", help="How many processes there are.")
    ] = None,
    process: Annotated[int | None, typer.Option(min=0, metavar="P", help="Which of them this is, from 0 on.")] = None,
) -> None:
    """Train by a TOML file; the same command goes on with a run that was stopped."""
    with reported(lost=NOTHING_LOST) as stop:
        if (config / CONFIG).is_file():  # a run's folder: with its own file, in it
            config, run = config / CONFIG, run or config
        command = command_of(config, run, changes or [])
        asked = Options(changed=changed, find_nan=find_nan, profile=_profiled_steps(profile))
        options = replace(asked, plan=True, is_own=True, command=command)
        settings = read(config, changes or [], trust=allow_code(trust))
        joined = elastic.join(settings, coordinator, processes_, process)
        if not joined.used:
            return write("idle: no layout divides over all processes")
        folder = check_folder(run) if run is not None else Path("runs") / settings.name
        last = max(checkpoints_of(folder, settings.checkpoint).steps, default=0)
        stop.at, stop.lost = before_a_step(last, settings.train.steps, command)
        began = time.perf_counter()
        with Reporter(is_writer=jax.process_index() == 0) as reporter:
            settings = choose_layout(settings, folder, reporter, started=joined.started)
            trainer = Trainer(settings, folder, reporter, options)
            stop.check()  # a search for a layout ends with the best so far
            model = trainer.model
            reporter.say(f"{folder}: {model.name}, {model.param_count:,} parameters")
            rows = f"{model.batch}" if settings.own_data is not None else f"{model.batch} x {settings.length}"
            reporter.say(f"mesh {trainer.mesh}   layout {trainer.layout}   batch {rows}")
            outcome = trainer.run()
            reporter.say(_word_ending(outcome, folder, began, command))
    if status := _status(outcome):
        raise typer.Exit(status)


def _status(outcome: Outcome) -> int:
    if not outcome.is_begun:
        return 128 + signal.Signals[outcome.reason]
    return NOT_SAVED if not outcome.is_saved else NOT_FINITE if outcome.not_finite else 0


def check_folder(run: Path) -> Path:
    """The folder of a run, which is no folder where other things stand."""
    if run == Path() or run.name == CHECKPOINTS:
        raise RunError(
            f"--run names {'the current folder' if run == Path() else f'the checkpoints of {run.parent}'}",
            fix="name a folder of the run's own, e.g. --run runs/first",
        )
    return run


def command_of(config: Path, run: Path | None, changes: list[str]) -> str:
    """The command that goes on with a run, by `weft launch` if that started it."""
    words = ["train", str(config), *(["--run", str(run)] if run else [])]
    words += [word for change in changes for word in ("--set", change)]
    return f"{os.environ.get(LAUNCHED) or 'weft'} {shlex.join(words)}"


def _word_ending(outcome: Outcome, folder: Path, began: float, command: str) -> str:
    reached = f"step {outcome.step} of {outcome.steps}"
    if not outcome.is_begun:
        at, lost = before_a_step(outcome.step, outcome.steps, command)
        return f"stopped by {outcome.reason} at {at}: {lost}"
    kept = "there is no checkpoint" if outcome.kept is None else f"the last good checkpoint is step {outcome.kept}"
    if not outcome.is_finished:
        saved = "saved" if outcome.is_saved else f"NOT saved ({kept})"
        return f"stopped by {outcome.reason} at {reached}, {saved}; goes on with:\n  {command}"
    if not outcome.is_saved:
        return f"{folder} ended NOT SAVED: {reached}; {kept}; goes on from there with:\n  {command}"
    if outcome.not_finite:
        fix = "lower `schedule.rate` or `train.loss_scale`, or see which operation it is: --find-nan"
        return f"{folder} ended NOT FINITE at {reached}: {outcome.not_finite}. fix: {fix}"
    if outcome.was_finished:
        return f"{folder} is finished: {reached}"
    return f"done: {reached} in {time.perf_counter() - began:.0f} s, in {folder}"


def _profiled_steps(option: str | None) -> tuple[int, int] | None:
    if option is None:
        return None
    first, _, last = option.partition(":")
    if not first.isdigit() or not last.isdigit() or int(first) >= int(last):
        raise WeftError(f"`--profile {option}` names no steps", fix="write it like `--profile 10:20`")
    return int(first), int(last)
