"""Files elsewhere: gs://, s3:// and what else `fsspec` reads, as streams.

Imports nothing of other rooms; fsspec, and the library of the protocol, are loaded where such a path is named. Nothing
is written there, and nothing is kept here but what is made of the data.
"""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from .errors import DataError, import_library

_INSTALL = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_FINGERPRINT = ("ETag", "etag", "md5Hash", "crc32c", "LastModified", "mtime", "updated", "created")
_BLOCK, _BUFFER = 1 << 22, 1 << 18


class Status(NamedTuple):
    """What is known of a file without reading it."""

    st_size: int


class RemotePath(PurePosixPath):
    """A file elsewhere, with what of a path the data ask for."""

    def __str__(self) -> str:
        return re.sub(r"^([A-Za-z0-9+.-]+):/+", r"\1://", super().__str__())

    def stat(self) -> Status:
        """Its size."""
        with reading(self):
            return Status(int(self._files().size(str(self))))

    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        with reading(self):
            return bool(self._files().exists(str(self)))

    def is_file(self) -> bool:
        """Whether it is a file."""
        with reading(self):
            return bool(self._files().isfile(str(self)))

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        with reading(self):
            return bool(self._files().isdir(str(self)))

    def open(self) -> IO[bytes]:
        """Its bytes as a stream."""
        with reading(self):
            return io.BufferedReader(self._files().open(str(self), "rb", block_size=_BLOCK), _BUFFER)

    def print(self) -> str:
        """What says that it is the same file, without reading it."""
        with reading(self):
            about = self._files().info(str(self))
        return "|".join([str(about.get("size")), *(str(about[name]) for name in _FINGERPRINT if name in about)])

    def files(self, pattern: str) -> list["RemotePath"]:
        """The files below it of this form, or those that its own stars name, by name."""
        scheme = str(self).partition("://")[0]
        with reading(self):
            files = self._files()
            if files.isfile(str(self)):
                return [self]
            named = str(self) if has_stars(self) else f"{str(self).rstrip('/')}/**/{pattern}"
            found = sorted(name for name in files.glob(named) if files.isfile(name))
        paths = [RemotePath(f"{scheme}://{name.lstrip('/')}") for name in found]
        return [path for path in paths if not any(part.startswith(".") for part in path.parts)]

    def _files(self) -> Any:
        fsspec = import_library("fsspec", f"{self}")
        scheme = str(self).partition("://")[0]
        try:
            return fsspec.filesystem(scheme)
        except (ImportError, ValueError) as error:
            known = scheme in _INSTALL
            fix = f"run `pip install {_INSTALL[scheme]}`" if known else "give a path of this machine, gs:// or s3://"
            raise DataError(f"{self} cannot be read: {error}", fix=fix) from None


def has_stars(path: PurePosixPath) -> bool:
    """Whether a path names files by a pattern."""
    return any(letter in str(path) for letter in "*?[")


def as_path(path: Any) -> Any:
    """A path of this machine, or of another's."""
    if isinstance(path, RemotePath):
        return path
    text = str(path)
    return RemotePath(text) if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text) else Path(text).expanduser()


def open_bytes(path: Any) -> IO[bytes]:
    """The bytes of a file, here or elsewhere."""
    return path.open() if isinstance(path, RemotePath) else open(path, "rb")


@contextlib.contextmanager
def reading(path: PurePosixPath) -> Iterator[None]:
    """Turns what a library of a protocol raises into an error that names the file."""
    try:
        yield
    except (DataError, GeneratorExit):
        raise
    except FileNotFoundError:
        raise DataError(f"there is no {path}", fix="see how it is named, and who may read it") from None
    except Exception as error:  # each protocol has errors of its own
        why = " ".join(f"{error}".split())[:200] or type(error).__name__
        raise DataError(
            f"{path} cannot be read: {why}", fix="see that it is named rightly, and who may read it; then try again"
        ) from None
