"""The legal layouts of a search: what each costs at least, and why it lost.

All meshes of a search stand in one list, by number; the costs are put together by `compose.py`, without tracing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..layout import Layout
from ..mesh import Mesh
from ..program.ledger import Row
from ..text import layout_text, size_text, time_text
from . import links
from .choices import MeshShape
from .compose import Composer, Grid
from .hardware import Hardware
from .ranking import Losers, Ranked


@dataclass(frozen=True)
class Trial:
    """A layout to trace."""

    mesh: Mesh
    layout: Layout
    number: int
    """Of the candidate, or of the set of rules that is traced alone."""
    is_alone: bool = False
    """One set on one axis, to be put together with others."""


class Candidates:
    """All legal layouts on some meshes, with lower bounds; `order`: promising first."""

    def __init__(self, composer: Composer, meshes: Sequence[Mesh], hardware: Hardware, *, all_axes: bool):
        self.meshes, self.choices = list(meshes), composer.choices
        shapes = [tuple(mesh.axes.values()) for mesh in self.meshes]
        self._grids = [composer.grid(s, partial(_rates, hardware, m)) for s, m in zip(shapes, self.meshes, strict=True)]
        self._sets = [np.argwhere(_worth_bounding(composer, shape, all_axes)) for shape in shapes]
        """For each mesh its layouts, a row each: the number of the set of rules on each axis."""
        self._starts = np.cumsum([0, *map(len, self._sets)])
        self.seconds = self._of_all(lambda grid, at: grid.seconds[at])
        self.memory = self._of_all(lambda grid, at: grid.memory[at])
        self.compute = self._of_all(lambda grid, at: grid.compute[at])
        self.order = np.argsort(self.seconds, kind="stable")

    def _of_all(self, figure: Callable[[Grid, tuple[np.ndarray, ...]], np.ndarray]) -> np.ndarray:
        """A figure of every candidate, mesh by mesh."""
        pairs = zip(self._grids, self._sets, strict=True)
        return np.concatenate([figure(grid, tuple(sets.T)) for grid, sets in pairs])

    def __len__(self) -> int:
        return len(self.order)

    def _place(self, candidate: int) -> tuple[int, tuple[int, ...]]:
        """The number of a candidate's mesh, and of the set of rules on each of its axes."""
        number = int(np.searchsorted(self._starts, candidate, side="right")) - 1
        return number, tuple(map(int, self._sets[number][candidate - self._starts[number]]))

    def trial(self, candidate: int) -> Trial:
        """The candidate as something to trace."""
        number, sets = self._place(candidate)
        mesh = self.meshes[number]
        layout = self.choices.layout([self.choices.sets[i] for i in sets], list(mesh.axes))
        return Trial(mesh, layout, int(candidate))

    def ways(self, candidate: int) -> tuple[frozenset[tuple[int, int]], float]:
        """Parts each set cuts into, and the bound: equal where only axes' names differ."""
        number, sets = self._place(candidate)
        ways: dict[int, int] = {}
        for at, size in zip(sets, self.meshes[number].axes.values(), strict=True):
            ways[at] = ways.get(at, 1) * size
        return frozenset(ways.items()), float(f"{self.seconds[candidate]:.9e}")

    def losers(self, traced: Mapping[int, Ranked], winner: Ranked, capacity: int) -> list[Losers]:
        """Why the others lost, class by class."""
        seconds, memory, fits = self.seconds.copy(), self.memory.copy(), self.memory <= capacity
        left, losers = np.ones(len(self), bool), list[Losers]()
        for number, ranked in traced.items():
            seconds[number], memory[number], fits[number] = ranked.seconds, ranked.memory_bytes, ranked.fits
            left[number] = ranked is not winner

        def add(which: np.ndarray, reason: str, figure: Callable[[int], str]) -> None:
            which = which & left
            left[which] = False
            if which.any():
                best = int(np.flatnonzero(which)[np.argmin(seconds[which])])
                trial = self.trial(best)
                example = f"{trial.mesh} under {layout_text(trial.layout)}, {figure(best)}"
                losers.append(Losers(reason, int(which.sum()), example))

        add(~fits, "do not fit", lambda i: f"{size_text(int(memory[i]))} or more")
        close = seconds <= 1.1 * winner.seconds
        add(close, "are within 10 % of the best", lambda i: f"{time_text(float(seconds[i]))} or more")
        least = float(self.compute[seconds <= winner.seconds].max(initial=self.compute.min()))
        repeated = self.compute > least * 1.2
        work = lambda i: f"{time_text(float(self.compute[i]))} of work against {time_text(least)}"  # noqa: E731
        add(repeated, "do work twice that the best divides", work)
        busiest = self._of_all(lambda grid, at: np.argmax([axis[at] for axis in grid.by_axis], axis=0))
        for axis in range(max(len(mesh.axes) for mesh in self.meshes)):
            names = {list(mesh.axes)[axis] for mesh in self.meshes if len(mesh.axes) > axis}
            sending = lambda i, axis=axis: f"{time_text(self._sending(i, axis))} of sending"  # noqa: E731
            add(busiest == axis, f"keep axis {'/'.join(sorted(names))} busy sending", sending)
        return losers

    def _sending(self, candidate: int, axis: int) -> float:
        """Seconds a candidate sends over one axis."""
        number, sets = self._place(candidate)
        return float(self._grids[number].by_axis[axis][sets])


def _worth_bounding(composer: Composer, shape: MeshShape, all_axes: bool) -> np.ndarray:
    """Which layouts are legal; `all_axes`: use all axes, no two neighbours alike."""
    legal = composer.legal(shape)
    sets = np.indices(legal.shape)
    for axis in range(len(shape)) if all_axes and math.prod(shape) > 1 else ():
        legal &= sets[axis] > 0  # the first set is the empty one
        if axis:
            legal &= sets[axis] != sets[axis - 1]
    return legal


def _rates(
    hardware: Hardware, mesh: Mesh, shape: MeshShape, collective: str, axes: tuple[int, ...], most: float
) -> tuple[float, float]:
    """Seconds a call and a byte of a collective: a line below its true cost."""
    names = tuple(list(mesh.axes)[axis] for axis in axes)
    ways = math.prod(shape[axis] for axis in axes)
    if ways == 1:
        return 0.0, 0.0
    row = Row(collective, names, (), "", 0, 1, "", "", "", "", exact=True, ways=ways)
    most = max(int(most), 1)
    none, all_of_it = (links.seconds(replace(row, bytes=size), mesh, hardware) for size in (0, most))
    return none, (all_of_it - none) / most
