"""Every error a user can cause, in one form: the fact, the state around it, the fix.

Imports nothing of the house. A message's last line always starts with `fix:` and names a concrete rule,
size or call; the state ends with the user's own file and line.
"""

import difflib
import os
import sys
from collections.abc import Callable, Iterable
from types import FrameType

_HERE = os.path.dirname(os.path.abspath(__file__))
_LIBRARIES = ("jax", "jaxlib", "equinox", "optax", "hypothesis", "numpy", "_pytest", "pluggy")


class WeftError(Exception):
    """The root of all errors; `str(error)` is the fact, the state and the fix, a line each.

    `given_state` is the state as it was given: without the region around it, and without the line.
    """

    def __init__(self, fact: str, *, fix: str, state: str = "", at: str | None = None):
        # What a user gave may hold half a character, which no terminal and no file takes.
        fact, state, fix = (text.encode("utf-8", "backslashreplace").decode() for text in (fact, state, fix))
        self.fact, self.given_state, self.is_placed = fact, state, at is not None
        around = "" if "layout:" in state else _region_state()
        self.state = "   ".join(part for part in (state, around, f"at {at or user_line()}") if part)
        self.fix = fix
        super().__init__(f"{fact}\n  {self.state}\n  fix: {fix}")


def _region_state() -> str:
    return _describe_region() if _describe_region is not None else ""


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


class WeftWarning(UserWarning):
    """Something legal that is probably not meant."""


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
    """The innermost frame that is the user's own, and how many lie between it and the caller's caller, both counted."""
    frame: FrameType | None = sys._getframe(2)
    level = 1
    while frame is not None:
        if is_users(frame.f_code.co_filename) and frame.f_globals.get("__name__", "").split(".")[0] != "weft":
            return frame, level
        frame, level = frame.f_back, level + 1
    return None, 2


def is_users(filename: str) -> bool:
    """Whether a file is neither weft's, nor Python's, nor a library's that calls users' functions."""
    if filename.startswith(_HERE) or filename.startswith("<frozen"):
        return False
    if filename.startswith(os.path.dirname(os.__file__)) and "site-packages" not in filename:
        return False
    return not any(f"site-packages{os.sep}{name}{os.sep}" in filename for name in _LIBRARIES)


def short_path(filename: str) -> str:
    """A file as errors name it: relative where it lies below the working directory."""
    relative = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return filename if relative.startswith("..") else relative


def closest(name: str, known: Iterable[str]) -> str:
    """A hint that names the known word nearest to `name`, or all of them if none is near.

    >>> closest("bacth", ["batch", "length"])
    'did you mean `batch`?'
    """
    known = sorted(set(known))
    if near := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return f"did you mean `{near[0]}`?"
    return f"use one of: {', '.join(f'`{word}`' for word in known)}" if known else "there is none to choose from"
