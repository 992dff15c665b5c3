"""The KV cache: keys and values of the tokens decoded so far, for every layer.

Sequences end at the same place, so that all of a batch take the same next place: a shorter one begins later.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax

from .. import nn
from .. import ops as wf
from ..dims import Dim, Shape
from ..tensor import Tensor, is_tensor


class KeysValues(NamedTuple):
    """Keys and values of a layer, or of all stacked: [.. memory_length heads d_kv]."""

    keys: Tensor
    values: Tensor

    def with_token(self, new: "KeysValues", at: Tensor) -> "KeysValues":
        """With the keys and values of one token in place `at`."""
        return KeysValues(*(wf.update(x, y, over="memory_length", at=at) for x, y in zip(self, new, strict=True)))

    def pad(self, room: int) -> "KeysValues":
        """With room for so many places."""
        after = room - self.keys.size("memory_length")
        return KeysValues(*(wf.pad(x, over="memory_length", after=after) for x in self))


class KVCache(eqx.Module):
    """The KV cache of a decoder: keys and values, and where the next token goes."""

    past: KeysValues | tuple[KeysValues, ...]
    """Of all layers stacked; or of each by itself (`apart`)."""
    at: Tensor
    """The place of the next token."""
    first: Tensor | None
    """The place of the first token of each sequence, where they are not all 0."""
    memory: KeysValues | tuple[KeysValues, ...] | None = None
    """Keys and values of cross-attention, for what an encoder made."""
    memory_segments: Tensor | None = None

    def apart(self) -> "KVCache":
        """With each layer's by themselves: changed in place, none is sliced from others."""
        memory = _each_layer(self.memory) if isinstance(self.memory, KeysValues) else self.memory
        past = _each_layer(self.past) if isinstance(self.past, KeysValues) else self.past
        return dataclasses.replace(self, past=past, memory=memory)

    @property
    def keys(self) -> Tensor:
        """The keys of all layers, or those of the first."""
        return self.past.keys if isinstance(self.past, KeysValues) else self.past[0].keys

    @property
    def position(self) -> Tensor:
        """The position of the next token in its sequence."""
        return self.at if self.first is None else self.at - self.first

    def positions_of(self, x: Tensor) -> Tensor:
        """The position of the next token, or of as many as `x` has along `length`."""
        return self.position + wf.arange(x.dim("length"), like=x) if x.dims.has("length") else self.position

    def mask(self, of: Tensor) -> nn.Mask:
        """What the next token sees, or as many as `of` has along `length`."""
        here = self.positions_of(of)
        there = wf.arange(self.keys.dim("memory_length"), like=self.keys)
        if self.first is None:
            return nn.Mask(causal=True, positions=here, memory_positions=there)
        there = there - self.first
        return nn.Mask(
            causal=True,
            positions=here,
            memory_positions=there,
            segments=wf.ones(here.dims, like=self.first, dtype="int32"),
            memory_segments=wf.cast(there >= 0, "int32"),
        )

    @property
    def memory_mask(self) -> nn.Mask:
        """What the next token sees of the encoder's sequence."""
        if self.memory_segments is None:
            return nn.Mask()
        one = wf.ones(self.memory_segments.dims.without(["memory_length"]), like=self.memory_segments, dtype="int32")
        return nn.Mask(segments=one, memory_segments=self.memory_segments)

    def after(self, new: KeysValues) -> "KVCache":
        """With the next tokens in their places, of all layers stacked."""
        assert isinstance(self.past, KeysValues)
        count = new.keys.size("memory_length") if new.keys.dims.has("memory_length") else 1
        return dataclasses.replace(self, past=self.past.with_token(new, self.at), at=self.at + count)

    def advance(self, past: tuple[KeysValues, ...], by: int) -> "KVCache":
        """With keys and values in which the next `by` tokens are in their places."""
        return dataclasses.replace(self, past=past, at=self.at + by)

    def spread(self, dim: Dim) -> "KVCache":
        """With a dim of continuations beside `batch`, which all begin the same."""

        def spread(x: Tensor) -> Tensor:
            at = x.dims.position("batch") + 1
            return wf.broadcast(x, Shape([*x.dims[:at], dim, *x.dims[at:]]))

        return self.map_past(spread)

    def map_past(self, fn: Any) -> "KVCache":
        """With `fn` of the keys and of the values."""
        return dataclasses.replace(self, past=jax.tree.map(fn, self.past, is_leaf=is_tensor))


def _each_layer(stacked: KeysValues) -> tuple[KeysValues, ...]:
    return tuple(map(KeysValues, *(wf.unstack(x, over="layers") for x in stacked)))
