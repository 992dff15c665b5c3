"""Evaluation of a policy by held-out preferences: means over all pairs, once."""

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

from .. import data
from ..spmd import spmd
from .config import RunConfig
from .feeding import Feed
from .preferences import dpo_loss
from .step import read_scalar


class PreferenceEvaluator:
    """Evaluates policies by pairs of answers against the reference in the feed."""

    def __init__(self, config: RunConfig, feed: Feed, dataset: data.Dataset):
        self.config, self.feed, self.dataset = config, feed, dataset
        self._run = spmd(self._metrics, mesh=feed.mesh, layout=feed.layout)

    @property
    def batches(self) -> int:
        """How many batches it takes."""
        whole = math.ceil(self.feed.batches(self.dataset).steps_per_epoch)
        return whole if self.config.eval.batches is None else min(whole, self.config.eval.batches)

    def __call__(self, model: Any, *, between: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The loss and its metrics; what `between` batches raises leaves it."""
        began, sums, pairs = time.perf_counter(), dict[str, float](), 0.0
        rows = itertools.islice(self.feed.batches(self.dataset).evaluation(), self.config.eval.batches)
        with data.prefetched(rows, self.feed.place) as batches:
            for batch in batches:
                between()
                metrics = {name: read_scalar(value) for name, value in self._run(model, batch).items()}
                count = metrics.pop("pairs")
                sums = {name: sums.get(name, 0.0) + count * value for name, value in metrics.items()}
                pairs += count
        means = {name: value / max(pairs, 1.0) for name, value in sums.items()}
        return {**means, "pairs": pairs, "seconds": time.perf_counter() - began}

    def _metrics(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
        loss, metrics = dpo_loss(model, batch, None, beta=self.config.train.beta)
        return {"loss": loss, **metrics}
