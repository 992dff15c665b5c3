"""Parts of a cost, added up where they tell the same sets of rules apart.

A part is an op's work, a collective, or a value in memory. What a set of rules does to it is a few numbers, which are
the same for most sets. Parts are put into clusters within which only few sets differ; the parts of a cluster are
worked out once for each choice of these on each axis, and every layout looks up the sum. Knows numbers alone.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

MOST_CLASSES = 40
"""How many sets a cluster tells apart at most, unless one part alone does."""
Bucket = tuple[object, ...]
Shape = tuple[int, ...]
Rates = Callable[[Shape, str, tuple[int, ...], float], tuple[float, float]]
"""For a mesh, a collective, the axes it goes over and the largest payload: seconds a call, and seconds a byte."""


@dataclass(frozen=True)
class WorkPart:
    """An op's work: computing and moving bytes, of which the longer counts."""

    bucket: Bucket
    sides: tuple[float, float]
    divided: np.ndarray
    """For each side and set the share that the set divides; inf where there is none of it under the set."""
    only: np.ndarray | None = None
    """The sets one of which must be there for the op to be."""

    @property
    def tells(self) -> np.ndarray:
        """What the part knows of each set, a column each."""
        return self.divided if self.only is None else np.concatenate([self.divided, self.only[None]])

    @property
    def merged_by(self) -> object:
        """Parts alike in this are one part."""
        one_side = np.array_equal(self.divided[0], self.divided[1]) or 0.0 in self.sides
        which = 0 if self.sides[1] == 0.0 else 1
        told = (self.bucket, None if self.only is None else self.only.tobytes())
        return (*told, self.divided[which].tobytes()) if one_side else (*told, id(self))

    def merge(self, others: Sequence["WorkPart"]) -> "WorkPart":
        """One part in place of several that are divided alike on both sides."""
        if len(others) == 1:
            return self
        which = 0 if self.sides[1] == 0.0 else 1
        longer = sum(max(part.sides) for part in others)
        return WorkPart(self.bucket, (longer, 0.0), np.stack([self.divided[which]] * 2), self.only)

    def add(self, totals: dict[Bucket, np.ndarray], shape: Shape, sets: Sequence[np.ndarray], rates: Rates) -> None:
        """Adds the work left under each choice of a set for each axis."""
        left = []
        for side, whole in enumerate(self.sides):
            product = np.asarray(whole)
            for axis, (size, of_axis) in enumerate(zip(shape, sets, strict=True)):
                divided = self.divided[side][of_axis]
                gone = np.isinf(divided)
                share = np.where(gone, 0.0, np.maximum(1 - np.where(gone, 0.0, divided) * (1 - 1 / size), 0.0))
                product = product * along(share, axis, len(shape))
            left.append(product)
        work = np.maximum(*left)
        if self.only is not None:
            there = np.zeros((), bool)
            for axis, of_axis in enumerate(sets):
                there = there | along(self.only[of_axis], axis, len(shape))
            work = work * there
        totals[self.bucket] = totals[self.bucket] + work


@dataclass(frozen=True)
class SentPart:
    """A collective: what each set does to its payload, and whether it sends it."""

    bucket: Bucket
    collective: str
    bytes: float
    """The largest payload of a call, undivided."""
    calls: float
    """How many times those of one set, where several collectives are one part."""
    left: np.ndarray
    divides: np.ndarray
    has: np.ndarray
    count: np.ndarray
    carried: float | None = None
    """Bytes of all calls of one set's, undivided."""

    @property
    def tells(self) -> np.ndarray:
        """What the part knows of each set, a column each."""
        return np.stack([self.left, self.divides, self.has, self.count])

    @property
    def merged_by(self) -> object:
        """Parts alike in this are one part."""
        counts = self.count / (self.count.max() or 1.0)
        size = round(math.log2(self.bytes + 1) / 2)  # a line through much larger payloads lies lower
        told = [each.tobytes() for each in (self.left.round(9), self.divides, self.has, counts.round(9))]
        return (self.bucket, self.collective, size, *told)

    def merge(self, others: Sequence["SentPart"]) -> "SentPart":
        """One part in place of several that sets treat alike."""
        most = [float(part.count.max()) or 1.0 for part in others]
        carried = sum(calls * part.bytes for calls, part in zip(most, others, strict=True))
        largest = max(part.bytes for part in others)
        return dataclasses.replace(
            self, bytes=largest, calls=sum(most), count=self.count / (self.count.max() or 1.0), carried=carried
        )

    def add(self, totals: dict[Bucket, np.ndarray], shape: Shape, sets: Sequence[np.ndarray], rates: Rates) -> None:
        """Adds the seconds and the bytes under each choice of a set for each axis."""
        rank, left, count, bits = len(shape), np.ones(()), np.zeros(()), np.zeros((), int)
        for axis, (size, of_axis) in enumerate(zip(shape, sets, strict=True)):
            share = self.left[of_axis] / np.where(self.divides[of_axis], size, 1)
            left = left * along(share, axis, rank)
            bits = bits + (along(self.has[of_axis], axis, rank).astype(int) << axis)
            count = np.maximum(count, along(self.count[of_axis], axis, rank))
        a_call, a_byte = np.zeros(2**rank), np.zeros(2**rank)
        for subset in np.unique(bits):
            if subset:
                axes = tuple(axis for axis in range(rank) if subset >> axis & 1)
                a_call[subset], a_byte[subset] = rates(shape, self.collective, axes, self.bytes)
        carried = count * left * (self.bytes if self.carried is None else self.carried)
        totals[self.bucket] = totals[self.bucket] + (count * self.calls * a_call[bits] + a_byte[bits] * carried)
        totals["bytes", None] = totals["bytes", None] + np.where(bits, carried, 0)


@dataclass(frozen=True)
class HeldPart:
    """A value alive at the peak, which some sets divide."""

    bucket: Bucket
    bytes: float
    divided: np.ndarray

    @property
    def tells(self) -> np.ndarray:
        """What the part knows of each set, a column each."""
        return self.divided[None]

    @property
    def merged_by(self) -> object:
        """Parts alike in this are one part."""
        return self.bucket, self.divided.tobytes()

    def merge(self, others: Sequence["HeldPart"]) -> "HeldPart":
        """One part in place of several divided alike."""
        return HeldPart(self.bucket, sum(part.bytes for part in others), self.divided)

    def add(
        self, totals: dict[Bucket, np.ndarray], shape: Shape, sets: Sequence[np.ndarray], rates: Rates | None
    ) -> None:
        """Adds the bytes left under each choice of a set for each axis."""
        product = np.asarray(self.bytes)
        for axis, (size, of_axis) in enumerate(zip(shape, sets, strict=True)):
            product = product * along(np.where(self.divided[of_axis], 1 / size, 1.0), axis, len(shape))
        totals[self.bucket] = totals[self.bucket] + product


Part = WorkPart | SentPart | HeldPart


@dataclass
class _PartsAlike:
    labels: np.ndarray
    """For each set the number of its class: sets of one class are alike to all parts here."""
    parts: list[Part]


class Clusters:
    """Parts in clusters, to be added up for many layouts."""

    def __init__(self, count: int, parts: Sequence[Part]):
        """`count` is how many sets there are."""
        self._clusters: list[_PartsAlike] = []
        for part in _merge(parts):
            self._place(part, np.unique(part.tells, axis=1, return_inverse=True)[1].reshape(count))

    def _place(self, part: Part, labels: np.ndarray) -> None:
        for cluster in self._clusters:
            both = np.unique(cluster.labels * (labels.max() + 1) + labels, return_inverse=True)[1]
            if both.max() < MOST_CLASSES or both.max() == cluster.labels.max():
                cluster.labels = both
                cluster.parts.append(part)
                return
        self._clusters.append(_PartsAlike(labels, [part]))

    def totals(self, shape: Shape, rates: Rates | None, layouts: np.ndarray) -> dict[Bucket, np.ndarray]:
        """For each layout, a row of the numbers of its sets, the sum of each bucket.

        Without `rates` only what is held in memory.
        """
        sums: dict[Bucket, np.ndarray] = defaultdict(lambda: np.zeros(len(layouts)))
        used = [np.flatnonzero(np.bincount(layouts[:, axis])) for axis in range(len(shape))]
        for cluster in self._clusters:
            parts = [part for part in cluster.parts if rates is not None or isinstance(part, HeldPart)]
            if not parts or not len(layouts):
                continue
            sets, places = [], np.zeros(len(layouts), int)
            for axis, there in enumerate(used):
                classes, first, inverse = np.unique(cluster.labels[there], return_index=True, return_inverse=True)
                sets.append(there[first])
                lookup = np.zeros(len(cluster.labels), int)
                lookup[there] = inverse
                places = places * len(classes) + lookup[layouts[:, axis]]
            small: dict[Bucket, np.ndarray] = defaultdict(lambda: np.zeros(()))
            for part in parts:
                part.add(small, shape, sets, rates)  # type: ignore[arg-type]
            for bucket, values in small.items():
                sums[bucket] += np.broadcast_to(values, tuple(map(len, sets))).reshape(-1)[places]
        return dict(sums)


def _merge(parts: Sequence[Part]) -> list[Part]:
    """Parts that sets treat alike as one; those that tell most sets apart first."""
    alike: dict[object, list[Part]] = defaultdict(list)
    for part in parts:
        alike[type(part), part.merged_by].append(part)
    merged = [each[0].merge(each) for each in alike.values()]  # type: ignore[arg-type]
    return sorted(merged, key=lambda part: -np.unique(part.tells, axis=1).shape[1])


def along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Values of one axis, to be spread over the others."""
    return values.reshape((1,) * axis + (-1,) + (1,) * (rank - axis - 1))
