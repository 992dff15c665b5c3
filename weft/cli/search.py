"""`weft search`: every legal layout of a model, on one mesh or many, ranked."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..models.config import SEARCHED
from ..plan import search as search_layouts
from ..plan.hardware import hardware as find_hardware
from ..plan.page import search_page
from ..plan.search import MOST_AXES, SearchProgress
from ..text import time_text
from .model import BATCH, DECODE, LENGTH, LOSS, MODEL, OPTIMIZER, load
from .plan import HARDWARE, MEMORY, memory_bytes
from .progress import Reporter, stderr_console
from .terminal import reported, titled, users_code, write, write_program

EXAMPLES = """Examples:

\b
  weft search lm-4.90b --processors 512 --hardware h100
  weft search tiny-lm --mesh rows=2,cols=4 --hardware this
  weft search configs/tiny.toml --processors 8 --dims batch,heads,d_ff --json
"""
INTERRUPTED = 130  # as shells say it: the best so far is printed all the same


def search(
    model: MODEL,
    processors: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many processors; every shape of mesh is tried.")
    ] = None,
    mesh: Annotated[str | None, typer.Option(metavar="AXES", help="The mesh, like `rows=2,cols=4`.")] = None,
    hardware: HARDWARE = "h100",
    dims: Annotated[
        str | None,
        typer.Option(
            metavar="DIMS",
            help="What may be split, like `batch,d_ff,params.d_model`: all dims unless given, of a model "
            f"{', '.join(SEARCHED)} where it has them; the output says which.",
        ),
    ] = None,
    memory: MEMORY = None,
    batch: BATCH = None,
    length: LENGTH = None,
    optimizer: OPTIMIZER = None,
    loss: LOSS = False,
    decode: DECODE = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, metavar="S", help="End after so long with the best so far, and say what was not seen."),
    ] = None,
    axes: Annotated[int, typer.Option(min=1, max=6, metavar="N", help="How many axes a mesh has at most.")] = MOST_AXES,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many plans to show.")] = 20,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page: time against memory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plans as JSON.")] = False,
) -> None:
    """Find the best layouts: all legal ones, each costed from its own program.

    Ctrl-C ends with the best so far and status 130.
    """
    if (mesh is None) == (processors is None):
        raise typer.BadParameter("say one of them: `--processors 512`, or `--mesh rows=2,cols=4`", param_hint="--mesh")
    with reported():
        machine = find_hardware(hardware)
        chosen = load(model, batch=batch, length=length, optimizer=optimizer, loss=loss, decode=decode)
        named = None if dims is None else [name for name in dims.replace(",", " ").split() if name]
        options: dict[str, Any] = dict(
            mesh=mesh, processors=processors, dims=named, memory=memory_bytes(memory), keep=top, seconds=seconds,
            most_axes=axes,
        )  # fmt: skip
        try:
            with users_code(f"`{chosen.name}` failed while it was traced"), Reporter(stderr_console()) as bar:
                ranking = search_layouts(
                    chosen.fn, *chosen.args, hardware=machine, progress=partial(_tell, bar), **options
                )
        except KeyboardInterrupt:
            sys.stderr.write("interrupted before any layout was costed\n")
            raise typer.Exit(INTERRUPTED) from None
        if html is not None:
            search_page(ranking, chosen.name).save(html)
        if as_json:
            write(json.dumps(ranking.to_dict(), indent=1))
        else:
            count = ranking.best.mesh.size
            head = f"{chosen.name} on {machine}, {count} processor{'s' * (count != 1)}"
            write_program(titled(f"{head}\n\n{ranking}"))
            if html is not None:
                write(f"page: {html}")
        if ranking.stopped == "interrupted":
            raise typer.Exit(INTERRUPTED)


def _tell(reporter: Reporter, at: SearchProgress) -> None:
    best = f"best {time_text(at.best.seconds)}: {at.best.mesh} {at.best.layout}" if at.best else ""
    reporter.progress(at.stage, at.done, at.total, best)
