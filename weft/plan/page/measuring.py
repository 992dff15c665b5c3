"""What each line took when the program ran, on a page: beside what was predicted."""

import html
from collections.abc import Iterator, Sequence

from ...text import percent_text, time_text
from ..profiled import KINDS, Measured, Other, TimedLine
from .listing import kind, pick_line
from .parts import PageBuilder, Side, bar, cell, figure, row

_COLUMNS = (("total", "measured"), ("total", "predicted"), ("text", "what"), ("source", "source"))


def measured_panel(builder: PageBuilder, measured: Measured | None) -> str:
    """The lines of a program that ran, and what none of them has."""
    if measured is None:
        return ""
    longest = max([line.own for line in measured.lines] + [other.seconds for other in measured.others], default=0) or 1
    rows = [*_lines(builder, measured, measured.sections, longest, 1), *_others(builder, measured, longest)]
    head = "".join(cell(name, title) for name, title in _COLUMNS)
    return (
        f'<div class="figures">{"".join(_figures(measured))}</div><div class="head ran">{head}</div>'
        f'<div class="list tree ran" role="tree" aria-label="what each line took" tabindex="-1">\n{"".join(rows)}</div>'
    )


def _figures(measured: Measured) -> Iterator[str]:
    yield figure(time_text(measured.seconds), f"a step, of {measured.times.steps} profiled")
    if measured.plan is not None:
        ratio = f"{measured.seconds / measured.plan.seconds:.3g} times that" if measured.plan.seconds else ""
        name = html.escape(measured.plan.hardware.name)
        yield figure(time_text(measured.plan.seconds), f"predicted for {name}", f"it takes {ratio}")
    if measured.exposed or measured.hidden:
        yield figure(time_text(measured.exposed), "waiting for what is sent")
        yield figure(time_text(measured.hidden), "of sending hidden behind other work")
    share = measured.not_ours / measured.seconds if measured.seconds else 0.0
    yield figure(time_text(measured.not_ours), "not ours", percent_text(share))


def _lines(
    builder: PageBuilder, measured: Measured, lines: Sequence[TimedLine], longest: float, level: int
) -> Iterator[str]:
    above: list[tuple[str, int]] = []
    side = builder.main
    for timed in lines:
        if timed.line.kind == "op":
            above = side.tensors.of_line(timed.line)
        opened = ' aria-expanded="true"' if timed.lines else ""
        pick = _pick(builder, side, timed, above)
        cells = [*_cells(measured, timed, longest), _what(builder, timed), builder.place(timed.line.source)]
        yield row(kind(builder, timed.line), pick, cells, level=level, role="treeitem", more=opened)
        yield from _lines(builder, measured, timed.lines, longest, level + 1)


def _pick(builder: PageBuilder, side: Side, timed: TimedLine, above: list[tuple[str, int]]) -> int | None:
    if timed.line.kind in ("op", "collective"):
        return pick_line(builder, side, timed.line, above)
    return None


def _cells(measured: Measured, timed: TimedLine, longest: float) -> list[str]:
    """What a line took, with a bar where the time is its own, and what was predicted."""
    if timed.is_with_another and not timed.seconds:
        return [cell("total quiet", "above"), cell("total", "")]
    mark = '<span title="it shares kernels with other lines, by the work of each">~</span>' * timed.is_shared_out
    drawn = bar(timed.own / longest, "b-sending" if timed.line.kind == "collective" else "b-flops") if timed.own else ""
    predicted = _time(timed.predicted) if measured.plan is not None else ""
    return [cell("total", f"{drawn}<b>{mark}{_time(timed.seconds)}</b>"), cell("total quiet", predicted)]


def _time(seconds: float) -> str:
    return time_text(seconds) if seconds else "·"


def _what(builder: PageBuilder, timed: TimedLine) -> str:
    line = timed.line
    if line.sent is not None:
        hidden = f' <span class="quiet">{time_text(timed.hidden)} more hidden</span>' if timed.hidden else ""
        return cell("text", f"{builder.over(line.sent.collective, line.sent.axes)} {html.escape(line.said)}{hidden}")
    name = f'<b class="name">{html.escape(line.name)}</b> = ' if line.name else ""
    around = timed.lines and timed.own >= 0.01 * timed.seconds > 0
    own = f' <span class="quiet">{time_text(timed.own)} of it around these lines</span>' if around else ""
    return cell("text", f"{name}{html.escape(line.text)}{own}")


def _others(builder: PageBuilder, measured: Measured, longest: float) -> Iterator[str]:
    for is_ours, head in KINDS.items():
        others = [other for other in measured.others if other.is_ours == is_ours]
        if others:
            total, predicted = (sum(getattr(other, name) for other in others) for name in ("seconds", "predicted"))
            cells = [cell("total", f"<b>{_time(total)}</b>"), cell("total quiet", _time(predicted))]
            cells.append(cell("text", html.escape(head)))
            yield row("section", None, cells, role="treeitem", more=' aria-expanded="true"')
            yield from (_other(builder, other, longest) for other in others)


def _other(builder: PageBuilder, other: Other, longest: float) -> str:
    drawn = bar(other.seconds / longest, "b-memory")
    cells = [cell("total", f"{drawn}<b>{_time(other.seconds)}</b>"), cell("total quiet", _time(other.predicted))]
    cells += [cell("text", html.escape(other.text)), builder.place(other.source)]
    return row("note", None, cells, level=2, role="treeitem")
