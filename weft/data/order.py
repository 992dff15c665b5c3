"""Shuffling: the order of examples as a pure function of the seed and the step.

Any step is reached without going through the others. Imports nothing of the house. It knows numbers of examples alone:
nothing of processes, of meshes or of what is read.

Grain's own shuffle is as direct, but it is not used: its epoch e under seed s is epoch 0 under seed s + e, so that runs
with neighbouring seeds see the same orders; it takes one number at a time; and an order must not change with a version
of a library, since runs go on from where they were.
"""

import hashlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np

_ROUNDS = 4


def permute(numbers: np.ndarray, count: int, *key: int | str) -> np.ndarray:
    """Where a random permutation of range(count), one a key, takes some numbers.

    >>> sorted(permute(np.arange(10), 10, 7).tolist()) == list(range(10))
    True
    """
    if count <= 1:
        return np.zeros_like(numbers)
    keys = _keys(key)
    width = int(np.ceil(np.sqrt(count)))
    height = -(-count // width)
    places = np.array(numbers, np.uint64)
    outside = np.ones(len(places), bool)
    while outside.any():  # a number beyond `count` goes round again: fewer than `width` of all there are
        places[outside] = _feistel(places[outside], np.uint64(width), np.uint64(height), keys)
        outside = places >= count
    return places.astype(np.int64)


def _feistel(numbers: np.ndarray, width: np.uint64, height: np.uint64, keys: np.ndarray) -> np.ndarray:
    """A Feistel network, one to one on the digits of numbers below width × height."""
    high, low = np.divmod(numbers, width)
    for turn in range(_ROUNDS):
        high = (high + _splitmix(low ^ keys[2 * turn]) % height) % height
        low = (low + _splitmix(high ^ keys[2 * turn + 1]) % width) % width
    return high * width + low


def _splitmix(x: np.ndarray) -> np.ndarray:
    """Splitmix's finish: every bit of the result depends on every bit of `x`."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _keys(key: tuple[int | str, ...]) -> np.ndarray:
    written = "|".join(map(str, key)).encode()
    return np.frombuffer(hashlib.blake2b(written, digest_size=16 * _ROUNDS).digest(), "<u8")


class BatchOrder(Protocol):
    """Which examples a batch holds, by its step."""

    def rows(self, step: int) -> tuple[np.ndarray, int]:
        """The numbers of the examples in a batch, and their bucket."""

    def once(self) -> Iterator[tuple[np.ndarray, int]]:
        """The batches of one epoch in order, filled up with rows -1."""

    @property
    def steps(self) -> float:
        """How many batches are an epoch."""


class Shuffled:
    """Endless epochs of all examples, each in an order of its own."""

    def __init__(self, count: int, batch: int, seed: int):
        self._count, self._batch, self._seed = count, batch, seed

    def rows(self, step: int) -> tuple[np.ndarray, int]:
        """The numbers of the examples in a batch, and their bucket."""
        places = np.arange(step * self._batch, (step + 1) * self._batch)
        epochs = places // self._count
        numbers = np.empty(self._batch, np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            numbers[here] = permute(places[here] % self._count, self._count, self._seed, int(epoch))
        return numbers, 0

    def once(self) -> Iterator[tuple[np.ndarray, int]]:
        """The batches of one epoch in order; the last has rows -1 at its end."""
        for first in range(0, self._count, self._batch):
            rows = np.arange(first, first + self._batch)
            yield np.where(rows < self._count, rows, -1), 0

    @property
    def steps(self) -> float:
        """How many batches are an epoch."""
        return self._count / self._batch


class Bucketed:
    """Endless epochs of batches of one bucket each, the last filled up with rows -1."""

    def __init__(self, bucket_of: np.ndarray, batch: int, seed: int):
        self._batch, self._seed = batch, seed
        self._members = np.argsort(bucket_of, kind="stable")
        self._counts = np.bincount(bucket_of)
        self._begins = np.cumsum(self._counts) - self._counts
        self._batches = np.cumsum(-(-self._counts // batch))  # up to and with each bucket

    def rows(self, step: int) -> tuple[np.ndarray, int]:
        """The numbers of the examples in a batch, and their bucket."""
        epoch, place = divmod(step, self.steps)
        chosen = int(permute(np.array([place]), self.steps, self._seed, epoch)[0])
        bucket, places = self._places(chosen)
        there = permute(places[places >= 0], int(self._counts[bucket]), self._seed, epoch, bucket)
        return self._pad(bucket, there), bucket

    def once(self) -> Iterator[tuple[np.ndarray, int]]:
        """The batches of one epoch with nothing shuffled, bucket after bucket."""
        for batch in range(self.steps):
            bucket, places = self._places(batch)
            yield self._pad(bucket, places[places >= 0]), bucket

    @property
    def steps(self) -> int:
        """How many batches are an epoch."""
        return int(self._batches[-1])

    def _places(self, batch: int) -> tuple[int, np.ndarray]:
        """The bucket of an epoch's batch, and its places in it; -1 beyond its end."""
        bucket = int(np.searchsorted(self._batches, batch, "right"))
        first = batch - (int(self._batches[bucket - 1]) if bucket else 0)
        places = np.arange(first * self._batch, (first + 1) * self._batch)
        return bucket, np.where(places < self._counts[bucket], places, -1)

    def _pad(self, bucket: int, places: np.ndarray) -> np.ndarray:
        numbers = np.full(self._batch, -1, np.int64)
        numbers[: len(places)] = self._members[self._begins[bucket] + places]
        return numbers
