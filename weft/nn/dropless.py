"""Dropless experts: a token goes to its best experts, however many others do.

Tokens are sorted by expert and multiplied each with its own expert's matrices (a ragged product, grouped matmul); there
are no slots and no capacity. On a GPU they are the products of `kernels.grouped`, elsewhere `jax.lax.ragged_dot`, from
which XLA makes products of all tokens with all matrices there. Sequences do not matter, so tokens may be split by any
dims. Where experts are split over axes that tokens are split over too, each processor gets the tokens of all along
these axes, works on those of its own experts, and what a token gets is summed on the way back: an all-gather and a
reduce-scatter of [batch length d_model]. That is the most that any routing can need, were all tokens to choose the
experts of one processor.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import ops as wf
from ..dims import Dim
from ..kernels import grouped
from ..lower.recorded import note_sharing
from ..ops.block_case import chip_of
from ..ops.uneven import with_padding_as_values
from ..tensor import Tensor

Activate = Callable[[Any], Any]


def best_experts(
    share: Tensor, rank: Tensor, top_k: int, normalised: bool, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """For each choice of a token its expert, and its share in the result.

    Of those of all experts the `top_k` that rank highest, which are made to sum to one if `normalised`.
    """
    choices = Dim("choices", top_k)
    shares, experts = wf.top_k(rank, over="router", k=choices)
    if rank is not share:
        shares = wf.gather(share, experts.rename(choices="router"), over="router").rename(router=choices)
    if normalised:
        shares = shares / wf.sum(shares, over="choices")
    return experts, shares if scale == 1 else shares * scale


def run_experts(
    h: Tensor, chosen: Tensor, shares: Tensor, weights: Sequence[Tensor], activate: Activate, rename: Any = None
) -> Tensor:
    """What the chosen experts make of the tokens `h`, by shares: as `h`.

    `weights` are [experts d_model d_ff] once, or twice if gated, and [experts d_ff d_model].
    """
    weights = [with_padding_as_values(weight, weights[0].dims[0]) for weight in weights]  # no token chooses it
    experts, width, d_ff = weights[0].dims
    # Tokens give way to experts and to d_ff, where rules put both on one axis.
    apart = {dim.name: Dim(f"expert_{dim.name}", dim.size, dim.name, dim.valid) for dim in h.dims if dim != width}
    back = {new.name: (rename or {}).get(name, h.dim(name)) for name, new in apart.items()}
    tokens = (wf.einsum(h, out=h.dims) if h.dims.is_padded else h).rename(**apart)  # padding is zero after an einsum
    operands = (tokens, chosen.rename(**apart), wf.cast(shares, h.dtype).rename(**apart), *weights)
    summed = [experts, d_ff]
    run_local = _run_in_blocks if chip_of(h).kind == "gpu" else _run_sorted

    def run(tokens: Any, chosen: Any, shares: Any, *weights: Any, here: Any) -> Any:
        note_sharing(experts.size // here.size(experts))
        return run_local(
            tokens, chosen - here.start(experts), shares, weights, activate, lambda hidden: here.sum(hidden, width)
        )

    return wf.local(run, *operands, out=tokens.dims, whole=["choices"], summed=summed, rename=back)


def _run_sorted(
    tokens: Any, chosen: Any, shares: Any, weights: Sequence[Any], activate: Activate, finish: Activate
) -> Any:
    """The same of local arrays, by the experts that are here: numbers from 0 on.

    `finish` finishes a sum over d_model, of which there may be a slice here.
    """
    count, (choices, width) = weights[0].shape[0], (chosen.shape[-1], tokens.shape[-1])
    group = _number_experts(chosen, count)
    order = jnp.argsort(group, stable=True)
    is_here = (group[order] < count)[:, None]
    sizes = jnp.bincount(group, length=count + 1)[:count]
    rows = jnp.where(is_here, tokens.reshape(-1, width)[order // choices], 0)
    made = _feed_forward(rows, weights, activate, finish, lambda x, weight: jax.lax.ragged_dot(x, weight, sizes))
    return _combine(jnp.where(is_here, made, 0)[jnp.argsort(order)], shares, tokens)


def _run_in_blocks(
    tokens: Any, chosen: Any, shares: Any, weights: Sequence[Any], activate: Activate, finish: Activate
) -> Any:
    """As `_run_sorted`, by the kernel of grouped products where it can do them."""
    if any(grouped.can_do(tokens, weight) for weight in weights):
        return _run_sorted(tokens, chosen, shares, weights, activate, finish)
    count, (choices, width) = weights[0].shape[0], (chosen.shape[-1], tokens.shape[-1])
    places = grouped.place_rows(_number_experts(chosen, count), count)
    rows = grouped.spread(tokens.reshape(-1, width), places, choices)
    made = _feed_forward(rows, weights, activate, finish, lambda x, weight: grouped.grouped_product(x, weight, places))
    return _combine(grouped.collect(made, places), shares, tokens)


def _combine(made: Any, shares: Any, tokens: Any) -> Any:
    """What the chosen experts made of each token, by shares: as `tokens`."""
    by_token = made.reshape(*shares.shape, tokens.shape[-1]).astype("float32")
    # No product: it would sum too few numbers for one.
    return jnp.sum(by_token * shares[..., None], -2).astype(tokens.dtype)


def _number_experts(chosen: Any, count: int) -> Any:
    """The expert of each choice; those of other processors have the number `count`."""
    chosen = chosen.reshape(-1)
    return jnp.where((chosen >= 0) & (chosen < count), chosen, count)


def _feed_forward(
    rows: Any, weights: Sequence[Any], activate: Activate, finish: Activate, product: Callable[[Any, Any], Any]
) -> Any:
    *first, last = weights
    hidden, *gate = (finish(product(rows, weight)) for weight in first)
    return product(activate(gate[0]) * hidden if gate else activate(hidden), last)
