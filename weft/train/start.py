"""The weights a run starts with: new ones, Hugging Face's, or another run's."""

from pathlib import Path
from typing import Any

import jax

from .. import interop, models, nn
from ..dims import Shape
from ..errors import closest
from ..layout import Layout
from ..mesh import Mesh
from ..nn.freezing import tensors_by_path
from .config import CONFIG, ConfigError, RunConfig
from .runs import Run
from .step import first_model, prepare_model, refill

POSITIONS = "positions.table"


def first_weights(config: RunConfig, mesh: Mesh, layout: Layout) -> Any:
    """The model before the first step."""
    if config.init_from is None:
        return first_model(config, mesh, layout)
    folder = Path(config.init_from).expanduser()
    if (folder / CONFIG).exists():
        run = Run(folder)
        model = run.load(mesh, layout)
        model = nn.lora.merge(model) if run.settings.lora.rank else model
    else:
        model = interop.load(folder, mesh, layout)
    shapes = jax.eval_shape(lambda: models.init(config.sized_model, jax.random.key(0), mesh, layout))
    wanted, there = tensors_by_path(shapes), tensors_by_path(model)
    for path in sorted(wanted.keys() | there.keys()):
        if path not in there or path not in wanted:
            lacks, known = (folder, there) if path not in there else ("the run's model", wanted)
            raise ConfigError(f"{lacks} has no `{path}`", fix=f"{closest(path, known)}; leave out what `model` changes")
        have, want = there[path].dims, wanted[path].dims
        if have != want and not (path == POSITIONS and _has_more_rows(have, want)):
            what = "`train.length`, or what `model` changes" if path == POSITIONS else "what `model` changes"
            raise ConfigError(
                f"`{path}` is [{have}] in {folder}, and [{want}] in the run",
                fix=f"leave out {what}, or begin without `init_from`",
            )
    arrays = {path: x.array.astype(wanted[path].dtype) for path, x in there.items()}
    if POSITIONS in arrays:
        arrays[POSITIONS] = arrays[POSITIONS][: wanted[POSITIONS].dims.sizes[0]]
    return prepare_model(refill(shapes, arrays), config)


def _has_more_rows(have: Shape, want: Shape) -> bool:
    """Whether a table of positions is longer: shorter sequences use its first rows."""
    return have.sizes[0] > want.sizes[0] and have.sizes[1:] == want.sizes[1:]
