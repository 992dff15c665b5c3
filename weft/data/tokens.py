"""Tokenised documents in memory-mapped files: ids, and where each begins.

Imports errors and small_files alone. Made once for a source and a tokenizer. Whoever opens it reads it once, for the
sum of its bits, and then only the pages that its own rows lie on.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from ..errors import WeftError
from ..small_files import Reader
from .cache import make_once
from .errors import DataError
from .files import Progress, content_key, open_file, plain_name, read_all
from .remote import RemotePath
from .sources import DocumentPiece, Source
from .tokenizers import Tokenizer

_AT_ONCE = 16 << 20  # characters given to a tokenizer at a time
_SCANNED = 1 << 24  # ids looked at at a time
_VERSION = 2
_IDS, _OFFSETS, _ABOUT = "tokens.bin", "offsets.npy", "told.json"


@dataclass(frozen=True)
class Tokens:
    """Ids of documents, below `vocab`; number i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray
    offsets: np.ndarray
    vocab: int

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1

    def document(self, i: int) -> np.ndarray:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def between(self, begin: int, end: int) -> "Tokens":
        """The ids from one place to another; a document that is cut is one in each part."""
        inner = self.offsets[np.searchsorted(self.offsets, begin, "right") : np.searchsorted(self.offsets, end, "left")]
        return Tokens(self.ids[begin:end], np.concatenate([[begin], inner, [end]]) - begin, self.vocab)


def tokenise(source: Source, tokenizer: Tokenizer | None, cache: Path, progress: Progress | None = None) -> Tokens:
    """The documents of a source as tokens, each closed by `end` if there is one."""
    if source.format == "tokens":
        return _open_arrays(source, tokenizer, cache)
    if tokenizer is None:
        raise DataError(f"there is no tokenizer for {source.files[0]}", fix='say `tokenizer = "bytes"`, or train one')
    _check_end(tokenizer)
    key = content_key("tokens", _VERSION, source.key(cache), tokenizer.key)

    def make(entry: Path) -> None:
        pieces = source.pieces(source.watch("tokenising", progress))
        if not _write(entry, tokenizer, pieces):
            raise DataError(
                f"there is no text in {source.files[0]}", state="0 tokens", fix="give a source that has some"
            )
        _write_about(entry, source, tokenizer)

    return _open_cached(make_once(cache, f"tokens-{key}", make))


def tokenise_pairs(
    source: Source, tokenizer: Tokenizer, cache: Path, progress: Progress | None = None
) -> tuple[Tokens, Path]:
    """Both sides of a source's pairs, none empty, as documents; and their folder."""
    if tokenizer.end is None:
        raise DataError(
            "the tokenizer has no `end`, and a model that writes must learn to end",
            fix='say `{kind = "bytes", specials = true}`, or name the `end` token',
        )
    key = content_key("pairs", _VERSION, source.key(cache), tokenizer.key)

    def make(entry: Path) -> None:
        def pieces() -> Iterator[DocumentPiece]:
            for one, other in source.pairs(source.watch("tokenising", progress)):
                if one.strip() and other.strip():
                    yield one, True
                    yield other, True

        if not _write(entry, tokenizer, pieces()):
            raise DataError(
                f"there is no pair in {source.files[0]}", state="0 pairs", fix="give a source that has some"
            )
        _write_about(entry, source, tokenizer)

    entry = make_once(cache, f"pairs-{key}", make)
    return _open_cached(entry), entry


def _check_end(tokenizer: Tokenizer) -> None:
    if tokenizer.end is not None and not 0 <= tokenizer.end < tokenizer.vocab:
        raise DataError(
            f"the tokenizer ends documents with id {tokenizer.end}, and has {tokenizer.vocab} ids",
            fix="give a tokenizer whose `end` is one of its ids",
        )


def _write(folder: Path, tokenizer: Tokenizer, pieces: Iterable[DocumentPiece]) -> int:
    """Writes ids and offsets; gives the number of ids."""
    dtype, total = id_type(tokenizer.vocab), 0
    offsets = [np.zeros(1, np.int64)]
    with open(folder / _IDS, "wb") as file:
        for ids, ends in _encode(tokenizer, pieces):
            if tokenizer.end is not None:
                ids = np.insert(ids.astype(dtype), ends, tokenizer.end)
                ends = ends + np.arange(1, len(ends) + 1)
            file.write(np.ascontiguousarray(ids, dtype).data)
            offsets.append(total + ends)
            total += len(ids)
    np.save(folder / _OFFSETS, np.concatenate(offsets))
    return total


def _encode(tokenizer: Tokenizer, pieces: Iterable[DocumentPiece]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids of many pieces at a time, and after how many of them documents end."""
    texts: list[str | bytes] = []
    closes: list[bool] = []
    size = 0
    for piece, is_last in pieces:
        texts.append(piece)
        closes.append(is_last)
        size += len(piece) + 64  # what a piece itself costs
        if size >= _AT_ONCE:
            yield _encode_once(tokenizer, texts, closes)
            texts, closes, size = [], [], 0
    if texts:
        yield _encode_once(tokenizer, texts, closes)


def _encode_once(tokenizer: Tokenizer, texts: list[str | bytes], closes: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    ids, lengths = tokenizer.encode_all(texts)
    return ids, np.cumsum(lengths)[np.array(closes)]


def _write_about(folder: Path, source: Source, tokenizer: Tokenizer) -> None:
    about = {"vocab": tokenizer.vocab, "end": tokenizer.end, "files": list(source.names), "version": _VERSION}
    (folder / _ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")


def _open_cached(folder: Path) -> Tokens:
    """The tokens in a folder of the cache, whose sums were compared."""
    fix = "remove that folder; it is made anew"
    vocab = Reader(DataError, fix).json(folder / _ABOUT, {"vocab": int})["vocab"]
    try:
        ids = _plain(np.memmap(folder / _IDS, id_type(vocab), "r"))
        offsets = _plain(np.load(folder / _OFFSETS, mmap_mode="r"))
    except (OSError, ValueError) as error:
        raise DataError(f"the cache {folder} cannot be read: {error}", fix=fix) from None
    return Tokens(ids, offsets, vocab)


def _plain(mapped: np.ndarray) -> np.ndarray:
    """A `memmap` as a plain array of the same pages: slicing it is ten times as fast."""
    return mapped.view(np.ndarray)


def id_type(vocab: int) -> np.dtype:
    """The smallest type that holds the ids of a vocabulary."""
    return np.dtype(np.uint8 if vocab <= 1 << 8 else np.uint16 if vocab <= 1 << 16 else np.uint32)


# Arrays of tokens that are there already.


def _open_arrays(source: Source, tokenizer: Tokenizer | None, cache: Path) -> Tokens:
    """Arrays of tokens as they are, cut at each `end`: one mapped, several joined."""
    arrays = [_array(file, source) for file in source.files]
    sizes = [len(array) for array in arrays]
    if not sum(sizes):
        raise DataError(f"there is nothing in {source.files[0]}", state="0 tokens", fix="give an array of tokens")
    ends, most = [], -1
    for array, file, first in zip(arrays, source.files, np.cumsum(sizes) - sizes, strict=True):
        for begin in range(0, len(array), _SCANNED):
            block = array[begin : begin + _SCANNED]
            if block.min() < 0:
                raise DataError(f"{file} has a token {block.min()}", fix="give ids from 0 on")
            most = max(most, int(block.max()))
            if source.end is not None:
                ends.append(np.flatnonzero(block == source.end) + begin + first + 1)
    vocab = source.vocab or (tokenizer.vocab if tokenizer is not None else most + 1)
    _check_ids(most, vocab, f"{source.files[0]}", "`vocab` of the data" if source.vocab else "the tokenizer")
    inner = np.unique(np.concatenate([*ends, np.cumsum(sizes)]))
    offsets = inner if inner[0] == 0 else np.concatenate([[0], inner])
    ids = arrays[0] if len(arrays) == 1 else _join(source, arrays, vocab, cache)
    return Tokens(ids, offsets.astype(np.int64), vocab)


def _join(source: Source, arrays: list[np.ndarray], vocab: int, cache: Path) -> np.ndarray:
    dtype = id_type(vocab)

    def make(entry: Path) -> None:
        with open(entry / _IDS, "wb") as file:
            for array in arrays:
                for begin in range(0, len(array), _SCANNED):
                    file.write(array[begin : begin + _SCANNED].astype(dtype).data)

    entry = make_once(cache, f"tokens-{content_key('joined', source.key(cache), str(dtype))}", make)
    return _plain(np.memmap(entry / _IDS, dtype, "r"))


def _array(file: Path, source: Source) -> np.ndarray:
    """The array in a file: memory-mapped, or read where it is compressed."""
    name, is_packed = plain_name(file), plain_name(file) != file.name
    if isinstance(file, RemotePath):
        raise DataError(f"{file} is elsewhere, and arrays of tokens are mapped into memory", fix="copy it here first")
    with open_file(file, source.expansion) as (stream, _):
        shape, dtype = _header(file, stream) if name.endswith(".npy") else (None, _dtype(file, source.dtype))
        begin = stream.tell() if not is_packed else 0
        there = read_all(stream) if is_packed else b""
    held = len(there) if is_packed else file.stat().st_size - begin
    size = held if shape is None else math.prod(shape) * dtype.itemsize
    if held < size or (shape is None and size % dtype.itemsize):
        wanted = f"{size:,} bytes of {dtype} by its header" if shape else f"a whole number of {dtype}"
        fix = "fetch the file again" if shape else "say its `dtype`, or write it anew"
        raise DataError(f"{file} is no array of tokens: it has {held:,} bytes of data, and not {wanted}", fix=fix)
    count = size // dtype.itemsize
    if is_packed or not count:
        return np.frombuffer(there[:size], dtype)
    return _plain(np.memmap(file, dtype, "r", begin, (count,)))


def _header(file: Path, stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and dtype in the header of an .npy file: integers in one row."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = read(stream)
    except Exception as error:  # NumPy reads it as Python, which raises many kinds
        if isinstance(error, WeftError):
            raise
        raise DataError(f"{file} is no array of tokens: {_first_line(error)}", fix="write it anew") from None
    if len(shape) != 1 or shape[0] < 0 or not np.issubdtype(dtype, np.integer):
        raise DataError(f"{file} holds {dtype}[{', '.join(map(str, shape))}]", fix="give integers in one row")
    return shape, dtype


def _dtype(file: Path, name: str | None) -> np.dtype:
    try:
        dtype = np.dtype(name or "uint16")
    except Exception as error:  # NumPy reads a language of its own, which raises many kinds
        raise DataError(f"{file} is no array of tokens: {_first_line(error)}", fix="say its `dtype`") from None
    if not np.issubdtype(dtype, np.integer):
        raise DataError(f"`dtype` is {dtype}, and tokens are integers", fix='say `dtype = "uint16"`')
    return dtype


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def _check_ids(most: int, vocab: int, what: str, whose: str) -> None:
    """Raises where an id is not in a vocabulary."""
    if most >= vocab:
        raise DataError(
            f"{what} has id {most}, and {whose} has {vocab} ids",
            fix=f"use the tokenizer the data were made with, or a model with `vocab = {most + 1}` or more",
        )
