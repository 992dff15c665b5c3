"""Two programs side by side on a page: their totals, and their lines."""

import html
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...layout import Layout
from ...mesh import Mesh
from ...program.diff import Change
from ...program.lines import Line
from ...text import flops_text, layout_text, size_text, time_text
from .listing import kind, line_title, line_type, part
from .parts import PageBuilder, Side, cell, row
from .tensors import Named

_KEPT = 2
"""Lines alike that stay in sight beside a change."""


def comparison_panel(builder: PageBuilder) -> str:
    """The totals of two programs, and their lines side by side."""
    if len(builder.sides) < 2:
        return ""
    lines = builder.sides[0].program.diff(builder.sides[1].program).lines
    changed = sum(not line.is_same for line in lines)
    count = "no line differs" if not changed else f"{changed} of {len(lines)} lines differ"
    heads = "".join(
        f'<span class="side"><b class="letter">{side.letter}</b> {title}</span>'
        for side, title in zip(builder.sides, titles(builder.sides, builder.mesh, builder.layout), strict=True)
    )
    body = "".join(_rows(builder, lines))
    return (
        f'{_totals(builder)}<h3>Line by line <span class="quiet">{count}</span></h3>'
        f'<div class="head pairs">{heads}</div>'
        f'<div class="list pairs" role="tree" aria-label="both programs, line by line">\n{body}</div>'
    )


def titles(
    sides: Sequence[Side], mesh: Callable[[Mesh], str] = str, layout: Callable[[Layout], str] = layout_text
) -> list[str]:
    """What tells two sides apart: their layouts, their meshes, or both."""
    meshes, layouts = [mesh(side.program.mesh) for side in sides], [layout(side.program.layout) for side in sides]
    if len(set(meshes)) == 1:
        return layouts
    return meshes if len(set(layouts)) == 1 else [" under ".join(pair) for pair in zip(meshes, layouts, strict=True)]


def _totals(builder: PageBuilder) -> str:
    one, two = builder.sides
    rows = [_total(f"over {builder.axis(axis)}", *_bytes_sent(one, two, axis), size_text) for axis in builder.colours]
    rows.append(_total("work of one processor", one.program.flops, two.program.flops, flops_text))
    rows.append(_total("memory at the peak", one.memory.peak, two.memory.peak, size_text))
    if one.plan is not None and two.plan is not None:
        rows.append(
            _total(f"a step on {html.escape(one.plan.hardware.name)}", one.plan.seconds, two.plan.seconds, time_text)
        )
    heads = "".join(f'<th scope="col"><b class="letter">{side.letter}</b></th>' for side in builder.sides)
    return (
        f'<table class="totals"><thead><tr><td></td>{heads}<th scope="col">B against A</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _bytes_sent(one: Side, two: Side, axis: str) -> tuple[int, int]:
    first, second = (s.program.ledger.bytes(axis) if axis in s.program.mesh.axes else 0 for s in (one, two))
    return first, second


def _total(name: str, one: float, two: float, text: Callable[[Any], str]) -> str:
    kind = "same" if one == two else "less" if two < one else "more"
    return (
        f'<tr class="{kind}"><th scope="row">{name}</th><td>{text(one)}</td><td>{text(two)}</td>'
        f"<td>{_change(one, two)}</td></tr>"
    )


def _change(one: float, two: float) -> str:
    """How a number changes, as people say it.

    >>> _change(100, 75), _change(100, 100), _change(1, 12), _change(0, 5)
    ('−25 %', 'the same', '12 times', 'new')
    """
    if one == two:
        return "the same"
    if not one:
        return "new"
    if two > 2 * one:
        return f"{two / one:.3g} times"
    return f"{'−' if two < one else '+'}{abs(two - one) / one * 100:.2g} %".replace("1e+02", "100")


def _rows(builder: PageBuilder, lines: Sequence[Change]) -> Iterator[str]:
    above: list[list[Named]] = [[], []]
    path: tuple[str, ...] = ()
    block = ""
    near = _near_changes(lines)
    alike = 0
    for i, line in enumerate(lines):
        for level, name in _headings(path, line.path, block):
            yield row("section", None, [cell("text", html.escape(name))], level=level, role="treeitem")
        path, block = line.path, _block(line)
        hidden = not near[i]
        if hidden and (i == 0 or near[i - 1]):
            alike = next((j for j in range(i, len(lines)) if near[j]), len(lines)) - i
            yield _fold(alike, len(path) + 1)
        yield _pair(builder, line, above, hidden)


def _near_changes(lines: Sequence[Change]) -> list[bool]:
    """For each line whether it or one near it differs."""
    changed = [i for i, line in enumerate(lines) if not line.is_same]
    near = [False] * len(lines)
    for at in changed:
        for i in range(max(0, at - _KEPT), min(len(lines), at + _KEPT + 1)):
            near[i] = True
    return near


def _headings(before: Sequence[str], path: Sequence[str], block: str) -> Iterator[tuple[int, str]]:
    """The phases and loops a line newly enters, but for a loop that had its own line."""
    same = 0
    while same < min(len(before), len(path)) and before[same] == path[same]:
        same += 1
    for level in range(same, len(path)):
        if path[level] != block:
            yield level + 1, path[level]


def _block(line: Change) -> str:
    there = line.after or line.before
    assert there is not None
    return there.heading if there.kind == "block" else ""


def _fold(count: int, level: int) -> str:
    text = "1 line alike" if count == 1 else f"{count} lines alike"
    return row("fold", None, [cell("text", text)], level=level, role="treeitem", more=' aria-expanded="true"')


def _pair(builder: PageBuilder, line: Change, above: list[list[Named]], hidden: bool) -> str:
    parts, halves = [], []
    both = (line.before, line.after)
    for side, one in zip(builder.sides, both, strict=True):
        if one is not None and one.kind == "op":
            above[side.number] = side.tensors.of_line(one)
        if one is not None and one.kind in ("op", "collective"):
            parts.append(part(side, one, above[side.number]))
        halves.append(_half(builder, one))
    there = line.before or line.after
    assert there is not None
    pick = builder.pick(line_title(there), *parts, note=there.reason, source=there.source)
    state = (
        "same" if line.is_same else "only-b" if line.before is None else "only-a" if line.after is None else "changed"
    )
    marks = f"{state} {kind(builder, there)}{' alike' if hidden else ''}"
    return row(marks, pick, halves, level=len(line.path) + 1, role="treeitem")


def _half(builder: PageBuilder, line: Line | None) -> str:
    if line is None:
        return cell("half none", "")
    if line.sent is not None or line.kind == "op":
        name = cell("name", html.escape(line.name)) if line.name else ""
        return cell("half", name + cell("type", line_type(builder, line)) + cell("text", html.escape(line.said)))
    return cell("half", cell("text", html.escape(line.text)))
