"""The counter generator of models' dropout: bits by key and global index.

Whether the share of query q and key k is kept, in row b of the batch and head h, is a function of the key and of (b, h,
q, k) alone, so that a layout, blocks of scores and a fused kernel all draw the same. In words of 32 bits:

    s0, s1 = threefry2x32(key, (b, h))                     the generator of jax.random
    row    = mix(s0 + q)
    column = mix(s1 + (k div 128) * 64 + k mod 64)         two keys, 64 apart, have one column
    word   = scramble(row ^ column)
    kept   = word < (1 - rate) * 2**32                     of the later of the two: its low half, word << 16

`mix` is a full hash of a word (two multiplications, three shifts), made once for each row and column. Only `scramble`,
two multiplications and a shift, is made for each pair of shares: that is what a kernel can afford beside its products.

Of other tensors the element whose row-major index in the whole has these two words is kept where

    word   = mix(mix(key0 + low) ^ mix(key1 + high)) < (1 - rate) * 2**32
"""

from typing import Any

import jax.extend.random as extended
import jax.numpy as jnp
import numpy as np

APART = 64
"""How far apart two keys are that take their bits from one word."""


def streams(words: Any, batch: Any, head: Any) -> tuple[Any, Any]:
    """Two words for each row of the batch and head; `words` are those of a key."""
    batch, head = jnp.broadcast_arrays(jnp.asarray(batch).astype("uint32"), jnp.asarray(head).astype("uint32"))
    first, second = extended.threefry2x32_p.bind(
        jnp.broadcast_to(words[0], batch.shape), jnp.broadcast_to(words[1], batch.shape), batch, head
    )
    return first, second


def rows(stream: Any, query: Any) -> Any:
    """The words of queries; `stream` is the first of `streams`."""
    return mix(stream + jnp.asarray(query).astype("uint32"))


def columns(stream: Any, key: Any) -> Any:
    """The words of keys; `stream` is the second of `streams`."""
    key = jnp.asarray(key).astype("uint32")
    return mix(stream + key // (2 * APART) * APART + key % APART)


def is_later(key: Any) -> Any:
    """Whether keys are the later ones of the two that share a word."""
    return jnp.asarray(key).astype("uint32") // APART % 2 == 1


def mix(x: Any) -> Any:
    """A hash of words of 32 bits, one to one (lowbias32)."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def scramble(x: Any) -> Any:
    """A hash of words that are mixed already, one to one."""
    x = x * np.uint32(0x7FEB352D)
    return (x ^ (x >> 15)) * np.uint32(0x846CA68B)


def threshold(rate: float) -> Any:
    """Below which words keep a share."""
    return np.uint32(min(round((1 - rate) * 2**32), 2**32 - 1))


def keep(words: Any, rate: float, *, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """Where dropout keeps shares, at global indices that broadcast."""
    first, second = streams(words, batch, head)
    word = scramble(rows(first, query) ^ columns(second, key))
    return jnp.where(is_later(key), word << 16, word) < threshold(rate)


def keep_elements(low: Any, high: Any, rate: float) -> Any:
    """Where dropout keeps elements, by the two words of index and key added up."""
    return mix(mix(low) ^ mix(high)) < threshold(rate)
