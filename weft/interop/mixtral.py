"""Mixtral and Qwen3-MoE: dropless experts (MoE), in all layers or in some.

Of a softmax over all experts the largest shares are taken; Mixtral makes them sum to one, Qwen3-MoE if
`norm_topk_prob` says so. The balance loss of `transformers` counts all choices of a token, ours the first: it is taken
over where a file asks for it (`output_router_logits`). Imports `decoder` and `llama`.
"""

from collections.abc import Collection, Sequence
from typing import Any

from ..models import LMConfig
from .architecture import Architecture, Keys, tied_copy, with_softmax
from .decoder import (
    CHOSEN,
    FIXED,
    UNUSED,
    attention_names,
    base_keys,
    entries_of,
    feed_forward_names,
    fields_with_rope,
    norm_names,
    outer_entries,
)
from .files import WeightsError
from .llama import bias_keys, bias_of
from .mapping import FileEntry
from .rope import check_amplitude

_MIXTRAL = {"w_gate": "w1", "w_in": "w3", "w_out": "w2"}
_QWEN = {"w_gate": "gate_proj", "w_in": "up_proj", "w_out": "down_proj"}
_CHOSEN = (*CHOSEN, "experts", "window", "normalised")


def _chosen_experts(keys: Keys, count: int, default: int) -> dict[str, Any]:
    top_k = keys.size("num_experts_per_tok", default)
    if top_k > count:
        raise WeightsError(
            f"`num_experts_per_tok` is {top_k} of {count} experts in {keys.path}", fix=f"give one from 1 to {count}"
        )
    coefficient = keys.number("router_aux_loss_coef", 0.001)
    is_asked = keys.flag("output_router_logits", False)
    return {"experts": count, "gating": "dropless", "top_k": top_k, "balance_loss": coefficient if is_asked else 0.0}


def _balance_keys(config: LMConfig) -> dict[str, Any]:
    asked = {"router_aux_loss_coef": config.balance_loss} if config.balance_loss else {}
    return {"num_experts_per_tok": config.choices, "output_router_logits": bool(config.balance_loss), **asked}


def _check(architecture: Architecture, config: LMConfig) -> None:
    """Raises where there are no experts, or such as drop tokens."""
    check_amplitude(architecture, config)
    if not config.experts:
        raise architecture.no_form(config, "experts", 8)
    if config.gating not in ("dropless",):
        raise architecture.no_form(config, "gating", "dropless")


def _entries(
    config: LMConfig, expert: str, router: str, names: dict[str, str], dense: dict[str, Any]
) -> list[FileEntry]:
    """The tensors of all layers; experts in the last of every so many."""
    sparse = range(config.every - 1, config.layers, config.every)
    parts: list[tuple[str, Sequence[int], dict[str, Any]]] = [
        ("decoder.layers", sparse, {"feed_forward.gate": (router, "router d_model")})
    ]
    if config.every > 1:
        parts.append(("decoder.dense", [i for i in range(config.layers) if i not in sparse], dense))
    entries = []
    for ours, layers, own in parts:
        entries += entries_of(norm_names(config) | attention_names(config) | own, layers, ours)
    width = config.expert_width(config.d_ff).name
    for weight, name in names.items():
        dims = f"d_model {width}" if weight == "w_out" else f"{width} d_model"
        place = f"model.layers.{{layers}}.{expert}.{{experts}}.{name}.weight"
        entries.append(FileEntry(f"decoder.layers.feed_forward.{weight}", place, dims, tuple(sparse)))
    return with_softmax(config, [*entries, *outer_entries()])


def _family(name: str, family: str, **how: Any) -> Architecture:
    return Architecture(
        name,
        f"{family}ForCausalLM",
        LMConfig,
        family=family,
        copies=tied_copy("model.embed_tokens.weight"),
        repeated=lambda config: {},
        unused=UNUSED,
        aliases={"num_experts": "num_local_experts"},
        **how,
    )


def _mixtral_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    fields = fields_with_rope(keys, length=131_072, epsilon=1e-5, base=1_000_000.0)
    fields |= _chosen_experts(keys, keys.size("num_local_experts", 8), 2)
    jitter = keys.number("router_jitter_noise", 0.0)
    return fields | {"window": keys.maybe_size("sliding_window"), "normalised": True, "jitter": jitter}


def _mixtral_keys(config: LMConfig) -> dict[str, Any]:
    _check(MIXTRAL, config)
    if (config.choices == 1 and not config.normalised) or config.normalised is False:
        raise MIXTRAL.no_form(config, "normalised", True)
    if config.every > 1:
        raise MIXTRAL.no_form(config, "every", 1)
    if config.expert_width(config.d_ff).name != "d_ff":
        raise MIXTRAL.no_form(config, "expert_ff", None)
    return base_keys(config) | _balance_keys(config) | {
        "num_local_experts": config.experts,
        "router_jitter_noise": config.jitter,
        "sliding_window": config.window,
    }  # fmt: skip


def _mixtral_entries(config: LMConfig) -> list[FileEntry]:
    return _entries(config, "block_sparse_moe.experts", "block_sparse_moe.gate.weight", _MIXTRAL, {})


MIXTRAL = _family(
    "mixtral",
    "Mixtral",
    fixed=FIXED | {"gating": "dropless"},
    chosen=_CHOSEN,
    fields=_mixtral_fields,
    keys=_mixtral_keys,
    entries=_mixtral_entries,
)


def _qwen3_moe_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    keys.must_be("mlp_only_layers", None, [])
    fields = fields_with_rope(keys, length=32_768) | {"bias": bias_of(keys)}
    fields |= _chosen_experts(keys, keys.size("num_local_experts", 128), 8)
    every, width = keys.size("decoder_sparse_step", 1), keys.size("moe_intermediate_size", 768)
    if fields["layers"] % every:
        raise WeightsError(
            f"`decoder_sparse_step` is {every} of {fields['layers']} layers in {keys.path}",
            fix="only models with experts in the last of every so many layers are read",
        )
    window = keys.maybe_size("sliding_window", 4096) if keys.flag("use_sliding_window", False) else None
    widths = {"d_ff": width} if every == 1 else {"expert_ff": width}
    return fields | widths | {"every": every, "window": window, "normalised": keys.flag("norm_topk_prob", False)}


def _qwen3_moe_keys(config: LMConfig) -> dict[str, Any]:
    _check(QWEN3_MOE, config)
    if config.jitter:
        raise QWEN3_MOE.no_form(config, "jitter", 0.0)
    normalised = config.choices > 1 if config.normalised is None else config.normalised
    return base_keys(config) | bias_keys(QWEN3_MOE, config) | _balance_keys(config) | {
        "num_experts": config.experts,
        "num_local_experts": config.experts,
        "moe_intermediate_size": config.expert_width(config.d_ff).size,
        "decoder_sparse_step": config.every,
        "mlp_only_layers": [],
        "norm_topk_prob": normalised,
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
    }  # fmt: skip


def _qwen3_moe_entries(config: LMConfig) -> list[FileEntry]:
    return _entries(config, "mlp.experts", "mlp.gate.weight", _QWEN, feed_forward_names(config))


QWEN3_MOE = _family(
    "qwen3_moe",
    "Qwen3Moe",
    fixed=FIXED | {"gating": "dropless", "qk_norm": "head"},
    chosen=(*_CHOSEN, "bias", "expert_ff"),
    fields=_qwen3_moe_fields,
    keys=_qwen3_moe_keys,
    entries=_qwen3_moe_entries,
)
