"""The layers a Transformer block is made of, as a configuration has them.

Imports the layers and `config`.
"""

import dataclasses
from typing import Any

import jax

from .. import nn
from ..nn.weights import Weight, path_text
from ..tensor import Tensor
from .config import TransformerConfig


def make_norm(config: TransformerConfig) -> nn.RMSNorm | nn.LayerNorm:
    """RMSNorm or LayerNorm over `d_model`."""
    d_model = config.dim("d_model")
    if config.norm == "rms":
        return nn.RMSNorm(d_model, epsilon=config.epsilon, offset=float(config.norm_offset))
    return nn.LayerNorm(d_model, bias="norm" in config.bias.split(), epsilon=config.epsilon)


def apply_norm(norm: nn.RMSNorm | nn.LayerNorm | None, x: Tensor) -> Tensor:
    """The stream normed, where a block has a norm in that place."""
    return x if norm is None else norm(x)


def make_attention(config: TransformerConfig, *, is_self: bool) -> nn.Attention:
    """Self-attention, with RoPE and QK-norm if the model has them, or cross."""
    attention = nn.Attention(
        *(config.dim(name) for name in ("d_model", "heads", "d_kv")),
        group=config.dim("group") if config.group > 1 else None,
        bias=[name for name in config.bias.split() if name in "qkvo"],
        scale=_score_scale(config),
        softcap=config.softcap,
        rotary=config.rotary_base if is_self and config.positions == "rotary" else None,
        stretch=config.stretch,
        share=config.rotary_share,
        qk_norm=config.qk_norm if is_self else "none",
        epsilon=config.epsilon,
        norm_offset=float(config.norm_offset),
        fused=config.attention == "auto",
        matmul_dtype=config.products,
    )
    return _begin(attention, config)


def _score_scale(config: TransformerConfig) -> float | None:
    """What attention's scores are multiplied by; None for the root of `d_kv`."""
    if not config.scale_scores:
        return 1.0
    return None if config.query_scalar is None else config.query_scalar**-0.5


def make_feed_forward(config: TransformerConfig) -> nn.FeedForward:
    """The feed-forward part (MLP), gated or plain."""
    forward = nn.FeedForward(
        config.dim("d_model"),
        config.dim("d_ff"),
        activation=config.activation,
        gated=config.gated,
        bias="in" in config.bias.split(),
        gate_bias="gate" in config.bias.split(),
        matmul_dtype=config.products,
    )
    return _begin(forward, config)


def make_experts(config: TransformerConfig) -> nn.MixtureOfExperts:
    """The feed-forward part as a mixture of experts (MoE)."""
    experts = nn.MixtureOfExperts(
        config.dim("d_model"),
        config.expert_width(config.d_ff),
        config.dim("experts"),
        activation=config.activation,
        gated=config.gated,
        gating=config.gating,
        top_k=config.top_k,
        normalised=config.normalised,
        scoring=config.scoring,
        choice_bias=config.choice_bias,
        routed_scale=config.routed_scale,
        shared_experts=config.shared_experts,
        capacity=config.capacity,
        room=config.expert_room,
        balance_over=config.balance_over,
        jitter=config.jitter,
        dropout=config.hidden_drop if config.gating != "dropless" else 0.0,
        matmul_dtype=config.products,
    )
    return _begin(experts, config)


def _begin(layer: Any, config: TransformerConfig) -> Any:
    """The layer with the deviations of first values that the configuration asks for."""
    if config.weight_stddev is None and config.output_stddev is None:
        return layer

    def begin(path: Any, weight: Any) -> Any:
        if not isinstance(weight, Weight) or not weight.stddev:
            return weight
        is_last = path_text(path).rpartition(".")[2] in ("o", "w_out")
        asked = config.output_stddev if is_last and config.output_stddev is not None else config.weight_stddev
        return weight if asked is None else dataclasses.replace(weight, stddev=asked)

    return jax.tree_util.tree_map_with_path(begin, layer)


def make_relative(config: TransformerConfig, causal: bool) -> nn.RelativeBias:
    """T5's relative position biases."""
    heads = [config.dim(name) for name in ("heads", "group") if config.dims.has(name)]
    return nn.RelativeBias(config.dim("buckets"), heads, is_causal=causal, farthest=config.farthest)
