"""The program on a page: a line for each op, with its tensors and its source."""

import html
from collections.abc import Iterator, Sequence

from ...program.lines import Line
from .parts import PageBuilder, Side, cell, drawing, path, row

_MANY = 16
"""More arguments than these are folded away at first."""
_LONG = 16


def program_panel(builder: PageBuilder, side: Side) -> str:
    """The arguments and the lines of a program."""
    rows = [*_arguments(builder, side), *_rows(builder, side, side.program.lines, 1)]
    return f'<div class="list tree" role="tree" aria-label="the program" tabindex="-1">\n{"".join(rows)}</div>'


def _arguments(builder: PageBuilder, side: Side) -> Iterator[str]:
    arguments = side.tensors.arguments()
    if not arguments:
        return
    state = ' aria-expanded="true"' + (" data-closed" if len(arguments) > _MANY else "")
    count = cell("quiet", f"{len(arguments)}")
    yield row("section", None, [cell("text", f"arguments {count}")], role="treeitem", more=state)
    columns = "op long" if any(len(name) > _LONG for name, _, _ in arguments) else "op"
    for name, type_, number in arguments:
        pick = builder.pick(name, drawing(side, [(name, number)]), note="an argument")
        cells = [path("name", name), cell("type", builder.type(type_))]
        yield row(f"{columns} argument", pick, cells, level=2, role="treeitem")


def _rows(builder: PageBuilder, side: Side, lines: Sequence[Line], level: int) -> Iterator[str]:
    above: list[tuple[str, int]] = []
    for line in lines:
        if line.kind == "op":
            above = side.tensors.of_line(line)
        yield _row(builder, side, line, level, above)
        yield from _rows(builder, side, line.lines, level + 1)


def _row(builder: PageBuilder, side: Side, line: Line, level: int, above: list[tuple[str, int]]) -> str:
    opened = ' aria-expanded="true"' if line.lines else ""
    source = builder.sources.link(line.source)
    if line.kind in ("section", "note"):
        return row(line.kind, None, [cell("text", html.escape(line.text))], level=level, role="treeitem", more=opened)
    if line.kind == "block":
        pick = builder.pick(line.text, source=line.source) if source else None
        cells = [cell("text", html.escape(line.text)), builder.place(line.source)]
        return row("block", pick, cells, level=level, role="treeitem", more=opened)
    return row(
        kind(builder, line), pick_line(builder, side, line, above), columns(builder, line), level=level, role="treeitem"
    )


def kind(builder: PageBuilder, line: Line) -> str:
    """The kind of a line, and for a collective the colour of its first axis."""
    colour = builder.colour(line.sent.axes) if line.sent is not None else None
    return line.kind if colour is None else f"{line.kind} o{colour}"


def pick_line(builder: PageBuilder, side: Side, line: Line, above: Sequence[tuple[str, int]]) -> int:
    """What a line shows when it is picked: its tensors or groups, and its source."""
    return builder.pick(line_title(line), part(side, line, above), note=line.reason, source=line.source)


def line_title(line: Line) -> str:
    """A line as the title of what is picked."""
    if line.sent is not None:
        return f"{line.sent.title}, {line.said}"
    return f"{line.name} = {line.text}" if line.name else line.text


def part(side: Side, line: Line, above: Sequence[tuple[str, int]]) -> dict:
    """What is drawn for a line; `above` are the tensors of a collective's op."""
    if line.sent is not None:
        return drawing(side, above, line.sent.axes)
    return drawing(side, side.tensors.of_line(line))


def line_type(builder: PageBuilder, line: Line) -> str:
    """The column of types: what an op gives, or the collective and its axes."""
    return builder.over(line.sent.collective, line.sent.axes) if line.sent is not None else builder.type(*line.types)


def columns(builder: PageBuilder, line: Line) -> list[str]:
    """The columns of an op or a collective."""
    name, text = html.escape(line.name), html.escape(line.said)
    cells = [cell("name", name), cell("type", line_type(builder, line)), cell("text", text), builder.place(line.source)]
    return [*cells, cell("reason", html.escape(line.reason))] if line.sent is not None else cells
