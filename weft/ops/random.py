"""Random tensors whose bits do not depend on the layout.

Each processor makes its own slice of the bits `jax.random` would make for the whole: threefry, run on the global
row-major index of every local element. Samplers are JAX's own, given a key whose bits are made that way.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.extend.random as extended
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..dims import Dim, DimLike, Dims, Shape, only, resolve
from ..dtypes import DTypeLike, is_key
from ..elsewhere import RANDOM
from ..errors import DimError, TensorError
from ..layout import Placement, axes_in, open_region
from ..lower.collectives import as_varying, index, varying
from ..lower.dealt import Dealt, dealt_among
from ..lower.meet import need_tensor, operand
from ..lower.move import result
from ..lower.recorded import recorded
from ..namespace import namespace
from ..tensor import Tensor, as_dtype, is_tensor, make
from .create import slice_of
from .elementwise import cast, where
from .order import argmax


@recorded(is_compiled=False)
def normal(key: Any, dims: Dims, *, like: Tensor | None = None, dtype: DTypeLike = float) -> Tensor:
    """Samples of the standard normal distribution."""
    kind = _float(dtype, "random.normal")
    return _sample(key, dims, like, "random.normal", lambda k, sizes: jax.random.normal(k, sizes, kind))


@recorded(is_compiled=False)
def uniform(
    key: Any, dims: Dims, *, like: Tensor | None = None, dtype: DTypeLike = float, minval: Any = 0.0, maxval: Any = 1.0
) -> Tensor:
    """Samples uniform in [minval, maxval)."""
    low, high, kind = _number(minval, "minval"), _number(maxval, "maxval"), _float(dtype, "random.uniform")
    _check_order(low, high, "random.uniform", "maxval")
    return _sample(
        key, dims, like, "random.uniform", lambda k, sizes: jax.random.uniform(k, sizes, kind, minval=low, maxval=high)
    )


@recorded(is_compiled=False)
def truncated_normal(
    key: Any, dims: Dims, *, like: Tensor | None = None, dtype: DTypeLike = float, lower: Any = -2.0, upper: Any = 2.0
) -> Tensor:
    """Samples of the standard normal distribution between `lower` and `upper`."""
    low, high, kind = _number(lower, "lower"), _number(upper, "upper"), _float(dtype, "random.truncated_normal")
    _check_order(low, high, "random.truncated_normal", "upper")
    return _sample(
        key,
        dims,
        like,
        "random.truncated_normal",
        lambda k, sizes: jax.random.truncated_normal(k, low, high, sizes, kind),
    )


@recorded(is_compiled=False)
def bernoulli(key: Any, dims: Dims, *, like: Tensor | None = None, p: Any = 0.5) -> Tensor:
    """True with probability `p`."""
    chance = _number(p, "p")
    if isinstance(chance, int | float):
        if not 0 <= chance <= 1:
            raise TensorError(f"random.bernoulli got p={p}", fix="give a chance in [0, 1], e.g. 0.5")
        chance = float(chance)
    return _sample(key, dims, like, "random.bernoulli", lambda k, sizes: jax.random.bernoulli(k, chance, sizes))


@recorded(is_compiled=False)
def gumbel(key: Any, dims: Dims, *, like: Tensor | None = None, dtype: DTypeLike = float) -> Tensor:
    """Samples of the standard Gumbel distribution."""
    kind = _float(dtype, "random.gumbel")
    return _sample(key, dims, like, "random.gumbel", lambda k, sizes: jax.random.gumbel(k, sizes, kind, mode="low"))


@recorded(is_compiled=False)
def randint(
    key: Any, dims: Dims, *, minval: Any, maxval: Any, like: Tensor | None = None, dtype: DTypeLike = int
) -> Tensor:
    """Whole numbers uniform in [minval, maxval)."""
    kind = as_dtype(dtype)
    if not jnp.issubdtype(kind, jnp.integer):
        raise TensorError(f"random.randint cannot give {kind}", fix="ask for an integer dtype, e.g. 'int32'")
    low, high = _whole(minval, "minval"), _whole(maxval, "maxval")
    if isinstance(low, int) and isinstance(high, int) and high <= low:
        raise TensorError(f"random.randint got [{low}, {high}), which is empty", fix=f"give `maxval={low + 1}` or more")
    return _sample(
        key, dims, like, "random.randint", lambda k, sizes: jax.random.randint(k, sizes, low, high, dtype=kind)
    )


@recorded(is_compiled=False)
def categorical(key: Any, logits: Tensor, *, over: DimLike) -> Tensor:
    """A place along the dim `over` for each of the rest, by chances softmax(logits)."""
    what = "random.categorical"
    logits = need_tensor(logits, what)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TensorError(
            f"{what} got logits {logits!r}", fix="give log chances as floats: `wf.cast(logits, 'float32')`"
        )
    key, dim = need_key(key, what), only(resolve(over, logits.dims, what="over"), what)
    noise = gumbel(key, logits.dims, like=logits, dtype=logits.dtype)
    return argmax(noise + logits, over=dim)


@recorded(is_compiled=False)
def split(key: Any, dim: Dim) -> Tensor:
    """Keys along a new dim, for `wf.scan` and `wf.vmap`; samplers take one."""
    key = need_key(key, "random.split")
    if not isinstance(dim, Dim):
        fix = f"give a dim: `wf.Dim('copies', {dim if isinstance(dim, int) else 4})`"
        raise DimError(f"random.split got {dim!r} for its new dim", fix=fix)
    if (region := open_region()) is not None:
        region.axes([dim])  # a rule may name it
    return make(jax.random.split(key, dim.size), (dim,), None)


@recorded(is_compiled=False)
def dropout(x: Tensor, rate: Any, key: Any) -> Tensor:
    """Dropout: values zero with probability `rate`, the rest scaled to keep the mean."""
    x, rate = need_tensor(x, "dropout"), check_rate(rate)
    if isinstance(rate, int | float) and rate == 0:
        return x
    keep = 1 - rate
    mask = bernoulli(need_key(key, "dropout"), x.dims, like=x, p=keep)
    return where(mask, cast(x / keep, x.dtype), jnp.zeros((), x.dtype))


def check_rate(rate: Any) -> Any:
    """The rate of dropout, if it is one."""
    rate = _number(rate, "rate")
    if isinstance(rate, int | float) and not 0 <= rate < 1:
        raise TensorError(f"dropout got rate {rate}", fix="give a rate in [0, 1), e.g. 0.1")
    return rate


def _float(dtype: DTypeLike, what: str) -> Any:
    dtype = as_dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TensorError(
            f"{what} cannot give {dtype}", fix="ask for a float dtype, e.g. 'float32', and cast the samples"
        )
    return dtype


def _number(value: Any, what: str) -> Any:
    if is_key(value):
        raise TensorError(f"`{what}` is a random key", fix="mind the order: `wf.dropout(x, rate, key)`")
    value = operand(value, f"random ({what})")
    if is_tensor(value):
        if value.dims:
            raise TensorError(f"`{what}` is {value!r}", fix="give one number; scale the samples for more")
        return value.local_array
    return value.item() if isinstance(value, np.generic) else value


def _check_order(low: Any, high: Any, what: str, name: str) -> None:
    """Raises where two numbers that are known are the wrong way round."""
    if isinstance(low, int | float) and isinstance(high, int | float) and high < low:
        fix = f"give the smaller one first, and `{name}` above {low}"
        raise TensorError(f"{what} lies between {low} and {high}, the wrong way round", fix=fix)


def _whole(value: Any, what: str) -> Any:
    if isinstance(value, int) and not -(2**31) <= value < 2**32 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise TensorError(f"`{what}` is {value}, which 32 bits cannot hold", fix=f"give at most {2**32 - 1}")
    value = _number(value, what)
    dtype = getattr(value, "dtype", None)
    if isinstance(value, bool) or not (isinstance(value, int) or (dtype is not None and dtype.kind in "iu")):
        raise TensorError(f"`{what}` is {value!r}", fix=f"give a whole number, e.g. `{what}=8`")
    return value


def _sample(key: Any, dims: Dims, like: Tensor | None, what: str, sampler: Any) -> Tensor:
    """The slice that is due here of `sampler` on the whole shape."""
    key = need_key(key, what)
    shape, region, placement, sizes = slice_of(dims, like, what)
    dealt = dealt_among(shape)
    is_sliced = any(placement) or shape.is_padded or dealt is not None
    if is_sliced or not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        data = as_varying(key_words(key, dealt), axes_in(placement))
        places = slice_places(placement, sizes)
        key = jax.random.wrap_key_data(data, impl=_key_of_places(shape, places, sizes, dealt=dealt))
    return result(sampler(key, sizes), shape, region)


def key_words(key: Any, dealt: Dealt | None) -> Any:
    """The words of a key, and one more for which rows are dealt out."""
    data = jax.random.key_data(key)
    if dealt is None:
        return data
    number = jnp.asarray(dealt.number).astype("uint32")[None]
    axes = varying(data) | varying(number)
    return jnp.concatenate([as_varying(data, axes), as_varying(number, axes)])


def need_key(key: Any, what: str) -> Any:
    if is_tensor(key) and not key.dims:  # one of those `split` made
        key = key.local_array
    if is_tensor(key) and is_key(key):
        raise TensorError(
            f"{what} got a tensor of keys, [{key.dims}]",
            fix=f"take one at a time: `wf.scan(fn, carry, keys, over='{key.dims[0].name}')`, or wf.vmap",
        )
    if key is None:
        raise TensorError(f"{what} got no key", fix="give one made by `jax.random.key(seed)`")
    if not is_key(key) or key.shape != ():
        raise TensorError(
            f"{what} got {getattr(key, 'dtype', type(key).__name__)}{list(getattr(key, 'shape', []))} for its key",
            fix="give one key made by `jax.random.key(seed)` (`jax.random.PRNGKey` makes old-style ones)",
        )
    if str(key.dtype) != "key<fry>":
        raise TensorError(
            f"{what} got a key of kind {key.dtype}, whose bits depend on the layout",
            fix="make it by `jax.random.key(seed)`",
        )
    return key


def _key_of_places(
    shape: Shape,
    places: Callable[[Any], Iterable[Any]],
    sizes: tuple[int, ...],
    *,
    dealt: Dealt | None,
) -> Any:
    """A kind of key with the bits that some places have of the (unpadded) whole.

    `places` gives the global index along each dim, of what the key's data hold beyond the key itself: a kind of key can
    close over no traced number. Where rows are dealt out, which ones is the first of these words.
    """

    def random_bits(data: Any, width: int, asked: tuple[int, ...]) -> Any:
        if tuple(asked) != sizes:
            raise AssertionError(f"a sampler asked for bits of shape {asked} to fill {sizes}")
        words = data[2:] if dealt is None else data[3:]
        high, low = global_index(shape, places(words), sizes, dealt, None if dealt is None else data[2])
        first, second = extended.threefry2x32_p.bind(data[0], data[1], high, low)
        if width == 64:
            return (first.astype("uint64") << 32) | second.astype("uint64")
        return lax.convert_element_type(first ^ second, f"uint{width}")

    def split(data: Any, shape: Any) -> Any:
        keys = standard.split(data[:2], shape)
        return jnp.concatenate([keys, jnp.broadcast_to(data[2:], (*shape, data.size - 2))], axis=-1)

    standard: Any = extended.threefry_prng_impl
    words_count = 2 + (dealt is not None)
    return extended.define_prng_impl(
        key_shape=(words_count,),
        seed=standard.seed,
        split=standard.split if words_count == 2 else split,
        random_bits=random_bits,
        fold_in=standard.fold_in,
        name="weft_slice",
        tag="weft",
    )


def slice_places(placement: Placement, sizes: tuple[int, ...]) -> Callable[[Any], Iterator[Any]]:
    """The global indices along each dim of this processor's slice."""

    def places(_: Any) -> Iterator[Any]:
        for position, axes in enumerate(placement):
            here = lax.broadcasted_iota("uint32", sizes, position)
            yield here + index(axes).astype("uint32") * jnp.uint32(sizes[position]) if axes else here

    return places


def global_index(
    shape: Shape, places: Iterable[Any], sizes: tuple[int, ...], dealt: Dealt | None, number: Any
) -> tuple[Any, Any]:
    """The row-major index in the whole of each local element: high and low word."""
    high = low = jnp.zeros(sizes, "uint32")
    rows = None if dealt is None else dealt.position(shape)
    counts = [dim.count * (dealt.count if dealt is not None and i == rows else 1) for i, dim in enumerate(shape)]
    is_long = math.prod(counts) > 2**32
    for i, (here, count) in enumerate(zip(places, counts, strict=True)):
        if dealt is not None and i == rows:
            here = here * jnp.uint32(dealt.count) + number
        if is_long:
            high = high * jnp.uint32(count) + _high_product(low, count)
        total = low * jnp.uint32(count) + here
        if is_long:
            high = high + (total < here).astype("uint32")
        low = total
    return high, low


def _high_product(a: Any, b: int) -> Any:
    """The high word of the 64-bit product of a 32-bit word and a number below 2**32."""
    half = jnp.uint32(0xFFFF)
    a0, a1 = a & half, a >> 16
    b0, b1 = jnp.uint32(b & 0xFFFF), jnp.uint32(b >> 16)
    middle = a1 * b0 + ((a0 * b0) >> 16)
    return a1 * b1 + (middle >> 16) + ((a0 * b1 + (middle & half)) >> 16)


__all__ = [
    "bernoulli", "categorical", "gumbel", "normal", "randint", "split", "truncated_normal", "uniform",
]  # fmt: skip

__dir__, __getattr__ = namespace(globals(), called="wf.random", written=RANDOM)
