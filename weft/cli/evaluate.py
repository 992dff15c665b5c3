"""`weft eval`: evaluation of a checkpoint by data it has not learned from."""

import dataclasses
import json as json_format
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import data as texts
from ..data.tokenizers import NAMES
from ..decode.prompts import round_up_batch
from ..layout import Region, as_layout
from ..mesh import as_mesh
from ..text import columns
from ..train import Run
from ..train.config import CONFIG, ONE, RunConfig, read
from ..train.datasets import open_data
from ..train.evaluation import EvaluationError, Evaluator
from ..train.feeding import Feed
from ..train.folder import learned_files
from .progress import Reporter, stderr_console
from .terminal import reported, write
from .trained import Average, Best, Folder, Json, Layout, Mesh, Step, checkpoint_of, has_tokenizer, place_for, say

EXAMPLES = """Examples:

\b
  weft eval runs/tiny
  weft eval runs/tiny --best --json
  weft eval runs/tiny --data other.txt --set eval.batches=100
"""
_ELSEWHERE = ("held_out", "evaluation", "range")  # what the run's data say of their own files only


def evaluate(
    run: Folder,
    step: Step = None,
    best: Best = False,
    average: Average = 1,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Other data, all of which is judged by; two files where they are pairs."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the run, like eval.batches=100.")
    ] = None,
    mesh: Mesh = None,
    layout: Layout = None,
    json: Json = False,
) -> None:
    """Evaluate a checkpoint of a run on its held-out data, or on other data."""
    with reported(layout=layout):
        opened = Run(run)
        trained = settings = opened.settings  # raises where there is no run
        if changes:
            settings = read(run / CONFIG, changes)
            _check_unseen(trained, settings, run)
        at = checkpoint_of(opened, step, best)
        place = place_for(settings, mesh, layout)
        on, under = (as_mesh(ONE[0]), as_layout(ONE[1])) if place[0] is None else place
        settings, tokenizer, dataset = _open_judged(settings, opened, data)
        Region(on, under)  # raises where the layout is none of the mesh
        sized = dataclasses.replace(settings.sized_model, batch=round_up_batch(settings.batch, on, under))
        feed = Feed(sized, on, under, seed=settings.seed)
        evaluate = Evaluator(settings, feed, dataset, tokenizer)
        result = {"run": str(run), "step": at, **evaluate(opened.load(on, under, at, average=average))}
    write(json_format.dumps(_without_nan(result)) if json else result_text(result))


def _check_unseen(trained: RunConfig, changed: RunConfig, run: Path) -> None:
    """Raises where more of a run's data is to be held out than was in training."""
    if not _is_of_same_data(trained, changed):
        return
    before, now = (texts.open_source(config.data).held_out for config in (trained, changed))
    is_within = type(before) is type(now) and now <= before
    if now and not is_within:
        what = f"and {before} was held out of them" if before else "from all of them"
        raise EvaluationError(
            f"`data.held_out` is {now}: {run} has learned from these data, {what}",
            fix=f"judge by data that it has not seen: `weft eval {run} --data FILE`",
            at="--set data.held_out",
        )


def _open_judged(
    settings: RunConfig, run: Run, paths: list[str] | None
) -> tuple[RunConfig, texts.Tokenizer | None, texts.Dataset]:
    """How the data are read, the tokenizer of the run, and the data."""
    if not paths and not settings.is_data_said:
        fact = f"the run {run.folder} names no data to judge it by"
        raise EvaluationError(fact, fix=f"give some: `weft eval {run.folder} --data FILE`")
    if has_tokenizer(run):  # the very one that it learned with, also where its data have changed
        named = {key: value for key, value in settings.tokenizer.items() if key in ("end", "pad")}
        settings = dataclasses.replace(settings, tokenizer={"path": str(run.folder), **named})
    if paths:
        kept = {key: value for key, value in settings.data.items() if key not in _ELSEWHERE}
        path = paths[0] if len(paths) == 1 else list(paths)
        settings = dataclasses.replace(settings, data={**kept, "path": path, "held_out": 0})
    source = texts.open_source(settings.data)
    if source.format != "tokens" and not has_tokenizer(run) and not settings.is_tokenizer_said:
        raise EvaluationError(
            f"the run {run.folder} has no tokenizer, and {source.files[0]} is text",
            state=f"looked for {', '.join(f'`{name}`' for name in NAMES)}",
            fix=f"put the model's own into {run.folder}, or name it: `--set tokenizer.path=FOLDER`",
        )
    with Reporter(stderr_console()) as reporter:
        tokenizer, learned, held_out = open_data(settings, run.folder, reporter.progress)
    is_other = bool(paths) or not _is_of_same_data(run.settings, settings)
    if is_other and (seen := learned_files(run.folder, source.held_apart or source)):
        say(f"warning: {run.folder} has learned from {', '.join(seen)}: this is no loss on unseen data")
    if paths:
        return settings, tokenizer, learned
    if held_out is None:
        raise _nothing_held_out(run)
    return settings, tokenizer, held_out


def _is_of_same_data(trained: RunConfig, changed: RunConfig) -> bool:
    """Whether two runs name the same data, of which they may hold out more or less."""
    return {**changed.data, "held_out": 0} == {**trained.data, "held_out": 0}


def _nothing_held_out(run: Run) -> EvaluationError:
    other = f"judge by data that it has not seen: `weft eval {run.folder} --data FILE`"
    source = texts.open_source(run.settings.data)
    if source.held_out or source.held_apart is not None:
        return EvaluationError(
            f"nothing is held out of the data of {run.folder} so", fix=f"leave --set out, or {other}"
        )
    fact = f"nothing was held out of the data of {run.folder}: it has learned from all of them"
    return EvaluationError(fact, fix=other)


def _without_nan(result: Mapping[str, Any]) -> dict[str, Any]:
    """The same with null in place of numbers that JSON has not."""
    return {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in result.items()}


_LINES = {
    "step": "{:,}",
    "loss": "{:.4f} nats a token",
    "perplexity": "{:.6g} by token",
    "word_perplexity": "{:.6g} by word",
    "byte_perplexity": "{:.6g} by byte",
    "bits_per_byte": "{:.3f}",
    "accuracy": "{:.2%} of tokens",
    "tokens": "{:,.0f}",
    "bleu": "{:.2f}",
    "bleu_signature": "{}",
    "chrf": "{:.2f}",
    "chrf_signature": "{}",
    "seconds": "{:.1f}",
}


def result_text(result: Mapping[str, Any]) -> str:
    """The numbers of an evaluation, a line each."""
    rows = [(name.replace("_", " "), form.format(result[name])) for name, form in _LINES.items() if name in result]
    return "\n".join(columns(rows))
