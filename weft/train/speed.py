"""How much work a token is, and how much a processor can do at most.

Imports the models. The work is that of the model itself: what is computed again in the backward pass, and what several
processors compute twice, does not count.
"""

import math

import jax

from ..models import Seq2SeqConfig, TransformerConfig
from ..nn.weights import Weight, written

# Dense products of bfloat16 numbers, FLOP/s, from the makers' data sheets; by a part of JAX's `device_kind`.
PEAKS = {
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "TPU v6 lite": 918e12,
    "TPU v5p": 459e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v4": 275e12,
}


def peak_flops(device: jax.Device) -> float | None:
    """What a processor can do at most in bfloat16; None where that is not known."""
    return next((peak for name, peak in PEAKS.items() if name in device.device_kind), None)


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
