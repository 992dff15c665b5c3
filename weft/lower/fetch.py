"""Stored parameters gathered ahead of their use, by who knows when that pays.

A function is traced to see what it gathers (`collect`), and once more on what was gathered for it (`provide`): in the
order of its uses, which is the same both times.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.extend.core import get_opaque_trace_state

from .collectives import level_of
from .stored import OnHost


@dataclass(frozen=True)
class Fetched:
    """What was gathered for one use of a stored parameter."""

    array: Any
    is_own: bool
    """Whether the parameter belongs to the function itself, which is not so where it is closed over."""

    def adopt(self, operand: Any, gather: Callable[[Any], Any]) -> Any:
        """The array, whose gradient is scattered to the operand it was gathered of.

        Of what is closed over it goes to the array, and is scattered where that was gathered.
        """
        if not self.is_own:
            return self.array

        @jax.custom_vjp
        def adopt(operand: Any, array: Any) -> Any:
            return array

        def scatter(operand: Any, gradient: Any) -> Any:
            if not isinstance(operand, OnHost):
                return jax.vjp(gather, operand)[1](gradient)[0], None
            _, transpose = jax.vjp(lambda taker: gather(operand._replace(stand_in=taker)), operand.stand_in)
            return OnHost(None, transpose(gradient)[0]), None

        adopt.defvjp(lambda operand, array: (array, operand), scatter)
        return adopt(operand, lax.stop_gradient(self.array))


class _Collected:
    """What is gathered while a function is traced, in order.

    None stands for what a loop inside the function gathers: it is gathered there.
    """

    def __init__(self, around: Any) -> None:
        self.uses: list[Fetched | None] = []
        self._here, self._around = get_opaque_trace_state(), around

    def take(self, raw: Any, gather: Callable[[], Any]) -> Fetched | None:
        if get_opaque_trace_state() != self._here:
            self.uses.append(None)
        else:
            with level_of(raw):
                made_in = get_opaque_trace_state()
            self.uses.append(Fetched(gather(), made_in in (self._here, self._around)))
        return self.uses[-1]


class _Provided:
    """What was gathered before for the uses of a function, one after the other."""

    def __init__(self, uses: list[Fetched | None]):
        self._left = iter(uses)

    def take(self, raw: Any, gather: Callable[[], Any]) -> Fetched | None:
        return next(self._left)


_ahead: contextvars.ContextVar[_Collected | _Provided | None]
_ahead = contextvars.ContextVar("gathers ahead of their use", default=None)


@contextlib.contextmanager
def collect(around: Any) -> Iterator[list[Fetched | None]]:
    """While a function is traced for what it gathers, which the list then holds.

    `around` is the state of tracing (`get_opaque_trace_state`) in which its own operands were made.
    """
    collected = _Collected(around)
    token = _ahead.set(collected)
    try:
        yield collected.uses
    finally:
        _ahead.reset(token)


@contextlib.contextmanager
def provide(uses: list[Fetched | None]) -> Iterator[None]:
    """While a function is traced on what was gathered for it."""
    token = _ahead.set(_Provided(uses))
    try:
        yield
    finally:
        _ahead.reset(token)


def is_collecting() -> bool:
    """Whether a function is traced for what it gathers: nothing of it is computed."""
    return isinstance(_ahead.get(), _Collected)


def take(raw: Any, gather: Callable[[], Any]) -> Fetched | None:
    """What is or was gathered ahead for this use; None where it is gathered here."""
    ahead = _ahead.get()
    return None if ahead is None else ahead.take(raw, gather)
