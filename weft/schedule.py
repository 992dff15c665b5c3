"""Who works on what at which turn of a pipeline or a ring, as plain numbers.

The ops note one with their entry, and read their own counts off it. Imports nothing of weft.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineSchedule:
    """Which microbatch each processor of a pipeline works on at each tick."""

    axes: tuple[str, ...]
    """Over which the stages are split."""
    ways: int
    stages: int
    """How many stages a processor has, of each round."""
    microbatches: int
    passes: int = 1
    """How often a microbatch passes a processor: the rounds."""

    @property
    def work(self) -> int:
        """How many ticks a processor works."""
        return self.microbatches * self.passes

    @property
    def turns(self) -> int:
        """All ticks, with those in which the pipeline fills and empties (the bubble)."""
        return self.work + self.ways - 1

    @property
    def idle(self) -> tuple[int, int]:
        """In how many ticks of how many a processor has no work."""
        return self.ways - 1, self.turns

    def at(self, place: int, tick: int) -> tuple[int, int] | None:
        """The round and the microbatch a processor works on; None in the bubble.

        >>> [PipelineSchedule(("p",), 2, 1, 2).at(1, tick) for tick in range(3)]
        [None, (0, 0), (0, 1)]
        """
        done = tick - place
        return divmod(done, self.microbatches) if 0 <= done < self.work else None

    def stages_at(self, place: int, turn: int) -> range:
        """The numbers of the stages that a processor runs in a round."""
        first = (turn * self.ways + place) * self.stages
        return range(first, first + self.stages)


@dataclass(frozen=True)
class RingSchedule:
    """Whose keys each processor of a ring has at each turn, and who sees them."""

    axes: tuple[str, ...]
    ways: int
    hops: int
    """How often keys move on."""
    is_zigzag: bool
    """Whether a processor holds the i-th and the i-th last of 2n pieces; else the i-th of n."""
    is_causal: bool
    """Whether no query sees a key after it; where that is not known before, False."""
    own: int
    """How many keys a processor holds."""
    window: int | None = None
    """Of causal queries how many keys back they see, where that is said."""

    @property
    def turns(self) -> int:
        return self.hops + 1

    def holder(self, place: int, turn: int) -> int:
        """The processor whose keys are here."""
        return (place - turn) % self.ways

    def pieces(self, place: int) -> tuple[int, ...]:
        """The numbers of the pieces of the sequence that a processor holds."""
        return (place, 2 * self.ways - 1 - place) if self.is_zigzag else (place,)

    def blocks(self, place: int, turn: int) -> Iterator[tuple[int, int, str]]:
        """Pieces of queries and of keys that meet: `full`, `part` or `none` is seen."""
        for query in self.pieces(place):
            for key in self.pieces(self.holder(place, turn)):
                yield query, key, self._share_seen(query, key)

    def _share_seen(self, query: int, key: int) -> str:
        if not self.is_causal:
            return "full"
        size = self.own // len(self.pieces(0))
        nearest, farthest = (query - key) * size - (size - 1), (query - key) * size + (size - 1)
        if farthest < 0 or (self.window is not None and nearest >= self.window):
            return "none"
        return "full" if nearest >= 0 and (self.window is None or farthest < self.window) else "part"


Schedule = PipelineSchedule | RingSchedule
