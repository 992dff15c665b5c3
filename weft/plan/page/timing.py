"""What a step takes, on a page: the phases, what is sent over which axes, and the ops that take longest."""

import html
from typing import Any

from .parts import Making, Side, bar, cell, drawn, figure, row

_MOST = 300


def timing(making: Making) -> str:
    """The times of all sides that have a plan, and the ops of the first of them."""
    planned = [side for side in making.sides if side.plan is not None]
    if not planned:
        return ""
    longest = max(side.plan.seconds for side in planned) or 1
    return "".join(_side(making, side, longest) for side in planned) + _ops(making, planned[0])


def _side(making: Making, side: Side, longest: float) -> str:
    plan = side.plan
    figures = [
        figure(time_text(plan.seconds), f"a step on {plan.hardware.name}"),
        figure(time_text(plan.compute_seconds), "computing"),
        figure(time_text(plan.exposed), "waiting for what is sent"),
        figure(f"{plan.mfu:.0%}", "of the peak FLOP/s (MFU)"),
    ]
    if plan.tokens_per_s:
        figures.append(figure(f"{plan.tokens_per_s:,.0f}", "tokens a second"))
    title = f'<h3><span class="letter">{side.letter}</span> {html.escape(side.layout)}</h3>'
    phases = "".join(_line(name, seconds, longest) for name, seconds in plan.phases.items())
    sends = "".join(
        _line(f"over {axes}", seconds, longest, making, f"a{_colour(making, axes)}")
        for axes, seconds in plan.communication.items()
    )
    return (
        f'{title if len(making.sides) > 1 else ""}<div class="figures">{"".join(figures)}</div>'
        f'<p>{making.axes(plan.why)}</p><div class="bars">{phases}{sends}</div>'
    )


def _line(name: str, seconds: float, longest: float, making: Making | None = None, colour: str = "") -> str:
    label = html.escape(name) if making is None else making.axes(name)
    track = f'<span class="track">{bar(seconds / longest, colour)}</span>'
    value = f'<span class="value"><b>{time_text(seconds)}</b></span>'
    return (
        f'<div class="axis"><span class="label">{label}</span><div><div class="line">{track}{value}</div></div></div>'
    )


def _colour(making: Making, axes: str) -> int:
    return making.colours.get(axes.split("+")[0].strip(), 0)


def _ops(making: Making, side: Side) -> str:
    ops = sorted(side.plan.ops, key=lambda op: -op.seconds)
    if not ops:
        return ""
    rows = "".join(_op(making, side, op, ops[0].seconds or 1) for op in ops[:_MOST])
    rest = sum(op.seconds for op in ops[_MOST:])
    more = f'<p class="quiet">{len(ops) - _MOST:,} more take {time_text(rest)} together</p>' if ops[_MOST:] else ""
    head = "".join(cell(name, title) for name, title in _COLUMNS)
    return (
        f'<h3>Ops, the longest first</h3><div class="head timed">{head}</div>'
        f'<div class="list timed" role="listbox" aria-label="ops, the longest first">\n{rows}</div>{more}'
    )


_COLUMNS = (("total", "seconds"), ("text", "op"), ("bound", "bound by"), ("phase", "phase"), ("source", "source"))


def _op(making: Making, side: Side, op: Any, longest: float) -> str:
    note = f"bound by {op.bound_by}; runs {op.count} times" if op.count != 1 else f"bound by {op.bound_by}"
    pick = making.pick(op.label, drawn(side), note=note, source=op.source)
    cells = [
        cell("total", f"{bar(op.seconds / longest, f'b-{op.bound_by}')}<b>{time_text(op.seconds)}</b>"),
        cell("text", making.axes(op.label)),
        cell("bound", html.escape(op.bound_by)),
        cell("phase", html.escape(op.phase)),
        making.place(op.source),
    ]
    return row("timed", pick, cells)


def time_text(seconds: float) -> str:
    """Seconds as people read them.

    >>> time_text(0.3104), time_text(2.5), time_text(4.2e-5)
    ('310 ms', '2.5 s', '42 µs')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:,.0f} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds else "0 s"
