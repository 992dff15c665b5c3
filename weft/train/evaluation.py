"""Evaluation: loss, perplexities and BLEU over every held-out example once.

Imports the data, the models, the configuration and decoding. sacreBLEU is loaded where scores of it are asked for.
"""

import functools
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import data
from ..data.errors import import_library
from ..data.streams import OwnStream
from ..decode.translate import Translator
from ..errors import WeftError
from ..models import EncoderConfig
from ..models.encoder import mask_tokens
from ..spmd import spmd
from ..spmd.step import TrainState
from .config import ConfigError, RunConfig
from .feeding import Feed
from .interface import Listener
from .metrics import Metrics
from .own.evaluation import OwnEvaluator
from .own.model import OwnModel
from .preference_evaluation import PreferenceEvaluator
from .step import evaluated_model, read_scalar
from .stopping import Stop
from .watchdog import Watchdog


class EvaluationError(WeftError):
    """Data by which a model cannot be evaluated."""


class Evaluator:
    """Evaluates models by a dataset."""

    def __init__(
        self, config: RunConfig, feed: Feed, dataset: data.Dataset | OwnStream, tokenizer: data.Tokenizer | None
    ):
        self.config, self.feed, self.dataset, self.tokenizer = config, feed, dataset, tokenizer
        self._run = spmd(self._metrics, mesh=feed.mesh, layout=feed.layout)
        self._scores = TranslationScores(config, dataset, tokenizer) if config.eval.metrics else None

    @property
    def batches(self) -> int:
        """How many batches it takes."""
        whole = math.ceil(self.feed.batches(self.dataset, self.feed.rows).steps_per_epoch)
        return whole if self.config.eval.batches is None else min(whole, self.config.eval.batches)

    def __call__(self, model: Any, *, between: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The loss in nats a token, and scores; what `between` batches raises leaves it."""
        began = time.perf_counter()
        nll, hits, tokens = self._sums(model, between)
        loss = nll / max(tokens, 1.0)
        metrics = {"loss": loss, "perplexity": _exp(loss), "accuracy": hits / max(tokens, 1.0), "tokens": tokens}
        words, size = self._words_and_bytes
        if words:
            metrics["word_perplexity"] = _exp(nll / words)
        if size:
            metrics["byte_perplexity"] = _exp(nll / size)
            metrics["bits_per_byte"] = nll / size / math.log(2)
        scores = {} if self._scores is None else self._scores(model, between)
        return {**metrics, **scores, "seconds": time.perf_counter() - began}

    def _sums(self, model: Any, between: Callable[[], None]) -> list[float]:
        """Of nats, hits and tokens; a batch is read when the next one is under way."""
        sums, before = np.zeros(3), None
        with data.prefetched(self._batches(self.feed.rows), self.feed.place) as batches:
            for number, batch in enumerate(batches):
                between()
                metrics = self._run(model, batch, np.int32(number))
                sums += _sums_of_batch(before)
                before = metrics
        return (sums + _sums_of_batch(before)).tolist()

    def _metrics(self, model: Any, batch: dict[str, Any], number: Any) -> dict[str, Any]:
        """The model's metrics of a batch; an encoder's words are masked as always."""
        if "tokens" in batch and isinstance(model.config, EncoderConfig):
            key = jax.random.fold_in(jax.random.key(self.config.seed), number)
            hidden = mask_tokens(batch["tokens"], key, model.config)
            hidden["weights"] = hidden["weights"] * batch["weights"]
            batch = {**{name: x for name, x in batch.items() if name != "tokens"}, **hidden}
        return model.loss_and_metrics(batch)[1]

    def _batches(self, rows: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        return itertools.islice(self.feed.batches(self.dataset, rows).evaluation(), self.config.eval.batches)

    @functools.cached_property
    def _words_and_bytes(self) -> tuple[int, int]:
        """How many words and bytes the examples are; 0 of an encoder's."""
        if self.tokenizer is None or isinstance(self.feed.model, EncoderConfig):  # it does not predict all words
            return 0, 0
        every_row = np.arange(self.feed.model.batch)
        ids = [
            batch["targets" if "targets" in batch else "tokens"][batch["weights"] > 0]
            for batch in self._batches(every_row)
        ]
        return count_words_and_bytes(np.concatenate(ids), self.tokenizer)


AnyEvaluator = Evaluator | OwnEvaluator | PreferenceEvaluator


def evaluator_of(
    config: RunConfig, feed: Feed, dataset: data.Dataset | OwnStream, tokenizer: data.Tokenizer | None
) -> AnyEvaluator:
    """What evaluates the models of a run by a dataset."""
    if config.is_dpo:
        assert not isinstance(dataset, OwnStream)  # `open_data` refuses it
        return PreferenceEvaluator(config, feed, dataset)
    if not isinstance(config.model, OwnModel):
        return Evaluator(config, feed, dataset, tokenizer)
    if config.eval.metrics:
        fact = f"`eval.metrics` names {config.eval.metrics[0]!r}, and the model is your own"
        fix = "leave it out, and give metrics beside the loss: `return loss, {'accuracy': accuracy}`"
        raise ConfigError(fact, fix=fix, at=config.place("eval.metrics", "eval"))
    return OwnEvaluator(config, config.model, feed, dataset)


def count_words_and_bytes(ids: np.ndarray, tokenizer: data.Tokenizer) -> tuple[int, int]:
    """How many words and bytes some ids are; a document's end is one of each."""
    ends = np.flatnonzero(ids == tokenizer.end) if tokenizer.end is not None else np.array([], int)
    words, size = len(ends), len(ends)
    for part in np.split(ids, ends + 1):
        text = tokenizer.decode_bytes(part[part != tokenizer.end] if tokenizer.end is not None else part)
        words, size = words + len(text.split()), size + len(text)
    return words, size


def _sums_of_batch(metrics: dict[str, Any] | None) -> np.ndarray:
    """Nats, hits and tokens of one batch; zeros of none."""
    if metrics is None:
        return np.zeros(3)
    nll, hits, tokens = (read_scalar(metrics[name]) for name in ("nll", "accuracy", "tokens"))
    return np.array([nll * tokens, hits * tokens, tokens])


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))


class EvaluationStopped(Exception):
    """An evaluation that is left, as a stop is wanted."""


class PeriodicEvaluation:
    """Evaluates a run every `eval.every` steps and at its end, where it can."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        evaluator: AnyEvaluator | None,
        metrics: Metrics,
        listener: Listener,
        watchdog: Watchdog,
        stop: Stop,
    ):
        self._evaluate, self._folder, self._metrics = evaluator, folder, metrics
        self._every, self._last = config.eval.every, config.train.steps
        self._listener, self._watchdog, self._stop = listener, watchdog, stop

    def is_due(self, at: int) -> bool:
        """Whether the state after so many steps is evaluated."""
        return self._evaluate is not None and self._every > 0 and (at % self._every == 0 or at == self._last)

    def __call__(self, state: TrainState, at: int) -> float | None:
        """The loss over what is held out; None where a stop is wanted before it is known."""
        assert self._evaluate is not None
        try:
            with self._listener.stage(f"evaluating step {at}"), self._watchdog.paused():
                metrics = self._evaluate(evaluated_model(state), between=self._leave_if_stopped)
        except EvaluationStopped:
            command = f"weft eval {self._folder} --step {at}"
            self._listener.say(f"the evaluation of step {at} is left out, as the run is to stop; made by: {command}")
            return None
        row = {"step": at, "eval": metrics}
        self._metrics(row)
        self._listener.log(row)
        return metrics["loss"]

    def _leave_if_stopped(self) -> None:
        if self._stop.is_wanted():
            raise EvaluationStopped


class TranslationScores:
    """BLEU and chrF of translations of the held-out pairs."""

    def __init__(self, config: RunConfig, dataset: data.Dataset | OwnStream, tokenizer: data.Tokenizer | None):
        self.config, self.options = config, config.eval
        if not isinstance(dataset, data.PackedPairs | data.BucketedPairs) or tokenizer is None:
            name = config.eval.metrics[0]
            raise ConfigError(
                f"`eval.metrics` names {name!r}, which is of translations, and the data are no pairs",
                fix="leave `eval.metrics` out, or give pairs of texts",
            )
        if "mixture" in config.data and "evaluation" not in config.data:
            fact = f"`eval.metrics` names {config.eval.metrics[0]!r}, and the data are a mixture"
            raise ConfigError(fact, fix="name the pairs to judge by: `evaluation = FILE` in `data`")
        self.tokenizer: data.Tokenizer = tokenizer
        self.count: int = len(dataset.pairs)
        import_library("sacrebleu", "a score of translations")

    def __call__(self, model: Any, between: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Each score from 0 to 100, and its signature."""
        pairs, options = self._pairs, self.options
        how: dict[str, Any] = {"beams": options.beams, "alpha": options.alpha, "penalty": options.penalty}
        how |= {"repetition_penalty": options.repetition_penalty, "no_repeat_ngram": options.no_repeat_ngram}
        translator = Translator(model, self.tokenizer, **how, between=between)
        translations = translator([source for source, _ in pairs])
        return score(translations, [target for _, target in pairs], options.metrics, options.bleu_tokenize)

    @functools.cached_property
    def _pairs(self) -> list[tuple[str, str]]:
        """The held-out pairs, the last of their source; as many as the batches have rows."""
        source = data.open_source(self.config.data)
        pairs = (source.held_apart or source).pairs()
        kept = list(deque((pair for pair in pairs if pair[0].strip() and pair[1].strip()), self.count))
        batches = self.options.batches
        return kept if batches is None else kept[: batches * self.config.batch]


def score(
    translations: Sequence[str], references: Sequence[str], metrics: Sequence[str], tokenize: str = "13a"
) -> dict[str, Any]:
    """The scores of translations by sacreBLEU, each with its signature.

    A signature says how texts were parted and compared: only scores with the same one are comparable.
    """
    sacrebleu = import_library("sacrebleu", "a score of translations").metrics
    scores: dict[str, Any] = {}
    for name in metrics:
        metric = sacrebleu.BLEU(tokenize=tokenize, force=True) if name == "bleu" else sacrebleu.CHRF()
        scores[name] = float(metric.corpus_score(list(translations), [list(references)]).score)
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores
