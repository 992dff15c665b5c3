"""`weft eval --harness`: a model judged by tasks of a file, in a table."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..layout import Layout
from ..mesh import Mesh
from ..text import columns
from ..train import Run
from ..train.config import RunConfig
from ..train.evaluation import EvaluationError
from ..train.harness import Harness, Scorer, need_language_model, summarise
from ..train.tasks import prefixes, read_tasks
from .progress import Reporter, stderr_console
from .trained import say

Tasks = Annotated[
    Path | None, Option("--harness", metavar="FILE", help="Multiple-choice and cloze tasks, an object a line.")
]
Examples = Annotated[
    Path | None, Option(metavar="FILE", help="Where the few-shot examples are; the tasks' own file if not said.")
]
Shots = Annotated[int, Option(min=0, metavar="N", help="So many examples stand before each task.")]
BeginId = Annotated[int | None, Option("--begin", metavar="ID", help="An id before each task, such as a BOS.")]
Out = Annotated[
    Path | None, Option(metavar="FILE", help="Where each task's result goes; with what is there, it goes on.")
]


@dataclass(frozen=True)
class Judging:
    """What the options of `weft eval --harness` say."""

    path: Path | None
    examples: Path | None
    shots: int
    begin: int | None
    out: Path | None

    def check(self, others: dict[str, Any]) -> None:
        """Raises where options do not go together."""
        said = {"--examples": self.examples, "--shots": self.shots, "--begin": self.begin, "--out": self.out}
        if self.path is None:
            if name := next((name for name, value in said.items() if value not in (None, 0)), None):
                raise EvaluationError(f"{name} was given, and no --harness", fix="say `--harness FILE` too")
        elif name := next((name for name, value in others.items() if value), None):
            raise EvaluationError(f"--harness and {name} were given", fix="leave one of them out")

    def run(self, run: Run, step: int, average: int, on: Mesh, under: Layout, batch: int | None) -> dict[str, Any]:
        """The numbers of each task of the file."""
        assert self.path is not None
        began = time.perf_counter()
        tasks = read_tasks(self.path)
        examples = tasks if self.examples is None else read_tasks(self.examples)
        settings, tokenizer = run.settings, run.tokenizer
        config = need_language_model(settings.sized_model)
        if self.begin is not None and not 0 <= self.begin < config.vocab:
            fact = f"--begin is {self.begin}, and the vocab has {config.vocab}"
            raise EvaluationError(fact, fix=f"give an id below {config.vocab}")
        harness = Harness(tasks, prefixes(tasks, examples, self.shots), tokenizer, self.begin, _is_trained(settings))
        scorer = Scorer(run.load(on, under, step, average=average), config, on, under, batch)
        with Reporter(stderr_console()) as reporter:
            scored = harness.run(
                scorer, self.out, step, lambda done: reporter.progress("judging tasks", done, len(tasks))
            )
        if scorer.cut:
            say(f"warning: {scorer.cut:,} requests are longer than the model's sequences, and lost their begin")
        found = summarise(tasks, scored)
        return {"shots": self.shots, "tasks": found, "seconds": time.perf_counter() - began}


def _is_trained(settings: RunConfig) -> bool:
    """Whether the model learned here, from a 0 before each text."""
    return settings.is_data_said


def table(result: dict[str, Any]) -> str:
    """The numbers of all tasks, a line each."""
    rows = [("task", "count", "metric", "value", "± error")]
    for name, numbers in result["tasks"].items():
        metrics = [key for key in numbers if key != "count" and not key.endswith("_stderr")]
        for place, key in enumerate(metrics):
            error = numbers.get(f"{key}_stderr", math.nan)
            first = (name, f"{numbers['count']:,}") if not place else ("", "")
            rows.append((*first, key, f"{numbers[key]:.4f}", "" if math.isnan(error) else f"{error:.4f}"))
    return "\n".join(columns(rows, right=(1, 3, 4)))
