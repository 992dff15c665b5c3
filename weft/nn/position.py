"""Positional encodings: sinusoidal, rotary (RoPE), and T5's relative bias."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from .. import ops as wf
from ..dims import UNSHOWN, Dim, new_dims
from ..errors import DimError, closest, public
from ..lower.meet import need_tensor
from ..tensor import Tensor
from .arguments import check_dim, check_number
from .weights import normal

LONGEST_WAVE = 10_000  # of the sinusoids, over 2 pi
QUARTER_TURN = math.pi / 2


@public
def sinusoids(position: Tensor, d_model: Dim, like: Tensor) -> Tensor:
    """The sinusoidal positional encoding, sine and cosine in turn: f32[... d_model]."""
    slope = -2 * math.log(LONGEST_WAVE) / check_dim(d_model, "d_model").size
    channel = wf.arange(d_model, like=like, dtype="float32")
    pair = channel // 2
    is_cosine = channel % 2
    rate = wf.exp(pair * slope)
    angle = wf.cast(position, "float32") * rate + is_cosine * QUARTER_TURN
    return wf.sin(angle)


class RopeScaling(NamedTuple):
    """Llama 3's scaling of RoPE, for sequences longer than those of `length` before.

    Long waves are made slower by `factor`. A wave that turns more than `high` times within `length` stays as it is, one
    that turns less than `low` times is stretched fully.
    """

    factor: float
    low: float
    high: float
    length: int

    def __call__(self, rate: Tensor) -> Tensor:
        turns = rate * (self.length / (2 * math.pi))
        kept = wf.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return rate * (kept + (1.0 - kept) / self.factor)


@public
def rope(
    x: Tensor, position: Tensor, *, over: str = "d_kv", base: float = 10_000.0, stretch: RopeScaling | None = None
) -> Tensor:
    """Rotary position embedding (RoPE): channels i and i + half turned by position."""
    x, position = need_tensor(x, "rope"), need_tensor(position, "rope")
    size = x.size(over)
    if size % 2:
        raise DimError(f"`{over}` has size {size}, and its channels turn in pairs", fix=f"give it {size + 1} or so")
    check_number(base, "base", least=0, below=math.inf, example=10_000.0, may_be_least=False)
    two, half = Dim(f"{UNSHOWN}pair", 2), Dim(f"{UNSHOWN}half", size // 2)
    first, second = wf.unstack(wf.split(wf.cast(x, "float32"), **{over: [two, half]}), over=two)
    rate = wf.exp(wf.arange(half, like=first, dtype="float32") * (-math.log(base) / half.size))
    rate = rate if stretch is None else stretch(rate)
    angle = wf.cast(position, "float32") * rate
    cos, sin = wf.cos(angle), wf.sin(angle)
    if stray := next((dim for dim in position.dims if not x.dims.has(dim)), None):
        raise DimError(
            f"positions [{position.dims}] have `{stray.name}`, which [{x.dims}] has not",
            fix=closest(stray.name, x.dims.without([over]).names),
        )
    turned = wf.stack([first * cos - second * sin, second * cos + first * sin], two)
    merged = wf.merge(turned, [two, half], into=x.dim(over))
    return wf.cast(wf.broadcast(merged, x.dims), x.dtype)


class RelativeBias(eqx.Module):
    """T5's relative position bias of attention, by the distance of key and query."""

    table: Tensor
    is_causal: bool = eqx.field(static=True)
    farthest: int = eqx.field(static=True)

    @public
    def __init__(self, buckets: Dim, heads: Any, *, is_causal: bool, farthest: int = 128, key: Any = None):
        self.is_causal, self.farthest = is_causal, farthest
        exact = check_dim(buckets, "buckets").size // (2 if is_causal else 4)
        if exact < 1:
            raise DimError(
                f"`buckets` has size {buckets.size}, too few for near and far",
                fix=f"give {2 if is_causal else 4}, or more",
            )
        check_number(farthest, "farthest", least=exact, below=math.inf, example=8 * exact, may_be_least=False)
        self.table = normal([buckets, *new_dims(heads, what="heads")], stddev=0.1, key=key, name="table")

    @public
    def __call__(self, query: Tensor, memory: Tensor) -> Tensor:
        """The bias [heads ..] for positions [.. length] and [.. memory_length]."""
        buckets = self.table.dims[0]
        return wf.take(self.table, bucket(memory - query, buckets.size, self.is_causal, self.farthest), over=buckets)

    def buckets(self, distance: Any) -> Any:
        """The rows of the table for an array of distances."""
        return bucket(distance, self.table.dims[0].size, self.is_causal, self.farthest, ops=jnp)


def bucket(distance: Any, buckets: int, is_causal: bool, farthest: int, *, ops: Any = wf) -> Any:
    """T5's buckets of a signed distance: near ones apart, far ones by a logarithm.

    Of a tensor; with `ops=jnp`, of an array.
    """
    cast = wf.cast if ops is wf else ops.astype
    start: Any = 0
    if is_causal:
        away = ops.maximum(-distance, 0)
    else:
        buckets //= 2
        start = ops.where(distance > 0, buckets, 0)
        away = ops.abs(distance)
    exact = buckets // 2
    far = ops.log(cast(ops.maximum(away, 1), "float32") / exact) / math.log(farthest / exact) * (buckets - exact)
    wide = ops.minimum(exact + cast(far, "int32"), buckets - 1)
    return start + ops.where(away < exact, away, wide)
