"""`weft import` and `weft export`: Hugging Face weights into a run and out of one."""

from pathlib import Path
from typing import Annotated

import jax
import typer

from .. import interop
from ..errors import WeftError
from ..train import Run
from .terminal import reported, write

IMPORT_EXAMPLES = """Examples:

\b
  weft import ~/models/flan-t5-small runs/flan
  weft import ~/models/llama-8b runs/llama --mesh cols=8 --layout heads:cols,d_ff:cols,vocab:cols
"""
EXPORT_EXAMPLES = """Examples:

\b
  weft export runs/flan ~/models/mine
  weft export runs/flan ~/models/mine --step 4000
"""

Mesh = Annotated[str | None, typer.Option(metavar="AXES", help="A mesh to hold the weights on, like `cols=8`.")]
Layout = Annotated[str | None, typer.Option(metavar="LAYOUT", help="How they lie on it, like `vocab:cols`.")]


def import_weights(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with config.json and safetensors.")],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run to make.")],
    mesh: Mesh = None,
    layout: Layout = None,
) -> None:
    """Make a run of Hugging Face weights: T5, GPT-2, Llama or Switch Transformers."""
    with reported():
        _check_both(mesh, layout)
        model = interop.load(folder, mesh, layout)
        Run.create(run, model)
        write(f"{_said(model)}\nwritten to {run} as step 0")


def export_weights(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to make.")],
    step: Annotated[int | None, typer.Option(min=0, metavar="N", help="The step; the last if not said.")] = None,
    mesh: Mesh = None,
    layout: Layout = None,
) -> None:
    """Write the weights of a run as Hugging Face's `transformers` reads them."""
    with reported():
        _check_both(mesh, layout)
        model = Run(run).load(mesh, layout, step)
        interop.save(model, folder)
        write(f"{_said(model)}\nwritten to {folder}")


def _check_both(mesh: str | None, layout: str | None) -> None:
    if (mesh is None) != (layout is None):
        raise WeftError("only one of --mesh and --layout was given", fix="give both, or neither")


def _said(model: object) -> str:
    dtypes = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(model)})
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(model))
    config = model.config  # type: ignore[attr-defined]
    return f"{config.name}: {config.param_count:,} parameters in {' and '.join(dtypes)}, {size / 1e6:,.3g} MB"
