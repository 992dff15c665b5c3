"""What the parts of a page share: escaped text, coloured axes, bars, rows that can be picked."""

import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...program import Program
from ...program.memory import Memory
from ..cost import Plan
from .sources import Sources
from .tensors import Named, Tensors

COLOURS = 6
"""How many colours axes have; a seventh axis takes the first one again."""

_AXES = re.compile(r"(?<=[/:])[A-Za-z_][\w+]*|\b[A-Za-z_]\w*(?==\d)|(?<=\bover )[A-Za-z_][\w+]*")
_COLLECTIVE = re.compile(r">> (\w+) over ([\w+]+)")


@dataclass(frozen=True)
class Side:
    """One of the programs of a page, with what is known of it."""

    number: int
    program: Program
    tensors: Tensors
    memory: Memory
    plan: Plan | None = None

    @property
    def letter(self) -> str:
        return "AB"[self.number]

    @property
    def layout(self) -> str:
        return str(self.program.layout) or "the empty layout"


@dataclass
class Making:
    """A page while it is made: its sides, the source lines it needs, and what can be picked on it."""

    sides: list[Side]
    sources: Sources
    picks: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = dict.fromkeys(axis for side in self.sides for axis in side.program.mesh.axes)
        self.colours = {name: i % COLOURS for i, name in enumerate(names)}

    @property
    def main(self) -> Side:
        return self.sides[0]

    def pick(self, title: str, *parts: dict[str, Any], note: str = "", source: str = "") -> int:
        """The number of something that can be picked: what is drawn on the mesh for it, and its source line."""
        self.picks.append({"title": title, "note": note, "parts": parts, "source": self.sources.link(source)})
        return len(self.picks) - 1

    def axes(self, text: str) -> str:
        """Text, escaped, with the names of axes in their colours."""
        return _AXES.sub(lambda match: "+".join(map(self.axis, match[0].split("+"))), html.escape(text))

    def axis(self, name: str) -> str:
        """The name of an axis in its colour; any other word as it is."""
        return f'<i class="a{self.colours[name]}">{name}</i>' if name in self.colours else html.escape(name)

    def place(self, source: str) -> str:
        """A place in the source, as a link to its text where that is on the page."""
        link = self.sources.link(source)
        if not link:
            return path("source", source)
        return f'<a class="source" href="#{link}" tabindex="-1"><bdi>{html.escape(source)}</bdi></a>'


def drawn(side: Side, tensors: Sequence[Named] = (), axes: Sequence[str] = ()) -> dict[str, Any]:
    """What is drawn on a side's mesh: one of some tensors, or who takes part in a collective over some axes."""
    return {"side": side.number, "tensors": list(tensors), "axes": list(axes)}


def collective_axes(text: str) -> list[str]:
    """The axes of a collective's line.

    >>> collective_axes(">> all_reduce over rows+cols")
    ['rows', 'cols']
    """
    match = _COLLECTIVE.match(text)
    return match[2].split("+") if match else []


def bar(share: float, colour: str = "", *, label: str = "") -> str:
    """A bar as long as a share of the width."""
    title = f' title="{html.escape(label)}"' if label else ""
    return f'<span class="bar {colour}" style="width:{max(0.0, min(share, 1.0)):.3%}"{title}></span>'


def figure(value: str, name: str, more: str = "") -> str:
    """A number that stands out, with what it is; all markup."""
    under = f"<small>{more}</small>" if more else ""
    return f'<div class="figure"><b>{value}</b><span>{name}</span>{under}</div>'


def row(
    kind: str, pick: int | None, cells: Iterable[str], *, level: int = 1, role: str = "option", more: str = ""
) -> str:
    """A line that can be picked and walked to with the arrow keys."""
    picked = f' data-pick="{pick}"' if pick is not None else ""
    depth = f' aria-level="{level}" style="--depth:{level - 1}"' if role == "treeitem" else ""
    return f'<div class="row {kind}" role="{role}" tabindex="-1"{picked}{depth}{more}>{"".join(cells)}</div>\n'


def cell(name: str, content: str) -> str:
    """One column of a row; `content` is markup."""
    return f'<span class="{name}">{content}</span>'


def path(name: str, text: str) -> str:
    """A column whose text, where it is too long, is cut at its start: the end of a path says most."""
    return f'<span class="{name} path"><bdi>{html.escape(text)}</bdi></span>'


def json_for_html(value: Any) -> str:
    """JSON that can stand in a script tag: no character of it can end the tag."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
