"""Sources of data: texts, bytes, token arrays, pairs, images; what is held out.

Imports the errors of the house alone. Opening a source finds its files and checks what was said about them; they are
read only later. A source is a pure function of its files: their order is that of their names.
"""

import json
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import is_real
from ..errors import closest
from ..fields import bounded, one_of
from ..small_files import is_file, is_text, short
from .compression import COMPRESSED, EXPANSION
from .errors import DataError
from .files import (
    LONGEST_LINE,
    Hashes,
    Watch,
    blocks,
    content_key,
    decode_text,
    ends_key,
    files_in,
    lines,
    plain_name,
    refuse_table,
)

FORMATS = ("text", "lines", "bytes", "jsonl", "tokens", "pairs", "tsv", "images")
PYTHON = "python"
HELD_OUT = 0.05
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")  # One Billion Words: a sentence a line
_SKIPPED = {"test", "tests", "idle_test", "idlelib_test", "site-packages", "dist-packages", "__pycache__"}

DocumentPiece = tuple[str | bytes, bool]
"""A piece of a document, and whether the document ends with it."""


@dataclass(kw_only=True)
class SourceTable:
    """The keys of the table `data` in a run's file, as `open_source` reads them."""

    path: str | list[str]
    format: str = one_of(*FORMATS)
    glob: str
    documents: str = one_of("lines", "files")
    field: str
    fields: list[str]
    source: str
    target: str
    dtype: str
    vocab: int
    end: int = bounded(least=0)
    range: list[int]
    held_out: int | float = bounded(least=0)
    evaluation: str | list[str] | dict[str, Any]
    longest_line: int
    expansion: int


SOURCE_KEYS = list(SourceTable.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Files and how they are read.

    `held_out`: the share of it, or the number of tokens, examples or images at its end that is for evaluation;
    `held_apart`: another source for that.
    """

    format: str
    files: tuple[Path, ...]
    names: tuple[str, ...]
    held_out: float | int = 0
    held_apart: "Source | None" = None
    longest_line: int = LONGEST_LINE
    expansion: int = EXPANSION
    field: str = "text"
    fields: tuple[str, str] | None = None
    dtype: str | None = None
    vocab: int | None = None
    end: int | None = None
    range: tuple[int, int] | None = None

    @property
    def is_pairs(self) -> bool:
        """Whether its examples have two sides."""
        return self.format in ("pairs", "tsv") or (self.format == "jsonl" and self.fields is not None)

    def key(self, cache: Path | None = None) -> str:
        """A hash of all in it: its files' names and contents, and how they are read."""
        reading = (self.format, self.field, self.fields, self.longest_line, self.dtype, self.end, self.range)
        return content_key(self.names, Hashes(cache).of(self.files), reading)

    def prints(self, cache: Path | None = None) -> list[tuple[str, str]]:
        """Fingerprints of its files by name: hashes of contents (arrays: sizes and ends)."""
        hashes = [ends_key(file) for file in self.files] if self.format == "tokens" else Hashes(cache).of(self.files)
        return list(zip(self.names, hashes, strict=True))

    def watch(self, what: str, progress: Any = None) -> Watch:
        """What tells a caller how far reading has come."""
        return Watch(what, self.files, progress)

    def pieces(self, watch: Watch | None = None) -> Iterator[DocumentPiece]:
        """The documents in order, streamed: long ones in pieces, empty ones left out."""
        if self.format in ("text", "bytes"):
            for file in self.files:
                yield from _of_one_document(self._blocks(file, watch))
        elif self.format == "lines":
            for file in self.files:
                yield from ((line, True) for _, line in self._lines(file, watch) if line)
        elif self.format == "jsonl" and not self.is_pairs:
            for file in self.files:
                yield from ((record[0], True) for record in self._records(file, (self.field,), watch) if record[0])
        else:
            raise DataError(f"a source of {self.format} has no documents", fix=_dataset_for(self))

    def pairs(self, watch: Watch | None = None) -> Iterator[tuple[str, str]]:
        """The pairs of texts in order; either side may be empty."""
        if not self.is_pairs:
            raise DataError(f"a source of {self.format} has no pairs", fix=_dataset_for(self))
        if self.format == "pairs":
            for one, other in zip(self.files[::2], self.files[1::2], strict=True):
                yield from _parallel(one, other, self._lines(one, watch), self._lines(other, watch))
        for file in self.files:
            if self.format == "tsv":
                yield from _columns(file, self._lines(file, watch))
            elif self.format == "jsonl" and self.fields is not None:
                yield from ((one, other) for one, other in self._records(file, self.fields, watch))

    def texts(self, watch: Watch | None = None) -> Iterator[str]:
        """All there is as text: both sides of pairs, and documents in pieces."""
        if self.is_pairs:
            for pair in self.pairs(watch):
                yield from pair
        for piece, _ in () if self.is_pairs else self.pieces(watch):
            yield piece if isinstance(piece, str) else as_text(piece)

    def _lines(self, file: Path, watch: Watch | None) -> Iterator[tuple[int, str]]:
        return lines(file, self.longest_line, watch, self.expansion)

    def _records(self, file: Path, fields: Iterable[str], watch: Watch | None) -> Iterator[tuple[str, ...]]:
        return _records(file, self._lines(file, watch), fields)

    def _blocks(self, file: Path, watch: Watch | None) -> Iterator[str | bytes]:
        if self.format == "text":
            refuse_table(file)
            yield from (decode_text(block, file, line) for line, block in blocks(file, watch, self.expansion))
            return
        begin, end = self.range or (0, 1 << 62)
        place = 0
        for _, block in blocks(file, watch, self.expansion):
            if kept := block[max(begin - place, 0) : max(end - place, 0)]:
                yield kept
            place += len(block)
            if place >= end:
                return
        if place < begin or (self.range and place < end):
            raise DataError(
                f"{file} has {place:,} bytes, and `range` asks for {begin:,} to {end:,}", fix="say a range within it"
            )


def as_text(piece: bytes) -> str:
    """Bytes as the text that they are."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"the data are bytes and no UTF-8: {piece[error.start : error.end]!r}", fix='say `tokenizer = "bytes"`'
        ) from None


def _dataset_for(source: Source) -> str:
    kind = {"images": "image_dataset", "tokens": "lm_dataset"}.get(source.format)
    return f"use `data.{kind or ('pair_dataset' if source.is_pairs else 'lm_dataset')}`"


def _of_one_document(pieces: Iterable[str | bytes]) -> Iterator[DocumentPiece]:
    last: str | bytes | None = None
    for piece in pieces:
        if last is not None:
            yield last, False
        last = piece
    if last is not None:
        yield last, True


# Lines of several kinds.


Lines = Iterator[tuple[int, str]]


def _parallel(one: Path, other: Path, left: Lines, right: Lines) -> Iterator[tuple[str, str]]:
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


def _columns(path: Path, rows: Lines) -> Iterator[tuple[str, str]]:
    for number, line in rows:
        columns = line.split("\t")
        if len(columns) != 2:
            raise DataError(
                f"{path}:{number} has {len(columns) - 1} tabs, and a pair has one",
                state=f"the line begins {line[:60]!r}",
                fix="write a line for each pair: source, tab, target",
            )
        yield columns[0], columns[1]


def _records(path: Path, rows: Lines, fields: Iterable[str]) -> Iterator[tuple[str, ...]]:
    for number, line in rows:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            why = "nested too deep" if isinstance(error, RecursionError) else error
            raise DataError(
                f"{path}:{number} is not JSON: {why}", state=f"the line begins {line[:60]!r}", fix="mend the line"
            ) from None
        if not isinstance(record, dict):
            raise DataError(f"{path}:{number} is a {type(record).__name__}", fix='write objects: `{"text": "..."}`')
        yield tuple(_field(record, name, path, number) for name in fields)


def _field(record: Mapping[str, Any], name: str, path: Path, number: int) -> str:
    if not isinstance(record.get(name), str):
        what = f"no field `{name}`" if name not in record else f"no text in its field `{name}`"
        known = [key for key in record if is_text(key)]
        raise DataError(f"{path}:{number} has {what}", fix=f"say `field`; {closest(name, known)}")
    if not is_text(record[name]):
        half = next(letter for letter in record[name] if not is_text(letter))
        fix = "mend the line: such an escape is one of two that make a character together, and the other is missing"
        raise DataError(f"{path}:{number} has half a character, {half!a}, in its field `{name}`", fix=fix)
    return record[name]


# Opening.


def open_source(spec: Any) -> Source:
    """The source that a path, `"python"`, or a table of a run's TOML describes.

    `path` (one or several), `format` (of FORMATS; where not said it is read off the name), `glob` for folders,
    `documents = "lines"` for texts whose lines are documents, `field` or `fields` of JSON lines, `source` and
    `target` endings of parallel files, `dtype`, `end` and `vocab` of arrays of tokens, `range` of bytes,
    `held_out` (a share of the end, or a number) or `evaluation` (a source of its own), `longest_line`, and
    `expansion`, how many times its size a compressed file may unpack to.
    """
    table = dict(spec) if isinstance(spec, Mapping) else {"path": spec}
    if (unknown := next((key for key in table if key not in SOURCE_KEYS), None)) is not None:
        raise DataError(f"`{unknown}` says nothing about data", fix=closest(unknown, SOURCE_KEYS))
    if "path" not in table:
        raise DataError("the data have no `path`", fix='say `path = "folder"`, or `path = "python"`')
    form = table.get("format")
    if form is not None and form not in FORMATS:
        raise DataError(f"there is no format {form!r}", fix=closest(str(form), FORMATS))
    if table["path"] == PYTHON:
        files, names = _python_files()
        return _make_source("bytes", files, names, {"held_out": HELD_OUT} | table)
    return _open_paths(table, form)


def _open_paths(table: dict[str, Any], form: str | None) -> Source:
    listed = table["path"] if isinstance(table["path"], list | tuple) else [table["path"]]
    paths = [Path(path).expanduser() for path in listed]
    if not paths:
        raise DataError("`path` names no file", fix="name one, or several")
    if form == "pairs" or (form is None and (table.get("source") or _is_parallel(paths))):
        return _make_source("pairs", *_parallel_files(paths, table), table)
    files, names = [], []
    for path in paths:
        for file in files_in(path, table.get("glob", "*")):
            files.append(file)
            names.append(file.relative_to(path).as_posix() if file != path else file.name)
    form = form or _guess_format(files, table)
    if form == "images":
        return _images(files, names, table)
    if not any(file.stat().st_size for file in files):
        raise _empty(files)
    return _make_source(form, files, names, table)


def _make_source(form: str, files: Iterable[Path], names: Iterable[str], table: Mapping[str, Any]) -> Source:
    plain = {key: table[key] for key in ("longest_line", "expansion", "field", "dtype", "vocab", "end") if key in table}
    held_out, apart = table.get("held_out", 0), table.get("evaluation")
    if not is_real(held_out) or not _is_share(held_out):
        raise DataError(f"`held_out` is {held_out!r}", fix="say a share of the end as `0.05`, or a number as `5000`")
    files = tuple(files)
    if not files or not any(file.exists() and file.stat().st_size for file in files):
        raise _empty(files)
    if apart is not None:
        beside = apart if isinstance(apart, Mapping) else {"path": apart}
        shared = {key: value for key, value in table.items() if key not in ("path", "evaluation", "held_out", "range")}
        apart, held_out = open_source(shared | {"format": form} | dict(beside)), 0
    return Source(
        format=form,
        files=files,
        names=tuple(names),
        held_out=held_out,
        held_apart=apart,
        fields=_fields(table.get("fields")),
        range=_range(table.get("range"), form, len(files)),
        **plain,
    )


def _fields(value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise DataError(f"`fields` is {value!r}", fix='name both sides of a pair: `fields = ["en", "fr"]`')
    return str(value[0]), str(value[1])


def _is_share(held_out: float | int) -> bool:
    return held_out >= 0 if isinstance(held_out, int) else 0 <= held_out < 1


def _range(value: Any, form: str, files: int) -> tuple[int, int] | None:
    if value is None:
        return None
    if form != "bytes" or files != 1:
        raise DataError("`range` is of the bytes of one file", fix='say `format = "bytes"`, or leave `range` out')
    if len(value) != 2 or not 0 <= value[0] < value[1]:
        raise DataError(f"`range` is {value!r}", fix="say where it begins and where it ends: `[0, 90_000_000]`")
    return int(value[0]), int(value[1])


def _empty(files: Iterable[Path]) -> DataError:
    named = ", ".join(str(file) for file in list(files)[:3])
    return DataError(f"there is nothing in {named}", state="0 bytes", fix="give a file that has something in it")


def _guess_format(files: list[Path], table: Mapping[str, Any]) -> str:
    documents = table.get("documents")
    if documents not in (None, "lines", "files"):
        raise DataError(f"`documents` is {documents!r}", fix='say `documents = "lines"` or `documents = "files"`')
    names = [plain_name(file) for file in files]
    endings = {".jsonl": "jsonl", ".tsv": "tsv", ".npy": "tokens", ".bin": "tokens"}
    if form := endings.get(Path(names[0]).suffix):
        return form
    if "idx3-ubyte" in names[0] or any("idx3-ubyte" in name for name in names):
        return "images"
    if names[0] in ("enwik8", "enwik9", "text8"):
        return "bytes"
    return "lines" if documents == "lines" or (documents is None and _SHARD.search(names[0])) else "text"


def _is_parallel(paths: list[Path]) -> bool:
    """Whether two files differ in a short ending alone: `train.en` and `train.fr`."""
    if len(paths) != 2 or any(path.is_dir() for path in paths):
        return False
    one, other = (Path(plain_name(path)) for path in paths)
    return one.stem == other.stem and one.suffix != other.suffix and 2 <= len(one.suffix) <= 4


def _parallel_files(paths: list[Path], table: Mapping[str, Any]) -> tuple[list[Path], list[str]]:
    """The files of both sides in turn. A path without its ending stands for both."""
    if table.get("source") and table.get("target"):
        sides = [_side(path, table[side]) for path in paths for side in ("source", "target")]
    elif len(paths) % 2 == 0:
        sides = [file for path in paths for file in files_in(path)]
    else:
        raise DataError(
            f"{paths[0]} is one side of pairs at most", fix='give two files, or `source = "en"` and `target = "fr"`'
        )
    return sides, [side.name for side in sides]


def _side(path: Path, ending: str) -> Path:
    tried = [path.with_name(f"{path.name}.{ending}{packed}") for packed in ("", *COMPRESSED)]
    if found := next((file for file in tried if is_file(file)), None):
        return found
    raise DataError(
        f"there is no {short(tried[0])}", state=f"nor with {', '.join(COMPRESSED)}", fix="see how it is named"
    )


def _images(files: list[Path], names: list[str], table: Mapping[str, Any]) -> Source:
    """Images and their labels, in turn; `t10k` and `test` in a folder are held apart."""
    by_part: dict[bool, list[Path]] = {False: [], True: []}
    for file in files:
        if "images-idx3" in file.name:
            beside = file.with_name(plain_name(file).replace("images-idx3", "labels-idx1"))
            compressed = [beside.with_name(f"{beside.name}{ending}") for ending in COMPRESSED]
            labels = next((path for path in (beside, *compressed) if path.is_file()), None)
            if labels is None:
                raise DataError(f"there is no {beside} for {file}", fix="put the labels beside the images")
            by_part[file.name.startswith(("t10k", "test")) and len(files) > 1] += [file, labels]
    train, test = by_part[False] or by_part[True], by_part[True]
    apart = {"path": [str(file) for file in test[::2]]} if by_part[False] and test else None
    if "evaluation" not in table and apart is not None:
        table = {**table, "evaluation": apart}
    return _make_source("images", train, [file.name for file in train], table)


def _python_files() -> tuple[list[Path], list[str]]:
    """Python's standard library on this machine as files by name, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {file.relative_to(root).as_posix(): file for file in root.rglob("*.py")}
    names = sorted(name for name in files if not _SKIPPED & set(name.split("/")[:-1]))
    if not names:
        raise DataError(f"{root} has no source of Python's standard library", fix="give a folder of texts instead")
    return [files[name] for name in names], names
