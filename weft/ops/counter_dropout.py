"""Dropout of models and of attention's shares, by key and global index.

The bits are those of `weft.kernels.counter`, a function of the key and of an element's index in the whole, so that they
are the same however a program is laid out and attention is done. They take a tenth of the work of `jax.random`'s, which
`wf.dropout` keeps. Of shares, dims before `length` count the rows of the batch, those after it the heads.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..dims import Dim
from ..kernels import counter
from ..layout import Placement, axes_in
from ..lower.collectives import as_varying, first_place, varying
from ..lower.dealt import Dealt, dealt_among
from ..lower.move import result
from ..lower.recorded import recorded
from ..tensor import Tensor
from .create import slice_of
from .elementwise import cast, where
from .random import check_rate, global_index, key_words, need_key, slice_places


class ShareIndex(NamedTuple):
    """Of shares the global index of the row of the batch, head, query and key."""

    batch: Any
    head: Any
    query: Any
    key: Any


def index_shares(dims: Sequence[Dim], index: Mapping[str, Any], dealt: Dealt | None, number: Any) -> ShareIndex:
    """The index of shares of these dims (queries', and `memory_length`).

    `index` says for each dim the global index, as arrays that broadcast; `number` which rows are dealt out, if any are.
    """
    names = [dim.name for dim in dims]
    rows = None if dealt is None else dealt.position(dims)
    at = names.index("length") if "length" in names else len(names)
    totals = [jnp.uint32(0), jnp.uint32(0)]
    for i, dim in enumerate(dims):
        if dim.name in ("length", "memory_length"):
            continue
        here, count = index[dim.name].astype("uint32"), dim.count
        if dealt is not None and i == rows:
            here, count = here * jnp.uint32(dealt.count) + number.astype("uint32"), count * dealt.count
        totals[i > at] = totals[i > at] * jnp.uint32(count) + here
    batch, head = totals
    return ShareIndex(batch, head, index.get("length", jnp.uint32(0)), index["memory_length"])


@recorded(name="dropout")
def drop(x: Tensor, rate: float, key: Any) -> Tensor:
    """Dropout of a model's tensor, by the global index of its elements."""
    rate = check_rate(rate)
    shape, region, placement, sizes = slice_of(x.dims, x, "dropout")
    dealt = dealt_among(shape)
    is_long = math.prod(dim.count for dim in shape) * (1 if dealt is None else dealt.count) > 2**32

    @functools.partial(jax.checkpoint, prevent_cse=False)  # bits are drawn again: cheaper than to keep them
    def apply(array: Any, words: Any) -> Any:
        number = None if dealt is None else words[2]
        high, low = global_index(shape, slice_places(placement, sizes)(None), sizes, dealt, number)
        if not is_long:
            high = jnp.uint32(0)  # one number, hashed once
        kept = counter.keep_elements(words[0] + low, words[1] + high, rate)
        return jnp.where(kept, (array / (1 - rate)).astype(array.dtype), jnp.zeros((), array.dtype))

    words = _words_here(key, dealt, placement)
    return result(apply(as_varying(x.raw, varying(words)), words), shape, region)


def _along(placement: Placement, sizes: Sequence[int], position: int) -> Any:
    """The global index of this processor's slice along a dim, which broadcasts."""
    sides = [1] * len(sizes)
    sides[position] = sizes[position]
    start = jnp.asarray(first_place(placement[position], sizes[position])).astype("uint32")
    return (start + jnp.arange(sizes[position], dtype="uint32")).reshape(sides)


@recorded(name="dropout")
def drop_shares(share: Tensor, rate: float, key: Any, *, dims: Sequence[Dim]) -> Tensor:
    """Dropout of shares, whose dims `dims` has in order, by their global index."""
    shape, region, placement, sizes = slice_of(share.dims, share, "dropout")
    dealt = dealt_among(dims)
    words = _words_here(key, dealt, placement)

    index = {dim.name: as_varying(_along(placement, sizes, i), varying(words)) for i, dim in enumerate(shape)}
    own = index_shares(dims, index, dealt, None if dealt is None else words[2])
    kept = result(counter.keep(words[:2], rate, **own._asdict()), shape, region)
    return where(kept, cast(share / (1 - rate), share.dtype), jnp.zeros((), share.dtype))


def _words_here(key: Any, dealt: Dealt | None, placement: Placement) -> Any:
    words = key_words(need_key(key, "dropout"), dealt)
    return as_varying(words, frozenset(axes_in(placement)) | varying(words))


__all__ = ["ShareIndex", "drop", "drop_shares", "index_shares"]
