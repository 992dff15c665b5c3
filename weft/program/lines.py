"""Lines of a printed program: values, folded where they repeat, and their text.

A line carries what it says as values (types, the collective, where it was written); its texts are made here, when they
are asked for.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..text import Printed, list_once, placed_line, size_text
from .array_type import ArrayType
from .ledger import Row
from .source import NOWHERE, Site

_WIDEST = (24, 52, 52, 32)  # of the columns name, type, text and source; what is longer pushes the rest to the right


class Doer(NamedTuple):
    """Whose work something is: an op's in the record, in a phase."""

    op: int | None
    phase: str
    collective: str = ""
    """The collective it is, as a ledger calls it; empty for what computes."""
    operand: int | None = None
    """Of a collective the operand that is brought."""


@dataclass(frozen=True)
class Line:
    """One line of the listing, and those that stand under it."""

    kind: str
    """section, block, op, collective or note"""
    name: str = ""
    types: tuple[ArrayType, ...] = ()
    """Of an op's results, or of the gradient a line makes."""
    words: str = ""
    """What the user wrote of an op; what heads a section or a block."""
    times: int | None = None
    """How often a block or an op runs, where that is said."""
    aside: str = ""
    """What else is to be said of a block."""
    site: Site = NOWHERE
    op: int | None = field(default=None, compare=False)
    """The number in the record of the entry whose results, or whose body, this is."""
    doers: frozenset[Doer] = field(default=frozenset(), compare=False)
    """Whose work it stands for; of a block, what its own lines leave."""
    sent: Row | None = None
    """What a collective sends."""
    lines: tuple["Line", ...] = ()

    @property
    def type(self) -> str:
        """The types as they are printed, or the collective and its axes."""
        return f">> {self.sent.title}" if self.sent is not None else list_once(map(str, self.types))

    @property
    def heading(self) -> str:
        """The words without how often: what a block is called in every program."""
        return self.words + self.aside

    @property
    def text(self) -> str:
        """What stands in the widest column; of a collective, what one call carries."""
        if self.sent is not None:
            return f"{'' if self.sent.exact else 'about '}{size_text(self.sent.bytes)}"
        return self.words + (f" x{self.times}" if self.times is not None else "") + self.aside

    @property
    def said(self) -> str:
        """The text, and for a collective how often it runs."""
        return f"{self.text} {self.sent.times_text}" if self.sent is not None else self.text

    @property
    def source(self) -> str:
        """The user's file and line."""
        return self.sent.source if self.sent is not None else str(self.site)

    @property
    def function(self) -> str:
        return self.sent.function if self.sent is not None else self.site.function

    @property
    def reason(self) -> str:
        return self.sent.reason if self.sent is not None else ""

    @property
    def count(self) -> int:
        """How often a collective runs in all."""
        return self.sent.count if self.sent is not None else 0

    @property
    def is_each_turn(self) -> bool:
        """Inside a loop of unknown length: `count` is for one turn."""
        return self.sent is not None and self.sent.is_each_turn

    def __len__(self) -> int:
        return 1 + sum(map(len, self.lines))

    def to_dict(self) -> dict[str, Any]:
        """The line as plain values."""
        texts = {name: getattr(self, name) for name in _PLAIN}
        return {"kind": self.kind, **texts, "lines": [line.to_dict() for line in self.lines]}


_PLAIN = ("name", "type", "text", "source", "function", "reason", "count", "is_each_turn")


_LAYER = re.compile(r"(?<=[.\[\w])\d+\b")
_LEAST_SAVED = 5


def without_layers(name: str) -> str:
    """A name the user gave, or a sentence with some, with `*` for layer numbers.

    >>> without_layers("layers[3].w"), without_layers("h2")
    ('layers[*].w', 'h*')
    """
    return _LAYER.sub("*", name)


def _anonymous(line: Line) -> Line:
    """A line without the numbers of layers, to print for all of them."""
    sent = replace(line.sent, reason=without_layers(line.reason)) if line.sent is not None else None
    return replace(line, name=without_layers(line.name), sent=sent, lines=tuple(map(_anonymous, line.lines)))


def _key(line: Line) -> tuple[Any, ...]:
    """What lines that are folded have in common: all that is printed of them."""
    return (line.kind, *(getattr(line, name) for name in _PLAIN), *map(_key, line.lines))


def fold(lines: Sequence[Line]) -> list[Line]:
    """The lines, layers that differ only in numbers folded into a counted block."""
    anonymous = [_anonymous(line) for line in lines]
    keys = [_key(line) for line in anonymous]
    folded: list[Line] = []
    at = 0
    while at < len(lines):
        period, times = _repetition(lines, keys, at)
        if times == 1:
            folded.append(lines[at])
            at += 1
        else:
            rounds = [anonymous[at + i * period : at + (i + 1) * period] for i in range(times)]
            unit = tuple(_multiply(_stand_for_all(lines), times) for lines in zip(*rounds, strict=True))
            folded.append(Line("block", words="repeated", times=times, lines=unit))
            at += period * times
    return folded


def _stand_for_all(lines: Sequence[Line]) -> Line:
    """The first of some lines that are alike, as one that stands for all their work."""
    inner = tuple(map(_stand_for_all, zip(*(line.lines for line in lines), strict=True)))
    return replace(lines[0], doers=frozenset().union(*(line.doers for line in lines)), lines=inner)


def _multiply(line: Line, times: int) -> Line:
    sent = replace(line.sent, count=line.sent.count * times) if line.sent is not None else None
    return replace(line, sent=sent, lines=tuple(_multiply(inner, times) for inner in line.lines))


def _repetition(lines: Sequence[Line], keys: Sequence[Any], at: int) -> tuple[int, int]:
    """The length and number of the repetitions from here on that save most lines."""
    best, saved = (1, 1), 0
    for other in range(at + 1, at + 1 + (len(keys) - at) // 2):
        if keys[other] != keys[at]:
            continue
        period, times = other - at, 1
        unit = keys[at:other]
        while keys[at + times * period : at + (times + 1) * period] == unit:
            times += 1
        gain = (times - 1) * sum(map(len, lines[at:other]))
        if times > 1 and gain > saved and gain >= _LEAST_SAVED:
            best, saved = (period, times), gain
    return best


def printed_lines(sections: Sequence[Line], *, lines: bool = True) -> list[Printed]:
    """The listing as it is printed; `lines=False`: functions for files and lines."""
    flat = list(_flat(sections, 0))
    rows = [_columns(line, lines) for _, line in flat if line.kind in ("op", "collective")]
    widths = [min(max((len(row[i]) for row in rows), default=0), most) for i, most in enumerate(_WIDEST)]
    return [_print_line(depth, line, widths, lines) for depth, line in flat]


def _flat(lines: Sequence[Line], depth: int) -> Iterator[tuple[int, Line]]:
    for line in lines:
        yield depth, line
        yield from _flat(line.lines, depth + 1)


def _columns(line: Line, lines: bool) -> list[str]:
    return [line.name, line.type, line.said, line.source if lines else line.function]


def _print_line(depth: int, line: Line, widths: Sequence[int], lines: bool) -> Printed:
    indent = "  " * depth
    if line.kind in ("section", "note"):
        return Printed(indent + line.text, line.kind)
    if line.kind == "block":
        return placed_line(f"{indent}{line.text}  ", line.source if lines else line.function, kind=line.kind)
    *cells, place = _columns(line, lines)
    before = indent + "".join(cell.ljust(width) + "  " for cell, width in zip(cells, widths, strict=False))
    return placed_line(before, place, " " * (widths[-1] - len(place)) + f"  {line.reason}", line.kind)
