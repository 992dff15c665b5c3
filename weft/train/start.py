"""The weights a run starts with: new ones, Hugging Face's, or another run's."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from .. import interop, nn
from ..compat import to_device
from ..dims import Shape
from ..errors import closest
from ..layout import Layout, Region
from ..leaves import with_array
from ..mesh import Mesh
from ..nn.freezing import tensors_by_path
from ..nn.weights import STACKED
from ..spmd.place import sharding_as_stored
from ..tensor import Tensor
from .config import CONFIG, ConfigError, RunConfig
from .runs import Run
from .step import first_model, new_model, prepare_model, refill

POSITIONS = "positions.table"
_CUT = ("stages", "pipeline_microbatches", "pipeline_rounds")


def first_weights(config: RunConfig, mesh: Mesh, layout: Layout) -> Any:
    """The model before the first step."""
    if config.init_from is None:
        return first_model(config, mesh, layout)
    folder = Path(config.init_from).expanduser()
    cut = {name: getattr(config.model, name, None) for name in _CUT}
    if (folder / CONFIG).exists():
        run = Run(folder, config.trust)
        model = run.load(mesh, layout if _is_cut(run.settings, cut) else _without_stages(layout))
        model = nn.lora.merge(model) if run.settings.lora.rank else model
    else:
        model = interop.load(folder, mesh, layout, **(cut if cut["stages"] not in (None, 1) else {}))
    shapes = jax.eval_shape(lambda: new_model(config, mesh, layout))
    wanted, there = tensors_by_path(shapes), tensors_by_path(model)
    for path in sorted(wanted.keys() | there.keys()):
        if path not in there or path not in wanted:
            lacks, known = (folder, there) if path not in there else ("the run's model", wanted)
            raise ConfigError(f"{lacks} has no `{path}`", fix=f"{closest(path, known)}; leave out what `model` changes")
        have, want = there[path].dims, wanted[path].dims
        if (
            have != want
            and _differ_in_stages(have, want)
            and model.config.layers == getattr(config.model, "layers", None)
        ):
            there[path] = _restack(there[path], want, Region(mesh, layout))
            continue
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


def _is_cut(settings: RunConfig, cut: Mapping[str, Any]) -> bool:
    """Whether another run's layers are cut into the same stages."""
    return all(getattr(settings.model, name, None) == value for name, value in cut.items())


def _without_stages(layout: Layout) -> Layout:
    return layout.drop(*(name for name in (*STACKED, "microbatch") if name in layout.rules))


def _differ_in_stages(have: Shape, want: Shape) -> bool:
    """Whether two stacks of layers are cut otherwise, and are else the same."""
    stacked = [[dim for dim in dims if dim.name in STACKED] for dims in (have, want)]
    return all(stacked) and have.without(stacked[0]) == want.without(stacked[1])


def _restack(x: Tensor, want: Shape, region: Region) -> Tensor:
    """A stack of layers cut into other stages: layers stay in order, padding is zero."""
    rest = [dim.size for dim in want if dim.name not in STACKED]
    count = math.prod(dim.size for dim in want if dim.name in STACKED)

    def cut(array: Any) -> Any:
        flat = to_device(array).reshape(-1, *rest)[:count]
        return jnp.pad(flat, [(0, count - len(flat)), *([(0, 0)] * len(rest))]).reshape(want.sizes)

    sharding = sharding_as_stored(x, region, want)
    return with_array(x, jax.jit(cut, out_shardings=sharding)(x.array), want)
