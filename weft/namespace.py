"""What a room shows of itself: its public names, and nothing else.

This is what `dir` and tab completion see. Imports errors alone. A room ends by

    __dir__, __getattr__ = namespace(globals(), called="nn")

and a name that it lacks is an error that says what to write instead, or names the nearest.
"""

import difflib
import importlib
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import Any

from .errors import UnknownNameError, WeftWarning, fold_frames, register_room, user_stacklevel


def namespace(
    names: dict[str, Any],
    *,
    called: str,
    written: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
    later: Mapping[str, str] | None = None,
) -> tuple[Callable[[], list[str]], Callable[[str], Any]]:
    """The `__dir__` and `__getattr__` of a room that has these globals.

    Its `__all__` says what is public. `written` says what is written here in place of names that other libraries
    have; `renamed` what a name of an earlier version is called now, which is given with a warning; `later` which names
    are imported when they are first asked for, each with the module it stands in, or "" for a module itself.
    """

    @fold_frames
    def miss(name: str) -> Any:
        if later and name in later:
            return _import(names, name, later[name])
        if renamed and name in renamed:
            warnings.warn(f"`{called}.{name}` is now `{called}.{renamed[name]}`", WeftWarning, user_stacklevel())
            return names[renamed[name]]
        raise unknown_name(called, name, names["__all__"], written or {})

    register_room(names["__name__"], called, names["__all__"])
    return make_dir(names), miss


def make_dir(names: Mapping[str, Any]) -> Callable[[], list[str]]:
    """The `__dir__` of a room that has these globals: its public names."""
    return lambda: [*(name for name in names if name.startswith("__")), *names["__all__"]]


def _import(names: dict[str, Any], name: str, module: str) -> Any:
    """A name of one of a room's modules, from now on among the room's globals."""
    asked_for = set(names)
    found = importlib.import_module(f"{names['__name__']}.{module or name}")
    hide_modules(names, but=asked_for)  # what that one imported
    names[name] = found if not module else getattr(found, name)
    return names[name]


def unknown_name(where: str, name: str, known: Iterable[str], written: Mapping[str, str]) -> AttributeError:
    """The error for a name that a module called `where` lacks; it has those `known`."""
    if name.startswith("_"):  # asked for by Python and by libraries, to see what is there
        return AttributeError(name)
    if name in written:
        return UnknownNameError(f"there is no `{where}.{name}`", fix=f"write {written[name]}")
    known = list(known)
    near = [word for word in known if word.lower() == name.lower()]  # `wf.mesh` is no misspelt `wf.mish`
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    fix = f"did you mean `{where}.{near[0]}`?" if near else f"`{where}.__all__` has all names"
    if where == "wf" and not near:
        fix += "; for a function of one place, `wf.elementwise(fn, x)`; for any other, `wf.local(fn, x, out=...)`"
    return UnknownNameError(f"there is no `{where}.{name}`", fix=fix)


def hide_modules(names: dict[str, Any], *, but: Collection[str] = ()) -> None:
    """Takes modules out of a room's globals, but for rooms with names of their own."""
    own = names["__name__"] + "."
    for name, value in list(names.items()):
        is_ours = isinstance(value, ModuleType) and value.__name__.startswith(own)
        if is_ours and name not in but and not hasattr(value, "__all__"):
            del names[name]


_ROOMS = "rooms"  # how families name what is a room itself


def contents(names: Mapping[str, Any], families: Mapping[str, str], *, later: Mapping[str, str] | None = None) -> str:
    """A table of contents: a room's public names under the title of their family.

    Those that are imported `later` stand under the module that has them.

    >>> import types
    >>> sum = types.SimpleNamespace(__module__="weft.ops.reduce")
    >>> contents({"__all__": ["sum"], "sum": sum}, {"Reductions": "ops.reduce"})
    'Reductions\\n    sum'
    """
    titles = {file: title for title, files in families.items() for file in files.split()}
    found: dict[str, list[str]] = {title: [] for title in families}
    for name in sorted(names["__all__"], key=lambda name: (name.lower(), name)):
        if later and name in later:
            file = later[name] or _ROOMS
        else:
            file = _ROOMS if isinstance(names[name], ModuleType) else names[name].__module__.partition(".")[2]
        found[titles.get(file) or titles[file.rpartition(".")[0]]].append(name)
    return "\n\n".join(
        title + "\n" + textwrap.fill(" ".join(under), 100, initial_indent="    ", subsequent_indent="    ")
        for title, under in found.items()
    )
