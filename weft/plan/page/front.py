"""A search on a page: time against memory, the Pareto front, the best marked.

The chart stands in the HTML as it is; the script only says of the point that is pointed at or walked to what it is.
"""

import html
import math
from collections.abc import Callable, Sequence

from ...text import layout_text, plural, size_text, time_text
from ..ranking import Ranked, Ranking
from .parts import figure

_WIDE, _TALL, _LEFT, _BELOW, _ABOVE, _RIGHT = 860.0, 380.0, 70.0, 44.0, 16.0, 16.0


def search_header(found: Ranking, name: str) -> str:
    """What was searched and what was found."""
    best = found.best
    figures = [
        figure(time_text(best.seconds), f"a step of the best on {html.escape(found.hardware.name)}"),
        figure(f"{best.mfu:.0%}", "MFU"),
        figure(size_text(best.memory_bytes), f"memory, of {size_text(found.capacity)}"),
        figure(f"{found.searched:,}", "legal layouts", f"{found.traced:,} traced"),
        figure(str(len(found.front)), "on the front", "no other is better in both"),
    ]
    on = f"<b>{html.escape(str(best.mesh))}</b> ({plural(best.mesh.size, 'processor')})"
    under = f"<b>{html.escape(layout_text(best.layout))}</b>"
    return (
        f'<h1>{html.escape(name)}</h1><div class="settings"><p>best: {on} under {under}</p></div>'
        f'<div class="figures">{"".join(figures)}</div>'
    )


def search_body(found: Ranking) -> str:
    """The chart, what lost, and the table of all plans that are shown."""
    plans: list[Ranked] = []
    for plan in (*found.front, *found.plans, *(each.best for each in found.classes)):
        if plan not in plans:
            plans.append(plan)
    words = "".join(f"<p>{html.escape(line)}</p>" for line in (*found.words(), *map(str, found.classes)))
    return f'{_chart(found, plans)}<div class="words">{words}</div>{_table(found, plans)}'


def _chart(found: Ranking, plans: Sequence[Ranked]) -> str:
    memory, seconds = [plan.memory_bytes for plan in plans], [plan.seconds for plan in plans]
    capacity = found.capacity if found.capacity < 4 * max(memory) else 0
    x = _scale([*memory, capacity or max(memory)], _LEFT, _WIDE - _RIGHT)
    y = _scale(seconds, _TALL - _BELOW, _ABOVE)
    parts = [_ticks(x, y, [*memory, capacity or max(memory)], seconds)]
    if capacity:
        parts.append(
            f'<line class="limit" x1="{x(capacity):.1f}" x2="{x(capacity):.1f}" y1="{_ABOVE}" y2="{_TALL - _BELOW}"/>'
            f'<text class="limit-text" x="{x(capacity) - 6:.1f}" y="{_ABOVE + 12}">memory there is</text>'
        )
    path = " ".join(
        f"{'L' if i else 'M'}{x(plan.memory_bytes):.1f} {y(plan.seconds):.1f}" for i, plan in enumerate(found.front)
    )
    parts.append(f'<path class="front" d="{path}"/>')
    for i in reversed(range(len(plans))):  # the front lies above the others
        plan = plans[i]
        kind = " ".join(
            word
            for word, holds in (
                ("best", plan == found.best),
                ("on-front", plan in found.front),
                ("unfit", not plan.fits),
            )
            if holds
        )
        at = f'cx="{x(plan.memory_bytes):.1f}" cy="{y(plan.seconds):.1f}"'
        parts.append(
            f'<circle class="dot {kind}" {at} r="{7 if plan == found.best else 5}" data-row="{i}" tabindex="-1">'
            f"<title>{html.escape(_describe(plan))}</title></circle>"
        )
    best = found.best
    anchor = "end" if x(best.memory_bytes) > _WIDE * 0.7 else "start"
    shift = -12 if anchor == "end" else 12
    parts.append(
        f'<text class="best-text" x="{x(best.memory_bytes) + shift:.1f}" y="{y(best.seconds) - 9:.1f}" '
        f'text-anchor="{anchor}">best</text>'
    )
    label = f"time against memory of {len(plans)} plans; arrow keys walk them, the front first"
    box = f'viewBox="0 0 {_WIDE:.0f} {_TALL:.0f}"'
    return (
        f'<p class="legend turns-legend">{_legend()}</p><div class="wide">'
        f'<svg class="chart" {box} tabindex="0" role="group" aria-label="{label}">{"".join(parts)}</svg></div>'
        f'<p class="readout" role="status">{html.escape(_describe(best))}</p>'
    )


def _legend() -> str:
    kinds = (("on-front", "on the front"), ("", "beaten in both"), ("unfit", "does not fit"))
    dot = '<svg class="mark" viewBox="0 0 12 12"><circle class="dot {}" cx="6" cy="6" r="5"/></svg>'
    return "".join(f'<span class="key">{dot.format(kind)}{text}</span>' for kind, text in kinds)


def _describe(plan: Ranked) -> str:
    fits = "" if plan.fits else ", does not fit"
    return f"{plan.text}: {time_text(plan.seconds)}, MFU {plan.mfu:.1%}, {size_text(plan.memory_bytes)}{fits}"


def _scale(values: Sequence[float], low: float, high: float) -> Callable[[float], float]:
    """Where a value lies between two places; by its logarithm where they differ much."""
    least, most = min(values), max(values)
    change = math.log if least > 0 and most / least > 6 else float
    first, last = change(least), change(most)
    room = (last - first) * 0.06 or abs(first) * 0.1 or 1.0
    first, last = first - room, last + room
    return lambda value: low + (high - low) * (change(value) - first) / (last - first)


def _ticks(
    x: Callable[[float], float], y: Callable[[float], float], memory: Sequence[float], seconds: Sequence[float]
) -> str:
    """Lines with their values, and what the two sides of the chart are."""
    parts = []
    for value in _round_values(memory, 2.0):
        parts.append(
            f'<line class="rule" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{_ABOVE}" y2="{_TALL - _BELOW}"/>'
        )
        parts.append(
            f'<text x="{x(value):.1f}" y="{_TALL - _BELOW + 16}" text-anchor="middle">{size_text(int(value))}</text>'
        )
    for value in _round_values(seconds, 10.0):
        parts.append(f'<line class="rule" x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{time_text(value)}</text>')
    middle = (_LEFT + _WIDE - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_TALL - 6}" text-anchor="middle">memory of a processor</text>')
    parts.append(f'<text x="6" y="{_ABOVE + 2}">a step</text>')
    return "".join(parts)


def _round_values(values: Sequence[float], base: float) -> list[float]:
    """A few round values inside the range of some: 1, 2 and 5 times powers of a base.

    >>> _round_values([0.8, 2.4], 10.0), _round_values([3, 40], 10.0)
    ([1.0, 2.0], [5.0, 10.0, 20.0])
    """
    least, most = min(values), max(values)
    if least <= 0 or least == most:
        return [most]
    steps = (1.0,) if base == 2.0 else (1.0, 2.0, 5.0)
    powers = range(math.floor(math.log(least, base)), math.ceil(math.log(most, base)) + 1)
    found = [step * base**power for power in powers for step in steps if least <= step * base**power <= most]
    while len(found) > 7:
        found = found[::2]
    return found if len(found) > 1 else [least, most]


def _table(found: Ranking, plans: Sequence[Ranked]) -> str:
    rows = []
    for i, plan in enumerate(plans):
        marks = ["best"] * (plan == found.best) + ["on the front"] * (plan in found.front)
        marks += [] if plan.fits else ["does not fit"]
        layout = ", ".join(filter(None, [layout_text(plan.layout), plan.chosen]))
        cells = [", ".join(marks), str(plan.mesh), layout, time_text(plan.seconds), f"{plan.mfu:.1%}"]
        cells += [size_text(plan.memory_bytes), plan.why]
        rows.append(f'<tr data-row="{i}">{"".join(f"<td>{html.escape(cell)}</td>" for cell in cells)}</tr>')
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("", "mesh", "layout", "a step", "MFU", "memory", "why"))
    return (
        f'<div class="wide"><table class="totals plans"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
