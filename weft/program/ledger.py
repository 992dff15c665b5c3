"""The ledger: every collective of a program, its bytes, its count and why.

Read off the traced jaxpr, which is what is compiled. A loop of known length multiplies what is in it, a branch
counts its larger side, and a `while_loop` counts one turn and says so.
"""

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..cells import cell, colour_axes, fold, line, quiet, table
from ..errors import LayoutError, closest
from ..graph import PHASES, Step, Tree, steps
from ..layout import HOST
from ..record import Axes, dtype_sent
from ..text import Printed, column_starts, columns, join_lines, plural, size_text
from .reading import Reading
from .reasons import reason
from .update import find_implied

_TITLES = ("phase", "collective", "over", "carries", "bytes", "count", "total", "source", "reason")
_RIGHT = (4, 5, 6)
_FEW = 12  # rows that a notebook shows unfolded


@dataclass(frozen=True)
class Row:
    """One collective: what a call carries on one processor, and how many there are."""

    collective: str
    axes: Axes
    dims: tuple[str, ...]
    """The dims of what it carries, where that is a tensor of the program."""
    dtype: str
    bytes: int
    """The payload of one call on one processor: what it gives, or for an all-gather what it gets."""
    count: int
    phase: str
    source: str
    """The user's file and line."""
    function: str
    reason: str
    exact: bool
    """What XLA is given to compile, to the byte (it may then join some: two gathers of one weight, say); False for a
    guess about the update. In a loop of unknown length it is exact for one turn."""
    ways: int
    """How many processors take part in one call."""
    is_each_turn: bool = False
    """Inside a loop of unknown length: `count` is for one turn of it."""

    @property
    def wire_bytes(self) -> int:
        """What one processor sends in one call by a ring algorithm."""
        if self.collective == "permute":
            return self.bytes
        sent = self.bytes * (self.ways - 1) // self.ways
        return 2 * sent if self.collective == "all_reduce" else sent

    @property
    def title(self) -> str:
        """The collective and its axes: `all_reduce over rows+cols`."""
        if self.axes == (HOST,):
            return "fetch from the host" if self.collective == "fetch" else "store on the host"
        return f"{self.collective} over {'+'.join(self.axes)}"

    @property
    def times_text(self) -> str:
        """How often it is called: `x3`, or `x3 a turn`."""
        return f"x{self.count}" + (" a turn" if self.is_each_turn else "")

    @property
    def carried(self) -> str:
        """The type of what it carries, as far as it is known: `float32[batch d_model]`."""
        return f"{self.dtype}[{' '.join(self.dims)}]" if self.dims else self.dtype

    def __str__(self) -> str:
        return f"{self.title}  {size_text(self.bytes)} {self.times_text}  {self.source}  {self.reason}"


class Ledger(Sequence[Row]):
    """The collectives of a program, one row each, in the order of the program."""

    def __init__(self, rows: Sequence[Row], axes: Sequence[str] = ()):
        self.rows = list(rows)
        self._axes = list(axes)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __repr__(self) -> str:
        return f"Ledger({plural(len(self.rows), 'row')}, {size_text(self.bytes())} in {plural(self.count(), 'call')})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def bytes(self, axis: str | None = None, phase: str | None = None) -> int:
        """Bytes of all calls, or of those over an axis (also with others) or in a phase."""
        return sum(row.bytes * row.count for row in self._choose(axis, phase))

    def count(self, axis: str | None = None, phase: str | None = None) -> int:
        """The number of all calls, of those over an axis, of those in a phase."""
        return sum(row.count for row in self._choose(axis, phase))

    def _choose(self, axis: str | None, phase: str | None) -> list[Row]:
        if axis is not None and self._axes and axis not in self._axes:
            raise LayoutError(f"the mesh has no axis `{axis}`", fix=closest(axis, self._axes))
        if phase is not None and phase not in PHASES:
            raise LayoutError(f"a program has no phase `{phase}`", fix=closest(phase, PHASES))
        return [
            row for row in self.rows if (axis is None or axis in row.axes) and (phase is None or phase == row.phase)
        ]

    @property
    def exact(self) -> bool:
        """Whether all rows are equal to what is compiled."""
        return all(row.exact for row in self.rows)

    def table(self) -> str:
        """The rows as a table, with totals per axis."""
        return join_lines(self.printed())

    def printed(self) -> list[Printed]:
        """The lines of `table`, each with what it is."""
        if not self.rows:
            return [Printed("nothing is sent", "title")]
        cells = [_TITLES, *(_cells(row) for row in self.rows)]
        head, *lines = columns(cells, right=_RIGHT)
        start = column_starts(cells)[_TITLES.index("source")]
        places = [(start, start + len(row.source)) for row in self.rows]
        rows = [Printed(line, place=place) for line, place in zip(lines, places, strict=True)]
        return [Printed(head, "title"), *rows, Printed(""), *map(Printed, self.totals())]

    def totals(self) -> list[str]:
        """What goes over each axis, a line each, and notes on these figures."""
        axes = self._axes or sorted({axis for row in self.rows for axis in row.axes})
        return [*(f"over {axis}: {self.total(axis)}" for axis in axes), *self.notes()]

    def total(self, axis: str) -> str:
        """What goes over one axis: `1.5 KiB in 3 calls`."""
        count = self.count(axis)
        return f"{size_text(self.bytes(axis))} in {plural(count, 'call')}" if count else "nothing"

    def notes(self) -> list[str]:
        """Notes on the totals: what counts twice, is a guess, or is for one turn."""
        notes = []
        if shared := sum(row.bytes * row.count for row in self.rows if len(row.axes) > 1):
            notes.append(f"of which {size_text(shared)} over several axes at once, counted under each")
        if not self.exact:
            notes.append("not exact: some of the update's collectives could not be known")
        if any(row.is_each_turn for row in self.rows):
            notes.append("a loop's length is not known: what is in it is counted for one turn")
        return notes

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        axes = self._axes or list(dict.fromkeys(axis for row in self.rows for axis in row.axes))
        head = line(f"<b>Ledger</b>{quiet(plural(len(self.rows), 'row'))}")
        totals = [line(f"over {colour_axes([axis], axes)}: {self.total(axis)}") for axis in axes]
        rows = []
        for row in self.rows:
            phase, collective, _, *more, source, reason = map(html.escape, _cells(row))
            rows.append((phase, f"<b>{collective}</b>", colour_axes(row.axes, axes), *more, source, reason))
        notes = [line(quiet(note)) for note in (self.notes() if self.rows else ["nothing is sent"])]
        shown = fold("collectives", table(_TITLES, rows, right=_RIGHT), is_open=len(rows) <= _FEW) if rows else ""
        return cell(head, *totals, *notes, shown)


def _cells(row: Row) -> tuple[str, ...]:
    about = "" if row.exact else "about "
    return (
        row.phase,
        row.collective,
        "+".join(row.axes),
        row.carried,
        about + size_text(row.bytes),
        row.times_text,
        about + size_text(row.bytes * row.count),
        row.source,
        row.reason,
    )


def rows_of(reading: Reading, step: Step) -> list[Row]:
    """The rows of one equation: one if it is a collective of one array."""
    if step.is_global:
        return _rows_of_update(reading, step)
    if step.collective is None:
        return []
    axes = step.axes
    ways = math.prod(reading.mesh.axes[axis] for axis in axes)
    if ways == 1:
        return []
    site = reading.site(reading.entry(step.op))
    return [
        Row(
            collective=step.collective,
            axes=axes,
            dims=_dims(reading, step, math.prod(aval.shape)),
            dtype=dtype_sent(step.scopes) or str(aval.dtype),
            bytes=math.prod(aval.shape) * aval.dtype.itemsize,
            count=step.count,
            phase=step.phase,
            source=str(site),
            function=site.function,
            reason=reason(reading, step, axes),
            exact=True,
            ways=ways,
            is_each_turn=step.is_each_turn,
        )
        for aval in step.carried
    ]


def _rows_of_update(reading: Reading, step: Step) -> list[Row]:
    site = reading.update_site
    return [
        Row(
            collective=sent.collective,
            axes=sent.axes,
            dims=(),
            dtype=sent.dtype,
            bytes=sent.bytes,
            count=step.count,
            phase="update",
            source=str(site),
            function=site.function,
            reason=sent.reason,
            exact=sent.exact,
            ways=math.prod(reading.mesh.axes[axis] for axis in sent.axes),
            is_each_turn=step.is_each_turn,
        )
        for sent in find_implied(step.eqn, reading.mesh.axes)
    ]


def _dims(reading: Reading, step: Step, elements: int) -> tuple[str, ...]:
    """The dims of what a collective carries: its operand's, or a like-sized tensor's."""
    entry = reading.entry(step.op)
    if entry is None:
        return ()
    operand = entry.operands[step.operand : step.operand + 1] if step.operand is not None else []
    if step.collective == "permute" and not operand and not entry.traits.is_product:
        operand = entry.operands[:1]  # a stretch of it
    mapped, times = tuple(reading.mapped_dims(entry)), reading.mapped_times(entry)
    if operand and operand[0] is not None:
        return (*mapped, *operand[0].dims.names)
    for placed in (*entry.results, *entry.operands):
        if placed is None:
            continue
        for dims in (placed.dims, [dim for dim in placed.dims if dim.name not in entry.over]):
            whole = math.prod(dim.size for dim in dims) * times
            if whole % elements == 0 and whole // elements in reading.mesh_ways:
                return (*mapped, *(dim.name for dim in dims))
    return ()


def ledger_of(reading: Reading) -> Ledger:
    """The ledger of a program."""

    def count_sent(tree: Tree) -> float:
        return sum(row.bytes * row.count for step in steps(tree, count_sent) for row in rows_of(reading, step))

    rows = [row for step in steps(reading.graph, count_sent) for row in rows_of(reading, step)]
    return Ledger(rows + unknown_rows(reading), list(reading.mesh.axes))


def unknown_rows(reading: Reading) -> list[Row]:
    """A row that says that more is sent, where the update's shardings are unknown."""
    axes = tuple(axis for axis, size in reading.mesh.axes.items() if size > 1)
    if reading.update_known or not axes:
        return []
    why = "because this optimizer cannot be traced with how its values lie: what XLA adds is seen only in compiled code"
    site, ways = reading.update_site, math.prod(reading.mesh.axes[axis] for axis in axes)
    return [Row("unknown", axes, (), "", 0, 0, "update", str(site), site.function, why, exact=False, ways=ways)]
