"""The cost of a layout, put together from traces of one axis each.

Traced alone on one axis, each set of rules shows by how much it divides the work of every op, what it sends, and how
much it divides what others send. On a mesh of several axes these multiply: an op whose dims are split over x and over y
does an x-th of a y-th; a sum over x carries a y-th where y splits what is summed; sums of one value over x and over y
are one sum over both. All layouts of one mesh are worked out at once, as arrays with one dimension an axis.

A set may make another program than the whole one (a ring in place of scores, stages in a pipeline). What is new in it
counts as if the other axes divided it, and so does what it holds: still no more than a layout truly costs.

What comes out orders the layouts and bounds their cost; what is ranked in the end is traced.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .choices import RINGS, STORES, Choices, MeshShape

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


@dataclass
class Grid:
    """What all layouts of one mesh cost: arrays with sets of rules along each axis."""

    shape: MeshShape
    compute: np.ndarray
    seconds: np.ndarray
    """Of work, and of the sending that does not go on beside it."""
    bytes: np.ndarray
    """What the collectives carry."""
    memory: np.ndarray
    """Bytes that are alive at once at least."""
    by_axis: list[np.ndarray] = field(default_factory=list)
    """Seconds of sending over each axis, alone or with others."""


_KEPT = ("product", "attention")  # work that every layout of one program does
_WHOLE = ("all_gather",)  # what is counted is the result, which is whole over the axis

Rates = Callable[[MeshShape, str, tuple[int, ...], float], tuple[float, float]]
"""For a mesh, a collective, the axes it goes over and the largest payload: seconds a call, and seconds a byte."""


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
        self._work = {index: _by_op(facts) for index, (_, facts) in alone.items()}
        self._whole_work = _by_op(whole)
        self._other = {
            index: [part for key, part in self._work[index].items() if key not in self._whole_work]
            for index, (_, facts) in alone.items()
            if facts.is_pipeline or any(key[-1] in _KEPT and key not in self._work[index] for key in self._whole_work)
        }
        """Of each set that makes another program, the work that only that has."""

    def _by_dim(self, index: int, traced: int, facts: Facts) -> dict[Key, Sending]:
        """What a set sends, undivided; of a stored parameter, under its sharded dim."""
        return {
            (*key, self._stored_by(index, sent.dims)): replace(sent, bytes=sent.bytes * traced)
            if self._divides(index, sent)
            else sent
            for key, sent in facts.sent.items()
            if key[0] not in self.choosing
        }

    def _divides(self, index: int, sent: Sending) -> bool:
        """Whether a set divides what it sends itself."""
        return self._splits(index, sent.dims) and sent.collective not in _WHOLE

    def legal(self, shape: MeshShape) -> np.ndarray:
        """Which layouts of a mesh can be: their sets were traced, their dims divide."""
        sets = self.choices.sets
        legal = np.ones((len(sets),) * len(shape), bool)
        for axis in range(len(shape)):
            was_traced = np.array([not rules or index in self.alone for index, rules in enumerate(sets)])
            legal &= _along(was_traced, axis, len(shape))
        for rule in self.choices.rules:
            ways = np.ones((), int)
            for axis, size in enumerate(shape):
                ways = ways * _along(np.array([size if rule in rules else 1 for rules in sets]), axis, len(shape))
            legal &= self.choices.divisor(rule) % ways == 0
        for ring in RINGS:
            held = [[sum(dim in rules for dim in ring) for rules in sets]] * len(shape)
            counts = [_along(np.array(of_sets), axis, len(shape)) for axis, of_sets in enumerate(held)]
            goes_round = functools.reduce(np.logical_or, [count == len(ring) for count in counts])
            in_part = functools.reduce(np.logical_or, [(count > 0) & (count < len(ring)) for count in counts])
            legal &= ~(goes_round & in_part)  # both dims over the same axes, or each over its own
        return legal

    def grid(self, shape: MeshShape, rates: Rates) -> Grid:
        """What every layout of a mesh costs, legal or not."""
        full = (len(self.choices.sets),) * len(shape)
        compute: dict[Any, np.ndarray] = defaultdict(lambda: np.zeros(full))
        hidden: dict[Any, np.ndarray] = defaultdict(lambda: np.zeros(full))
        waited, total_bytes, by_axis = np.zeros(full), np.zeros(full), [np.zeros(full) for _ in shape]
        for key, sides in self.whole.work.items():
            computing, moving = (
                self._product(whole, [self._work_left(key, side, size) for size in shape])
                for side, whole in enumerate(sides)
            )
            compute[key[0]] += np.maximum(computing, moving) * (math.prod(shape) if self.is_shared else 1)
        compute[None] += self._of_other_programs(shape, lambda index: sum(map(max, self._other[index])))
        for key, sent in self._all_sent.items():
            seconds, carried, bits = self._sending(shape, key, sent, rates)
            total_bytes += carried
            total = hidden[sent.body] if sent.can_hide else waited
            total += seconds
            for axis, busy in enumerate(by_axis):
                busy += np.where(bits >> axis & 1, seconds, 0)
        work = sum(compute.values(), np.zeros(full))
        left = [np.maximum(sending - self.beside * compute[body], 0) for body, sending in hidden.items()]
        return Grid(shape, work, work + waited + sum(left), total_bytes, self.memory(shape), by_axis)

    def _product(self, base: float, factors: Sequence[np.ndarray]) -> np.ndarray:
        product = np.asarray(base)
        for axis, factor in enumerate(factors):
            product = product * _along(factor, axis, len(factors))
        return product

    def _work_left(self, key: Key, side: int, size: int) -> np.ndarray:
        """For each set the share left of one side of an op's work, partly divided."""
        whole = self._whole_work[key[1:]][side]
        left = np.ones(len(self.choices.sets))
        for index, (traced, _) in self.alone.items():
            if whole > 0:
                there = self._work[index].get(key[1:], (0.0, 0.0))[side] / whole
                divided = (1 - there) / (1 - 1 / traced)
                left[index] = max(1 - divided * (1 - 1 / size), 0.0)
                if index in self._other and not there:  # it is done in another way, which is counted there
                    left[index] = 0.0
        return left

    def _of_other_programs(self, shape: MeshShape, figure: Callable[[int], float]) -> np.ndarray:
        """A figure of sets that make another program, as if the other axes divided it."""
        most = np.zeros((len(self.choices.sets),) * len(shape))
        for axis, size in enumerate(shape):
            alone = np.zeros(len(self.choices.sets))
            for index in self._other:
                alone[index] = figure(index) * size / math.prod(shape)
            most = np.maximum(most, _along(alone, axis, len(shape)))
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

    def _sending(
        self, shape: MeshShape, key: Key, sent: Sending, rates: Rates
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of one collective the seconds, the bytes, and its axes as bits."""
        rank, factors, calls, bits = len(shape), [], np.zeros(()), np.zeros((), int)
        for axis, size in enumerate(shape):
            left, has, count = self._sent_left(key, sent, size)
            factors.append(left)
            bits = bits + (_along(has, axis, rank).astype(int) << axis)
            calls = np.maximum(calls, _along(count, axis, rank))
        payload = self._product(sent.bytes, factors)
        a_call, a_byte = np.zeros(2**rank), np.zeros(2**rank)
        for subset in range(1, 2**rank):
            axes = tuple(axis for axis in range(rank) if subset >> axis & 1)
            a_call[subset], a_byte[subset] = rates(shape, sent.collective, axes, sent.bytes)
        return calls * (a_call[bits] + a_byte[bits] * payload), np.where(bits, calls * payload, 0), bits

    def _sent_left(self, key: Key, sent: Sending, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each set: the share of a payload left, whether it sends, and its calls."""
        count = len(self.choices.sets)
        left, has, calls = np.ones(count), np.zeros(count, bool), np.zeros(count)
        for index in self.alone:
            stored = self._stored_by(index, sent.dims)
            if (alone := self._sent[index].get(key)) is not None:
                has[index], calls[index] = True, alone.count
                left[index] = alone.bytes / (size if self._divides(index, alone) else 1) / (sent.bytes or 1.0)
            elif self._splits(index, sent.dims) or self._may_divide(index, sent.dims):
                left[index] = 1 / size
            elif stored is None:
                continue
            elif sent.collective == "all_reduce":
                left[index] = 1 / size if sent.phase == "backward" else 1  # the gradient of a parameter, sliced first
            elif stored == key[-1]:
                has[index] = sent.phase == "backward"  # one reduce-scatter over both axes
            elif key[-1] is not None and sent.dims.index(stored) > sent.dims.index(str(key[-1])):
                left[index] = 1 / size  # dims are gathered from the first on, and scattered from the last
        return left, has, calls

    def _splits(self, index: int, dims: tuple[str, ...]) -> bool:
        """Whether a set's axis splits a value of these dims."""
        return any(self.choices.rule_of(dim) in self.choices.sets[index] for dim in dims)

    def _may_divide(self, index: int, dims: tuple[str, ...]) -> bool:
        """Whether a set may divide what others send: a pipeline, or ZeRO's scattering."""
        is_optimized = any(f"optimizer.{dim}" in self.choices.sets[index] for dim in dims)
        return self.alone[index][1].is_pipeline or (is_optimized and dims in self.choices.parameters)

    def _stored_by(self, index: int, dims: tuple[str, ...]) -> str | None:
        """The dim by which a set shards a parameter only where stored (FSDP), or None."""
        if dims not in self.choices.parameters or self._splits(index, dims):
            return None
        return next((dim for dim in dims if f"params.{dim}" in self.choices.sets[index]), None)

    def memory(self, shape: MeshShape) -> np.ndarray:
        """What is alive at the peak, each value divided as the sets split its dims."""
        full = np.zeros((len(self.choices.sets),) * len(shape))
        for held in self.whole.held:
            full += self._product(held.bytes, [self._held_left(held, size) for size in shape])
        is_other = self._of_other_programs(shape, lambda index: 1.0) > 0
        return np.where(is_other, self._of_other_programs(shape, lambda index: self.alone[index][1].peak), full)

    def _held_left(self, held: Held, size: int) -> np.ndarray:
        """For each set, the share of a value left; any may divide an unnamed array."""
        left = np.ones(len(self.choices.sets))
        for index in self.alone:
            rules = self.choices.sets[index]
            names = held.dims or ()
            is_stored = any(f"{store}.{dim}" in rules for store in STORES for dim in names)
            if held.dims is None or is_stored or self._splits(index, names):
                left[index] = 1 / size
        return left


def _by_op(facts: Facts) -> dict[Key, tuple[float, float]]:
    """The work of each op in each phase, whatever loops it stands in."""
    totals: dict[Key, tuple[float, float]] = {}
    for key, (computing, moving) in facts.work.items():
        before = totals.get(key[1:], (0.0, 0.0))
        totals[key[1:]] = before[0] + computing, before[1] + moving
    return totals


def _along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Values of one axis, to be spread over the others."""
    return values.reshape((1,) * axis + (-1,) + (1,) * (rank - axis - 1))
