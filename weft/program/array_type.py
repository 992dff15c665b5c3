"""The type of an array as a value: its dtype, its dims and their sharding.

Lines, memory and the page carry this and make text of it where they print; nobody reads the text again.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..dims import Dim
from ..record import Axes, Placed
from ..tensor import short_dtype


@dataclass(frozen=True)
class ArrayDim:
    """One dim of an array; of an array without names its size alone is known."""

    name: str | None
    size: int
    axes: Axes = ()


@dataclass(frozen=True)
class ArrayType:
    """A dtype and dims; some dims may have no name."""

    dtype: Any
    dims: tuple[ArrayDim, ...]

    @property
    def is_named(self) -> bool:
        """Whether every dim has a name."""
        return all(dim.name is not None for dim in self.dims)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of those dims that have one."""
        return tuple(dim.name for dim in self.dims if dim.name is not None)

    def text(self, axis: Callable[[str], str] = str, dtype: Callable[[Any], str] = short_dtype) -> str:
        """The type as it is printed; `axis` and `dtype` write those parts of it."""

        def write(dim: ArrayDim) -> str:
            axes = "+".join(map(axis, dim.axes))
            return str(dim.size) if dim.name is None else f"{dim.name}/{axes}" if axes else dim.name

        runs = itertools.groupby(self.dims, lambda dim: dim.name is None)
        parts = [("," if is_unnamed else " ").join(map(write, run)) for is_unnamed, run in runs]
        return f"{dtype(self.dtype)}[{' '.join(parts)}]"

    def __str__(self) -> str:
        """`f32[batch/rows d_model]`; of an array without names `f32[8,16]`.

        >>> str(ArrayType("f32", (ArrayDim("batch", 8, ("rows",)), ArrayDim("d_model", 16))))
        'f32[batch/rows d_model]'
        """
        return self.text()


def named_type(dtype: Any, dims: Sequence[Dim], placement: Sequence[Axes]) -> ArrayType:
    """The type of a tensor whose dims are sharded so."""
    return ArrayType(
        dtype, tuple(ArrayDim(dim.name, dim.size, axes) for dim, axes in zip(dims, placement, strict=True))
    )


def placed_type(placed: Placed) -> ArrayType:
    """The type that the record says a tensor has."""
    return named_type(placed.dtype, placed.dims, placed.placement)


def unnamed_type(aval: Any) -> ArrayType:
    """The type of an array that has sizes alone."""
    return ArrayType(aval.dtype, tuple(ArrayDim(None, size) for size in aval.shape))
