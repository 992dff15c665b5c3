"""Mixture of experts (MoE): top-1 (Switch), top-k and expert-choice routing.

Each token goes to its best experts, or each expert chooses its tokens; an expert has room for so many tokens, its
capacity: `capacity` (the capacity factor) times its even share. The router has a load-balancing loss and a z-loss.
Tokens are routed inside their own sequence, so that what is dropped does not depend on the layout. Expert batches are
called `expert_batch`, which follows `batch` (where no dim is called so, the first stands for it): under `batch:x` no
token moves; under `batch:x,experts:x` they go to their experts by one all-to-all and come back by another (expert
parallelism).
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax

from .. import ops as wf
from ..dims import Dim
from ..errors import DimError, TensorError, public
from ..ops.dispatch import SLICES, collect, dispatch, parts_of, repeat, sum_in_slices
from ..tensor import Tensor
from .arguments import check_choice, check_count, check_dim, check_dims, check_matmul_dtype, check_number
from .dropless import best_experts, run_experts
from .feed_forward import ACTIVATIONS, ON_ARRAYS, FeedForward
from .places import as_places
from .weights import apply_dropout, cast_weight, check_key, fold_key, full, key_for, normal

REPORTED = ("balance_loss", "router_z_loss", "dropped", "routed")
BALANCES = ("batch", "sequences")
GATINGS = ("switch", "top2", "choice", "top_k", "dropless")
SCORINGS = ("softmax", "sigmoid")


class MixtureOfExperts(eqx.Module):
    """Feed-forward parts, one for each expert, and the gate that chooses among them.

    `gating` is `switch` (top-1), `top2`, `top_k`, `choice` (experts choose), or `dropless` (top-k without capacity). Of
    several experts a token goes to, the shares are made to sum to one (Mixtral), unless `normalised` is False; one
    alone keeps its share (Switch), or the gate could not learn from it. `shared_experts` have every token beside them.

    `scoring` makes shares of the gate's scores: a softmax of all experts, or of each a `sigmoid` (DeepSeek-V3). With
    `choice_bias` experts are chosen by share and a bias, which the share itself does not have: no gradient reaches it,
    and whoever trains sets it so that all are chosen alike. What experts make counts `routed_scale` times.
    """

    computed: ClassVar[Sequence[str]] = ("w_in", "w_gate", "w_out")
    gate: Tensor
    choice_bias: Tensor | None
    w_in: Tensor
    w_gate: Tensor | None
    w_out: Tensor
    shared: FeedForward | None
    gating: str = eqx.field(static=True)
    top_k: int = eqx.field(static=True)
    normalised: bool = eqx.field(static=True)
    scoring: str = eqx.field(static=True)
    routed_scale: float = eqx.field(static=True)
    capacity: float = eqx.field(static=True)
    room: int | None = eqx.field(static=True)
    balance_over: str = eqx.field(static=True)
    jitter: float = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    matmul_dtype: str | None = eqx.field(static=True)
    """`float8`: experts with a capacity, and shared ones, have fp8 products."""

    @public
    def __init__(
        self,
        d_model: Dim,
        d_ff: Dim,
        experts: Dim,
        *,
        gating: str = "switch",
        top_k: int = 2,
        normalised: bool | None = None,
        scoring: str = "softmax",
        choice_bias: bool = False,
        routed_scale: float = 1.0,
        shared_experts: int = 0,
        capacity: float = 1.25,
        room: int | None = None,
        balance_over: str = "batch",
        jitter: float = 0.0,
        dropout: float = 0.0,
        activation: str = "relu",
        gated: bool = False,
        matmul_dtype: str | None = None,
        key: Any = None,
    ):
        self.matmul_dtype = check_matmul_dtype(matmul_dtype)
        d_model, d_ff, experts = check_dim(d_model, "d_model"), check_dim(d_ff, "d_ff"), check_dim(experts, "experts")
        self.gating = check_choice(gating, GATINGS, "gating")
        self.top_k = experts_per_token(gating, check_count(top_k, "top_k"))
        if self.top_k > experts.count:
            raise DimError(
                f"a token goes to {self.top_k} of {experts.count} experts", fix=f"say `top_k={experts.count}` or less"
            )
        self.normalised = self.top_k > 1 if normalised is None else normalised
        self.scoring = check_choice(scoring, SCORINGS, "scoring")
        self.routed_scale = check_number(routed_scale, "routed_scale", least=0, below=math.inf, may_be_least=False)
        if choice_bias and gating == "choice":
            raise TensorError("`choice_bias` is True, and experts choose tokens", fix="leave it out")
        self.activation = check_choice(activation, ACTIVATIONS, "activation")
        self.capacity = check_number(capacity, "capacity", least=0, below=math.inf, example=1.25, may_be_least=False)
        self.room = None if room is None else check_count(room, "room")
        self.balance_over = check_choice(balance_over, BALANCES, "balance_over")
        self.jitter = check_number(jitter, "jitter", least=0, below=1, example=0.01)
        self.dropout = check_number(dropout, "dropout", least=0, below=1, example=0.1)
        if self.gating == "dropless" and self.dropout:
            raise TensorError(
                f"`dropout` is {dropout!r}, and dropless experts have none inside", fix="drop what the layer gives"
            )
        self.shared = None
        if check_count(shared_experts, "shared_experts", least=0):
            wide = Dim("shared_ff", shared_experts * d_ff.size, d_ff.name)
            own_key = None if key is None else key_for(key, "shared")
            how: Any = {"activation": activation, "gated": gated, "matmul_dtype": matmul_dtype}
            self.shared = FeedForward(d_model, wide, key=own_key, **how)
        by_width, router = d_model.count**-0.5, Dim("router", experts.size, valid=experts.valid)
        self.gate = normal([d_model, router], stddev=by_width, key=key, name="gate")
        biased = {"key": key, "name": "choice_bias", "is_trained": False}
        self.choice_bias = full([router], 0.0, **biased) if choice_bias else None
        self.w_in = normal([experts, d_model, d_ff], stddev=by_width, key=key, name="w_in")
        self.w_gate = normal([experts, d_model, d_ff], stddev=by_width, key=key, name="w_gate") if gated else None
        self.w_out = normal([experts, d_ff, d_model], stddev=d_ff.count**-0.5, key=key, name="w_out")

    @public
    def __call__(
        self, h: Tensor, *, key: Any = None, drops: bool = True, rename: Any = None, over: str = "length"
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The result, as `h`; and the router's report. Tokens are along `over`.

        The report has the router's losses, how many places were taken, and how many tokens found none (`dropped`).
        Without `drops` each expert has room for all tokens; so it has where `h` is one token of each sequence. `rename`
        lets the result leave under other names, as in `einsum`.
        """
        y, statistics = self.run(as_places(h, over), key=key, drops=drops, rename=rename)
        if over != "length" and y.dims.has("length"):
            y = y.rename(length=h.dim(over))
        return y, summarise(statistics)

    def run(self, h: Tensor, *, key: Any = None, drops: bool = True, rename: Any = None) -> tuple[Tensor, Tensor]:
        """As a call, with the statistics that `summarise` makes a report of."""
        key = None if key is None else check_key(key)
        is_dropless = self.gating == "dropless"
        y, statistics = self._dropless(h, key, rename) if is_dropless else self._by_slots(h, key, drops, rename)
        if self.shared is not None:
            shared = self.shared(h, key=fold_key(key, 2), dropout=self.dropout, rename=rename)
            y = wf.add(y, shared, names="subset")
        return y, statistics

    def _dropless(self, h: Tensor, key: Any, rename: Any) -> tuple[Tensor, Tensor]:
        scores, share = self.score(h, key)
        chosen, shares = best_experts(share, self._rank(share), self.top_k, self.normalised, self.routed_scale)
        weights = [cast_weight(w, h.dtype) for w in (self.w_in, self.w_gate, self.w_out) if w is not None]
        y = run_experts(h, chosen, shares, weights, ON_ARRAYS[self.activation], rename)
        placed = wf.sum(wf.cast(shares >= 0, "float32"), over="choices")
        return y, _statistics(scores, share, placed, self.balance_over)

    def _by_slots(self, h: Tensor, key: Any, drops: bool, rename: Any) -> tuple[Tensor, Tensor]:
        """Tokens put into their experts' slots, and the slots combined."""
        sends, shares, statistics = self._choose(h, key, drops)
        experts, width, d_ff = self.w_in.dims
        # Experts as tokens see them: on their own axes if no dim of the tokens has these, so that what is sent back is
        # summed over them. The same for `d_ff`: the parts of each slice are summed after they are combined.
        router = Dim("dispatch", experts.size, experts.name, experts.valid)
        ff = parts_of(d_ff, beside=h)
        sends, shares = ([x.rename(router=router) if x.dims.has("router") else x for x in xs] for xs in (sends, shares))
        if len(ff) > 1:
            h, shares = repeat(h, ff[0]), [repeat(share, ff[0]) for share in shares]
        send, combine = _join_choices(sends, shares)
        others = [dim for dim in h.dims if dim.name not in ("length", width.name)]
        first = [dim for dim in others if dim.name == "batch"] or others[len(ff) - 1 :][:1]  # goes to the experts
        batch = {dim.name: Dim(f"expert_{dim.name}", dim.size, dim.name, dim.valid) for dim in first}
        slots = [dim for dim in send.dims if dim.name == "slots"]
        z = wf.einsum(wf.cast(send, h.dtype), h, out=[*others, router, *slots, width])
        z = dispatch(z, **batch, dispatch=experts)
        z = self.experts(z, fold_key(key, 1), ff)
        z = collect(z, **{new.name: h.dim(name) for name, new in batch.items()}, **{experts.name: router})
        out = h.dims if len(ff) == 1 else h.dims.without(ff[:1])
        return wf.einsum(wf.cast(combine, h.dtype), z, out=out, rename=rename), statistics

    def experts(self, z: Tensor, key: Any = None, ff: Sequence[Dim] | None = None) -> Tensor:
        """Each expert's feed-forward part on its own tokens: as `z`.

        Where `d_ff` is cut into the dims `ff`, the parts along the first of them, which `z` has, are not yet summed.
        """
        _, d_model, d_ff = self.w_in.dims
        ff = [d_ff] if ff is None else list(ff)
        w_in, w_out = (_cut(cast_weight(w, z.dtype), d_ff, ff) for w in (self.w_in, self.w_out))
        out = [*(dim for dim in z.dims.without([d_model]) if dim not in ff), *ff]
        hidden = wf.einsum(z, w_in, out=out, matmul_dtype=self.matmul_dtype)
        activate = ACTIVATIONS[self.activation]
        if self.w_gate is None:
            hidden = activate(hidden)
        else:
            w_gate = _cut(cast_weight(self.w_gate, z.dtype), d_ff, ff)
            gate = wf.einsum(z, w_gate, out=out, matmul_dtype=self.matmul_dtype)
            hidden = wf.multiply(activate(gate), hidden, names="subset")
        hidden = apply_dropout(hidden, self.dropout, key)
        return wf.einsum(hidden, w_out, over=ff[-1], matmul_dtype=self.matmul_dtype)

    def slots(self, length: int, drops: bool) -> Dim:
        """The places an expert has for tokens of one sequence."""
        experts = self.gate.dims[-1].count
        if self.room is not None and drops:
            return Dim("slots", min(self.room, length))
        return Dim("slots", expert_capacity(length, experts, self.top_k, self.capacity) if drops else length)

    def route(self, h: Tensor, key: Any = None, *, drops: bool = True) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Which token goes to which slot of which expert; its share on return; a report."""
        sends, shares, statistics = self._choose(h, key, drops)
        return *_join_choices(sends, shares), summarise(statistics)

    def _choose(self, h: Tensor, key: Any, drops: bool) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """For each choice of the tokens its slot, and its share on return; statistics."""
        scores, share = self.score(h, key)
        if not h.dims.has("length"):
            sends, shares = _top_experts(share, self._rank(share), self.top_k, self.normalised)  # there is room for all
        elif self.gating == "choice":
            sends, shares = _expert_choice(share, self.slots(h.dim("length").count, drops))
        else:
            slots = self.slots(h.dim("length").count, drops)
            sends, shares = _token_choice(share, self._rank(share), slots, self.top_k, self.normalised)
        if self.routed_scale != 1:
            shares = [part * self.routed_scale for part in shares]
        within = [dim for dim in sends[0].dims if dim.name in ("router", "slots")]
        placed = functools.reduce(operator.add, (wf.sum(send, over=within) for send in sends))
        return sends, shares, _statistics(scores, share, placed, self.balance_over)

    def score(self, h: Tensor, key: Any = None) -> tuple[Tensor, Tensor]:
        """The router's scores for each token, and the share of each expert in it."""
        wide = wf.cast(h, "float32")
        check_dims(h, self.gate.dims[:1], makes=[*self.w_in.dims[::2], self.gate.dims[1]])
        if key is not None and self.jitter:
            within = {"minval": 1 - self.jitter, "maxval": 1 + self.jitter}
            noise = wf.random.uniform(jax.random.fold_in(key, 0), h.dims, like=h, dtype="float32", **within)
            wide = wide * noise
        scores = wf.einsum(wide, wf.cast(self.gate, "float32"), over=self.gate.dims[0])
        return scores, wf.softmax(scores, over="router") if self.scoring == "softmax" else wf.sigmoid(scores)

    def _rank(self, share: Tensor) -> Tensor:
        """What experts are chosen by: their shares, with a bias where there is one."""
        return share if self.choice_bias is None else wf.stop_gradient(share + wf.cast(self.choice_bias, share.dtype))


def experts_per_token(gating: str, top_k: int) -> int:
    """How many experts a token goes to."""
    return {"switch": 1, "top2": 2, "choice": 1}.get(gating, top_k)


def expert_capacity(length: int, experts: int, choices: int, capacity: float) -> int:
    """The capacity of an expert: how many tokens of a sequence it has room for.

    >>> expert_capacity(16, 8, 1, 1.25)
    3
    """
    return min(max(math.ceil(length * choices * capacity / experts), 1), length)


def _cut(weight: Tensor, dim: Dim, parts: Sequence[Dim]) -> Tensor:
    return weight if len(parts) == 1 else wf.split(weight, **{dim.name: parts})


def _statistics(scores: Tensor, share: Tensor, placed: Tensor, balance_over: str) -> Tensor:
    """What a report is made of, [statistics .. router], summed in slices of tokens.

    The sums over all tokens, or of each sequence, are left to whoever makes the report, for all layers at once.
    """
    router = share.dim("router")
    is_apart = balance_over == "sequences" and share.dims.has("length")
    tokens = [share.dim("length")] if is_apart else share.dims.without([router])
    total = wf.logsumexp(scores, over="router")
    first = wf.one_hot(wf.argmax(share, over="router"), router)
    count = math.prod(dim.count for dim in tokens)
    sums = [sum_in_slices(x, over=tokens) / count for x in (first, share, total * total)]
    sums += [sum_in_slices(x, over=tokens) for x in (wf.cast(placed == 0, "float32"), placed)]
    return wf.stack([wf.broadcast(x, sums[0].dims) for x in sums], Dim("statistics", len(sums)))


def summarise(statistics: Tensor) -> dict[str, Tensor]:
    """The report of a layer's statistics, or of those of several `layers`, summed.

    Load-balancing and router z-loss; places taken (`routed`), `dropped` tokens. Of statistics of sequences the first is
    of all layers together and the mean of all sequences, and the second the mean of layers.
    """
    router = statistics.dim("router")
    others = [dim for dim in statistics.dims if dim.name not in ("layers", "statistics", "router")]
    rows = [dim for dim in others if not dim.name.endswith(SLICES)]
    slices = [dim for dim in others if dim.name.endswith(SLICES)]
    sums = wf.sum(statistics, over=slices) if slices else statistics
    first, share, *rest = wf.unstack(sums, over="statistics")
    z, dropped, routed = (x["router", 0] for x in rest)
    layers = [dim for dim in statistics.dims if dim.name == "layers"]
    if rows:
        first, share = (wf.mean(x, over=layers) if layers else x for x in (first, share))
        balance = wf.mean(router.count * wf.sum(first * share, over="router"), over=rows)
        counts = (wf.sum(x, over=[*layers, *rows]) for x in (dropped, routed))
        return dict(zip(REPORTED, (balance, wf.mean(z, over=[*layers, *rows]), *counts), strict=True))
    of_layers = [router.count * wf.sum(first * share, over="router"), z, dropped, routed]
    return dict(zip(REPORTED, (wf.sum(x, over=layers) if layers else x for x in of_layers), strict=True))


def _token_choice(
    share: Tensor, rank: Tensor, slots: Dim, choices: int, normalised: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Top-k routing while experts have room: first choices first, in order."""
    taken: Any = 0
    sends = []
    best, parts = _top_experts(share, rank, choices, normalised)
    for hot in best:
        place = wf.cumsum(hot, over="length") - 1 + taken
        at = wf.cast(wf.sum(place * hot, over="router"), "int32")
        sends.append(hot * wf.one_hot(at, slots))
        taken = taken + wf.sum(hot, over="length")
    return sends, parts


def _top_experts(share: Tensor, rank: Tensor, choices: int, normalised: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The best experts of each token, one-hot, and the part of the result it gives."""
    left, best, weights = rank, [], []
    for _ in range(choices):
        hot = wf.one_hot(wf.argmax(left, over="router"), share.dim("router"))
        best.append(hot)
        weights.append(wf.sum(share * hot, over="router"))
        left = wf.where(hot > 0, -math.inf, left)
    if not normalised:
        return best, weights
    total = functools.reduce(operator.add, weights)
    return best, [weight / total for weight in weights]


def _join_choices(sends: Sequence[Tensor], parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Where tokens go, all choices joined; and the same by their parts on return."""
    send = functools.reduce(operator.add, sends)
    combine = functools.reduce(operator.add, (one * part for one, part in zip(sends, parts, strict=True)))
    return wf.stop_gradient(send), combine


def _expert_choice(share: Tensor, slots: Dim) -> tuple[list[Tensor], list[Tensor]]:
    """Expert-choice routing: each expert takes the tokens that want it most."""
    length = share.dim("length")
    best, places = wf.top_k(share, over="length", k=slots)
    return [wf.one_hot(places, length)], [best]
