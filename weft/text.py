"""Quantities as text: sizes, times, counts, shares, columns; printed lines.

The one place that says how a number looks; what prints a value takes its text from here, as late as it can.
"""

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple


def size_text(size: int) -> str:
    """Bytes in binary units: what memory holds and collectives carry.

    >>> size_text(524288), size_text(1536), size_text(4)
    ('512 KiB', '1.5 KiB', '4 B')
    """
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}" if size < 1000 * scale else f"{size / scale:,.0f} {unit}"
    return f"{size} B"


def file_size_text(size: float) -> str:
    """Bytes in decimal units: what files and downloads take.

    >>> file_size_text(1_234_000_000), file_size_text(500)
    ('1.2 GB', '0 kB')
    """
    for power, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= power:
            return f"{size / power:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def time_text(seconds: float) -> str:
    """Seconds of a step or an op, in three digits.

    >>> time_text(0.0773), time_text(2.5), time_text(3e-5)
    ('77.3 ms', '2.5 s', '30 us')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def seconds_text(seconds: float) -> str:
    """Seconds someone waited: with a decimal, and from two minutes on in two units.

    >>> seconds_text(12.34), seconds_text(200)
    ('12.3 s', '3 min 20 s')
    """
    return f"{seconds:.1f} s" if seconds < 120 else duration_text(seconds)


def duration_text(seconds: float) -> str:
    """Seconds in their two greatest units.

    >>> duration_text(45), duration_text(200), duration_text(7500), duration_text(100_000)
    ('45 s', '3 min 20 s', '2 h 5 min', '1 d 3 h')
    """
    whole = round(seconds)
    for many, unit, few, lesser in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= many:
            return f"{whole // many} {unit} {whole % many // few} {lesser}"
    return f"{whole} s"


def flops_text(flops: float) -> str:
    """FLOPs, the floating-point operations of some work.

    >>> flops_text(2_500_000_000)
    '2.5 GFLOP'
    """
    for unit, scale in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if flops >= scale:
            return f"{flops / scale:.4g} {unit}"
    return f"{flops:.0f} FLOP"


def count_text(value: float) -> str:
    """A count in a few letters.

    >>> count_text(950), count_text(12345), count_text(1234567)
    ('950', '12.3k', '1.2M')
    """
    for power, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power * 0.99995:
            return f"{value / power:.1f}{unit}"
    return f"{value:.0f}"


def number_text(value: float) -> str:
    """A measured number in a few digits: three decimals where they count.

    >>> number_text(2.34567), number_text(123456.7), number_text(0.000123456)
    ('2.346', '123,457', '0.0001235')
    """
    if value and abs(value) < 0.01:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.3f}"


def percent_text(share: float) -> str:
    """A share of one in whole percent.

    >>> percent_text(0.254), percent_text(0.003)
    ('25 %', 'less than 1 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.01 else "less than 1 %"


def plural(count: int, noun: str) -> str:
    """A count of things that are named.

    >>> plural(1, "call"), plural(1200, "call")
    ('1 call', '1,200 calls')
    """
    return f"{count:,} {noun}" + "s" * (count != 1)


def and_text(words: Iterable[str]) -> str:
    """Words as a sentence lists them.

    >>> and_text(["x"]), and_text(["x", "y", "z"])
    ('x', 'x, y and z')
    """
    *first, last = [*words] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def layout_text(layout: object) -> str:
    """A layout as it is written, or that it is empty."""
    return str(layout) or "the empty layout"


def columns(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """Rows of cells as lines of columns; those in `right` end under each other.

    >>> columns([("name", "bytes"), ("w", "8")], right=[1])
    ['name  bytes', 'w         8']
    """
    widths = _widths(rows)
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def column_starts(rows: Sequence[Sequence[str]]) -> list[int]:
    """Where in the lines of `columns` each column begins.

    >>> column_starts([("name", "bytes"), ("w", "8")])
    [0, 6]
    """
    return list(itertools.accumulate((width + 2 for width in _widths(rows)[:-1]), initial=0))


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


class Printed(NamedTuple):
    """A line as it is printed, and what it is."""

    text: str
    kind: str = ""
    """title, the kind of a program's line, or removed or added; empty for other words"""
    place: tuple[int, int] = (0, 0)
    """From where to where in the text a file and line stand."""

    def behind(self, text: str) -> "Printed":
        """The line with a text before it."""
        start, end = self.place
        return self._replace(text=text + self.text, place=(start + len(text), end + len(text)))


def placed_line(before: str, place: str, after: str = "", kind: str = "") -> Printed:
    """A line with a file and line in it.

    >>> placed_line("h  ", "net.py:6").place
    (3, 11)
    """
    return Printed(f"{before}{place}{after}".rstrip(), kind, (len(before), len(before) + len(place)))


def join_lines(lines: Iterable[Printed]) -> str:
    """The text of lines as they are printed."""
    return "\n".join(line.text for line in lines)


def list_once(texts: Iterable[str]) -> str:
    """A list in which equal neighbours stand once, with how many they are.

    >>> list_once(["f32[d_model]"] * 24), list_once(["f32[]", "i32[]", "i32[]"])
    ('f32[d_model] x24', 'f32[], i32[] x2')
    """
    counted = [(text, len(list(same))) for text, same in itertools.groupby(texts)]
    return ", ".join(f"{text} x{count}" if count > 1 else text for text, count in counted)
