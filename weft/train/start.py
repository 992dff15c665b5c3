"""The weights a run begins with: new ones, Hugging Face's, or those of another run.

Imports the models, their formats and the runs.
"""

from pathlib import Path
from typing import Any

import jax

from .. import interop, models
from ..errors import closest
from ..layout import Layout
from ..mesh import Mesh
from ..nn.freezing import by_path
from .config import CONFIG, ConfigError, RunConfig
from .runs import Run
from .step import first_model, model_of, prepared, refilled


def first_weights(config: RunConfig, mesh: Mesh, layout: Layout) -> Any:
    """The model before the first step."""
    if config.init_from is None:
        return first_model(config, mesh, layout)
    folder = Path(config.init_from).expanduser()
    own = model_of(config)
    if (folder / CONFIG).exists():
        found = Run(folder).load(mesh, layout)
    else:
        found = interop.load(folder, mesh, layout)
    shapes = jax.eval_shape(lambda: models.init(own, jax.random.key(0), mesh, layout))
    wanted, given = by_path(shapes), by_path(found)
    for path in sorted(wanted.keys() | given.keys()):
        if path not in given or path not in wanted:
            lacks, known = (folder, given) if path not in given else ("the run's model", wanted)
            raise ConfigError(f"{lacks} has no `{path}`", fix=f"{closest(path, known)}; leave out what `model` changes")
        if given[path].dims != wanted[path].dims:
            raise ConfigError(
                f"`{path}` is [{given[path].dims}] in {folder}, and [{wanted[path].dims}] in the run",
                fix="leave out what `model` changes, or begin without `init_from`",
            )
    arrays = {path: x.array.astype(wanted[path].dtype) for path, x in given.items()}
    return prepared(refilled(shapes, arrays), config)
