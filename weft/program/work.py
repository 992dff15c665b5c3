"""The work of a program: the FLOPs of its products on one processor.

Counted on the local shapes of the traced program, loops, gradients and recomputation included. An op none of whose
dims is split over an axis does the same on all processors along it: that work is duplicated. What a pipeline's stages
do while it fills and empties (its bubble) is of no use to anyone. Of dropless experts a processor has the rows that it
gets if routing is even.
"""

import math
from collections import defaultdict
from typing import Any

from ..graph import Step, Tree, steps
from ..text import percent_text
from .reading import Reading
from .update import split_of


class Duplicated(float):
    """FLOPs that others do too, (n - 1) / n of what n do alike; `reason` says where."""

    reason: str

    def __new__(cls, value: float, reason: str) -> "Duplicated":
        made = super().__new__(cls, value)
        made.reason = reason
        return made


class Work:
    """What one processor computes, and how much of it others compute too."""

    def __init__(self, reading: Reading):
        self._reading = reading
        self.total, self.recomputed, self.idle, useful = 0, 0, 0, 0
        self._repeated: dict[tuple[int, tuple[str, ...]], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._in_function: dict[str, int] = defaultdict(int)
        self._lines: dict[tuple[tuple[str, ...], str], set[str]] = defaultdict(set)

        def measure(tree: Tree) -> float:
            return sum(self._flops(step) * step.count for step in steps(tree, measure))

        for step in steps(reading.graph, measure):
            if step.is_global and not reading.update_known:
                continue
            if flops := self._flops(step) * step.count:
                self.total += flops
                self.recomputed += flops if step.phase == "recompute" else 0
                idle = self._idle(step, flops)
                self.idle += idle
                useful += (flops - idle) * self._ways(step, flops)
        self.useful: float = (
            useful // reading.mesh.size if useful % reading.mesh.size == 0 else useful / reading.mesh.size
        )

    def _flops(self, step: Step) -> int:
        """The FLOPs of one turn of a step on one processor."""
        flops = step.flops
        if flops and step.is_global:
            return flops // _split_ways(step.eqn, self._reading.mesh.axes)
        return flops // self._reading.sharing(step) if flops else 0

    def _idle(self, step: Step, flops: int) -> int:
        """Those FLOPs of a step that are done in the bubble of a pipeline around it."""
        entry = self._reading.entry(step.op)
        for outer in self._reading.around(entry) if entry is not None else ():
            if outer.idle[0]:
                return flops * outer.idle[0] // outer.idle[1]
        return 0

    def _ways(self, step: Step, flops: int) -> int:
        """Over how many processors the dims of the step's op divide its work."""
        entry = self._reading.entry(step.op)
        mesh = self._reading.mesh
        if entry is None or step.is_global:
            return mesh.size
        site = self._reading.site(entry)
        self._in_function[site.function] += flops
        used = {axis for axes in entry.dims.values() for axis in axes}.union(entry.taken)
        unused = tuple(axis for axis, size in mesh.axes.items() if size > 1 and axis not in used)
        times = math.prod(mesh.axes[axis] for axis in unused)
        if unused:
            self._repeated[times, unused][site.function] += flops
            self._lines[unused, site.function].add(str(site))
        return mesh.size // times

    @property
    def duplicated(self) -> Duplicated:
        return Duplicated(self.total - self.idle - self.useful, self.sentence)

    @property
    def sentence(self) -> str:
        """How much of the work is done more than once, and which axis leaves it so.

        E.g. "62 % of the work is done twice: axis cols splits nothing in `attention`". Of what is done twice one half
        is useful; `duplicated` is the other.
        """
        if not self.total:
            return "there are no products or convolutions"
        parts = []
        for (times, unused), functions in sorted(self._repeated.items(), key=lambda item: -sum(item[1].values())):
            share = sum(functions.values()) / self.total
            often = "twice" if times == 2 else f"{times} times"
            axes = f"axis {unused[0]} splits" if len(unused) == 1 else f"axes {' and '.join(unused)} split"
            where = self._list_functions(unused, functions)
            parts.append(f"{percent_text(share)} of the work is done {often}: {axes} nothing in {where}")
        if self.idle:
            parts.append(f"{percent_text(self.idle / self.total)} of the work is the bubble of a pipeline")
        if not self._reading.update_known:
            parts.append("the update's products are not counted")
        return "; ".join(parts) or "no work is done twice"

    def _list_functions(self, unused: tuple[str, ...], functions: dict[str, int]) -> str:
        """The functions that repeat most work, with lines where only some repeat."""
        names = []
        for name in sorted(functions, key=lambda name: -functions[name])[:3]:
            lines = sorted(self._lines[unused, name])
            is_all = functions[name] == self._in_function[name]
            names.append(
                f"`{name}`" if is_all else f"`{name}` at {', '.join(lines[:3])}{' ...' if len(lines) > 3 else ''}"
            )
        return ", ".join(names) + (f" and {len(functions) - 3} more" if len(functions) > 3 else "")


def _split_ways(eqn: Any, mesh_axes: dict[str, int]) -> int:
    """Over how many processors a product of sharded global arrays is divided."""
    used = {axis for var in (*eqn.invars, *eqn.outvars) for axes in split_of(var) for axis in axes}
    return math.prod(mesh_axes[axis] for axis in used)
