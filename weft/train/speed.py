"""How much work a token is, and how much a processor can do at most.

Imports the models and the table of hardware. The work is that of the model itself: what is computed again in the
backward pass, and what several processors compute twice, does not count.
"""

import math

import jax

from ..models import Seq2SeqConfig, TransformerConfig
from ..nn.weights import Weight, written
from ..plan.hardware import hardware_of


def peak_flops(device: jax.Device) -> float | None:
    """What a processor can do at most in bfloat16; None where that is not known."""
    found = hardware_of(device)
    return None if found is None else found.flops_of("bfloat16")


def flops_per_token(config: TransformerConfig) -> float:
    """The work of training on one token: 2 for each weight it meets and each score, twice that for the gradients."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(config.blueprint())
    met = sum(_met(config, written(path), leaf) for path, leaf in leaves if isinstance(leaf, Weight))
    scores = 2 * config.layers * config.heads * config.d_kv * config.length
    if isinstance(config, Seq2SeqConfig):  # an encoder, and a decoder that looks at both
        scores *= 3
    return 6.0 * (met + scores)


def _met(config: TransformerConfig, path: str, weight: Weight) -> float:
    """How many numbers of a weight a token is multiplied with."""
    numbers = float(math.prod(dim.count for dim in weight.stored_dims))
    if path.split(".")[0] in ("embedding", "positions"):  # looked up, but for a table that makes the logits too
        return numbers if config.tied and path.startswith("embedding") else 0.0
    if any(dim.name == "experts" for dim in weight.dims) and "router" not in path:
        return numbers / config.experts * (2 if config.gating == "top2" else 1)
    return numbers
