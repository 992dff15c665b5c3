"""`weft search`: every legal layout of a model, on one mesh or many, ranked."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..models.config import SEARCHED
from ..plan import Choice
from ..plan import search as search_layouts
from ..plan.page import search_page
from ..plan.search import MOST_AXES, SearchProgress
from ..text import Printed, plural, time_text
from ..train.own.code import users_code
from .choices import preset_builder, read_choices
from .model import (
    ADAM,
    AUTO,
    BATCH,
    CHANGES,
    DECODE,
    LENGTH,
    LOSS,
    MODEL,
    OPTIMIZER,
    TRUST,
    find_run,
    is_function,
    is_run,
    load,
    load_maker,
)  # fmt: skip
from .plan import HARDWARE, MEMORY, machine_of, memory_bytes
from .progress import Reporter, stderr_console
from .terminal import reported, with_size, write, write_program

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
    hardware: HARDWARE = None,
    dims: Annotated[
        str | None,
        typer.Option(
            metavar="DIMS",
            help="What may be split, like `batch,d_ff,params.d_model`: all dims unless given, of a model "
            f"{', '.join(SEARCHED)} where it has them; the output says which.",
        ),
    ] = None,
    choices: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="What else is chosen: of a preset some of remat, loss_chunks, microbatches, prefetch and pipeline, "
            "with values or without (`remat,loss_chunks=1|8`), remat unless given, none if ''; of a function of yours "
            "its arguments and their values.",
        ),
    ] = None,
    memory: MEMORY = None,
    batch: BATCH = None,
    length: LENGTH = None,
    optimizer: OPTIMIZER = None,
    loss: LOSS = False,
    decode: DECODE = None,
    changes: CHANGES = None,
    trust: TRUST = False,
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
    with reported():
        _need_one(mesh, processors)
        machine_of(hardware, None)  # a wrong name is said before anything is traced
        how: dict[str, Any] = dict(batch=batch, length=length, optimizer=optimizer, loss=loss, decode=decode)
        fn, args, wanted, size, of_run = _program(model, choices, how | dict(changes=changes, trust=trust))
        machine, assumed = machine_of(hardware, of_run)
        options: dict[str, Any] = dict(
            mesh=mesh, processors=processors, dims=dims and dims.replace(",", " ").split(), keep=top, seconds=seconds,
            memory=memory_bytes(memory), most_axes=axes, choices=wanted,
        )  # fmt: skip
        try:
            with users_code(f"`{model}` failed while it was traced"), Reporter(stderr_console()) as bar:
                ranking = search_layouts(fn, *args, hardware=machine, progress=_Teller(bar), **options)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted before a layout that fits was found\n")
            raise typer.Exit(INTERRUPTED) from None
        if html is not None:
            search_page(ranking, model).save(html)
        if as_json:
            write(json.dumps(ranking.to_dict(), indent=1))
        else:
            head = f"{model}{size and f', {size},'} on {machine}, {plural(ranking.best.mesh.size, 'processor')}"
            page = f"\npage: {html}" if html is not None else ""
            write_program(with_size([Printed(head, "title"), Printed(f"\n{ranking}{page}")], [assumed]))
        raise typer.Exit(INTERRUPTED if ranking.stopped == "interrupted" else 0)


def _need_one(mesh: str | None, processors: int | None) -> None:
    if (mesh is None) == (processors is None):
        raise typer.BadParameter("say one of them: `--processors 512`, or `--mesh rows=2,cols=4`", param_hint="--mesh")


def _program(
    model: str, choices: str | None, how: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Choice], str, str | None]:
    """What is searched and its arguments, or what builds it; the choices.

    Then its size as a text, and the hardware of a run.
    """
    wanted = {}
    model = find_run(model)
    sizes = {name: how[name] for name in ("batch", "length") if how[name] is not None}
    if not is_run(model) and how["decode"] is None:
        wanted = read_choices(model, choices, **sizes)
    elif choices:
        raise typer.BadParameter("is for train steps of presets, and for functions", param_hint="--choices")
    if wanted and is_function(model):
        return load_maker(model, list(wanted)), (), wanted, "", None
    chosen = load(model, mesh=AUTO, layout=AUTO, **how)
    if not wanted:
        return chosen.fn, chosen.args, {}, chosen.size, chosen.hardware
    return (
        preset_builder(model, None if how["loss"] else how["optimizer"] or ADAM, sizes),
        (),
        wanted,
        chosen.size,
        None,
    )


class _Teller:
    """Tells how far a search is, and its first answer as soon as there is one."""

    def __init__(self, reporter: Reporter):
        self.reporter, self.has_answered = reporter, False

    def __call__(self, at: SearchProgress) -> None:
        best = f"best {time_text(at.best.seconds)}: {at.best.mesh} {at.best.layout}" if at.best else ""
        if best and not self.has_answered:
            self.has_answered = True
            self.reporter.say(f"{best}; looking for better, Ctrl-C ends it")
        self.reporter.progress(at.stage, at.done, at.total, best)
