"""Searching layouts: every legal one, on every mesh shape, ranked by what its own traced program costs.

Each set of rules is traced alone on one axis; from these the cost of all layouts is put together (`compose.py`). Then
layouts are traced, the most promising first, until the bound of the next is above the best that fits. Nothing is left
out that could be the best:
- layouts that split two dims of a tensor over one axis, or a dim that does not divide, are not legal;
- neighbouring axes with the same rules are one larger axis, and axes over like links may change places;
- what is alive at the peak of the whole program, divided as the layout says, must fit into the memory;
- what is put together, less a stated slack, is below the true cost; a trace that is cheaper still widens the slack.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..checks import is_real
from ..errors import MeshError, WeftError, WeftWarning, public
from ..layout import Layout
from ..mesh import Mesh, as_mesh
from ..program import trace
from ..program.ledger import Row, size_text
from . import links
from .choices import AXES, Choices, Shape, named, shapes
from .compose import Composer, Facts, Grid
from .cost import Plan, time_text
from .facts import facts_of
from .hardware import Hardware
from .hardware import hardware as find_hardware
from .ranking import Losers, Ranked, Ranking
from .roofline import BESIDE
from .workers import Workers

KEPT = 20
_EXAMPLES = {"processors": 512, "memory": 80_000_000_000}
MOST_AXES = 3
SLACK = 0.97
"""What a bound is multiplied by: kernels work in whole tiles, which do not divide quite as dims do."""


@dataclass(frozen=True)
class Progress:
    """How far a search is."""

    stage: str
    done: int
    total: int
    best: Ranked | None = None


@public
def search(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    processors: int | None = None,
    hardware: Any = "h100",
    dims: Sequence[str] | None = None,
    memory: int | None = None,
    most_axes: int = MOST_AXES,
    keep: int = KEPT,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    **kwargs: Any,
) -> Ranking:
    """The best layouts of a program on a mesh, or on every mesh of so many processors, ranked.

    `dims` names what may be split (`params.d_model`: how parameters are stored): all dims unless given, or for a model
    of `weft.models` those worth it. `memory` is what a processor has, in bytes, where it is not all of the hardware's.
    Interrupted (Ctrl-C), it gives the best so far.
    """
    if (mesh is None) == (processors is None):
        raise MeshError(
            "search got neither a mesh nor a number of processors"
            if mesh is None
            else "search got both a mesh and a number of processors",
            fix="give one: `mesh='rows=16,cols=32'`, or `processors=512` for every shape of mesh",
        )
    for what, value in (("processors", processors), ("memory", memory)):
        if value is not None and not is_real(value):
            raise WeftError(f"search got {value!r} for `{what}`", fix=f"give a number, e.g. `{what}={_EXAMPLES[what]}`")
    machine = find_hardware(hardware)
    traced = functools.partial(_traced, fn, args, kwargs)
    if processors is not None and processors < 1:
        raise MeshError(f"search got {processors} processors", fix="give at least 1, e.g. `processors=8`")
    on = as_mesh(mesh) if mesh is not None else None
    sharing = (on.size if on is not None else processors or 1) if machine.is_shared else 1
    capacity = machine.memory // sharing if memory is None else memory
    found = _Search(traced, args, machine, capacity, dims, progress or (lambda _: None))
    return found.run(on, processors, most_axes, keep, workers)


def _traced(fn: Any, args: Any, kwargs: Any, mesh: Mesh, layout: Layout) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)  # of axes that split nothing
        return trace(fn, *args, mesh=mesh, layout=layout, **kwargs)


@dataclass(frozen=True)
class _Job:
    """A layout to trace."""

    mesh: Mesh
    layout: Layout
    is_alone: bool
    """One set on one axis, to be put together with others."""
    at: tuple[int, ...]
    """The set and the size of its axis, or the shape's number and the sets."""


@dataclass(frozen=True)
class _Refused:
    why: str


class _Search:
    def __init__(
        self,
        traced: Callable[[Mesh, Layout], Any],
        args: Any,
        hardware: Hardware,
        capacity: int,
        dims: Sequence[str] | None,
        progress: Callable[[Progress], None],
    ):
        self.traced, self.hardware, self.capacity, self.progress = traced, hardware, capacity, progress
        program = traced(Mesh({AXES[0]: 1}), Layout(""))
        self.choices = Choices(program, args, dims.replace(",", " ").split() if isinstance(dims, str) else dims)
        self._refused = ""
        self.alone = facts_of(Plan(program, hardware))

    def run(self, mesh: Mesh | None, processors: int | None, most_axes: int, keep: int, workers: int | None) -> Ranking:
        meshes = [mesh] if mesh is not None else [Mesh(named(s)) for s in shapes(processors or 1, most_axes)]
        with Workers(self._do, workers) as pool:
            alone, machine = self._sets_alone(pool, meshes), self.hardware
            composer = Composer(self.choices, self.alone, alone, BESIDE[machine.kind], is_shared=machine.is_shared)
            field = _Field(composer, meshes, self.hardware, all_axes=mesh is None)
            if not len(field.order):
                raise self._too_many(meshes[0].size)
            return self._ranked(pool, composer, field, keep)

    def _do(self, job: _Job) -> Any:
        """Traces and costs one layout; in a copy of this process."""
        try:
            plan = Plan(self.traced(job.mesh, job.layout), self.hardware, memory=self.capacity)
        except WeftError as error:
            return _Refused(error.fact)
        except Exception as error:  # the user's own; without any layout his function did not fail
            return _Refused(f"{type(error).__name__}: {error}".splitlines()[0])
        if job.is_alone:
            return facts_of(plan)
        facts = dict(seconds=plan.seconds, fits=plan.fits, mfu=plan.mfu, why=plan.why, tokens_per_s=plan.tokens_per_s)
        return facts | dict(memory_bytes=plan.memory.range[1], bytes=plan.program.ledger.bytes())

    def _sets_alone(self, pool: Workers, meshes: Sequence[Mesh]) -> dict[int, tuple[int, Facts]]:
        """What each set of rules does alone on one axis, of the largest size it may have."""
        sizes = sorted({size for mesh in meshes for size in mesh.axes.values() if size > 1})
        jobs = []
        for index, rules in enumerate(self.choices.sets):
            fitting = [n for n in sizes if all(self.choices.divisor(rule) % n == 0 for rule in rules)]
            if rules and fitting:
                layout = self.choices.layout([rules], AXES[:1])
                jobs.append(_Job(Mesh({AXES[0]: fitting[-1]}), layout, True, (index, fitting[-1])))
        found = {}
        for job, facts in pool.results(iter(jobs)):
            if isinstance(facts, _Refused):
                self._refused = f"{job.layout}: {facts.why}"
            else:
                found[job.at[0]] = (job.at[1], facts)
            self.progress(Progress("rules of one axis", len(found), len(jobs)))
        return found

    def _ranked(self, pool: Workers, composer: Composer, field: "_Field", keep: int) -> Ranking:
        looking = _Looking(field, self.capacity, keep)
        complete = True
        try:
            for job, result in pool.results(looking.jobs(self.choices)):
                looking.heard(job, result if isinstance(result, _Refused) else self._kept(job, result))
                self.progress(Progress("layouts", looking.traced, looking.traced + looking.left, looking.best))
        except KeyboardInterrupt:
            complete = False
            if looking.best is None:
                raise
        plans = _apart(sorted(looking.at.values(), key=lambda each: (not each.fits, each.seconds, len(each.mesh.axes))))
        if not plans or not plans[0].fits:
            raise self._nothing_fits(pool, composer, field, plans)
        pruned = len(field.order) - looking.traced
        return Ranking(
            plans[:keep], self.hardware, self.capacity, len(field.order), looking.traced, pruned, looking.refused,
            field.losers(looking.at, plans[0], self.capacity, self.choices), complete,
            self.choices.rules, self.choices.left_out,
        )  # fmt: skip

    def _kept(self, job: _Job, facts: dict[str, Any]) -> Ranked:
        make = lambda: Plan(self.traced(job.mesh, job.layout), self.hardware, memory=self.capacity)  # noqa: E731
        return Ranked(job.mesh, job.layout, make=make, **facts)

    def _nothing_fits(self, pool: Workers, composer: Composer, field: "_Field", plans: list[Ranked]) -> WeftError:
        """The error where no layout fits: what the smallest needs, and what would get there."""
        jobs = (field.job(each, self.choices) for each in np.argsort(field.memory)[:8])
        found = [self._kept(job, result) for job, result in pool.results(jobs) if not isinstance(result, _Refused)]
        smallest = min([*found, *plans], key=lambda each: each.memory_bytes)
        memory = smallest.plan().memory
        least = self._enough(composer, field)
        more = f"take {least:,} processors or more, or " if least else ""
        save = (
            "an optimizer with less state (adafactor)"
            if memory.arguments > self.capacity / 2
            else "a smaller batch, or remat"
        )
        largest = ", ".join(f"{each.name} {size_text(each.bytes)}" for each in memory.alive[:3])
        return WeftError(
            f"no layout fits: the smallest needs {size_text(smallest.memory_bytes)} on each processor, and "
            f"{size_text(self.capacity)} is there",
            state=f"layout: {smallest.layout}   mesh: {smallest.mesh}   largest at its peak: {largest}",
            fix=f"{more}{save}, or name more dims to split (`dims=`)",
        )

    def _enough(self, composer: Composer, field: "_Field") -> int | None:
        """The smallest number of processors, doubled from here, whose memory may be enough."""
        count = field.meshes[0].size
        for _ in range(8):
            count *= 2
            bounds = [
                grid[composer.legal(s)].min()
                for s in shapes(count, 2)
                if composer.legal(s).any()
                for grid in [composer.memory(s)]
            ]
            if bounds and min(bounds) <= self.capacity:
                return count
        return None

    def _too_many(self, count: int) -> WeftError:
        """The error where no layout uses all processors."""
        if self._refused:
            return MeshError(
                f"no layout of these dims can use {count:,} processors", state=f"refused: {self._refused}",
                fix="name other dims to split (`dims=`)",
            )  # fmt: skip
        dims = ", ".join(f"{rule} in {self.choices.divisor(rule):,}" for rule in self.choices.rules)
        most = self.choices.most_ways(count, MOST_AXES)
        return MeshError(
            f"no layout of these dims can use {count:,} processors; the most below is {most:,}",
            state=f"the dims divide at most: {dims}",
            fix=f"take `processors={most}`, or name more dims to split (`dims=`), or make a dim larger",
        )


def _apart(plans: Sequence[Ranked]) -> list[Ranked]:
    """The plans, without those that are an earlier one with an axis written as two or axes in another order."""
    found: dict[Any, Ranked] = {}
    for each in plans:
        rules = {**each.layout.rules, **{f"params.{dim}": axes for dim, axes in each.layout.params.items()}}
        ways = frozenset((rule, math.prod(each.mesh.axes[a] for a in axes)) for rule, axes in rules.items())
        found.setdefault((ways, each.seconds, each.memory_bytes), each)
    return list(found.values())


def _used(composer: Composer, shape: Shape) -> np.ndarray:
    """Which layouts of a mesh are legal and use every axis, neighbours not alike."""
    legal = composer.legal(shape)
    index = np.indices(legal.shape)
    for axis in range(len(shape)):
        legal &= index[axis] > 0  # the first set is the empty one
        if axis:
            legal &= index[axis] != index[axis - 1]
    return legal


class _Field:
    """All legal layouts with their bounds, the most promising first."""

    def __init__(self, composer: Composer, meshes: Sequence[Mesh], hardware: Hardware, *, all_axes: bool):
        self.meshes, self.hardware = list(meshes), hardware
        self.grids: list[Grid] = []
        parts: list[tuple[np.ndarray, ...]] = []
        for number, mesh in enumerate(self.meshes):
            shape = tuple(mesh.axes.values())
            grid = composer.grid(shape, functools.partial(_rates, hardware, mesh))
            self.grids.append(grid)
            at = np.argwhere(_used(composer, shape) if all_axes and mesh.size > 1 else composer.legal(shape))
            chosen = tuple(at.T)
            padded = np.full((len(at), AXES_MOST), -1)
            padded[:, : at.shape[1]] = at
            parts.append((grid.seconds[chosen], grid.memory[chosen], np.full(len(at), number), padded))
        self.seconds, self.memory, self.numbers, self.at = (np.concatenate(each) for each in zip(*parts, strict=True))
        self.order = np.argsort(self.seconds, kind="stable")

    def job(self, index: int, choices: Choices) -> _Job:
        mesh = self.meshes[self.numbers[index]]
        sets = [choices.sets[i] for i in self.at[index][: len(mesh.axes)]]
        return _Job(mesh, choices.layout(sets, list(mesh.axes)), False, (int(index),))

    def ways(self, index: int) -> Any:
        """Into how many slices each set cuts, and the bound: the same for layouts that differ in names alone."""
        found: dict[int, int] = {}
        mesh = self.meshes[self.numbers[index]]
        for at, size in zip(self.at[index], mesh.axes.values(), strict=False):
            found[int(at)] = found.get(int(at), 1) * size
        return frozenset(found.items()), float(f"{self.seconds[index]:.9e}")

    def losers(self, traced: dict[int, Ranked], winner: Ranked, capacity: int, choices: Choices) -> list[Losers]:
        """Why the others lost, class by class."""
        grids, at = self.grids, [tuple(row[row >= 0]) for row in self.at]
        compute = np.array([grids[n].compute[i] for n, i in zip(self.numbers, at, strict=True)])
        seconds, fits = self.seconds.copy(), self.memory <= capacity
        left, found = np.ones(len(at), bool), []
        for index, ranked in traced.items():
            seconds[index], fits[index] = ranked.seconds, ranked.fits
            left[index] = ranked is not winner

        def add(which: np.ndarray, reason: str, figure: Callable[[int], str]) -> None:
            which = which & left
            left[which] = False
            if which.any():
                index = int(np.flatnonzero(which)[np.argmin(seconds[which])])
                job = self.job(index, choices)
                example = f"{job.mesh} under {str(job.layout) or 'the empty layout'}, {figure(index)}"
                found.append(Losers(reason, int(which.sum()), example))

        add(~fits, "do not fit", lambda i: f"{size_text(self._needed(i, traced))} or more")
        add(
            seconds <= 1.1 * winner.seconds, "are within 10 % of the best", lambda i: f"{time_text(seconds[i])} or more"
        )
        least = compute[seconds <= winner.seconds].max(initial=compute.min())
        add(
            compute > least * 1.2, "do work twice that the best divides",
            lambda i: f"{time_text(compute[i])} of work against {time_text(least)}",
        )  # fmt: skip
        for axis in range(max(len(mesh.axes) for mesh in self.meshes)):
            busy = np.array([_busiest(grids[n], i) == axis for n, i in zip(self.numbers, at, strict=True)])
            names = {list(mesh.axes)[axis] for mesh in self.meshes if len(mesh.axes) > axis}
            sending = lambda i, axis=axis: f"{time_text(grids[self.numbers[i]].by_axis[axis][at[i]])} of sending"  # noqa: E731
            add(busy, f"keep axis {'/'.join(sorted(names))} busy sending", sending)
        return found

    def _needed(self, index: int, traced: dict[int, Ranked]) -> int:
        return traced[index].memory_bytes if index in traced else int(self.memory[index])


AXES_MOST = len(AXES)


def _busiest(grid: Grid, at: tuple[int, ...]) -> int:
    return int(np.argmax([each[at] for each in grid.by_axis]))


def _rates(
    hardware: Hardware, mesh: Mesh, shape: Shape, collective: str, axes: tuple[int, ...], most: float
) -> tuple[float, float]:
    """Seconds a call and seconds a byte of a collective: a line below its true cost, which bends down."""
    names = tuple(list(mesh.axes)[axis] for axis in axes)
    ways = math.prod(shape[axis] for axis in axes)
    if ways == 1:
        return 0.0, 0.0
    row = Row(collective, names, (), "", 0, 1, "", "", "", "", exact=True, ways=ways)
    most = max(int(most), 1)
    none, all_of_it = (links.seconds(replace(row, bytes=size), mesh, hardware) for size in (0, most))
    return none, (all_of_it - none) / most


class _Looking:
    """The course of a search: what was traced, what is worth tracing."""

    def __init__(self, field: _Field, capacity: int, keep: int):
        self.field, self.capacity, self.keep = field, capacity, keep
        self.at: dict[int, Ranked] = {}
        """What was traced, by its number in the field."""
        self.best: Ranked | None = None
        self.traced = 0
        self.refused: list[str] = []
        self._rest = field.order
        self._loose = SLACK

    def jobs(self, choices: Choices) -> Iterator[_Job]:
        """Layouts to trace, while any can be the best, and at least as many as are kept."""
        fits = self.field.order[self.field.memory[self.field.order] <= self.capacity]
        seen: set[Any] = set()
        apart: set[Any] = set()
        for done, index in enumerate(fits):
            bound = self.field.seconds[index] * self._loose
            if self.best is not None and bound >= self.best.seconds and len(apart) >= self.keep:
                return
            if (alike := self.field.ways(index)) not in seen:
                seen.add(alike)
                apart.add(alike[0])
                self._rest = fits[done + 1 :]
                yield self.field.job(int(index), choices)

    @property
    def left(self) -> int:
        """How many may still be traced, as far as is known."""
        bounds = self.field.seconds[self._rest] * self._loose
        worth = 0 if self.best is None else int((bounds < self.best.seconds).sum())
        return max(worth, min(self.keep - self.traced, len(self._rest)), 0)

    def heard(self, job: _Job, ranked: Ranked | _Refused) -> None:
        self.traced += 1
        if isinstance(ranked, _Refused):
            self.refused.append(f"{job.mesh} under {job.layout}: {ranked.why}")
            return
        bound = self.field.seconds[job.at[0]]
        self._loose = min(self._loose, ranked.seconds / bound)
        self.at[job.at[0]] = ranked
        if ranked.fits and (self.best is None or ranked.seconds < self.best.seconds):
            self.best = ranked
