"""What a step takes, on a page: the phases, the sending, the longest ops."""

import html

from ...graph import PHASES
from ...text import time_text
from ..cost import OpCost, Plan
from .parts import PageBuilder, Side, bar, cell, drawing, figure, row

_MOST = 300


def time_panel(builder: PageBuilder) -> str:
    """The times of all sides that have a plan, and the ops of the first of them."""
    planned = [(side, side.plan) for side in builder.sides if side.plan is not None]
    longest = max((plan.seconds for _, plan in planned), default=0) or 1
    ops = _ops(builder, *planned[0]) if planned else ""
    return "".join(_side(builder, side, plan, longest) for side, plan in planned) + ops


def _side(builder: PageBuilder, side: Side, plan: Plan, longest: float) -> str:
    figures = [
        figure(time_text(plan.seconds), f"a step on {html.escape(plan.hardware.name)}"),
        figure(time_text(plan.compute_seconds), "computing"),
        figure(time_text(plan.exposed), "waiting for what is sent"),
        figure(f"{plan.mfu:.0%}", "of the peak FLOP/s (MFU)"),
    ]
    if plan.tokens_per_s:
        figures.append(figure(f"{plan.tokens_per_s:,.0f}", "tokens a second"))
    for bubble in plan.bubbles:
        figures.append(figure(time_text(bubble.seconds), f"bubble, {bubble.idle}/{bubble.turns} of its stages' work"))
    title = f'<h3><span class="letter">{side.letter}</span> {html.escape(side.layout)}</h3>'
    phases = "".join(_line(name, plan.phases[name], longest) for name in PHASES if name in plan.phases)
    sends = "".join(
        _line(builder.over("", axes), seconds, longest, f"a{builder.colour(axes)}")
        for axes, seconds in plan.sending.items()
    )
    hidden = (
        f'<h3>Sending <span class="quiet">hidden or not</span></h3><div class="bars">{sends}</div>' if sends else ""
    )
    return (
        f'{title if len(builder.sides) > 1 else ""}<div class="figures">{"".join(figures)}</div>'
        f'<p class="why">{html.escape(plan.why)}</p><div class="bars">{phases}</div>{hidden}'
    )


def _line(label: str, seconds: float, longest: float, colour: str = "") -> str:
    track = f'<span class="track">{bar(seconds / longest, colour)}</span>'
    value = f'<span class="value"><b>{time_text(seconds)}</b></span>'
    return (
        f'<div class="axis"><span class="label">{label}</span><div><div class="line">{track}{value}</div></div></div>'
    )


def _ops(builder: PageBuilder, side: Side, plan: Plan) -> str:
    ops = sorted(plan.ops, key=lambda op: -op.seconds)
    if not ops:
        return ""
    rows = "".join(_op(builder, side, op, ops[0].seconds or 1) for op in ops[:_MOST])
    rest = sum(op.seconds for op in ops[_MOST:])
    more = f'<p class="quiet">{len(ops) - _MOST:,} more take {time_text(rest)} together</p>' if ops[_MOST:] else ""
    head = "".join(cell(name, title) for name, title in _COLUMNS)
    return (
        f'<h3>Ops, the longest first</h3><div class="head timed">{head}</div>'
        f'<div class="list timed" role="listbox" aria-label="ops, the longest first">\n{rows}</div>{more}'
    )


_COLUMNS = (("total", "seconds"), ("text", "op"), ("bound", "bound by"), ("phase", "phase"), ("source", "source"))


def _op(builder: PageBuilder, side: Side, op: OpCost, longest: float) -> str:
    note = f"bound by {op.bound_by}; runs {op.count} times" if op.count != 1 else f"bound by {op.bound_by}"
    part = drawing(side, side.tensors.of_op(op.op), op.axes)
    pick = builder.pick(op.label, part, note=note, source=op.source)
    cells = [
        cell("total", f"{bar(op.seconds / longest, f'b-{op.bound_by}')}<b>{time_text(op.seconds)}</b>"),
        cell("text", _label(builder, op)),
        cell("bound", html.escape(op.bound_by)),
        cell("phase", html.escape(op.phase)),
        builder.place(op.source),
    ]
    return row("timed", pick, cells)


def _label(builder: PageBuilder, op: OpCost) -> str:
    text = html.escape(op.text)
    return " ".join(filter(None, [builder.over("sending", op.axes) + ":" * bool(text), text])) if op.axes else text
