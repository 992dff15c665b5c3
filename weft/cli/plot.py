"""`weft plot`: the curves of runs as a picture, as a page, or in the terminal."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..train import metrics
from ..train.curves import Curve, panels, text_chart, to_ascii
from .terminal import reported, write

EXAMPLES = """Examples:

\b
  weft plot runs/tiny
  weft plot runs/tiny --terminal
  weft plot runs/first runs/second --out both.html --keys loss,eval.loss,tokens_per_s
"""


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="The folders of runs; several share a picture.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A .png or .html file; RUN/curve.png if not said, RUN/curves.png of several."
        ),
    ] = None,
    keys: Annotated[
        str, typer.Option(metavar="KEYS", help="The numbers to show, like `loss,eval.loss,tokens_per_s`.")
    ] = "",
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw in the terminal; a file only with --out.")] = False,
) -> None:
    """Draw the losses of runs, or other numbers of theirs, by step."""
    with reported():
        if out is not None and out.suffix.lower() not in (".png", ".html"):
            raise metrics.MetricsError(f"`{out}` is neither .png nor .html", fix="name it like `curve.png`")
        rows = {name: metrics.read(folder) for name, folder in _folders_by_name(runs).items()}
        wanted = [key.strip() for key in keys.split(",") if key.strip()]
        charts = panels(rows, wanted)
        if terminal:
            for curves in charts.values():
                _draw(curves)
        if out is None and not terminal:
            out = runs[0] / ("curve.png" if len(rows) == 1 else "curves.png")
        if out is not None:
            _save(out, charts, title=next(iter(rows)) if len(rows) == 1 else "")
            write(str(out))


def _folders_by_name(folders: list[Path]) -> dict[str, Path]:
    """Runs by the names of their folders; by paths where two are called the same."""
    folders = list(dict.fromkeys(folders))
    names = [folder.resolve().name for folder in folders]
    return {str(folder) if names.count(name) > 1 else name: folder for folder, name in zip(folders, names, strict=True)}


def _draw(curves: list[Curve]) -> None:
    """Draws what shares an axis: runs beneath each other, on one scale."""
    size = shutil.get_terminal_size((80, 24)) if sys.stdout.isatty() else os.terminal_size((80, 17))
    for run in dict.fromkeys(curve.run for curve in curves):
        of_run = [curve for curve in curves if curve.run == run]
        chart = text_chart(of_run, size.columns - 1, min(size.lines - 1, 24), beside=curves)
        try:
            chart.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:
            chart = to_ascii(chart)
        write(chart)


def _save(path: Path, charts: dict[str, list[Curve]], title: str) -> None:
    """Writes the picture beside and renames it, so that what was there stays whole."""
    from ..train import pictures

    is_page = path.suffix.lower() == ".html"
    picture = pictures.html(charts, title).encode() if is_page else pictures.png(charts, title)
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_bytes(picture)
        beside.replace(path)
    except OSError as error:
        fix = "name a place that is there and has room with --out"
        raise metrics.MetricsError(f"{path} cannot be written: {error.strerror}", fix=fix) from error
