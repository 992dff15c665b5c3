"""`weft search`: every legal layout of a model, on a mesh or on every mesh of so many processors, ranked."""

import json
import sys
import time
from typing import Annotated, Any

import typer

from ..plan import search as search_layouts
from ..plan.hardware import hardware as find_hardware
from ..plan.search import Progress
from .model import BATCH, LENGTH, LOSS, MODEL, OPTIMIZER, loaded
from .plan import HARDWARE, MEMORY, memory_bytes
from .terminal import reported, users_code, write, write_program

EXAMPLES = """Examples:

\b
  weft search lm-4.90b --processors 512 --hardware h100
  weft search tiny-lm --mesh rows=2,cols=4 --hardware this
  weft search configs/tiny.toml --processors 8 --dims batch,heads,d_ff --json
"""
INTERRUPTED = 130  # as shells say it


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
            help="What may be split, like `batch,d_ff,params.d_model`: all dims "
            "unless given, of a model those worth it; the output says which.",
        ),
    ] = None,
    memory: MEMORY = None,
    batch: BATCH = None,
    length: LENGTH = None,
    optimizer: OPTIMIZER = None,
    loss: LOSS = False,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many plans to show.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plans as JSON.")] = False,
) -> None:
    """Find the best layouts: all legal ones, each costed from its own program. Ctrl-C ends with the best so far."""
    if (mesh is None) == (processors is None):
        raise typer.BadParameter("say one of them: `--processors 512`, or `--mesh rows=2,cols=4`", param_hint="--mesh")
    with reported():
        machine = find_hardware(hardware)
        found = loaded(model, batch=batch, length=length, optimizer=optimizer, loss=loss)
        named = None if dims is None else [name for name in dims.replace(",", " ").split() if name]
        how: dict[str, Any] = dict(mesh=mesh, processors=processors, dims=named, memory=memory_bytes(memory), keep=top)
        try:
            with users_code(f"`{found.name}` failed while it was traced"), Bar() as bar:
                ranking = search_layouts(found.fn, *found.args, hardware=machine, progress=bar, **how)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted before any layout was costed\n")
            raise typer.Exit(INTERRUPTED) from None
        if as_json:
            return write(json.dumps(ranking.to_dict(), indent=1))
        count = ranking.best.mesh.size
        head = f"{found.name} on {machine}, {count} processor{'s' * (count != 1)}"
        write_program(f"{head}\n\n{ranking}")


class Bar:
    """How far a search is, on a terminal as a bar, elsewhere as a line every few seconds; always on stderr."""

    EVERY = 10.0

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._last = time.monotonic()
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "Bar":
        if self._console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = RichProgress(*columns, console=self._console, transient=True)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, at: Progress) -> None:
        best = f"  best {1000 * at.best.seconds:.4g} ms: {at.best.mesh} {at.best.layout}" if at.best else ""
        if self._bar is not None:
            if at.stage not in self._tasks:
                self._tasks[at.stage] = self._bar.add_task(at.stage, total=at.total)
            self._bar.update(self._tasks[at.stage], completed=at.done, total=at.total, description=at.stage + best)
        elif time.monotonic() - self._last >= self.EVERY:
            self._last = time.monotonic()
            sys.stderr.write(f"{at.stage}: {at.done:,} of {at.total:,}{best}\n")
            sys.stderr.flush()
