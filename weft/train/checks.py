"""Checks of a run's file as a whole: which keys do not go together."""

import fnmatch
import re
from pathlib import PurePath
from typing import Any

import jax

from ..dims import Shape
from ..errors import LayoutError, WeftError, closest
from ..layout import Layout, Region, as_layout
from ..mesh import as_mesh
from ..models import TransformerConfig
from ..nn.weights import Weight, path_text
from . import wording
from .keys import SET, Where
from .own.model import OwnModel
from .settings import AUTO, ConfigError, RunConfig

_BATCH, _PLACE = ("train.batch", "train.tokens", "model.batch"), ("layout", "mesh")  # keys that say it together


def check_together(config: RunConfig, where: Where) -> None:
    """Raises where two keys exclude each other, or what they say cannot be."""
    _check_name(config.name, where)
    if config.train.batch is not None and config.train.tokens is not None:
        raise ConfigError(
            "`train.batch` and `train.tokens` are both given", fix="give one", at=where("train.tokens", "train.batch")
        )
    if config.train.tokens is not None and config.train.tokens < config.length:
        fact = f"`train.tokens` is {config.train.tokens}, less than one sequence of {config.length}"
        raise ConfigError(fact, fix=f"give at least {config.length}", at=where("train.tokens", "train.length"))
    if config.batch % config.train.microbatches:
        raise ConfigError(
            f"`train.microbatches` is {config.train.microbatches}, and a batch has {config.batch} sequences",
            fix=f"give a number that divides {config.batch}",
            at=where("train.microbatches", *_BATCH),
        )
    rows, flowing = config.batch // config.train.microbatches, _count_flowing(config)
    if rows % flowing:
        raise ConfigError(
            f"{flowing} microbatches flow through the pipeline, and what flows at a time has {rows} sequences",
            fix=f"make it a multiple of {flowing}, or give `model.pipeline_microbatches` that divide {rows}",
            at=where("model.pipeline_microbatches", "model.stages", *_BATCH),
        )
    if (size := config.optimizer.block_size) & (size - 1):
        raise ConfigError(
            f"`optimizer.block_size` is {size}, no power of two",
            fix=f"give {1 << (size.bit_length() - 1)}",
            at=where("optimizer.block_size"),
        )
    if bool(config.mesh) != bool(config.layout):
        fact = "only one of `mesh` and `layout` is given"
        raise ConfigError(
            fact, fix="give both, or neither", at=where("mesh" if config.mesh else "layout", "layout", "mesh")
        )
    if config.mesh == AUTO and config.layout != AUTO:
        fact = "`mesh` is auto, and `layout` names axes it may not have"
        raise ConfigError(fact, fix='say  layout = "auto"  too, or name the mesh', at=where("layout", "mesh"))
    for key, read_it in (("mesh", as_mesh), ("layout", as_layout)):
        if getattr(config, key) not in ("", AUTO):
            try:
                value = read_it(getattr(config, key))
                if isinstance(value, Layout) and not isinstance(config.model, OwnModel):  # whose dims are its own
                    value.check_dims(config.model.dims)
            except WeftError as error:
                raise ConfigError(
                    f"`{key}`: {error.fact}", fix=_reword(error.fix, config, where), at=where(key)
                ) from None
    if config.train.spikes == "rollback" and not config.checkpoint.every:
        fact = '`train.spikes` is "rollback", and `checkpoint.every` is 0: there would be nothing to go back to'
        raise ConfigError(
            fact, fix="save now and then: `checkpoint.every = 200`", at=where("train.spikes", "checkpoint.every")
        )
    if (path := config.checkpoint.path) is not None and not re.fullmatch(r"(gs|s3)://[^/]+/.*[^/].*|file:///.+", path):
        fact = f"`checkpoint.path` is {path!r}, no folder of a bucket"
        raise ConfigError(fact, fix='say it like  path = "s3://bucket/folder"', at=where("checkpoint.path"))
    if config.mesh and not config.is_open:
        _check_place(config, where)
    _check_paths(config, where)


def _count_flowing(config: RunConfig) -> int:
    """How many microbatches flow through a model at a time; 1 without a pipeline."""
    model = config.model
    return model.microbatch.size if isinstance(model, TransformerConfig) and model.stages > 1 else 1


def _check_name(name: str, where: Where) -> None:
    """Raises where a run's name is no folder below `runs`."""
    path = PurePath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or not name.isprintable():
        fact = f"`name` is {name!r}, and the run's folder is runs/NAME" if name else "`name` is empty"
        fix = 'name the run in letters: `name = "first"`; another place for it is said with `--run DIR`'
        raise ConfigError(fact, fix=fix, at=where("name"))


def _check_place(config: RunConfig, where: Where) -> None:
    """Raises where the batch or a weight does not divide over the mesh."""
    mesh, layout = config.runs_on
    model = config.sized_model
    try:
        region = Region(mesh, layout)
        places: dict[str, tuple[Shape, str | None]] = {
            "the batch": (
                Shape([model.dim("batch"), *([] if isinstance(model, OwnModel) else [model.dim("length")])]),
                None,
            )
        }
        for path, weight in _weights(model.blueprint()).items():
            places[f"`{path}`"] = weight.stored_dims, "params"
        for name, (dims, store) in places.items():
            for dim, axes in zip(dims, region.axes(dims, store), strict=True):
                if dim.size % (ways := region.ways(axes)):
                    lower, upper = dim.size // ways * ways, -(-dim.size // ways) * ways
                    near = f"{lower}, {upper}" if lower else f"{upper}"
                    split = f"`{dim.name}` is {dim.size}, and axis {'+'.join(axes)} splits it by {ways}"
                    raise ConfigError(
                        f"{name} does not fit the mesh: {split}",
                        state=region.state,
                        fix=f"make it a multiple of {ways} (nearest: {near}), or change `mesh` or `layout`",
                        at=where(*((*_BATCH, *_PLACE) if store is None else (*_PLACE, f"model.{dim.name}"))),
                    )
        _check_microbatches(config, region, where)
    except LayoutError as error:
        fix = _reword(error.fix, config, where)
        raise ConfigError(f"`layout`: {error.fact}", state=f"mesh: {mesh}", fix=fix, at=where(*_PLACE)) from None


def _check_microbatches(config: RunConfig, region: Region, where: Where) -> None:
    """Raises where a processor's rows do not divide into microbatches."""
    ways, parts = region.ways(region.axes([config.sized_model.dim("batch")])[0]), config.train.microbatches
    flowing, rows = _count_flowing(config), config.batch // ways
    count = parts * flowing
    if rows % count == 0:
        return
    said, fix, keys = f"`train.microbatches` is {parts}", f"give a number that divides {rows}", ["train.microbatches"]
    if flowing > 1:
        said += f" and {flowing} flow through the pipeline, {parts} x {flowing} = {count} microbatches"
        step = ways * count
        near = -(-config.batch // step) * step
        fix = f"make the product divide {rows}, or the batch a multiple of {step} (nearest: {near})"
        keys.insert(0 if parts == 1 else 1, "model.pipeline_microbatches")
    fact = f"{said}, and on the mesh a batch is {ways} parts of {rows}"
    raise ConfigError(fact, state=region.state, fix=fix, at=where(*keys, *_BATCH, *_PLACE))


def _reword(fix: str, config: RunConfig, where: Where) -> str:
    """The fix in the words of the file, or of the command line."""
    said = where("layout")
    form = wording.SET if said.startswith(SET) else wording.OPTION if said.startswith("--") else wording.KEY
    return wording.reword(fix, config.layout, form)


def _check_paths(config: RunConfig, where: Where) -> None:
    """Raises where a pattern matches no weight, or where nothing is left to train."""
    known = list(_weights(config.model.blueprint()))
    patterns = {"lora.where": config.lora.where} if config.lora.rank else {"train.freeze": config.train.freeze}
    for key, listed in patterns.items():
        for pattern in listed:
            if not fnmatch.filter(known, pattern):
                raise ConfigError(
                    f"`{key}` names {pattern!r}, and no weight has such a path",
                    fix=closest(pattern, known),
                    at=where(key),
                )
    if not config.lora.rank and all(
        any(fnmatch.fnmatch(path, pattern) for pattern in config.train.freeze) for path in known
    ):
        raise ConfigError("`train.freeze` names all weights", fix="leave some to train", at=where("train.freeze"))


def _weights(blueprint: Any) -> dict[str, Weight]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(blueprint)
    return {path_text(path): leaf for path, leaf in leaves if isinstance(leaf, Weight)}
