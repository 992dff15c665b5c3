"""The folder of a run: its configuration, metrics, tokenizer and checkpoints.

What is in a folder is whole when it is there: it is written beside and renamed.
"""

import contextlib
import json
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from .. import data, models
from ..data.atomic import lock
from ..errors import WeftError, closest
from ..interop.files import atomic_folder
from ..layout import LayoutLike, Region, as_layout
from ..mesh import MeshLike, as_mesh
from ..nn.freezing import tensors_by_path
from ..small_files import Reader, is_file
from ..spmd.place import sharding_as_stored
from .checkpoints import CHECKPOINTS, CheckpointError, Checkpoints, checkpoints_of
from .config import CONFIG, RunConfig, parse
from .keys import lines_of
from .own.model import OwnModel
from .own.trust import Trust
from .settings import toml_text
from .step import arrays_of, refill, shapes_of_model

CACHE, LOCK = "cache", ".lock"
MOST_NAMED = 8  # runs that an error lists
ORIGIN = "hugging_face"  # what was beside the weights that the run began with


class RunError(WeftError):
    """A run that is not there, not whole, or in use."""


def no_run_error(folder: Path) -> RunError:
    """The error of a folder that is no run's; it names those beside it and in `runs`."""
    fix = "give the folder of a run, like `runs/tiny`"
    if folder.suffix == ".toml" and is_file(folder):
        fix = f"that is a run's file; give the folder it trains into (`weft train {folder}` says which)"
    else:
        there = {str(config.parent) for place in (folder.parent, Path("runs")) for config in place.glob(f"*/{CONFIG}")}
        near = closest(str(folder), there)
        fix = near if there and (len(there) <= MOST_NAMED or near.startswith("did")) else fix
    return RunError(f"there is no run in {folder}: no {CONFIG}", fix=fix)


@dataclass(frozen=True)
class Run:
    """A run in a folder."""

    folder: Path
    trust: Trust = False
    """Whether code of somebody else's, which the run calls, may be run."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))

    @classmethod
    def create(cls, folder: Path, model: Any) -> "Run":
        """A new run that begins with a model's weights, as step 0."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} is there already", fix="name a folder that is not there, or remove this one")
        values = {"model": models.fields(model.config)}
        arrays = {f"params.{path}": x for path, x in arrays_of(model).items()}
        try:
            with atomic_folder(folder) as beside:
                (beside / CONFIG).write_text(toml_text(values), encoding="utf-8")
                checkpoints = Checkpoints(beside / CHECKPOINTS)
                checkpoints.save(0, arrays, {"config": values})
                checkpoints.close()
        except (OSError, CheckpointError) as error:
            reason = error.fact if isinstance(error, WeftError) else error.strerror
            raise RunError(f"{folder} cannot be written: {reason}", fix="name a place with room") from error
        return cls(folder)

    @property
    def settings(self) -> RunConfig:
        """The configuration of the run."""
        path = self.folder / CONFIG
        if not is_file(path):
            raise no_run_error(self.folder)
        values, text = Reader(RunError, fix="mend it").toml(path)
        return parse(values, lines_of(path, text), trust=self.trust)

    @property
    def config(self) -> models.TransformerConfig | OwnModel:
        """The configuration of its model."""
        return self.settings.model

    @property
    def checkpoints(self) -> Checkpoints:
        """Those that are kept, by step."""
        return checkpoints_of(self.folder, self.settings.checkpoint)

    @property
    def tokenizer(self) -> data.Tokenizer:
        """What its texts became tokens by."""
        try:
            named = self.settings.tokenizer if (self.folder / CONFIG).exists() else {}
            return data.load_tokenizer(self.folder, end=named.get("end"), pad=named.get("pad"))
        except data.DataError as error:
            files = "`tokenizer.json`, `tokenizer.model`, or `vocab.json` with `merges.txt`"
            fix = f"copy the model's own into {self.folder}: {files}"
            raise RunError(f"the run {self.folder} has no tokenizer: {error.fact}", fix=fix) from None

    def load(
        self,
        mesh: MeshLike | None = None,
        layout: LayoutLike | None = None,
        step: int | None = None,
        *,
        best: bool = False,
        average: int = 1,
    ) -> Any:
        """The model of a step, of the best one, or of the last.

        On a mesh each processor reads its own slices. Where an EMA of the weights was kept, it is that. `average` takes
        the mean of so many checkpoints, this one and those before it.
        """
        where = () if mesh is None else (as_mesh(mesh), as_layout(layout))
        shapes = shapes_of_model(self.settings, *where)
        checkpoints = self.checkpoints
        steps = _last_steps(checkpoints, checkpoints.choose(step, best=best), average)
        weights = [load_weights(checkpoints, number, shapes, where) for number in steps]
        return refill(shapes, weights[0] if average == 1 else jax.tree.map(lambda *xs: sum(xs) / average, *weights))

    def weights_print(self, step: int, average: int = 1) -> str:
        """What says that a step's weights, or the mean of so many, are the same."""
        checkpoints = self.checkpoints
        sums = [checkpoints.metadata(number)["sums"] for number in _last_steps(checkpoints, step, average)]
        return f"{zlib.crc32(json.dumps(sums, sort_keys=True).encode()):08x}"


def _last_steps(checkpoints: Checkpoints, last: int, count: int) -> list[int]:
    """So many steps that there are checkpoints of, up to the last."""
    steps = [number for number in checkpoints.steps if number <= last][-count:]
    if len(steps) < count:
        raise RunError(f"{count} checkpoints were to be averaged, and there are {len(steps)}", fix="average fewer")
    return steps


def load_weights(checkpoints: Checkpoints, step: int, shapes: Any, where: Sequence[Any]) -> dict[str, Any]:
    """A model's weights of a step by path, as stored; their EMA where one was kept."""
    stored = checkpoints.dtypes(step)
    averaged = {is_one[1]: path for path in stored if (is_one := re.match(r"optimizer\.\d+\.averaged\.(.*)", path))}
    region = Region(*where) if where else None
    names, like = {}, {}
    for path, x in tensors_by_path(shapes).items():
        names[path] = name = averaged.get(path, f"params.{path}")
        dtype, sharding = stored.get(name, x.dtype), sharding_as_stored(x, region)
        like[name] = jax.ShapeDtypeStruct(x.dims.sizes, dtype, sharding=sharding)
    arrays = checkpoints.load(step, like)
    return {path: arrays[name] for path, name in names.items()}


class Lock:
    """While it is held no other process trains in the folder; who dies gives it back.

    It is the folder itself that is held, which nobody can take away as one can a file in it; that file is held too,
    for file systems that lock files alone.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._open = contextlib.ExitStack()

    def __enter__(self) -> None:
        with contextlib.ExitStack() as held:
            for path, flags in ((self.folder, os.O_RDONLY), (self.folder / LOCK, os.O_RDWR | os.O_CREAT)):
                file = os.open(path, flags, 0o644)
                held.callback(os.close, file)
                if lock(file) is False:
                    fact = f"another process is training in {self.folder}"
                    raise RunError(fact, fix="wait for it, stop it, or name another --run")
            self._open = held.pop_all()

    def __exit__(self, *_: object) -> None:
        self._open.close()
