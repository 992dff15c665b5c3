"""Positional encodings: sinusoidal, rotary (RoPE), and T5's relative bias."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .. import ops as wf
from ..dims import UNSHOWN, Dim, new_dims
from ..errors import DimError, closest, public
from ..lower.meet import need_tensor
from ..tensor import Tensor, tensor
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


ROPE_SCALINGS = ("llama3", "linear", "dynamic", "yarn", "longrope")


class RopeScaling(NamedTuple):
    """Scaling of RoPE, for sequences longer than those of `length` before.

    `linear` makes all waves slower by `factor`. `llama3` does so with long ones: a wave that turns more than `high`
    times within `length` stays as it is, one that turns less than `low` times is stretched fully; `yarn` the same by
    a ramp along the channels, from whole ones on if `truncated`. `dynamic` (NTK) stretches by how far the last
    position is beyond `length`. `longrope` makes each wave slower by a number of its own, one of `short` while no
    position is beyond `length`, else one of `long`. What is turned is also made larger by `amplitude`.
    """

    factor: float
    low: float
    high: float
    length: int
    kind: str = "llama3"
    amplitude: float = 1.0
    truncated: bool = True
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    def __call__(self, rate: Tensor, base: float, position: Tensor) -> Tensor:
        """The rates of the waves of channels, those of a base, as scaled."""
        if self.kind == "linear":
            return rate / self.factor
        if self.kind == "dynamic":
            return self._by_length(rate, position)
        if self.kind == "longrope":
            return rate / self._of_each(rate, position)
        kept = self._keep_along(rate, base) if self.kind == "yarn" else self._keep_turns(rate)
        return rate * (kept + (1.0 - kept) / self.factor)

    def _keep_turns(self, rate: Tensor) -> Tensor:
        turns = rate * (self.length / (2 * math.pi))
        return wf.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)

    def _keep_along(self, rate: Tensor, base: float) -> Tensor:
        (half,) = rate.dims

        def channel(turns: float) -> float:
            return half.size * math.log(self.length / (turns * 2 * math.pi)) / math.log(base)

        first, last = channel(self.high), channel(self.low)
        if self.truncated:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * half.size - 1)
        width = last - first if last != first else 0.001
        return 1.0 - wf.clip((wf.arange(half, like=rate, dtype="float32") - first) / width, 0.0, 1.0)

    def _by_length(self, rate: Tensor, position: Tensor) -> Tensor:
        (half,) = rate.dims
        reach = wf.cast(wf.max(position, over=position.dims) + 1, "float32") / self.length
        grown = wf.log(wf.maximum(self.factor * reach - (self.factor - 1.0), 1.0))
        channel = wf.arange(half, like=rate, dtype="float32")
        return rate * wf.exp(grown * (channel / (1.0 - half.size if half.size > 1 else -1.0)))

    def _of_each(self, rate: Tensor, position: Tensor) -> Tensor:
        """By what each wave is made slower: all of them by the last position."""
        (half,) = rate.dims
        short, long = (tensor(np.array(x, "float32"), [half]) for x in (self.short, self.long))
        return wf.where(wf.max(position, over=position.dims) >= self.length, long, short)


@public
def rope(
    x: Tensor,
    position: Tensor,
    *,
    over: str = "d_kv",
    base: float = 10_000.0,
    stretch: RopeScaling | None = None,
    share: float = 1.0,
) -> Tensor:
    """Rotary position embedding (RoPE): channels i and i + half turned by position.

    Of a `share` of them, the first ones; the others stay (partial rotary).
    """
    x, position = need_tensor(x, "rope"), need_tensor(position, "rope")
    check_number(base, "base", least=0, below=math.inf, example=10_000.0, may_be_least=False)
    size = int(x.size(over) * check_number(share, "share", least=0, below=1.001, example=0.5, may_be_least=False))
    if size % 2 or not size:
        raise DimError(
            f"`{over}` has size {x.size(over)}, of which {size} are to turn, in pairs",
            fix=f"give it {size + 1} or so" if share == 1 else "give another `share`",
        )
    if size < x.size(over):
        turning = wf.slice(x, over=over, start=0, size=size)
        turned = rope(turning, position, over=over, base=base, stretch=stretch)
        return wf.concat([turned, wf.slice(x, over=over, start=size, size=x.size(over) - size)], over=over)
    two, half = Dim(f"{UNSHOWN}pair", 2), Dim(f"{UNSHOWN}half", size // 2)
    first, second = wf.unstack(wf.split(wf.cast(x, "float32"), **{over: [two, half]}), over=two)
    rate = wf.exp(wf.arange(half, like=first, dtype="float32") * (-math.log(base) / half.size))
    rate = rate if stretch is None else stretch(rate, base, position)
    angle = wf.cast(position, "float32") * rate
    cos, sin = wf.cos(angle), wf.sin(angle)
    if stretch is not None and stretch.amplitude != 1:
        cos, sin = cos * stretch.amplitude, sin * stretch.amplitude
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
