"""`weft launch`: a command as several local processes, watched and restarted."""

import sys
from typing import Annotated

import typer

from ..train.launch import Supervisor
from .terminal import reported

EXAMPLES = """Examples:

\b
  weft launch -n 4 -- train configs/tiny.toml
  weft launch -n 2 --devices 4 --restarts 10 -- train configs/tiny.toml --set mesh="rows=4,cols=2"
  weft launch -n 4 --elastic -- train configs/tiny.toml

A process that is killed, aborts, crashes (a Python error nobody explained) or is without a step for too long ends all
of them, and all are started again; training goes on from its last checkpoint. An error that weft explains (status 1)
and a command that cannot be (status 2) are not tried again. Ctrl-C and SIGTERM let all finish their step and save; a
second Ctrl-C kills them. With --elastic the others go on without a process that fails in two starts in a row.
"""


def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="A command of weft's, as after `weft`.")
    ],
    processes: Annotated[int, typer.Option("-n", "--processes", min=1, help="How many processes.")],
    restarts: Annotated[int, typer.Option(min=0, help="How often all are started again after one died.")] = 3,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processors of each process, virtual ones where there are no others; by default a share of all."
        ),
    ] = None,
    elastic: Annotated[
        bool,
        typer.Option("--elastic", help="Go on without a process that failed twice in a row, with a searched layout."),
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Where they meet on this host; a free one if not said.")
    ] = None,
) -> None:
    """Start and watch local processes of one command; restart all when one dies."""
    with reported():
        supervisor = Supervisor(
            [sys.executable, "-m", "weft", *command],
            processes,
            restarts=restarts,
            devices=devices,
            elastic=elastic,
            port=port,
        )
        raise typer.Exit(supervisor.run())
