"""The command line: each command is a function in one of these files.

May import every room but the front door. Options are read by Typer and are text; what they mean is said by the rooms
that own them, so that a mesh or a layout reads the same here as in a program.
"""

import importlib.metadata
from typing import Annotated

import typer

from ..record import show_as_source as _show_as_source
from ..train.processes import failing_at_once
from ..train.stopping import ending_at_once
from . import (
    batches,
    decoding,
    doctor,
    evaluate,
    hardware,
    launch,
    new,
    plan,
    plot,
    profile,
    reproduce,
    search,
    show,
    train,
    weights,
)
from .groups import ASK, MACHINE, PLAN, READ, TRAIN, WEIGHTS, CommandMap, map_text
from .usage import Command

_show_as_source(__path__[0])

app = typer.Typer(
    name="weft",
    cls=CommandMap,
    help="Named tensors on a mesh of processors: one SPMD program on JAX, read before it runs.",
    rich_markup_mode=None,  # help in plain text: no boxes to wrap the examples in
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)
app.command(epilog=show.EXAMPLES, rich_help_panel=READ)(show.show)
app.command(epilog=plan.EXAMPLES, rich_help_panel=PLAN)(plan.plan)
app.command(epilog=search.EXAMPLES, rich_help_panel=PLAN)(search.search)
app.command(epilog=doctor.EXAMPLES, rich_help_panel=MACHINE)(doctor.doctor)
app.command(epilog=hardware.EXAMPLES, rich_help_panel=MACHINE)(hardware.hardware)
app.command(epilog=new.EXAMPLES, rich_help_panel=TRAIN)(new.new)
app.command(epilog=train.EXAMPLES, rich_help_panel=TRAIN)(train.train)
app.command(epilog=batches.EXAMPLES, rich_help_panel=TRAIN)(batches.data)
app.command(epilog=profile.EXAMPLES, rich_help_panel=READ)(profile.profile)
app.command(epilog=plot.EXAMPLES, rich_help_panel=TRAIN)(plot.plot)
app.command(epilog=launch.EXAMPLES, rich_help_panel=TRAIN, context_settings={"allow_interspersed_args": False})(
    launch.launch
)
app.command(epilog=reproduce.EXAMPLES, rich_help_panel=TRAIN)(reproduce.reproduce)
app.command("eval", epilog=evaluate.EXAMPLES, rich_help_panel=ASK)(evaluate.evaluate)
app.command(epilog=decoding.GENERATE_EXAMPLES, rich_help_panel=ASK)(decoding.generate)
app.command(epilog=decoding.TRANSLATE_EXAMPLES, rich_help_panel=ASK)(decoding.translate)
app.command("import", epilog=weights.IMPORT_EXAMPLES, rich_help_panel=WEIGHTS)(weights.import_weights)
app.command("export", epilog=weights.EXPORT_EXAMPLES, rich_help_panel=WEIGHTS)(weights.export_weights)
for _command in app.registered_commands:
    _command.cls = Command


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weft {importlib.metadata.version('weft')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _weft(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(map_text(context), nl=False)


def main() -> None:
    """The command `weft`."""
    with failing_at_once(), ending_at_once():
        app(prog_name="weft")
