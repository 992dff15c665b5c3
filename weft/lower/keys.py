"""Tensors of random keys as tensors of the numbers they are made of."""

from typing import Any

import jax
import jax.numpy as jnp

from ..dims import UNSHOWN, Dim, Shape
from ..tensor import Tensor, make

_WORDS = f"{UNSHOWN}words"


def words_of(keys: Tensor) -> Tensor:
    """The words of keys, along a dim more."""
    data: Any = jax.random.key_data(keys.raw)
    return make(data, Shape([*keys.dims, Dim(_WORDS, data.shape[-1])]), keys.region, keys.kind)


def keys_of(words: Tensor) -> Tensor:
    """The keys that these are the words of."""
    dims = words.dims.without([_WORDS])
    array = jnp.moveaxis(words.raw, words.dims.position(_WORDS), -1)
    return make(jax.random.wrap_key_data(array), dims, words.region, words.kind)
