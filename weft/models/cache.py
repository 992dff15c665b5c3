"""What decoding remembers: keys and values of the tokens so far, for every layer.

Imports the layers. Sequences end at the same place, so that all of a batch take the same next place: a shorter one
begins later.
"""

import dataclasses
from typing import Any

import equinox as eqx

from .. import nn
from .. import ops as wf
from ..dims import Dim, Shape
from ..tensor import Tensor


class Past(eqx.Module):
    """Keys and values of one layer, or of all of them stacked: [.. memory_length heads d_kv]."""

    keys: Tensor
    values: Tensor

    def with_new(self, new: "Past", at: Tensor) -> "Past":
        """With the keys and values of one token in place `at`."""
        return Past(
            wf.update(self.keys, new.keys, over="memory_length", at=at),
            wf.update(self.values, new.values, over="memory_length", at=at),
        )

    def padded(self, room: int) -> "Past":
        """With room for so many places."""
        after = room - self.keys.size("memory_length")
        return Past(*(wf.pad(x, over="memory_length", after=after) for x in (self.keys, self.values)))


class Cache(eqx.Module):
    """The pasts of all layers of a decoder, and where in them the next token goes."""

    past: Past
    at: Tensor
    """The place of the next token."""
    first: Tensor | None
    """The place of the first token of each sequence, where they are not all 0."""
    memory: Past | None = None
    """Keys and values of what an encoder made."""
    memory_segments: Tensor | None = None

    @property
    def position(self) -> Tensor:
        """The position of the next token in its sequence."""
        return self.at if self.first is None else self.at - self.first

    def mask(self, window: int | None) -> nn.Mask:
        """What the next token sees."""
        there = wf.arange(self.past.keys.dim("memory_length"), like=self.past.keys)
        if self.first is None:
            return nn.Mask(causal=True, window=window, positions=self.position, memory_positions=there)
        there = there - self.first
        return nn.Mask(
            causal=True,
            window=window,
            positions=self.position,
            memory_positions=there,
            segments=wf.ones(self.first.dims, like=self.first, dtype="int32"),
            memory_segments=wf.cast(there >= 0, "int32"),
        )

    @property
    def memory_mask(self) -> nn.Mask:
        """What the next token sees of the encoder's sequence."""
        if self.memory_segments is None:
            return nn.Mask()
        one = wf.ones(self.memory_segments.dims.without(["memory_length"]), like=self.memory_segments, dtype="int32")
        return nn.Mask(segments=one, memory_segments=self.memory_segments)

    def after(self, new: Past) -> "Cache":
        """With the next token in its place."""
        return dataclasses.replace(self, past=self.past.with_new(new, self.at), at=self.at + 1)

    def spread(self, dim: Dim) -> "Cache":
        """With a dim of continuations beside `batch`, which all begin the same."""

        def wider(x: Tensor) -> Tensor:
            at = x.dims.position("batch") + 1
            return wf.broadcast(x, Shape([*x.dims[:at], dim, *x.dims[at:]]))

        return self.map_past(wider)

    def map_past(self, fn: Any) -> "Cache":
        """With `fn` of the keys and of the values."""
        return dataclasses.replace(self, past=Past(fn(self.past.keys), fn(self.past.values)))
