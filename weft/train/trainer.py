"""A run from its configuration to its last step: data, steps, evaluations, checkpoints, and what is told on the way.

Imports all rooms of training. Everything a run depends on is its configuration and the step: it can be stopped at any
moment and goes on from its last checkpoint as if it had not been.
"""

import json
import math
import os
import signal
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import data, models
from ..errors import WeftError
from ..layout import Layout, as_layout
from ..mesh import Mesh, as_mesh
from ..spmd import get, put, spmd
from ..tensor import tensor
from .config import ConfigError, RunConfig, differences
from .states import StateError, States
from .step import make_step, model_of, prepared, told_of

CONFIG, CHECKPOINTS, METRICS, CACHE = "config.toml", "checkpoints", "metrics.jsonl", "cache"
ONE = ("all=1", "batch:all")  # where a run without a mesh runs


class TrainingError(WeftError):
    """A run that cannot go on."""


@dataclass
class Listener:
    """What hears of a run; each does nothing unless it is replaced."""

    said: Callable[[str], None] = lambda text: None
    logged: Callable[[dict[str, Any]], None] = lambda row: None
    progress: Callable[[str, int, int], None] = lambda what, done, whole: None


@dataclass
class Trainer:
    """A run in a folder."""

    config: RunConfig
    folder: Path
    listener: Listener = field(default_factory=Listener)
    is_stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        mesh, layout = (self.config.mesh, self.config.layout) if self.config.mesh else ONE
        self.mesh: Mesh = as_mesh(mesh)
        self.layout: Layout = as_layout(layout)
        self.model = model_of(self.config)
        self.states = States(self.folder / CHECKPOINTS, self.config.checkpoint.keep, self.config.checkpoint.best)

    # The parts of a run.

    def opened_data(self) -> tuple[Any, Any, Any]:
        """The tokenizer, what is learned from, and what is judged with."""
        cache = self.folder / CACHE
        source = data.open_source(self.config.data)
        tokenizer = data.open_tokenizer(self.config.tokenizer, source, cache)
        make = data.pair_dataset if source.is_pairs else data.lm_dataset
        sets = [
            make(
                source,
                tokenizer,
                length=self.config.length,
                pack=self.config.train.pack,
                part=part,
                cache=cache,
                progress=self.listener.progress,
            )
            for part in ("train", "evaluation")
        ]
        data.check_vocab_of(sets[0], self.model.vocab)
        return tokenizer, *sets

    def first_state(self, step: Any) -> Any:
        """The state before the first step."""
        key = jax.random.key(self.config.seed)
        model = models.init(self.model, key, self.mesh, self.layout)
        return step.init(prepared(model, self.config))

    def resumed(self, state: Any) -> tuple[Any, int]:
        """The state of the last whole checkpoint and its step; a broken one is named and passed over."""
        for number in reversed(self.states.steps):
            try:
                like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
                return self.states.load(like, number), number
            except StateError as error:
                self.listener.said(f"{error.fact}; the one before it is taken")
        return state, 0

    # The run.

    def run(self) -> dict[str, Any]:
        """Trains to the last step, or until it is stopped; tells what the last step told."""
        self._check_folder()
        steps = self.config.train.steps
        _, learned, judged = self.opened_data()
        step = make_step(self.config, self.mesh, self.layout)
        state, at = self.resumed(self.first_state(step))
        if at >= steps:
            self.listener.said(f"{self.folder} is finished: step {at} of {steps}")
            return {"step": at}
        if at:
            self.listener.said(f"goes on from step {at}")
        batches = self._batches(learned)
        batches.seek(at)
        with data.prefetched(iter(batches), self._placed) as placed, _Signals(self.is_stopped), self._metrics() as note:
            return self._steps(step, state, at, placed, judged, note)

    def _steps(self, step: Any, state: Any, at: int, placed: Any, judged: Any, note: Any) -> dict[str, Any]:
        config, steps = self.config, self.config.train.steps
        key = jax.random.fold_in(jax.random.key(config.seed), 2)
        since, counted, row = time.perf_counter(), 0, {}
        best: float | None = None
        while at < steps and not self.is_stopped.is_set():
            state, told = step(state, next(placed), jax.random.fold_in(key, at))
            at, counted = at + 1, counted + 1
            is_last = at == steps or self.is_stopped.is_set()
            if at % config.train.log_every == 0 or is_last or counted == 1:
                row = self._row(at, told, state, counted, time.perf_counter() - since)
                since, counted = time.perf_counter(), 0
                note(row)
                self._check_finite(row)
            if config.eval.every and (at % config.eval.every == 0 or at == steps):
                found = self.evaluated(state.params, judged)
                best = found["loss"]
                note({"step": at, "eval": found})
                since, counted = time.perf_counter(), 0
            if config.checkpoint.every and (at % config.checkpoint.every == 0 or is_last):
                self._saved(at, state, best)
        self.states.close()
        return row

    def _row(self, at: int, told: Any, state: Any, counted: int, seconds: float) -> dict[str, Any]:
        found = {name: float(value) for name, value in get(told).items() if np.ndim(value) == 0}
        more = {name: float(value) for name, value in get(told_of(state)).items()}
        tokens = self.config.batch * self.config.length * counted / seconds
        return {"step": at, **found, **more, "tokens_per_s": tokens, "mfu": self._used(tokens)}

    def _used(self, tokens_per_s: float) -> float | None:
        """The share of the processors' peak that the model's own work is."""
        if self.config.train.peak_flops is None:
            return None
        work = 6 * self.model.param_count
        return tokens_per_s * work / (self.config.train.peak_flops * self.mesh.size)

    def _check_finite(self, row: dict[str, Any]) -> None:
        if row.get("bad_in_a_row", 0) >= self.config.train.bad_steps:
            raise TrainingError(
                f"{row['bad_in_a_row']:.0f} steps in a row were not finite, up to step {row['step']}",
                fix="lower `schedule.rate`, or see which operation it is: `weft train ... --find-nan`",
            )

    # Evaluation.

    def evaluated(self, model: Any, judged: Any) -> dict[str, float]:
        """The loss over every example once, in nats a token, and perplexities."""
        sums = {"nll": 0.0, "tokens": 0.0, "hits": 0.0}
        for number, batch in enumerate(self._batches(judged).evaluation()):
            if self.config.eval.batches is not None and number >= self.config.eval.batches:
                break
            told = get(self._judge()(model, self._placed(batch)))
            tokens = float(told["tokens"])
            sums["tokens"] += tokens
            sums["nll"] += float(told["nll"]) * tokens
            sums["hits"] += float(told["accuracy"]) * tokens
        loss = sums["nll"] / max(sums["tokens"], 1.0)
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "accuracy": sums["hits"] / max(sums["tokens"], 1.0),
            "tokens": sums["tokens"],
        }

    def _judge(self) -> Callable[..., Any]:
        if not hasattr(self, "_judging"):
            self._judging = spmd(lambda m, batch: m.loss_and_metrics(batch)[1], mesh=self.mesh, layout=self.layout)
        return self._judging

    # Data.

    def _batches(self, dataset: Any) -> Any:
        return data.Batches(
            dataset,
            batch=self.config.batch,
            seed=self.config.seed,
            process=jax.process_index(),
            processes=jax.process_count(),
        )

    def _placed(self, batch: dict[str, np.ndarray]) -> Any:
        named = {name: tensor(array, "batch length" if array.ndim == 2 else "batch") for name, array in batch.items()}
        return put(named, mesh=self.mesh, layout=self.layout)

    # The folder.

    def _check_folder(self) -> None:
        """The folder as it was left by the same configuration, or new."""
        path, now = self.folder / CONFIG, self.config.to_dict()
        self.folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            before = tomllib.loads(path.read_text(encoding="utf-8"))
            changed = [line for line in differences(before, now) if not line.startswith(("train.steps:", "name:"))]
            if changed:
                raise ConfigError(
                    f"{self.folder} was begun with another configuration: {'; '.join(changed)}",
                    fix="name another folder with --run, or say --changed to go on so",
                )
        path.write_text(self.config.to_toml(), encoding="utf-8")

    def _saved(self, at: int, state: Any, loss: float | None) -> None:
        try:
            self.states.save(at, state, {"step": at, "config": self.config.to_dict(), "eval_loss": loss})
        except OSError as error:
            if self.config.checkpoint.stop_if_full:
                raise TrainingError(
                    f"step {at} could not be saved: {error}", fix="make room, and start again"
                ) from error
            self.listener.said(
                f"STEP {at} COULD NOT BE SAVED: {error}. The last good checkpoint is kept; training goes on."
            )

    def _metrics(self) -> "_Notes":
        return _Notes(self.folder / METRICS, self.listener)


class _Notes:
    """Rows of metrics, one JSON object a line, on disk as soon as they are told."""

    def __init__(self, path: Path, listener: Listener):
        self.path, self.listener = path, listener

    def __enter__(self) -> "_Notes":
        self.file = self.path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __call__(self, row: dict[str, Any]) -> None:
        if jax.process_index() == 0:
            self.file.write(json.dumps(row) + os.linesep)
            self.file.flush()
        self.listener.logged(row)


class _Signals:
    """While it holds, SIGTERM and SIGINT stop a run after the step it is in."""

    def __init__(self, stop: threading.Event):
        self.stop, self.before = stop, {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, lambda *_: self.stop.set())

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
