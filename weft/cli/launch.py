"""`weft launch`: a command as several local processes, watched and restarted."""

from typing import Annotated

import typer

from ..train.launch import Supervisor
from .terminal import COMMAND, reported

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
RESTARTS = 3


def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="A command of weft's, as after `weft`.")
    ],
    processes: Annotated[int, typer.Option("-n", "--processes", min=1, metavar="N", help="How many processes.")],
    restarts: Annotated[
        int, typer.Option(min=0, metavar="N", help="How often all are started again after one died.")
    ] = RESTARTS,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Processors of each process, virtual ones where there are no others; by default a share of all.",
        ),
    ] = None,
    elastic: Annotated[
        bool,
        typer.Option("--elastic", help="Go on without a process that failed twice in a row, with a searched layout."),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, metavar="PORT", help="Where they meet on this host; a free one if not said."),
    ] = None,
) -> None:
    """Start and watch local processes of one command; restart all when one dies."""
    with reported():
        options = {"--restarts": None if restarts == RESTARTS else restarts, "--devices": devices, "--port": port}
        said = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        words = ["weft", "launch", "-n", str(processes), *said, *(["--elastic"] if elastic else []), "--"]
        supervisor = Supervisor(
            [*COMMAND, *command],
            processes,
            restarts=restarts,
            devices=devices,
            elastic=elastic,
            port=port,
            words=" ".join(words),
        )
        raise typer.Exit(supervisor.run())
