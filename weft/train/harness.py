"""A model judged by tasks: log-likelihoods of choices, numbers people compare.

Imports the data, the models and decoding. Requests of like length go through the model together, in few shapes; what is
found of one depends on it alone. The numbers are those of lm-evaluation-harness: `acc` takes the choice with the
largest log-likelihood, `acc_norm` that with the largest by letter; beside them by byte and by token.
"""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import ops as wf
from ..data import Tokenizer
from ..data.resumable import ResumableLines
from ..decode.continuation import START
from ..decode.prompts import round_up, round_up_batch, ways_of
from ..decode.sampling import log_probability
from ..decode.translate import padded_size
from ..layout import Layout
from ..mesh import Mesh
from ..models import LMConfig
from ..spmd import spmd
from ..spmd.place import get
from ..tensor import Tensor
from .evaluation import EvaluationError
from .feeding import Feed
from .tasks import Question, Request, encode

AT_ONCE = 64  # tasks whose requests are sorted by length together
MOST_TOKENS = 1 << 14  # in a batch, unless said


@dataclass(frozen=True)
class Scored:
    """What a model has of a request."""

    log_likelihood: float
    is_greedy: bool
    """Whether each of its tokens is the likeliest."""
    tokens: int


def need_language_model(config: Any) -> LMConfig:
    """The configuration of a model that can be asked what follows a text."""
    if isinstance(config, LMConfig) and not config.prefix:
        return config
    what = "a prefix language model" if isinstance(config, LMConfig) else "no language model"
    raise EvaluationError(f"`{config.name}` is {what}, and tasks ask what follows", fix="leave --harness out")


class Scorer:
    """Gives log-likelihoods of requests by a language model on its mesh."""

    def __init__(self, model: Any, config: LMConfig, mesh: Mesh, layout: Layout, batch: int | None = None):
        self._model, self._config, self._mesh, self._layout = model, config, mesh, layout
        self._run = spmd(_score, mesh=mesh, layout=layout)
        self._longest = config.max_positions
        self._rows = batch
        self.cut = 0
        """How many requests were longer than the model's sequences, and lost their begin."""

    def __call__(self, requests: Sequence[Request]) -> list[Scored]:
        """What the model has of each."""
        by_length: dict[int, list[int]] = defaultdict(list)
        rows = [self._cut(request) for request in requests]
        for place in sorted(range(len(rows)), key=lambda place: len(rows[place])):
            by_length[self._pad_length(len(rows[place]) - 1)].append(place)
        scored: dict[int, Scored] = {}
        waiting: list[tuple[list[int], Any]] = []
        for length, places in by_length.items():
            size = round_up_batch(self._rows or max(MOST_TOKENS // length, 1), self._mesh, self._layout)
            for begin in range(0, len(places), size):
                some = places[begin : begin + size]
                waiting.append((some, self._batch([(rows[i], len(requests[i].asked)) for i in some], size, length)))
        for some, results in waiting:
            for i, gain, is_greedy in zip(some, *map(np.asarray, get(results)), strict=False):
                scored[i] = Scored(float(gain), bool(is_greedy), len(requests[i].asked))
        return [scored[i] for i in range(len(requests))]

    def _cut(self, request: Request) -> list[int]:
        """Its ids, the last ones where there are too many."""
        ids = [*request.before, *request.asked]
        self.cut += len(ids) > self._longest + 1
        if len(request.asked) > self._longest:
            fact = f"a choice has {len(request.asked)} tokens, and the model's sequences {self._longest}"
            raise EvaluationError(fact, fix="leave the task out, or use a model with longer sequences")
        return ids[-(self._longest + 1) :]

    def _pad_length(self, length: int) -> int:
        """The length of rows for so many ids; one for all where experts have room by it."""
        config = self._config
        if config.experts and config.gating != "dropless":
            length = self._longest
        ways = math.lcm(*(ways_of(self._layout, self._mesh, name) for name in ("length", "stream")))
        return round_up(padded_size(length, self._longest), ways)

    def _batch(self, rows: Sequence[tuple[list[int], int]], size: int, length: int) -> Any:
        """What the model has of rows of ids, of whose last so many each is asked."""
        inputs = np.zeros((size, length), np.int32)
        targets, weights = np.zeros_like(inputs), np.zeros((size, length), np.float32)
        for row, (ids, asked) in enumerate(rows):
            end = len(ids) - 1
            inputs[row, :end], targets[row, :end] = ids[:-1], ids[1:]
            weights[row, end - asked : end] = 1
        feed = Feed(dataclasses.replace(self._config, batch=size), self._mesh, self._layout, seed=0)
        arrays = {"inputs": inputs, "targets": targets, "weights": weights}
        return self._run(self._model, feed.place({name: x[feed.rows] for name, x in arrays.items()}))


def _score(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The log-probability of what counts, and whether all of it is the likeliest."""
    logits = model.logits(batch["inputs"])
    gain = wf.where(batch["weights"] > 0, log_probability(logits, batch["targets"]), 0.0)
    is_likeliest = wf.argmax(logits, over="vocab") == batch["targets"]
    return wf.sum(gain, over="length"), wf.all(is_likeliest | (batch["weights"] == 0), over="length")


@dataclass(frozen=True)
class Harness:
    """Tasks with what stands before each, as a tokenizer reads them."""

    tasks: Sequence[Question]
    prefixes: Sequence[str]
    tokenizer: Tokenizer
    begin: int | None
    """The id that comes first, such as a model's BOS; none unless said."""
    is_trained_here: bool
    """Whether the model learned from a 0 before each text, as it does here."""

    def run(self, scorer: Scorer, out: Path | None, step: int, told: Callable[[int], None]) -> list[list[Scored]]:
        """What the model has of the choices of each task; a file `out` is gone on with."""
        found: list[list[Scored]] = []
        if out is None:
            for some in self._score(scorer, 0):
                found += some
                told(len(found))
            return found
        keys = [task.key(prefix, self.begin, step) for task, prefix in zip(self.tasks, self.prefixes, strict=True)]
        with ResumableLines(out, lambda i, line: i < len(keys) and _key_of(line) == keys[i], "the tasks") as file:
            found = [[Scored(*each) for each in json.loads(line)["scored"]] for line in file.done]
            told(len(found))
            for some in self._score(scorer, len(found)):
                rows = enumerate(some, len(found))
                file.add([json.dumps(_line(self.tasks[i], keys[i], scored)) for i, scored in rows])
                found += some
                told(len(found))
        return found

    def _score(self, scorer: Scorer, first: int) -> Iterator[list[list[Scored]]]:
        end = self.tokenizer.end
        ending = START if self.is_trained_here or end is None else end
        for begin in range(first, len(self.tasks), AT_ONCE):
            pairs = zip(self.prefixes[begin : begin + AT_ONCE], self.tasks[begin : begin + AT_ONCE], strict=True)
            requests = [encode(self.tokenizer, prefix, task, self.begin, ending) for prefix, task in pairs]
            scored = iter(scorer([request for each in requests for request in each]))
            yield [[next(scored) for _ in each] for each in requests]


def _line(task: Question, key: str, scored: Sequence[Scored]) -> dict[str, Any]:
    best = int(np.argmax([each.log_likelihood for each in scored]))
    is_right = scored[0].is_greedy if task.is_cloze else best == task.answer
    return {
        "task": task.name,
        "key": key,
        "is_right": is_right,
        "scored": [dataclasses.astuple(each) for each in scored],
    }


def _key_of(line: bytes) -> Any:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found.get("key") if isinstance(found, dict) and "scored" in found else None


def summarise(tasks: Sequence[Question], scored: Sequence[Sequence[Scored]]) -> dict[str, dict[str, float]]:
    """The numbers of each kind of task, with the standard errors of shares."""
    by_name: dict[str, list[int]] = defaultdict(list)
    for place, task in enumerate(tasks):
        by_name[f"{task.name} (cloze)" if task.is_cloze and _is_mixed(tasks, task.name) else task.name].append(place)
    found = {}
    for name, places in by_name.items():
        summary = _summarise_cloze if tasks[places[0]].is_cloze else _summarise_choices
        found[name] = summary([tasks[i] for i in places], [scored[i] for i in places])
    return found


def _is_mixed(tasks: Sequence[Question], name: str) -> bool:
    return len({task.is_cloze for task in tasks if task.name == name}) > 1


def _summarise_choices(tasks: Sequence[Question], scored: Sequence[Sequence[Scored]]) -> dict[str, float]:
    by: dict[str, list[bool]] = defaultdict(list)
    for task, choices in zip(tasks, scored, strict=True):
        gains = np.array([each.log_likelihood for each in choices])
        sizes = {
            "acc": [1] * len(choices),
            "acc_norm": list(map(len, task.choices)),
            "acc_bytes": [len(choice.encode()) for choice in task.choices],
            "acc_tokens": [each.tokens for each in choices],
        }
        for name, each in sizes.items():
            by[name].append(int(np.argmax(gains / np.array(each, float))) == task.answer)
    return _with_errors(by)


def _summarise_cloze(tasks: Sequence[Question], scored: Sequence[Sequence[Scored]]) -> dict[str, float]:
    gains = [choices[0].log_likelihood for choices in scored]
    tokens = sum(choices[0].tokens for choices in scored)
    shares = _with_errors({"acc": [choices[0].is_greedy for choices in scored]})
    by_token = math.exp(min(-sum(gains) / tokens, 700.0))
    return {**shares, "perplexity": math.exp(min(-float(np.mean(gains)), 700.0)), "token_perplexity": by_token}


def _with_errors(by: dict[str, list[bool]]) -> dict[str, float]:
    """The count, and of each kind the share that is right with its standard error."""
    count = len(next(iter(by.values())))
    found: dict[str, float] = {"count": count}
    for name, right in by.items():
        found[name] = float(np.mean(right))
        found[f"{name}_stderr"] = float(np.std(right, ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return found
