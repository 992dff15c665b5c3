"""`weft data`: batches of a run as text, with their segments and what counts.

Nothing is trained. What is made of the data is kept in the folder of a run, and of a file alone in none.
"""

import contextlib
import itertools
import json as json_format
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .. import data as texts
from ..data.preferences import SIDES
from ..data.streams import OwnStream, StreamBatches
from ..errors import closest
from ..text import Printed
from ..train import Run
from ..train.config import ConfigError, RunConfig, read
from ..train.datasets import dims_of, open_data
from .model import TRUST
from .progress import Reporter, stderr_console
from .terminal import allow_code, reported, write, write_program
from .trained import has_tokenizer

EXAMPLES = """Examples:

\b
  weft data configs/tiny.toml
  weft data runs/tiny --batches 2 --from 1000
  weft data configs/sft.toml --part evaluation --json
"""
_OPEN, _CLOSE = "⟦", "⟧"  # around what counts, where there is no colour
_PARTS = ("train", "evaluation")


@dataclass(frozen=True)
class Segment:
    """Tokens of a row that see each other, and how much each counts."""

    name: str
    ids: np.ndarray
    weights: np.ndarray


def data(
    run: Annotated[Path, typer.Argument(metavar="RUN|FILE", help="The folder of a run, or a run's TOML file.")],
    batches: Annotated[int, typer.Option(min=1, metavar="N", help="How many batches are shown.")] = 1,
    first: Annotated[int, typer.Option("--from", min=0, metavar="STEP", help="The step of the first of them.")] = 0,
    rows: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many rows of each.")] = None,
    part: Annotated[str, typer.Option(metavar="PART", help="`train` or `evaluation`.")] = "train",
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the file, like train.length=64.")
    ] = None,
    trust: TRUST = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object a row.")] = False,
) -> None:
    """Show the batches that a run learns from, as text, without training it."""
    with reported():
        if part not in _PARTS:
            raise ConfigError(f"there is no part {part!r}", fix=closest(part, _PARTS))
        with _opened(run, changes or [], allow_code(trust)) as (settings, folder):
            with Reporter(stderr_console()) as reporter:
                opened = open_data(settings, folder, reporter.progress)
            dataset = opened.training if part == "train" else opened.held_out
            if dataset is None:
                raise ConfigError("nothing is held out: there is no batch to show", fix="say `--part train`")
            source = _batches(dataset, settings)
            shown = source.evaluation() if part == "evaluation" else map(source.at, itertools.count(first))
            begin = first if part == "evaluation" else 0  # the other begins there
            for number, batch in enumerate(itertools.islice(shown, begin, begin + batches), first):
                _show(number, batch, opened.tokenizer, rows, json, dims_of(dataset))


def _batches(dataset: Any, settings: RunConfig) -> texts.Batches | StreamBatches:
    if isinstance(dataset, OwnStream):
        return StreamBatches(dataset, batch=settings.batch, rows=np.arange(settings.batch))
    return texts.Batches(dataset, batch=settings.batch, seed=settings.seed)


@contextlib.contextmanager
def _opened(run: Path, changes: list[str], trust: Any) -> Iterator[tuple[RunConfig, Path]]:
    """The configuration, and the folder where what is made of the data is kept."""
    if not run.is_dir():
        with tempfile.TemporaryDirectory(prefix="weft-data-") as folder:
            yield read(run, changes, trust=trust), Path(folder)
        return
    opened = Run(run, trust)
    settings = read(run / "config.toml", changes, trust=trust) if changes else opened.settings
    if has_tokenizer(opened) and "path" not in settings.tokenizer:  # the very one that it learns with
        named = {key: value for key, value in settings.tokenizer.items() if key in ("end", "pad")}
        settings = replace(settings, tokenizer={"path": str(run), **named})
    yield settings, run


def _show(
    number: int,
    batch: Mapping[str, np.ndarray],
    tokenizer: Any,
    most: int | None,
    as_json: bool,
    dims: Mapping[str, Sequence[str]],
) -> None:
    size = len(next(iter(batch.values())))
    counted = [array for name, array in batch.items() if name.endswith("weights") and array.ndim == 2]
    if not as_json:
        shapes = ", ".join(f"{name} {array.dtype}[{_shape(array, dims.get(name))}]" for name, array in batch.items())
        count = f", {int(sum((array > 0).sum() for array in counted)):,} tokens count" if counted else ""
        write_program([Printed(f"batch {number}: {size} rows{count}", "title"), Printed(f"  {shapes}", "")])
    for row in range(min(size, most or size)):
        segments = list(segments_of(batch, row))
        if as_json:
            shown: dict[str, Any] = {"segments": [_as_json(segment, tokenizer) for segment in segments]}
            if not segments:
                shown = {"arrays": {name: array[row].tolist() for name, array in batch.items()}}
            write(json_format.dumps({"batch": number, "row": row, **shown}, ensure_ascii=False))
            continue
        write_program([Printed(f"row {row}", "section")])
        for segment in segments:
            counts = int((segment.weights > 0).sum())
            write_program([Printed(f"  {segment.name}: {len(segment.ids)} tokens, {counts} count", "")])
            _print_text(segment, tokenizer)
        if not segments:
            write_program([Printed(f"  {name}: {_values(array[row])}", "") for name, array in batch.items()])


def _shape(array: np.ndarray, names: Sequence[str] | None) -> str:
    """The sizes of an array, with the names that rows of one's own have for them."""
    sizes = map(str, array.shape)
    return " ".join(sizes if names is None else map("=".join, zip(("batch", *names), sizes, strict=True)))


def _values(array: np.ndarray) -> str:
    """The numbers of an array of a row in a line, of many the first and the last."""
    return np.array2string(np.ravel(array), threshold=8, edgeitems=3, precision=4, max_line_width=1000)


def segments_of(batch: Mapping[str, np.ndarray], row: int) -> Iterator[Segment]:
    """The segments of a row of any kind of batch."""
    sides = [f"{side}_" for side in SIDES if f"{side}_targets" in batch] or [""]
    for side in sides:
        if side or "input_segments" not in batch:
            yield from _of_text(batch, row, side)
    if "input_segments" in batch:
        for name in ("input", "target"):
            ids, segments = batch[f"{name}s"][row], batch.get(f"{name}_segments")
            there = batch["weights"][row] > 0 if segments is None else segments[row] > 0
            numbers = there.astype(int) if segments is None else segments[row]
            for number in range(1, int(numbers.max(initial=0)) + 1):
                here = numbers == number
                weight = 1.0 if name == "target" else 0.0
                yield Segment(f"{name} {number}", ids[here], np.full(int(here.sum()), weight))


def _of_text(batch: Mapping[str, np.ndarray], row: int, side: str) -> Iterator[Segment]:
    targets = batch.get(f"{side}targets", batch.get("tokens"))
    if targets is None:
        return
    weights = batch[f"{side}weights"][row] if f"{side}weights" in batch else np.ones(len(targets[row]))
    inputs = batch.get(f"{side}inputs")
    segments = batch.get("segments")
    if segments is not None:
        numbers = segments[row]
    else:
        filled = weights > 0 if inputs is None else (weights > 0) | (inputs[row] > 0) | (targets[row] > 0)
        numbers = np.where(np.arange(len(filled)) <= np.max(np.flatnonzero(filled), initial=-1), 1, 0)
    for number in range(1, int(numbers.max(initial=0)) + 1):
        here = np.flatnonzero(numbers == number)
        ids, counts = targets[row][here], weights[here]
        # Of texts that are shifted the first token is an input alone; of windows an input before the first is 0.
        if inputs is not None and inputs[row][here[0]] and (side or not counts[0]):
            ids, counts = np.append(inputs[row][here[0]], ids), np.append(0.0, counts)
        yield Segment(side.rstrip("_") or f"segment {number}", ids, counts)


def _runs(segment: Segment) -> Iterator[tuple[bool, np.ndarray]]:
    """The tokens in runs that count or do not."""
    counts = segment.weights > 0
    edges = np.flatnonzero(np.diff(counts)) + 1
    for ids, flags in zip(np.split(segment.ids, edges), np.split(counts, edges), strict=True):
        if len(ids):
            yield bool(flags[0]), ids


def _text(ids: np.ndarray, tokenizer: Any) -> str:
    if tokenizer is None:
        return " ".join(map(str, ids.tolist()))
    show = getattr(tokenizer, "decode_with_specials", tokenizer.decode)
    return show(ids.tolist())


def _as_json(segment: Segment, tokenizer: Any) -> dict[str, Any]:
    return {
        "name": segment.name,
        "text": _text(segment.ids, tokenizer),
        "counted": [_text(ids, tokenizer) for counts, ids in _runs(segment) if counts],
        "ids": segment.ids.tolist(),
        "weights": segment.weights.tolist(),
    }


def _print_text(segment: Segment, tokenizer: Any) -> None:
    """The text of a segment, what counts in it coloured, or in brackets."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    whole = Text("    ")
    for counts, ids in _runs(segment):
        piece = _text(ids, tokenizer).replace("\n", "⏎\n    ")
        if console.is_terminal:
            whole.append(piece, style="bold green" if counts else "dim")
        else:
            whole.append(f"{_OPEN}{piece}{_CLOSE}" if counts else piece)
    if console.is_terminal:
        console.print(whole, soft_wrap=True)
    else:
        write(whole.plain)
