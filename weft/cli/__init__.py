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
from . import decoding, evaluate, hardware, launch, plan, plot, profile, search, show, train, weights

_show_as_source(__path__[0])

app = typer.Typer(
    name="weft",
    help="Read a distributed tensor program before it runs: what it computes, what it sends, and why.",
    epilog="`weft COMMAND --help` says more, with examples.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # help in plain text: no boxes to wrap the examples in
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 110},
)
app.command(epilog=show.EXAMPLES)(show.show)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command(epilog=search.EXAMPLES)(search.search)
app.command(epilog=hardware.EXAMPLES)(hardware.hardware)
app.command(epilog=train.EXAMPLES)(train.train)
app.command(epilog=profile.EXAMPLES)(profile.profile)
app.command(epilog=plot.EXAMPLES)(plot.plot)
app.command(epilog=launch.EXAMPLES, context_settings={"allow_interspersed_args": False})(launch.launch)
app.command("eval", epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command(epilog=decoding.GENERATE_EXAMPLES)(decoding.generate)
app.command(epilog=decoding.TRANSLATE_EXAMPLES)(decoding.translate)
app.command("import", epilog=weights.IMPORT_EXAMPLES)(weights.import_weights)
app.command("export", epilog=weights.EXPORT_EXAMPLES)(weights.export_weights)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weft {importlib.metadata.version('weft')}")
        raise typer.Exit


@app.callback()
def _weft(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """The command `weft`."""
    with failing_at_once(), ending_at_once():
        app(prog_name="weft")
