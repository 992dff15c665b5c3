"""A jaxpr read with its record: each equation's op, operands and source.

The one place where the jaxpr (what runs) and the record (what was written) are brought together.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

from ..graph import Body, Step, graph, steps
from ..mesh import Mesh
from ..primitives import Role, groups_of_product
from ..record import ArgumentName, Entry, Placed, Record
from ..spmd import Traced
from .source import NOWHERE, Site, Sources


class Reading:
    """The tree of a program's equations, and what the record says of each."""

    def __init__(self, traced: Traced, record: Record, mesh: Mesh):
        self.jaxpr, self._before, self.update_known = traced.jaxpr, traced.before, traced.update_known
        self.entries, self.mesh = record.entries, mesh
        self._sources = Sources(self.entries)
        self._arguments, self._update = record.arguments, record.update

    @functools.cached_property
    def graph(self) -> Body:
        return graph(self.jaxpr, self._arguments)

    def steps(self) -> Iterator[Step]:
        return steps(self.graph)

    def entry(self, op: int | None) -> Entry | None:
        return None if op is None else self.entries[op]

    def sharing(self, step: Step) -> int:
        """On one in how many rows of a product a processor works, if routing is even."""
        entry = self.entry(step.op)
        if entry is None or not entry.sharing:
            return 1
        return entry.sharing if groups_of_product(step.eqn) or step.row.kind is Role.KERNEL else 1

    def site(self, entry: Entry | None) -> Site:
        return NOWHERE if entry is None else self._sources.site(entry.code, entry.at)

    @functools.cached_property
    def mesh_ways(self) -> set[int]:
        """Into how many slices some of the mesh's axes can cut."""
        ways = {1}
        for size in self.mesh.axes.values():
            ways |= {size * other for other in ways}
        return ways

    @property
    def sizes(self) -> str:
        """The dims of the program with their sizes; several where a name has several."""
        sizes_of: dict[str, dict[str, None]] = {}
        for entry in self.entries:
            for placed in (*entry.operands, *entry.results):
                for dim in placed.dims if placed is not None else ():
                    if dim.is_shown:
                        sizes_of.setdefault(dim.name, {})[dim.size_text] = None
        return " ".join(f"{name}={'|'.join(sizes)}" for name, sizes in sizes_of.items())

    def places(self) -> Iterator[tuple[Site, str]]:
        """Every place in the user's source that the program names, and its file."""
        for code, at in (*((entry.code, entry.at) for entry in self.entries), self._update):
            if code is not None:
                yield self._sources.site(code, at), code.co_filename

    @property
    def update_site(self) -> Site:
        """Where the train step was made whose update this is."""
        return self._sources.site(*self._update)

    def operand_name(self, op: int, index: int) -> str:
        """The name of an operand: the argument it comes from, or what was written."""
        entry = self.entries[op]
        site = self.site(entry)
        texts, origin = site.arguments, self._origins.get((op, index))
        is_the_call = site.called in (entry.op, entry.traits.sign)
        fits = is_the_call and index < len(texts) >= len(entry.operands) and texts[index] != "..."
        if origin is not None and (origin.is_leaf or not (fits and texts[index].isidentifier())):
            return origin.name
        if fits:
            return texts[index]
        maker = entry.makers[index] if index < len(entry.makers) else None
        if maker is None:
            return ""
        made = self.site(self.entries[maker])
        return self.name(self.entries[maker]) or (made.text if made.called == self.entries[maker].op else "")

    @functools.cached_property
    def _origins(self) -> dict[tuple[int, int], ArgumentName]:
        origins: dict[tuple[int, int], ArgumentName] = {}
        for step in self.steps():
            if step.op is not None and step.operand is not None and step.origin and step.phase == "forward":
                origins.setdefault((step.op, step.operand), step.origin)
        return origins

    def name(self, entry: Entry) -> str:
        """The variable that an op's result is given to."""
        names = self.site(entry).names
        if len(names) <= 1:
            return names[0] if names else ""
        return names[self._turns.get(entry.id, 0) % len(names)]

    @functools.cached_property
    def _turns(self) -> dict[int, int]:
        """For each entry how many of the same place in the source came before it."""
        before: dict[int, int] = {}
        seen: dict[Any, int] = {}
        for entry in self.entries:
            if not entry.is_gone:
                key = (entry.code, entry.at, entry.parent)
                before[entry.id] = seen[key] = seen.get(key, -1) + 1
        return before

    def text(self, entry: Entry, *, operands_only: bool = False) -> str:
        """The op as the user wrote it."""
        site = self.site(entry)
        if site.called and site.called == entry.traits.sign:
            return site.text
        if site.called != entry.op:
            return f"{entry.op} by {site.text}" if site.text else f"{entry.op}(...)"
        return f"{entry.op}({', '.join(site.arguments[: len(entry.operands)])})" if operands_only else site.text

    def is_gradient(self, step: Step) -> bool:
        """Whether a step is of its op's gradient; a user's rule runs ops backward too."""
        return step.phase == "backward" and step.op in self._traced_forward

    @functools.cached_property
    def _traced_forward(self) -> set[int | None]:
        return {step.op for step in steps(graph(self._before)) if step.phase in ("forward", "recompute")}

    def mapped_dims(self, entry: Entry) -> list[str]:
        """The dims that functions around an op are mapped over."""
        return [outer.over[0] for outer in self.around(entry) if outer.traits.is_mapped]

    def mapped_times(self, entry: Entry) -> int:
        """How many examples of a mapped function one processor works on at once."""
        return math.prod(outer.examples for outer in self.around(entry))

    def around(self, entry: Entry) -> Iterator[Entry]:
        """The blocks around an entry, the innermost first."""
        while entry.parent is not None:
            entry = self.entries[entry.parent]
            yield entry

    def local_elements(self, placed: Placed, axes: dict[str, tuple[str, ...]]) -> int:
        """How many elements of a tensor a processor holds, sharded as `axes` says."""
        ways = math.prod(self.mesh.axes[axis] for dim in placed.dims for axis in axes.get(dim.name, ()))
        return math.prod(placed.dims.sizes) // ways
