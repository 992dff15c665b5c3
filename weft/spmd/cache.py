"""Programs of a function, cached as long as it lives: none compiles twice.

Kept with the function itself, so that both go together; a function that names other things than it did is another.
"""

import dis
import functools
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, TypeVar

from ..errors import is_users

T = TypeVar("T")
_NAME = "__weft_cache__"
_NOTHING = object()


class _Cache:
    """What was made of one function, and what it named; empty where it is copied."""

    def __init__(self, owner: Any = None):
        self.owner, self.made = owner, {}  # type: ignore[var-annotated]

    def __reduce__(self) -> Any:
        return _Cache, ()


def cache_on(fn: Callable[..., Any], key: Any, make: Callable[[], T]) -> T:
    """What `make()` gives, or gave for a plain function that names the same things."""
    if type(fn) is not FunctionType:
        return make()
    kept = fn.__dict__.get(_NAME)
    if kept is None or kept.owner is not fn:  # functools.wraps copies what it finds
        kept = fn.__dict__[_NAME] = _Cache(fn)
    named = list(_list_named(fn, set()))
    if key in kept.made:
        before, made = kept.made[key]
        if len(before) == len(named) and all(a is b for a, b in zip(before, named, strict=True)):
            return made
    made = make()
    kept.made[key] = named, made
    return made


def _list_named(fn: FunctionType, seen: set[int]) -> Iterator[Any]:
    """All that a function, and the user's in it, name and do not bind themselves."""
    seen.add(id(fn))
    yield fn.__code__
    names, bound = _names(fn.__code__)
    values = [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    values += [fn.__globals__.get(name, _NOTHING) for name in sorted(names - bound)]
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    values += [_content(cell) for name, cell in cells if name not in bound]
    for value in values:
        yield value
        if type(value) is FunctionType and id(value) not in seen and is_users(value.__code__.co_filename):
            yield from _list_named(value, seen)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not there yet
        return _NOTHING


@functools.cache
def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names a function's code uses, and those it binds (`nonlocal`, `global`)."""
    used, bound = set(code.co_names), set()
    for step in dis.get_instructions(code):
        is_outside = step.argval in code.co_freevars
        if step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and is_outside):
            bound.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = _names(inner)
            used, bound = used | more[0], bound | more[1]
    return frozenset(used), frozenset(bound)
