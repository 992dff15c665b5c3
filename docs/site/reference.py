"""The reference: a page for every room of public names, the command line and the keys of a run's file.

Written from docstrings, at build time. A public name without a page entry, or without a docstring, ends the build.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import typer

import weft as wf
from weft.cli import app
from weft.dims import Dim
from weft.fields import bounds_of, choices_of
from weft.train import tables
from weft.train.settings import RunConfig


def _rooms(name: str, module: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    """A module of public names, then those among them."""
    yield name, module
    for inner in getattr(module, "__all__", ()):
        if isinstance(value := getattr(module, inner), ModuleType):
            yield from _rooms(
                f"wf.{inner}" if inner == "random" else inner if name == "wf" else f"{name}.{inner}", value
            )


ROOMS: dict[str, ModuleType] = dict(_rooms("wf", wf)) | {"plan": wf.plan, "program": wf.program}
TITLES = {"wf": "The language: `wf`", "wf.random": "Random numbers: `wf.random`", "nn": "Layers: `weft.nn`"}


class MissingError(Exception):
    """A public name that the reference could say nothing of."""


def public_names(room: str) -> list[str]:
    """The public names of a room, in reading order."""
    module = ROOMS[room]
    return list(getattr(module, "__all__", None) or _defined_in(module))


def _defined_in(module: ModuleType) -> list[str]:
    """The functions of a module without `__all__` that are its own."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def pages() -> dict[str, str]:
    """The Markdown of every page, by its file's name."""
    found = {f"{room.replace('.', '-')}.md": _page(room) for room in ROOMS}
    return found | {"command-line.md": command_line(), "run-file.md": run_file(), "index.md": _index()}


def _index() -> str:
    lines = ["# Reference", "", "Written from the docstrings of this version.", ""]
    for room in ROOMS:
        about = _first_sentence(inspect.getdoc(ROOMS[room]) or "")
        lines.append(f"- [`{_full(room)}`]({room.replace('.', '-')}.md): {_prose(about)}")
    lines += ["- [The command line](command-line.md)", "- [The keys of a run's file](run-file.md)"]
    return "\n".join(lines) + "\n"


def _full(room: str) -> str:
    return room if room.startswith("wf") else f"weft.{room}"


def _first_sentence(text: str) -> str:
    return text.split("\n")[0].rstrip(".")


def _page(room: str) -> str:
    title = TITLES.get(room, f"`{_full(room)}`")
    parts = [f"# {title}", "" if room == "wf" else _prose(inspect.getdoc(ROOMS[room]) or "")]
    families = _families() if room == "wf" else [("", public_names(room))]
    for family, names in families:
        parts.append(f"## {family}" if family else "")
        parts += [_entry(room, name) for name in names]
    return "\n\n".join(part for part in parts if part) + "\n"


def _value(room: str, name: str) -> Any:
    return getattr(ROOMS[room], name)


def _families() -> Iterator[tuple[str, list[str]]]:
    """The families of `wf`, as its own docstring lists them."""
    family, names, known = "", [], set(wf.__all__)
    for line in wf.__doc__.split("help(wf.einsum)")[1].splitlines()[1:]:
        if line.startswith("    "):
            names += line.split()
            known -= set(line.split())
        elif line:
            if family:
                yield family, names
            family, names = line, []
    yield family, names
    if known:
        raise MissingError(f"no family of weft/__init__.py has {sorted(known)}")


def _entry(room: str, name: str) -> str:
    """What is said of one public name; a function or a class has to have a docstring."""
    value, called = _value(room, name), f"{'wf' if room == 'wf' else room}.{name}"
    heading = f"### `{called}` {{ #{called.replace('.', '-')} }}"
    if isinstance(value, ModuleType):
        inner = next(key for key, module in ROOMS.items() if module is value)
        return f"- [`{_full(inner)}`]({inner.replace('.', '-')}.md)"
    is_alias = not inspect.isclass(value) and type(value).__module__ in ("typing", "collections.abc")
    if not callable(value) or is_alias:
        return f"{heading}\n\n{_constant(value)}"
    doc = inspect.getdoc(value)
    if not doc or doc == inspect.getdoc(object):
        raise MissingError(f"`{called}` has no docstring")
    parts = [heading, f"```python\n{signature(called, value)}\n```", _prose(doc)]
    if inspect.isclass(value):
        parts += [_fields(value), *_members(value), _also(value)]
    return "\n\n".join(part for part in parts if part)


def _constant(value: Any) -> str:
    named = ", ".join(f"`{item}`" for item in value) if isinstance(value, (tuple, list, dict)) else f"`{value}`"
    return textwrap.fill(named, 110, break_long_words=False, break_on_hyphens=False)


def signature(called: str, fn: Callable[..., Any]) -> str:
    """How a function is called, without types: `wf.take(table, ids, *, over)`."""
    try:
        parameters = [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return called
    if issubclass_of(fn, BaseException) or getattr(fn, "_is_protocol", False):
        return called
    plain = [p.replace(annotation=p.empty, default=_plain_default(p.default)) for p in parameters]
    text = f"{called}{inspect.Signature([p for p in plain if p.name not in ('self', 'wrong')])}"
    return text if len(text) <= 100 else text.replace("(", "(\n    ", 1)[:-1].replace(", ", ",\n    ") + ",\n)"


def issubclass_of(value: Any, kind: type) -> bool:
    """Whether `value` is a class below `kind`."""
    return inspect.isclass(value) and issubclass(value, kind)


class _Shown:
    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _plain_default(value: Any) -> Any:
    plain = value is inspect.Parameter.empty or value is None or isinstance(value, (int, float, str, tuple, Dim))
    return value if plain else _Shown(getattr(value, "__name__", "..."))


def attribute_docs(cls: type) -> dict[str, str]:
    """The strings that stand under the attributes of a class, or under those its `__init__` sets, by attribute."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    except (OSError, TypeError, SyntaxError):
        return {}
    made = next((line.body for line in body if isinstance(line, ast.FunctionDef) and line.name == "__init__"), [])
    found = {}
    for line, after in [*itertools.pairwise(body), *itertools.pairwise(made)]:
        targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        name = getattr(targets[0], "id", None) or getattr(targets[0], "attr", None)
        if name and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[name] = inspect.cleandoc(str(after.value.value))
    return found


def _fields(cls: type) -> str:
    """The attributes of a class: each with what is said of it, and the names of a dataclass or tuple without more."""
    bases = [cls] if not dataclasses.is_dataclass(cls) else reversed(cls.__mro__)
    docs = {key: doc for base in bases for key, doc in attribute_docs(base).items()}
    fields = {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    inner = set(getattr(cls, "__slots__", ())) if not fields else set()  # of a tensor: for the lowering alone
    bare = (*getattr(cls, "_fields", ()), *(cls.__annotations__ if getattr(cls, "_is_protocol", False) else ()))
    names = dict.fromkeys([*fields, *bare, *([] if fields else docs)])
    shown = [name for name in names if not name.startswith("_") and name not in inner]
    bare = ", ".join(f"`{name}`" for name in shown if name not in docs)
    said = [(name, " ".join(docs[name].split())) for name in shown if name in docs]
    lines = [f"- `{name}`{_default_of(fields.get(name))}: {_prose(doc)}" for name, doc in said]
    return "\n\n".join(part for part in (f"Fields: {bare}" if bare else "", "\n".join(lines)) if part)


def _default_of(field: "dataclasses.Field[Any] | None") -> str:
    plain = (int, float, str, tuple, bool, type(None))
    return f" = `{field.default!r}`" if field is not None and isinstance(field.default, plain) else ""


def members_of(cls: type) -> dict[str, tuple[Callable[..., Any], bool]]:
    """The public methods and properties of a class, each with whether it is called.

    Those of its bases count, up to one that has an entry of its own to read them in.
    """
    found = {}
    for base in _told_of(cls):
        for name, member in vars(base).items():
            is_property = isinstance(member, (property, functools.cached_property))
            fn = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
            if not name.startswith("_") and (is_property or inspect.isfunction(fn)):
                found.setdefault(name, (fn, not is_property))
    return found


def _told_of(cls: type) -> list[type]:
    """A class and its bases up to the first that has an entry of its own."""
    bases = itertools.takewhile(lambda base: base is cls or base not in _classes(), cls.__mro__)
    return [base for base in bases if base is cls or base.__module__.startswith("weft.")]


@functools.cache
def _classes() -> dict[type, tuple[str, str]]:
    """The room and the name of each class that has an entry."""
    names = [(room, name) for room in ROOMS for name in public_names(room)]
    return {_value(*name): name for name in names if inspect.isclass(_value(*name))}


def _members(cls: type) -> Iterator[str]:
    """The methods and properties of a class, and what their docstrings say."""
    bare = []
    for name, (fn, is_called) in members_of(cls).items():
        shown = " ".join((signature(f".{name}", fn) if is_called else f".{name}").split())
        if doc := inspect.getdoc(fn):
            yield f"**`{shown}`**\n\n{_prose(doc)}"
        else:
            bare.append(f"`{shown}`")
    if bare:
        yield f"And {', '.join(bare)}."


def _also(cls: type) -> str:
    """Where the rest of a class is told: in the entry of its nearest base that has one."""
    base = next((base for base in cls.__mro__[1:] if base in _classes()), None)
    if base is None:
        return ""
    room, name = _classes()[base]
    return f"And all of [`{name}`]({room.replace('.', '-')}.md#{room}-{name})."


def _prose(doc: str) -> str:
    """A docstring as Markdown: doctests become blocks of Python, `<` stands for itself."""
    parts = []
    for part in re.split(r"\n\s*\n", doc):
        if part.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{textwrap.dedent(part)}\n```")
        elif part.startswith("    "):
            parts.append(f"```text\n{textwrap.dedent(part)}\n```")
        else:
            pieces = re.split(r"(`[^`]*`)", part)
            parts.append("".join(piece if piece.startswith("`") else piece.replace("<", "&lt;") for piece in pieces))
    return "\n\n".join(parts)


def command_line() -> str:
    """Every command with its arguments, options and examples."""
    group = typer.main.get_command(app)
    parts = ["# The command line", _prose(group.help or "")]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        if not command.help:
            raise MissingError(f"`weft {name}` has no help")
        context = group.make_context("weft", [], resilient_parsing=True)
        with command.make_context(name, [], parent=context, resilient_parsing=True) as inner:
            parts += [f"## `weft {name}`", f"```text\n{inner.get_help().rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def run_file() -> str:
    """Every key of a run's TOML file."""
    parts = ["# The keys of a run's file",
             "A run is one TOML file; [training](../docs/training.md) tells how it is used. "
             "`weft train file.toml --set train.steps=100` sets a key from the command line."]  # fmt: skip
    top = [
        f for f in dataclasses.fields(RunConfig) if f.compare and f.name not in {*tables.TABLES, *tables.OPEN_TABLES}
    ]
    parts += ["## Top level", _keys(RunConfig, only={f.name for f in top} - {"model"})]
    texts = [wf.models.TransformerConfig, wf.models.LMConfig, wf.models.Seq2SeqConfig, wf.models.EncoderConfig]
    images = [wf.models.ViTConfig, wf.models.UNetConfig]
    links = ", ".join(f"[`{c.__name__}`](models.md#models-{c.__name__})" for c in images)
    parts += [
        "## `[model]`",
        "`preset` names one of `weft.models.PRESETS`; every other key changes a field of it. Those of models of "
        f"images: {links}. In place of a preset `call` names a function that makes [a model of your own]"
        "(../docs/own-models.md#a-run); so it does in `[data]`.",
        _keys(*texts),
    ]
    for name, table in {**tables.OPEN_TABLES, **tables.TABLES}.items():
        parts += [f"## `[{name}]`", _prose(inspect.getdoc(table) or ""), _keys(table)]
    return "\n\n".join(parts) + "\n"


def _keys(*configs: Any, only: Collection[str] | None = None) -> str:
    """A table of the fields of some dataclasses, each field once."""
    docs, hints, fields = {}, {}, {}
    for cls in configs:
        docs |= {key: doc for base in reversed(cls.__mro__) for key, doc in attribute_docs(base).items()}
        hints |= get_type_hints(cls)
        own_first = sorted(dataclasses.fields(cls), key=lambda field: field.name not in vars(cls)["__annotations__"])
        fields |= {field.name: field for field in own_first if field.name not in fields}
    rows = ["| key | is | by default | |", "|---|---|---|---|"]
    for field in fields.values():
        if only is not None and field.name not in only:
            continue
        if field.name not in docs:
            raise MissingError(f"nothing says what the key `{field.name}` of a run's file is: write it under its field")
        said = " ".join(docs[field.name].split()).replace("|", "\\|")
        default = "" if field.default in (dataclasses.MISSING, None) else f"`{_toml(field.default)}`"
        rows.append(f"| `{field.name}` | {_kind(field, hints[field.name])} | {default} | {_prose(said)} |")
    return "\n".join(rows)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, tuple) else repr(value).replace("'", '"')


def _kind(field: "dataclasses.Field[Any]", hint: Any) -> str:
    if choices := choices_of(field):
        return ", ".join(f"`{choice}`" for choice in choices)
    text = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
    text = re.sub(r"\b(\w+\.)+", "", text).replace(" | None", "").replace("tuple[str, ...]", "list of texts")
    text = text.replace("tuple[int, ...]", "list of whole numbers")
    words = dict(int="whole number", float="number", str="text", bool="true or false")
    is_bounded = text in ("int", "float") and field.metadata
    return words.get(text, text).replace("|", "or") + (f" {bounds_of(field)}" if is_bounded else "")


def write(folder: Path) -> None:
    """Writes every page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
