"""Checkpoints by Orbax: written beside the training, and read onto any mesh.

Imports the language and the data's files. Each array is kept under its path (`params.decoder.layers.attention.q`) with
a sum of its bits, so that what comes back is what was saved; each processor writes and reads its own slices. A
checkpoint counts from the moment its `checkpoint.json` is there, which is written last.

A folder is removed only where its own name or a file in it says that it may be: while it is written it holds `saving`,
and one that is no longer kept is renamed first. Arrays that lack their `checkpoint.json` otherwise are set aside.
"""

import contextlib
import functools
import logging
import math
import os
import re
import shutil
import threading
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..compat import is_on_host, to_device
from ..data.atomic import write_atomic
from ..errors import WeftError, WeftWarning, closest, user_stacklevel
from ..libraries import import_library
from ..small_files import Reader, summed
from ..spmd.together import broadcast_int
from .processes import is_of_others

METADATA, ARRAYS = "checkpoint.json", "arrays"
_SAVING, _REMOVED, _ASIDE = "saving", ".removed-", "set-aside-"
_NUMBERS = {str: int}
_SHAPE = {"files": _NUMBERS, "sums": _NUMBERS, "dtypes": {str: str}, "loss": (float, None), "config": (dict, None)}
_OLDER = frozenset({"step", *_SHAPE})


class CheckpointError(WeftError):
    """A checkpoint that is missing, broken, of another model, or cannot be written."""


class OtherModelError(CheckpointError):
    """A whole checkpoint of a model with other weights, or of another optimizer."""


class Checkpoints:
    """The checkpoints in a folder: the last few, and the best by evaluation."""

    def __init__(self, folder: Path, *, keep: int = 3, best: bool = True):
        self.folder, self.keep, self.best = folder.absolute(), keep, best
        self._writer: Any = None
        self._finishing: threading.Thread | None = None
        self._failed: Exception | None = None

    @property
    def steps(self) -> list[int]:
        """The steps there are whole checkpoints of."""
        return sorted(int(path.parent.name) for path in self.folder.glob(f"*/{METADATA}") if _is_step(path.parent.name))

    def metadata(self, step: int) -> dict[str, Any]:
        """What was saved beside the arrays: configuration, evaluation loss, contents."""
        path = self.folder / str(step) / METADATA
        return Reader(CheckpointError, fix="use another step").summed_json(path, _SHAPE, older=_OLDER)

    def best_step(self) -> int | None:
        """The step with the lowest evaluation loss; what cannot be read does not count."""
        losses = {}
        for step in self.steps:
            with contextlib.suppress(CheckpointError):
                losses[step] = self.metadata(step).get("loss")
        finite = {step: loss for step, loss in losses.items() if loss is not None and math.isfinite(loss)}
        return min(finite, key=lambda step: (finite[step], step)) if finite else None

    def chosen(self, step: int | None = None, *, best: bool = False) -> int:
        """The step asked for: this one, the best one, or else the last."""
        steps = self.steps
        if not steps:
            fix = "check the folder's name; a run writes one every `checkpoint.every` steps and at its end"
            raise CheckpointError(f"there is no checkpoint in {self.folder}", fix=fix)
        if step is not None and step not in steps:
            there = ", ".join(map(str, steps))
            raise CheckpointError(f"there is no checkpoint of step {step} in {self.folder}", fix=f"there are: {there}")
        if best and (best_step := self.best_step()) is not None:
            return best_step
        return steps[-1] if step is None else step

    # Writing.

    def save(self, step: int, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Begins to write a checkpoint, when the one before it is whole.

        The arrays may be overwritten afterwards. What goes wrong later is raised by the next `save`, `wait` or `close`.
        """
        self.wait()
        place = self.folder / str(step)
        if (place / METADATA).exists():
            return
        if jax.process_index() == 0:
            self.remove_torn()
            with _reported(f"step {step} could not be saved"):
                place.mkdir(parents=True)
                (place / _SAVING).touch()
        self._check_room(step, sum(x.nbytes for x in arrays.values()))
        sums = sums_of_bits(dict(arrays))
        with _reported(f"step {step} could not be saved", place):
            self._open().save(place / ARRAYS, args=_to_save(dict(arrays)))
        dtypes = {path: str(x.dtype) for path, x in arrays.items()}
        finish = functools.partial(self._finish, step, sums, {"step": step, **metadata, "dtypes": dtypes})
        self._finishing = threading.Thread(target=finish, name="weft-checkpoint")
        self._finishing.start()

    def _check_room(self, step: int, needed: int) -> None:
        """Raises, in all processes, where the disk has no room for so many bytes."""
        free = needed
        with contextlib.suppress(OSError):
            existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
            free = shutil.disk_usage(existing).free
        if not broadcast_int(int(free >= needed)):
            takes, left = (f"{size / 1e6:,.1f} MB" for size in (needed, free))
            fact = f"step {step} could not be saved: it takes {takes}, and {left} are free in {self.folder}"
            raise CheckpointError(fact, fix="make room")

    @property
    def has_failed(self) -> bool:
        """Whether what was begun is known to have gone wrong; `wait` raises what it was."""
        return self._failed is not None

    def wait(self) -> None:
        """Until the checkpoint that was begun is whole."""
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def _finish(self, step: int, sums: Mapping[str, Any], metadata: dict[str, Any]) -> None:
        """Makes the checkpoint count when all is written, and removes those not kept."""
        place = self.folder / str(step)
        try:
            with _reported(f"step {step} could not be saved", place):
                self._open().wait_until_finished()
                if jax.process_index() == 0:
                    metadata["sums"] = {path: int(value) for path, value in sums.items()}
                    metadata["files"] = _sizes(place / ARRAYS)
                    write_atomic(place / METADATA, summed(metadata))
                    (place / _SAVING).unlink()
            if jax.process_index() == 0:
                with contextlib.suppress(OSError):  # tried again after the next one
                    self._remove_old()
        except Exception as error:  # raised where it is waited for
            self._failed = error

    def close(self) -> None:
        """Waits for what was begun, and ends the threads."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                writer, self._writer = self._writer, None
                with _reported("the last checkpoint could not be finished"):
                    writer.close()

    def remove_torn(self) -> None:
        """Removes what a killed process, or a full disk, left half written or removed.

        Arrays that lost their `checkpoint.json` in another way are set aside, with a warning; what is not
        ours is an error.
        """
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
        """Renames a broken checkpoint, so that its step can be saved again."""
        names = (f"{_ASIDE}{step}{again}" for again in ("", *(f"-{number}" for number in range(2, 1000))))
        aside = next(path for name in names if not (path := self.folder / name).exists())
        try:
            return (self.folder / str(step)).rename(aside)
        except OSError:
            return None

    def check_none_lost(self) -> None:
        """Raises where all there is was set aside: to begin anew there would be silent."""
        aside = [path.name for path in sorted(self.folder.glob(f"{_ASIDE}*"))]
        if broadcast_int(len(self.steps)) or not broadcast_int(len(aside)):
            return
        step = aside[-1].split("-")[2] if aside else "200"
        raise CheckpointError(
            f"{self.folder} has no checkpoint with its {METADATA}, and arrays that were set aside",
            state=f"there are {', '.join(aside)}",
            fix=f"bring {METADATA} back into such a folder and name it by its step again, like `{step}`; "
            "or move these folders away to begin anew",
        )

    def _remove_old(self) -> None:
        steps = self.steps
        kept = set(steps[-self.keep :]) | ({self.best_step()} if self.best else set())
        for step in steps:
            if step not in kept:
                removed = (self.folder / str(step)).rename(self.folder / f"{_REMOVED}{step}")
                shutil.rmtree(removed, ignore_errors=True)

    # Reading.

    def problem(self, step: int) -> str | None:
        """What is wrong with a checkpoint's files, by their sizes, if something is."""
        place = self.folder / str(step)
        try:
            wanted = self.metadata(step)["files"]
        except CheckpointError as error:
            return error.fact
        sizes = _sizes(place / ARRAYS)
        for name, size in wanted.items():
            if sizes.get(name) != size:
                problem = "is missing" if name not in sizes else f"has {sizes[name]:,} bytes of {size:,}"
                return f"{place / ARRAYS / name} {problem}"
        return None

    def dtypes(self, step: int) -> dict[str, str]:
        """The dtypes of all arrays of a checkpoint by their paths."""
        return self.metadata(step)["dtypes"]

    def load(self, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays of a step that `like` has the shapes of, sharded as these are."""
        place = self.folder / str(step)
        if problem := self.problem(step):
            raise CheckpointError(f"the checkpoint {place} is broken: {problem}", fix=self._another(step))
        sums = self.metadata(step)["sums"]
        try:
            stored = self._open().metadata(place / ARRAYS).item_metadata.tree
            _check_shapes(place, like, stored)
            arrays = self._open().restore(place / ARRAYS, args=_to_load(dict(like)))
        except WeftError:
            raise
        except Exception as error:  # Orbax and TensorStore raise many kinds
            fact = f"the checkpoint {place} is broken: {_first_line(error)}"
            raise CheckpointError(fact, fix=self._another(step)) from error
        for path, value in sums_of_bits(arrays).items():
            if int(value) != sums.get(path):
                raise CheckpointError(
                    f"the checkpoint {place} is broken: `{path}` is not what was saved", fix=self._another(step)
                )
        return arrays

    def _another(self, step: int) -> str:
        others = [str(other) for other in self.steps if other != step]
        return f"use another step, of {', '.join(others)}" if others else "there is no other; begin anew"

    def _open(self) -> Any:
        if self._writer is None:
            ocp = _orbax()
            for name in ("absl", "asyncio"):
                logging.getLogger(name).addFilter(_is_not_of_orbax)
            self._writer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        return self._writer


def _is_step(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 20 and name == str(int(name))


def _orbax() -> Any:
    """The library, which takes a second to load."""
    return import_library("orbax.checkpoint", "a checkpoint", CheckpointError)


def _to_save(arrays: dict[str, Any]) -> Any:
    return _orbax().args.PyTreeSave(arrays)


def _to_load(like: dict[str, Any]) -> Any:
    ocp = _orbax()
    args = ocp.checkpoint_utils.construct_restore_args(like)
    return ocp.args.PyTreeRestore(like, restore_args=args, partial_restore=True)


class _reported:
    """Turns what goes wrong into a `CheckpointError`; removes half of a checkpoint.

    That another process is gone stays what it is: no other place would mend it.
    """

    def __init__(self, fact: str, place: Path | None = None):
        self.fact, self.place = fact, place

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, CheckpointError):
            return
        if self.place is not None and jax.process_index() == 0:
            shutil.rmtree(self.place, ignore_errors=True)
        if is_of_others(error):
            return
        fix = "make room, or name a place with room"
        raise CheckpointError(f"{self.fact}: {_first_line(error)}", fix=fix) from error


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    """Whether a record is to be logged: what Orbax raises it also logs, by pages."""
    text = f"{record.pathname} {record.getMessage()} {record.exc_info and traceback.format_exception(*record.exc_info)}"
    return record.levelno < logging.ERROR or "orbax" not in text


def _first_line(error: BaseException) -> str:
    if of_system := re.search(r"os_error_code='(\d+)'", str(error)):  # TensorStore says much around it
        return os.strerror(int(of_system[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def _check_shapes(place: Path, like: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    for path, wanted in like.items():
        if path not in stored:
            raise OtherModelError(
                f"the checkpoint {place} has no `{path}`", fix=f"{closest(path, stored)}; it is of another model"
            )
        have, want = tuple(stored[path].shape), tuple(wanted.shape)
        if have != want or stored[path].dtype != wanted.dtype:
            raise OtherModelError(
                f"`{path}` is {stored[path].dtype}{list(have)} in the checkpoint {place}, "
                f"and {wanted.dtype}{list(want)} in the model",
                fix="it is of another model",
            )


# Sums of bits: the same on every mesh, and other ones where a bit or a place is another.


def sums_of_bits(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """A sum of all bits of each array: equal where the arrays are."""
    places = [x.sharding.mesh for x in arrays.values() if isinstance(getattr(x, "sharding", None), NamedSharding)]
    summing = _summing(places[0] if places else None)
    if not any(map(is_on_host, arrays.values())):
        return summing(dict(arrays))
    return {path: summing({path: x})[path] for path, x in arrays.items()}  # there may be no room for all


@functools.lru_cache(maxsize=8)
def _summing(mesh: Any) -> Any:
    everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return jax.jit(lambda arrays: {path: _sum_of_bits(x) for path, x in arrays.items()}, out_shardings=everywhere)


def _sum_of_bits(x: jax.Array) -> jax.Array:
    """Every 32 bits times an odd number that is its place's, modulo 2**32."""
    x = to_device(x)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    width = x.dtype.itemsize * 8
    bits = jax.lax.bitcast_convert_type(x, f"uint{min(width, 32)}").astype(jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis in range(bits.ndim):
        step = math.prod(bits.shape[axis + 1 :]) % 2**32
        place += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(step)
    return jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32)
