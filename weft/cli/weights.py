"""`weft import` and `weft export`: Hugging Face weights in and out of a run."""

from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from .. import data, interop, nn
from ..data.tokenizers import find_tokenizer
from ..errors import WeftError
from ..text import file_size_text
from ..train import Run
from ..train.own.model import OwnModel
from ..train.runs import ORIGIN
from .model import TRUST
from .terminal import allow_code, reported, write
from .trained import Average, Best, Folder, Step, checkpoint_of, say, tokenizer_of

IMPORT_EXAMPLES = """Examples:

\b
  weft import ~/models/flan-t5-small runs/flan
  weft import ~/models/llama-8b runs/llama --mesh cols=8 --layout heads:cols,d_ff:cols,vocab:cols
"""
EXPORT_EXAMPLES = """Examples:

\b
  weft export runs/flan ~/models/mine
  weft export runs/flan ~/models/mine --step 4000
  weft export runs/flan ~/models/mine --best --average 5
"""

Mesh = Annotated[str | None, typer.Option(metavar="AXES", help="A mesh to hold the weights on, like `cols=8`.")]
Layout = Annotated[str | None, typer.Option(metavar="RULES", help="How they lie on it, like `vocab:cols`.")]


def import_weights(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with config.json and safetensors.")],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run to make.")],
    mesh: Mesh = None,
    layout: Layout = None,
) -> None:
    """Make a run of Hugging Face weights: Llama, Gemma, GPT-2, T5, BERT and others."""
    with reported(layout=layout):
        _check_both(mesh, layout)
        model = interop.load(folder, mesh, layout)
        tokenizer = _tokenizer_beside(folder)
        Run.create(run, model)
        if tokenizer is not None:
            tokenizer.save(run)
        interop.carry(folder, run / ORIGIN)
        write(f"{_summary(model.config, model)}\nwritten to {run} as step 0")


def export_weights(
    run: Folder,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to make.")],
    step: Step = None,
    best: Best = False,
    average: Average = 1,
    mesh: Mesh = None,
    layout: Layout = None,
    trust: TRUST = False,
) -> None:
    """Write the weights of a run as Hugging Face's `transformers` reads them.

    Its tokenizer is written beside them. Those of a model of your own are named by their paths in it.
    """
    with reported(layout=layout):
        _check_both(mesh, layout)
        opened = Run(run, allow_code(trust))
        at = checkpoint_of(opened, step, best)
        model = opened.load(mesh, layout, at, average=average)
        settings = opened.settings
        if settings.lora.rank:
            model = nn.lora.merge(model)
        if isinstance(settings.model, OwnModel):
            interop.save_weights(model, folder, note=settings.model.call.saved)
            write(f"{_summary(settings.model, model)}\nstep {at} written to {folder}")
            return
        tokenizer = tokenizer_of(opened)
        origin, is_same = _origin(opened, tokenizer)
        keys = {} if is_same else _special_ids(model, tokenizer)
        interop.save(model, folder, keys=keys, like=origin, tokenizer=is_same)
        if tokenizer is not None and not is_same:
            tokenizer.save(folder)
        write(f"{_summary(model.config, model)}\nstep {at} written to {folder}")


def _tokenizer_beside(folder: Path) -> data.Tokenizer | None:
    """The tokenizer that lies beside weights; None where there is none that is read."""
    if find_tokenizer(folder) is None:
        return None
    try:
        return data.load_tokenizer(folder)
    except data.DataError as error:
        say(f"the tokenizer is not read: {error.fact}; its files are kept for the export")
        return None


def _origin(run: Run, tokenizer: data.Tokenizer | None) -> tuple[Path | None, bool]:
    """Files beside the weights the run began with; whether its tokenizer is theirs."""
    origin = run.folder / ORIGIN
    if not (origin / "config.json").is_file():
        return None, False
    theirs = _tokenizer_beside(origin)
    return origin, tokenizer is None or (theirs is not None and theirs.key == tokenizer.key)


def _special_ids(model: Any, tokenizer: data.Tokenizer | None) -> dict[str, int]:
    """The ids that `config.json` names; the model's padding is known there already."""
    if tokenizer is None:
        return {}
    has_padding = getattr(model.config, "padding", None) is not None
    ids = {"eos_token_id": tokenizer.end, "pad_token_id": None if has_padding else tokenizer.pad}
    return {name: value for name, value in ids.items() if value is not None}


def _check_both(mesh: str | None, layout: str | None) -> None:
    if (mesh is None) != (layout is None):
        raise WeftError("only one of --mesh and --layout was given", fix="give both, or neither")


def _summary(config: Any, model: object) -> str:
    dtypes = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(model)})
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(model))
    return f"{config.name}: {config.param_count:,} parameters in {' and '.join(dtypes)}, {file_size_text(size)}"
