"""Searching layouts: all legal ones on all mesh shapes, ranked by their cost.

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
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import is_real
from ..errors import MeshError, WeftError, WeftWarning, public
from ..layout import Layout
from ..mesh import Mesh, MeshLike, as_mesh
from ..program import Program, trace
from ..text import size_text
from .candidates import Candidates, Trial
from .capacity import capacity_of
from .choices import AXES, Choices, named_axes, shapes
from .compose import Composer, Facts
from .cost import Plan
from .facts import facts_of
from .hardware import Hardware
from .hardware import hardware as find_hardware
from .ranking import Ranked, Ranking
from .roofline import BESIDE
from .workers import Workers

KEPT = 20
_EXAMPLES = {"processors": 512, "memory": 80_000_000_000}
MOST_AXES = 3
SLACK = 0.97
"""What a bound is multiplied by: kernels work in whole tiles, which do not divide quite as dims do."""


@dataclass(frozen=True)
class SearchProgress:
    """How far a search is."""

    stage: str
    done: int
    total: int
    best: Ranked | None = None


@public
def search(
    fn: Callable[..., Any],
    *args: Any,
    mesh: MeshLike | None = None,
    processors: int | None = None,
    hardware: Any = "h100",
    dims: Sequence[str] | None = None,
    memory: int | None = None,
    most_axes: int = MOST_AXES,
    keep: int = KEPT,
    workers: int | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
    **kwargs: Any,
) -> Ranking:
    """The best layouts on a mesh, or on every mesh of so many processors, ranked.

    `dims` names what may be split (`params.d_model`: how parameters are stored): all dims unless given, or for a model
    of `weft.models` those worth it. `memory` is what a program may use of a processor's, in bytes; unless given JAX's
    share of the hardware's.
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
    trace_on = functools.partial(_trace_on, fn, args, kwargs)
    if processors is not None and processors < 1:
        raise MeshError(f"search got {processors} processors", fix="give at least 1, e.g. `processors=8`")
    on = as_mesh(mesh) if mesh is not None else None
    count = on.size if on is not None else processors or 1
    capacity = capacity_of(machine, processors=count, memory=memory).bytes
    layouts = _LayoutSearch(trace_on, args, machine, capacity, dims, progress or (lambda _: None))
    return layouts.run(on, processors, most_axes, keep, workers)


def _trace_on(fn: Any, args: Any, kwargs: Any, mesh: Mesh, layout: Layout) -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)  # of axes that split nothing
        return trace(fn, *args, mesh=mesh, layout=layout, **kwargs)


@dataclass(frozen=True)
class _Refusal:
    """Why a layout could not be traced."""

    reason: str


class _LayoutSearch:
    """The search of one program's layouts on some hardware."""

    def __init__(
        self,
        trace_on: Callable[[Mesh, Layout], Program],
        args: Any,
        hardware: Hardware,
        capacity: int,
        dims: Sequence[str] | None,
        report: Callable[[SearchProgress], None],
    ):
        self.trace_on, self.hardware, self.capacity, self.report = trace_on, hardware, capacity, report
        program = trace_on(Mesh({AXES[0]: 1}), Layout(""))
        rules = dims.replace(",", " ").split() if isinstance(dims, str) else dims
        self.choices = Choices(program, args, rules, self._trace_named(program, rules or ()))
        self.unsplit = facts_of(Plan(program, hardware))
        self._refusal = ""

    def _trace_named(self, program: Program, rules: Sequence[str]) -> Program | None:
        """The program where rules name what it has not without them: `queries`, say."""
        there = {dim.name for placed in program.tensors for dim in placed.dims}
        missing = [rule for rule in rules if "." not in rule and rule not in there]
        try:
            return self.trace_on(Mesh({AXES[0]: 1}), Layout(dict.fromkeys(missing, AXES[0]))) if missing else None
        except WeftError:
            return None  # there is no such dim, which is said of all that are named at once

    def run(self, mesh: Mesh | None, processors: int | None, most_axes: int, keep: int, workers: int | None) -> Ranking:
        """The ranking of all layouts on one mesh, or on every mesh of so many processors."""
        meshes = [mesh] if mesh is not None else [Mesh(named_axes(s)) for s in shapes(processors or 1, most_axes)]
        machine = self.hardware
        with Workers(self._cost, workers) as pool:
            alone = self._trace_sets(pool, meshes)
            beside = BESIDE[machine.kind]
            composer = Composer(self.choices, self.unsplit, alone, beside, is_shared=machine.is_shared)
            candidates = Candidates(composer, meshes, machine, all_axes=mesh is None)
            if not len(candidates):
                raise self._too_many(meshes[0].size)
            return self._rank(pool, composer, candidates, keep)

    def _cost(self, trial: Trial) -> Facts | dict[str, Any] | _Refusal:
        """Traces and costs one layout; in a copy of this process."""
        try:
            plan = self._plan(trial)
        except WeftError as error:
            return _Refusal(error.fact)
        except Exception as error:  # the user's own; under the empty layout the function did not fail
            return _Refusal(f"{type(error).__name__}: {error}".splitlines()[0])
        if trial.is_alone:
            return facts_of(plan)
        figures = dict(seconds=plan.seconds, fits=plan.fits, mfu=plan.mfu, why=plan.why, tokens_per_s=plan.tokens_per_s)
        return figures | dict(memory_bytes=plan.memory.range[1], bytes=plan.program.ledger.bytes())

    def _plan(self, trial: Trial) -> Plan:
        return Plan(self.trace_on(trial.mesh, trial.layout), self.hardware, memory=self.capacity)

    def _trace_sets(self, pool: Workers, meshes: Sequence[Mesh]) -> dict[int, tuple[int, Facts]]:
        """What each set of rules does alone on one axis, of the largest size it may have."""
        sizes = sorted({size for mesh in meshes for size in mesh.axes.values() if size > 1})
        trials = []
        for index, rules in enumerate(self.choices.sets):
            fitting = [n for n in sizes if all(self.choices.divisor(rule) % n == 0 for rule in rules)]
            if rules and fitting:
                layout = self.choices.layout([rules], AXES[:1])
                trials.append(Trial(Mesh({AXES[0]: fitting[-1]}), layout, index, is_alone=True))
        alone = {}
        for trial, facts in pool.results(iter(trials)):
            if isinstance(facts, _Refusal):
                self._refusal = f"{trial.layout}: {facts.reason}"
            else:
                alone[trial.number] = (trial.mesh.size, facts)
            self.report(SearchProgress("rules of one axis", len(alone), len(trials)))
        return alone

    def _rank(self, pool: Workers, composer: Composer, candidates: Candidates, keep: int) -> Ranking:
        tracing = _BestFirst(candidates, self.capacity, keep)
        is_complete = True
        try:
            for trial, result in pool.results(tracing.trials()):
                tracing.add(trial, result if isinstance(result, _Refusal) else self._rank_trial(trial, result))
                self.report(SearchProgress("layouts", tracing.count, tracing.count + tracing.left, tracing.best))
        except KeyboardInterrupt:
            is_complete = False
            if tracing.best is None:
                raise
        plans = _drop_repeated(sorted(tracing.ranked.values(), key=lambda r: (not r.fits, r.seconds, len(r.mesh.axes))))
        if not plans or not plans[0].fits:
            raise self._nothing_fits(pool, composer, candidates, plans)
        return Ranking(
            plans[:keep], self.hardware, self.capacity,
            searched=len(candidates), traced=tracing.count, pruned=len(candidates) - tracing.count,
            refused=tracing.refused, losers=candidates.losers(tracing.ranked, plans[0], self.capacity),
            is_complete=is_complete, dims=self.choices.rules, left_out=self.choices.left_out,
        )  # fmt: skip

    def _rank_trial(self, trial: Trial, figures: dict[str, Any]) -> Ranked:
        return Ranked(trial.mesh, trial.layout, make=functools.partial(self._plan, trial), **figures)

    def _nothing_fits(
        self, pool: Workers, composer: Composer, candidates: Candidates, plans: list[Ranked]
    ) -> WeftError:
        """The error where no layout fits: what the smallest needs, and what would fit."""
        trials = map(candidates.trial, np.argsort(candidates.memory)[:8])
        small = [
            self._rank_trial(trial, found) for trial, found in pool.results(trials) if not isinstance(found, _Refusal)
        ]
        smallest = min([*small, *plans], key=lambda ranked: ranked.memory_bytes)
        memory = smallest.plan().memory
        enough = self._enough_processors(composer, candidates.meshes[0].size)
        more = f"take {enough:,} processors or more, or " if enough else ""
        save = (
            "an optimizer with less state (adafactor)"
            if memory.arguments > self.capacity / 2
            else "a smaller batch, or remat"
        )
        largest = ", ".join(f"{alive.name} {size_text(alive.bytes)}" for alive in memory.alive[:3])
        return WeftError(
            f"no layout fits: the smallest needs {size_text(smallest.memory_bytes)} on each processor, and "
            f"{size_text(self.capacity)} is there",
            state=f"layout: {smallest.layout}   mesh: {smallest.mesh}   largest at its peak: {largest}",
            fix=f"{more}{save}, or name more dims to split (`dims=`)",
        )

    def _enough_processors(self, composer: Composer, count: int) -> int | None:
        """The smallest number of processors, doubled from `count`, whose memory may do."""
        for _ in range(8):
            count *= 2
            bounds = [composer.memory(s)[legal].min() for s in shapes(count, 2) if (legal := composer.legal(s)).any()]
            if bounds and min(bounds) <= self.capacity:
                return count
        return None

    def _too_many(self, count: int) -> WeftError:
        """The error where no layout uses all processors."""
        if self._refusal:
            return MeshError(
                f"no layout of these dims can use {count:,} processors", state=f"refused: {self._refusal}",
                fix="name other dims to split (`dims=`)",
            )  # fmt: skip
        dims = ", ".join(f"{rule} in {self.choices.divisor(rule):,}" for rule in self.choices.rules)
        most = self.choices.most_ways(count, MOST_AXES)
        return MeshError(
            f"no layout of these dims can use {count:,} processors; the most below is {most:,}",
            state=f"the dims divide at most: {dims}",
            fix=f"take `processors={most}`, or name more dims to split (`dims=`), or make a dim larger",
        )


def _drop_repeated(plans: Sequence[Ranked]) -> list[Ranked]:
    """The plans without those equal to an earlier one under other names or orders."""
    distinct: dict[Any, Ranked] = {}
    for plan in plans:
        layout = plan.layout
        stores = (("", layout.rules), ("params.", layout.params), ("optimizer.", layout.optimizer))
        rules = {f"{store}{dim}": axes for store, kept in stores for dim, axes in kept.items()}
        ways = frozenset((rule, math.prod(plan.mesh.axes[a] for a in axes)) for rule, axes in rules.items())
        distinct.setdefault((ways, plan.seconds, plan.memory_bytes), plan)
    return list(distinct.values())


class _BestFirst:
    """Best-first search with bounds: what is worth tracing, and what was traced."""

    def __init__(self, candidates: Candidates, capacity: int, keep: int):
        self.candidates, self.capacity, self.keep = candidates, capacity, keep
        self.ranked: dict[int, Ranked] = {}
        """What was traced, by its number among the candidates."""
        self.best: Ranked | None = None
        self.count = 0
        self.refused: list[str] = []
        self._rest = candidates.order
        self._slack = SLACK

    def trials(self) -> Iterator[Trial]:
        """Layouts to trace, while any can be the best, and at least as many as are kept."""
        order = self.candidates.order
        fitting = order[self.candidates.memory[order] <= self.capacity]
        seen: set[Any] = set()
        distinct: set[Any] = set()
        for done, candidate in enumerate(fitting):
            bound = self.candidates.seconds[candidate] * self._slack
            if self.best is not None and bound >= self.best.seconds and len(distinct) >= self.keep:
                return
            if (ways := self.candidates.ways(candidate)) not in seen:
                seen.add(ways)
                distinct.add(ways[0])
                self._rest = fitting[done + 1 :]
                yield self.candidates.trial(candidate)

    @property
    def left(self) -> int:
        """How many may still be traced, as far as is known."""
        bounds = self.candidates.seconds[self._rest] * self._slack
        worth = 0 if self.best is None else int((bounds < self.best.seconds).sum())
        return max(worth, min(self.keep - self.count, len(self._rest)), 0)

    def add(self, trial: Trial, result: Ranked | _Refusal) -> None:
        """Takes up what came of a trial; one cheaper than its bound widens the slack."""
        self.count += 1
        if isinstance(result, _Refusal):
            self.refused.append(f"{trial.mesh} under {trial.layout}: {result.reason}")
            return
        self._slack = min(self._slack, result.seconds / self.candidates.seconds[trial.number])
        self.ranked[trial.number] = result
        if result.fits and (self.best is None or result.seconds < self.best.seconds):
            self.best = result
