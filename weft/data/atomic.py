"""Atomic writes of files and folders: whole when they are there, or not there.

Imports nothing of the house. They are made under another name, locked by who makes them, and synced to disk before
they are renamed. A process that ends, however it does, gives back what it held: so what it left half made
is known by nobody holding it, and the next one that looks removes it.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PARTIAL = ".partial"


def write_atomic(path: Path, content: bytes) -> None:
    """Writes a file that is whole when it is there, also after a power cut."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with _new_file(partial) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    _sync_names(path.parent)


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, renamed to `folder` when all is on disk; gone if that fails."""
    partial, held = _new_partial(folder)
    try:
        yield partial
        for path in (*partial.rglob("*"), partial):
            _sync_names(path) if path.is_dir() else _sync(path)
        os.rename(partial, folder)
        _sync_names(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(held)


def _new_file(path: Path) -> IO[bytes]:
    while True:
        file = path.open("wb")
        lock(file.fileno())
        if path.exists():  # nobody took it for one left behind before it was held
            return file
        file.close()


def _new_partial(folder: Path) -> tuple[Path, int]:
    while True:
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=PARTIAL, dir=folder.parent))
        with contextlib.suppress(FileNotFoundError):
            held = os.open(partial, os.O_RDONLY)
            lock(held)
            if partial.is_dir():  # as above
                return partial, held
            os.close(held)


def remove_partial(folder: Path) -> None:
    """Removes what processes that are gone left half made in a folder."""
    for path in folder.glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY)
            try:
                if lock(file):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                os.close(file)


def lock(file: int) -> bool | None:
    """Locks a file until it is closed; False if someone has it, None if none can."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # a system, or a file system, without locks
        return None
    return True


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_names(folder: Path) -> None:
    """Syncs the names in a folder to disk, where the system can."""
    with contextlib.suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
