"""Checkpoints: written beside the training, and read onto any mesh.

Imports the language and the places they lie in. Each array is kept under its path
(`params.decoder.layers.attention.q`) with a sum of its bits, so that what comes back is what was saved; each processor
writes and reads its own slices. Which are kept, and when one counts, is the same in a folder and in a bucket.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..compat import is_on_host, to_device
from ..errors import WeftError
from ..spmd.together import broadcast_int
from .cloud_store import CloudStore, is_cloud
from .local_store import LocalStore
from .processes import is_of_others
from .stores import METADATA, CheckpointError, OtherModelError, Store, first_line
from .tables import Checkpoint

__all__ = ["CheckpointError", "Checkpoints", "OtherModelError", "checkpoints_of", "sums_of_bits"]

CHECKPOINTS = "checkpoints"


def checkpoints_of(run: Path, settings: Checkpoint) -> "Checkpoints":
    """The checkpoints of a run: in its folder, or where its file says that they lie."""
    return Checkpoints(settings.path or run / CHECKPOINTS, keep=settings.keep, best=settings.best)


class Checkpoints:
    """The checkpoints in a place: the last few, and the best by evaluation."""

    def __init__(self, place: Path | str, *, keep: int = 3, best: bool = True):
        self.store: Store = CloudStore(str(place)) if is_cloud(str(place)) else LocalStore(Path(place))
        self.keep, self.best = keep, best
        self._finishing: threading.Thread | None = None
        self._failed: Exception | None = None

    @property
    def steps(self) -> list[int]:
        """The steps there are whole checkpoints of."""
        return self.store.steps()

    def metadata(self, step: int) -> dict[str, Any]:
        """What was saved beside the arrays: configuration, evaluation loss, contents."""
        return self.store.metadata(step)

    def best_step(self) -> int | None:
        """The step with the lowest evaluation loss; what cannot be read does not count."""
        losses = {}
        for step in self.steps:
            with contextlib.suppress(CheckpointError):
                losses[step] = self.metadata(step).get("loss")
        finite = {step: loss for step, loss in losses.items() if loss is not None and math.isfinite(loss)}
        return min(finite, key=lambda step: (finite[step], step)) if finite else None

    def choose(self, step: int | None = None, *, best: bool = False) -> int:
        """The step asked for: this one, the best one, or else the last."""
        steps = self.steps
        if not steps:
            fix = "check the folder's name; a run writes one every `checkpoint.every` steps and at its end"
            raise CheckpointError(f"there is no checkpoint in {self.store}", fix=fix)
        if step is not None and step not in steps:
            there = ", ".join(map(str, steps))
            raise CheckpointError(f"there is no checkpoint of step {step} in {self.store}", fix=f"there are: {there}")
        if best and (best_step := self.best_step()) is not None:
            return best_step
        return steps[-1] if step is None else step

    # Writing.

    def save(self, step: int, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Begins to write a checkpoint, when the one before it is whole.

        The arrays may be overwritten afterwards. What goes wrong later is raised by the next `save`, `wait` or `close`.
        """
        self.wait()
        if step in self.steps:
            return
        number = self._begin(step)
        self._check_room(step, sum(x.nbytes for x in arrays.values()))
        sums = sums_of_bits(dict(arrays))
        with self._reporting(f"step {step} could not be saved", step):
            self.store.write(step, number, dict(arrays))
        dtypes = {path: str(x.dtype) for path, x in arrays.items()}
        finish = functools.partial(self._finish, step, sums, {"step": step, **metadata, "dtypes": dtypes})
        self._finishing = threading.Thread(target=finish, name="weft-checkpoint")
        self._finishing.start()

    def _begin(self, step: int) -> int:
        """The number of a save that the first process made ready, or an error in all."""
        number, failed = 0, None
        if jax.process_index() == 0:
            try:
                self.remove_torn()
                with self._reporting(f"step {step} could not be saved"):
                    number = self.store.begin(step)
            except CheckpointError as error:
                failed = error
        if not (number := broadcast_int(number)):
            raise failed or CheckpointError(f"step {step} could not be saved", fix="see what process 0 says")
        return number

    def _check_room(self, step: int, needed: int) -> None:
        """Raises, in all processes, where there is no room for so many bytes."""
        free = self.store.free(needed)
        if not broadcast_int(int(free >= needed)):
            takes, left = (f"{size / 1e6:,.1f} MB" for size in (needed, free))
            fact = f"step {step} could not be saved: it takes {takes}, and {left} are free in {self.store}"
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
        try:
            with self._reporting(f"step {step} could not be saved", step):
                self.store.wait_written()
                if jax.process_index() == 0:
                    metadata["sums"] = {path: int(value) for path, value in sums.items()}
                    self.store.commit(step, metadata)
            if jax.process_index() == 0:
                with contextlib.suppress(OSError, CheckpointError):  # tried again after the next one
                    self._remove_old()
        except Exception as error:  # raised where it is waited for
            self._failed = error

    def close(self) -> None:
        """Waits for what was begun, and ends the threads."""
        try:
            self.wait()
        finally:
            with self._reporting("the last checkpoint could not be finished"):
                self.store.close()

    def remove_torn(self) -> None:
        """Removes what a killed process, or a full disk, left half written or removed.

        Arrays that lost their `checkpoint.json` in another way are set aside, with a warning; what is not
        ours is an error.
        """
        self.store.remove_torn()

    def set_aside(self, step: int) -> object | None:
        """Keeps a broken checkpoint from counting, so that its step can be saved again."""
        return self.store.set_aside(step)

    def check_none_lost(self) -> None:
        """Raises where all there is was set aside: to begin anew there would be silent."""
        aside = self.store.aside()
        if broadcast_int(len(self.steps)) or not broadcast_int(len(aside)):
            return
        step = aside[-1].removeprefix("set-aside")[1:].partition(".")[0].partition("-")[0] if aside else "200"
        raise CheckpointError(
            f"{self.store} has no checkpoint with its {METADATA}, and arrays that were set aside",
            state=f"there are {', '.join(aside)}",
            fix=f"{self.store.has_set_aside.format(step=step)}; or move these away to begin anew",
        )

    def _remove_old(self) -> None:
        steps = self.steps
        kept = set(steps[-self.keep :]) | ({self.best_step()} if self.best else set())
        for step in steps:
            if step not in kept:
                self.store.remove(step)

    @contextlib.contextmanager
    def _reporting(self, fact: str, step: int | None = None) -> Iterator[None]:
        """Turns what goes wrong into a `CheckpointError`; removes half of a checkpoint.

        That another process is gone stays what it is: no other place would mend it.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, CheckpointError) and step is None:
                raise
            if step is not None and jax.process_index() == 0:
                self.store.discard(step)
            if isinstance(error, CheckpointError) or is_of_others(error):
                raise
            raise self.store.explain(error, fact) from error

    # Reading.

    def problem(self, step: int) -> str | None:
        """What is wrong with a checkpoint's files, by their sizes, if something is."""
        try:
            return self.store.problem(step, self.metadata(step))
        except CheckpointError as error:
            return error.fact

    def dtypes(self, step: int) -> dict[str, str]:
        """The dtypes of all arrays of a checkpoint by their paths."""
        return self.metadata(step)["dtypes"]

    def load(self, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays of a step that `like` has the shapes of, sharded as these are."""
        place = self.store.name(step)
        if problem := self.problem(step):
            raise CheckpointError(f"the checkpoint {place} is broken: {problem}", fix=self._another(step))
        sums = self.metadata(step)["sums"]
        try:
            arrays = self.store.read(step, like)
        except WeftError:
            raise
        except Exception as error:  # Orbax and TensorStore raise many kinds
            fact = f"the checkpoint {place} is broken: {first_line(error)}"
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


# Sums of bits: the same on every mesh, and other ones where a bit or a place is another.


def sums_of_bits(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """A sum of all bits of each array: equal where the arrays are."""
    places = [x.sharding.mesh for x in arrays.values() if isinstance(getattr(x, "sharding", None), NamedSharding)]
    summing = _compile_sum(places[0] if places else None)
    if not any(map(is_on_host, arrays.values())):
        return summing(dict(arrays))
    return {path: summing({path: x})[path] for path, x in arrays.items()}  # there may be no room for all


@functools.lru_cache(maxsize=8)
def _compile_sum(mesh: Any) -> Any:
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
