"""What XLA sends beside what a program's ledger says, and why they differ.

Bytes are equal but for what XLA's own passes change, each of which is named.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..program import Program
from ..program.ledger import Row
from ..text import plural, size_text
from .merged import merged_rows
from .sent import Sent


@dataclass
class _Total:
    """What goes over some axes."""

    calls: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    """The bytes of each collective."""

    @property
    def bytes(self) -> int:
        return self.by_kind.total()

    def __str__(self) -> str:
        return f"{size_text(self.bytes)} in {plural(self.calls, 'call')}" if self.calls else "nothing"


def compare_sent(program: Program, compiled: Iterable[Sent], kind: str) -> tuple[list[tuple[str, str, str]], list[str]]:
    """A row for each group of axes, and why they differ on a `gpu` or a `tpu`."""
    compiled = list(compiled)
    ours, xlas, merged = (_by_axes(program, rows) for rows in (program.ledger, compiled, merged_rows(program)))
    rows, notes = [], []
    for axes in dict.fromkeys([*ours, *xlas]):
        own, other = ours.get(axes, _Total()), xlas.get(axes, _Total())
        rows.append((f"sent over {axes or 'no axis'}", str(own), str(other)))
        more = own.bytes - other.bytes
        if (twice := merged.get(axes, _Total())).bytes and twice.bytes <= more:
            more -= twice.bytes
            notes.append(_say_once(axes, twice, is_all=not more))
        if more:
            is_narrow = more > 0 and kind == "tpu" and _has_halves(program, compiled, axes)
            notes.append(_NARROW.format(axes=axes) if is_narrow else _not_known(axes, more))
        notes += _as_all_reduce(axes, own, other)
    return rows, notes


def _by_axes(program: Program, sent: Iterable[Row | Sent]) -> dict[str, _Total]:
    """What goes over each group of axes, these in the mesh's order."""
    totals: dict[str, _Total] = {}
    for each in sent:
        total = totals.setdefault(_axes(program, each), _Total())
        total.by_kind[each.collective] += each.bytes * each.count
        total.calls += each.count
    return totals


def _axes(program: Program, sent: Row | Sent) -> str:
    return "+".join(axis for axis in program.mesh.axes if axis in sent.axes)


def _say_once(axes: str, twice: _Total, *, is_all: bool) -> str:
    is_one = "is" if twice.calls == 1 else "are"
    all_ = ": all that differs" if is_all else ""
    return f"over {axes}: {twice} {is_one} of what its body sent before; XLA sends it once (its pass `cse`){all_}"


_NARROW = (
    "over {axes}: the TPU's compiler sends in bfloat16 what only products of float32 read, which it rounds so anyway: "
    "half the bytes of those"
)


def _has_halves(program: Program, compiled: Iterable[Sent], axes: str) -> bool:
    """Whether XLA sends half the bytes of something that is float32 in the program."""
    halves = {(sent.collective, 2 * sent.bytes) for sent in compiled if _axes(program, sent) == axes}
    return any((row.collective, row.bytes) in halves for row in program.ledger if row.dtype == "float32")


def _not_known(axes: str, more: int) -> str:
    words = "fewer" if more > 0 else "more"
    return f"over {axes}: XLA sends {size_text(abs(more))} {words} than the ledger, for a reason not known"


def _as_all_reduce(axes: str, own: _Total, other: _Total) -> Iterator[str]:
    """What XLA sums whole and slices, where the program scatters: twice on the wire."""
    added = other.by_kind["all_reduce"] - own.by_kind["all_reduce"]
    gone = own.by_kind["reduce_scatter"] - other.by_kind["reduce_scatter"]
    if (moved := min(added, gone)) > 0:
        yield f"over {axes}: {size_text(moved)} of reduce_scatter is an all_reduce and a slice in XLA's program"
