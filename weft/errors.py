"""Every error a user can cause, in one form: the fact, the state, the fix.

Imports compat alone. A message's last line always starts with `fix:` and names a concrete rule, size or call; the state
ends with the user's own file and line. What users call is `public`: errors leave it without our frames and JAX's, so
that the traceback shows the user's own; with `WEFT_TRACEBACK=full` it shows all.
"""

import difflib
import functools
import inspect
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, TypeVar, overload

import jax

from .compat import FILTERING_NOTE

_HERE = os.path.dirname(os.path.abspath(__file__))
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and ends of lines
_LIBRARIES = ("jax", "jaxlib", "equinox", "optax", "hypothesis", "numpy", "_pytest", "pluggy")


class WeftError(Exception):
    """The root of all errors.

    `str(error)` is the fact, the state around it and the fix, a line each. `given_state` is the state as it was
    given: without the region around it, and without the line. `layout` is the one that the fix is about, where it is
    about one.
    """

    def __init__(self, fact: str, *, fix: str, state: str = "", at: str | None = None, layout: object = None):
        # What a user gave may hold half a character, which no terminal and no file takes, or commands to a terminal.
        fact, state, fix = map(_writable, (fact, state, fix))
        self.fact, self.given_state, self.is_placed = fact, state, at is not None
        around = "" if "layout:" in state or _describe_region is None else _describe_region()
        self._around = "   ".join(filter(None, (state, around)))
        self.state = self.state_at(f"at {at or user_line()}")
        self.fix, self.layout = fix, layout
        super().__init__(f"{fact}\n  {self.state}\n  fix: {fix}")

    def state_at(self, place: str) -> str:
        """The state as it ends with some other place."""
        return _writable("   ".join(filter(None, (self._around, place))))

    def add_note(self, note: str) -> None:
        """Adds a line below the text, but not JAX's note that it removed frames."""
        if FILTERING_NOTE not in note:
            super().add_note(note)


def _writable(text: str) -> str:
    text = _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)
    return text.encode("utf-8", "backslashreplace").decode()


_describe_region: Callable[[], str] | None = None


def describe_region_by(describe: Callable[[], str]) -> None:
    """Lets every error raised inside a region name its layout and mesh."""
    global _describe_region
    _describe_region = describe


class DimError(WeftError):
    """Names and sizes of tensor dimensions that do not fit together."""


class MeshError(WeftError):
    """A mesh that cannot be read, or that the devices at hand cannot make."""


class LayoutError(WeftError):
    """A layout rule that cannot be read, or does not fit the mesh or the dims."""


class TensorError(WeftError):
    """A tensor used where it cannot stand."""


class RegionError(WeftError):
    """Something that cannot cross the border between global and local."""


class CheckError(WeftError):
    """A `wf.check` that failed."""


class UnknownNameError(WeftError, AttributeError):
    """A name that Weft or a tensor lacks; `hasattr` is False, as for any other."""

    def __init__(self, fact: str, *, fix: str):
        super().__init__(fact, fix=fix)
        self.obj = None  # else Python fills it in, and writes a guess of its own below the fix


class WeftWarning(UserWarning):
    """Something legal that is probably not meant.

    `error` is the error that is only a warning here, where it is more than a text.
    """

    def __init__(self, said: str | WeftError):
        super().__init__(str(said))
        self.error = said if isinstance(said, WeftError) else None


def user_line() -> str:
    """The file, line and function of the innermost frame that is the user's own."""
    frame, _ = _users_frame()
    if frame is None:
        return "<unknown line>"
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def user_stacklevel() -> int:
    """The `stacklevel` by which a warning points at the user's own line."""
    return _users_frame()[1]


def _users_frame() -> tuple[FrameType | None, int]:
    """The user's own innermost frame, and its level: 1 is the caller's caller."""
    frame: FrameType | None = sys._getframe(2)
    level = 1
    while frame is not None:
        if _is_users_frame(frame):
            return frame, level
        frame, level = frame.f_back, level + 1
    return None, 2


def _is_users_frame(frame: FrameType) -> bool:
    # What dataclasses write for us has no file of ours, but our globals.
    return is_users(frame.f_code.co_filename) and frame.f_globals.get("__name__", "").split(".")[0] != "weft"


def is_users(filename: str) -> bool:
    """Whether a file is the user's own: not Weft's, Python's or a calling library's."""
    if filename.startswith(_HERE) or filename.startswith("<frozen"):
        return False
    if filename.startswith(os.path.dirname(os.__file__)) and "site-packages" not in filename:
        return False
    return not any(f"site-packages{os.sep}{name}{os.sep}" in filename for name in _LIBRARIES)


def short_path(filename: str) -> str:
    """A file as errors name it: relative where it is below the working directory."""
    relative = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return filename if relative.startswith("..") else relative


def closest(name: str, known: Iterable[str]) -> str:
    """A hint that names the known word nearest to `name`; if none is near, all.

    >>> closest("bacth", ["batch", "length"])
    'did you mean `batch`?'
    """
    known = sorted(set(known))
    if near := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return f"did you mean `{near[0]}`?"
    return f"use one of: {', '.join(f'`{word}`' for word in known)}" if known else "there is none to choose from"


C = TypeVar("C", bound=Callable[..., Any])


@overload
def public(fn: C) -> C: ...
@overload
def public(*, form: str) -> Callable[[C], C]: ...
def public(fn: Any = None, *, form: str | None = None) -> Any:
    """`fn` as users call it: a wrong call is an error that shows the right one.

    Errors leave it without our frames. Of a class this is how it is made. `form` is the right form, where the
    signature does not show it well.
    """
    if fn is None:
        return functools.partial(public, form=form)
    if isinstance(fn, type):
        fn.__init__ = public(fn.__init__, form=form)  # type: ignore[call-overload, misc]
        return fn

    @fold_frames
    @functools.wraps(fn)
    def entry(*args: Any, **kwargs: Any) -> Any:
        return call(fn, args, kwargs, form)

    return entry


def fold_frames(fn: C) -> C:
    """`fn`, which errors leave without our frames: for what cannot be called wrongly."""

    @functools.wraps(fn)
    def entry(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except WeftError as error:
            fold(error)
            raise
        except Exception as error:  # of the function that we were given to call
            _fold_around(error)
            raise

    return entry  # type: ignore[return-value]


def call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], form: str | None = None) -> Any:
    """`fn` of its arguments; a wrong call is an error that shows the right one."""
    try:
        return fn(*args, **kwargs)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # from within
        fact = str(error).replace(fn.__qualname__, _name_of(fn))
        raise TensorError(
            fact, state=_describe_call(fn, args, kwargs), fix=f"call it as `{form or _form(fn)}`"
        ) from None


def _describe_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    is_method = _name_of(fn) != _qualify(fn)
    shown = [*map(_brief, args[is_method:]), *(f"{name}={_brief(value)}" for name, value in kwargs.items())]
    return f"called as `{_name_of(fn)}({', '.join(shown)})`".replace("\n", " ")


def _brief(value: Any) -> str:
    """A value in few letters; of an array its shape, not its numbers."""
    shape = getattr(value, "shape", None)
    sizes = ", ".join(map(str, shape)) if isinstance(shape, tuple) else ""
    return f"{type(value).__name__}({sizes})" if sizes else f"{value!r:.60}"


def _form(fn: Callable[..., Any]) -> str:
    """How a function is called: `wf.take(table, ids, over=...)`."""
    shown = []
    for p in inspect.signature(fn).parameters.values():
        star = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        has_default = p.default is not p.empty and p.name != "over"  # which is asked for in words of its own
        value = p.default.__name__ if isinstance(p.default, type) else repr(p.default)
        default = f"={value}" if has_default else "=..." if p.kind is p.KEYWORD_ONLY else ""
        shown.append(f"{star}{p.name}{default}")
    is_method = _name_of(fn) != _qualify(fn)
    return f"{_name_of(fn)}({', '.join(shown[is_method:])})"


_ROOMS: dict[str, tuple[str, Collection[str]]] = {}


def register_room(module: str, called: str, names: Collection[str]) -> None:
    """Says by which name users reach a module, and which public names it has."""
    _ROOMS[module] = (called, names)


def _qualify(fn: Callable[..., Any]) -> str:
    """A function with the room it is found in: `wf.take`, `nn.Linear.__init__`."""
    if "<locals>" in fn.__qualname__:  # what a function of ours gave
        return fn.__name__
    around = itertools.accumulate(fn.__module__.split("."), "{}.{}".format)
    rooms = [_ROOMS[module] for module in around if module in _ROOMS]
    name = fn.__qualname__.split(".")[0]
    public_in = [called for called, names in rooms if name in names] or [called for called, _ in rooms]
    return ".".join([*public_in[-1:], fn.__qualname__])


def _name_of(fn: Callable[..., Any]) -> str:
    """A function as it is called: `wf.take`, `nn.Linear`, `x.rename`."""
    owner, _, name = _qualify(fn).rpartition(".")
    kind = owner.rpartition(".")[2]
    if name == "__init__":
        return owner
    if not kind[:1].isupper():
        return _qualify(fn)
    value = "x" if kind == "Tensor" else kind.lower()
    return value if name == "__call__" else f"{value}.{name}"


def fold(error: BaseException) -> None:
    """Takes our frames and JAX's out of the tracebacks of our error and its causes."""
    if _shows_all():
        return
    link: BaseException | None = error
    links = set[int]()
    while link is not None and id(link) not in links:  # an error may be raised from itself
        links.add(id(link))
        link.__traceback__ = _keep_frames(link.__traceback__, _is_users_frame)
        _drop_note(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _fold_around(error: Exception) -> None:
    """Takes our frames and JAX's note from around an error not begun in our files."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if _shows_all() or not frames or frames[-1][0].f_code.co_filename.startswith(_HERE):
        return
    error.__traceback__ = _keep_frames(
        error.__traceback__, lambda frame: not frame.f_code.co_filename.startswith(_HERE)
    )
    _drop_note(error)


def _drop_note(error: BaseException) -> None:
    if hasattr(error, "__notes__"):
        error.__notes__ = [note for note in error.__notes__ if FILTERING_NOTE not in note]


def _keep_frames(found: TracebackType | None, is_kept: Callable[[FrameType], bool]) -> TracebackType | None:
    """A traceback of some of the frames of another."""
    kept: TracebackType | None = None
    for frame, line in reversed(list(traceback.walk_tb(found))):
        if is_kept(frame):
            kept = TracebackType(kept, frame, frame.f_lasti, line)
    return kept


def _shows_all() -> bool:
    return os.environ.get("WEFT_TRACEBACK") == "full"


if _shows_all():
    jax.config.update("jax_traceback_filtering", "off")
