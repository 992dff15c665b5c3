"""Mixtures: several datasets as one, of which each has its share of the rows.

Imports nothing of other rooms. Which part a row is of follows from the seed and its place alone, like the order of each
part: every block of places holds the shares that were said, as nearly as whole rows can.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from .datasets import Dataset
from .errors import DataError
from .lm import segments_and_positions
from .order import permute

_BLOCK = 1024


class Concatenated:
    """Several datasets one after the other, with the arrays that any of them has."""

    bucket_of: np.ndarray | None = None

    def __init__(self, parts: Sequence[Dataset], *, with_segments: bool | None = None):
        """All rows have segments where any has, or as it is said."""
        if any(part.bucket_of is not None for part in parts):
            raise DataError("a mixture has no buckets", fix="pack its pairs: leave `train.buckets` out")
        self.parts = tuple(parts)
        self.offsets = np.cumsum([0, *map(len, parts)])
        known = [part.vocab for part in parts if part.vocab is not None]
        self.vocab: int | None = max(known, default=None)
        self._has_segments = with_segments
        if with_segments is None:
            self._has_segments = any("segments" in part.take(np.array([0])) for part in parts)

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        of = np.where(numbers < 0, 0, np.searchsorted(self.offsets, numbers, "right") - 1)
        batch: dict[str, np.ndarray] = {}
        for part in np.unique(of):
            rows = np.flatnonzero(of == part)
            taken = self.parts[part].take(np.where(numbers[rows] < 0, -1, numbers[rows] - self.offsets[part]))
            for name, array in self._with_segments(taken).items():
                whole = batch.setdefault(name, np.zeros((len(numbers), *array.shape[1:]), array.dtype))
                whole[rows] = array
        return batch

    def _with_segments(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The rows, a segment each where others have segments and positions."""
        if not self._has_segments or "segments" in rows:
            return rows
        is_there = rows["weights"] > 0
        segments, positions = segments_and_positions(np.zeros(is_there.shape, bool), is_there)
        return {**rows, "segments": segments, "positions": positions}


class Mixture(Concatenated):
    """Datasets of which each has its share of all rows, however many it has itself."""

    def __init__(self, parts: Sequence[Dataset], weights: Sequence[float]):
        super().__init__(parts)
        self._weights = tuple(weights)

    def order_by(self, batch: int, seed: int) -> "Mixed":
        """The order of its rows."""
        return Mixed([len(part) for part in self.parts], self._weights, batch, seed)


class Mixed:
    """Endless rows of several parts by their weights, each part in epochs of its own."""

    def __init__(self, counts: Sequence[int], weights: Sequence[float], batch: int, seed: int):
        self._counts, self._batch, self._seed = counts, batch, seed
        whole = sum(map(Fraction, weights))
        self._shares = [Fraction(weight) / whole for weight in weights]
        self._largest = self._shares.index(max(self._shares))
        self._size = max(_BLOCK, len(counts) ** 2)  # so that the largest has room for what others are rounded by
        self._offsets = np.cumsum([0, *counts])

    def rows(self, step: int) -> tuple[np.ndarray, int]:
        """The numbers of the examples in a batch, and their bucket."""
        places = np.arange(step * self._batch, (step + 1) * self._batch)
        blocks = places // self._size
        numbers = np.empty(self._batch, np.int64)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            numbers[here] = self._in_block(block, places[here] % self._size)
        return numbers, 0

    def _in_block(self, block: int, places: np.ndarray) -> np.ndarray:
        before, after = self._count_taken(block), self._count_taken(block + 1)
        edges = np.cumsum([0, *(b - a for a, b in zip(before, after, strict=True))])
        shuffled = permute(places, self._size, self._seed, "mixture", block)
        of = np.searchsorted(edges, shuffled, "right") - 1
        numbers = np.empty(len(places), np.int64)
        for part in np.unique(of).tolist():
            rows, count = np.flatnonzero(of == part), self._counts[part]
            epochs, within = np.divmod(before[part] + shuffled[rows] - edges[part], count)
            for epoch in np.unique(epochs).tolist():
                chosen = epochs == epoch
                found = permute(within[chosen], count, self._seed, epoch, "part", part)
                numbers[rows[chosen]] = self._offsets[part] + found
        return numbers

    def _count_taken(self, blocks: int) -> list[int]:
        """How many rows of each part the first so many blocks hold; it never goes down."""
        taken = [math.floor(share * self._size * blocks + Fraction(1, 2)) for share in self._shares]
        taken[self._largest] += self._size * blocks - sum(taken)
        return taken

    def once(self) -> Iterator[tuple[np.ndarray, int]]:
        """The batches of all examples in order; the last has rows -1 at its end."""
        for first in range(0, int(self._offsets[-1]), self._batch):
            rows = np.arange(first, first + self._batch)
            yield np.where(rows < self._offsets[-1], rows, -1), 0

    @property
    def steps(self) -> float:
        """After how many batches every example was there once."""
        longest = max(count / share for count, share in zip(self._counts, self._shares, strict=True))
        return float(longest) / self._batch
