"""The keys of a run's file: the line each stands in, and those in which two configurations differ."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tables import FREE, FREE_TABLES

SET = "--set"


class Where:
    """Where each key stands."""

    def __init__(self, file: str, lines: dict[str, str]):
        self.file, self.lines = file, lines

    def __call__(self, *keys: str) -> str:
        """Where one of these stands that the command line sets, or else the first: its file and line.

        One within `{...}` stands where the key before it does.
        """
        places = [self._place(key) for key in keys]
        return next((place for place in places if place.startswith(SET)), places[0])

    def _place(self, key: str) -> str:
        while key not in self.lines and "." in key:
            key = key.rpartition(".")[0]
        return self.lines.get(key, self.file)

    def set_on_command_line(self, key: str) -> None:
        """Says that a key with all in it, and a table that is there for its sake alone, stands on the command line."""
        for below in [each for each in self.lines if each.startswith(f"{key}.")]:
            del self.lines[below]
        above = key
        while "." in above:
            above = above.rpartition(".")[0]
            self.lines.setdefault(above, f"{SET} {key}")
        self.lines[key] = f"{SET} {key}"


def lines_of(path: Path, text: str) -> Where:
    """Where the keys of a file stand."""
    return Where(str(path), {key: f"{path}:{line}" for key, line in _lines(text).items()})


def _lines(text: str) -> dict[str, int]:
    """The line each key stands in, the first of a table that of its header."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([\w.\-]+)\s*\]", line):
            table = header[1] + "."
            found.setdefault(header[1], number)
        elif key := re.match(r"\s*([\w.\-]+)\s*=", line):
            found.setdefault(table + key[1], number)
    return found


def changes_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The keys in which two configurations differ: those that change what is learned, and those that do not."""
    found = differences(old, new)
    free = [line for line in found if (key := line.split(":")[0]) in FREE or key.split(".")[0] in FREE_TABLES]
    return [line for line in found if line not in free], free


def differences(old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> list[str]:
    """The keys in which two configurations differ, with both values: `train.steps: 100, now 200`."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        are_tables = all(value is None or isinstance(value, Mapping) for value in (before, after))
        if are_tables and before is not after:
            found += differences(before or {}, after or {}, f"{above}{key}.")
        elif before != after:
            found.append(f"{above}{key}: {before}, now {after}")
    return found
