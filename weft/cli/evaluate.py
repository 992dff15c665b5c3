"""`weft eval`: evaluation of a checkpoint by data it has not learned from."""

import dataclasses
import itertools
import json as json_format
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import data as texts
from ..data.streams import OwnStream
from ..data.tokenizers import LOOKED_FOR
from ..decode.prompts import round_up_batch
from ..layout import Region, as_layout
from ..mesh import as_mesh
from ..text import columns
from ..train import Run
from ..train.config import CONFIG, ONE, RunConfig, read
from ..train.datasets import dims_of, open_data
from ..train.evaluation import AnyEvaluator, EvaluationError, evaluator_of
from ..train.feeding import Feed
from ..train.folder import learned_files
from ..train.own.data import OwnData
from ..train.reference import beside_batches
from ..train.sliding import size_of_windows, slide
from .harness import BeginId, Examples, Judging, Out, Shots, Tasks, table
from .model import TRUST
from .progress import Reporter, stderr_console
from .terminal import allow_code, reported, write
from .trained import Average, Best, Folder, Json, Layout, Mesh, Step, checkpoint_of, has_tokenizer, place_for, say

EXAMPLES = """Examples:

\b
  weft eval runs/tiny
  weft eval runs/tiny --best --json
  weft eval runs/tiny --data other.txt --set eval.batches=100
  weft eval runs/tiny --data enwik8 --range 95_000_000:100_000_000 --window 1024 --stride 512
  weft eval runs/tiny --harness tasks.jsonl --shots 5 --out results.jsonl
"""
_Judged = tuple[RunConfig, texts.Tokenizer | None, texts.Dataset | OwnStream]
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
    part: Annotated[
        str | None, typer.Option("--range", metavar="FROM:TO", help="Which bytes of the file that --data names.")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(metavar="N", help="Slide a window of N tokens over the text; every token but the first counts."),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(metavar="N", help="How many tokens a window begins after the last; N/2 if not said.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many rows are judged at once.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the run, like eval.batches=100.")
    ] = None,
    harness: Tasks = None,
    examples: Examples = None,
    shots: Shots = 0,
    begin: BeginId = None,
    out: Out = None,
    mesh: Mesh = None,
    layout: Layout = None,
    trust: TRUST = False,
    json: Json = False,
) -> None:
    """Evaluate a checkpoint of a run on held-out or other data, or by tasks."""
    with reported(layout=layout):
        opened = Run(run, allow_code(trust))
        trained = settings = opened.settings  # raises where there is no run
        if changes:
            settings = read(run / CONFIG, changes, trust=allow_code(trust))
            _check_unseen(trained, settings, run)
        at = checkpoint_of(opened, step, best)
        place = place_for(settings, mesh, layout)
        on, under = (as_mesh(ONE[0]), as_layout(ONE[1])) if place[0] is None else place
        Region(on, under)  # raises where the layout is none of the mesh
        judging = Judging(harness, examples, shots, begin, out)
        judging.check({"--data": data, "--range": part, "--window": window, "--stride": stride, "--set": changes})
        result: dict[str, Any] = {"run": str(run), "step": at}
        if harness is not None:
            result |= judging.run(opened, at, average, on, under, batch)
        else:
            if window is None and stride is not None:
                fact = "--stride was given, and no --window that it moves"
                raise EvaluationError(fact, fix="say `--window 1024` too")
            sliding = None if window is None else slide(settings, window, stride, on, under)
            judged = _open_judged(settings, opened, _data_of(data, part), sliding)
            model = opened.load(on, under, at, average=average)
            result |= _judge(opened, model, judged, sliding, batch, on, under)
    text = table(result) if harness is not None else result_text(result)
    write(json_format.dumps(_without_nan(result)) if json else text)


def _judge(
    run: Run, model: Any, judged: _Judged, sliding: texts.Sliding | None, batch: int | None, mesh: Any, layout: Any
) -> dict[str, Any]:
    """What is found of a model by data."""
    settings, tokenizer, dataset = judged
    sized = dataclasses.replace(settings.sized_model, batch=round_up_batch(batch or settings.batch, mesh, layout))
    if sliding is not None:
        sized = size_of_windows(settings, sliding, batch, mesh, layout)
    beside = beside_batches(settings, mesh, layout, run.folder)
    feed = Feed(sized, mesh, layout, seed=settings.seed, dims=dims_of(dataset), beside=beside)
    evaluator = evaluator_of(settings, feed, dataset, tokenizer)
    with Reporter(stderr_console()) as reporter:
        found = evaluator(model, between=_make_teller(reporter, evaluator))
    return {**({} if sliding is None else {"window": sliding.window, "stride": sliding.stride}), **found}


def _check_unseen(trained: RunConfig, changed: RunConfig, run: Path) -> None:
    """Raises where more of a run's data is to be held out than was in training."""
    if not _is_of_same_data(trained, changed) or changed.own_data is not None:
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


def _open_judged(settings: RunConfig, run: Run, elsewhere: Mapping[str, Any], sliding: texts.Sliding | None) -> _Judged:
    """How the data are read, the tokenizer of the run, and the data."""
    if settings.own_data is not None:
        return _open_own(settings, settings.own_data, run, elsewhere)
    if not elsewhere and not settings.is_data_said:
        fact = f"the run {run.folder} names no data to judge it by"
        raise EvaluationError(fact, fix=f"give some: `weft eval {run.folder} --data FILE`")
    if has_tokenizer(run):  # the very one that it learned with, also where its data have changed
        named = {key: value for key, value in settings.tokenizer.items() if key in ("end", "pad")}
        settings = dataclasses.replace(settings, tokenizer={"path": str(run.folder), **named})
    if elsewhere:
        kept = {key: value for key, value in settings.data.items() if key not in _ELSEWHERE}
        settings = dataclasses.replace(settings, data={**kept, **elsewhere, "held_out": 0})
    source = texts.open_source(settings.data)
    if source.format != "tokens" and not has_tokenizer(run) and not settings.is_tokenizer_said:
        raise EvaluationError(
            f"the run {run.folder} has no tokenizer, and {source.files[0]} is text",
            state=LOOKED_FOR,
            fix=f"put the model's own into {run.folder}, or name it: `--set tokenizer.path=FOLDER`",
        )
    with Reporter(stderr_console()) as reporter:
        tokenizer, learned, held_out, _ = open_data(settings, run.folder, reporter.progress, sliding)
    is_other = bool(elsewhere) or not _is_of_same_data(run.settings, settings)
    is_apart = _are_other_bytes(run.settings, source)
    if is_other and not is_apart and (seen := learned_files(run.folder, source.held_apart or source)):
        say(f"warning: {run.folder} has learned from {', '.join(seen)}: this is no loss on unseen data")
    if elsewhere:
        return settings, tokenizer, learned
    if held_out is None:
        raise _nothing_held_out(run)
    return settings, tokenizer, held_out


def _data_of(paths: list[str] | None, part: str | None) -> dict[str, Any]:
    """The keys of `data` that --data and --range stand for."""
    if part is not None and not paths:
        raise EvaluationError("--range was given, and no --data that it is of", fix="say `--data FILE` too")
    table: dict[str, Any] = {"path": paths[0] if paths and len(paths) == 1 else list(paths)} if paths else {}
    if part is None:
        return table
    ends = [text.strip().replace("_", "") for text in part.split(":")]
    if len(ends) != 2 or not all(end.isdecimal() for end in ends):
        raise EvaluationError(f"--range is {part!r}", fix="say two bytes: `--range 95_000_000:100_000_000`")
    return {**table, "format": "bytes", "range": [int(end) for end in ends]}


def _are_other_bytes(trained: RunConfig, source: texts.Source) -> bool:
    """Whether a range of a file has no byte of the range of it that a run was given."""
    learned, judged = trained.data.get("range"), source.range
    return bool(learned and judged and (judged[0] >= learned[1] or judged[1] <= learned[0]))


def _make_teller(reporter: Reporter, evaluator: AnyEvaluator) -> Callable[[], None]:
    """What tells of each batch of an evaluation as it begins."""
    numbers = itertools.count()

    def tell() -> None:
        if (done := next(numbers)) < evaluator.batches:  # more of them are translations
            reporter.progress("evaluating", done + 1, evaluator.batches)

    return tell


def _open_own(
    settings: RunConfig, own: OwnData, run: Run, elsewhere: Mapping[str, Any]
) -> tuple[RunConfig, None, texts.Dataset | OwnStream]:
    """The part held out of data of one's own."""
    if elsewhere:
        fact = f"the data of {run.folder} come from `{own.call.name}`, and --data names files"
        fix = "give its options instead: `--set data.KEY=VALUE`"
        raise EvaluationError(fact, fix=fix, at="--data")
    if own.held_out is None:
        fix = "return some rows for the part 'evaluation'"
        raise EvaluationError(f"`{own.call.name}` gave None for the part 'evaluation'", fix=fix, at=own.call.at)
    return settings, None, own.held_out


def _is_of_same_data(trained: RunConfig, changed: RunConfig) -> bool:
    """Whether two runs name the same data, of which they may hold out more or less."""
    return {**changed.data, "held_out": 0} == {**trained.data, "held_out": 0}


def _nothing_held_out(run: Run) -> EvaluationError:
    other = f"judge by data that it has not seen: `weft eval {run.folder} --data FILE`"
    source = texts.open_source(run.settings.data)
    if source.has_evaluation:
        return EvaluationError(
            f"nothing is held out of the data of {run.folder} so", fix=f"leave --set out, or {other}"
        )
    fact = f"nothing was held out of the data of {run.folder}: it has learned from all of them"
    return EvaluationError(fact, fix=other)


def _without_nan(result: Any) -> Any:
    """The same with null in place of numbers that JSON has not."""
    if isinstance(result, Mapping):
        return {key: _without_nan(value) for key, value in result.items()}
    return None if isinstance(result, float) and not math.isfinite(result) else result


_LINES = {
    "step": "{:,}",
    "window": "{:,} tokens",
    "stride": "{:,} tokens",
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


_OF_OWN = {"run": "{}", "step": "{:,}", "rows": "{:,}", "seconds": "{:.1f}"}


def result_text(result: Mapping[str, Any]) -> str:
    """The numbers of an evaluation, a line each."""
    lines = _LINES if "tokens" in result else dict.fromkeys(result, "{:.4f}") | _OF_OWN
    rows = [(name.replace("_", " "), form.format(result[name])) for name, form in lines.items() if name in result]
    return "\n".join(columns(rows))
