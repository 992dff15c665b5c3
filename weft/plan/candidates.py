"""The legal layouts of a search: what each costs at least, and why it lost.

All layouts of all variants of a program on all meshes, with costs put together by `compose.py`, without tracing. Of
those that may fit the cheapest are kept; of the others how many there are, and the best of each class, is all that is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..layout import Layout
from ..mesh import Mesh
from ..program.ledger import Row
from ..text import layout_text, size_text, time_text
from . import links
from .choices import MeshShape
from .compose import Composer
from .hardware import Hardware
from .ranking import Losers, Ranked
from .techniques import Techniques

MOST_KEPT = 200_000
"""How many layouts are kept whatever they cost; where there are more, those within `CUT` times the cheapest are."""
CUT = 2.0

Place = tuple[int, int, tuple[int, ...]]
"""Where a layout stands: the number of its variant, of its mesh, and of the set of rules on each axis."""


@dataclass(frozen=True)
class Trial:
    """A layout to trace."""

    mesh: Mesh
    layout: Layout
    variant: int = 0
    place: Place = (0, 0, ())
    """Of the candidate."""
    alone: int | None = None
    """Else the number of the set of rules that is traced alone on one axis, to be put together with others."""


@dataclass
class _Rest:
    """Layouts of which only the number and the best is kept."""

    count: int = 0
    seconds: float = math.inf
    memory: float = math.inf
    place: Place | None = None

    def add(self, seconds: np.ndarray, memory: np.ndarray, place: Callable[[int], Place]) -> None:
        """Takes up some more."""
        self.count += len(seconds)
        if len(seconds) and seconds.min() < self.seconds:
            best = int(np.argmin(seconds))
            self.seconds, self.memory, self.place = float(seconds[best]), float(memory[best]), place(best)


@dataclass
class ClassBest:
    """The layouts of one class: how many, and the one that is cheapest by its bound."""

    count: int = 0
    seconds: float = math.inf
    place: Place | None = None
    """Of the cheapest that may fit."""
    memory: float = math.inf
    smallest: Place | None = None
    """Of the one that needs least memory."""


class Candidates:
    """Legal layouts with lower bounds; `order` has the most promising first."""

    def __init__(self, hardware: Hardware, capacity: int):
        self.hardware, self.capacity = hardware, capacity
        self.composers: dict[int, Composer] = {}
        self.meshes: list[Mesh] = []
        self._taken_up: dict[tuple[int, Mesh], int] = {}
        """The number of a mesh with the layouts of a variant."""
        self.searched = 0
        self.unfit, self.slow = _Rest(), _Rest()
        """Those that cannot fit, and those that take more than `CUT` times the cheapest that may."""
        self.unfit_seconds: dict[int, float] = {}
        """Of each variant the least bound of those that cannot fit."""
        self.least_by_set: dict[int, np.ndarray] = {}
        """Of each variant for each set of rules the least bound of a layout that has it."""
        self._techniques: dict[int, Techniques] = {}
        self.classes: dict[tuple[str, ...], ClassBest] = {}
        self.smallest: list[tuple[float, Place]] = []
        """Those that need least memory, whether it is there or not."""
        self._variants = self._mesh_numbers = np.zeros(0, np.int32)
        self._sets = np.zeros((0, 0), np.int16)
        self.seconds = self.memory = self.compute = np.zeros(0)
        self.order = np.zeros(0, int)

    def add(
        self,
        variant: int,
        composer: Composer,
        meshes: Sequence[Mesh],
        *,
        all_axes: bool,
        needs: str | None = None,
        report: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Takes up all layouts of a variant that have the rule it `needs`."""
        self.composers[variant] = composer
        techniques = self._techniques[variant] = Techniques(composer.choices)
        try:
            for done, mesh in enumerate(meshes):
                shape = tuple(mesh.axes.values())
                layouts = composer.legal(shape, all_axes=all_axes and mesh.size > 1, having=needs)
                if len(layouts):
                    self._add(variant, mesh, shape, layouts, techniques)
                report(done + 1)
        finally:  # an interrupt leaves what was taken up until then
            self.order = np.argsort(self.seconds, kind="stable")

    def _add(self, variant: int, mesh: Mesh, shape: MeshShape, layouts: np.ndarray, techniques: Techniques) -> None:
        self.meshes.append(mesh)
        number = self._taken_up[variant, mesh] = len(self.meshes) - 1
        costs = self.composers[variant].costs(shape, _Rates(self.hardware, mesh), layouts)
        self.searched += len(layouts)
        fits = costs.memory <= self.capacity
        nothing = np.full(len(self.composers[variant].choices.sets), math.inf)
        least = self.least_by_set.setdefault(variant, nothing)
        for axis in range(len(shape)):
            np.minimum.at(least, layouts[:, axis], costs.seconds)

        def place_of(rows: np.ndarray) -> Callable[[int], Place]:
            return lambda at: (variant, number, tuple(map(int, layouts[rows[at]])))

        self._add_classes(costs.seconds, costs.memory, fits, techniques.of(layouts), techniques, place_of)
        small = np.argsort(costs.memory)[:8]
        self.smallest += [(float(costs.memory[at]), place_of(small)(i)) for i, at in enumerate(small)]
        self.smallest = sorted(self.smallest)[:8]
        rows = np.flatnonzero(~fits)
        self.unfit.add(costs.seconds[rows], costs.memory[rows], place_of(rows))
        least_unfit = float(costs.seconds[rows].min(initial=math.inf))
        self.unfit_seconds[variant] = min(least_unfit, self.unfit_seconds.get(variant, math.inf))
        rows = np.flatnonzero(fits)
        width = max(self._sets.shape[1], len(shape))
        sets = [np.pad(s, ((0, 0), (0, width - s.shape[1]))) for s in (self._sets, layouts[rows].astype(np.int16))]
        self._sets = np.concatenate(sets)
        self._variants = np.concatenate([self._variants, np.full(len(rows), variant, np.int32)])
        self._mesh_numbers = np.concatenate([self._mesh_numbers, np.full(len(rows), number, np.int32)])
        for name in ("seconds", "memory", "compute"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(costs, name)[rows]]))
        if len(self.seconds) > MOST_KEPT:
            self._drop_slow()

    def _drop_slow(self) -> None:
        """Keeps those within `CUT` times the cheapest, and at least a few thousand."""
        few = np.sort(self.seconds)[MOST_KEPT // 20]
        keep = self.seconds <= max(CUT * float(self.seconds.min()), float(few))
        rows = np.flatnonzero(~keep)
        self.slow.add(self.seconds[rows], self.memory[rows], lambda at: self.place(rows[at]))
        for name in ("seconds", "memory", "compute", "_sets", "_variants", "_mesh_numbers"):
            setattr(self, name, getattr(self, name)[keep])

    def _add_classes(
        self,
        seconds: np.ndarray,
        memory: np.ndarray,
        fits: np.ndarray,
        masks: np.ndarray,
        techniques: Techniques,
        place_of: Callable[[np.ndarray], Callable[[int], Place]],
    ) -> None:
        for mask in np.unique(masks):
            rows = np.flatnonzero(masks == mask)
            best = self.classes.setdefault(techniques.names(int(mask)), ClassBest())
            best.count += len(rows)
            fitting = rows[fits[rows]]
            if len(fitting) and (least := float(seconds[fitting].min())) < best.seconds:
                best.seconds, best.place = least, place_of(fitting)(int(np.argmin(seconds[fitting])))
            if (least := float(memory[rows].min())) < best.memory:
                best.memory, best.smallest = least, place_of(rows)(int(np.argmin(memory[rows])))

    def __len__(self) -> int:
        return len(self.seconds)

    def place(self, candidate: int) -> Place:
        """Where a candidate stands."""
        number = int(self._mesh_numbers[candidate])
        sets = self._sets[candidate, : len(self.meshes[number].axes)]
        return int(self._variants[candidate]), number, tuple(map(int, sets))

    def layout(self, place: Place) -> tuple[Mesh, Layout]:
        """The mesh and the layout at a place."""
        variant, number, sets = place
        choices, mesh = self.composers[variant].choices, self.meshes[number]
        return mesh, choices.layout([choices.sets[i] for i in sets], list(mesh.axes))

    def trial(self, place: Place, variant: int) -> Trial:
        """The layout at a place as something to trace."""
        return Trial(*self.layout(place), variant, place)

    def class_of(self, place: Place) -> tuple[str, ...]:
        """The parallelisms of the layout at a place."""
        techniques = self._techniques[place[0]]
        return techniques.names(int(techniques.of(np.array([place[2]]))[0]))

    def ways(self, candidate: int) -> tuple[frozenset[tuple[int, int]], float]:
        """Parts each set cuts into, and the bound: equal where only axes' names differ."""
        variant, number, sets = self.place(candidate)
        ways: dict[int, int] = {-1: variant}
        for at, size in zip(sets, self.meshes[number].axes.values(), strict=True):
            ways[at] = ways.get(at, 1) * size
        return frozenset(ways.items()), float(f"{self.seconds[candidate]:.9e}")

    def front(self) -> list[int]:
        """The candidates that none beats in both time and memory, by their bounds."""
        order = np.lexsort((self.memory, self.seconds))
        before = np.minimum.accumulate(np.concatenate([[math.inf], self.memory[order][:-1]]))
        return [int(at) for at in order[self.memory[order] < before]]

    def losers(self, traced: Mapping[Place, Ranked], winner: Ranked) -> list[Losers]:
        """Why the others lost, by reason."""
        if not len(self):
            return []
        seconds, memory, fits = self.seconds.copy(), self.memory.copy(), np.ones(len(self), bool)
        left, losers = np.ones(len(self), bool), list[Losers]()
        for place, ranked in traced.items():
            if (number := self.number(place)) is not None:
                seconds[number], memory[number], fits[number] = ranked.seconds, ranked.memory_bytes, ranked.fits
                left[number] = ranked is not winner

        def add(which: np.ndarray, reason: str, figure: Callable[[int], str], rest: _Rest | None = None) -> None:
            which = which & left
            left[which] = False
            count = int(which.sum()) + (rest.count if rest is not None else 0)
            if not count:
                return
            best = int(np.flatnonzero(which)[np.argmin(seconds[which])]) if which.any() else None
            if best is None or (rest is not None and rest.seconds < seconds[best]):
                assert rest is not None and rest.place is not None
                (mesh, layout), told = self.layout(rest.place), figure(-1)
            else:
                (mesh, layout), told = self.layout(self.place(best)), figure(best)
            losers.append(Losers(reason, count, f"{mesh} under {layout_text(layout)}, {told}"))

        def needs(i: int) -> str:
            return f"{size_text(int(self.unfit.memory if i < 0 else memory[i]))} or more"

        def takes(i: int) -> str:
            return f"{time_text(float(self.slow.seconds if i < 0 else seconds[i]))} or more"

        add(~fits, "do not fit", needs, self.unfit)
        add(seconds <= 1.1 * winner.seconds, "are within 10 % of the best", takes)
        none = np.zeros(len(self), bool)
        least = float(self.compute[seconds <= winner.seconds].max(initial=self.compute.min()))
        work = lambda i: f"{time_text(float(self.compute[i]))} of work against {time_text(least)}"  # noqa: E731
        add(self.compute > least * 1.2, "do work twice that the best divides", work)
        add(~none, "wait longer for what is sent", takes)
        add(none, f"take more than {CUT:g} times the least that may fit", takes, self.slow)
        return losers

    def has_mesh(self, variant: int, mesh: Mesh) -> bool:
        """Whether the layouts of a variant on a mesh were taken up."""
        return (variant, mesh) in self._taken_up

    def find(self, variant: int, mesh: Mesh, sets: tuple[int, ...]) -> int | None:
        """The candidate with these sets of rules on a mesh; None where it is not kept."""
        number = self._taken_up.get((variant, mesh))
        return None if number is None else self.number((variant, number, sets))

    def number(self, place: Place) -> int | None:
        """The candidate at a place; None where it is not kept."""
        variant, mesh, sets = place
        of_mesh = np.flatnonzero((self._variants == variant) & (self._mesh_numbers == mesh))
        found = of_mesh[(self._sets[of_mesh, : len(sets)] == sets).all(axis=1)]
        return int(found[0]) if len(found) else None


class _Rates:
    """Seconds a call and a byte of a collective: a line below its true cost."""

    def __init__(self, hardware: Hardware, mesh: Mesh):
        self.hardware, self.mesh = hardware, mesh
        self._known: dict[object, tuple[float, float]] = {}

    def __call__(self, shape: MeshShape, collective: str, axes: tuple[int, ...], most: float) -> tuple[float, float]:
        key = collective, axes, most = collective, axes, max(int(most), 1)
        if key not in self._known:
            self._known[key] = self._rates(shape, *key)
        return self._known[key]

    def _rates(self, shape: MeshShape, collective: str, axes: tuple[int, ...], most: int) -> tuple[float, float]:
        names = tuple(list(self.mesh.axes)[axis] for axis in axes)
        ways = math.prod(shape[axis] for axis in axes)
        if ways == 1:
            return 0.0, 0.0
        row = Row(collective, names, (), "", 0, 1, "", "", "", "", exact=True, ways=ways)
        none, all_of_it = (links.seconds(replace(row, bytes=size), self.mesh, self.hardware) for size in (0, most))
        return none, (all_of_it - none) / most
