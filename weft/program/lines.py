"""Lines of a printed program: what stands several times in a row is folded, and the rest is laid out in columns."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_WIDEST = (24, 52, 52, 32)  # of the columns name, type, text and source; what is longer pushes the rest to the right


@dataclass(frozen=True)
class Line:
    """One line of the listing, and those that stand under it."""

    kind: str
    """section, block, op, collective or note"""
    name: str = ""
    type: str = ""
    text: str = ""
    source: str = ""
    function: str = ""
    reason: str = ""
    count: int = 0
    """How often a collective runs in all."""
    is_each_turn: bool = False
    """Inside a loop of unknown length: `count` is for one turn."""
    lines: tuple["Line", ...] = ()

    @property
    def said(self) -> str:
        """The text, and for a collective how often it runs."""
        turn = " a turn" if self.is_each_turn else ""
        return f"{self.text} x{self.count}{turn}" if self.kind == "collective" else self.text

    def __len__(self) -> int:
        return 1 + sum(map(len, self.lines))


# Folding.

_INDEX = re.compile(r"(?<=[.\[\w])\d+\b")
_LEAST_SAVED = 5


def _anonymous(line: Line) -> Line:
    """A line with the numbers of layers left out of the names, to compare by and to print for all of them."""
    inner = tuple(map(_anonymous, line.lines))
    return replace(line, name=_INDEX.sub("*", line.name), reason=_INDEX.sub("*", line.reason), lines=inner)


def folded(lines: Sequence[Line]) -> list[Line]:
    keys = [_anonymous(line) for line in lines]
    found: list[Line] = []
    at = 0
    while at < len(lines):
        period, times = _repetition(keys, at)
        if times == 1:
            found.append(lines[at])
            at += 1
        else:
            unit = tuple(_multiplied(line, times) for line in keys[at : at + period])
            found.append(Line("block", text=f"repeated x{times}", lines=unit))
            at += period * times
    return found


def _multiplied(line: Line, times: int) -> Line:
    return replace(line, count=line.count * times, lines=tuple(_multiplied(inner, times) for inner in line.lines))


def _repetition(keys: Sequence[Line], at: int) -> tuple[int, int]:
    """The length and number of the repetitions from here on that save most lines."""
    best, saved = (1, 1), 0
    for other in range(at + 1, at + 1 + (len(keys) - at) // 2):
        if keys[other] != keys[at]:
            continue
        period, times = other - at, 1
        unit = list(keys[at:other])
        while list(keys[at + times * period : at + (times + 1) * period]) == unit:
            times += 1
        gain = (times - 1) * sum(map(len, unit))
        if times > 1 and gain > saved and gain >= _LEAST_SAVED:
            best, saved = (period, times), gain
    return best


# Printing.


def text_of(sections: Sequence[Line], *, lines: bool = True) -> str:
    """The listing as text; with `lines=False` functions stand in place of files and line numbers."""
    flat = list(_flat(sections, 0))
    rows = [_columns(line, lines) for _, line in flat if line.kind in ("op", "collective")]
    widths = [min(max((len(row[i]) for row in rows), default=0), most) for i, most in enumerate(_WIDEST)]
    return "\n".join(_printed(depth, line, widths, lines).rstrip() for depth, line in flat)


def _flat(lines: Sequence[Line], depth: int) -> Iterator[tuple[int, Line]]:
    for line in lines:
        yield depth, line
        yield from _flat(line.lines, depth + 1)


def _columns(line: Line, lines: bool) -> list[str]:
    return [line.name, line.type, line.said, line.source if lines else line.function]


def _printed(depth: int, line: Line, widths: Sequence[int], lines: bool) -> str:
    indent = "  " * depth
    if line.kind in ("section", "note"):
        return indent + line.text
    if line.kind == "block":
        return f"{indent}{line.text}  {line.source if lines else line.function}"
    return indent + "  ".join([*map(str.ljust, _columns(line, lines), widths), line.reason])
