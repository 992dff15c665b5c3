"""The program on a page: a line for each op, with its tensors and its source."""

import html
from collections.abc import Iterator, Sequence

from ...program.lines import Line
from .parts import Making, Side, cell, drawn, path, row

_MANY = 16
"""More arguments than these are folded away at first."""
_LONG = 16


def listing(making: Making, side: Side) -> str:
    """The arguments and the lines of a program."""
    rows = [*_arguments(making, side), *_rows(making, side, side.program.lines, 1)]
    return f'<div class="list tree" role="tree" aria-label="the program" tabindex="-1">\n{"".join(rows)}</div>'


def _arguments(making: Making, side: Side) -> Iterator[str]:
    found = side.tensors.arguments()
    if not found:
        return
    state = ' aria-expanded="true"' + (" data-closed" if len(found) > _MANY else "")
    count = cell("quiet", f"{len(found)}")
    yield row("section", None, [cell("text", f"arguments {count}")], role="treeitem", more=state)
    columns = "op long" if any(len(name) > _LONG for name, _, _ in found) else "op"
    for name, type_, number in found:
        pick = making.pick(name, drawn(side, [(name, number)]), note="an argument")
        cells = [path("name", name), cell("type", making.type(type_))]
        yield row(f"{columns} argument", pick, cells, level=2, role="treeitem")


def _rows(making: Making, side: Side, lines: Sequence[Line], level: int) -> Iterator[str]:
    above: list[tuple[str, int]] = []
    for line in lines:
        if line.kind == "op":
            above = side.tensors.of_line(line)
        yield _row(making, side, line, level, above)
        yield from _rows(making, side, line.lines, level + 1)


def _row(making: Making, side: Side, line: Line, level: int, above: list[tuple[str, int]]) -> str:
    opened = ' aria-expanded="true"' if line.lines else ""
    source = making.sources.link(line.source)
    if line.kind in ("section", "note"):
        return row(line.kind, None, [cell("text", html.escape(line.text))], level=level, role="treeitem", more=opened)
    if line.kind == "block":
        pick = making.pick(line.text, source=line.source) if source else None
        cells = [cell("text", html.escape(line.text)), making.place(line.source)]
        return row("block", pick, cells, level=level, role="treeitem", more=opened)
    return row(
        kind(making, line), picked(making, side, line, above), columns(making, line), level=level, role="treeitem"
    )


def kind(making: Making, line: Line) -> str:
    """The kind of a line, and for a collective the colour of its first axis."""
    colour = making.colour(line.sent.axes) if line.sent is not None else None
    return line.kind if colour is None else f"{line.kind} o{colour}"


def picked(making: Making, side: Side, line: Line, above: Sequence[tuple[str, int]]) -> int:
    """What a line shows when it is picked: its tensors or groups, and its source."""
    return making.pick(said(line), part(side, line, above), note=line.reason, source=line.source)


def said(line: Line) -> str:
    """A line as the title of what is picked."""
    if line.sent is not None:
        return f"{line.sent.title}, {line.said}"
    return f"{line.name} = {line.text}" if line.name else line.text


def part(side: Side, line: Line, above: Sequence[tuple[str, int]]) -> dict:
    """What is drawn for a line; `above` are the tensors of a collective's op."""
    if line.sent is not None:
        return drawn(side, above, line.sent.axes)
    return drawn(side, side.tensors.of_line(line))


def line_type(making: Making, line: Line) -> str:
    """The column of types: what an op gives, or the collective and its axes."""
    return making.over(line.sent.collective, line.sent.axes) if line.sent is not None else making.type(*line.types)


def columns(making: Making, line: Line) -> list[str]:
    """The columns of an op or a collective."""
    name, text = html.escape(line.name), html.escape(line.said)
    cells = [cell("name", name), cell("type", line_type(making, line)), cell("text", text), making.place(line.source)]
    return [*cells, cell("reason", html.escape(line.reason))] if line.sent is not None else cells
