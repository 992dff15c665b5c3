"""The keys of a run's file: where they stand, and in which two runs differ."""

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
        """Where one of these is set on the command line, or else where the first stands."""
        places = [self._place(key) for key in keys]
        return next((place for place in places if place.startswith("--")), places[0])

    def _place(self, key: str) -> str:
        while key not in self.lines and "." in key:
            key = key.rpartition(".")[0]
        return self.lines.get(key, self.file)

    def set_on_command_line(self, key: str, by: str = "") -> None:
        """Says that a key, and tables made for it, stand on the command line `by` this."""
        for below in [other for other in self.lines if other.startswith(f"{key}.")]:
            del self.lines[below]
        above = key
        while "." in above:
            above = above.rpartition(".")[0]
            self.lines.setdefault(above, f"{SET} {key}")
        self.lines[key] = by or f"{SET} {key}"


def lines_of(path: Path, text: str) -> Where:
    """Where the keys of a file stand."""
    return Where(str(path), {key: f"{path}:{line}" for key, line in _lines(text).items()})


def _lines(text: str) -> dict[str, int]:
    """The line each key stands in, the first of a table that of its header."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[?\s*([\w.\-]+)\s*\]", line):
            table = header[1] + "."
            lines.setdefault(header[1], number)
        elif key := re.match(r"\s*([\w.\-]+)\s*=", line):
            lines.setdefault(table + key[1], number)
    return lines


def changes_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Where two configurations differ: keys that change what is learned, and others."""
    changed: list[str] = []
    free: list[str] = []
    for key, line in differences(old, new):
        is_free = key in FREE or key.split(".")[0] in FREE_TABLES
        (free if is_free else changed).append(line)
    return changed, free


def differences(old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Keys in which two configurations differ, each with its line.

    >>> differences({"train": {"steps": 100}}, {"train": {"steps": 200}})
    [('train.steps', 'train.steps: 100, now 200')]
    """
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        are_tables = all(value is None or isinstance(value, Mapping) for value in (before, after))
        if are_tables and before is not after:
            found += differences(before or {}, after or {}, f"{above}{key}.")
        elif before != after:
            found.append((f"{above}{key}", f"{above}{key}: {before}, now {after}"))
    return found
