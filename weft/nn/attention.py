"""Attention: multi-head, grouped-query (GQA) or multi-query (MQA); RoPE, masks.

Queries are at positions `length`, keys and values at `memory_length`. The layer's own dims may have any names. Heads of
keys and values are `heads`; where several query heads share one, they are `heads` x `group`. Where a fused kernel can
do the same (`weft.kernels.choice` decides), it does; the numbers agree to the dtype's precision.

Where a rule of the layout names `queries`, heads are called so while attending (Ulysses): under `stream:x,queries:x`
the projections of a slice of the stream become all positions of some heads by one all-to-all each, and go back by one.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx

from .. import ops as wf
from ..dims import UNSHOWN, Dim, rename_dims
from ..errors import LayoutError, TensorError, public
from ..kernels.choice import AttentionCase, choose
from ..lower.recorded import note_attention
from ..lower.rules import can_be, has_rule, state_of, ways_under
from ..ops.block_case import chip_of
from ..ops.blockwise import UNSEEN
from ..ops.counter_dropout import drop_shares
from ..ops.ring import blockwise_attention, count_scores, is_long, is_ring, ring_attention
from ..tensor import Tensor, is_tensor, placement
from .arguments import check_choice, check_dim, check_dims, check_matmul_dtype, check_number
from .fused import attend_fused, case_of
from .mask import Mask
from .norm import EPSILON, RMSNorm
from .places import as_places
from .position import RelativeBias, RopeScaling, rope
from .weights import cast_weight, full, normal

QK_NORMS = ("none", "head", "all")
WIDEST_TOGETHER = 2048
"""Up to how many channels of queries q, k and v are made by one product, on a GPU: wider ones are as fast alone."""


class Attention(eqx.Module):
    """Multi-head attention; with a `group` of query heads to a head of keys, GQA."""

    computed: ClassVar[Sequence[str]] = ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias")
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    q_bias: Tensor | None
    k_bias: Tensor | None
    v_bias: Tensor | None
    o_bias: Tensor | None
    q_norm: RMSNorm | None
    """QK-norm, before RoPE: over the channels of each head (`head`), or over all heads together (`all`)."""
    k_norm: RMSNorm | None
    talking: tuple[Tensor, Tensor] | None
    """Talking heads: mixes heads before and after the softmax."""
    scale: float = eqx.field(static=True)
    softcap: float | None = eqx.field(static=True)
    rotary: float | None = eqx.field(static=True)
    """The base of RoPE, if there is any."""
    stretch: RopeScaling | None = eqx.field(static=True)
    share: float = eqx.field(static=True)
    """Of how many channels of a head RoPE turns, as a share."""
    fused: bool = eqx.field(static=True)
    matmul_dtype: str | None = eqx.field(static=True)
    """`float8`: the projections are fp8 products."""

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
        share: float = 1.0,
        qk_norm: str = "none",
        epsilon: float = EPSILON,
        norm_offset: float = 0.0,
        talking: bool = False,
        fused: bool = True,
        matmul_dtype: str | None = None,
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
        self.softcap, self.rotary, self.stretch, self.share, self.fused = softcap, rotary, stretch, share, fused
        self.matmul_dtype = check_matmul_dtype(matmul_dtype)
        self.q = normal([d_model, *queries], stddev=by_width, key=key, name="q")
        self.k = normal([d_model, heads, d_kv], stddev=by_width, key=key, name="k")
        self.v = normal([d_model, heads, d_kv], stddev=by_width, key=key, name="v")
        self.o = normal([*queries, d_model], stddev=count**-0.5, key=key, name="o")
        shapes = {"q": queries, "k": [heads, d_kv], "v": [heads, d_kv], "o": [d_model]}
        self.q_bias, self.k_bias, self.v_bias, self.o_bias = (
            full(dims, 0.0, key=key, name=f"{name}_bias") if name in bias else None for name, dims in shapes.items()
        )
        over = {"none": None, "head": 1, "all": 3}[check_choice(qk_norm, QK_NORMS, "qk_norm")]
        self.q_norm, self.k_norm = (
            None if over is None else RMSNorm(dims[-over:], epsilon=epsilon, offset=norm_offset, key=key)
            for dims in (queries, shapes["k"])
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
        bias: Tensor | RelativeBias | None = None,
        key: Any = None,
        dropout: float = 0.0,
        rename: Any = None,
        over: str = "length",
    ) -> Tensor:
        """What each position of `h` takes from those of `memory`, or of `h` itself.

        Positions are along `over`; what a mask or a bias says of keys is along `memory_` and that name.
        """
        if over != "length":
            named = [as_places(x, over) for x in (h, memory, mask, bias)]
            y = self(*named[:2], mask=named[2], bias=named[3], key=key, dropout=dropout, rename=rename)
            return y.rename(length=h.dim(over)) if y.dims.has("length") else y
        mask = Mask() if mask is None else mask
        memory = h if memory is None else memory
        for x in (h, memory):
            check_dims(x, self.q.dims[:1], makes=self.q.dims[1:])
        here = there = None
        if self.rotary is not None:
            here = mask.query_positions(h)
            there = here if memory is h else mask.key_positions(memory)
        if memory is h:
            q, k, v = self.project(h, here)
        else:
            q, (k, v) = self.query(h, here), self.keys_and_values(memory, there)
        mixed = self.attend(q, k, v, mask=mask, bias=bias, key=key, dropout=dropout)
        return self.out(mixed, rename=rename)

    def project(self, h: Tensor, position: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values of `h`, by one product where that is faster."""
        if not self._is_one_product(h):
            return self.query(h, position), *self.keys_and_values(h, position)
        q, k, v = self._project_together(h)
        return self.as_queries(q, position), *self.as_memory(k, v, position)

    def query(self, h: Tensor, position: Tensor | None) -> Tensor:
        """The queries of `h`, with RoPE: [.. length heads (group) d_kv]."""
        return self.as_queries(self._project(h, self.q, self.q_bias), position)

    def keys_and_values(self, h: Tensor, position: Tensor | None) -> tuple[Tensor, Tensor]:
        """The keys of `h`, with RoPE, and values: [.. memory_length heads d_kv]."""
        return self.as_memory(self._project(h, self.k, self.k_bias), self._project(h, self.v, self.v_bias), position)

    def as_queries(self, q: Tensor, position: Tensor | None) -> Tensor:
        """Projected queries with QK-norm and RoPE, as the layer has them."""
        return self.apply_rope(self._norm(q, self.q_norm), position)

    def as_memory(self, k: Tensor, v: Tensor, position: Tensor | None) -> tuple[Tensor, Tensor]:
        """Projected keys with QK-norm and RoPE, and values, along `memory_length`."""
        k = self.apply_rope(self._norm(k, self.k_norm), position)
        if k.dims.has("length"):
            k, v = k.rename(length="memory_length"), v.rename(length="memory_length")
        return k, v

    def _is_one_product(self, h: Tensor) -> bool:
        """Whether q, k and v of many positions are made by one product on a GPU."""
        if chip_of(h).kind != "gpu" or not h.dims.has("length") or self.matmul_dtype is not None or self.queries(h):
            return False
        heads = self.k.dims[1]
        return math.prod(dim.size for dim in self.q.dims[1:]) // ways_under(h, heads) <= WIDEST_TOGETHER

    def _project_together(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v by the product with their weights side by side, as they are split."""
        q, k, v = (cast_weight(weight, h.dtype) for weight in (self.q, self.k, self.v))
        d_model, heads, d_kv = k.dims
        grouped = q.dims[2:-1]
        one = Dim(grouped[0].name if grouped else f"{UNSHOWN}group", 1)
        parts = [q if grouped else wf.broadcast(q, [d_model, one, heads, d_kv])]
        parts += [wf.broadcast(weight, [d_model, one, heads, d_kv]) for weight in (k, v)]
        y = wf.einsum(h, wf.concat(parts, over=one.name), over=d_model)
        count = parts[0].size(one.name)
        own_q = wf.slice(y, over=one.name, start=0, size=count) if grouped else y[one.name, 0]
        products = own_q, y[one.name, count], y[one.name, count + 1]
        q, k, v = (_add_bias(x, b) for x, b in zip(products, (self.q_bias, self.k_bias, self.v_bias), strict=True))
        return q, k, v

    def queries(self, x: Tensor) -> dict[str, Dim]:
        """The new name of heads while attending, by the old, where a rule names it."""
        heads = self.k.dims[1]
        queries = Dim("queries", heads.size, heads.name, heads.valid)
        return {heads.name: queries} if has_rule(x, queries) else {}

    def _project(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not (names := self.queries(h)):
            return _project(h, weight, bias, self.matmul_dtype)
        if not h.dims.has("stream"):  # all positions are here: each processor projects its own heads
            bias = None if bias is None else bias.rename(**names)
            return _project(h, weight.rename(**names), bias, self.matmul_dtype)
        length = Dim("length", h.size("stream"))
        return _project(h, weight, bias, self.matmul_dtype).rename(stream=length, **names)

    def _norm(self, x: Tensor, norm: RMSNorm | None) -> Tensor:
        """Queries or keys with QK-norm, heads called as in `x`."""
        if norm is None:
            return x
        names = {old: new for old, new in self.queries(x).items() if norm.scale.dims.has(old) and x.dims.has(new)}
        return eqx.tree_at(lambda n: n.scale, norm, norm.scale.rename(**names), is_leaf=is_tensor)(x)

    def apply_rope(self, x: Tensor, position: Tensor | None) -> Tensor:
        """Queries or keys with RoPE, if the layer has it."""
        if self.rotary is None or position is None:
            return x
        d_kv = self.k.dims[-1]
        return rope(x, position, over=d_kv.name, base=self.rotary, stretch=self.stretch, share=self.share)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Mask,
        bias: Tensor | RelativeBias | None = None,
        key: Any = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """The mean of the values each query sees, by how well keys answer: as `q`.

        Where `length` and `memory_length` are split over the same axes, by ring attention, and where scores would be
        too many to be held, by blocks of them. A relative bias may be given as the layer that makes it.
        """
        how = {"scale": self.scale, "softcap": self.softcap, "key": key, "dropout": dropout}
        bias = self._rename_bias(q, bias)
        case = self._case(q, k, mask, bias, dropout if key is not None else 0.0)
        choice = choose(case, chip_of(q))
        if is_ring(q, k):
            made = self._check_ring(q, bias)
            with note_attention(q, k, case, block=count_scores(q, k, mask)):
                return ring_attention(q, k, v, mask, made, **how)
        if choice.is_fused and not case.is_in_blocks:
            return attend_fused(choice.kernel, case, q, k, v, mask=mask, bias=bias, **how)
        if self.fused and self._can_cut(q, bias) and (is_long(q, k) or (choice.is_fused and case.is_in_blocks)):
            with note_attention(q, k, case, block=count_scores(q, k, mask)):
                return blockwise_attention(q, k, v, mask, bias, **how)
        if isinstance(bias, RelativeBias):
            bias = bias(mask.query_places(q), mask.key_places(k))
        with note_attention(q, k, case):
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
            if dropout and key is not None:
                share = drop_shares(share, dropout, key, dims=[*q.dims[:-1], k.dim("memory_length")])
            return wf.einsum(share, v, out=q.dims)

    def _case(self, q: Tensor, k: Tensor, mask: Mask, bias: Any, dropout: float) -> AttentionCase:
        """What this attention asks of a kernel."""
        names = self.queries(q)
        heads = [names.get(dim.name, dim) for dim in self.q.dims[1:]]
        case = case_of(q, k, heads, mask=mask, bias=bias, softcap=self.softcap, dropout=dropout)
        if not self.fused:
            return dataclasses.replace(case, refusal="the layer is told so")
        return case if self.talking is None else dataclasses.replace(case, refusal="its heads talk: scores are mixed")

    def _rename_bias(self, q: Tensor, bias: Any) -> Any:
        """The bias with heads called as those of `q`."""
        if bias is None or not (names := self.queries(q)):
            return bias
        if is_tensor(bias):
            return bias.rename(**names)
        return eqx.tree_at(lambda b: b.table, bias, bias.table.rename(**names), is_leaf=is_tensor)

    def _can_cut(self, q: Tensor, bias: Any) -> bool:
        """Whether scores can be made block by block."""
        return self.talking is None and not is_tensor(bias) and q.ways(q.dims[-1]) == 1

    def _check_ring(self, q: Tensor, bias: Any) -> RelativeBias | None:
        """The bias, if ring attention can do what is asked."""
        over = "+".join(placement(q)[q.dims.position("length")])
        if self.talking is None and not is_tensor(bias):
            return bias
        what = "talking heads mix" if self.talking is not None else "a bias that is a tensor holds"
        why = "drop one of the rules `length` and `memory_length`"
        raise LayoutError(
            f"{what} all scores, and ring attention over `{over}` makes them block by block",
            state=state_of(q),
            fix=why if self.talking is not None else f"give the `nn.RelativeBias` itself, or {why}",
        )

    def out(self, mixed: Tensor, *, rename: Any = None) -> Tensor:
        """The heads joined: [.. d_model]."""
        weight = self.o
        if names := self.queries(mixed):
            ((old, new),) = names.items()
            back = {new.name: self.k.dims[1], **(rename or {})}
            if rename and can_be(mixed, rename_dims(mixed.dims, back)):
                mixed, rename = mixed.rename(**back), None
            else:  # each processor joins the heads it has
                weight = weight.rename(**{old: new})
        over = [dim for dim in weight.dims if mixed.dims.has(dim)]
        y = wf.einsum(mixed, cast_weight(weight, mixed.dtype), over=over, rename=rename, matmul_dtype=self.matmul_dtype)
        return y if self.o_bias is None else wf.add(y, wf.cast(self.o_bias, y.dtype), names="subset")


def _project(h: Tensor, weight: Tensor, bias: Tensor | None, matmul_dtype: str | None) -> Tensor:
    d_model = weight.dims[0]
    y = wf.einsum(h, cast_weight(weight, h.dtype), over=d_model, matmul_dtype=matmul_dtype)
    return _add_bias(y, bias)


def _add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else wf.add(x, wf.cast(bias, x.dtype), names="subset")


def _mix_heads(scores: Tensor, weight: Tensor) -> Tensor:
    heads, mixed = weight.dims
    return wf.einsum(scores, wf.cast(weight, scores.dtype), over=heads, rename={mixed.name: heads})
