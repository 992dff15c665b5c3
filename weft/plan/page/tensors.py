"""The tensors of a page: each placed type with its sizes."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ...layout import Region
from ...program import Program
from ...program.array_type import ArrayType, named_type, placed_type
from ...program.lines import Line
from ...record import Entry
from ...tensor import short_dtype
from ...text import size_text

Named = tuple[str, int]
"""What a tensor is called where it is used, and its number in the table."""


class Tensors:
    """The placed types of one program, each once, by number."""

    def __init__(self, program: Program):
        self._program, self._reading, self._axes = program, program.reading, program.mesh.axes
        self._table: dict[ArrayType, int] = {}

    def to_list(self) -> list[dict[str, Any]]:
        """The table as plain values: types, dims, and how much a processor holds."""
        return [self._plain(type_) for type_ in self._table]

    def _plain(self, type_: ArrayType) -> dict[str, Any]:
        dims = [{"name": dim.name, "size": dim.size, "axes": list(dim.axes)} for dim in type_.dims]
        plain: dict[str, Any] = {"type": str(type_), "dtype": short_dtype(type_.dtype), "dims": dims}
        if (bits := _bits(type_.dtype)) is not None:
            whole = math.prod(dim.size for dim in type_.dims) * bits / 8
            ways = math.prod(self._axes[axis] for dim in type_.dims for axis in dim.axes)
            plain |= {"whole": size_text(math.ceil(whole)), "local": size_text(math.ceil(whole / ways))}
        return plain

    def of_line(self, line: Line) -> list[Named]:
        """The results of a line's op, then its operands."""
        entry = self._reading.entry(line.op)
        results = [(line.name or "result", self._number(type_)) for type_ in line.types]
        return results + (list(self._operands(entry)) if entry is not None else [])

    def of_op(self, op: int | None) -> list[Named]:
        """The results and operands of an op; none of what is no op of the program's."""
        entry = self._reading.entry(op)
        if entry is None or entry.is_block:
            return []
        name = self._reading.name(entry) or "result"
        return [(name, self._number(placed_type(p))) for p in entry.results] + list(self._operands(entry))

    def _operands(self, entry: Entry) -> Iterator[Named]:
        for i, placed in enumerate(entry.operands):
            if placed is not None:
                name = self._reading.operand_name(entry.id, i) or f"operand {i + 1}"
                yield name, self._number(placed_type(placed))

    def arguments(self) -> list[tuple[str, ArrayType, int]]:
        """The tensors the program is given: the name, the type and the number of each."""
        region, arrays = Region(self._program.mesh, self._program.layout), self._program.jaxpr.jaxpr.invars
        arguments = []
        for taken, array in zip(self._program.inputs, arrays, strict=False):
            if taken.dims is not None and taken.dims.sizes == array.aval.shape:
                type_ = named_type(array.aval.dtype, taken.dims, region.placement(taken.dims, taken.store))
                arguments.append((taken.name, type_, self._number(type_)))
        return arguments

    def number(self, type_: ArrayType) -> int | None:
        """The number of a type; None where some of its dims have no name."""
        return self._number(type_) if type_.is_named else None

    def _number(self, type_: ArrayType) -> int:
        return self._table.setdefault(type_, len(self._table))


def _bits(dtype: Any) -> int | None:
    """Bits of one element; None for a dtype that is no number's."""
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return None
    if jnp.issubdtype(dtype, jnp.bool_):
        return 8
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).bits)
    return int(jnp.finfo(dtype).bits) * (2 if jnp.issubdtype(dtype, jnp.complexfloating) else 1)
