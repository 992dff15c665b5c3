"""What the parts of a page share: escaped text, coloured axes, bars, rows."""

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...layout import Layout
from ...mesh import Mesh
from ...program import Program
from ...program.array_type import ArrayType
from ...program.memory import Memory
from ...tensor import short_dtype
from ...text import layout_text, list_once
from ..cost import Plan
from .sources import SourceLines
from .tensors import Named, Tensors

COLOURS = 6
"""How many colours axes have; a seventh axis takes the first one again."""


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
        return layout_text(self.program.layout)


@dataclass
class PageBuilder:
    """A page while it is made: its sides, its source lines, its picks."""

    sides: list[Side]
    sources: SourceLines
    picks: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = dict.fromkeys(axis for side in self.sides for axis in side.program.mesh.axes)
        self.colours = {name: i % COLOURS for i, name in enumerate(names)}

    @property
    def main(self) -> Side:
        return self.sides[0]

    def pick(self, title: str, *parts: dict[str, Any], note: str = "", source: str = "") -> int:
        """The number of a new pick: what the mesh draws for it, and its source line."""
        self.picks.append({"title": title, "note": note, "parts": parts, "source": self.sources.link(source)})
        return len(self.picks) - 1

    def axis(self, name: str) -> str:
        """The name of an axis in its colour."""
        return f'<i class="a{self.colours[name]}">{name}</i>' if name in self.colours else html.escape(name)

    def axes(self, names: Iterable[str]) -> str:
        """Axes that are taken together, in their colours."""
        return "+".join(map(self.axis, names))

    def over(self, words: str, axes: Iterable[str]) -> str:
        """What goes over some axes: `all_reduce over rows+cols`."""
        return f"{html.escape(words)} over {self.axes(axes)}".lstrip()

    def type(self, *types: ArrayType) -> str:
        """Types with their axes in colours."""
        return list_once(type_.text(self.axis, lambda dtype: html.escape(short_dtype(dtype))) for type_ in types)

    def mesh(self, mesh: Mesh) -> str:
        """A mesh as it is written, in colours."""
        levels = (",".join(f"{self.axis(name)}={mesh.axes[name]}" for name in level) for level in mesh.levels)
        return "|".join(levels)

    def layout(self, layout: Layout) -> str:
        """A layout as it is written, in colours."""
        stores = (("", layout.rules), ("params.", layout.params), ("optimizer.", layout.optimizer))
        rules = [(f"{store}{dim}", axes) for store, held in stores for dim, axes in held.items()]
        return ",".join(f"{rule}:{self.axes(axes)}" for rule, axes in rules) or layout_text(layout)

    def colour(self, axes: Sequence[str]) -> int | None:
        """The colour of the first of some axes; None where no mesh of the page has it."""
        return self.colours.get(axes[0]) if axes else None

    def place(self, source: str) -> str:
        """A place in the source, as a link to its text where that is on the page."""
        link = self.sources.link(source)
        if not link:
            return path("source", source)
        return f'<a class="source" href="#{link}" tabindex="-1"><bdi>{html.escape(source)}</bdi></a>'


def drawing(side: Side, tensors: Sequence[Named] = (), axes: Sequence[str] = ()) -> dict[str, Any]:
    """What is drawn on a side's mesh: tensors, or the groups of a collective."""
    return {"side": side.number, "tensors": list(tensors), "axes": list(axes)}


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
    """A column whose text is cut at its start: the end of a path says most."""
    return f'<span class="{name} path"><bdi>{html.escape(text)}</bdi></span>'


def json_for_html(value: Any) -> str:
    """JSON that can stand in a script tag: no character of it can end the tag."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
