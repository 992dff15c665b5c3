"""The tensors of a page: each placed type with its sizes, from which follows the slice that each processor holds."""

import functools
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from ...layout import Region, typed
from ...program import Program
from ...program.lines import Line
from ...program.reading import type_text
from ...record import Entry, Placed
from ...tensor import short_dtype
from ...text import size_text

_TYPE = re.compile(r"(\w+)\[([^\]]*)\]")
_DIM = re.compile(r"([A-Za-z_]\w*)(?:/([\w+]+))?")
_BYTES = {"bool": 1, "i4": 0.5, "u4": 0.5}

Sizes = tuple[int | None, ...]
Named = tuple[str, int]
"""What a tensor is called where it is used, and its number in the table."""


class Tensors:
    """The placed types of one program, each once, by number."""

    def __init__(self, program: Program):
        self._program, self._reading, self._axes = program, program._reading, program.mesh.axes
        self._table: dict[tuple[str, Sizes], int] = {}

    def to_list(self) -> list[dict[str, Any]]:
        """The table as plain values: a type, its dims with sizes and axes, and how much a processor holds."""
        return [self._told(text, sizes) for text, sizes in self._table]

    def _told(self, text: str, sizes: Sizes) -> dict[str, Any]:
        named = _dims_of(text)
        dims = [{"name": name, "size": size, "axes": axes} for (name, axes), size in zip(named, sizes, strict=True)]
        found: dict[str, Any] = {"type": text, "dims": dims}
        if (each := _item_bytes(text)) is not None and None not in sizes:
            whole = math.prod(size for size in sizes if size is not None) * each
            ways = math.prod(self._axes[axis] for _, axes in named for axis in axes)
            found |= {"whole": size_text(math.ceil(whole)), "local": size_text(math.ceil(whole / ways))}
        return found

    def of_line(self, line: Line) -> list[Named]:
        """The results of a line's op, then its operands."""
        entry = self._by_line.get((line.source, line.text, line.type))
        types = [match[0] for match in _TYPE.finditer(line.type)]
        found = [(line.name or "result", i) for text in types if (i := self.number(text, line.source)) is not None]
        return found + (list(self._operands(entry)) if entry is not None else [])

    def of_op(self, source: str, text: str) -> list[Named]:
        """The results and operands of the op written so at a place; none where there is no such op."""
        entry = self._by_text.get((source, text))
        if entry is None:
            return []
        name = self._reading.name(entry) or "result"
        return [(name, self._number(type_text(p), p.dims.sizes)) for p in entry.results] + list(self._operands(entry))

    def _operands(self, entry: Entry) -> Iterator[Named]:
        for i, placed in enumerate(entry.operands):
            if placed is not None:
                name = self._reading.operand_name(entry.id, i) or f"operand {i + 1}"
                yield name, self._number(type_text(placed), placed.dims.sizes)

    def arguments(self) -> list[tuple[str, str, int]]:
        """The tensors the program is given: the name, the type and the number of each."""
        region, arrays = Region(self._program.mesh, self._program.layout), self._program.jaxpr.jaxpr.invars
        found = []
        for given, array in zip(self._program._given, arrays, strict=False):
            if given.dims is not None and given.dims.sizes == array.aval.shape:
                placement = region.placement(given.dims, given.store)
                text = typed(short_dtype(array.aval.dtype), given.dims, placement)
                found.append((given.name, text, self._number(text, given.dims.sizes)))
        return found

    def number(self, text: str, source: str = "") -> int | None:
        """The number of a type as it is printed; None where it names no dims or axes of this program."""
        if _TYPE.fullmatch(text) is None or not _is_named(text):
            return None
        if any(axis not in self._axes for _, axes in _dims_of(text) for axis in axes):
            return None
        return self._number(text, self._sizes(text, source))

    def _number(self, text: str, sizes: Sizes) -> int:
        return self._table.setdefault((text, sizes), len(self._table))

    def _sizes(self, text: str, source: str) -> Sizes:
        """The sizes of a type's dims; None for one that has several in tensors of this type."""
        known = self._by_place.get((source, text)) or self._by_place.get(("", text))
        if known:
            return tuple(column[0] if len(set(column)) == 1 else None for column in zip(*known, strict=True))
        each = [self._by_dim.get(name, set()) for name, _ in _dims_of(text)]
        return tuple(next(iter(sizes)) if len(sizes) == 1 else None for sizes in each)

    @functools.cached_property
    def _by_line(self) -> dict[tuple[str, str, str], Entry]:
        found: dict[tuple[str, str, str], Entry] = {}
        for entry in self._reading.entries:
            if not entry.is_gone and not entry.is_block:
                types = ", ".join(map(type_text, entry.results))
                site = str(self._reading.site(entry))
                found.setdefault((site, self._reading.text(entry), types), entry)
        return found

    @functools.cached_property
    def _by_text(self) -> dict[tuple[str, str], Entry]:
        return {(source, text): entry for (source, text, _), entry in reversed(self._by_line.items())}

    @functools.cached_property
    def _by_place(self) -> dict[tuple[str, str], set[tuple[int, ...]]]:
        """The sizes of tensors, by where they are used (or anywhere: an empty place) and type."""
        found: dict[tuple[str, str], set[tuple[int, ...]]] = {}
        for entry, placed in self._placed():
            for used in (placed, _met(entry, placed)):
                for place in ("", str(self._reading.site(entry))):
                    found.setdefault((place, type_text(used)), set()).add(used.dims.sizes)
        return found

    @functools.cached_property
    def _by_dim(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for dim in itertools.chain.from_iterable(placed.dims for _, placed in self._placed()):
            found.setdefault(dim.name, set()).add(dim.size)
        return found

    def _placed(self) -> Iterator[tuple[Entry, Placed]]:
        for entry in self._reading.entries:
            if not entry.is_gone:
                yield from ((entry, placed) for placed in (*entry.results, *entry.operands) if placed is not None)


def _met(entry: Entry, placed: Placed) -> Placed:
    """A tensor as it lies where an op's operands meet, which is how its gradient lies."""
    return Placed(placed.dtype, placed.dims, tuple(entry.dims.get(dim.name, ()) for dim in placed.dims))


def _dims_of(text: str) -> list[tuple[str, list[str]]]:
    """The dims of a type and the axes of each.

    >>> _dims_of("f32[batch/rows+cols d_ff]")
    [('batch', ['rows', 'cols']), ('d_ff', [])]
    """
    match = _TYPE.fullmatch(text)
    assert match is not None
    return [(name, axes.split("+") if axes else []) for name, axes in _DIM.findall(match[2])]


def _is_named(text: str) -> bool:
    inside = text[text.index("[") + 1 : -1]
    return all(_DIM.fullmatch(part) for part in inside.split())


def _item_bytes(text: str) -> float | None:
    """Bytes of one element; None for a dtype that is no number's."""
    name = text.partition("[")[0]
    if name in _BYTES:
        return _BYTES[name]
    bits = re.match(r"(?:bf|f|i|u|c)(\d+)", name)
    return int(bits[1]) / 8 if bits else None
