"""Mixture of experts (MoE): a router, top-1 (Switch), top-2 or expert-choice.

Each token goes to one or two experts, or each expert chooses its tokens; an expert has room for so many tokens, its
capacity. The router has a load-balancing loss and a z-loss. Tokens are routed inside their own sequence, so that what
is dropped does not depend on the layout. Expert batches are called `expert_batch`, which follows `batch` (where no dim
is called so, the first stands for it): under `batch:x` no token moves; under `batch:x,experts:x` they go to their
experts by one all-to-all and come back by another.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax

from .. import ops as wf
from ..dims import Dim
from ..errors import public
from ..ops.dispatch import collect, dispatch
from ..tensor import Tensor
from .arguments import check_choice, check_dim, check_dims, check_number
from .feed_forward import ACTIVATIONS
from .weights import apply_dropout, cast_weight, check_key, fold_key, normal

GATINGS = ("switch", "top2", "choice")


class MixtureOfExperts(eqx.Module):
    """Feed-forward parts, one for each expert, and the gate that chooses among them."""

    gate: Tensor
    w_in: Tensor
    w_gate: Tensor | None
    w_out: Tensor
    gating: str = eqx.field(static=True)
    capacity: float = eqx.field(static=True)
    jitter: float = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    @public
    def __init__(
        self,
        d_model: Dim,
        d_ff: Dim,
        experts: Dim,
        *,
        gating: str = "switch",
        capacity: float = 1.25,
        jitter: float = 0.0,
        dropout: float = 0.0,
        activation: str = "relu",
        gated: bool = False,
        key: Any = None,
    ):
        d_model, d_ff, experts = check_dim(d_model, "d_model"), check_dim(d_ff, "d_ff"), check_dim(experts, "experts")
        self.gating = check_choice(gating, GATINGS, "gating")
        self.activation = check_choice(activation, ACTIVATIONS, "activation")
        self.capacity = check_number(capacity, "capacity", least=0, below=math.inf, example=1.25, may_be_least=False)
        self.jitter = check_number(jitter, "jitter", least=0, below=1, example=0.01)
        self.dropout = check_number(dropout, "dropout", least=0, below=1, example=0.1)
        by_width = d_model.count**-0.5
        self.gate = normal(
            [d_model, Dim("router", experts.size, valid=experts.valid)], stddev=by_width, key=key, name="gate"
        )
        self.w_in = normal([experts, d_model, d_ff], stddev=by_width, key=key, name="w_in")
        self.w_gate = normal([experts, d_model, d_ff], stddev=by_width, key=key, name="w_gate") if gated else None
        self.w_out = normal([experts, d_ff, d_model], stddev=d_ff.count**-0.5, key=key, name="w_out")

    @public
    def __call__(self, h: Tensor, *, key: Any = None, drops: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
        """The result, as `h`; and the router's report.

        The report has the router's losses, how many places were taken, and how many tokens found none (`dropped`).
        Without `drops` each expert has room for all tokens; so it has where `h` is one token of each sequence.
        """
        key = None if key is None else check_key(key)
        send, combine, report = self.route(h, key, drops=drops)
        router, experts, width = send.dim("router"), self.w_in.dims[0], self.gate.dims[0]
        others = [dim for dim in h.dims if dim.name not in ("length", width.name)]
        first = [dim for dim in others if dim.name == "batch"] or others[:1]  # it goes to the experts' processors
        batch = {dim.name: Dim(f"expert_{dim.name}", dim.size, dim.name, dim.valid) for dim in first}
        slots = [dim for dim in send.dims if dim.name == "slots"]
        z = wf.einsum(wf.cast(send, h.dtype), h, out=[*others, router, *slots, width])
        z = dispatch(z, **batch, router=experts)
        z = self.experts(z, fold_key(key, 1))
        z = collect(z, **{new.name: h.dim(name) for name, new in batch.items()}, **{experts.name: router})
        return wf.einsum(wf.cast(combine, h.dtype), z, out=h.dims), report

    def experts(self, z: Tensor, key: Any = None) -> Tensor:
        """Each expert's feed-forward part on its own tokens: as `z`."""
        _, d_model, d_ff = self.w_in.dims
        hidden = wf.einsum(z, cast_weight(self.w_in, z.dtype), over=d_model)
        activate = ACTIVATIONS[self.activation]
        if self.w_gate is None:
            hidden = activate(hidden)
        else:
            hidden = wf.multiply(
                activate(wf.einsum(z, cast_weight(self.w_gate, z.dtype), over=d_model)), hidden, names="subset"
            )
        hidden = apply_dropout(hidden, self.dropout, key)
        return wf.einsum(hidden, cast_weight(self.w_out, z.dtype), over=d_ff)

    def slots(self, length: int, drops: bool) -> Dim:
        """The places an expert has for tokens of one sequence."""
        experts = self.gate.dims[-1].count
        return Dim("slots", expert_capacity(length, experts, self.gating, self.capacity) if drops else length)

    def route(self, h: Tensor, key: Any = None, *, drops: bool = True) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Which token goes to which slot of which expert; its share on return; a report."""
        wide = wf.cast(h, "float32")
        check_dims(h, self.gate.dims[:1])
        if key is not None and self.jitter:
            within = {"minval": 1 - self.jitter, "maxval": 1 + self.jitter}
            noise = wf.random.uniform(jax.random.fold_in(key, 0), h.dims, like=h, dtype="float32", **within)
            wide = wide * noise
        scores = wf.einsum(wide, wf.cast(self.gate, "float32"), over=self.gate.dims[0])
        share = wf.softmax(scores, over="router")
        choices = _CHOICES[self.gating]
        if not h.dims.has("length"):
            send, combine = _join_choices(*_top_experts(share, choices))  # there is room for all
        elif self.gating == "choice":
            send, combine = _expert_choice(share, self.slots(h.dim("length").count, drops))
        else:
            send, combine = _token_choice(share, self.slots(h.dim("length").count, drops), choices)
        return send, combine, _report(scores, share, send)


_CHOICES = {"switch": 1, "top2": 2, "choice": 1}


def expert_capacity(length: int, experts: int, gating: str, capacity: float) -> int:
    """The capacity of an expert: how many tokens of a sequence it has room for.

    >>> slots_for(16, 8, "switch", 1.25)
    3
    """
    return min(max(math.ceil(length * _CHOICES[gating] * capacity / experts), 1), length)


def _report(scores: Tensor, share: Tensor, send: Tensor) -> dict[str, Tensor]:
    """Load-balancing and router z-loss; places taken (`routed`), `dropped` tokens."""
    router = share.dim("router")
    tokens = share.dims.without([router])
    total = wf.logsumexp(scores, over="router")
    first = wf.one_hot(wf.argmax(share, over="router"), router)
    chosen, mean_share = wf.mean(first, over=tokens), wf.mean(share, over=tokens)
    placed = wf.sum(send, over=[dim for dim in send.dims if dim.name in ("router", "slots")])
    return {
        "balance_loss": router.count * wf.sum(chosen * mean_share, over="router"),
        "router_z_loss": wf.mean(total * total, over=tokens),
        "dropped": wf.sum(wf.cast(placed == 0, "float32"), over=tokens),
        "routed": wf.sum(placed, over=tokens),
    }


def _token_choice(share: Tensor, slots: Dim, choices: int) -> tuple[Tensor, Tensor]:
    """Top-1 or top-2 routing while experts have room: first choices first, in order."""
    taken: Any = 0
    sends = []
    best, parts = _top_experts(share, choices)
    for hot in best:
        place = wf.cumsum(hot, over="length") - 1 + taken
        at = wf.cast(wf.sum(place * hot, over="router"), "int32")
        sends.append(hot * wf.one_hot(at, slots))
        taken = taken + wf.sum(hot, over="length")
    return _join_choices(sends, parts)


def _top_experts(share: Tensor, choices: int) -> tuple[list[Tensor], list[Tensor]]:
    """The best experts of each token, one-hot, and the part of the result it gives."""
    left, best, weights = share, [], []
    for _ in range(choices):
        hot = wf.one_hot(wf.argmax(left, over="router"), share.dim("router"))
        best.append(hot)
        weights.append(wf.sum(share * hot, over="router"))
        left = wf.where(hot > 0, -1.0, left)
    if choices == 1:
        return best, weights
    total = functools.reduce(operator.add, weights)
    return best, [weight / total for weight in weights]


def _join_choices(sends: Sequence[Tensor], parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Where tokens go, all choices joined; and the same by their parts on return."""
    send = functools.reduce(operator.add, sends)
    combine = functools.reduce(operator.add, (one * part for one, part in zip(sends, parts, strict=True)))
    return wf.stop_gradient(send), combine


def _expert_choice(share: Tensor, slots: Dim) -> tuple[Tensor, Tensor]:
    """Expert-choice routing: each expert takes the tokens that want it most."""
    length = share.dim("length")
    best, places = wf.top_k(share, over="length", k=slots)
    send = wf.one_hot(places, length)
    return wf.stop_gradient(send), send * best
