"""Best-first search with bounds: what is worth tracing, and what was traced."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .candidates import Candidates, Place, Trial
from .ranking import Ranked

SLACK = 0.97
"""What a bound is multiplied by: kernels work in whole tiles, which do not divide quite as dims do."""


@dataclass(frozen=True)
class Refusal:
    """Why a layout could not be traced."""

    reason: str


class BestFirst:
    """Which layouts to trace, while any can be the best; variants as bounds come up."""

    def __init__(
        self,
        candidates: Candidates,
        capacity: int,
        keep: int,
        trial_at: Callable[[Place], Trial],
        *,
        is_late: Callable[[], bool] = lambda: False,
        open_next: Callable[["BestFirst"], bool] = lambda _: False,
    ):
        """`is_late`: the time is up; `open_next` takes up a variant that is next."""
        self.candidates, self.capacity, self.keep = candidates, capacity, keep
        self.ranked: dict[Place, Ranked] = {}
        self.best: Ranked | None = None
        self.count = 0
        self.refused: list[str] = []
        self.stopped = ""
        """Why it ended before all was seen: `interrupted`, or `late`."""
        self.slack = SLACK
        self._trial_at, self._is_late, self._open_next = trial_at, is_late, open_next
        self._seen: set[Any] = set()
        self._distinct: set[Any] = set()
        self._bounds: dict[Place, float] = {}
        self._begun = 0
        self._order, self._passed = candidates.order, 0
        self._known: list[int] = []
        """Candidates that were traced before their turn in the order."""

    def trials(self) -> Iterator[Trial]:
        """Layouts to trace, while any can be the best, and at least as many as are kept."""
        while not self.stopped:
            if self._open_next(self):
                continue
            if not len(rest := self._rest):
                return
            candidate = rest[0]
            self._passed += 1
            bound = self.candidates.seconds[candidate] * self.slack
            if self.best is not None and bound >= self.best.seconds and len(self._distinct) >= self.keep:
                return
            if (
                self.candidates.memory[candidate] > self.capacity
                or (ways := self.candidates.ways(candidate)) in self._seen
            ):
                continue
            if self.is_late:
                self.stopped, self._passed = "late", self._passed - 1
                return
            self._seen.add(ways)
            self._distinct.add(ways[0])
            place = self.candidates.place(candidate)
            self._bounds[place] = float(self.candidates.seconds[candidate])
            self._begun += 1
            yield self._trial_at(place)

    def offer(self, ranked: Ranked) -> None:
        """A layout that was traced; it is the best if it fits and is faster."""
        if ranked.fits and (self.best is None or ranked.seconds < self.best.seconds):
            self.best = ranked

    @property
    def _rest(self) -> np.ndarray:
        """Candidates whose turn has not come, in order; all where some were taken up."""
        if self.candidates.order is not self._order:
            self._order, self._passed = self.candidates.order, 0
            self._known = [number for place in self.ranked if (number := self.candidates.number(place)) is not None]
        return self._order[self._passed :]

    def take_up(self, candidate: int, ranked: Ranked) -> None:
        """A layout that was traced before its turn."""
        self._known.append(candidate)
        self._seen.add(ways := self.candidates.ways(candidate))
        self._distinct.add(ways[0])
        place = self.candidates.place(candidate)
        self._bounds[place] = float(self.candidates.seconds[candidate])
        self._begun += 1
        self.add(Trial(ranked.mesh, ranked.layout, place=place), ranked)

    @property
    def is_late(self) -> bool:
        """Whether the time is up, and there is something to show."""
        return self.best is not None and self._is_late()

    @property
    def next_bound(self) -> float | None:
        """The bound of the layout that comes next; None where there is none."""
        rest = self._rest
        return float(self.candidates.seconds[rest[0]]) * self.slack if len(rest) else None

    @property
    def left(self) -> int:
        """How many may still be traced, as far as is known."""
        worth = 0 if self.best is None else self._below(self.best.seconds)
        untraced = int((~np.isin(self._rest, self._known)).sum())
        return max(worth, min(self.keep - self.count, untraced), 0)

    @property
    def not_seen(self) -> int:
        """How many layouts were neither traced nor ruled out by their bounds."""
        best = math.inf if self.best is None else self.best.seconds
        return self._begun - self.count + self._below(best) if self.stopped else 0

    def _below(self, seconds: float) -> int:
        """How many of the rest have a bound below so many seconds, and may fit."""
        rest = self._rest
        bounds = self.candidates.seconds[rest] * self.slack
        below = (bounds < seconds) & (self.candidates.memory[rest] <= self.capacity)
        return int((below & ~np.isin(rest, self._known)).sum())

    def add(self, trial: Trial, result: Ranked | Refusal) -> None:
        """Takes up what came of a trial; one cheaper than its bound widens the slack."""
        self.count += 1
        if isinstance(result, Refusal):
            self.refused.append(f"{trial.mesh} under {trial.layout}: {result.reason}")
            return
        if (bound := self._bounds.get(trial.place)) is not None:
            self.slack = min(self.slack, result.seconds / bound)
        self.ranked[trial.place] = result
        self.offer(result)
