"""Opening sources: finding their files, and checking what was said about them.

Imports checks, errors and small_files alone. Files are read only later.
"""

import math
import os
import re
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from ..checks import is_real
from ..errors import closest
from ..small_files import is_file, short
from .compression import COMPRESSED
from .errors import DataError
from .files import files_in, plain_name
from .remote import RemotePath, as_path, has_stars
from .sources import FORMATS, RECORDS, SOURCE_KEYS, Source
from .tables import SUFFIXES, is_saved_dataset, saved_files

PYTHON = "python"
_PathLike: TypeAlias = str | os.PathLike[str]
HELD_OUT = 0.05
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")  # One Billion Words: a sentence a line
_SKIPPED = {"test", "tests", "idle_test", "idlelib_test", "site-packages", "dist-packages", "__pycache__"}
_PLAIN = ("longest_line", "expansion", "field", "dtype", "vocab", "end", "template", "answers", "grows")


def open_source(spec: _PathLike | Sequence[_PathLike] | Mapping[str, Any]) -> Source:
    """The source that a path, `"python"`, or a table of a run's TOML describes.

    `path` (one or several), `format` (of FORMATS; where not said it is read off the name), `glob` for folders,
    `documents = "lines"` for texts whose lines are documents, `field` or `fields` of JSON lines, `source` and
    `target` endings of parallel files, `dtype`, `end` and `vocab` of arrays of tokens, `range` of bytes,
    `held_out` (a share of the end, or a number) or `evaluation` (a source of its own), `longest_line`, and
    `expansion`, how many times its size a compressed file may unpack to.
    """
    table = dict(spec) if isinstance(spec, Mapping) else {"path": spec}
    if (unknown := next((key for key in table if key not in SOURCE_KEYS), None)) is not None:
        raise DataError(f"`{unknown}` says nothing about data", fix=closest(unknown, SOURCE_KEYS))
    if "mixture" in table:
        return _open_mixture(table)
    if "path" not in table:
        raise DataError("the data have no `path`", fix='say `path = "folder"`, or `path = "python"`')
    form = table.get("format")
    if form is not None and form not in FORMATS:
        raise DataError(f"there is no format {form!r}", fix=closest(str(form), FORMATS))
    if table["path"] == PYTHON:
        files, names = _python_files()
        return _make_source("bytes", files, names, {"held_out": HELD_OUT} | table)
    return _open_paths(table, form)


def _open_mixture(table: dict[str, Any]) -> Source:
    """The parts of a mixture as one source; keys beside them are those of each."""
    listed, beside = table.pop("mixture"), table.pop("evaluation", None)
    if "path" in table or not isinstance(listed, list | tuple) or not listed:
        fact = "`mixture` has no parts" if "path" not in table else "the data have a `path` and a `mixture`"
        raise DataError(fact, fix="name what is mixed: `[[data.mixture]]` with a `path` and a `weight`, several times")
    parts: list[Source] = []
    weights: list[float] = []
    for number, each in enumerate(listed, 1):
        part = dict(each) if isinstance(each, Mapping) else {"path": each}
        if (unknown := next((key for key in part if key not in (*SOURCE_KEYS, "weight")), None)) is not None:
            fact = f"`{unknown}` in part {number} of `mixture` says nothing about data"
            raise DataError(fact, fix=closest(str(unknown), (*SOURCE_KEYS, "weight")))
        weight = part.pop("weight", 1.0)
        if not is_real(weight) or not math.isfinite(weight) or weight <= 0:
            fix = "give a number above 0, or leave the part out: shares are weights over their sum"
            raise DataError(f"`weight` of part {number} of `mixture` is {weight!r}", fix=fix)
        if table.get("grows") or part.get("grows"):
            raise DataError(f"part {number} of `mixture` grows", fix="leave `grows` out, or let it be all of the data")
        if "mixture" in part:
            raise DataError(f"part {number} of `mixture` is a mixture itself", fix="list its parts with the others")
        try:
            parts.append(open_source(table | part))
        except DataError as error:
            fact = f"in part {number} of `mixture`: {error.fact}"
            raise DataError(fact, state=error.given_state, fix=error.fix) from None
        weights.append(float(weight))
    first = parts[0]
    for number, other in enumerate(parts[1:], 2):
        if _kind_of(other) != _kind_of(first):
            raise DataError(
                f"part 1 of `mixture` holds {_kind_of(first)}, and part {number} {_kind_of(other)}",
                fix="mix what a model can learn from at once: texts and chats, or pairs, or preferences",
            )
    beside = dict(beside) if isinstance(beside, Mapping) else {"path": beside}
    return Source(
        format=next((part.format for part in parts if part.format == "chat"), first.format),
        files=tuple(file for part in parts for file in part.files),
        names=tuple(name for part in parts for name in part.names),
        held_apart=open_source(table | beside) if beside.get("path") is not None else None,
        fields=first.fields,
        template=next((part.template for part in parts if part.template is not None), None),
        parts=tuple(parts),
        weights=tuple(weights),
    )


def _kind_of(source: Source) -> str:
    if source.format in ("images", "preferences"):
        return source.format
    return "pairs" if source.is_pairs else "texts"


def _open_paths(table: dict[str, Any], form: str | None) -> Source:
    listed = table["path"] if isinstance(table["path"], list | tuple) else [table["path"]]
    paths = [as_path(path) for path in listed]
    if not paths:
        raise DataError("`path` names no file", fix="name one, or several")
    if form == "pairs" or (form is None and (table.get("source") or _is_parallel(paths))):
        return _make_source("pairs", *_parallel_files(paths, table), table)
    files, names = [], []
    for path in paths:
        root, there = _find(path, table.get("glob", "*"))
        files += there
        names += [file.relative_to(root).as_posix() if file != root else file.name for file in there]
    form = form or _guess_format(files, table)
    if form == "images":
        return _images(files, names, table)
    if not any(file.stat().st_size for file in files):
        raise _empty(files)
    return _make_source(form, files, names, table)


def _find(path: Any, pattern: str) -> tuple[Any, list[Any]]:
    """The files a path stands for, and the folder that their names are read from."""
    if isinstance(path, RemotePath):
        stars = next((i for i, part in enumerate(path.parts) if has_stars(PurePosixPath(part))), len(path.parts))
        return RemotePath(*path.parts[:stars]), files_in(path, pattern)
    if is_saved_dataset(path):
        return path, saved_files(path)
    magic = next((i for i, part in enumerate(path.parts) if has_magic(part)), None)
    if magic is None or os.path.exists(path):
        return path, files_in(path, pattern)
    root = Path(*path.parts[:magic])
    found = sorted(Path(name) for name in glob(str(path), recursive=True))  # without hidden ones
    if not (files := [file for file in found if file.is_file()]):
        raise DataError(
            f"no file is named like {short(path)}",
            state=f"looked in {root.absolute()}",
            fix="see how the files are named; `**` stands for any folders",
        )
    return root, files


def _make_source(form: str, files: Iterable[Path], names: Iterable[str], table: Mapping[str, Any]) -> Source:
    plain = {key: table[key] for key in _PLAIN if key in table}
    if form == "chat":
        plain.setdefault("field", "messages")
    held_out, apart = table.get("held_out", 0), table.get("evaluation")
    if not is_real(held_out) or not _is_share(held_out):
        raise DataError(f"`held_out` is {held_out!r}", fix="say a share of the end as `0.05`, or a number as `5000`")
    files = tuple(files)
    if not files or not any(file.exists() and file.stat().st_size for file in files):
        raise _empty(files)
    if apart is not None:
        beside = apart if isinstance(apart, Mapping) else {"path": apart}
        shared = {key: value for key, value in table.items() if key not in ("path", "evaluation", "held_out", "range")}
        same = {} if form in RECORDS and "format" not in table else {"format": form}  # these are told by their names
        apart, held_out = open_source(shared | same | dict(beside)), 0
    if table.get("grows") and (held_out or form in ("tokens", "images", "pairs")):
        what = f"`held_out = {held_out}` is a share of its end" if held_out else f"{form} are read as a whole"
        fix = "hold files apart: `evaluation = FILE`" if held_out else "leave `grows` out"
        raise DataError(f"the data grow, and {what}", fix=fix)
    return Source(
        format=form,
        files=files,
        names=tuple(names),
        held_out=held_out,
        held_apart=apart,
        fields=_fields(table.get("fields")),
        range=_range(table.get("range"), form, len(files)),
        **plain,
    )


def _fields(value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise DataError(f"`fields` is {value!r}", fix='name both sides of a pair: `fields = ["en", "fr"]`')
    return str(value[0]), str(value[1])


def _is_share(held_out: float | int) -> bool:
    return held_out >= 0 if isinstance(held_out, int) else 0 <= held_out < 1


def _range(value: Any, form: str, files: int) -> tuple[int, int] | None:
    if value is None:
        return None
    if form != "bytes" or files != 1:
        raise DataError("`range` is of the bytes of one file", fix='say `format = "bytes"`, or leave `range` out')
    if len(value) != 2 or not 0 <= value[0] < value[1]:
        raise DataError(f"`range` is {value!r}", fix="say where it begins and where it ends: `[0, 90_000_000]`")
    return int(value[0]), int(value[1])


def _empty(files: Iterable[Path]) -> DataError:
    named = ", ".join(str(file) for file in list(files)[:3])
    return DataError(f"there is nothing in {named}", state="0 bytes", fix="give a file that has something in it")


def _guess_format(files: list[Path], table: Mapping[str, Any]) -> str:
    documents = table.get("documents")
    if documents not in (None, "lines", "files"):
        raise DataError(f"`documents` is {documents!r}", fix='say `documents = "lines"` or `documents = "files"`')
    names = [plain_name(file) for file in files]
    endings = {".jsonl": "jsonl", ".tsv": "tsv", ".npy": "tokens", ".bin": "tokens", **SUFFIXES}
    if Path(names[0]).suffix == ".csv" and documents is None:
        lines = 'pandas.read_csv(FILE).to_json("data.jsonl", orient="records", lines=True)'
        raise DataError(
            f"{files[0]} is a table: as a text, its names, numbers and commas would be learned",
            fix=f'write JSON lines of it, `{lines}`, and name its `field`; or say `format = "text"`',
        )
    if form := endings.get(Path(names[0]).suffix):
        return form
    if "idx3-ubyte" in names[0] or any("idx3-ubyte" in name for name in names):
        return "images"
    if names[0] in ("enwik8", "enwik9", "text8"):
        return "bytes"
    return "lines" if documents == "lines" or (documents is None and _SHARD.search(names[0])) else "text"


def _is_parallel(paths: list[Path]) -> bool:
    """Whether two files differ in a short ending alone: `train.en` and `train.fr`."""
    if len(paths) != 2 or any(path.is_dir() for path in paths):
        return False
    one, other = (Path(plain_name(path)) for path in paths)
    return one.stem == other.stem and one.suffix != other.suffix and 2 <= len(one.suffix) <= 4


def _parallel_files(paths: list[Path], table: Mapping[str, Any]) -> tuple[list[Path], list[str]]:
    """The files of both sides in turn. A path without its ending stands for both."""
    if table.get("source") and table.get("target"):
        sides = [_side(path, table[side]) for path in paths for side in ("source", "target")]
    elif len(paths) % 2 == 0:
        sides = [file for path in paths for file in files_in(path)]
    else:
        raise DataError(
            f"{paths[0]} is one side of pairs at most", fix='give two files, or `source = "en"` and `target = "fr"`'
        )
    return sides, [side.name for side in sides]


def _side(path: Path, ending: str) -> Path:
    tried = [path.with_name(f"{path.name}.{ending}{packed}") for packed in ("", *COMPRESSED)]
    if found := next((file for file in tried if is_file(file)), None):
        return found
    raise DataError(
        f"there is no {short(tried[0])}", state=f"nor with {', '.join(COMPRESSED)}", fix="see how it is named"
    )


def _images(files: list[Path], names: list[str], table: Mapping[str, Any]) -> Source:
    """Images and their labels, in turn; `t10k` and `test` in a folder are held apart."""
    by_part: dict[bool, list[Path]] = {False: [], True: []}
    for file in files:
        if "images-idx3" in file.name:
            beside = file.with_name(plain_name(file).replace("images-idx3", "labels-idx1"))
            compressed = [beside.with_name(f"{beside.name}{ending}") for ending in COMPRESSED]
            labels = next((path for path in (beside, *compressed) if path.is_file()), None)
            if labels is None:
                raise DataError(f"there is no {beside} for {file}", fix="put the labels beside the images")
            by_part[file.name.startswith(("t10k", "test")) and len(files) > 1] += [file, labels]
    train, test = by_part[False] or by_part[True], by_part[True]
    apart = {"path": [str(file) for file in test[::2]]} if by_part[False] and test else None
    if "evaluation" not in table and apart is not None:
        table = {**table, "evaluation": apart}
    return _make_source("images", train, [file.name for file in train], table)


def _python_files() -> tuple[list[Path], list[str]]:
    """Python's standard library on this machine as files by name, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {file.relative_to(root).as_posix(): file for file in root.rglob("*.py")}
    names = sorted(name for name in files if not _SKIPPED & set(name.split("/")[:-1]))
    if not names:
        raise DataError(f"{root} has no source of Python's standard library", fix="give a folder of texts instead")
    return [files[name] for name in names], names
