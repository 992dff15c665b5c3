"""Reading files, compressed or not: their blocks, lines, and content hashes.

Imports small_files alone. A file that cannot be read, is cut short or holds what it should not is a DataError that
names the file and the line. At no time is more in memory than a few blocks or one line.
"""

import contextlib
import hashlib
import json
import lzma
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from ..small_files import Reader, short, summed
from .atomic import write_atomic
from .compression import BLOCK, COMPRESSED, EXPANSION, decompress
from .errors import DataError
from .remote import RemotePath, open_bytes

LONGEST_LINE = 1 << 20
_TABLES = {  # how files of tables begin, and how they are made lines of JSON
    b"PAR1": ("Parquet", "pandas.read_parquet({name!r})"),
    b"ARROW1": ("Arrow", "pandas.read_feather({name!r})"),
    b"\xff\xff\xff\xff": ("Arrow", "pyarrow.ipc.open_stream({name!r}).read_pandas()"),
    b"FEA1": ("Feather", "pandas.read_feather({name!r})"),
    b"ORC": ("ORC", "pandas.read_orc({name!r})"),
}

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes of the files are done, and how many there are."""


def plain_name(path: Path) -> str:
    """A file's name without the ending that says how it is compressed."""
    return path.stem if path.suffix in COMPRESSED else path.name


def files_in(path: Any, pattern: str = "*") -> list[Any]:
    """The file itself, or those in and below a folder by name, without hidden ones."""
    if isinstance(path, RemotePath):
        if not (there := path.files(pattern)):
            raise DataError(f"there is no {path}, nor a file in it of the form {pattern!r}", fix="see how it is named")
        return list(there)
    if not os.path.exists(path):
        raise DataError(f"there is no {short(path)}", fix="give a file or a folder that is there")
    if not path.is_dir():
        return [path]
    try:
        files = [
            file
            for file in path.rglob(pattern)
            if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
    except (ValueError, NotImplementedError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"`glob` is {short(pattern)!a} in {path}: {why}", fix='say it like `glob = "*.txt"`') from None
    if not files:
        raise DataError(f"{path} has no file of the form {pattern!r}", fix="name another folder, or another `glob`")
    return sorted(files, key=lambda file: file.relative_to(path).as_posix())


class Watch:
    """Tells a caller how far reading has come, in bytes of the files on disk."""

    def __init__(self, what: str, files: Iterable[Path], progress: Progress | None = None):
        self._what, self._progress = what, progress
        self._total = sum(file.stat().st_size for file in files) if progress else 0
        self._before = 0

    def at(self, position: int) -> None:
        """Says that so many bytes of the file now read are done."""
        if self._progress is not None:
            self._progress(self._what, self._before + position, self._total)

    def finish(self, file: Path) -> None:
        """Says that a file is done."""
        if self._progress is not None:
            self._before += file.stat().st_size
            self.at(0)


def blocks(path: Path, watch: Watch | None = None, expansion: int = EXPANSION) -> Iterator[tuple[int, bytes]]:
    """The bytes of a file and the number of the line each block begins in.

    A block ends after a line where there is one that ends in it, and never within a UTF-8 character.
    """
    line, kept = 1, b""
    with open_file(path, expansion) as (stream, raw), _reading(path, lambda: f"line {line}"):
        while chunk := stream.read(BLOCK):
            if watch is not None:
                watch.at(raw.tell())
            whole = kept + chunk
            end = _cut(whole)
            if end:
                yield line, whole[:end]
                line += whole.count(b"\n", 0, end)
            kept = whole[end:]
    if kept:
        yield line, kept
    if watch is not None:
        watch.finish(path)


def _cut(block: bytes) -> int:
    """Where a block may end: after a line, or before a character that may go on."""
    if end := block.rfind(b"\n") + 1:
        return end
    end = len(block)
    while end > 0 and len(block) - end < 4 and block[end - 1] & 0xC0 == 0x80:
        end -= 1
    return max(end - 1, 0) if block[end - 1] >= 0xC0 else len(block)


def lines(
    path: Path, longest: int = LONGEST_LINE, watch: Watch | None = None, expansion: int = EXPANSION
) -> Iterator[tuple[int, str]]:
    """The lines of a text file without their ends, each with its number, from 1."""
    number = 0
    with open_file(path, expansion) as (stream, raw), _reading(path, lambda: f"line {number + 1}"):
        _refuse_table(path, stream)
        while line := stream.readline(longest + 1):
            number += 1
            if len(line) > longest:
                raise DataError(
                    f"{path}:{number} has a line of more than {longest:,} bytes",
                    state=f"it begins {line[:40]!r}",
                    fix='break the line, or read the file as one text: `format = "text"`; or raise `longest_line`',
                )
            yield number, decode_text(line.rstrip(b"\r\n"), path, number)
            if watch is not None and number % 4096 == 0:
                watch.at(raw.tell())
    if watch is not None:
        watch.finish(path)


def refuse_table(path: Path) -> None:
    """Raises for a file of a kind that holds tables and no text: Parquet, Arrow."""
    with open_file(path) as (stream, _):
        _refuse_table(path, stream)


def _refuse_table(path: Path, stream: Any) -> None:
    begin = stream.peek(8)[:8]
    for mark, (kind, read) in _TABLES.items():
        if begin.startswith(mark):
            into, call = f"{plain_name(path)}.jsonl", read.format(name=str(path))
            fix = f"write its rows as lines of JSON, `{call}.to_json({into!r}, orient='records', lines=True)`, "
            fix += f"and give {into} with `field`, the column that holds the text"
            if path.suffix not in COMPRESSED and kind in ("Parquet", "Arrow"):
                fix = f'say `format = "{kind.lower()}"`, and `field`, the column that holds the text'
            raise DataError(
                f"{path} is a file of {kind}, a table, and text was expected", state=f"it begins {begin!r}", fix=fix
            )


def decode_text(content: bytes, path: Path, line: int) -> str:
    """Bytes of a file that begin in a line, as text."""
    if (place := content.find(b"\0")) >= 0:
        raise _garbage(path, line + content.count(b"\n", 0, place), "a zero byte", content[place : place + 1])
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = content[error.start : error.end]
        raise _garbage(path, line + content.count(b"\n", 0, error.start), "bytes that are no UTF-8", bad) from None


def _garbage(path: Path, line: int, what: str, content: bytes) -> DataError:
    return DataError(
        f"{path}:{line} holds {what}, and text was expected",
        state=f"found {content!r}",
        fix='read the file as bytes: `format = "bytes"`; or convert it to UTF-8, or take it out',
    )


@contextlib.contextmanager
def open_file(path: Path, expansion: int = EXPANSION) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The content of a file as a stream, and the file, whose place says how far."""
    with _reading(path, lambda: "its beginning"), open_bytes(path) as raw:
        yield decompress(path, raw, path.stat().st_size, expansion), raw


def read_all(stream: IO[bytes], most: int | None = None) -> bytes:
    """All that is in a stream, or `most` bytes; memory grows with what is there."""
    content = bytearray()
    while most is None or len(content) < most:
        block = stream.read(BLOCK if most is None else min(BLOCK, most - len(content)))
        if not block:
            break
        content += block
    return bytes(content)


@contextlib.contextmanager
def _reading(path: Path, where: Callable[[], str]) -> Iterator[None]:
    """Turns what reading may raise into an error that names the file and the place."""
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise _unreadable(path, where(), error) from None
    except Exception as error:
        if type(error).__module__.split(".")[0] != "zstandard" and type(error).__name__ != "ZstdError":
            raise
        raise _unreadable(path, where(), error) from None


def _unreadable(path: Path, where: str, error: Exception) -> DataError:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return DataError(
        f"{path} cannot be read beyond {where}: {why}",
        fix="fetch the file again, or see who may read it; what was made of it before is untouched",
    )


# What is in files, as one hash.


def content_key(*parts: Any) -> str:
    """A hash of what something is made of: equal parts have equal hashes.

    >>> content_key("bytes", 256) == content_key("bytes", 256) != content_key("bytes", 257)
    True
    """
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def ends_key(file: Path) -> str:
    """A hash of a file's size, first and last block: quick, also of a huge file."""
    with _reading(file, lambda: "its beginning"), open_bytes(file) as stream:
        size, first = file.stat().st_size, stream.read(BLOCK)
        stream.seek(max(size - BLOCK, 0))
        return hashlib.blake2b(b"%d|" % size + first + stream.read(BLOCK), digest_size=16).hexdigest()


class Hashes:
    """Hashes of files' contents, remembered for files that have not changed since.

    A file is known by its place, size, time and inode. One that changed within the last seconds is never remembered:
    it could change again within the clock's tick.
    """

    _SETTLED = 2.0

    def __init__(self, folder: Path | None):
        self._file = None if folder is None else folder / "hashes.json"
        self._known: dict[str, str] = {}
        with contextlib.suppress(DataError):  # it only saves time
            self._known = Reader(DataError).summed_json(self._file, {str: str}) if self._file else {}

    def of(self, files: Iterable[Path]) -> list[str]:
        """The hash of each file's bytes as they lie on disk."""
        before = len(self._known)
        hashes = [self._of(file) for file in files]
        if self._file is not None and len(self._known) > before:
            with contextlib.suppress(OSError):  # it only saves time
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(self._file, summed(self._known))
        return hashes

    def _of(self, file: Path) -> str:
        if isinstance(file, RemotePath):
            return content_key(str(file), file.print())
        with _reading(file, lambda: "its beginning"):
            status = file.stat()
            known_by = f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}|{status.st_ino}"
            if known_by in self._known:
                return self._known[known_by]
            content = hashlib.blake2b(digest_size=16)
            with open(file, "rb") as stream:
                while chunk := stream.read(BLOCK):
                    content.update(chunk)
        if time.time() - status.st_mtime > self._SETTLED:
            self._known[known_by] = content.hexdigest()
        return content.hexdigest()
