"""The attention mask: which keys a query sees, by positions and segments."""

import dataclasses
from typing import Any

import equinox as eqx

from .. import ops as wf
from ..checks import is_whole
from ..dims import Dim
from ..errors import TensorError, public
from ..tensor import Tensor


def _as_int(value: Any) -> Any:
    """A whole number of NumPy's as Python's, which is static as any other."""
    return int(value) if is_whole(value) else value


@public
class Mask(eqx.Module):
    """The attention mask: causal, a sliding window, a prefix (prefix LM), segments.

    Positions count from 0 where none are given; segments of a packed batch do not see each other.
    """

    causal: bool = eqx.field(static=True, default=False)
    window: int | None = eqx.field(static=True, default=None, converter=_as_int)
    """How many places back are seen, the own one counted (and as many ahead, where not causal)."""
    prefix: Tensor | None = None
    """How many positions at the start all see each other, for each of the batch."""
    positions: Tensor | None = None
    memory_positions: Tensor | None = None
    segments: Tensor | None = None
    memory_segments: Tensor | None = None
    is_within: bool = eqx.field(static=True, default=False)
    """Whether queries and keys are the same places (self-attention): each then sees itself."""
    is_in_order: bool = eqx.field(static=True, default=False)
    """Whether positions count up by one along each segment: causal and window then go by place."""

    def __check_init__(self) -> None:
        if self.window is not None and not is_whole(self.window, least=1):
            raise TensorError(f"`window` is {self.window!r}", fix="give a whole number from 1 on: the own place counts")
        if self.prefix is not None and not self.causal:
            raise TensorError("a mask has a prefix, and all see all already", fix="say `causal=True`, or no prefix")
        if (self.segments is None) != (self.memory_segments is None):
            missing = "segments" if self.segments is None else "memory_segments"
            raise TensorError(
                f"a mask has only one side of segments: no `{missing}`", fix="give both, or `Mask.within`"
            )

    @classmethod
    @public
    def within(cls, *, positions: Tensor | None = None, segments: Tensor | None = None, **how: Any) -> "Mask":
        """The mask of self-attention: queries and keys have the same positions."""

        def of_keys(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.rename(length="memory_length")

        return cls(
            positions=positions,
            memory_positions=of_keys(positions),
            segments=segments,
            memory_segments=of_keys(segments),
            is_within=True,
            **how,
        )

    def with_window(self, window: int | None) -> "Mask":
        """The mask with another window, or with none."""
        return self if window == self.window else dataclasses.replace(self, window=window)

    def query_positions(self, q: Tensor) -> Tensor:
        """Where each query stands in its sequence."""
        if self.positions is not None:
            return self.positions
        if q.dims.has("stream"):
            return wf.arange(Dim("length", q.size("stream")), like=q)
        return wf.arange("length", like=q)

    def key_positions(self, k: Tensor) -> Tensor:
        """Where each key stands in its sequence."""
        return wf.arange("memory_length", like=k) if self.memory_positions is None else self.memory_positions

    def query_places(self, q: Tensor) -> Tensor:
        """By what causal, window and a relative bias go: positions, or places in order."""
        return (Mask() if self.goes_by_place else self).query_positions(q)

    def key_places(self, k: Tensor) -> Tensor:
        """As `query_places`, of keys."""
        return (Mask() if self.goes_by_place else self).key_positions(k)

    @property
    def goes_by_place(self) -> bool:
        """Whether positions that are given say nothing that places do not."""
        return self.is_in_order and self.prefix is None

    def is_seen(self, q: Any, k: Any, *, at: tuple[Any, Any] | None = None) -> Any:
        """True where a query sees a key; None where all see all.

        With `at`, positions of both, all is of arrays: these and the mask's own.
        """
        conditions: list[Any] = []
        if self.causal or self.window is not None:
            here, there = (self.query_places(q), self.key_places(k)) if at is None else at
        if self.causal:
            is_before = there <= here
            conditions.append(is_before if self.prefix is None else is_before | (there < self.prefix))
        if self.window is not None:
            conditions.append(there > here - self.window)
            if not self.causal:
                conditions.append(there < here + self.window)
        if self.segments is not None and self.memory_segments is not None:
            conditions.append(self.memory_segments == self.segments)
        is_seen = None
        for condition in conditions:
            is_seen = condition if is_seen is None else is_seen & condition
        return is_seen
