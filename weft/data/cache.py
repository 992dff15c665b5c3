"""A cache of folders by a hash of what they are made of.

An entry is made under another name and renamed; several processes may ask for one at the same time: one makes it while
the others wait, and where they cannot wait for each other the first to finish wins. A sum of the bits of each of its
files is kept with it and compared whenever it is opened: one that is not what was written is told and made anew.
"""

import contextlib
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import WeftWarning, user_stacklevel
from ..small_files import Reader, summed
from .atomic import atomic_folder, remove_partial
from .errors import DataError

SUMS = "sums.json"
_READ = 1 << 22


def make_once(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` in the cache, filled by `make` unless it is there and whole."""
    entry = cache / name
    if entry.is_dir() and not _damage(entry):
        return entry
    try:
        cache.mkdir(parents=True, exist_ok=True)
        remove_partial(cache)
        with _turn(cache / f".{name}.lock"):
            if entry.is_dir() and (damage := _damage(entry)):
                _remove(entry, damage)
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
        with atomic_folder(entry) as partial:
            os.chmod(partial, 0o755)  # a cache is for all who may see its folder
            make(partial)
            (partial / SUMS).write_bytes(summed({file.name: _sum(file) for file in partial.iterdir()}))
    except OSError:
        if not entry.is_dir():  # another process may have been first
            raise


def _damage(entry: Path) -> str:
    """What is wrong with an entry's files; empty where they are what was written."""
    try:
        sums = Reader(DataError).summed_json(entry / SUMS, {str: [int]})
        written = {file.name: _sum(file) for file in entry.iterdir() if file.name != SUMS}
    except DataError as error:
        return error.fact
    except OSError as error:
        return f"{entry} cannot be read: {error.strerror}"
    wrong = next((name for name in sorted(sums.keys() | written.keys()) if sums.get(name) != written.get(name)), None)
    return "" if wrong is None else f"{entry / wrong} is not what was written"


def _sum(file: Path) -> list[int]:
    """The size of a file and its CRC-32."""
    size, crc = 0, 0
    with open(file, "rb") as stream:
        while block := stream.read(_READ):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]


def _remove(entry: Path, damage: str) -> None:
    warnings.warn(f"{damage}; this part of the cache is made anew", WeftWarning, stacklevel=user_stacklevel())
    aside = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", suffix=".partial", dir=entry.parent))
    os.rename(entry, aside / entry.name)  # at once: nobody finds half of it
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def _turn(lock: Path) -> Iterator[None]:
    """Waits until nobody else makes the same, where files can be locked."""
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
