"""The cost of a layout, put together from traces of one axis each.

Traced alone on one axis, each set of rules shows by how much it divides the work of every op, what it sends, and how
much it divides what others send. On a mesh of several axes these multiply: an op whose dims are split over x and over y
does an x-th of a y-th; a sum over x carries a y-th where y splits what is summed; sums of one value over x and over y
are one sum over both.

All layouts of one mesh are worked out at once. Most ops tell few sets apart (those of attention know nothing of
`d_ff`), so parts that tell the same ones apart are added up for these few (`clusters.py`), and layouts look them up.

A set may make another program than the whole one (a ring in place of scores, stages in a pipeline). What is new in it
is divided by its own axis and by sets that split its dims; in a pipeline, and in memory, it counts as if all other axes
divided it: still no more than a layout truly costs.

What comes out orders the layouts and bounds their cost; what is ranked in the end is traced.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .choices import STORES, Choices, MeshShape
from .clusters import Clusters, HeldPart, Rates, SentPart, WorkPart
from .legal import Legal

Key = tuple[object, ...]


@dataclass(frozen=True)
class Sending:
    """A collective of one program: the payload of a call, and how many there are."""

    collective: str
    dims: tuple[str, ...]
    phase: str
    bytes: float
    count: float
    can_hide: bool
    """Whether what comes next need not wait for it."""
    body: int
    """The number of the loop's body it stands in."""


@dataclass(frozen=True)
class Held:
    """A value alive at the peak of the program on one processor."""

    name: str
    dims: tuple[str, ...] | None
    bytes: float
    argument: tuple[str, int] | None = None
    """Of an argument its name, and which of those so called it is: the same in every layout."""


@dataclass(frozen=True)
class Facts:
    """What one traced program does on one processor."""

    work: Mapping[Key, tuple[float, float]]
    """For each op and phase the seconds its arithmetic takes one processor, and those its traffic with memory takes."""
    sent: Mapping[Key, Sending]
    held: Sequence[Held]
    arguments: float
    peak: float
    is_pipeline: bool = False
    """Whether stages run one microbatch after another: what others send inside them is divided as their work is."""
    choosing: frozenset[str] = frozenset()
    """The lines of ops that sent what was fewest bytes; on another mesh they may choose otherwise."""
    dims: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The dims of each op of `work`, by its name there."""


@dataclass(frozen=True)
class Costs:
    """What layouts of one mesh cost, an entry each."""

    compute: np.ndarray
    seconds: np.ndarray
    """Of work, and of the sending that does not go on beside it."""
    bytes: np.ndarray
    """What the collectives carry."""
    memory: np.ndarray
    """Bytes that are alive at once at least."""


_KEPT = ("product", "attention")  # work that every layout of one program does
WHOLE = ("all_gather",)  # what is counted is the result, which is whole over the axis


class Composer:
    """Puts together what layouts of several axes cost."""

    def __init__(
        self,
        choices: Choices,
        whole: Facts,
        alone: Mapping[int, tuple[int, Facts]],
        beside: float,
        *,
        is_shared: bool = False,
    ):
        """`whole` is the program on one processor, `alone` what each set does alone.

        Of a set, by its number, `alone` has the size of the one axis and the facts there.

        `beside` is the share of the work of a body that sending can go on beside; where the processors share one
        machine (`is_shared`), it does the work of all.
        """
        self.choices, self.whole, self.alone, self.beside, self.is_shared = choices, whole, alone, beside, is_shared
        self.choosing = frozenset().union(*(facts.choosing for _, facts in alone.values()))
        """What these lines send is not put together: no bound knows what they choose."""
        self._sent = {index: self._by_dim(index, traced, facts) for index, (traced, facts) in alone.items()}
        self._work = {index: by_op(facts) for index, (_, facts) in alone.items()}
        self._whole_work = by_op(whole)
        self._other = {
            index: {key: part for key, part in self._work[index].items() if key not in self._whole_work}
            for index, (_, facts) in alone.items()
            if facts.is_pipeline or any(key[-1] in _KEPT and key not in self._work[index] for key in self._whole_work)
        }
        """Of each set that makes another program, the work that only that has."""
        self._turned = {index for index in self._other if alone[index][1].is_pipeline}

    def _by_dim(self, index: int, traced: int, facts: Facts) -> dict[Key, Sending]:
        """What a set sends, undivided; of a stored parameter, under its sharded dim."""
        return {
            (*key, self._find_stored(index, sent.dims)): replace(sent, bytes=sent.bytes * traced)
            if self._divides(index, sent)
            else sent
            for key, sent in facts.sent.items()
            if key[0] not in self.choosing
        }

    def _divides(self, index: int, sent: Sending) -> bool:
        """Whether a set divides what it sends itself."""
        return self._splits(index, sent.dims) and sent.collective not in WHOLE

    def legal(self, shape: MeshShape, *, all_axes: bool = False, having: str | None = None) -> np.ndarray:
        """The layouts of sets that were traced, a row of their numbers each."""
        return self._legal.layouts(shape, all_axes=all_axes, having=having)

    @functools.cached_property
    def _legal(self) -> Legal:
        return Legal(self.choices, self.alone)

    def costs(self, shape: MeshShape, rates: Rates, layouts: np.ndarray) -> Costs:
        """What these layouts of a mesh cost, each a row of the numbers of its sets."""
        totals = self._clusters.totals(shape, rates, layouts)
        none = np.zeros(len(layouts))
        compute = {key[1]: total for key, total in totals.items() if key[0] == "compute"}
        others = compute.get(None, none) + self._of_other_programs(
            shape, layouts, lambda index: sum(map(max, self._other[index].values())) if index in self._turned else 0.0
        )
        compute[None] = others
        if self.is_shared:  # what is new in other programs counts as divided, and the machine does the work of all
            compute = {body: work * (1 if body is None else math.prod(shape)) for body, work in compute.items()}
        work = sum(compute.values(), none)
        left = [
            np.maximum(sending - self.beside * compute.get(key[1], none), 0)
            for key, sending in totals.items()
            if key[0] == "hidden"
        ]
        seconds = work + totals.get(("waited", None), none) + sum(left, none)
        return Costs(work, seconds, totals.get(("bytes", None), none), self._memory(shape, layouts, totals))

    def memory(self, shape: MeshShape, layouts: np.ndarray) -> np.ndarray:
        """What is alive at the peak of these layouts, divided as their sets split it."""
        return self._memory(shape, layouts, self._clusters.totals(shape, None, layouts))

    def _memory(self, shape: MeshShape, layouts: np.ndarray, totals: Mapping[Key, np.ndarray]) -> np.ndarray:
        full = totals.get(("memory", None), np.zeros(len(layouts)))
        is_other = self._of_other_programs(shape, layouts, lambda index: 1.0) > 0
        peak = self._of_other_programs(shape, layouts, lambda index: self.alone[index][1].peak)
        return np.where(is_other, np.maximum(peak, totals.get(("arguments", None), 0.0)), full)

    @functools.cached_property
    def _clusters(self) -> Clusters:
        """All parts of the cost, of work, of sending and of memory."""
        work = [
            WorkPart(("compute", key[0]), sides, np.stack([self._divide_work(key[1:], side) for side in (0, 1)]))
            for key, sides in self.whole.work.items()
        ]
        sent = [
            SentPart(("hidden", sent.body) if sent.can_hide else ("waited", None), sent.collective, sent.bytes, 1.0,
                     *self._sent_left(key, sent))
            for key, sent in self._all_sent.items()
        ]  # fmt: skip
        held = [HeldPart(("memory", None), held.bytes, self._held_divided(held)) for held in self.whole.held]
        arguments = [
            HeldPart(("arguments", None), held.bytes, self._held_divided(held))
            for held in self.whole.held
            if held.argument is not None
        ]
        return Clusters(len(self.choices.sets), [*work, *self._new_work(), *sent, *held, *arguments])

    def _new_work(self) -> list[WorkPart]:
        """What only other programs do, divided as their sets and its dims say."""
        new: dict[Key, list[int]] = {}
        for index, parts in self._other.items():
            for key in parts if index not in self._turned else ():
                new.setdefault(key, []).append(index)
        found = []
        for key, having in new.items():
            computing, moving = (
                min(self._other[index][key][side] * self.alone[index][0] for index in having) for side in (0, 1)
            )
            dims = tuple(self.alone[having[0]][1].dims.get(str(key[0]), ()))
            divided = np.array(
                [float(index in having or self._splits(index, dims)) for index in range(len(self.choices.sets))]
            )
            only = np.isin(np.arange(len(divided)), having)
            found.append(WorkPart(("compute", None), (computing, moving), np.stack([divided] * 2), only))
        return found

    def _divide_work(self, key: Key, side: int) -> np.ndarray:
        """For each set the share of an op's work that it divides; inf where none is left."""
        whole = self._whole_work[key][side]
        divided = np.zeros(len(self.choices.sets))
        for index, (traced, _) in self.alone.items():
            if whole > 0:
                there = self._work[index].get(key, (0.0, 0.0))[side] / whole
                divided[index] = (1 - there) / (1 - 1 / traced)
                if index in self._other and not there:  # it is done in another way, which is counted there
                    divided[index] = math.inf
        return divided

    def _of_other_programs(self, shape: MeshShape, layouts: np.ndarray, figure: Callable[[int], float]) -> np.ndarray:
        """A figure of sets that make another program, as if the other axes divided it."""
        most = np.zeros(len(layouts))
        if not self._other:
            return most
        alone = np.zeros(len(self.choices.sets))
        for index in self._other:
            alone[index] = figure(index)
        for axis, size in enumerate(shape):
            most = np.maximum(most, alone[layouts[:, axis]] * size / math.prod(shape))
        return most

    @functools.cached_property
    def _all_sent(self) -> dict[Key, Sending]:
        """Every collective that some set sends, with its largest payload, undivided."""
        largest: dict[Key, Sending] = {}
        for of_set in self._sent.values():
            for key, sent in of_set.items():
                if key not in largest or sent.bytes > largest[key].bytes:
                    largest[key] = sent
        return largest

    def _sent_left(self, key: Key, sent: Sending) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """For each set: what it leaves of a payload, divides, sends, and its calls."""
        count = len(self.choices.sets)
        left, divides, has, calls = np.ones(count), np.zeros(count, bool), np.zeros(count, bool), np.zeros(count)
        for index in self.alone:
            stored = self._find_stored(index, sent.dims)
            if (alone := self._sent[index].get(key)) is not None:
                has[index], calls[index] = True, alone.count
                left[index], divides[index] = alone.bytes / (sent.bytes or 1.0), self._divides(index, alone)
            elif self._splits(index, sent.dims) or self._may_divide(index, sent.dims):
                divides[index] = True
            elif stored is None:
                continue
            elif sent.collective == "all_reduce":
                divides[index] = sent.phase == "backward"  # the gradient of a parameter, sliced first
            elif stored == key[-1]:
                has[index] = sent.phase == "backward"  # one reduce-scatter over both axes
            elif key[-1] is not None and sent.dims.index(stored) > sent.dims.index(str(key[-1])):
                divides[index] = True  # dims are gathered from the first on, and scattered from the last
        return left, divides, has, calls

    def _splits(self, index: int, dims: tuple[str, ...]) -> bool:
        """Whether a set's axis splits a value of these dims."""
        return any(rule in self.choices.sets[index] for dim in dims for rule in self.choices.rules_of(dim))

    def _may_divide(self, index: int, dims: tuple[str, ...]) -> bool:
        """Whether a set may divide what others send: a pipeline, or ZeRO's scattering."""
        is_optimized = any(f"optimizer.{dim}" in self.choices.sets[index] for dim in dims)
        return self.alone[index][1].is_pipeline or (is_optimized and dims in self.choices.parameters)

    def _find_stored(self, index: int, dims: tuple[str, ...]) -> str | None:
        """The dim by which a set shards a parameter only where stored (FSDP), or None."""
        if dims not in self.choices.parameters or self._splits(index, dims):
            return None
        return next((dim for dim in dims if f"params.{dim}" in self.choices.sets[index]), None)

    def _held_divided(self, held: Held) -> np.ndarray:
        """Which sets divide a value; any may divide an unnamed array."""
        divided = np.zeros(len(self.choices.sets), bool)
        for index, rules in enumerate(self.choices.sets):
            arguments = self._arguments.get(index, {})
            if held.argument is not None and held.argument in arguments:
                divided[index] = arguments[held.argument] < held.bytes * 0.9
                continue
            names = held.dims or ()
            may_store = held.argument is not None or names in self.choices.parameters  # a gradient, say
            is_stored = may_store and any(f"{store}.{dim}" in rules for store in STORES for dim in names)
            divided[index] = (held.dims is None and rules) or is_stored or self._splits(index, names)
        return divided

    @functools.cached_property
    def _arguments(self) -> dict[int, dict[tuple[str, int], float]]:
        """For each set the bytes of every argument where it is traced alone."""
        return {
            index: {held.argument: held.bytes for held in facts.held if held.argument is not None}
            for index, (_, facts) in self.alone.items()
        }


def by_op(facts: Facts) -> dict[Key, tuple[float, float]]:
    """The work of each op in each phase, whatever loops it stands in."""
    totals: dict[Key, tuple[float, float]] = {}
    for key, (computing, moving) in facts.work.items():
        before = totals.get(key[1:], (0.0, 0.0))
        totals[key[1:]] = before[0] + computing, before[1] + moving
    return totals
