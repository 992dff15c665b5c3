"""The course of a program's memory: how much is alive at each piece of work, by the rules of a target's compiler.

Reads what `liveness` read. A loop stands for what its largest turn needs, over what is alive around it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..ops.collectives import PRIMITIVES
from .liveness import ELEMENTWISE, REDUCTIONS, Body, Value, Work


@dataclass(frozen=True)
class Rules:
    """What a compiler stores."""

    fuses: bool
    """Whether results that only kernels of the same kind use are folded into those."""
    sums_in_place: bool
    """Whether an all-reduce overwrites its operand."""


RULES = {
    "gpu": Rules(fuses=True, sums_in_place=False),
    "tpu": Rules(fuses=True, sums_in_place=True),
    "cpu": Rules(fuses=False, sums_in_place=True),
}

_IN_PLACE = ELEMENTWISE | REDUCTIONS | frozenset(("dynamic_update_slice", "scatter", "scatter-add", "scatter_add"))
_FOLDS = ELEMENTWISE | REDUCTIONS
_SUMS = frozenset(("psum", "psum_invariant", "pmax", "pmin"))


@dataclass(eq=False, slots=True)
class Point:
    """One piece of work, and the bytes alive while it runs."""

    work: Work
    bytes: int
    base: int = 0
    """Of these, the bytes alive around its bodies."""
    inner: "list[Point]" = field(default_factory=list)


class Course:
    """What is alive in a body at each of its pieces of work; `owned` inputs count, and end with their last use."""

    def __init__(
        self,
        body: Body,
        rules: Rules,
        owned: Sequence[Value],
        streamed: Sequence[Value] = (),
        kept: Sequence[bool] = (),
        around: "tuple[Course, Work] | None" = None,
    ):
        self.body, self.rules, self.around = body, rules, around
        self._kept = {id(value) for value, is_kept in zip(owned, kept, strict=False) if is_kept}
        self.end = len(body.work)
        self.slices: list[Value] = []
        self._streamed = {id(value) for value in streamed}
        self._owned = [value for value in owned if value.bytes]
        self._inner: dict[int, Course] = {}
        self._sources: dict[int, tuple[Value, ...]] = {}
        self._link()
        self._find_lasts()
        self.points: list[Point] = []
        self.peak, self.at = 0, -1
        self._sweep()

    def _link(self) -> None:
        results = {id(value) for value in self.body.results}
        self._given = {id(value): value for value in self.body.given}
        made: list[Value] = list(self.body.given)
        for at, work in enumerate(self.body.work):
            work.at = at
            for value in work.operands:
                value.uses.append(work)
            made += work.results
        self._made = made
        for value in made:
            value.is_stored = self._needs_storage(value, id(value) in results)

    def _is_folded(self, value: Value) -> bool:
        """Whether the work that makes a value can be part of the kernel that uses it."""
        if value.maker is None:
            return id(value) in self._streamed
        return self.rules.fuses and value.maker.kind in ELEMENTWISE

    def _needs_storage(self, value: Value, is_result: bool) -> bool:
        if not self._is_folded(value):
            return True
        if is_result and id(value) not in self._streamed:
            return True
        return any(use.kind not in _FOLDS for use in value.uses)

    def _find_lasts(self) -> None:
        for value in self._made:
            value.last = max((use.at for use in value.uses), default=-1 if value.maker is None else value.maker.at)
        for value in self.body.results:
            if id(value) not in self._streamed:
                value.last = self.end
        for value in self.body.given:
            if id(value) in self._kept:
                value.last = self.end
        for work in reversed(self.body.work):
            unstored = [value.last for value in work.results if not value.is_stored]
            if unstored:
                last = max(unstored)
                for value in work.operands:
                    value.last = max(value.last, last)

    def sources(self, work: Work) -> tuple[Value, ...]:
        """The stored values that a piece of work reads, through those that are folded into it."""
        if id(work) not in self._sources:
            found: dict[int, Value] = {}
            for value in work.operands:
                for one in (value,) if value.is_stored or value.maker is None else self.sources(value.maker):
                    found[id(one)] = one
            self._sources[id(work)] = tuple(found.values())
        return self._sources[id(work)]

    def _born(self, value: Value) -> int:
        """Where a value comes to be: of one that can be made at any time, just before it is needed."""
        if value.maker is None:
            return min((use.at for use in value.uses), default=0)
        return value.maker.at

    def _sweep(self) -> None:
        self._births: list[list[Value]] = [[] for _ in range(self.end + 1)]
        self._deaths: list[list[Value]] = [[] for _ in range(self.end + 1)]
        owned = {id(value) for value in self._owned}
        alive = 0
        for value in self._made:
            if not value.bytes or not value.is_stored:
                continue
            if id(value) in owned:
                alive += value.bytes
            elif value.maker is None:
                if id(value) not in self._streamed:
                    continue
                self._births[self._born(value)].append(value)
            else:
                self._births[self._born(value)].append(value)
            self._deaths[min(max(value.last, 0), self.end)].append(value)
        for work in self.body.work:
            alive += sum(value.bytes for value in self._births[work.at])
            now = alive - self._reused(work)
            inner = self._loop(work)
            self.points.append(Point(work, now + inner[0], now, inner[1]))
            now += inner[0]
            if now > self.peak:
                self.peak, self.at = now, work.at
            alive -= sum(value.bytes for value in self._deaths[work.at])
        if alive + sum(value.bytes for value in self._births[self.end]) > self.peak:
            self.peak, self.at = alive, self.end

    def _reused(self, work: Work) -> int:
        """Bytes of results that are written over operands that end here."""
        is_sum = work.kind in PRIMITIVES and work.kind in _SUMS and self.rules.sums_in_place
        if work.kind not in _IN_PLACE and not is_sum and not work.bodies:
            return 0
        ending = [value for value in self.sources(work) if value.last == work.at and self._counts(value)]
        saved = 0
        for result in work.results:
            if result.is_stored and result.bytes:
                match = next((value for value in ending if value.bytes == result.bytes), None)
                if match is not None:
                    ending.remove(match)
                    saved += match.bytes
        return saved

    def _counts(self, value: Value) -> bool:
        return value.maker is not None or any(value is one for one in self._owned) or id(value) in self._streamed

    def _loop(self, work: Work) -> tuple[int, list[Point]]:
        """What the bodies of a piece of work need beyond its operands and results, and their own points."""
        if not work.bodies:
            return 0, []
        courses = [self._course(work, i, body) for i, body in enumerate(work.bodies)]
        largest = max(courses, key=lambda course: course.peak)
        self._inner[work.at] = largest
        return largest.peak, largest.points

    def _course(self, work: Work, index: int, body: Body) -> "Course":
        if work.kind == "scan":
            consts, carry = work.eqn.params["num_consts"], work.eqn.params["num_carry"]
            streamed = [*body.given[consts + carry :], *body.results[carry:]]
            return Course(body, self.rules, (), streamed, around=(self, work))
        return Course(body, self.rules, (), around=(self, work))

    def inner(self, work: Work) -> "Course":
        """The course of the body of a piece of work that needs most."""
        return self._inner[work.at]

    def called_operand(self, work: Work, index: int) -> Value | None:
        """What a body's input is outside of it."""
        offset = len(work.operands) - len(self.inner(work).body.given)
        return work.operands[index + offset] if index + offset >= 0 else None

    def alive(self, at: int | None = None) -> Iterator[tuple[Value, "Course"]]:
        """The values alive at the peak, and the course of the body each belongs to."""
        at = self.at if at is None else at
        reused = self._overwritten(at)
        owned = {id(value) for value in self._owned}
        for value in self._made:
            if not value.bytes or not value.is_stored or id(value) in reused:
                continue
            if id(value) in owned:
                born = -1
            elif value.maker is None and id(value) not in self._streamed:
                continue
            else:
                born = self._born(value)
            if born <= at <= max(value.last, 0):
                yield value, self
        if at in self._inner:
            yield from self._inner[at].alive()

    def _overwritten(self, at: int) -> set[int]:
        if at >= self.end:
            return set()
        work = self.body.work[at]
        if self._reused(work) == 0:
            return set()
        ending = [value for value in self.sources(work) if value.last == work.at and self._counts(value)]
        found = set()
        for result in work.results:
            if result.is_stored and result.bytes:
                match = next((value for value in ending if value.bytes == result.bytes), None)
                if match is not None:
                    ending.remove(match)
                    found.add(id(match))
        return found
