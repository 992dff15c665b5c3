"""The folder of a run: `config.toml` says what model it is, `checkpoints/` holds its weights by step.

Imports the models. A folder is whole when it is there: it is written beside and renamed.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from .. import models
from ..errors import WeftError, closest
from ..interop.files import moved_there
from ..layout import as_layout
from ..mesh import as_mesh
from ..nn import weights
from .checkpoints import Checkpoints

CONFIG, CHECKPOINTS = "config.toml", "checkpoints"


class RunError(WeftError):
    """A run that is not there, or not whole."""


@dataclass(frozen=True)
class Run:
    """A run in a folder."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, model: Any) -> "Run":
        """A new run that begins with a model's weights, as step 0."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} is there already", fix="name a folder that is not there, or remove this one")
        try:
            with moved_there(folder) as beside:
                (beside / CONFIG).write_text(tomli_w.dumps({"model": models.fields(model.config)}), encoding="utf-8")
                Checkpoints(beside / CHECKPOINTS).save(0, model)
        except OSError as error:
            raise RunError(f"{folder} cannot be written: {error.strerror}", fix="name a place with room") from error
        return cls(folder)

    @property
    def config(self) -> models.TransformerConfig:
        """The configuration of its model."""
        path = self.folder / CONFIG
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"there is no run in {self.folder}: no {CONFIG}", fix="give the folder of a run") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path} is not TOML: {error}", fix="mend it") from error
        if "model" not in found:
            raise RunError(f"{path} has no table `model`", fix=closest("model", found))
        return models.from_fields(found["model"], where=str(path))

    def load(self, mesh: Any = None, layout: Any = None, step: int | None = None) -> Any:
        """The model of a step, the last if none is named; on a mesh each processor reads its own slices."""
        config = self.config
        where = () if mesh is None else (as_mesh(mesh), as_layout(layout))
        shapes = weights.shapes(config.blueprint(*where))
        return Checkpoints(self.folder / CHECKPOINTS).load(shapes, *where, step=step)
