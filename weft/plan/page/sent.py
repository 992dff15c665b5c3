"""What a program sends, on a page: bars for each axis, and the collectives with what they carry and why."""

import html
import re
from dataclasses import replace

from ...graph import PHASES
from ...program.ledger import Ledger, Row, size_text
from .parts import Making, Side, bar, cell, drawn, row

_NUMBER = re.compile(r"(?<=[.\[\w])\d+\b")


def sent(making: Making) -> str:
    """The bars of all sides and the collectives of the first."""
    bars = "".join(_axis(making, axis) for axis in making.colours)
    notes = [
        f"<p class=quiet>{html.escape(line)}</p>"
        for line in making.main.program.ledger.totals()
        if not line.startswith("over ")
    ]
    return f'<div class="bars">{bars}</div>{_legend(making)}{"".join(notes)}{_collectives(making, making.main)}'


def _axis(making: Making, axis: str) -> str:
    most = max((_bytes(side, each) for side in making.sides for each in making.colours), default=0)
    tracks = []
    for side in making.sides:
        size = side.program.mesh.axes.get(axis)
        if size is None:
            continue
        parts = [
            bar(total / most, f"a{making.colours[axis]} p{i}", label=f"{phase}: {size_text(total)}")
            for i, phase in enumerate(PHASES)
            if (total := side.program.ledger.bytes(axis, phase))
        ]
        letter = f'<span class="letter">{side.letter}</span>' if len(making.sides) > 1 else ""
        said = _said(side.program.ledger, axis)
        tracks.append(f'{letter}<span class="track">{"".join(parts)}</span><span class="value">{said}</span>')
    lines = "".join(f'<div class="line">{track}</div>' for track in tracks)
    return f'<div class="axis"><span class="label">over {making.axis(axis)}</span><div>{lines}</div></div>'


def _bytes(side: Side, axis: str) -> int:
    return side.program.ledger.bytes(axis) if axis in side.program.mesh.axes else 0


def _said(ledger: Ledger, axis: str) -> str:
    count = ledger.count(axis)
    calls = "1 call" if count == 1 else f"{count:,} calls"
    return f"<b>{size_text(ledger.bytes(axis))}</b> in {calls}" if count else "nothing"


def _legend(making: Making) -> str:
    used = {row.phase for side in making.sides for row in side.program.ledger}
    keys = [f'<span class="key"><span class="bar p{i}"></span>{p}</span>' for i, p in enumerate(PHASES) if p in used]
    return f'<p class="legend">{"".join(keys)}</p>' if keys else ""


def _collectives(making: Making, side: Side) -> str:
    rows = alike(side.program.ledger)
    if not rows:
        return '<p class="quiet">nothing is sent</p>'
    rows.sort(key=lambda each: -each.bytes * each.count)
    most = rows[0].bytes * rows[0].count
    head = "".join(cell(name, title) for name, title in _COLUMNS)
    body = "".join(_collective(making, side, each, most) for each in rows)
    return (
        f'<div class="head sending">{head}</div>'
        f'<div class="list sending" role="listbox" aria-label="what is sent, the most first">\n{body}</div>'
    )


_COLUMNS = (
    ("total", "total"),
    ("what", "collective"),
    ("carries", "carries"),
    ("each", "each"),
    ("phase", "phase"),
    ("source", "source"),
)


def _collective(making: Making, side: Side, sent: Row, most: int) -> str:
    over, total, turn = "+".join(sent.axes), sent.bytes * sent.count, " a turn" if sent.is_each_turn else ""
    title = f"{sent.collective} over {over}, {size_text(sent.bytes)} x{sent.count}{turn}"
    pick = making.pick(title, drawn(side, axes=sent.axes), note=sent.reason, source=sent.source)
    share = bar(total / most if most else 0, f"a{making.colours[sent.axes[0]]}")
    cells = [
        cell("total", f"{share}<b>{size_text(total)}</b>"),
        cell("what", making.axes(f"{sent.collective} over {over}")),
        cell("carries", html.escape(f"{sent.dtype}[{' '.join(sent.dims)}]" if sent.dims else sent.dtype)),
        cell("each", html.escape(f"{size_text(sent.bytes)} x{sent.count}{turn}")),
        cell("phase", sent.phase),
        making.place(sent.source),
        cell("reason", html.escape(sent.reason)),
    ]
    return row(f"collective o{making.colours[sent.axes[0]]}", pick, cells)


def alike(ledger: Ledger) -> list[Row]:
    """The rows of a ledger, those of one line of source that differ by the number of a layer taken together."""
    found: dict[Row, int] = {}
    for each in ledger:
        key = replace(each, count=0, reason=_NUMBER.sub("*", each.reason))
        found[key] = found.get(key, 0) + each.count
    return [replace(each, count=count) for each, count in found.items()]
