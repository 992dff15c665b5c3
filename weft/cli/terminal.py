"""What reaches the terminal: coloured programs, errors without our own frames.

Text is coloured by what each line is, and only on a terminal; in a pipe it is byte for byte what `print` would print.
"""

import contextlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import typer

from ..errors import WeftError, WeftWarning
from ..program.lines import Printed
from ..train.own.code import UsersError, line_of, users_frames
from ..train.own.trust import Trust
from ..train.stopping import Interrupted, Stop
from ..train.wording import KEY, reword


@contextlib.contextmanager
def reported(*, layout: str | None = None, lost: str = "") -> Iterator[Stop]:
    """Prints a `WeftError` on stderr by its fact, state and fix, and exits with 1.

    A `WeftWarning` is printed in the same form. A fix speaks of `--layout` where that is what said the `layout`.
    SIGTERM and Ctrl-C end the command with the status that a shell has for them, and say what is `lost`.
    """
    with warnings.catch_warnings(), Stop(is_own=True, lost=lost) as stop:
        others = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, WeftWarning):
                _say("warning", _mend_place(str(message), traceback.extract_stack()[:-1]))
            else:
                others(message, category, *where, **more)

        warnings.showwarning = show
        try:
            yield stop
        except Interrupted as error:
            sys.stderr.write(f"{error}\n")
            raise typer.Exit(error.status) from None
        except WeftError as error:
            if isinstance(error, UsersError) and error.__cause__ is not None:
                sys.stderr.write(_user_traceback(error.__cause__) + "\n")
                _say("error", str(error))
            else:
                text = _reword(error, layout)
                _say("error", text if error.is_placed else _mend_place(text, traceback.extract_tb(error.__traceback__)))
            raise typer.Exit(1) from None


def trusting(is_said: bool) -> Trust:
    """What allows code of somebody else's: `--trust`, or a yes at the terminal."""
    return True if is_said else _ask


def _ask(fact: str) -> bool:
    return sys.stdin.isatty() and typer.confirm(f"{fact}\nRun it?", err=True)


def write(text: str) -> None:
    """Prints `text` on stdout as it is."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()  # a reader that has gone is noticed here, where Typer ends quietly, and not at exit


def titled(text: str) -> list[Printed]:
    """A table or a plan, its first line as a title."""
    title, *lines = text.splitlines()
    return [Printed(title, "title"), *map(Printed, lines)]


def write_program(lines: Sequence[Printed]) -> None:
    """Prints a program, a diff or a table, coloured if stdout is a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        return write("\n".join(line.text for line in lines))
    for line in lines:
        console.print(colour(line), soft_wrap=True)


_SOURCE = re.compile(r"(?<!\S)\S+\.py:\d+\b")
_STYLES = {"title": "bold", "section": "bold", "collective": "bold yellow", "added": "green", "removed": "red"}


def colour(line: Printed) -> Any:
    """A line as Rich text: collectives, headers and changes stand out."""
    from rich.text import Text

    text = Text(line.text, _STYLES.get(line.kind, ""))
    text.highlight_regex(_SOURCE, "not bold dim")
    return text


def _say(what: str, message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    text = Text(f"{what}: {message}")
    text.highlight_regex(r"^error:", "bold red")
    text.highlight_regex(r"^warning:", "bold yellow")
    text.highlight_regex(r"(?m)^  fix:", "bold green")
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)


def _reword(error: WeftError, layout: str | None) -> str:
    """The error with its fix in options, or in keys where no user's program is."""
    text = str(error)
    if layout is not None:
        fix = reword(error.fix, layout)
    elif users_frames(traceback.extract_tb(error.__traceback__)):
        return text
    else:
        written = re.search(r"layout: (\S*)", error.state)
        fix = reword(error.fix, written[1] if written else "", KEY)
    return text.removesuffix(error.fix) + fix


def _mend_place(message: str, stack: Iterable[traceback.FrameSummary]) -> str:
    """The message; where no line of the user's took part it names the command line."""
    inner: list[traceback.FrameSummary] = []
    for frame in stack:
        inner = [] if os.path.dirname(frame.filename) == os.path.dirname(__file__) else [*inner, frame]
    return (
        message
        if users_frames(inner)
        else re.sub(r"(?m)(^  |   )at (?!.*   at ).*$", r"\1on the command line", message)
    )


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
