"""Files of lines that are gone on with: a line counts once it is whole.

Imports nothing of other rooms. What a crash left of the last line is cut off where the file is opened again. One
process writes it at a time. Each batch of lines is on disk before the next one is begun.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from .atomic import lock
from .errors import DataError


class ResumableLines:
    """A file of lines, which are all there or not there; opened, it goes on.

    `is_mine` says of each line that is there already, with its number from 0, whether it is what would be written.
    """

    def __init__(self, path: Path, is_mine: Callable[[int, bytes], bool], of: str):
        self.path = path
        self._is_mine, self._of = is_mine, of
        self.done: list[bytes] = []
        """The lines that were there."""

    def __enter__(self) -> Self:
        try:
            self._file: IO[bytes] = self.path.open("a+b")
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror}", fix="name another file") from None
        try:
            if lock(self._file.fileno()) is False:
                raise DataError(f"another process writes {self.path}", fix="wait for it, or name another file")
            self._find_done()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, lines: Sequence[str]) -> None:
        """Writes lines, given without their ends, and waits until they are on disk."""
        self._file.write("".join(line + "\n" for line in lines).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _find_done(self) -> None:
        """Reads the lines that are whole; what there is of another is cut off."""
        self._file.seek(0)
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            if not self._is_mine(len(self.done), line):
                number = len(self.done) + 1
                raise DataError(
                    f"line {number} of {self.path} is not of line {number} of {self._of}",
                    state=f"it begins {line[:40]!r}",
                    fix="name another file with --out, or remove this one to begin anew",
                )
            self.done.append(line)
        size = sum(map(len, self.done))
        if size != self._file.seek(0, os.SEEK_END):
            self._file.truncate(size)
