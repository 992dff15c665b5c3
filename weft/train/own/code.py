"""Code of the user's that is named in text: a file and a function in it.

Imports errors alone. A call's file and what it imports from beside it are its sources: a run keeps a copy of them, and
their hash says whether they are still what it was begun with.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import WeftError, closest, is_users, short_path

CODE = "code"  # the folder of a run that has a copy of the code it calls
ORIGIN = "origin.json"
_MOST_BYTES = 4 << 20  # of sources that a run copies


class CodeError(WeftError):
    """Code that is named, and that is not there or cannot be called."""


class UsersError(WeftError):
    """Code of the user's that failed by itself; its own error is the `__cause__`."""


@contextlib.contextmanager
def users_code(failed: str, state: str = "") -> Iterator[None]:
    """Runs what the user wrote, printing to stderr; its errors say that it `failed`."""
    with users_errors(failed, state), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def users_errors(failed: str, state: str = "") -> Iterator[None]:
    """The same in a thread: what is printed stays, since stdout is of all threads."""
    try:
        yield
    except WeftError:
        raise
    except (Exception, SystemExit) as error:
        if line := line_of(error):
            raise UsersError(failed, state=state, fix="mend that line, or what calls it", at=line) from error
        fix = "report all of the above: weft should have said what is wrong"
        raise UsersError(failed, state=state, fix=fix, at="weft itself") from error


def users_frames(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames that are of the user's own files."""
    return [frame for frame in frames if is_users(frame.filename)]


def line_of(error: BaseException) -> str:
    """The line of the user's own that failed; empty if no line of his took part."""
    if frames := users_frames(traceback.extract_tb(error.__traceback__)):
        return f"{short_path(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}"
    if isinstance(error, SyntaxError) and error.filename and is_users(error.filename):
        return f"{short_path(error.filename)}:{error.lineno}"  # it was never run, so it has no frame
    return ""


def import_file(path: Path, place: str, *, state: str, at: str | None = None) -> ModuleType:
    """The module in a file, which is run once; `place` is how the user wrote it."""
    if not path.is_file():
        beside = [os.path.join(os.path.dirname(place), other.name) for other in path.parent.glob("*.py")]
        fix = closest(place, beside) if beside else "give the path of a Python file, from here or from `/`"
        raise CodeError(f"there is no file `{place}`", state=state, fix=fix, at=at)
    if path.suffix != ".py":
        raise CodeError(f"`{place}` is not a Python file", state=state, fix="give one that ends in `.py`", at=at)
    with users_code(f"`{place}` failed while it was imported"):
        return _run_module(path.resolve(), path.read_bytes())


@functools.lru_cache(maxsize=64)
def _run_module(path: Path, content: bytes) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # where dataclasses look for the module of a class
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as `python file.py` does
    spec.loader.exec_module(module)
    return module


def find_function(module: ModuleType, wanted: str, *, state: str, at: str | None = None) -> Callable[..., Any]:
    """A function of a module by its name."""
    functions = [
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__ and not key.startswith("_")
    ]
    function = getattr(module, wanted, None)
    if not callable(function):
        fact = f"`{wanted}` in `{module.__name__}` is no function" if function is not None else ""
        fact = fact or f"there is no function `{wanted}` in `{module.__name__}`"
        raise CodeError(fact, state=f"{state}   file: {module.__file__}", fix=closest(wanted, functions), at=at)
    return function


@dataclass(frozen=True)
class OwnCall:
    """A function in a file of the user's, with the options it is called with."""

    file: Path
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    table: str = "model"
    """Of the run's file, that names it."""
    at: str | None = field(default=None, compare=False)
    """Where it is named."""

    @property
    def name(self) -> str:
        """`my_file.py:make`."""
        return f"{self.file.name}:{self.function}"

    @property
    def saved(self) -> dict[str, Any]:
        """As the run's own folder names it, beside the copy it has of the code."""
        return {"call": f"{CODE}/{self.table}/{self.name}", **self.options}

    def __call__(self, *args: Any) -> Any:
        """What the function gives of `args` and the options."""
        call = self._bind(*args)
        with users_code(f"`{self.name}` failed while it was called", f"in `{self.table}`"):
            return call()

    def _bind(self, *args: Any) -> Callable[[], Any]:
        state = f"{self.table}.call: {self.name}"
        module = import_file(self.file, short_path(str(self.file)), state=state, at=self.at)
        function = find_function(module, self.function, state=state, at=self.at)
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # not every callable tells
            return lambda: function(*args, **self.options)
        try:
            signature.bind(*args, **self.options)
        except TypeError as error:
            taken = [name for name in signature.parameters if name != "part" or self.table != "data"]
            unknown = next((key for key in self.options if f"'{key}'" in str(error)), None)
            fix = closest(unknown, taken) if unknown is not None else f"give what it needs in `{self.table}`"
            given = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in self.options.items())])
            fact = f"`{self.name}` cannot be called as `{self.function}({given})`: {error}"
            raise CodeError(fact, state=f"it takes {signature}", fix=fix, at=self.at) from None
        return lambda: function(*args, **self.options)

    def sources(self) -> dict[str, bytes]:
        """The file and what it imports from beside it, by names from there."""
        found: dict[str, bytes] = {}
        waiting = [self.file]
        while waiting:
            path = waiting.pop()
            name = path.relative_to(self.file.parent).as_posix()
            if name not in found and path.is_file():
                found[name] = path.read_bytes()
                waiting += _find_imported(self.file.parent, path, found[name])
        if (size := sum(map(len, found.values()))) > _MOST_BYTES:
            fact = f"`{self.name}` and what it imports from beside it are {size / 1e6:,.1f} MB"
            raise CodeError(fact, fix="keep a run's code in a folder of its own: it is copied", at=self.at)
        return found

    def print(self) -> str:
        """A hash of its sources."""
        return print_of(self.sources())


def print_of(sources: Mapping[str, bytes]) -> str:
    """A hash of files by their names."""
    total = hashlib.sha256()
    for name in sorted(sources):
        total.update(f"{name}\0{len(sources[name])}\0".encode() + sources[name])
    return total.hexdigest()


def _find_imported(root: Path, path: Path, content: bytes) -> list[Path]:
    """The files below `root` that a file imports."""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):  # said where it is run
        return []
    names: list[tuple[Path, str]] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = root if not node.level else path.parents[min(node.level, len(path.parents)) - 1]
            names += [(base, node.module)] if node.module else []
            names += [(base, f"{node.module}.{alias.name}" if node.module else alias.name) for alias in node.names]
    files: list[Path] = []
    for base, name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            place = base.joinpath(*parts[:end])
            files += [each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()]
    return [each for each in files if each.is_relative_to(root)]


def read_call(values: Mapping[str, Any], table: str, file: str, at: Callable[..., str]) -> OwnCall:
    """The call that a table of a run's file names; paths go from that file."""
    text, own = values["call"], {key: value for key, value in values.items() if key != "call"}
    place, _, function = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    where = at(f"{table}.call", table)
    if not place or not function.isidentifier():
        fact, name = f"`{table}.call` is {text!r}", "make" if table == "model" else "dataset"
        raise CodeError(fact, fix=f'write a file and a function in it: `call = "my_file.py:{name}"`', at=where)
    path = Path(os.path.abspath(Path(file).parent / Path(place).expanduser()))
    call = OwnCall(path, function, own, table, where)
    origin = _origin(path, table)
    return call if origin is None else OwnCall(origin, function, own, table, where)


def _origin(path: Path, table: str) -> Path | None:
    """The file that a run's copy of code was made of, where it is there and the same."""
    note = path.parent.parent / ORIGIN
    if path.parent.parent.name != CODE or not note.is_file():
        return None
    try:
        origin = Path(json.loads(note.read_text(encoding="utf-8"))[table])
        is_same = OwnCall(origin, "").print() == OwnCall(path, "").print()
    except (OSError, ValueError, KeyError, TypeError, CodeError):
        return None
    return origin if is_same else None
