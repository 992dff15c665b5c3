"""What a program sends, on a page: bars for each axis, and the collectives."""

import html
from dataclasses import replace

from ...graph import PHASES
from ...program.ledger import Ledger, Row
from ...program.lines import without_layers
from ...text import plural, size_text
from .parts import PageBuilder, Side, bar, cell, drawing, row


def sending_panel(builder: PageBuilder) -> str:
    """The bars of all sides and the collectives of the first."""
    bars = "".join(_axis(builder, axis) for axis in builder.colours)
    notes = [f"<p class=quiet>{html.escape(line)}</p>" for line in builder.main.program.ledger.notes()]
    return f'<div class="bars">{bars}</div>{_legend(builder)}{"".join(notes)}{_collectives(builder, builder.main)}'


def _axis(builder: PageBuilder, axis: str) -> str:
    most = max((_bytes(side, other) for side in builder.sides for other in builder.colours), default=0)
    tracks = []
    for side in builder.sides:
        size = side.program.mesh.axes.get(axis)
        if size is None:
            continue
        parts = [
            bar(total / most, f"a{builder.colours[axis]} p{i}", label=f"{phase}: {size_text(total)}")
            for i, phase in enumerate(PHASES)
            if (total := side.program.ledger.bytes(axis, phase))
        ]
        letter = f'<span class="letter">{side.letter}</span>' if len(builder.sides) > 1 else ""
        total_text = _axis_total(side.program.ledger, axis)
        tracks.append(f'{letter}<span class="track">{"".join(parts)}</span><span class="value">{total_text}</span>')
    lines = "".join(f'<div class="line">{track}</div>' for track in tracks)
    return f'<div class="axis"><span class="label">over {builder.axis(axis)}</span><div>{lines}</div></div>'


def _bytes(side: Side, axis: str) -> int:
    return side.program.ledger.bytes(axis) if axis in side.program.mesh.axes else 0


def _axis_total(ledger: Ledger, axis: str) -> str:
    count = ledger.count(axis)
    return f"<b>{size_text(ledger.bytes(axis))}</b> in {plural(count, 'call')}" if count else "nothing"


def _legend(builder: PageBuilder) -> str:
    used = {row.phase for side in builder.sides for row in side.program.ledger}
    keys = [f'<span class="key"><span class="bar p{i}"></span>{p}</span>' for i, p in enumerate(PHASES) if p in used]
    return f'<p class="legend">{"".join(keys)}</p>' if keys else ""


def _collectives(builder: PageBuilder, side: Side) -> str:
    rows = merge_layers(side.program.ledger)
    if not rows:
        return '<p class="quiet">nothing is sent</p>'
    rows.sort(key=lambda sent: -sent.bytes * sent.count)
    most = rows[0].bytes * rows[0].count
    head = "".join(cell(name, title) for name, title in _COLUMNS)
    body = "".join(_collective(builder, side, sent, most) for sent in rows)
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


def _collective(builder: PageBuilder, side: Side, sent: Row, most: int) -> str:
    total, each = sent.bytes * sent.count, f"{size_text(sent.bytes)} {sent.times_text}"
    pick = builder.pick(f"{sent.title}, {each}", drawing(side, axes=sent.axes), note=sent.reason, source=sent.source)
    share = bar(total / most if most else 0, f"a{builder.colours[sent.axes[0]]}")
    cells = [
        cell("total", f"{share}<b>{size_text(total)}</b>"),
        cell("what", builder.over(sent.collective, sent.axes)),
        cell("carries", html.escape(sent.carried)),
        cell("each", each),
        cell("phase", sent.phase),
        builder.place(sent.source),
        cell("reason", html.escape(sent.reason)),
    ]
    return row(f"collective o{builder.colours[sent.axes[0]]}", pick, cells)


def merge_layers(ledger: Ledger) -> list[Row]:
    """The rows of a ledger, the layers of one line of source taken together."""
    counts: dict[Row, int] = {}
    for sent in ledger:
        key = replace(sent, count=0, reason=without_layers(sent.reason))
        counts[key] = counts.get(key, 0) + sent.count
    return [replace(sent, count=count) for sent, count in counts.items()]
