"""Records of data: lines of JSON, of columns, of parallel files; rows of tables.

Imports errors and small_files alone. What is wrong with one is said with its file and line.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import WeftError, closest
from ..small_files import is_text
from . import tables
from .errors import DataError

Lines = Iterator[tuple[int, str]]
Records = Iterator[tuple[int, Mapping[str, Any]]]


def is_table(path: Path, form: str) -> bool:
    """Whether a file of a source is a table: said to be one, or named as one."""
    return form in tables.FORMATS or path.suffix in tables.SUFFIXES


def place_in(path: Path, number: int) -> str:
    """Where a record stands: in a line, or in a row of a table."""
    return f"{path} row {number}" if path.suffix in tables.SUFFIXES else f"{path}:{number}"


def parallel(one: Path, other: Path, left: Lines, right: Lines) -> Iterator[tuple[str, str]]:
    number = 0
    while True:
        first, second = next(left, None), next(right, None)
        if first is None and second is None:
            return
        if first is None or second is None:
            short, long = (one, other) if first is None else (other, one)
            raise DataError(
                f"{short} ends after line {number}, and {long} goes on",
                state=f"line {number + 1} of {long}: {((first or second) or (0, ''))[1][:60]!r}",
                fix="give two files whose lines belong together, as many in each",
            )
        number += 1
        yield first[1], second[1]


def columns(path: Path, rows: Lines) -> Iterator[tuple[str, str]]:
    for number, line in rows:
        columns = line.split("\t")
        if len(columns) != 2:
            raise DataError(
                f"{path}:{number} has {len(columns) - 1} tabs, and a pair has one",
                state=f"the line begins {line[:60]!r}",
                fix="write a line for each pair: source, tab, target",
            )
        yield columns[0], columns[1]


def json_records(
    path: Path, rows: Lines, *, error: type[WeftError] = DataError, example: str = '{"text": "..."}'
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of JSON lines, each with the number of its line."""
    for number, line in rows:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as why:
            cause = "nested too deep" if isinstance(why, RecursionError) else why
            raise error(
                f"{path}:{number} is not JSON: {cause}", state=f"the line begins {line[:60]!r}", fix="mend the line"
            ) from None
        if not isinstance(record, dict):
            raise error(f"{path}:{number} is a {type(record).__name__}", fix=f"write objects: `{example}`")
        yield number, record


def texts_in(path: Path, records: Records, fields: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The texts in some fields of each record."""
    for number, record in records:
        yield tuple(text_in(record, name, path, number) for name in fields)


def text_in(record: Mapping[str, Any], name: str, path: Path, number: int) -> str:
    """The text in a field of a record."""
    place = place_in(path, number)
    if not isinstance(record.get(name), str):
        known = [key for key in record if is_text(key)]
        if name not in record:
            raise DataError(f"{place} has no field `{name}`", fix=f"say `field`; {closest(name, known)}")
        others = [f"`{key}`" for key in known if isinstance(record[key], str)]
        raise DataError(
            f"{place} has no text in its field `{name}`",
            state=f"it holds {record[name]!r:.60}",
            fix="write one there, or take it out" + (f"; or say `field`: {', '.join(others[:5])}" if others else ""),
        )
    check_text(record[name], f"its field `{name}`", place)
    return record[name]


def check_text(text: str, what: str, place: str) -> None:
    """Raises where a text cannot be written as UTF-8."""
    if not is_text(text):
        half = next(letter for letter in text if not is_text(letter))
        fix = "mend the line: such an escape is one of two that make a character together, and the other is missing"
        raise DataError(f"{place} has half a character, {half!a}, in {what}", fix=fix)
