"""The picture of the house in docs/architecture.md: its rooms, and which imports which, read from the source.

    python -m tests.rooms    # writes docs/pictures/rooms.svg anew

A room stands above all it imports, and right below the lowest room that imports it. A line that others imply is left
out: who imports `ops` has `lower` under it.
"""

import functools
from collections.abc import Iterable
from pathlib import Path

from tests.architecture.house import package_modules
from tests.architecture.source import Module, room_of

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "rooms.svg"
_HIDDEN = ("__init__", "__main__")  # the front doors, which may import all
_WIDTH, _BOX, _HEIGHT, _GAP = 760, 84, 26, 24
_STYLE = """
  text { font: 12px ui-monospace, monospace; text-anchor: middle; dominant-baseline: central; fill: #1a1a1a }
  rect { fill: #eef3f8; stroke: #47698c }
  path { stroke: #8a97a5; fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8e8e8 } rect { fill: #22303d; stroke: #7fa3c7 } path { stroke: #67727d }
  }"""


def imports_between(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Each room and the other rooms it imports."""
    modules = list(modules)
    rooms = {module.room for module in modules if module.room not in _HIDDEN}
    graph: dict[str, set[str]] = {room: set() for room in rooms}
    for module in modules:
        for imported in module.imports:
            target = room_of(imported.name)
            if imported.name.startswith("weft.") and module.room in rooms and target in rooms - {module.room}:
                graph[module.room].add(target)
    return graph


def depths(graph: dict[str, set[str]]) -> dict[str, int]:
    """How deep each room stands: one below the deepest room that imports it."""

    @functools.cache
    def depth(room: str) -> int:
        return 1 + max((depth(above) for above in graph if room in graph[above]), default=-1)

    return {room: depth(room) for room in graph}


def direct(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The imports that no chain of others implies."""

    @functools.cache
    def below(room: str) -> frozenset[str]:
        return frozenset(graph[room]).union(*(below(other) for other in graph[room]))

    return {(room, low) for room in graph for low in graph[room] if not any(low in below(o) for o in graph[room])}


def draw(graph: dict[str, set[str]]) -> str:
    """The rooms floor by floor, the highest at the top, as SVG."""
    depth_of = depths(graph)
    deepest = max(depth_of.values())
    places: dict[str, tuple[float, int]] = {}
    for depth in range(deepest + 1):
        row = [room for room in graph if depth_of[room] == depth]

        def under_what(room: str, places: dict[str, tuple[float, int]] = places) -> tuple[float, str]:
            above = [places[other][0] for other in graph if room in graph[other]]
            return sum(above) / len(above) if above else _WIDTH / 2, room

        for i, room in enumerate(sorted(row, key=under_what)):
            places[room] = (_WIDTH * (i + 0.5) / len(row), depth * (_HEIGHT + _GAP) + _HEIGHT)
    height = (deepest + 1) * (_HEIGHT + _GAP) + _HEIGHT // 2
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">']
    parts += ["<title>The rooms of weft: each stands above those it imports</title>", f"<style>{_STYLE}\n</style>"]
    for room, low in sorted(direct(graph)):
        (x, y), (to_x, to_y) = places[room], places[low]
        start, end = (x, y + _HEIGHT / 2), (to_x, to_y - _HEIGHT / 2)
        is_behind = abs(x - to_x) < _BOX and depth_of[low] > depth_of[room] + 1  # round the rooms that stand between
        aside = (x + to_x) / 2 + (1.6 * _BOX if is_behind else 0)
        middle = aside, (start[1] + end[1]) / 2
        parts.append("<path d='M{:g} {:g} Q{:g} {:g} {:g} {:g}'/>".format(*start, *middle, *end))
    for room, (x, y) in sorted(places.items()):
        box = f'x="{x - _BOX / 2:g}" y="{y - _HEIGHT / 2:g}" width="{_BOX}" height="{_HEIGHT}" rx="4"'
        parts.append(f'<rect {box}/><text x="{x:g}" y="{y:g}">{room}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(imports_between(package_modules())), encoding="utf-8")
