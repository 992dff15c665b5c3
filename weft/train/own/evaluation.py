"""Evaluation of a model of the user's own: means over every held-out row, once.

Imports the step's parts and the feed. A loss of one's own knows of no padding, so no batch is padded: the last rows are
a smaller batch, and those that do not divide over the processors are computed on all of them alike.
"""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ... import data
from ...data.own import Row
from ...data.streams import OwnStream
from ...layout import Region
from ...spmd.border import SpmdFunction
from ..config import RunConfig
from ..feeding import Feed
from ..step import read_scalar
from .model import OwnModel, weight_of

Take = Callable[[np.ndarray], dict[str, np.ndarray]]
"""What gives some rows of a batch, by their places in it."""


def _take_after(take: Take, first: int, places: np.ndarray) -> dict[str, np.ndarray]:
    return take(places + first)


def _take_of_block(stream: OwnStream, block: Sequence[Row], places: np.ndarray) -> dict[str, np.ndarray]:
    return stream.form.join(block[i] for i in places)


def _take_numbered(
    dataset: data.Dataset, numbers: np.ndarray, bucket: int, places: np.ndarray
) -> dict[str, np.ndarray]:
    return dataset.take(numbers[places], bucket)


class OwnEvaluator:
    """Evaluates models by a dataset: the means of the loss and of its metrics."""

    def __init__(self, config: RunConfig, model: OwnModel, feed: Feed, dataset: data.Dataset | OwnStream):
        self.config, self.model, self.feed, self.dataset = config, model, feed, dataset
        region = Region(feed.mesh, feed.layout)
        self._ways = region.ways(region.axes([feed.model.dim("batch")])[0])
        self._without_rule = feed.layout.drop("batch") if "batch" in feed.layout.rules else feed.layout
        self._runs: dict[int, tuple[Feed, Callable[..., Any]]] = {}

    @property
    def batches(self) -> int:
        """How many batches it takes."""
        whole = math.ceil(self.feed.batches(self.dataset, self.feed.rows).steps_per_epoch)
        return whole if self.config.eval.batches is None else min(whole, self.config.eval.batches)

    def __call__(self, model: Any, *, between: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The loss, metrics and number of rows; what `between` batches raises leaves it."""
        began, sums, total, rows = time.perf_counter(), dict[str, float](), 0.0, 0
        for size, take in self._parts():
            between()
            feed, run = self._run_of(size)
            batch = feed.place(take(feed.rows))
            metrics = {name: read_scalar(value) for name, value in run(model, batch).items()}
            weight = metrics.pop("weight")
            sums = {name: sums.get(name, 0.0) + weight * value for name, value in metrics.items()}
            total, rows = total + weight, rows + size
        means = {name: value / total if total else float("nan") for name, value in sums.items()}
        return {**means, "rows": rows, "seconds": time.perf_counter() - began}

    def _parts(self) -> Iterator[tuple[int, Take]]:
        """How many rows there are in each batch, and what takes some of them.

        A batch is cut where it does not divide over the processors.
        """
        for whole, take in itertools.islice(self._blocks(), self.config.eval.batches):
            even = whole // self._ways * self._ways
            if even:
                yield even, take
            if even < whole:
                yield whole - even, functools.partial(_take_after, take, even)

    def _blocks(self) -> Iterator[tuple[int, Take]]:
        dataset = self.dataset
        if isinstance(dataset, OwnStream):
            for block in dataset.blocks(self.feed.model.batch):
                yield len(block), functools.partial(_take_of_block, dataset, block)
            return
        batches = self.feed.batches(dataset)
        assert isinstance(batches, data.Batches)
        for numbers, bucket in batches.order.once():
            there = numbers[numbers >= 0]
            yield len(there), functools.partial(_take_numbered, dataset, there, bucket)

    def _run_of(self, size: int) -> tuple[Feed, Callable[..., Any]]:
        """What places and evaluates so many rows."""
        if size not in self._runs:
            feed = self.feed
            layout = feed.layout if size % self._ways == 0 else self._without_rule
            sized = Feed(replace(self.model, batch=size), feed.mesh, layout, seed=feed.seed, dims=feed.dims)
            self._runs[size] = sized, SpmdFunction(self._metrics, feed.mesh, layout)
        return self._runs[size]

    def _metrics(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
        loss, metrics = self.model.loss_and_metrics(model, batch, None)
        return {**metrics, "loss": loss, "weight": weight_of(metrics, batch)}
