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
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import is_real
from ..errors import MeshError, WeftError, WeftWarning, public
from ..layout import Layout
from ..mesh import Mesh, MeshLike, as_mesh
from ..program import Program, trace
from .best_first import BestFirst, Refusal
from .candidates import Candidates, Place, Trial
from .capacity import capacity_of
from .choices import AXES, Choices, named_axes, searched_dims, shapes
from .compose import Composer, Facts
from .cost import Plan
from .facts import facts_of
from .first import first_layouts
from .hardware import Hardware
from .hardware import hardware as find_hardware
from .legal import Legal
from .misfits import nothing_fits, too_many
from .outcome import classes_of, places_to_show, told_variants
from .ranking import Ranked, Ranking, drop_repeated, front_of
from .roofline import BESIDE
from .variants import Choice, Variant, build_with, combine
from .workers import Workers

KEPT = 20
_EXAMPLES = {"processors": 512, "memory": 80_000_000_000, "seconds": 60}
MOST_AXES = 3


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
    choices: Mapping[str, Choice | Sequence[Any]] | None = None,
    memory: int | None = None,
    most_axes: int = MOST_AXES,
    keep: int = KEPT,
    seconds: float | None = None,
    workers: int | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
    **kwargs: Any,
) -> Ranking:
    """The best layouts on a mesh, or on every mesh of so many processors, ranked.

    `dims` names what may be split (`params.d_model`: how parameters are stored): all dims unless given, or for a model
    of `weft.models` those worth it. With `choices`, lists of values by name, `fn(*args, **values)` builds the program,
    a function and a tuple of its arguments, and the best values are searched too. `memory` is what a program may use of
    a processor's, in bytes; unless given JAX's share of the hardware's. Interrupted (Ctrl-C) or after so many `seconds`
    it gives the best so far, and `not_seen` says how many layouts could be better.
    """
    if (mesh is None) == (processors is None):
        raise MeshError(
            "search got neither a mesh nor a number of processors"
            if mesh is None
            else "search got both a mesh and a number of processors",
            fix="give one: `mesh='rows=16,cols=32'`, or `processors=512` for every shape of mesh",
        )
    for what, value in (("processors", processors), ("memory", memory), ("seconds", seconds)):
        if value is not None and not is_real(value):
            raise WeftError(f"search got {value!r} for `{what}`", fix=f"give a number, e.g. `{what}={_EXAMPLES[what]}`")
    machine = find_hardware(hardware)
    if processors is not None and processors < 1:
        raise MeshError(f"search got {processors} processors", fix="give at least 1, e.g. `processors=8`")
    on = as_mesh(mesh) if mesh is not None else None
    count = on.size if on is not None else processors or 1
    capacity = capacity_of(machine, processors=count, memory=memory).bytes
    build = functools.partial(build_with, fn, args) if choices else lambda values: (fn, args)
    layouts = _LayoutSearch(
        build, kwargs, combine(choices or {}), machine, capacity, dims, progress or (lambda _: None)
    )
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    return layouts.run(on, processors, most_axes, keep, workers, deadline)


class _TimeUp(Exception):
    """The time is up, and there is something to show."""


class _SearchedProgram:
    """A variant of the program: its choices of rules, and what it does unsplit."""

    def __init__(self, variant: Variant, needs: str | None, choices: Choices, whole: Facts):
        self.variant, self.needs, self.choices, self.whole = variant, needs, choices, whole

    @property
    def ideal(self) -> float:
        """Seconds of its work on one processor."""
        return sum(map(max, self.whole.work.values()))


class _LayoutSearch:
    """The search of one program's layouts, and of its variants, on some hardware."""

    def __init__(
        self,
        build: Callable[[Mapping[str, Any]], tuple[Callable[..., Any], tuple[Any, ...]]],
        kwargs: Mapping[str, Any],
        variants: Sequence[Variant],
        hardware: Hardware,
        capacity: int,
        dims: Sequence[str] | None,
        report: Callable[[SearchProgress], None],
    ):
        self.build, self.kwargs, self.variants = functools.cache(lambda i: build(variants[i].values)), kwargs, variants
        self.hardware, self.capacity, self.report = hardware, capacity, report
        self.dims = dims.replace(",", " ").split() if isinstance(dims, str) else dims
        self.programs: list[_SearchedProgram] = []
        """Those that were taken up, by the number that places of candidates name."""
        self.opened: dict[int, list[int]] = {}
        """For each variant taken up its programs."""
        self.refusal = ""
        self._alone: dict[tuple[int, tuple[str, ...], int], tuple[int, Facts] | None] = {}
        """What a set of rules of a variant does alone on an axis of a size; None where an op refuses it."""
        self._firsts: list[tuple[Trial, Ranked]] = []
        """Layouts traced before all others."""
        self._not_taken_up = 0
        """Layouts of programs whose rules were being traced when the search was stopped."""
        self._programs_of = functools.cache(self._make_programs)
        self._slower_than = functools.cache(self._find_faster)

    def _trace_on(self, variant: int, mesh: Mesh, layout: Layout) -> Program:
        fn, args = self.build(variant)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeftWarning)  # of axes that split nothing
            return trace(fn, *args, mesh=mesh, layout=layout, **self.kwargs)

    # Programs of a variant.

    def _make_programs(self, number: int) -> "list[_SearchedProgram] | WeftError":
        """The programs of a variant, or why there are none."""
        try:
            return self._programs(self.variants[number])
        except WeftError as error:
            return error

    def _programs(self, variant: Variant) -> list[_SearchedProgram]:
        """The variant, and with each rule that makes another program (`queries`)."""
        one, args = Mesh({AXES[0]: 1}), self.build(variant.number)[1]
        program = self._trace_on(variant.number, one, Layout(""))
        there = {dim.name for placed in program.tensors for dim in placed.dims}
        wanted = self.dims if self.dims is not None else searched_dims(args) or ()
        missing = [rule for rule in wanted if "." not in rule and rule not in there]
        named = {rule: traced for rule in missing if (traced := self._trace_named(variant.number, rule)) is not None}
        rules = None if self.dims is None else [rule for rule in self.dims if rule not in named]
        needs = variant.needs[0] if variant.needs else None
        found = []
        if rules is None or rules or not named:
            choices = Choices(program, args, rules, also=[*named, *variant.needs])
            found.append(_SearchedProgram(variant, needs, choices, self._facts(program)))
        for rule, traced in named.items():
            if needs is None:
                rules = None if self.dims is None else [r for r in self.dims if r == rule or r not in named]
                choices = Choices(traced, args, rules, also=[rule])
                found.append(_SearchedProgram(variant, rule, choices, self._facts(traced)))
        return found

    def _trace_named(self, variant: int, rule: str) -> Program | None:
        """The program where a rule names what it has not without it."""
        try:
            return self._trace_on(variant, Mesh({AXES[0]: 1}), Layout({rule: AXES[0]}))
        except WeftError:
            return None  # there is no such dim

    def _facts(self, program: Program) -> Facts:
        return facts_of(Plan(program, self.hardware))

    # The search.

    def run(
        self, mesh: Mesh | None, processors: int | None, most_axes: int, keep: int, workers: int | None, deadline: float
    ) -> Ranking:
        """The ranking of all layouts on one mesh, or on every mesh of so many processors."""
        meshes = [mesh] if mesh is not None else [Mesh(named_axes(s)) for s in shapes(processors or 1, most_axes)]
        first = self._programs_of(0)
        if isinstance(first, WeftError):
            raise first
        with Workers(self._cost, workers) as pool:
            self._pool, self._meshes, self._all_axes = pool, meshes, mesh is None
            self._waiting = self.variants[1:]
            candidates = Candidates(self.hardware, self.capacity)
            trial_at, is_late = functools.partial(self.trial_at, candidates), lambda: time.monotonic() > deadline
            tracing = BestFirst(candidates, self.capacity, keep, trial_at, is_late=is_late, open_next=self._open_next)
            try:
                self._open(self.variants[0], first, tracing)
            except (KeyboardInterrupt, _TimeUp) as stop:
                _stop(tracing, stop)
            if not candidates.searched and not self._waiting and not tracing.stopped:
                raise too_many(first[0].choices, meshes[0].size, MOST_AXES, self.refusal)
            return self._rank(candidates, tracing, keep)

    def _open(
        self, variant: Variant, programs: Sequence[_SearchedProgram], tracing: BestFirst, limit: float = math.inf
    ) -> None:
        """Traces the sets of rules of a variant, and takes up its layouts below a limit."""
        beside, candidates = BESIDE[self.hardware.kind], tracing.candidates
        before, numbers = candidates.searched, range(len(self.programs), len(self.programs) + len(programs))
        self.programs += programs
        worth = [self._sets_worth(program, candidates, limit) for program in programs]

        def report(done: int) -> None:
            self._report("meshes", done, len(self._meshes), tracing)

        try:
            for number, program, sets in zip(numbers, programs, worth, strict=True):
                alone = self._trace_sets(program, sets, tracing)
                composer = Composer(program.choices, program.whole, alone, beside, is_shared=self.hardware.is_shared)
                needs, everywhere = program.needs, self._all_axes
                candidates.add(number, composer, self._meshes, all_axes=everywhere, needs=needs, report=report)
        except (KeyboardInterrupt, _TimeUp):
            there = sum(map(self._count, programs, worth))
            self._not_taken_up += there - (candidates.searched - before)
            raise
        self.opened[variant.number] = list(numbers)

    def _count(self, program: _SearchedProgram, worth: set[int]) -> int:
        """How many layouts these sets of rules make."""
        legal = Legal(program.choices, worth)
        every, needs = self._all_axes and self._meshes[0].size > 1, program.needs
        found = (tuple(mesh.axes.values()) for mesh in self._meshes)
        return sum(len(legal.layouts(shape, all_axes=every, having=needs)) for shape in found)

    def _sets_worth(self, program: _SearchedProgram, candidates: Candidates, limit: float) -> set[int]:
        """Numbers of the sets of layouts that took less than the limit before; else all."""
        before = [
            number
            for each in self._slower_than(program.variant.number)
            for number in self.opened.get(each, ())
            if self.programs[number].needs == program.needs and number in candidates.least_by_set
        ]
        every = program.choices.sets
        if not before or not math.isfinite(limit):
            return set(range(len(every)))
        sets = self.programs[before[0]].choices.sets
        worth = {sets[index] for index in np.flatnonzero(candidates.least_by_set[before[0]] < limit)}
        return {index for index, rules in enumerate(every) if rules in worth}

    def _trace_sets(
        self, program: _SearchedProgram, worth: set[int], tracing: BestFirst
    ) -> dict[int, tuple[int, Facts]]:
        """What each set of rules does alone on one axis, of the largest size it may have."""
        choices, variant = program.choices, program.variant.number
        sizes = sorted({size for mesh in self._meshes for size in mesh.axes.values() if size > 1})
        trials = [] if self._firsts else self._first_trials(program)
        sets = {}
        for index, rules in enumerate(choices.sets):
            fitting = [n for n in sizes if all(choices.divisor(rule) % n == 0 for rule in rules)]
            if rules and fitting and index in worth:
                sets[index] = variant, rules, fitting[-1]
        for index, (_, rules, size) in sets.items():
            if sets[index] not in self._alone:
                trials.append(Trial(Mesh({AXES[0]: size}), choices.layout([rules], AXES[:1]), variant, alone=index))
        for done, (trial, result) in enumerate(self._pool.results(iter(trials)), 1):
            if trial.alone is not None:
                self._alone[sets[trial.alone]] = None if isinstance(result, Refusal) else (trial.mesh.size, result)
            elif not isinstance(result, Refusal):
                self._firsts.append((trial, self.rank_trial(trial, result)))
                tracing.offer(self._firsts[-1][1])
            if isinstance(result, Refusal):
                self.refusal = f"{trial.layout}: {result.reason}"
            self._report("rules of one axis", done, len(trials), tracing)
        return {index: facts for index, key in sets.items() if (facts := self._alone[key]) is not None}

    def _first_trials(self, program: _SearchedProgram) -> list[Trial]:
        """Layouts traced before all others, for an answer that is there soon."""
        choices = program.choices
        found = first_layouts(choices, program.whole, self._meshes, self.capacity, all_axes=self._all_axes)
        return [
            Trial(mesh, choices.layout([choices.sets[i] for i in sets], list(mesh.axes)), 0, (0, -1, sets))
            for mesh, sets in found
        ]

    def _report(self, stage: str, done: int, total: int, tracing: BestFirst) -> None:
        """Tells how far the search is, and ends it where its time is up."""
        self.report(SearchProgress(stage, done, total, tracing.best))
        if tracing.is_late and done < total:
            raise _TimeUp

    def _cost(self, trial: Trial) -> Facts | dict[str, Any] | Refusal:
        """Traces and costs one layout; in a copy of this process."""
        try:
            plan = self._plan(trial)
        except WeftError as error:
            return Refusal(error.fact)
        except Exception as error:  # the user's own; under the empty layout the function did not fail
            return Refusal(f"{type(error).__name__}: {error}".splitlines()[0])
        if trial.alone is not None:
            return facts_of(plan)
        figures = dict(seconds=plan.seconds, fits=plan.fits, mfu=plan.mfu, why=plan.why, tokens_per_s=plan.tokens_per_s)
        return figures | dict(memory_bytes=plan.memory.range[1], bytes=plan.program.ledger.bytes())

    def _plan(self, trial: Trial) -> Plan:
        return Plan(self._trace_on(trial.variant, trial.mesh, trial.layout), self.hardware, memory=self.capacity)

    def trial_at(self, candidates: Candidates, place: Place) -> Trial:
        return candidates.trial(place, self.programs[place[0]].variant.number)

    # Variants whose turn it is.

    def _bound(self, variant: Variant, tracing: BestFirst) -> float:
        """What the variant takes at least, on any layout that could win."""
        if not all(before in self.opened for before in variant.after):
            return math.inf  # not worth it before the one that is as fast
        bounds = []
        for before in self._slower_than(variant.number):
            if numbers := self.opened[before]:
                unfit = [tracing.candidates.unfit_seconds.get(number, math.inf) for number in numbers]
                unfit += [ranked.seconds for p, ranked in tracing.ranked.items() if p[0] in numbers and not ranked.fits]
                bounds.append(min(unfit))
        return max(bounds) if bounds else self._ideal(variant)

    def _find_faster(self, number: int) -> list[int]:
        """Variants said to be as fast as this one that are: whole, on one processor."""
        variant = self.variants[number]
        return [each for each in variant.after if self._ideal(self.variants[each]) <= self._ideal(variant)]

    def _ideal(self, variant: Variant) -> float:
        """Seconds of a variant's work over all processors; 0 where it is refused."""
        programs = self._programs_of(variant.number)
        work = min((program.ideal for program in programs), default=0.0) if not isinstance(programs, WeftError) else 0.0
        return work / (1 if self.hardware.is_shared else self._meshes[0].size)

    def _next_variant(self, tracing: BestFirst) -> Variant | None:
        """The variant to take up before the next layout; None where there is none.

        One that only saves memory has its turn in the order of bounds, any other when no layout is left that could win.
        """
        best = math.inf if tracing.best is None else tracing.best.seconds
        next_bound = math.inf if tracing.next_bound is None else tracing.next_bound
        bounds = {}
        for each in self._waiting:
            if tracing.is_late:
                return each  # nobody knows its bound: its turn is not seen
            if each.after or next_bound >= best or next_bound == math.inf:
                bound = self._bound(each, tracing) * tracing.slack
                if bound < best and (bound <= next_bound or next_bound >= best or next_bound == math.inf):
                    bounds[each.number] = bound
        return self.variants[min(bounds, key=lambda number: bounds[number])] if bounds else None

    def _open_next(self, tracing: BestFirst) -> bool:
        """Takes up a variant whose turn it is, unless the time is up."""
        if not self._waiting or (variant := self._next_variant(tracing)) is None:
            return False
        if tracing.is_late:
            tracing.stopped = "late"
            return False
        self._waiting = [each for each in self._waiting if each is not variant]
        programs = self._programs_of(variant.number)
        if isinstance(programs, WeftError):
            self.opened[variant.number] = []
            tracing.refused.append(f"{variant.text}: {programs.fact}")
            return True
        best = math.inf if tracing.best is None else tracing.best.seconds
        try:
            self._open(variant, programs, tracing, best / tracing.slack)
        except _TimeUp as stop:
            _stop(tracing, stop)
        return True

    # What came out.

    def _rank(self, candidates: Candidates, tracing: BestFirst, keep: int) -> Ranking:
        loose = []  # traced first, and not among the candidates
        for trial, ranked in self._firsts:
            if (candidate := candidates.find(0, trial.mesh, trial.place[2])) is None:
                loose.append(ranked)
            else:
                tracing.take_up(candidate, ranked)
        trial_at = functools.partial(self.trial_at, candidates)
        try:
            self._trace_all(tracing, tracing.trials())
            if not tracing.stopped and tracing.best is not None:
                extra = [trial_at(place) for place in places_to_show(candidates) if place not in tracing.ranked]
                self._trace_all(tracing, iter(extra))
        except KeyboardInterrupt as stop:
            _stop(tracing, stop)
        order = sorted([*tracing.ranked.values(), *loose], key=lambda r: (not r.fits, r.seconds, len(r.mesh.axes)))
        plans = drop_repeated(order)
        if not plans or not plans[0].fits:
            small = [trial_at(place) for _, place in candidates.smallest if place not in tracing.ranked]
            self._trace_all(tracing, iter(small))
            if not tracing.ranked:
                raise too_many(self.programs[0].choices, self._meshes[0].size, MOST_AXES, tracing.refused[0])
            raise nothing_fits(list(tracing.ranked.values()), candidates.composers[0], self.capacity)
        unseen = self._not_taken_up - sum(not candidates.has_mesh(0, ranked.mesh) for ranked in loose)
        not_seen, traced = tracing.not_seen + unseen, tracing.count + len(loose)
        searched = candidates.searched + self._not_taken_up
        first = self.programs[0].choices
        dims = tuple(dict.fromkeys(rule for program in self.programs for rule in program.choices.rules))
        return Ranking(
            plans[:keep], self.hardware, self.capacity,
            searched=searched, traced=traced, pruned=searched - traced - not_seen, not_seen=not_seen,
            stopped=tracing.stopped, refused=tracing.refused, losers=candidates.losers(tracing.ranked, plans[0]),
            front=front_of(order), classes=classes_of(candidates, tracing, plans[0]),
            variants=told_variants(self.variants, self.opened, tracing, plans), dims=dims,
            left_out=tuple(name for name in first.left_out if name not in dims),
        )  # fmt: skip

    def _trace_all(self, tracing: BestFirst, trials: Any) -> None:
        for trial, result in self._pool.results(trials):
            tracing.add(trial, result if isinstance(result, Refusal) else self.rank_trial(trial, result))
            self.report(SearchProgress("layouts", tracing.count, tracing.count + tracing.left, tracing.best))

    def rank_trial(self, trial: Trial, figures: dict[str, Any]) -> Ranked:
        """What a trace found, with the way to trace it again."""
        values = self.variants[trial.variant].values
        return Ranked(trial.mesh, trial.layout, make=functools.partial(self._plan, trial), choices=values, **figures)


def _stop(tracing: BestFirst, why: BaseException) -> None:
    """Ends a search with the best so far; where there is none the interrupt goes on."""
    if tracing.best is None:
        raise why
    tracing.stopped = "late" if isinstance(why, _TimeUp) else "interrupted"
