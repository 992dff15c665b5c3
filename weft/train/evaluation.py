"""How good a model is: its loss over every held-out example once, and perplexities by token, word and byte.

Imports the data, the models and the configuration.
"""

import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from .. import data
from ..spmd import spmd
from .config import RunConfig
from .feeding import Feed


class Judge:
    """Judges models by a dataset."""

    def __init__(self, config: RunConfig, feed: Feed, dataset: data.Dataset, tokenizer: data.Tokenizer | None):
        self.config, self.feed, self.dataset, self.tokenizer = config, feed, dataset, tokenizer
        self._run = spmd(lambda model, batch: model.loss_and_metrics(batch)[1], mesh=feed.mesh, layout=feed.layout)
        self._amounts: dict[str, int] | None = None

    def __call__(self, model: Any) -> dict[str, float]:
        """The loss in nats a token, and what follows from it."""
        began = time.perf_counter()
        told = [self._run(model, self.feed.placed(batch)) for batch in self._batches(self.feed.rows)]
        sums = np.zeros(3)
        for each in told:
            nll, hits, tokens = (number(each[name]) for name in ("nll", "accuracy", "tokens"))
            sums += nll * tokens, hits * tokens, tokens
        nll, hits, tokens = sums.tolist()
        loss = nll / max(tokens, 1.0)
        found = {"loss": loss, "perplexity": _exp(loss), "accuracy": hits / max(tokens, 1.0), "tokens": tokens}
        amounts = self._counted()
        if amounts.get("words"):
            found["word_perplexity"] = _exp(nll / amounts["words"])
        if amounts.get("bytes"):
            found["byte_perplexity"] = _exp(nll / amounts["bytes"])
            found["bits_per_byte"] = nll / amounts["bytes"] / math.log(2)
        return found | {"seconds": time.perf_counter() - began}

    def _batches(self, rows: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        batches = data.Batches(self.dataset, batch=self.feed.model.batch, seed=self.config.seed, rows=rows)
        for turn, batch in enumerate(batches.evaluation()):
            if self.config.eval.batches is not None and turn >= self.config.eval.batches:
                return
            yield batch

    def _counted(self) -> dict[str, int]:
        """The words and bytes that the examples are."""
        if self._amounts is None:
            every_row = np.arange(self.feed.model.batch)
            targets = "targets" if self.tokenizer is not None else None
            ids = [
                batch.get(targets, batch.get("tokens"))[batch["weights"] > 0]
                for batch in self._batches(every_row)
                if targets is not None
            ]
            self._amounts = amounts(np.concatenate(ids), self.tokenizer) if ids and self.tokenizer else {}
        return self._amounts


def amounts(ids: np.ndarray, tokenizer: data.Tokenizer) -> dict[str, int]:
    """How many words and bytes some ids are; the end of a document is a word, as it must be predicted too."""
    ends = np.flatnonzero(ids == tokenizer.end) if tokenizer.end is not None else np.array([], int)
    words, size = len(ends), len(ends)
    for part in np.split(ids, ends + 1):
        told = tokenizer.decode_bytes(part[part != tokenizer.end] if tokenizer.end is not None else part)
        words, size = words + len(told.split()), size + len(told)
    return {"words": words, "bytes": size}


def number(x: Any) -> float:
    """A scalar that is the same everywhere, read from this process's own copy."""
    array = getattr(x, "_array", x)
    return float(np.asarray(array.addressable_data(0) if isinstance(array, jax.Array) else array))


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))
