"""The difference of two programs: two layouts, or two versions of the code.

Lines are matched by what they are (the variable, the op, the phase and loop they stand in), not by where, so that a
line that only moved in its file does not count.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..text import Printed, flops_text, join_lines, placed_line, size_text
from .ledger import Ledger
from .lines import Line

if TYPE_CHECKING:
    from .trace import Program


@dataclass(frozen=True)
class Change:
    """A line of two programs; None where one has no such line."""

    path: tuple[str, ...]
    """The phase and the loops around it."""
    before: Line | None
    after: Line | None

    @property
    def is_same(self) -> bool:
        """Whether both programs have the line, of the same type and running as often."""
        return (
            self.before is not None and self.after is not None and _compare_by(self.before) == _compare_by(self.after)
        )

    @property
    def kind(self) -> str:
        """removed, added or changed"""
        return "removed" if self.after is None else "added" if self.before is None else "changed"

    def __str__(self) -> str:
        return self.printed().text

    def printed(self) -> Printed:
        """The line of its text, with what it is."""
        if self.before is None or self.after is None:
            line, sign = (self.after, "+") if self.before is None else (self.before, "-")
            assert line is not None
            return _print_line(line, self.kind).behind(f"{sign} ")
        if self.after.kind == "block":
            return Printed(f"~ {self.before.text} -> {self.after.text}", self.kind)
        if self.after.kind == "collective":
            said = f"{self.before.said} -> {self.after.said}"
            return placed_line(f"~ {self.after.type}  {said}  ", self.after.source, f"  {self.after.reason}", self.kind)
        name = f"{self.after.name} = " if self.after.name else ""
        types = f"{self.before.type} -> {self.after.type}"
        return placed_line(f"~ {name}{self.after.text}  {types}  ", self.after.source, kind=self.kind)


class Diff:
    """The changes between two programs; empty, and false, where there are none."""

    def __init__(self, before: "Program", after: "Program"):
        self.before, self.after = before, after
        self.lines = list(_match_lines(before.lines, after.lines))
        """Every line of both, those that are alike too."""
        self.changes = [line for line in self.lines if not line.is_same]

    def __bool__(self) -> bool:
        return bool(self.changes) or _totals(self.before) != _totals(self.after)

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __str__(self) -> str:
        return join_lines(self.printed())

    def printed(self) -> list[Printed]:
        """The lines of its text, each with what it is."""
        blank = Printed("")
        head = [Printed(f"- {self.before.title}", "removed"), Printed(f"+ {self.after.title}", "added"), blank]
        if not self:
            return [*head, Printed("the programs are the same")]
        body = self._body() or [Printed("the lines are the same, the sizes are not")]
        return [*head, *body, blank, *map(Printed, self.totals())]

    def _body(self) -> list[Printed]:
        lines: list[Printed] = []
        path: tuple[str, ...] = ()
        for change in self.changes:
            if change.path != path:
                path = change.path
                lines.append(Printed(", ".join(path), "section"))
            lines.append(change.printed().behind("  "))
        return lines

    def totals(self) -> list[str]:
        """What each program sends over each axis and computes, side by side."""
        axes = list(dict.fromkeys([*self.before.mesh.axes, *self.after.mesh.axes]))
        sent = [
            f"over {axis}: {_sent_text(self.before.ledger, axis)} -> {_sent_text(self.after.ledger, axis)}"
            for axis in axes
        ]
        return [*sent, f"work: {flops_text(self.before.flops)} -> {flops_text(self.after.flops)} on each processor"]


def _sent_text(ledger: Ledger, axis: str) -> str:
    rows = [row for row in ledger if axis in row.axes]
    return size_text(sum(row.bytes * row.count for row in rows)) if rows else "nothing"


def _print_line(line: Line, kind: str) -> Printed:
    if line.kind == "collective":
        return placed_line(f"{line.type}  {line.said}  ", line.source, f"  {line.reason}", kind)
    if line.kind == "op":
        name = f"{line.name} = " if line.name else ""
        return placed_line(f"{name}{line.text}  {line.type}  ", line.source, kind=kind)
    return Printed(line.text, kind)


def _match_lines(before: Sequence[Line], after: Sequence[Line]) -> Iterator[Change]:
    pairs = [list(_flat(lines, ())) for lines in (before, after)]
    keys = [[_key(path, line) for path, line in flat] for flat in pairs]
    matcher = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for kind, i1, i2, j1, j2 in matcher.get_opcodes():
        if kind == "equal":
            for (path, old), (_, new) in zip(pairs[0][i1:i2], pairs[1][j1:j2], strict=True):
                yield Change(path, old, new)
            continue
        yield from (Change(path, line, None) for path, line in pairs[0][i1:i2])
        yield from (Change(path, None, line) for path, line in pairs[1][j1:j2])


def _flat(lines: Sequence[Line], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Line]]:
    for line in lines:
        if line.kind in ("section", "block"):
            if line.kind == "block":
                yield path, replace(line, lines=())
            yield from _flat(line.lines, path if path[-1:] == (line.heading,) else (*path, line.heading))
        else:
            yield path, line


def _key(path: tuple[str, ...], line: Line) -> tuple[str, ...]:
    """What a line is, whatever its type, its size or how often it runs."""
    if line.kind == "collective":
        return (*path, line.type, line.reason)
    return (*path, line.kind, line.name, line.heading if line.kind == "block" else line.text)


def _compare_by(line: Line) -> str:
    return line.type if line.kind == "op" else line.said


def _totals(program: "Program") -> tuple[float, ...]:
    return (program.flops, *((row.bytes * row.count) for row in program.ledger))
