"""How good a model is: its loss over every held-out example once, perplexities by token, word and byte, and how well it
translates.

Imports the data, the models, the configuration and translations. sacreBLEU is loaded where scores of it are asked for.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .. import data
from ..data.problems import library
from ..decode.translate import Translator
from ..errors import WeftError
from ..models import EncoderConfig
from ..models.encoder import hide
from ..spmd import spmd
from .config import ConfigError, RunConfig
from .feeding import Feed


class EvaluationError(WeftError):
    """Data by which a model cannot be judged."""


class Judge:
    """Judges models by a dataset."""

    def __init__(self, config: RunConfig, feed: Feed, dataset: data.Dataset, tokenizer: data.Tokenizer | None):
        self.config, self.feed, self.dataset, self.tokenizer = config, feed, dataset, tokenizer
        self._run = spmd(self._told, mesh=feed.mesh, layout=feed.layout)
        self._amounts: dict[str, int] | None = None
        self._scores = Scores(config, dataset, tokenizer) if config.eval.metrics else None

    def __call__(self, model: Any, *, between: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The loss in nats a token, and what follows from it; scores of translations, with how they were made.

        `between` is called before every batch; what it raises leaves the evaluation.
        """
        began = time.perf_counter()
        nll, hits, tokens = self._sums(model, between)
        loss = nll / max(tokens, 1.0)
        found = {"loss": loss, "perplexity": _exp(loss), "accuracy": hits / max(tokens, 1.0), "tokens": tokens}
        amounts = self._counted()
        if amounts.get("words"):
            found["word_perplexity"] = _exp(nll / amounts["words"])
        if amounts.get("bytes"):
            found["byte_perplexity"] = _exp(nll / amounts["bytes"])
            found["bits_per_byte"] = nll / amounts["bytes"] / math.log(2)
        scores = {} if self._scores is None else self._scores(model, between)
        return {**found, **scores, "seconds": time.perf_counter() - began}

    def _sums(self, model: Any, between: Callable[[], None]) -> list[float]:
        """Of nats, hits and tokens over all batches; each is read when the next one is under way."""
        sums, before = np.zeros(3), None
        with data.prefetched(self._batches(self.feed.rows), self.feed.placed) as placed:
            for turn, batch in enumerate(placed):
                between()
                told = self._run(model, batch, np.int32(turn))
                sums += _weighed(before)
                before = told
        return (sums + _weighed(before)).tolist()

    def _told(self, model: Any, batch: dict[str, Any], turn: Any) -> dict[str, Any]:
        """What the model tells of a batch; of an encoder's, the same words are hidden every time."""
        if "tokens" in batch and isinstance(model.config, EncoderConfig):
            key = jax.random.fold_in(jax.random.key(self.config.seed), turn)
            hidden = hide(batch["tokens"], key, model.config)
            hidden["weights"] = hidden["weights"] * batch["weights"]
            batch = {**{name: x for name, x in batch.items() if name != "tokens"}, **hidden}
        return model.loss_and_metrics(batch)[1]

    def _batches(self, rows: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        for turn, batch in enumerate(self.feed.batches(self.dataset, rows).evaluation()):
            if self.config.eval.batches is not None and turn >= self.config.eval.batches:
                return
            yield batch

    def _counted(self) -> dict[str, int]:
        """The words and bytes that the examples are; an encoder does not predict all of them."""
        if self._amounts is None:
            self._amounts = {}
            if self.tokenizer is not None and not isinstance(self.feed.model, EncoderConfig):
                every_row = np.arange(self.feed.model.batch)
                ids = [
                    batch["targets" if "targets" in batch else "tokens"][batch["weights"] > 0]
                    for batch in self._batches(every_row)
                ]
                self._amounts = amounts(np.concatenate(ids), self.tokenizer)
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


def _weighed(told: dict[str, Any] | None) -> np.ndarray:
    """The sums of one batch; zeros of none."""
    if told is None:
        return np.zeros(3)
    nll, hits, tokens = (number(told[name]) for name in ("nll", "accuracy", "tokens"))
    return np.array([nll * tokens, hits * tokens, tokens])


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))


# Translations.


class Scores:
    """Translates the held-out texts of pairs, and scores them by the other sides."""

    def __init__(self, config: RunConfig, dataset: data.Dataset, tokenizer: data.Tokenizer | None):
        self.config, self.own = config, config.eval
        if not isinstance(dataset, data.PackedPairs | data.BucketedPairs) or tokenizer is None:
            raise ConfigError(
                f"`eval.metrics` names {self.own.metrics[0]!r}, which is of translations, and the data are no pairs",
                fix="leave `eval.metrics` out, or give pairs of texts",
            )
        self.tokenizer: data.Tokenizer = tokenizer
        self.count: int = len(dataset.pairs)
        self._pairs: list[tuple[str, str]] | None = None
        library("sacrebleu", "a score of translations")

    def __call__(self, model: Any, between: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Each score from 0 to 100, and a text that says how it was made."""
        pairs = self._read()
        sources, wanted = [one for one, _ in pairs], [other for _, other in pairs]
        own = self.own
        found = Translator(model, self.tokenizer, beams=own.beams, alpha=own.alpha, between=between)(sources)
        return scored(found, wanted, self.own.metrics, self.own.bleu_tokenize)

    def _read(self) -> list[tuple[str, str]]:
        """The held-out pairs, the last of their source; of a part of the batches, as many as these have rows."""
        if self._pairs is None:
            source = data.open_source(self.config.data)
            told = (source.held_apart or source).pairs()
            kept = list(deque((pair for pair in told if pair[0].strip() and pair[1].strip()), self.count))
            most = None if self.own.batches is None else self.own.batches * self.config.batch
            self._pairs = kept[:most]
        return self._pairs


def scored(
    found: Sequence[str], wanted: Sequence[str], metrics: Sequence[str], tokenize: str = "13a"
) -> dict[str, Any]:
    """The scores of translations by sacreBLEU, each with its signature.

    A signature says how texts were parted and compared: only scores with the same one are comparable.
    """
    made_by = library("sacrebleu", "a score of translations").metrics
    told: dict[str, Any] = {}
    for name in metrics:
        metric = made_by.BLEU(tokenize=tokenize, force=True) if name == "bleu" else made_by.CHRF()
        told[name] = float(metric.corpus_score(list(found), [list(wanted)]).score)
        told[f"{name}_signature"] = str(metric.get_signature())
    return told
