"""The weights a run begins with: new ones, Hugging Face's, or those of another run.

Imports the models, their formats and the runs.
"""

from pathlib import Path
from typing import Any

import jax

from .. import interop, models, nn
from ..dims import Shape
from ..errors import closest
from ..layout import Layout
from ..mesh import Mesh
from ..nn.freezing import by_path
from .config import CONFIG, ConfigError, RunConfig
from .runs import Run
from .step import first_model, prepare_model, refill

POSITIONS = "positions.table"


def first_weights(config: RunConfig, mesh: Mesh, layout: Layout) -> Any:
    """The model before the first step."""
    if config.init_from is None:
        return first_model(config, mesh, layout)
    folder = Path(config.init_from).expanduser()
    own = config.sized_model
    if (folder / CONFIG).exists():
        run = Run(folder)
        found = run.load(mesh, layout)
        found = nn.lora.merge(found) if run.settings.lora.rank else found
    else:
        found = interop.load(folder, mesh, layout)
    shapes = jax.eval_shape(lambda: models.init(own, jax.random.key(0), mesh, layout))
    wanted, given = by_path(shapes), by_path(found)
    for path in sorted(wanted.keys() | given.keys()):
        if path not in given or path not in wanted:
            lacks, known = (folder, given) if path not in given else ("the run's model", wanted)
            raise ConfigError(f"{lacks} has no `{path}`", fix=f"{closest(path, known)}; leave out what `model` changes")
        if given[path].dims != wanted[path].dims and not _is_shorter(path, given[path].dims, wanted[path].dims):
            what = "`train.length`, or what `model` changes" if path == POSITIONS else "what `model` changes"
            raise ConfigError(
                f"`{path}` is [{given[path].dims}] in {folder}, and [{wanted[path].dims}] in the run",
                fix=f"leave out {what}, or begin without `init_from`",
            )
    arrays = {path: x.array.astype(wanted[path].dtype) for path, x in given.items()}
    if POSITIONS in arrays:
        arrays[POSITIONS] = arrays[POSITIONS][: wanted[POSITIONS].dims.sizes[0]]
    return prepare_model(refill(shapes, arrays), config)


def _is_shorter(path: str, given: Shape, wanted: Shape) -> bool:
    """Whether it is the table of positions, of which sequences that are shorter use the first."""
    return path == POSITIONS and given.sizes[0] > wanted.sizes[0] and given.sizes[1:] == wanted.sizes[1:]
