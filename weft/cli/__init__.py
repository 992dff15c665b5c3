"""The command line: `weft show`, `import` and `export`; each command is a function in a file of its own, listed here.

May import every room but the front door. Options are read by Typer and are text; what they mean is said by the rooms
that own them, so that a mesh or a layout reads the same here as in a program.
"""

import importlib.metadata
from typing import Annotated

import typer

from ..record import show_as_source as _show_as_source
from ..train.processes import failing_at_once
from ..train.stopping import ending_at_once
from .decoding import GENERATE_EXAMPLES, TRANSLATE_EXAMPLES, generate, translate
from .evaluate import EXAMPLES as EVAL_EXAMPLES
from .evaluate import evaluate
from .hardware import EXAMPLES as HARDWARE_EXAMPLES
from .hardware import hardware
from .launch import EXAMPLES as LAUNCH_EXAMPLES
from .launch import launch
from .plan import EXAMPLES as PLAN_EXAMPLES
from .plan import plan
from .plot import EXAMPLES as PLOT_EXAMPLES
from .plot import plot
from .search import EXAMPLES as SEARCH_EXAMPLES
from .search import search
from .show import EXAMPLES, show
from .train import EXAMPLES as TRAIN_EXAMPLES
from .train import train
from .weights import EXPORT_EXAMPLES, IMPORT_EXAMPLES, export_weights, import_weights

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
app.command(epilog=EXAMPLES)(show)
app.command(epilog=PLAN_EXAMPLES)(plan)
app.command(epilog=SEARCH_EXAMPLES)(search)
app.command(epilog=HARDWARE_EXAMPLES)(hardware)
app.command(epilog=TRAIN_EXAMPLES)(train)
app.command(epilog=PLOT_EXAMPLES)(plot)
app.command(epilog=LAUNCH_EXAMPLES, context_settings={"allow_interspersed_args": False})(launch)
app.command("eval", epilog=EVAL_EXAMPLES)(evaluate)
app.command(epilog=GENERATE_EXAMPLES)(generate)
app.command(epilog=TRANSLATE_EXAMPLES)(translate)
app.command("import", epilog=IMPORT_EXAMPLES)(import_weights)
app.command("export", epilog=EXPORT_EXAMPLES)(export_weights)


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
