"""What commands on a trained run share: options, checkpoint, mesh and tokenizer.

Everything told goes to stderr: stdout is for what was asked for.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import jax
import typer

from .. import data
from ..data.tokenizers import find_tokenizer
from ..errors import MeshError, WeftError
from ..layout import Layout as Rules
from ..layout import as_layout
from ..mesh import Mesh as Processors
from ..mesh import as_mesh
from ..train import Run
from ..train.config import CONFIG, RunConfig


def complete_run(incomplete: str) -> list[str]:
    """The folders of runs that a word may be completed to; below `runs` at first."""
    folders = {os.path.dirname(incomplete), os.path.dirname(incomplete.rstrip(os.sep)) or "runs"}
    found = {str(path.parent) for folder in folders for path in Path(folder).glob(f"*/{CONFIG}")}
    return sorted(name for name in found if name.startswith(incomplete))


Folder = Annotated[Path, typer.Argument(metavar="RUN", autocompletion=complete_run, help="The folder of a run.")]
Step = Annotated[int | None, typer.Option(min=0, metavar="N", help="The checkpoint's step; the last if not said.")]
Best = Annotated[bool, typer.Option("--best", help="The checkpoint with the lowest loss in evaluation.")]
Average = Annotated[int, typer.Option(min=1, metavar="K", help="The mean of so many checkpoints, up to that step.")]
Mesh = Annotated[
    str | None, typer.Option(metavar="AXES", help="A mesh to run on, like `cols=8`; `''` is one processor.")
]
Layout = Annotated[str | None, typer.Option(metavar="RULES", help="How it is split over the mesh, like `vocab:cols`.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

MeshAndLayout = tuple[Processors, Rules] | tuple[None, None]


def checkpoint_of(run: Run, step: int | None, best: bool) -> int:
    """The step of the checkpoint that the options name."""
    if best and step is not None:
        raise WeftError("both --step and --best were given", fix="give one of them")
    return run.checkpoints.choose(step, best=best)


def place_for(
    settings: RunConfig, mesh: str | None, layout: str | None, *, is_virtual_too: bool = True
) -> MeshAndLayout:
    """The mesh and layout of the options, or the run's; None for one processor.

    The run's own are taken if their processors are here. Virtual processors share one machine: what gains nothing from
    them leaves them out unless they are asked for.
    """
    if (mesh is None and layout is not None) or (mesh and layout is None):
        raise WeftError("only one of --mesh and --layout was given", fix="give both, or neither")
    if mesh is not None and layout is not None:
        return (as_mesh(mesh), as_layout(layout)) if mesh else (None, None)
    if mesh is not None or not settings.mesh or (not is_virtual_too and jax.default_backend() == "cpu"):
        return None, None
    trained_on = as_mesh(settings.mesh)
    try:
        trained_on.jax_mesh()
    except MeshError as error:
        say(f"{error.fact}: runs on one")
        return None, None
    return trained_on, as_layout(settings.layout)


def tokenizer_of(run: Run) -> data.Tokenizer | None:
    """The tokenizer of a run; None where there is none in its folder."""
    return run.tokenizer if has_tokenizer(run) else None


def has_tokenizer(run: Run) -> bool:
    """Whether there is one in its folder."""
    return find_tokenizer(run.folder) is not None


def say(text: str) -> None:
    """A line on stderr; above the bar, where one is shown."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
