"""The configuration of a run, read from one TOML file with `a.b=3` on top.

Checked where it is read, trusted afterwards: an error names the key, the file and the line.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin

from .. import interop, models
from ..data.tokenizers import KINDS as TOKENIZERS
from ..errors import WeftError, closest
from ..fields import bounds_of, choices_of, kinds_of
from ..models.presets import nearest_field
from ..small_files import DEEPEST, Reader, short
from .checks import check_together
from .keys import SET, Where, lines_of
from .own.code import read_call
from .own.data import RESUME, OwnData
from .own.model import OwnModel
from .own.trust import Trust, need_trust
from .settings import AUTO, CONFIG, ONE, UNSAID_DATA, UNSAID_TOKENIZER, ConfigError, RunConfig
from .tables import OPEN_TABLES, TABLES

DATA = {".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".arrow"}
"""Endings of data, which are given for a run's file."""
_TOML = Reader(ConfigError, fix="mend that line; strings need quotes")
_KINDS: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list", dict: "a table",
}  # fmt: skip
NOT_PLACED: Mapping[str, str] = MappingProxyType({})
_CHANGE = Reader(ConfigError, fix="give a plain value, in UTF-8, like `--set train.steps=1000`")

__all__ = ["AUTO", "CONFIG", "ONE", "UNSAID_DATA", "UNSAID_TOKENIZER", "ConfigError", "RunConfig", "read"]


def _cure_of_no_file(path: Path) -> str:
    if str(path) in models.PRESETS:
        return f"that is a preset: `weft new mine.toml --model {path}` writes the file of a run of it"
    beside = [str(other) for other in path.parent.glob("*.toml")] if os.path.isdir(path.parent) else []
    return closest(str(path), beside) if beside else "write one: `weft new mine.toml`"


def read(
    path: Path | str, changes: Sequence[str] = (), *, trust: Trust = False, place: Mapping[str, str] = NOT_PLACED
) -> RunConfig:
    """The configuration in a file, with changes like `train.steps=1000` on top.

    `place` has what options of these names say in place of its `mesh` and `layout`. Code that it calls and that may be
    another's is run only if `trust` says so.
    """
    path = Path(path)
    if not os.path.exists(path):
        raise ConfigError(f"there is no file {short(path)}", fix=_cure_of_no_file(path))
    if os.path.isdir(path):
        inside = sorted(str(other) for other in path.glob("*.toml"))
        fix = f"give its TOML file: `{short(inside[0])}`" if inside else "give a TOML file; there is none in it"
        raise ConfigError(f"{short(path)} is a folder", fix=fix)
    if path.suffix in DATA and path.is_file():
        fix = f"write one that learns from it: `weft new mine.toml --data {short(path)}`"
        raise ConfigError(f"{short(path)} is no run's TOML file", fix=fix)
    values, text = _TOML.toml(path)
    where = lines_of(path, text)
    for change in changes:
        _change(values, change, where)
    for key, value in place.items():
        values[key] = value
        where.set_on_command_line(key, f"--{key} {value}")
    return parse(values, where, trust=trust)


def parse(values: Mapping[str, Any], where: Where, *, trust: Trust = False) -> RunConfig:
    """The configuration of these values."""
    values = dict(values)
    for key in ("data", "tokenizer"):
        if isinstance(values.get(key), str):
            values[key] = _stands_for(key, values[key])
    known = {field.name: field for field in dataclasses.fields(RunConfig) if field.name != "where"}
    for key in values:
        if key not in known:
            raise ConfigError(f"`{key}` is no key of a run", fix=closest(key, known), at=where(key))
    checked: dict[str, Any] = {"model": _model(values.pop("model", {}), values.get("init_from"), where, trust)}
    for key, value in values.items():
        if key == "data" and isinstance(value, Mapping) and "call" in value:
            is_library = not isinstance(checked["model"], OwnModel)
            checked["data"], checked["own_data"] = value, _own_data(value, where, trust, is_library=is_library)
        elif key in OPEN_TABLES:
            checked[key] = _open_table(key, value, where)
        elif key in TABLES:
            checked[key] = _table(key, value, where)
        else:
            checked[key] = _value(key, known[key], value, where)
    config = RunConfig(**checked, where=where, trust=trust)
    check_together(config, where)
    return config


def _stands_for(key: str, text: str) -> dict[str, Any]:
    """The table a text is short for: `{path = "python"}` for `data = "python"`."""
    short_for = {"data": "path", "tokenizer": "kind" if text in TOKENIZERS else "path"}
    return {short_for.get(key, "preset"): text}


def _open_table(name: str, values: Any, where: Where) -> dict[str, Any]:
    """The keys of data or of a tokenizer; the rooms that own them check them further."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"`{name}` is {values!r}", fix=f'write  {name} = "..."  or a table', at=where(name))
    read = _values(name, values, OPEN_TABLES[name], where)
    if name == "data" and "path" not in values and "mixture" not in values:
        raise ConfigError("`data` has no `path`", fix='say  path = "folder"  or  path = "python"', at=where("data"))
    for key, value in values.items():
        if isinstance(value, Mapping):
            _open_table(name, value, Where(where(f"{name}.{key}"), {}))
    return read


def _own_data(values: Mapping[str, Any], where: Where, trust: Trust, *, is_library: bool) -> OwnData:
    """The data of a call, which is run when they are opened."""
    if (resume := values.get("resume", RESUME[0])) not in RESUME:
        raise ConfigError(f"`data.resume` is {resume!r}", fix=closest(str(resume), RESUME), at=where("data.resume"))
    call = read_call({key: x for key, x in values.items() if key != "resume"}, "data", where.file, where)
    return OwnData(call, Path(where.file), trust, weighted=is_library, resume=resume)


def _own_model(values: Mapping[str, Any], where: Where, trust: Trust) -> OwnModel:
    """The model that a call makes, if it may be run."""
    call = read_call(values, "model", where.file, where)
    need_trust(call, Path(where.file), trust)
    return OwnModel.of(call)


def _table(name: str, values: Any, where: Where) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"`{name}` is {values!r}, no table", fix=f"write it so:  [{name}]", at=where(name))
    return TABLES[name](**_values(name, values, TABLES[name], where))


def _values(table: str, values: Mapping[str, Any], schema: type, where: Where) -> dict[str, Any]:
    """The values of a table, each checked by the field of its name."""
    known = {field.name: field for field in dataclasses.fields(schema)}
    if (unknown := next((key for key in values if key not in known), None)) is not None:
        at = where(f"{table}.{unknown}")
        fix = closest(unknown, known)
        if at.startswith(SET):  # where the whole key is written
            fix = closest(f"{table}.{unknown}", [f"{table}.{key}" for key in known])
        raise ConfigError(f"`{table}.{unknown}` is no key of a run", fix=fix, at=at)
    return {key: _value(f"{table}.{key}", known[key], value, where) for key, value in values.items()}


def _value(key: str, field: "dataclasses.Field[Any]", value: Any, where: Where) -> Any:
    """A value, if it is of its field's kind, within its bounds, among its choices."""
    kinds = {get_origin(kind) or kind: get_args(kind) for kind in kinds_of(field) if kind is not type(None)}
    if tuple in kinds:
        return _tuple(key, field, value, where)
    if type(value) is int and int not in kinds and float in kinds:
        value = float(value)
    elif type(value) is float and float not in kinds and int in kinds and value.is_integer():
        value = int(value)
    if type(value) not in kinds or (isinstance(value, list) and any(type(item) not in kinds[list] for item in value)):
        fix = f"give {' or '.join(_KINDS[kind] for kind in kinds)}"
    elif (choices := choices_of(field)) is not None and value not in choices:
        fix = closest(str(value), choices)
    elif type(value) in (int, float) and value not in bounds_of(field):
        fix = f"give a number {bounds_of(field)}"
    else:
        return value
    raise ConfigError(f"`{key}` is {value!r}", fix=fix, at=where(key))


def _tuple(key: str, field: "dataclasses.Field[Any]", value: Any, where: Where) -> tuple[Any, ...]:
    """The values of a list; a text stands for the words in it."""
    item, choices = get_args(field.type)[0], choices_of(field)
    values = value.split() if isinstance(value, str) and item is str else value
    if not isinstance(values, list | tuple) or not all(type(each) is item for each in values):
        example = "[64, 128]" if item is int else '["a", "b"]'
        raise ConfigError(f"`{key}` is {value!r}", fix=f"give a list: {key} = {example}", at=where(key))
    if choices is not None and (unknown := next((each for each in values if each not in choices), None)) is not None:
        raise ConfigError(f"`{key}` names {unknown!r}", fix=closest(unknown, choices), at=where(key))
    return tuple(values)


def _model(values: Any, init_from: Any, where: Where, trust: Trust) -> models.TransformerConfig | OwnModel:
    if isinstance(values, Mapping) and "call" in values:
        return _own_model(values, where, trust)
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
            return _need_tokens(models.preset(values["preset"], **changes))
        if "kind" in values:
            return _need_tokens(models.from_fields(values, where=where("model")))
        return dataclasses.replace(model_in(Path(str(init_from)).expanduser()), **_check_known(changes))
    except WeftError as error:
        named = [f"model.{key}" for key in values if f"`{key}`" in error.fact]
        named = named or ["model.preset" if {"preset", "kind"} & values.keys() else "init_from"]
        raise ConfigError(f"in `{named[0].split('.')[0]}`: {error.fact}", fix=error.fix, at=where(*named)) from None


def _need_tokens(config: models.ModelConfig) -> models.TransformerConfig:
    """The configuration, if it is that of a model of tokens, which a run can feed."""
    if not isinstance(config, models.TransformerConfig):
        raise ConfigError(
            f"`preset` or `kind` names {config.name}, a model of images, and runs are fed with tokens",
            fix="train it by `wf.train_step`, or name a Transformer, e.g. 'tiny-lm'",
        )
    return config


def _check_known(changes: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in dataclasses.fields(models.LMConfig)]
    if (unknown := next((key for key in changes if key not in known), None)) is not None:
        raise ConfigError(f"a model has no `{unknown}`", fix=nearest_field(unknown, known))
    return dict(changes)


def model_in(folder: Path) -> models.TransformerConfig:
    """The configuration of the model in a run's folder, or in one of Hugging Face's."""
    path = folder / CONFIG
    if not path.exists():
        return interop.read_config(folder)
    values, _ = _TOML.toml(path)
    if isinstance(values.get("model"), dict) and "call" in values["model"]:
        fact = f"the weights in {folder} are of a model of somebody's own, {values['model']['call']!r:.60}"
        raise ConfigError(fact, fix="say the same here: `[model] call = ...`")
    if not isinstance(values.get("model"), dict):
        raise ConfigError(f"{path} has no table `model`", fix=closest("model", values))
    return models.from_fields(values["model"], where=str(path))


def _value_of(text: str, at: str) -> Any:
    """The value of a text of TOML, or the text itself: quotes may be left out."""
    try:
        values = _CHANGE.parse_toml(f"x = {text}", at)
    except ConfigError:
        return text.strip()
    return values["x"] if values.keys() == {"x"} else text.strip()


def _change(values: dict[str, Any], change: str, where: Where) -> None:
    key, equals, text = change.partition("=")
    key, at = key.strip(), f"{SET} {change}"
    if not equals or not key:
        raise ConfigError(f"`--set {change}` says nothing", fix="write it like `--set train.steps=1000`", at=at)
    value = _value_of(text, at)
    _CHANGE.check_limits([key, value], at)
    *tables, last = key.split(".")
    if len(tables) > DEEPEST:
        raise ConfigError(f"`--set {short(key)}` names tables {len(tables)} deep", fix="name a key that is there")
    for number, name in enumerate(tables):
        inner = values.setdefault(name, {})
        if isinstance(inner, str) and not number and name in ("data", "tokenizer", "model"):
            inner = values[name] = _stands_for(name, inner)
        if not isinstance(inner, dict):
            raise ConfigError(
                f"`{'.'.join(tables[: number + 1])}` is no table", fix="name a key in a table", at=f"{SET} {key}"
            )
        values = inner
    values[last] = value
    where.set_on_command_line(key)
