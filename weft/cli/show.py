"""`weft show`: the SPMD program a model becomes on a mesh under a layout, traced with no devices."""

from enum import StrEnum
from typing import Annotated

import typer

from .model import Model, is_function, is_run, load_function, load_preset, load_run
from .terminal import reported, write, write_program


class Optimizer(StrEnum):
    """The optimizers a preset can be shown with, by their names in Optax."""

    adam = "adam"
    adafactor = "adafactor"
    sgd = "sgd"


EXAMPLES = """Examples:

\b
  weft show lm-4.90b --mesh rows=16,cols=32 --layout batch:rows,vocab:cols,d_ff:cols,heads:cols
  weft show configs/tiny.toml --ledger
  weft show net.py:example --mesh rows=2,cols=4 --layout batch:rows --against batch:rows,hidden:cols

\b
where net.py holds
  def example():
      return net, (x, w, v)    # tensors of arrays, or of jax.ShapeDtypeStruct
"""


def show(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A preset of weft.models, a run's TOML file, or `package.module:function` or `file.py:function`: a"
            " function of no arguments that returns `(fn, args)`.",
        ),
    ],
    mesh: Annotated[str | None, typer.Option(metavar="AXES", help="The mesh, like `rows=2,cols=4`.")] = None,
    layout: Annotated[str | None, typer.Option(metavar="LAYOUT", help="The layout, like `batch:rows`.")] = None,
    ledger: Annotated[bool, typer.Option("--ledger", help="Print only the collectives, as a table.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the program as JSON.")] = False,
    against: Annotated[
        str | None, typer.Option(metavar="LAYOUT", help="Print what changes from --layout to this one.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="Rows in a batch of the preset.")] = None,
    length: Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens in a row of the preset.")] = None,
    optimizer: Annotated[
        Optimizer | None, typer.Option(help="The optimizer of the preset's train step; adam if not said.")
    ] = None,
    loss: Annotated[bool, typer.Option("--loss", help="The preset's loss alone, not its train step.")] = False,
) -> None:
    """Print the SPMD program a model becomes on a mesh under a layout.

    Every op with its placement, every collective with its bytes and its reason. No devices are needed, whatever the
    size of the mesh.
    """
    _only_one(ledger and "--ledger", json and "--json", against is not None and "--against")
    _only_one(loss and "--loss", optimizer is not None and "--optimizer")
    sizes = {name: size for name, size in (("batch", batch), ("length", length)) if size is not None}
    with reported():
        if is_function(model) or is_run(model):
            _only_for_presets(*sizes, loss and "loss", optimizer is not None and "optimizer")
            loaded = load_run(model) if is_run(model) else load_function(model)
        else:
            loaded = load_preset(model, optimizer=None if loss else optimizer or Optimizer.adam, **sizes)
        _need_mesh_and_layout(loaded, mesh, layout)
        program = loaded.traced(mesh=mesh, layout=layout)
        if json:
            return write(program.to_json())
        if against is not None:
            shown = str(program.diff(loaded.traced(mesh=mesh, layout=against)))
        else:
            shown = program.ledger.table() if ledger else str(program)
    write_program(shown)


def _only_one(*given: str | bool) -> None:
    names = [name for name in given if isinstance(name, str)]
    if len(names) > 1:
        raise typer.BadParameter(f"not together with {names[0]}; say one of them", param_hint=names[1])


def _only_for_presets(*given: str | bool) -> None:
    for name in given:
        if isinstance(name, str):
            raise typer.BadParameter("is for presets; your function says it itself", param_hint=f"--{name}")


def _need_mesh_and_layout(model: Model, mesh: str | None, layout: str | None) -> None:
    """What is not said must be known: a function made by `wf.spmd` brings its own mesh and layout."""
    if model.is_bound:
        return
    if mesh is None:
        raise typer.BadParameter(
            "say the axes of the mesh and their sizes: `--mesh rows=2,cols=4`", param_hint="--mesh"
        )
    if layout is None:
        raise typer.BadParameter("say which dims are split: `--layout batch:rows` (`''`: none)", param_hint="--layout")
