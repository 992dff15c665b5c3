"""Memory on a page: its course over the program, and what is alive at the peak."""

import html
import itertools
from collections.abc import Iterator

from ...program.memory import Alive, Memory, Moment
from ...text import size_text
from .parts import PageBuilder, Side, bar, cell, drawing, figure, row

_HEIGHT = 100.0


def memory_panel(builder: PageBuilder) -> str:
    """The courses of all sides, and what is alive at their peaks."""
    top = max(map(_top, builder.sides)) * 1.06 or 1
    parts = [f"{_figures(builder, side)}{_course(side, top)}" for side in builder.sides]
    return "".join(parts) + "".join(_alive(builder, side) for side in builder.sides)


def _top(side: Side) -> int:
    capacity = side.plan.capacity if side.plan is not None else 0
    peak = max([side.memory.peak, *(moment.bytes for moment in side.memory.course)])
    return max(peak, capacity) if capacity and capacity < 4 * peak else peak


def _figures(builder: PageBuilder, side: Side) -> str:
    memory = side.memory
    low, high = memory.range
    around = "" if low == high else f"between {size_text(low)} and {size_text(high)}"
    figures = [figure(size_text(memory.peak), f"at the peak, on one {memory.target}", around)]
    figures += [figure(size_text(memory.arguments), "arguments", _donated_text(memory))]
    figures += [figure(size_text(memory.outputs), "outputs")]
    if (plan := side.plan) is not None:
        kind = "fits" if plan.fits else "does not fit"
        figures.append(figure(kind, f"in {size_text(plan.capacity)}", html.escape(plan.hardware.name)))
    title = f'<h3><span class="letter">{side.letter}</span> {html.escape(side.layout)}</h3>'
    return f'{title if len(builder.sides) > 1 else ""}<div class="figures">{"".join(figures)}</div>'


def _donated_text(memory: Memory) -> str:
    return f"{size_text(memory.donated)} donated" if memory.donated else ""


def _course(side: Side, top: float) -> str:
    """An area as high as the memory at each moment, under bands of the phases."""
    moments = course(side.memory)
    if not moments:
        return ""
    wide = len(moments)
    curve = f"M0 {_HEIGHT}" + "".join(
        f"V{_HEIGHT * (1 - moment.bytes / top):.2f}H{i + 1}" for i, moment in enumerate(moments)
    )
    bands = "".join(
        f'<span class="band" style="left:{start / wide:.3%};width:{(end - start) / wide:.3%}">{phase}</span>'
        for start, end, phase in _phases(moments)
    )
    at = max(range(wide), key=lambda i: moments[i].bytes)
    lines = [_level(side.memory.arguments / top, f"arguments {size_text(side.memory.arguments)}")]
    if (plan := side.plan) is not None and plan.capacity <= top:
        lines.append(_level(plan.capacity / top, f"{plan.hardware.name} has {size_text(plan.capacity)}", "capacity"))
    return (
        f'<div class="course" data-side="{side.number}" data-peak="{at}" role="slider" tabindex="0"'
        f' aria-label="memory over the program\'s course" aria-valuemin="0" aria-valuemax="{wide - 1}"'
        f' aria-valuenow="{at}">'
        f'<div class="bands">{bands}</div><div class="plot">'
        f'<svg viewBox="0 0 {wide} {_HEIGHT:g}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="area" d="{curve}V{_HEIGHT}Z"/></svg>{"".join(lines)}'
        f'<span class="peak" style="left:{(at + 0.5) / wide:.3%};bottom:{moments[at].bytes / top:.3%}"></span>'
        f'<span class="cursor" hidden></span></div>'
        f'<p class="readout" aria-live="polite">{html.escape(moment_text(moments[at]))}</p></div>'
    )


def course(memory: Memory) -> list[Moment]:
    """The moments of a course; of one op in a row, the one that holds most."""
    runs = itertools.groupby(memory.course, lambda moment: (moment.label, moment.phase, moment.source))
    return [max(run, key=lambda moment: moment.bytes) for _, run in runs]


def moment_text(moment: Moment) -> str:
    """A moment of the course in words."""
    return "  ".join(filter(None, [size_text(moment.bytes), moment.phase, moment.label, moment.source]))


def _level(share: float, label: str, kind: str = "") -> str:
    return f'<span class="level {kind}" style="bottom:{share:.3%}"><small>{html.escape(label)}</small></span>'


def _phases(moments: list[Moment]) -> Iterator[tuple[int, int, str]]:
    start = 0
    for i in range(1, len(moments) + 1):
        if i == len(moments) or moments[i].phase != moments[start].phase:
            yield start, i, html.escape(moments[start].phase)
            start = i


def _alive(builder: PageBuilder, side: Side) -> str:
    alive = side.memory.alive
    if not alive:
        return ""
    most = max(array.bytes for array in alive) or 1
    rows = "".join(_alive_row(builder, side, array, most) for array in alive)
    letter = f' <span class="letter">{side.letter}</span>' if len(builder.sides) > 1 else ""
    head = "".join(cell(name, title) for name, title in _COLUMNS)
    return (
        f'<h3>Alive at the peak{letter}</h3><div class="head held">{head}</div>'
        f'<div class="list held" role="listbox" aria-label="alive at the peak, the largest first">\n{rows}</div>'
    )


_COLUMNS = (("total", "bytes"), ("name", "name"), ("type", "placed type"), ("kind", "kind"), ("source", "source"))


def _alive_row(builder: PageBuilder, side: Side, alive: Alive, most: int) -> str:
    number = side.tensors.number(alive.array_type)
    tensors = [(alive.name, number)] if number is not None else []
    note = " ".join(filter(None, [alive.kind, f"of the {alive.phase}" if alive.phase else ""]))
    pick = builder.pick(alive.name or alive.type, drawing(side, tensors), note=note, source=alive.source)
    cells = [
        cell("total", f"{bar(alive.bytes / most, f'k-{alive.kind}')}<b>{size_text(alive.bytes)}</b>"),
        cell("name", html.escape(alive.name).replace(".", ".<wbr>")),
        cell("type", builder.type(alive.array_type)),
        cell("kind", html.escape(alive.kind)),
        builder.place(alive.source),
    ]
    return row("held", pick, cells)
