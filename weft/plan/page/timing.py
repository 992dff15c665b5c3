"""What a step takes, on a page: the phases, what is sent over which axes, and the ops that take longest."""

import html
import re

from ...graph import PHASES
from ..cost import OpCost, Plan, time_text
from .parts import Making, Side, bar, cell, drawn, figure, row

_MOST = 300
_SENDING = re.compile(r"sending over ([\w+]+)(?:: )?")


def timing(making: Making) -> str:
    """The times of all sides that have a plan, and the ops of the first of them."""
    planned = [(side, side.plan) for side in making.sides if side.plan is not None]
    longest = max((plan.seconds for _, plan in planned), default=0) or 1
    ops = _ops(making, *planned[0]) if planned else ""
    return "".join(_side(making, side, plan, longest) for side, plan in planned) + ops


def _side(making: Making, side: Side, plan: Plan, longest: float) -> str:
    figures = [
        figure(time_text(plan.seconds), f"a step on {html.escape(plan.hardware.name)}"),
        figure(time_text(plan.compute_seconds), "computing"),
        figure(time_text(plan.exposed), "waiting for what is sent"),
        figure(f"{plan.mfu:.0%}", "of the peak FLOP/s (MFU)"),
    ]
    if plan.tokens_per_s:
        figures.append(figure(f"{plan.tokens_per_s:,.0f}", "tokens a second"))
    title = f'<h3><span class="letter">{side.letter}</span> {html.escape(side.layout)}</h3>'
    phases = "".join(_line(name, plan.phases[name], longest) for name in PHASES if name in plan.phases)
    sends = "".join(
        _line(f"over {axes}", seconds, longest, making, f"a{_colour(making, axes)}")
        for axes, seconds in plan.communication.items()
    )
    hidden = (
        f'<h3>Sending <span class="quiet">hidden or not</span></h3><div class="bars">{sends}</div>' if sends else ""
    )
    return (
        f'{title if len(making.sides) > 1 else ""}<div class="figures">{"".join(figures)}</div>'
        f'<p class="why">{making.axes(plan.why)}</p><div class="bars">{phases}</div>{hidden}'
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


def _ops(making: Making, side: Side, plan: Plan) -> str:
    ops = sorted(plan.ops, key=lambda op: -op.seconds)
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


def _op(making: Making, side: Side, op: OpCost, longest: float) -> str:
    note = f"bound by {op.bound_by}; runs {op.count} times" if op.count != 1 else f"bound by {op.bound_by}"
    sends = _SENDING.match(op.label)
    text = op.label[sends.end() :] if sends else op.label
    part = drawn(side, side.tensors.of_op(op.source, text), sends[1].split("+") if sends else ())
    pick = making.pick(op.label, part, note=note, source=op.source)
    cells = [
        cell("total", f"{bar(op.seconds / longest, f'b-{op.bound_by}')}<b>{time_text(op.seconds)}</b>"),
        cell("text", making.axes(op.label)),
        cell("bound", html.escape(op.bound_by)),
        cell("phase", html.escape(op.phase)),
        making.place(op.source),
    ]
    return row("timed", pick, cells)
