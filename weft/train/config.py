"""The configuration of a run: one TOML file, with `a.b=3` on top; checked where it is read, trusted afterwards.

Imports the models' configurations. An error names the key, the file and the line.
"""

import dataclasses
import fnmatch
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import jax
import tomli_w

from .. import interop, models
from ..dims import Shape
from ..errors import LayoutError, WeftError, closest
from ..layout import Layout, Region, as_layout
from ..mesh import Mesh, as_mesh
from ..nn.weights import Weight, written
from ..small_files import DEEPEST, Reader, short
from .keys import Where, lines_of
from .tables import (
    BELOW,
    CHOICES,
    ITEMS,
    KINDS,
    MAY_BE_ZERO,
    OPEN_TABLES,
    TABLES,
    Checkpoint,
    Evaluation,
    Lora,
    Optimizer,
    Schedule,
    Train,
)

CONFIG = "config.toml"
AUTO = "auto"  # a mesh or a layout that is to be searched for
ONE = ("all=1", "batch:all")  # where a run without a mesh runs


class ConfigError(WeftError):
    """A run's configuration that cannot be."""


_TOML = Reader(ConfigError, fix="mend that line; strings need quotes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All of a run: what is trained, on what, where and how."""

    model: models.TransformerConfig
    name: str = "run"
    seed: int = 0
    mesh: str = ""
    layout: str = ""
    init_from: str | None = None
    """Weights to start with: a folder of Hugging Face's, or of another run."""
    train: Train = dataclasses.field(default_factory=Train)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    tokenizer: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"kind": "bytes"})
    """As `data.open_tokenizer` reads it."""
    data: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"path": "python"})
    """As `data.open_source` reads it."""
    eval: Evaluation = dataclasses.field(default_factory=Evaluation)
    checkpoint: Checkpoint = dataclasses.field(default_factory=Checkpoint)
    lora: Lora = dataclasses.field(default_factory=Lora)
    where: Any = dataclasses.field(default=None, compare=False, repr=False)
    """Where each key stands, for errors that come later."""

    def place(self, key: str) -> str | None:
        """The file and line a key stands in."""
        return None if self.where is None else self.where(key)

    @property
    def length(self) -> int:
        return self.train.length or self.model.length

    @property
    def batch(self) -> int:
        """Sequences in a batch."""
        if self.train.tokens is not None:
            return self.train.tokens // self.length
        return self.train.batch or self.model.batch

    @property
    def sized_model(self) -> models.TransformerConfig:
        """The model's configuration with the sizes of the run's batches; weights that are there keep all positions."""
        most = self.model.max_length
        if self.init_from is not None and self.model.max_positions > self.length:
            most = self.model.max_positions
        return dataclasses.replace(self.model, batch=self.batch, length=self.length, max_length=most)

    @property
    def is_open(self) -> bool:
        """Whether its mesh or layout is still to be found."""
        return AUTO in (self.mesh, self.layout)

    @property
    def runs_on(self) -> tuple[Mesh, Layout]:
        """Its mesh and layout; one processor where it names none."""
        mesh, layout = (self.mesh, self.layout) if self.mesh else ONE
        return as_mesh(mesh), as_layout(layout)

    def to_toml(self) -> str:
        """The whole configuration as it is read again."""
        return tomli_w.dumps(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The whole configuration as plain values, None left out."""
        plain = {name: getattr(self, name) for name in ("name", "seed", "mesh", "layout", "init_from")}
        tables = {name: dataclasses.asdict(getattr(self, name)) for name in TABLES}
        open_tables = {"data": self.data, "tokenizer": self.tokenizer}
        return _without_none({**plain, "model": models.fields(self.model), **open_tables, **tables})


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _without_none(v) if isinstance(v, Mapping) else v for name, v in values.items() if v is not None}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}


# Reading.


def read(path: Path | str, changes: Sequence[str] = ()) -> RunConfig:
    """The configuration in a file, with changes like `train.steps=1000` on top."""
    path = Path(path)
    if not os.path.exists(path):
        beside = [str(other) for other in path.parent.glob("*.toml")] if os.path.isdir(path.parent) else []
        raise ConfigError(f"there is no file {short(path)}", fix=closest(str(path), beside))
    values, text = _TOML.toml(path)
    where = lines_of(path, text)
    for change in changes:
        _change(values, change, where.lines)
    return parsed(values, where)


def parsed(values: Mapping[str, Any], where: Where) -> RunConfig:
    """The configuration of these values."""
    values = dict(values)
    for key in ("data", "tokenizer"):
        if isinstance(values.get(key), str):
            values[key] = _stands_for(key, values[key])
    own = {field.name: field for field in dataclasses.fields(RunConfig) if field.name != "where"}
    for key in values:
        if key not in own:
            raise ConfigError(f"`{key}` is no key of a run", fix=closest(key, own), at=where(key))
    found: dict[str, Any] = {"model": _model(values.pop("model", {}), values.get("init_from"), where)}
    for key, value in values.items():
        if key in ("data", "tokenizer"):
            if not isinstance(value, Mapping):
                raise ConfigError(f"`{key}` is {value!r}", fix=f'write  {key} = "..."  or a table', at=where(key))
            found[key] = _open_table(key, value, where)
        elif key in TABLES:
            found[key] = _table(key, value, where)
        else:
            found[key] = _value(key, own[key].type, value, where)
    config = RunConfig(**found, where=where)
    _check_together(config, where)
    return config


def _stands_for(key: str, text: str) -> dict[str, Any]:
    """The table that a text in its place is short for: that of `data = "python"` is `{path = "python"}`."""
    is_kind = text in CHOICES["tokenizer.kind"]
    return {{"data": "path", "tokenizer": "kind" if is_kind else "path"}.get(key, "preset"): text}


def _open_table(name: str, values: Mapping[str, Any], where: Where) -> dict[str, Any]:
    """What is said of data or of a tokenizer; the rooms that own them check it further."""
    kinds = OPEN_TABLES[name]
    _check_keys(name, values, kinds, where)
    if name == "data" and "path" not in values:
        raise ConfigError("`data` has no `path`", fix='say  path = "folder"  or  path = "python"', at=where("data"))
    for last, value in values.items():
        key = f"{name}.{last}"
        items = value if isinstance(value, list) and list in kinds[last] else []
        if type(value) not in kinds[last] or not all(type(item) is ITEMS[key] for item in items):
            names = " or ".join(KINDS[kind] for kind in kinds[last])
            raise ConfigError(f"`{key}` is {value!r}", fix=f"give {names}", at=where(key))
        if isinstance(value, dict):
            _open_table(name, value, Where(where(key), {}))
        _check_sign(key, value, where)
        _check_choice(key, value, where)
    return dict(values)


def _table(name: str, values: Any, where: Where) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"`{name}` is {values!r}, no table", fix=f"write it so:  [{name}]", at=where(name))
    known = {field.name: field for field in dataclasses.fields(TABLES[name])}
    _check_keys(name, values, known, where)
    return TABLES[name](
        **{key: _value(f"{name}.{key}", known[key].type, value, where) for key, value in values.items()}
    )


def _check_keys(table: str, values: Mapping[str, Any], known: Iterable[str], where: Where) -> None:
    for key in values:
        if key not in known:
            at = where(f"{table}.{key}")
            raise ConfigError(f"`{table}.{key}` is no key of a run", fix=closest(key, known), at=at)


def _value(key: str, kind: Any, value: Any, where: Where) -> Any:
    """A value, if it is of its kind."""
    kinds = [k for k in (get_args(kind) or (kind,)) if k is not type(None)]
    if get_origin(kind) is tuple:
        item, example = (int, "[64, 128]") if int in kinds else (str, '["a", "b"]')
        listed = value.split() if isinstance(value, str) and item is str else value
        if not isinstance(listed, list | tuple) or not all(type(each) is item for each in listed):
            raise ConfigError(f"`{key}` is {value!r}", fix=f"give a list: {key} = {example}", at=where(key))
        if key in CHOICES and (unknown := [each for each in listed if each not in CHOICES[key]]):
            raise ConfigError(f"`{key}` names {unknown[0]!r}", fix=closest(unknown[0], CHOICES[key]), at=where(key))
        return tuple(listed)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if float in kinds and is_number:
        value = float(value)
    elif int in kinds and is_number and float(value).is_integer():
        value = int(value)
    if type(value) not in kinds:
        names = " or ".join(KINDS[k] for k in kinds)
        raise ConfigError(f"`{key}` is {value!r}", fix=f"give {names}", at=where(key))
    _check_sign(key, value, where)
    _check_choice(key, value, where)
    return value


def _check_sign(key: str, value: Any, where: Where) -> None:
    """Raises for a number that is not finite, is negative, or is 0 or too large where it must not be."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    may_be_zero, below = key in MAY_BE_ZERO, BELOW.get(key, math.inf)
    if not (0 < value < below or (value == 0 and may_be_zero)):
        fix = f"give a number {'from 0 on' if may_be_zero else 'above 0'}"
        fix += f" and below {below}" if key in BELOW else ""
        raise ConfigError(f"`{key}` is {value!r}", fix=fix, at=where(key))


def _check_choice(key: str, value: Any, where: Where) -> None:
    if key in CHOICES and value not in CHOICES[key]:
        raise ConfigError(f"`{key}` is {value!r}", fix=closest(str(value), CHOICES[key]), at=where(key))


def _model(values: Any, init_from: Any, where: Where) -> models.TransformerConfig:
    if isinstance(values, str):
        values = _stands_for("model", values)
    if not isinstance(values, Mapping) or not ("preset" in values or "kind" in values or init_from is not None):
        raise ConfigError(
            "the run has no model",
            fix='say which:  model = "tiny-lm"  or  [model] preset = "tiny-lm"',
            at=where("model"),
        )
    changes = {key: value for key, value in values.items() if key != "preset"}
    try:
        if "preset" in values:
            return models.preset(values["preset"], **changes)
        if "kind" in values:
            return models.from_fields(values, where=where("model"))
        return dataclasses.replace(model_in(Path(str(init_from)).expanduser()), **_known(changes))
    except WeftError as error:
        named = next((f"model.{key}" for key in values if f"`{key}`" in error.fact), None)
        named = named or ("model.preset" if {"preset", "kind"} & values.keys() else "init_from")
        raise ConfigError(f"in `{named.split('.')[0]}`: {error.fact}", fix=error.fix, at=where(named)) from None


def _known(changes: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in dataclasses.fields(models.LMConfig)]
    if (unknown := next((key for key in changes if key not in known), None)) is not None:
        raise ConfigError(f"a model has no `{unknown}`", fix=closest(unknown, known))
    return dict(changes)


def model_in(folder: Path) -> models.TransformerConfig:
    """The configuration of the model in a folder: that of a run, or one of Hugging Face's."""
    path = folder / CONFIG
    if not path.exists():
        return interop.read_config(folder)
    found, _ = _TOML.toml(path)
    if not isinstance(found.get("model"), dict):
        raise ConfigError(f"{path} has no table `model`", fix=closest("model", found))
    return models.from_fields(found["model"], where=str(path))


def _check_together(config: RunConfig, where: Where) -> None:
    if not config.name:
        raise ConfigError("`name` is empty", fix="name the run: its folder is runs/NAME", at=where("name"))
    if config.train.batch is not None and config.train.tokens is not None:
        raise ConfigError("`train.batch` and `train.tokens` are both given", fix="give one", at=where("train.tokens"))
    if config.train.tokens is not None and config.train.tokens < config.length:
        fact = f"`train.tokens` is {config.train.tokens}, less than one sequence of {config.length}"
        raise ConfigError(fact, fix=f"give at least {config.length}", at=where("train.tokens"))
    if config.batch % config.train.microbatches:
        raise ConfigError(
            f"`train.microbatches` is {config.train.microbatches}, and a batch has {config.batch} sequences",
            fix=f"give a number that divides {config.batch}",
            at=where("train.microbatches"),
        )
    if bool(config.mesh) != bool(config.layout):
        fact = "only one of `mesh` and `layout` is given"
        raise ConfigError(fact, fix="give both, or neither", at=where("mesh" if config.mesh else "layout"))
    if config.mesh == AUTO and config.layout != AUTO:
        fact = "`mesh` is auto, and `layout` names axes it may not have"
        raise ConfigError(fact, fix='say  layout = "auto"  too, or name the mesh', at=where("layout"))
    for key, read_it in (("mesh", as_mesh), ("layout", as_layout)):
        if getattr(config, key) not in ("", AUTO):
            try:
                found = read_it(getattr(config, key))
                if isinstance(found, Layout):
                    found.check_dims(config.model.dims)
            except WeftError as error:
                fix = re.sub(r": `layout\.drop\(.*?\)`", "", error.fix)  # the user has a file, no layout
                raise ConfigError(f"`{key}`: {error.fact}", fix=fix, at=where(key)) from None
    if config.mesh and not config.is_open:
        _check_place(config, where)
    _check_paths(config, where)


def _check_place(config: RunConfig, where: Where) -> None:
    """Raises where the batch or a weight does not divide over the mesh."""
    mesh, layout = config.runs_on
    model = config.sized_model
    try:
        region = Region(mesh, layout)
        places: dict[str, tuple[Shape, str | None]] = {
            "the batch": (Shape([model.dim("batch"), model.dim("length")]), None)
        }
        for path, weight in _weights(model.blueprint(mesh, layout)).items():
            places[f"`{path}`"] = weight.stored_dims, "params"
        for what, (dims, store) in places.items():
            for dim, axes in zip(dims, region.axes(dims, store), strict=True):
                if dim.size % (ways := region.ways(axes)):
                    lower, upper = dim.size // ways * ways, -(-dim.size // ways) * ways
                    near = f"{lower}, {upper}" if lower else f"{upper}"
                    split = f"`{dim.name}` is {dim.size}, and axis {'+'.join(axes)} splits it by {ways}"
                    raise ConfigError(
                        f"{what} does not fit the mesh: {split}",
                        state=region.state,
                        fix=f"make it a multiple of {ways} (nearest: {near}), or change `mesh` or `layout`",
                        at=where("train.batch" if store is None else "layout"),
                    )
        ways, parts = region.ways(region.axes([model.dim("batch")])[0]), config.train.microbatches
        if config.batch % (ways * parts):
            fact = f"`train.microbatches` is {parts}, and on the mesh a batch is {ways} parts of {config.batch // ways}"
            fix = f"give a number that divides {config.batch // ways}"
            raise ConfigError(fact, state=region.state, fix=fix, at=where("train.microbatches"))
    except LayoutError as error:
        raise ConfigError(f"`layout`: {error.fact}", state=f"mesh: {mesh}", fix=error.fix, at=where("layout")) from None


def _check_paths(config: RunConfig, where: Where) -> None:
    """Raises where a pattern is the path of no weight, or where nothing is left to train."""
    known = list(_weights(config.model.blueprint()))
    patterns = {"lora.where": config.lora.where} if config.lora.rank else {"train.freeze": config.train.freeze}
    for key, own in patterns.items():
        for pattern in own:
            if not fnmatch.filter(known, pattern):
                raise ConfigError(
                    f"`{key}` names {pattern!r}, and no weight has such a path",
                    fix=closest(pattern, known),
                    at=where(key),
                )
    if not config.lora.rank and all(any(fnmatch.fnmatch(path, each) for each in config.train.freeze) for path in known):
        raise ConfigError("`train.freeze` names all weights", fix="leave some to train", at=where("train.freeze"))


def _weights(blueprint: Any) -> dict[str, Weight]:
    found, _ = jax.tree_util.tree_flatten_with_path(blueprint)
    return {written(path): leaf for path, leaf in found if isinstance(leaf, Weight)}


# Changes.


def _value_of(text: str) -> Any:
    """The value that a text of TOML stands for, or else the text itself: quotes may be left out."""
    try:
        found = _TOML.parse_toml(f"x = {text}", "--set")
    except ConfigError:
        return text.strip()
    return found["x"] if found.keys() == {"x"} else text.strip()


def _change(values: dict[str, Any], change: str, where: dict[str, str]) -> None:
    key, equals, text = change.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"`--set {change}` says nothing", fix="write it like `--set train.steps=1000`", at="--set")
    value = _value_of(text)
    _TOML.check_limits([key, value], "--set")
    *tables, last = key.split(".")
    if len(tables) > DEEPEST:
        raise ConfigError(f"`--set {short(key)}` names tables {len(tables)} deep", fix="name a key that is there")
    for number, name in enumerate(tables):
        inner = values.setdefault(name, {})
        if isinstance(inner, str) and not number and name in ("data", "tokenizer", "model"):
            inner = values[name] = _stands_for(name, inner)
        if not isinstance(inner, dict):
            raise ConfigError(
                f"`{'.'.join(tables[: number + 1])}` is no table", fix="name a key in a table", at="--set"
            )
        values = inner
    values[last] = value
    for upto in range(1, len(tables) + 2):
        where[".".join([*tables, last][:upto])] = f"--set {key}"
