"""Folders kept by what they are made of: made once, whole when they are there, shared by all who want the same.

Imports nothing of the house but its errors. An entry is made under another name and renamed; several processes may
ask for one at the same time: one makes it while the others wait, and where they cannot wait for each other the first
to finish wins.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .problems import DataError
from .whole import made_whole, remove_left_behind


def made_once(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` in the cache; where it is not there, `make` fills it first."""
    entry = cache / name
    if entry.is_dir():
        return entry
    try:
        cache.mkdir(parents=True, exist_ok=True)
        remove_left_behind(cache)
        with _turn(cache / f".{name}.lock"):
            if not entry.is_dir():
                _make(entry, make)
    except OSError as error:
        raise DataError(
            f"{entry} cannot be written: {error.strerror or error}",
            fix="make room, or name a cache folder with room that is yours; a run's lies in its own folder",
        ) from error
    return entry


def _make(entry: Path, make: Callable[[Path], None]) -> None:
    try:
        with made_whole(entry) as partial:
            os.chmod(partial, 0o755)  # a cache is for all who may see its folder
            make(partial)
    except OSError:
        if not entry.is_dir():  # another process may have been first
            raise


@contextlib.contextmanager
def _turn(lock: Path) -> Iterator[None]:
    """Waits until nobody else makes the same; where files cannot be locked, nobody waits."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(lock, "a") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    lock.unlink(missing_ok=True)
