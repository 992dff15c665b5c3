"""Rows dealt out: which rows of the whole a function works on.

Whoever runs a function on microbatches says so here, so that random numbers are those of the rows it has, and no
microbatch has another's.
"""

import contextlib
import contextvars
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..dims import Dim


@dataclass(frozen=True)
class Dealt:
    """Row i here, along a dim, is row `i * count + number` of the whole."""

    name: str
    count: int
    number: Any

    def has(self, dim: Dim) -> bool:
        """Whether a dim counts these rows, by its own name or that of a dim it follows."""
        return self.name in (dim.name, dim.follows)


_dealt: contextvars.ContextVar[Dealt | None] = contextvars.ContextVar("rows dealt out", default=None)


@contextlib.contextmanager
def dealing(name: str, count: int, number: Any) -> Iterator[None]:
    """While a function is traced that works on rows `number`, `number + count`, ..."""
    token = _dealt.set(Dealt(name, count, number))
    try:
        yield
    finally:
        _dealt.reset(token)


def dealt_among(dims: Iterable[Dim]) -> Dealt | None:
    """The rows of the function being traced, if it has not all that a dim counts."""
    dealt = _dealt.get()
    return dealt if dealt is not None and any(map(dealt.has, dims)) else None
