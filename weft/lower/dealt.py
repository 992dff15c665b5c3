"""Rows dealt out: which rows of the whole a function works on.

Whoever runs a function on microbatches says so here, so that random numbers are those of the rows it has, and no
microbatch has another's.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from ..dims import Dim, DimLike, Shape
from ..errors import DimError
from ..tensor import Tensor
from .rules import state_of

MICROBATCH = "microbatch"


@dataclass(frozen=True)
class Dealt:
    """Row i here, along a dim, is row `i * count + number` of the whole."""

    name: str
    count: int
    number: Any

    def position(self, dims: Sequence[Dim]) -> int | None:
        """The dim that counts these rows, by its own name or that of a dim it follows.

        Where rows wait for a pipeline, dealt out once more, it is that of microbatches behind it.
        """
        place = next((i for i, dim in enumerate(dims) if self.name in (dim.name, dim.follows)), None)
        waits = place is not None and [dim.name for dim in dims[place + 1 : place + 2]] == [MICROBATCH]
        return place + 1 if place is not None and waits else place


_dealt: contextvars.ContextVar[Dealt | None] = contextvars.ContextVar("rows dealt out", default=None)


@contextlib.contextmanager
def dealing(name: str, count: int, number: Any) -> Iterator[None]:
    """While a function is traced that works on rows `number`, `number + count`, ...

    Of rows that are dealt out already, as in a pipeline of microbatches, these are some of those.
    """
    outer = _dealt.get()
    if outer is not None and outer.name == name:
        count, number = count * outer.count, number * outer.count + outer.number
    token = _dealt.set(Dealt(name, count, number))
    try:
        yield
    finally:
        _dealt.reset(token)


def deal_rows(x: Tensor, rows: DimLike, count: int, *, option: str) -> tuple[Any, Shape]:
    """The rows here dealt out to microbatches, which come first; the dims of one.

    Row i goes to microbatch i mod their number: no row moves to another processor.
    """
    position, ways = x.dims.position(rows), x.ways(rows)
    dim, step = x.dims[position], ways * count
    if dim.size % step:
        raise DimError(
            f"`{dim.name}` (size {dim.size}, split {ways} ways) does not divide into {count} microbatches",
            state=state_of(x),
            fix=f"make it a multiple of {step} (nearest: {-(-dim.size // step) * step}), or choose another `{option}`",
        )
    shape = x.raw.shape
    array = x.raw.reshape(*shape[:position], shape[position] // count, count, *shape[position + 1 :])
    return jnp.moveaxis(array, position + 1, 0), x.dims.resized({dim.name: dim.size // count})


def dealt_among(dims: Sequence[Dim]) -> Dealt | None:
    """The rows of the function being traced, if it has not all that a dim counts."""
    dealt = _dealt.get()
    return dealt if dealt is not None and dealt.position(dims) is not None else None
