"""Attention: multi-head or grouped-query (GQA), with RoPE and masks.

Queries are at positions `length`, keys and values at `memory_length`. The layer's own dims may have any names. Heads of
keys and values are `heads`; where several query heads share one, they are `heads` x `group`. On a GPU the fused kernel
is used where it can do the same; the numbers agree to the dtype's precision.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import ops as wf
from ..dims import Dim
from ..errors import TensorError, public
from ..lower.recorded import fused_attention
from ..tensor import Tensor
from .arguments import check_dim, check_dims, check_number
from .position import RopeScaling, rope
from .weights import apply_dropout, cast_weight, full, normal

UNSEEN = -1e9
_WIDEST_FUSED = 128  # channels of a head that the fused kernel takes


@public
class Mask(eqx.Module):
    """The attention mask: causal, a sliding window, a prefix (prefix LM), segments.

    Positions count from 0 where none are given; segments of a packed batch do not see each other.
    """

    causal: bool = eqx.field(static=True, default=False)
    window: int | None = eqx.field(static=True, default=None)
    """How many places back are seen, the own one counted (and as many ahead, where not causal)."""
    prefix: Tensor | None = None
    """How many positions at the start all see each other, for each of the batch."""
    positions: Tensor | None = None
    memory_positions: Tensor | None = None
    segments: Tensor | None = None
    memory_segments: Tensor | None = None

    def __check_init__(self) -> None:
        if self.window is not None and not (isinstance(self.window, int) and self.window > 0):
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
            **how,
        )

    def query_positions(self, q: Tensor) -> Tensor:
        return wf.arange("length", like=q) if self.positions is None else self.positions

    def key_positions(self, k: Tensor) -> Tensor:
        return wf.arange("memory_length", like=k) if self.memory_positions is None else self.memory_positions

    def is_seen(self, q: Tensor, k: Tensor) -> Tensor | None:
        """True where a query sees a key; None where all see all."""
        conditions: list[Tensor] = []
        if self.causal or self.window is not None:
            here, there = self.query_positions(q), self.key_positions(k)
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

    @property
    def is_simple(self) -> bool:
        """Whether a kernel that knows nothing of positions and segments can do it."""
        tensors = (self.prefix, self.positions, self.memory_positions, self.segments, self.memory_segments)
        return all(x is None for x in tensors) and (self.causal or self.window is None)


class Attention(eqx.Module):
    """Multi-head attention; with a `group` of query heads to a head of keys, GQA."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    q_bias: Tensor | None
    k_bias: Tensor | None
    v_bias: Tensor | None
    o_bias: Tensor | None
    talking: tuple[Tensor, Tensor] | None
    """Talking heads: mixes heads before and after the softmax."""
    scale: float = eqx.field(static=True)
    softcap: float | None = eqx.field(static=True)
    rotary: float | None = eqx.field(static=True)
    """The base of RoPE, if there is any."""
    stretch: RopeScaling | None = eqx.field(static=True)
    fused: bool = eqx.field(static=True)

    @public
    def __init__(
        self,
        d_model: Dim,
        heads: Dim,
        d_kv: Dim,
        *,
        group: Dim | None = None,
        bias: Sequence[str] = (),
        scale: float | None = None,
        softcap: float | None = None,
        rotary: float | None = None,
        stretch: RopeScaling | None = None,
        talking: bool = False,
        fused: bool = True,
        key: Any = None,
    ):
        for dim, name in ((d_model, "d_model"), (heads, "heads"), (d_kv, "d_kv")):
            check_dim(dim, name)
        queries = [heads, *([] if group is None else [check_dim(group, "group")]), d_kv]
        if not isinstance(bias, Sequence) or any(name not in ("q", "k", "v", "o") for name in bias):
            raise TensorError(f"`bias` is {bias!r}", fix="name those of q, k, v and o that have one, e.g. `bias='qkv'`")
        if softcap is not None:
            check_number(softcap, "softcap", least=0, below=math.inf, example=30.0, may_be_least=False)
        count = math.prod(dim.count for dim in queries)
        by_width = d_model.count**-0.5
        self.scale = d_kv.count**-0.5 if scale is None else scale
        self.softcap, self.rotary, self.stretch, self.fused = softcap, rotary, stretch, fused
        self.q = normal([d_model, *queries], stddev=by_width, key=key, name="q")
        self.k = normal([d_model, heads, d_kv], stddev=by_width, key=key, name="k")
        self.v = normal([d_model, heads, d_kv], stddev=by_width, key=key, name="v")
        self.o = normal([*queries, d_model], stddev=count**-0.5, key=key, name="o")
        shapes = {"q": queries, "k": [heads, d_kv], "v": [heads, d_kv], "o": [d_model]}
        self.q_bias, self.k_bias, self.v_bias, self.o_bias = (
            full(dims, 0.0, key=key, name=f"{name}_bias") if name in bias else None for name, dims in shapes.items()
        )
        mixed = Dim(f"{heads.name}_mixed", heads.size, heads.name, heads.valid)
        self.talking = None
        if talking:
            names = "talking.0", "talking.1"
            self.talking = tuple(normal([heads, mixed], stddev=heads.count**-0.5, key=key, name=n) for n in names)

    @public
    def __call__(
        self,
        h: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        key: Any = None,
        dropout: float = 0.0,
        rename: Any = None,
    ) -> Tensor:
        """What each position of `h` takes from those of `memory`, or of `h` itself."""
        mask = Mask() if mask is None else mask
        check_dims(h, [self.q.dims[0]])
        memory = h if memory is None else memory
        here = there = None
        if self.rotary is not None:
            here = mask.query_positions(h)
            there = here if memory is h else mask.key_positions(memory)
        q = self.query(h, here)
        k, v = self.keys_and_values(memory, there)
        mixed = self.attend(q, k, v, mask=mask, bias=bias, key=key, dropout=dropout)
        return self.out(mixed, rename=rename)

    def query(self, h: Tensor, position: Tensor | None) -> Tensor:
        """The queries of `h`, with RoPE: [.. length heads (group) d_kv]."""
        return self._apply_rope(_project(h, self.q, self.q_bias), position)

    def keys_and_values(self, h: Tensor, position: Tensor | None) -> tuple[Tensor, Tensor]:
        """The keys of `h`, with RoPE, and values: [.. memory_length heads d_kv]."""
        k = self._apply_rope(_project(h, self.k, self.k_bias), position)
        v = _project(h, self.v, self.v_bias)
        if h.dims.has("length"):
            k, v = k.rename(length="memory_length"), v.rename(length="memory_length")
        return k, v

    def _apply_rope(self, x: Tensor, position: Tensor | None) -> Tensor:
        if self.rotary is None or position is None:
            return x
        d_kv = self.k.dims[-1]
        return rope(x, position, over=d_kv.name, base=self.rotary, stretch=self.stretch)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Mask,
        bias: Tensor | None = None,
        key: Any = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """The mean of the values each query sees, by how well keys answer: as `q`."""
        is_plain = bias is None and self.softcap is None and self.talking is None and not (dropout and key is not None)
        is_fusable = is_plain and mask.is_simple and can_fuse(q, k, self.q.dims[1:])
        if self.fused and is_fusable and _is_on_gpu(q):
            return attend_fused(q, k, v, scale=self.scale, causal=mask.causal, window=mask.window)
        with _as_fused(q, k, causal=mask.causal) if is_fusable else contextlib.nullcontext():
            d_kv = self.k.dims[-1].name
            scores = wf.einsum(q, k, over=d_kv)
            scores = wf.cast(scores, "float32") * self.scale
            if bias is not None:
                scores = wf.add(scores, bias, names="subset")
            if self.softcap is not None:
                scores = self.softcap * wf.tanh(scores / self.softcap)
            if self.talking is not None:
                scores = _mix_heads(scores, self.talking[0])
            is_seen = mask.is_seen(q, k)
            if is_seen is not None:
                scores = wf.where(is_seen, scores, UNSEEN, names="subset")
            share = wf.softmax(scores, over="memory_length")
            if self.talking is not None:
                share = _mix_heads(share, self.talking[1])
            share = wf.cast(share, v.dtype)
            share = apply_dropout(share, dropout, key)
            return wf.einsum(share, v, out=q.dims)

    def out(self, mixed: Tensor, *, rename: Any = None) -> Tensor:
        """The heads joined: [.. d_model]."""
        y = wf.einsum(mixed, cast_weight(self.o, mixed.dtype), over=self.o.dims[:-1], rename=rename)
        return y if self.o_bias is None else wf.add(y, wf.cast(self.o_bias, y.dtype), names="subset")


def _project(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    d_model = weight.dims[0]
    y = wf.einsum(h, cast_weight(weight, h.dtype), over=d_model)
    return y if bias is None else wf.add(y, wf.cast(bias, h.dtype), names="subset")


def _mix_heads(scores: Tensor, weight: Tensor) -> Tensor:
    heads, mixed = weight.dims
    return wf.einsum(scores, wf.cast(weight, scores.dtype), over=heads, rename={mixed.name: heads})


# The fused kernel (flash attention, by cuDNN).


def can_fuse(q: Tensor, k: Tensor, heads: Sequence[Dim]) -> bool:
    """Whether the fused kernel takes these: narrow floats, a head's positions whole."""
    if q.dtype not in (jnp.bfloat16, jnp.float16) or q.dims.names != ("batch", "length", *(dim.name for dim in heads)):
        return False
    d_kv = heads[-1].name
    # Of a padded batch or padded heads the kernel makes what no other place sees; along the others it goes.
    along = [(x, x.dim(name)) for x, name in ((q, "length"), (q, d_kv), (k, "memory_length"))]
    is_whole = all(x.ways(dim) == 1 and not dim.is_padded for x, dim in along)
    width = q.size(d_kv)
    return is_whole and width <= _WIDEST_FUSED and width % 8 == 0


def _as_fused(q: Tensor, k: Tensor, *, causal: bool) -> contextlib.AbstractContextManager[None]:
    """While attention is written out that the fused kernel would do on a GPU."""
    sizes = q.size("length"), k.size("memory_length"), q.size(q.dims[-1])
    return fused_attention(*sizes, causal=causal)


def _is_on_gpu(x: Tensor) -> bool:
    if x.region is None:
        return jax.default_backend() == "gpu"
    return x.region.mesh.platform == "gpu"


def attend_fused(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, window: int | None) -> Tensor:
    """Attention by one fused kernel, on each processor's own batch and heads."""

    def kernel(q: Any, k: Any, v: Any) -> Any:
        queries = q.reshape(*q.shape[:2], -1, q.shape[-1])  # heads and groups in one
        y = jax.nn.dot_product_attention(
            queries,
            k,
            v,
            scale=scale,
            is_causal=causal,
            local_window_size=None if window is None else (window - 1, 0),
            implementation="cudnn",
        )
        return y.reshape(q.shape)

    return wf.local(kernel, q, k, v, out=q.dims, whole=["length", "memory_length", q.dims[-1]])
