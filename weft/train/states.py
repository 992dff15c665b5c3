"""The whole state of a run on disk by step, through Orbax: written beside the training, whole when it is there.

Imports the language. Arrays are kept under their paths, so that a state is read onto any mesh, layout and number of
processes; each processor writes and reads its own slices.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import jax

from ..errors import WeftError, closest
from ..nn.weights import written

TOLD = "told.json"


class StateError(WeftError):
    """A checkpoint that is not there, is broken, or is of another run."""


class States:
    """The checkpoints of a run: the last few, and the best."""

    def __init__(self, folder: Path, keep: int = 3, best: bool = True):
        self.folder, self.keep, self.best = folder.absolute(), keep, best
        self._writer: Any = None
        self._waiting: Any = None

    @property
    def steps(self) -> list[int]:
        """The steps there are whole checkpoints of."""
        return sorted(int(path.parent.name) for path in self.folder.glob(f"*/{TOLD}") if path.parent.name.isdigit())

    def told(self, step: int) -> dict[str, Any]:
        """What was said with a checkpoint: the configuration, and the loss it was judged by."""
        return json.loads((self.folder / str(step) / TOLD).read_text(encoding="utf-8"))

    def save(self, step: int, state: Any, told: dict[str, Any]) -> None:
        """Begins to write a checkpoint; the one before is finished first."""
        self.wait()
        place = self.folder / str(step)
        if (place / TOLD).exists():
            return
        shutil.rmtree(place, ignore_errors=True)
        self._open().save(place / "arrays", by_path(state))
        self._waiting = (place, told)

    def wait(self) -> None:
        """Until what was begun is whole; then those that are not kept are removed."""
        if self._waiting is None:
            return
        (place, told), self._waiting = self._waiting, None
        self._open().wait_until_finished()
        if jax.process_index() == 0:
            part = place / f"{TOLD}.part"
            part.write_text(json.dumps(told), encoding="utf-8")
            part.rename(place / TOLD)  # from now on it counts
            self._remove_old()

    def _remove_old(self) -> None:
        steps = self.steps
        kept = set(steps[-self.keep :])
        judged = {step: self.told(step).get("eval_loss") for step in steps} if self.best else {}
        if found := {step: loss for step, loss in judged.items() if loss is not None}:
            kept.add(min(found, key=lambda step: (found[step], step)))
        for step in steps:
            if step not in kept:
                (self.folder / str(step) / TOLD).unlink()  # first it no longer counts
                shutil.rmtree(self.folder / str(step), ignore_errors=True)

    def load(self, like: Any, step: int) -> Any:
        """The state of a step, each array shaped and placed as in `like`."""
        place = self.folder / str(step)
        wanted = by_path(like)
        try:
            stored = self._open().metadata(place / "arrays").item_metadata.tree
            _check(place, wanted, stored)
            found = self._open().restore(place / "arrays", wanted)
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            told = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise StateError(f"the checkpoint {place} is broken: {told}", fix="use another step") from error
        leaves, structure = jax.tree.flatten(like)
        return jax.tree.unflatten(structure, [found[path] for path in by_path(like)]) if leaves else like

    def close(self) -> None:
        self.wait()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> Any:
        if self._writer is None:
            import orbax.checkpoint as ocp  # takes a second to load

            self._writer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
        return self._writer


def by_path(tree: Any) -> dict[str, Any]:
    """The arrays of a tree by their paths."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {written(path): leaf for path, leaf in found}


def _check(place: Path, wanted: dict[str, Any], stored: Any) -> None:
    for path in sorted(wanted.keys() | stored.keys()):
        if path not in stored or path not in wanted:
            lacking = "the checkpoint" if path not in stored else "the run"
            near = closest(path, wanted if path not in wanted else stored)
            raise StateError(f"{lacking} has no `{path}`: {place}", fix=f"{near}; it is of another configuration")
        if tuple(stored[path].shape) != tuple(wanted[path].shape):
            raise StateError(
                f"`{path}` has shape {tuple(stored[path].shape)} in {place}, and {tuple(wanted[path].shape)} in the run",
                fix="it is of another configuration",
            )
