"""Weights on disk by step, through Orbax: each parameter under its path, read onto any mesh and layout.

Imports the language. Whole parameters are never gathered: each processor writes and reads its own slices.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from ..errors import WeftError
from ..layout import Layout, Region
from ..mesh import Mesh
from ..nn.freezing import by_path, map_paths
from ..spmd.place import sharding_of
from ..tensor import is_tensor, make

KEPT = "params"


class CheckpointError(WeftError):
    """A checkpoint that is not there, is broken, or is of another model."""


class Checkpoints:
    """The checkpoints in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder.absolute()

    @property
    def steps(self) -> list[int]:
        """The steps there are checkpoints of."""
        return sorted(int(path.name) for path in self.folder.glob("*") if path.name.isdigit())

    def save(self, step: int, model: Any) -> None:
        """Writes the model's weights; the checkpoint is whole when it is there."""
        arrays = {path: leaf.array for path, leaf in by_path(model).items()}
        with _checkpointer() as checkpointer:
            checkpointer.save(self.folder / str(step), {KEPT: arrays})

    def load(
        self, shapes: Any, mesh: Mesh | None = None, layout: Layout | None = None, *, step: int | None = None
    ) -> Any:
        """A model like `shapes` with the weights of a step (or the last), placed as the layout stores it."""
        place = self.folder / str(self._step(step))
        region = None if mesh is None or layout is None else Region(mesh, layout)
        own = SingleDeviceSharding(jax.devices()[0])

        def wanted(x: Any, dtype: Any) -> jax.ShapeDtypeStruct:
            lies: Any = own
            if region is not None:
                lies = sharding_of(x.dims, "params", region)
            return jax.ShapeDtypeStruct(x.dims.sizes, dtype, sharding=lies)

        with _checkpointer() as checkpointer:
            stored = self._read(place, lambda: checkpointer.metadata(place).item_metadata.tree[KEPT])
            leaves = by_path(shapes)
            self._check(place, leaves, stored)
            like = {path: wanted(leaf, stored[path].dtype) for path, leaf in leaves.items()}
            found = self._read(place, lambda: checkpointer.restore(place, {KEPT: like})[KEPT])
        return map_paths(lambda path, x: make(found[path], x.dims, None, x._kind) if is_tensor(x) else x, shapes)

    def _step(self, step: int | None) -> int:
        steps = self.steps
        if not steps:
            raise CheckpointError(f"there is no checkpoint in {self.folder}", fix="check the folder's name")
        if step is not None and step not in steps:
            there = ", ".join(map(str, steps))
            raise CheckpointError(f"there is no checkpoint of step {step} in {self.folder}", fix=f"there are: {there}")
        return steps[-1] if step is None else step

    @staticmethod
    def _read(place: Path, read: Any) -> Any:
        try:
            return read()
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            told = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise CheckpointError(f"the checkpoint {place} is broken: {told}", fix="use another step") from error

    @staticmethod
    def _check(place: Path, leaves: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        for path in sorted(leaves.keys() | stored.keys()):
            if path not in stored:
                raise CheckpointError(f"the checkpoint {place} has no `{path}`", fix="it is of another model")
            if path not in leaves:
                raise CheckpointError(
                    f"the checkpoint {place} has `{path}`, the model not", fix="it is of another model"
                )
            if tuple(stored[path].shape) != leaves[path].dims.sizes:
                raise CheckpointError(
                    f"`{path}` has shape {tuple(stored[path].shape)} in the checkpoint {place}",
                    state=f"the model's: [{leaves[path].dims}]",
                    fix="it is of another model",
                )


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp  # takes a second to load

    return ocp.StandardCheckpointer()
