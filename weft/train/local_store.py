"""Checkpoints in a folder of this machine, by Orbax.

A folder is removed only where its own name or a file in it says that it may be: while it is written it holds `saving`,
and one that is no longer kept is renamed first. Arrays that lack their `checkpoint.json` otherwise are set aside.
"""

import atexit
import contextlib
import gc
import logging
import shutil
import sys
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.atomic import write_atomic
from ..errors import WeftWarning, user_stacklevel
from ..libraries import import_library
from ..small_files import summed
from .processes import is_of_others
from .stores import METADATA, OLDER, READER, SHAPE, CheckpointError, check_shapes, first_line

ARRAYS = "arrays"
_SAVING, _REMOVED, _ASIDE = "saving", ".removed-", "set-aside-"


class LocalStore:
    """A folder with a folder for each checkpoint, by its step."""

    has_set_aside = f"bring {METADATA} back into such a folder and name it by its step again, like `{{step}}`"

    def __init__(self, folder: Path):
        self.folder = folder.absolute()
        self._writer: Any = None

    def __str__(self) -> str:
        return str(self.folder)

    def name(self, step: int) -> str:
        return str(self.folder / str(step))

    def steps(self) -> list[int]:
        return sorted(int(path.parent.name) for path in self.folder.glob(f"*/{METADATA}") if _is_step(path.parent.name))

    def metadata(self, step: int) -> dict[str, Any]:
        return READER.summed_json(self.folder / str(step) / METADATA, SHAPE, older=OLDER)

    # Writing.

    def free(self, needed: int) -> int:
        with contextlib.suppress(OSError):
            existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
            return shutil.disk_usage(existing).free
        return needed

    def begin(self, step: int) -> int:
        place = self.folder / str(step)
        place.mkdir(parents=True)
        (place / _SAVING).touch()
        return 1

    def write(self, step: int, number: int, arrays: dict[str, Any]) -> None:
        self._open().save(self.folder / str(step) / ARRAYS, args=_orbax().args.PyTreeSave(arrays))

    def wait_written(self) -> None:
        self._open().wait_until_finished()

    def commit(self, step: int, metadata: dict[str, Any]) -> None:
        place = self.folder / str(step)
        metadata["files"] = _sizes(place / ARRAYS)
        write_atomic(place / METADATA, summed(metadata))
        (place / _SAVING).unlink()

    def discard(self, step: int) -> None:
        shutil.rmtree(self.folder / str(step), ignore_errors=True)

    def remove(self, step: int) -> None:
        removed = (self.folder / str(step)).rename(self.folder / f"{_REMOVED}{step}")
        shutil.rmtree(removed, ignore_errors=True)

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def remove_torn(self) -> None:
        """Also what is no longer kept; what is not ours is an error."""
        for path in self.folder.glob("*"):
            if path.is_dir() and path.name.startswith(_REMOVED):
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_dir() and _is_step(path.name) and not (path / METADATA).exists():
                if strange := [
                    each for each in path.iterdir() if not each.name.startswith((ARRAYS, METADATA, _SAVING, "."))
                ]:
                    raise CheckpointError(
                        f"{path} is no checkpoint that weft wrote: it holds `{strange[0].name}`",
                        fix="name another folder with --run, or move that one away",
                    )
                if (path / _SAVING).exists() or not (path / ARRAYS).exists():
                    shutil.rmtree(path, ignore_errors=True)
                elif aside := self.set_aside(int(path.name)):
                    fact = f"{path} holds arrays and no {METADATA}, without which they do not count"
                    warnings.warn(f"{fact}; they are now in {aside}", WeftWarning, stacklevel=user_stacklevel())

    def set_aside(self, step: int) -> Path | None:
        names = (f"{_ASIDE}{step}{again}" for again in ("", *(f"-{number}" for number in range(2, 1000))))
        aside = next(path for name in names if not (path := self.folder / name).exists())
        try:
            return (self.folder / str(step)).rename(aside)
        except OSError:
            return None

    def aside(self) -> list[str]:
        return [path.name for path in sorted(self.folder.glob(f"{_ASIDE}*"))]

    # Reading.

    def explain(self, error: BaseException, fact: str) -> CheckpointError:
        return CheckpointError(f"{fact}: {first_line(error)}", fix="make room, or name a place with room")

    def problem(self, step: int, metadata: Mapping[str, Any]) -> str | None:
        arrays = self.folder / str(step) / ARRAYS
        sizes = _sizes(arrays)
        for name, size in metadata["files"].items():
            if sizes.get(name) != size:
                problem = "is missing" if name not in sizes else f"has {sizes[name]:,} bytes of {size:,}"
                return f"{arrays / name} {problem}"
        return None

    def read(self, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
        ocp, place = _orbax(), self.folder / str(step)
        described = self._open().metadata(place / ARRAYS).item_metadata
        if described is None:  # Orbax only warns
            raise ValueError(f"what arrays there are cannot be read in {place / ARRAYS}")
        check_shapes(str(place), like, described.tree)
        how = ocp.checkpoint_utils.construct_restore_args(dict(like))
        args = ocp.args.PyTreeRestore(dict(like), restore_args=how, partial_restore=True)
        try:
            arrays: dict[str, Any] = self._open().restore(place / ARRAYS, args=args)
            return arrays
        except Exception as error:
            if is_of_others(error):
                raise
            problem = first_line(error)
        gc.collect()  # reads that were given up complain when they go: now, while nobody hears them
        raise ValueError(problem)

    def _open(self) -> Any:
        if self._writer is None:
            ocp = _orbax()
            _silence_orbax()
            self._writer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        return self._writer


def _is_step(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 20 and name == str(int(name))


def _orbax() -> Any:
    """The library, which takes a second to load."""
    return import_library("orbax.checkpoint", "a checkpoint", CheckpointError)


_SILENT: set[Any] = set()  # hooks of ours: who swaps them for a while gives them back


def _silence_orbax() -> None:
    """Keeps off the terminal what Orbax tells beside what it raises."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_is_not_of_orbax)
    if (before := sys.unraisablehook) in _SILENT:
        return

    def hook(error: "sys.UnraisableHookArgs") -> None:
        code = getattr(error.object, "cr_code", None)  # a read that was given up, when its memory is taken back
        is_late = str(error.exc_value) == "Event loop is closed"  # TensorStore's answer to one
        if not is_late and (code is None or "orbax" not in code.co_filename):
            before(error)

    sys.unraisablehook = hook
    if not _SILENT:
        atexit.register(_silence_orbax)  # some of them go last of all
    _SILENT.add(hook)


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    """Whether a record is to be logged: what Orbax raises it also logs."""
    text = f"{record.pathname} {record.getMessage()} {record.exc_info and traceback.format_exception(*record.exc_info)}"
    return record.levelno < logging.WARNING or not ("orbax" in text or "tensorstore" in text)


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
