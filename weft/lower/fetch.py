"""Stored parameters gathered ahead of their use, by who knows when that pays.

A function is traced to see what it gathers (`collect`), and once more on what was gathered for it (`provide`): in the
order of its uses, which is the same both times. Imports nothing of the lowering.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

from jax.extend.core import get_opaque_trace_state


class _Collected:
    """What is gathered while a function is traced, in order.

    None stands for what a loop inside the function gathers: it is gathered there.
    """

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self._level = get_opaque_trace_state()

    def take(self, gather: Callable[[], Any]) -> Any:
        self.arrays.append(gather() if get_opaque_trace_state() == self._level else None)
        return self.arrays[-1]


class _Provided:
    """What was gathered before for the uses of a function, one after the other."""

    def __init__(self, arrays: list[Any]):
        self._left = iter(arrays)

    def take(self, gather: Callable[[], Any]) -> Any:
        return next(self._left)


_ahead: contextvars.ContextVar[_Collected | _Provided | None]
_ahead = contextvars.ContextVar("gathers ahead of their use", default=None)


@contextlib.contextmanager
def collect() -> Iterator[list[Any]]:
    """While a function is traced for what it gathers, which the list then holds."""
    collected = _Collected()
    token = _ahead.set(collected)
    try:
        yield collected.arrays
    finally:
        _ahead.reset(token)


@contextlib.contextmanager
def provide(arrays: list[Any]) -> Iterator[None]:
    """While a function is traced on what was gathered for it."""
    token = _ahead.set(_Provided(arrays))
    try:
        yield
    finally:
        _ahead.reset(token)


def is_collecting() -> bool:
    """Whether a function is traced for what it gathers: nothing of it is computed."""
    return isinstance(_ahead.get(), _Collected)


def take(gather: Callable[[], Any]) -> Any:
    """What is or was gathered ahead for this use; None where it is gathered here."""
    ahead = _ahead.get()
    return None if ahead is None else ahead.take(gather)
