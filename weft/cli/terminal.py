"""What reaches the terminal: coloured programs, errors without our own frames.

Text is coloured by what each line is, and only on a terminal; in a pipe it is byte for byte what `print` would print.
"""

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from ..errors import WeftError, WeftWarning
from ..text import Printed
from ..train.own.code import UsersError, line_of, users_frames
from ..train.own.trust import Trust
from ..train.stopping import Interrupted, Stop
from ..train.wording import KEY, reword

COMMAND = (sys.executable, "-m", "weft_command")
"""The command `weft` in a process of its own; `-m weft` would import JAX before it hears of Ctrl-C."""


@contextlib.contextmanager
def reported(*, layout: str | None = None, lost: str = "") -> Iterator[Stop]:
    """Prints a `WeftError` on stderr by its fact, state and fix, and exits with 1.

    A `WeftWarning` is printed in the same form. A fix speaks of `--layout` where that is what said the `layout`.
    SIGTERM and Ctrl-C end the command with the status that a shell has for them, and say what is `lost`.
    """
    with warnings.catch_warnings(), Stop(is_own=True, lost=lost) as stop:
        others = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, WeftWarning):
                others(message, category, *where, **more)
            elif message.error is None:
                _say("warning", str(message))
            else:
                _say("warning", *_parts(message.error, traceback.extract_stack()[:-1]))

        warnings.showwarning = show
        try:
            yield stop
        except Interrupted as error:
            sys.stderr.write(f"{error}\n")
            raise typer.Exit(error.status) from None
        except WeftError as error:
            if isinstance(error, UsersError) and error.__cause__ is not None:
                sys.stderr.write(_user_traceback(error.__cause__) + "\n")
            _say("error", *_parts(error, traceback.extract_tb(error.__traceback__), layout))
            raise typer.Exit(1) from None


def allow_code(is_said: bool) -> Trust:
    """What allows code of somebody else's: `--trust`, or a yes at the terminal."""
    return True if is_said else _ask


def _ask(fact: str) -> bool:
    return sys.stdin.isatty() and typer.confirm(f"{fact}\nRun it?", err=True)


def write(text: str) -> None:
    """Prints `text` on stdout as it is."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()  # a reader that has gone is noticed here, where Typer ends quietly, and not at exit


def with_size(lines: Sequence[Printed], said: Sequence[str]) -> list[Printed]:
    """The lines of a program or a plan, with its size and the like below the first."""
    return [*lines[:1], *(Printed(line) for line in said if line), *lines[1:]]


def write_program(lines: Sequence[Printed]) -> None:
    """Prints a program, a diff or a table, coloured if stdout is a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        return write("\n".join(line.text for line in lines))
    for line in lines:
        console.print(colour(line), soft_wrap=True)


_STYLES = {"title": "bold", "section": "bold", "collective": "bold yellow", "added": "green", "removed": "red"}


def colour(line: Printed) -> Any:
    """A line as Rich text: collectives, headers and changes stand out."""
    from rich.text import Text

    text = Text(line.text, _STYLES.get(line.kind, ""))
    text.stylize("not bold dim", *line.place)
    return text


_ABOVE = {"error": "bold red", "warning": "bold yellow"}


def _say(what: str, fact: str, state: str = "", fix: str = "") -> None:
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble((f"{what}:", _ABOVE[what]), f" {fact}")
    if fix:
        text.append(f"\n  {state}\n").append("  fix:", "bold green").append(f" {fix}")
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)


def _parts(
    error: WeftError, stack: Sequence[traceback.FrameSummary], layout: str | None = None
) -> tuple[str, str, str]:
    """Fact, state and fix in the words of the command line.

    Where no line of the user's took part the state names the command line; the fix is in options, or in keys where no
    user's program is.
    """
    inner: list[traceback.FrameSummary] = []
    for frame in stack:
        inner = [] if os.path.dirname(frame.filename) == os.path.dirname(__file__) else [*inner, frame]
    state = error.state if error.is_placed or users_frames(inner) else error.state_at("on the command line")
    if layout is not None:
        return error.fact, state, reword(error.fix, layout)
    if users_frames(stack):
        return error.fact, state, error.fix
    return error.fact, state, reword(error.fix, str(error.layout or ""), KEY)


def _is_ours(note: str) -> bool:
    """Whether a note is JAX's on its own frames, or `wf.trace`'s, said already."""
    return "JAX_TRACEBACK_FILTERING" in note or note.startswith("while tracing ")


def _user_traceback(error: BaseException) -> str:
    """The traceback in the user's frames alone; whole where there are none."""
    whole = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = whole if line_of(error) else None
    while link is not None:
        link.stack = traceback.StackSummary.from_list(users_frames(link.stack))
        notes = [note for note in getattr(link, "__notes__", None) or [] if not _is_ours(note)]
        link.__notes__ = notes or None
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "".join(whole.format())
