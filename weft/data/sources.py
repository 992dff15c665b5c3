"""Sources of data: texts, bytes, token arrays, pairs, images; what is held out.

Imports fields alone. Opening a source finds its files and checks what was said about them; they are read only later. A
source is a pure function of its files: their order is that of their names.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..fields import bounded, one_of
from .compression import EXPANSION
from .errors import DataError
from .files import LONGEST_LINE, Hashes, Watch, blocks, content_key, decode_text, ends_key, lines, refuse_table
from .messages import Message, conversation_in
from .records import Records, columns, is_table, json_records, parallel, place_in, texts_in
from .tables import table_rows

FORMATS = "text lines bytes jsonl parquet arrow tokens pairs tsv images chat preferences".split()
RECORDS = ("jsonl", "parquet", "arrow")
WITH_ANSWERS = ("chat", "preferences")
"""Formats of chats, of which only answers are learned."""

DocumentPiece = tuple[str | bytes, bool]
"""A piece of a document, and whether the document ends with it."""


@dataclass(kw_only=True)
class SourceTable:
    """The keys of the table `data` in a run's file, as `open_source` reads them."""

    path: str | list[str]
    """A file, a folder, a name with stars, `s3://..`, or a list of these; `python` is Python's standard library."""
    format: str = one_of(*FORMATS, default=None)
    """How it is read; where not said, it follows from the name."""
    glob: str
    """Which files of a folder are read, like `*.txt`; all if not said."""
    documents: str = one_of("lines", "files", default=None)
    """Whether each line is a document, or each file; where not said, it follows from the name."""
    field: str
    """The key of the text in JSON lines, or the column in a table; `text` if not said, `messages` of chats."""
    fields: list[str]
    """The two keys or columns of pairs, source and target: `["en", "fr"]`."""
    source: str
    """The ending of the files that are translated from, like `en`: `train.en` of the path `train`."""
    target: str
    """The ending of the files that are translated to."""
    dtype: str
    """Of arrays of tokens without a header (`.bin`): `uint16`, `uint32`."""
    vocab: int
    """Of arrays of tokens: all ids are below it; the tokenizer's if not said."""
    end: int = bounded(least=0)
    """Of arrays of tokens: the id that ends a document."""
    range: list[int]
    """Of `bytes` of one file: from which byte on, and before which: `[0, 90_000_000]`."""
    held_out: int | float = bounded(least=0)
    """What is not learned from, to judge by: a share of the end (`0.05`), or a number of tokens or examples."""
    evaluation: str | list[str] | dict[str, Any]
    """Other data to judge by: a path, or a table with keys of its own."""
    template: str
    """The chat template: `chatml`, or a file; the tokenizer's if not said."""
    answers: str = one_of("all", "last")
    """Of chats: whether all answers are learned, or only the last."""
    mixture: list[dict]
    """`[[data.mixture]]`, several times: data of its own, each with a `weight`."""
    grows: bool
    """Whether files may come to the folder while it is learned from."""
    longest_line: int
    """The longest line that is read, in bytes; 1 MiB if not said."""
    expansion: int
    """How many times its size a compressed file may unpack to; 1000 if not said."""


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
    template: str | None = None
    answers: str = "all"
    grows: bool = False
    """Whether files come to it while it is learned from."""
    parts: tuple["Source", ...] = ()
    """Of a mixture: each with its weight."""
    weights: tuple[float, ...] = ()

    @property
    def is_pairs(self) -> bool:
        """Whether its examples have two sides."""
        return self.format in ("pairs", "tsv") or (self.format in RECORDS and self.fields is not None)

    @property
    def has_evaluation(self) -> bool:
        """Whether some of it, or another source, is there to judge by."""
        return bool(self.held_out) or self.held_apart is not None or any(part.has_evaluation for part in self.parts)

    @property
    def apart(self) -> list["Source"]:
        """The other sources that are there to judge by."""
        own = [] if self.held_apart is None else [self.held_apart]
        return own or [source for part in self.parts for source in part.apart]

    def key(self, cache: Path | None = None) -> str:
        """A hash of all in it: its files' names and contents, and how they are read."""
        if self.parts:
            return content_key([part.key(cache) for part in self.parts], self.weights)
        reading: tuple[Any, ...] = (self.format, self.field, self.fields, self.longest_line, self.dtype, self.end)
        reading = (*reading, self.range) if self.answers == "all" else (*reading, self.range, self.answers)
        return content_key(self.names, Hashes(cache).of(self.files), reading)

    def prints(self, cache: Path | None = None) -> list[tuple[str, str]]:
        """Fingerprints of its files by name: hashes of contents (arrays: sizes and ends)."""
        if self.parts:
            prints = [(i, *each) for i, part in enumerate(self.parts, 1) for each in part.prints(cache)]
            return [(f"{i}: {name}", each) for i, name, each in prints]
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
        elif self.format in RECORDS and not self.is_pairs:
            for file in self.files:
                yield from ((text, True) for (text,) in self._texts(file, (self.field,), watch) if text)
        else:
            raise DataError(f"a source of {self.format} has no documents", fix=_dataset_for(self))

    def pairs(self, watch: Watch | None = None) -> Iterator[tuple[str, str]]:
        """The pairs of texts in order; either side may be empty."""
        if not self.is_pairs:
            raise DataError(f"a source of {self.format} has no pairs", fix=_dataset_for(self))
        if self.format == "pairs":
            for one, other in zip(self.files[::2], self.files[1::2], strict=True):
                yield from parallel(one, other, self._lines(one, watch), self._lines(other, watch))
        for file in self.files:
            if self.format == "tsv":
                yield from columns(file, self._lines(file, watch))
            elif self.format in RECORDS and self.fields is not None:
                yield from ((one, other) for one, other in self._texts(file, self.fields, watch))

    def texts(self, watch: Watch | None = None) -> Iterator[str]:
        """All there is as text: both sides of pairs, and documents in pieces."""
        if self.parts:
            for part in self.parts:
                yield from part.texts(watch)
        elif self.is_pairs:
            for pair in self.pairs(watch):
                yield from pair
        elif self.format == "preferences":
            names = ("prompt", "chosen", "rejected")
            for file in self.files:
                for _, record in self.records(file, names[1:], names[:1], watch):
                    yield from _texts_within([record.get(name) for name in names])
        elif self.format == "chat":
            for _, messages in self.conversations(watch):
                yield from (message["content"] for message in messages)
        else:
            for piece, _ in self.pieces(watch):
                yield piece if isinstance(piece, str) else as_text(piece)

    def conversations(self, watch: Watch | None = None) -> Iterator[tuple[str, list[Message]]]:
        """The conversations in order, each with an answer, and where each stands."""
        if self.format != "chat":
            raise DataError(f"a source of {self.format} has no chats", fix=_dataset_for(self))
        for file in self.files:
            for number, record in self.records(file, self.fields or (self.field,), watch=watch):
                place = place_in(file, number)
                yield place, conversation_in(record, self.field, self.fields, place)

    def _lines(self, file: Path, watch: Watch | None) -> Iterator[tuple[int, str]]:
        return lines(file, self.longest_line, watch, self.expansion)

    def records(
        self, file: Path, needed: Sequence[str], optional: Sequence[str] = (), watch: Watch | None = None
    ) -> Records:
        """The records of a file, of tables these columns alone, each with its number."""
        if is_table(file, self.format):
            return table_rows(file, needed, optional, watch, self.expansion)
        return json_records(file, self._lines(file, watch))

    def _texts(self, file: Path, fields: Sequence[str], watch: Watch | None) -> Iterator[tuple[str, ...]]:
        return texts_in(file, self.records(file, fields, watch=watch), fields)

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


def _texts_within(value: Any) -> Iterator[str]:
    """The texts in a value of JSON, but for the names of its keys."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts_within(inner)


def as_text(piece: bytes) -> str:
    """Bytes as the text that they are."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"the data are bytes and no UTF-8: {piece[error.start : error.end]!r}", fix='say `tokenizer = "bytes"`'
        ) from None


def _dataset_for(source: Source) -> str:
    kinds = {"images": "image_dataset", "tokens": "lm_dataset", "chat": "chat_dataset"}
    kind = (kinds | {"preferences": "preference_dataset"}).get(source.format)
    return f"use `data.{kind or ('pair_dataset' if source.is_pairs else 'lm_dataset')}`"


def _of_one_document(pieces: Iterable[str | bytes]) -> Iterator[DocumentPiece]:
    last: str | bytes | None = None
    for piece in pieces:
        if last is not None:
            yield last, False
        last = piece
    if last is not None:
        yield last, True
