"""Dropless experts: a token goes to its best experts, however many others do.

Tokens are sorted by expert and multiplied each with its own expert's matrices (a ragged product, grouped matmul); there
are no slots and no capacity. Sequences do not matter, so tokens may be split by any dims. Where experts are split over
axes that tokens are split over too, each processor gets the tokens of all along these axes, works on those of its own
experts, and what a token gets is summed on the way back: an all-gather and a reduce-scatter of [batch length d_model].
That is the most that any routing can need, were all tokens to choose the experts of one processor.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import ops as wf
from ..dims import Dim
from ..ops.uneven import with_padding_as_values
from ..tensor import Tensor

Activate = Callable[[Any], Any]


def best_experts(share: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """For each choice of a token its expert, and its share in the result.

    Of a softmax over all experts the `top_k` largest, which are made to sum to one where there are several (as
    Mixtral's); one alone keeps its share (as Switch's), or the gate could not learn from it.
    """
    shares, experts = wf.top_k(share, over="router", k=Dim("choices", top_k))
    if top_k > 1:
        shares = shares / wf.sum(shares, over="choices")
    return experts, shares


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

    def run(tokens: Any, chosen: Any, shares: Any, *weights: Any, here: Any) -> Any:
        return _run_local(
            tokens, chosen - here.start(experts), shares, weights, activate, lambda hidden: here.sum(hidden, width)
        )

    return wf.local(run, *operands, out=tokens.dims, whole=["choices"], summed=summed, rename=back)


def _run_local(
    tokens: Any, chosen: Any, shares: Any, weights: Sequence[Any], activate: Activate, finish: Activate
) -> Any:
    """The same of local arrays, by the experts that are here: numbers from 0 on.

    `finish` finishes a sum over d_model, of which there may be a slice here.
    """
    count, (choices, width) = weights[0].shape[0], (chosen.shape[-1], tokens.shape[-1])
    chosen = chosen.reshape(-1)
    group = jnp.where((chosen >= 0) & (chosen < count), chosen, count)  # the last group is of others' experts
    order = jnp.argsort(group, stable=True)
    is_here = (group[order] < count)[:, None]
    sizes = jnp.bincount(group, length=count + 1)[:count]
    rows = jnp.where(is_here, tokens.reshape(-1, width)[order // choices], 0)
    *first, last = weights
    hidden, *gate = (finish(jax.lax.ragged_dot(rows, weight, sizes)) for weight in first)
    hidden = activate(gate[0]) * hidden if gate else activate(hidden)
    made = jnp.where(is_here, jax.lax.ragged_dot(hidden, last, sizes), 0)
    by_token = made[jnp.argsort(order)].reshape(-1, choices, width)
    return jnp.einsum("tkd,tk->td", by_token, shares.reshape(-1, choices)).reshape(tokens.shape)
