"""The gallery of errors, docs/errors.md: programs that fail, what they print, and the same programs mended.

`python -m tests.errors.gallery` writes the page from gallery.txt anew; test_gallery.py holds the two together, and runs
every mended program. In gallery.txt `##` begins a group and `###` a case: the program that fails, `---`, and the same
mended; the first is what comes before all of them.
"""

import contextlib
import linecache
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weft as wf

TABLE = Path(__file__).parent / "gallery.txt"
PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
FILE = "program.py"

HEAD = """# Errors, and what to do

Programs that fail, what they print, and the program mended. This page is written by `python -m tests.errors.gallery`
from a table that the tests run: each error is the one that is printed today, and each mended program runs.
[How an error reads](how-to/read-an-error.md).

What comes before each program:

"""


@dataclass(frozen=True)
class Case:
    """A program that fails, by group and title, and the program mended."""

    group: str
    title: str
    broken: str
    mended: str


def read() -> tuple[str, list[Case]]:
    """What comes before every program, and all cases of the table in its order."""
    head, *groups = re.split(r"^## ", TABLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    cases = []
    for text in groups:
        group, *rows = re.split(r"\n+### ", text)
        for row in rows:
            title, programs = row.split("\n", 1)
            broken, mended = programs.split("\n---\n")
            cases.append(Case(group, title, broken, mended.rstrip("\n")))
    return head.split("\n", 1)[1].strip("\n"), cases


PRELUDE, CASES = read()


def prelude() -> dict[str, Any]:
    """The names that every program starts with."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(PRELUDE, names)
    return names


def run(program: str, names: dict[str, Any]) -> None:
    """Runs a program with names to start with; Weft's warnings are errors."""
    lines = [line + "\n" for line in program.splitlines()]
    linecache.cache[FILE] = (len(program), None, lines, FILE)
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("error", wf.WeftWarning)
        exec(compile(program, FILE, "exec"), dict(names))


def error_of(case: Case, names: dict[str, Any]) -> Exception:
    """The error or the warning that a case's program ends with."""
    try:
        run(case.broken, names)
    except (wf.WeftError, wf.WeftWarning) as error:
        return error
    raise AssertionError(f"the program of `{case.title}` runs")


def page() -> str:
    """The page, made by running every program that fails."""
    names, parts, group = prelude(), [HEAD + _block("python", PRELUDE)], ""
    for case in CASES:
        if case.group != group:
            parts.append(f"## {case.group}")
            group = case.group
        error = error_of(case, names)
        parts += [f"### {case.title}", _block("python", case.broken), _block("text", f"{_kind(error)}: {error}"),
                  "Mended:", _block("python", case.mended)]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _kind(error: Exception) -> str:
    """The name by which a user may catch it: `weft.DimError`, `weft.data.DataError`."""
    name, room = type(error).__name__, type(error).__module__.split(".")[1]
    return f"weft.{name}" if name in wf.__all__ else f"weft.{room}.{name}"


def _block(language: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    return f"```{language}\n{lines}\n```"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
