"""Pipelines and rings on a page: who works on what at which turn.

A grid for each schedule of the program: a row for each processor, a column for each turn. Of many processors or turns
the first and the last are drawn.
"""

import html
from collections.abc import Iterator, Sequence

from ...record import Entry
from ...schedule import PipelineSchedule, RingSchedule
from ...text import plural
from .parts import PageBuilder, Side

_MOST_TURNS, _MOST_PLACES = 40, 32
"""What is drawn whole; of more the first and the last."""
_HUE = 137.5
"""Degrees between the colours of neighbours: no two near each other look alike."""


def turns_panel(builder: PageBuilder) -> str:
    """The pipelines and rings of all sides."""
    return "".join(part for side in builder.sides for part in _side(builder, side))


def _side(builder: PageBuilder, side: Side) -> Iterator[str]:
    found: dict[PipelineSchedule | RingSchedule, list[Entry]] = {}
    for entry in side.program.reading.entries:
        if entry.schedule is not None and entry.schedule.turns > 1 and not entry.is_gone:
            found.setdefault(entry.schedule, []).append(entry)
    if found and len(builder.sides) > 1:
        yield f'<h3><span class="letter">{side.letter}</span> {html.escape(side.layout)}</h3>'
    for schedule, entries in found.items():
        draw = _PipelineGrid(schedule) if isinstance(schedule, PipelineSchedule) else _RingGrid(schedule)
        times = f", {len(entries)} times" if len(entries) > 1 else ""
        title = f"{html.escape(entries[0].op)} over {builder.axes(schedule.axes)}{times}"
        place = builder.place(str(side.program.reading.site(entries[0])))
        yield f'<h3 class="turns-title">{title} <span class="row">{place}</span></h3>{_grid(schedule, draw)}'


class _PipelineGrid:
    """The cells of a pipeline's grid."""

    turn, legend = "tick", '<span class="key"><span class="idle swatch"></span>bubble</span>'

    def __init__(self, schedule: PipelineSchedule):
        self.schedule = schedule

    @property
    def told(self) -> str:
        it = self.schedule
        rounds = f", {it.passes} rounds" if it.passes > 1 else ""
        idle, turns = it.idle
        return (
            f"{it.microbatches} microbatches through {it.ways * it.stages * it.passes} stages "
            f"on {plural(it.ways, 'processor')}{rounds}: {turns} ticks, of which a processor has no work in {idle} "
            "(the bubble). In the backward pass the same ticks run from the last to the first. "
            f"A number is a microbatch{', after its round' if it.passes > 1 else ''}."
        )

    def head(self, place: int) -> str:
        return _span("stage", self.schedule.stages_at(place, 0))

    def cell(self, place: int, tick: int) -> tuple[str, str, str, int]:
        """Its class, its text, what it says, and a number for its colour."""
        at = self.schedule.at(place, tick)
        where = f"tick {tick}, processor {place}"
        if at is None:
            return "idle", "", f"{where}: no work (bubble)", 0
        turn, micro = at
        stages = _span("stage", self.schedule.stages_at(place, turn))
        rounds = f" of round {turn}" if self.schedule.passes > 1 else ""
        text = f"{turn}:{micro}" if self.schedule.passes > 1 else str(micro)
        return "work", text, f"{where}: microbatch {micro} in {stages}{rounds}", micro


class _RingGrid:
    """The cells of a ring's grid."""

    turn = "turn"
    legend = "".join(
        f'<span class="key"><span class="blocks"><i class="{kind}"></i></span>{text}</span>'
        for kind, text in (("full", "seen"), ("part", "seen in part"), ("none", "not seen"))
    )

    def __init__(self, schedule: RingSchedule):
        self.schedule = schedule

    @property
    def told(self) -> str:
        it = self.schedule
        parts = [f"Keys and values of {it.own:,} places go round {plural(it.ways, 'processor')}, {it.hops} hops"]
        if it.window is not None and it.hops < it.ways - 1:
            parts.append(f"as far as a window of {it.window:,} reaches")
        if it.is_zigzag:
            parts.append(
                "each holds one piece from the beginning and one from the end (zigzag): blocks not seen are left out"
            )
        elif it.is_causal:
            parts.append("blocks not seen are masked")
        return f"{'; '.join(parts)}. A number says whose keys are there; squares are queries by keys."

    def head(self, place: int) -> str:
        return _span("piece", self.schedule.pieces(place))

    def cell(self, place: int, turn: int) -> tuple[str, str, str, int]:
        """Its class, its text, what it says, and a number for its colour."""
        holder, blocks = self.schedule.holder(place, turn), list(self.schedule.blocks(place, turn))
        squares = "".join(f'<i class="{seen}"></i>' for _, _, seen in blocks)
        wide = len(self.schedule.pieces(place))
        text = f'{holder}<span class="blocks" style="--n:{wide}">{squares}</span>'
        words = {"full": "sees", "part": "sees in part", "none": "does not see"}
        said = ", ".join(f"piece {q} {words[seen]} {k}" for q, k, seen in blocks)
        return "work", text, f"turn {turn}, processor {place} has the keys of {holder}: {said}", holder


def _span(word: str, numbers: Sequence[int]) -> str:
    """
    >>> _span("stage", range(4, 6)), _span("piece", (3,)), _span("piece", (0, 7))
    ('stages 4–5', 'piece 3', 'pieces 0 and 7')
    """
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    joint = "–" if isinstance(numbers, range) else " and "
    return f"{word}s {numbers[0]}{joint}{numbers[-1]}"


def _grid(schedule: PipelineSchedule | RingSchedule, draw: _PipelineGrid | _RingGrid) -> str:
    turns, places = _choose_drawn(schedule.turns, _MOST_TURNS), _choose_drawn(schedule.ways, _MOST_PLACES)
    gap = '<td class="gap">⋯</td>'
    heads = "".join(gap if turn is None else f'<th scope="col">{turn}</th>' for turn in turns)
    rows = []
    for place in places:
        if place is None:
            rows.append(f'<tr><td class="gap" colspan="{len(turns) + 1}">⋮</td></tr>')
            continue
        cells = "".join(gap if turn is None else _cell(*draw.cell(place, turn)) for turn in turns)
        rows.append(f'<tr><th scope="row">{place} <small>{draw.head(place)}</small></th>{cells}</tr>')
    label = f"who works on what: processors down, {draw.turn}s across"
    head = f'<thead><tr><th scope="col">{draw.turn}</th>{heads}</tr></thead>'
    return (
        f'<p class="why">{draw.told}</p><p class="legend turns-legend">{draw.legend}</p>'
        f'<div class="turns" tabindex="0" role="group" aria-label="{label}">'
        f'<table>{head}<tbody>{"".join(rows)}</tbody></table></div><p class="readout" role="status"></p>'
    )


def _cell(kind: str, text: str, said: str, number: int) -> str:
    hue = f' style="--h:{number * _HUE % 360:.0f}"' if kind == "work" else ""
    return f'<td class="{kind}"{hue} title="{html.escape(said)}">{text}</td>'


def _choose_drawn(count: int, most: int) -> list[int | None]:
    """Which of so many are drawn: all, or the first and the last, None between them.

    >>> _choose_drawn(3, 4), _choose_drawn(9, 4)
    ([0, 1, 2], [0, 1, None, 8])
    """
    if count <= most:
        return list(range(count))
    first = most * 2 // 3
    return [*range(first), None, *range(count - (most - first - 1), count)]
