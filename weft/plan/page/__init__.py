"""The page: one HTML file about a program on its mesh, or about two.

It shows what a program sends and holds, and how it differs from another.

It needs no network and no library. What is on it stands in the HTML itself as text, and its script only brings it to
life: it draws the mesh, walks the lines and shows the source of what is picked.
"""

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from ...notebook import Page, draw_by
from ...program import Program
from ...text import flops_text, plural, size_text, time_text
from ..cost import Plan
from ..profiled import Measured
from ..ranking import Ranking
from .comparing import comparison_panel, titles
from .front import search_body, search_header
from .holding import course, memory_panel, moment_text
from .listing import program_panel
from .measuring import measured_panel
from .parts import PageBuilder, Side, figure, json_for_html
from .sent import sending_panel
from .sources import SourceLines
from .tensors import Tensors
from .timing import time_panel
from .turns import turns_panel

VERSION = 1

_SCRIPTS = ("mesh.js", "page.js")
# Before anything is drawn: only the view that is open need be laid out.
_FIRST = 'document.documentElement.classList.add("live");'


def page(
    program: Program,
    plan: Plan | None = None,
    against: Program | None = None,
    against_plan: Plan | None = None,
    *,
    measured: Measured | None = None,
) -> Page:
    """The page of a program, its plan and what it took, or of two: HTML as text."""
    programs = [(program, plan)] + ([(against, against_plan)] if against is not None else [])
    sides = [
        Side(i, shown, Tensors(shown), (shown if its is None else its).memory, its)
        for i, (shown, its) in enumerate(programs)
    ]
    builder = PageBuilder(sides, SourceLines(shown for shown, _ in programs))
    panels = [
        ("compare", "Compare", comparison_panel(builder)),
        ("measured", "Measured", measured_panel(builder, measured)),
        ("program", "Program", program_panel(builder, builder.main)),
        ("sent", "Sent", sending_panel(builder)),
        ("memory", "Memory", memory_panel(builder)),
        ("time", "Time", time_panel(builder)),
        ("turns", "Turns", turns_panel(builder)),
    ]
    shown = [panel for panel in panels if panel[2]]
    content = _fill_template(
        "template.html",
        first=_FIRST,
        header=_header(builder),
        tabs=_tabs(shown),
        panels="".join(_panel(*panel) for panel in shown),
        sources=builder.sources.markup(),
        told=json_for_html(_script_data(builder)),
    )
    return _frame(program.title, content, "".join(map(_file, _SCRIPTS)), _FIRST)


def search_page(found: Ranking, name: str = "search") -> Page:
    """The page of a search: time against memory, the front, and the plans."""
    content = _fill_template("search.html", header=search_header(found, name), body=search_body(found))
    return _frame(name, content, _file("search.js"))


def _frame(title: str, content: str, script: str, *more: str) -> Page:
    """The whole page, which runs this script last; `more` are those in its content."""
    text = _fill_template(
        "frame.html",
        title=html.escape(title),
        policy=_policy(*more, script),
        style=_file("page.css"),
        content=content,
        script=script,
    )
    return Page(text.encode("utf-8", "replace").decode())  # source files may hold halves of characters


def _draw(shown: Program | Plan | Ranking | Measured, against: Program | Plan | None) -> Page:
    """The page of what can show itself."""
    if isinstance(shown, Ranking):
        return search_page(shown)
    if isinstance(shown, Measured):
        return page(shown.program, shown.plan, measured=shown)
    program, plan = _program_and_plan(shown)
    return page(program, plan, *(_program_and_plan(against) if against is not None else ()))


def _program_and_plan(shown: Program | Plan) -> tuple[Program, Plan | None]:
    return (shown.program, shown) if isinstance(shown, Plan) else (shown, None)


draw_by(_draw)


def _policy(*scripts: str) -> str:
    """What a browser lets the page do: run its own scripts, and reach nothing."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    allowed = f"style-src 'unsafe-inline'; img-src data:; script-src {hashes}"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _header(builder: PageBuilder) -> str:
    name = html.escape(builder.main.program.name or "a program")
    settings = "".join(_describe_setting(builder, side) for side in builder.sides)
    figures = "".join(_figures(builder, builder.main)) if len(builder.sides) == 1 else ""  # two have a table of them
    return f'<h1>{name}</h1><div class="settings">{settings}</div><div class="figures">{figures}</div>'


def _describe_setting(builder: PageBuilder, side: Side) -> str:
    mesh = side.program.mesh
    letter = f'<b class="letter">{side.letter}</b> ' if len(builder.sides) > 1 else ""
    duplicated = side.program.flops_duplicated
    twice = f"<br>{html.escape(duplicated.reason)}" if duplicated else ""
    on = f"<b>{builder.mesh(mesh)}</b> ({plural(mesh.size, 'processor')})"
    return f"<p>{letter}{on} under <b>{builder.layout(side.program.layout)}</b>{twice}</p>"


def _figures(builder: PageBuilder, side: Side) -> list[str]:
    program = side.program
    figures = [figure(flops_text(program.flops), "work of one processor")]
    figures += [
        figure(size_text(program.ledger.bytes(axis)), f"sent over {builder.axis(axis)}") for axis in program.mesh.axes
    ]
    figures.append(figure(size_text(side.memory.peak), "memory at the peak"))
    if side.plan is not None:
        figures.append(figure(time_text(side.plan.seconds), f"a step on {html.escape(side.plan.hardware.name)}"))
        figures.append(figure(f"{side.plan.mfu:.0%}", "MFU"))
    return figures


def _tabs(panels: Sequence[tuple[str, str, str]]) -> str:
    return "".join(
        f'<a role="tab" id="tab-{name}" href="#{name}" aria-controls="{name}">{title}</a>' for name, title, _ in panels
    )


def _panel(name: str, title: str, content: str) -> str:
    return (
        f'<section id="{name}" class="panel" role="tabpanel" aria-labelledby="tab-{name}">'
        f"<h2>{title}</h2>\n{content}</section>\n"
    )


def _script_data(builder: PageBuilder) -> dict[str, Any]:
    """What the script needs to know beyond the text."""
    sides = [
        {
            "mesh": list(side.program.mesh.axes.items()),
            "slow": list(side.program.mesh.slow),
            "title": title,
            "tensors": side.tensors.to_list(),
            "course": [[at.bytes, moment_text(at), builder.sources.link(at.source)] for at in course(side.memory)],
        }
        for side, title in zip(builder.sides, titles(builder.sides), strict=True)
    ]
    return {"version": VERSION, "sides": sides, "axes": builder.colours, "picks": builder.picks}


@cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _fill_template(name: str, /, **parts: str) -> str:
    return re.sub(r"<!--(\w+)-->", lambda match: parts[match[1]], _file(name))
