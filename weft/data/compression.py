"""Compressed files as streams (gzip, xz, Zstandard), with a limit on their size.

Imports nothing of other rooms. Memory is bounded, time is linear, and files may be of several parts. A file that is cut
short is one error, and a small file that holds far more than any text could is another.
"""

import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from .errors import DataError, import_library

BLOCK = 1 << 18
COMPRESSED = (".gz", ".xz", ".zst")
EXPANSION = 1000
"""How many times its size a file may unpack to, beyond what every file may: text takes a tenth of it at most."""
ALWAYS = 64 << 20  # bytes that any file may unpack to
_WINDOW = 128 << 20  # bytes of what was unpacked before that may be referred to
# So few packed bytes at a time: a block of Zstandard makes 128 KiB of four.
_PIECE = 512


def decompress(path: Path, raw: IO[bytes], size: int, expansion: int) -> IO[bytes]:
    """The content of an open file as a stream; the file itself if not compressed."""
    if path.suffix not in COMPRESSED:
        return raw
    if path.suffix == ".gz":
        stream: Any = gzip.GzipFile(fileobj=raw)
    elif path.suffix == ".xz":
        stream = _Parts(raw, lambda: lzma.LZMADecompressor(memlimit=2 * _WINDOW))
    else:
        zstandard = import_library("zstandard", f"{path}")
        stream = _Parts(raw, lambda: zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj())
    return io.BufferedReader(_Limited(stream, path, max(ALWAYS, expansion * size)), BLOCK)


class _Parts(io.RawIOBase):
    """Compressed parts as one stream (libraries' own miss that one was cut short)."""

    def __init__(self, raw: IO[bytes], new_part: Callable[[], Any]):
        self._raw, self._new_part, self._part = raw, new_part, new_part()
        self._is_within, self._ready = True, memoryview(b"")
        self._left = b""  # of the last piece, after a part's end

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._ready:
            packed, self._left = self._left or self._raw.read(_PIECE), b""
            if not packed:
                if self._is_within:
                    raise EOFError("the file is cut short")
                return 0
            if not self._is_within:
                packed = packed.lstrip(b"\0")  # parts of xz may stand apart by zeros
                if not packed:
                    continue
                self._part = self._new_part()
            self._ready = memoryview(self._part.decompress(packed))
            self._is_within = not self._part.eof
            self._left = b"" if self._is_within else self._part.unused_data
        size = min(len(into), len(self._ready))
        into[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


class _Limited(io.RawIOBase):
    """A stream that ends in an error after so many bytes."""

    def __init__(self, stream: Any, path: Path, most: int):
        self._stream, self._path, self._most, self._read = stream, path, most, 0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        size = self._stream.readinto(into)
        self._read += size
        if self._read > self._most:
            raise refuse_expansion(self._path, self._most)
        return size


def refuse_expansion(path: Path, most: int) -> DataError:
    """The error of a file that holds more than it may."""
    return DataError(
        f"{path} unpacks to more than {most:,} bytes",
        state=f"that is {EXPANSION:,} times its size unless `expansion` says otherwise, {ALWAYS:,} at least",
        fix="fetch it again if that cannot be; or let it: `expansion = 100_000` beside the data's `path`",
    )
