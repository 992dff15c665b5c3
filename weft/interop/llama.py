"""Llama, Mistral, Qwen 2 and 3, OLMo 2.

RoPE, RMSNorm, SwiGLU and grouped-query attention (GQA). They differ in biases, windows, QK-norm and where norms stand.
Imports `decoder`, what they share.
"""

from collections.abc import Collection
from typing import Any

from ..models import LMConfig
from .architecture import Architecture, Keys, tied_copy, with_softmax
from .decoder import (
    CHOSEN,
    FIXED,
    UNUSED,
    WINDOWS,
    attention_names,
    base_keys,
    entries_of,
    feed_forward_names,
    fields_with_rope,
    layer_types,
    norm_names,
    outer_entries,
    window_fields,
)
from .mapping import FileEntry
from .rope import check_amplitude

ATTENTION, FEED_FORWARD = "q k v o", "in gate out"


def bias_of(keys: Keys, *, has_feed_forward: bool = False) -> str:
    """The biases that `attention_bias` and `mlp_bias` say."""
    attention = ATTENTION if keys.flag("attention_bias", False) else ""
    return f"{attention} {FEED_FORWARD if has_feed_forward and keys.flag('mlp_bias', False) else ''}".strip()


def bias_keys(architecture: Architecture, config: LMConfig, *, has_feed_forward: bool = False) -> dict[str, Any]:
    """The keys of biases; an error where a file cannot say them."""
    attention, forward = set(ATTENTION.split()), set(FEED_FORWARD.split())
    said = set(config.bias.split())
    known = [set(), attention, *([forward, attention | forward] if has_feed_forward else [])]
    if said not in known:
        raise architecture.no_form(config, "bias", "")
    keys = {"attention_bias": attention <= said}
    return keys | ({"mlp_bias": forward <= said} if has_feed_forward else {})


def dense_entries(config: LMConfig) -> list[FileEntry]:
    """Every tensor of a model without experts."""
    names = norm_names(config) | attention_names(config) | feed_forward_names(config)
    return with_softmax(config, [*entries_of(names, range(config.layers)), *outer_entries()])


def _plain(name: str, family: str, *, fixed: dict[str, Any], chosen: Collection[str], **how: Any) -> Architecture:
    """An architecture of this shape."""
    return Architecture(
        name,
        f"{family}ForCausalLM",
        LMConfig,
        family=family,
        fixed=FIXED | fixed,
        chosen=(*CHOSEN, *chosen),
        entries=dense_entries,
        copies=tied_copy("model.embed_tokens.weight"),
        repeated=lambda config: {},
        unused=UNUSED,
        **how,
    )


# Llama: biases of attention, and of the feed-forward part.


def _llama_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    return fields_with_rope(keys) | {"bias": bias_of(keys, has_feed_forward=True)}


def _llama_keys(config: LMConfig) -> dict[str, Any]:
    check_amplitude(LLAMA, config)
    return base_keys(config) | bias_keys(LLAMA, config, has_feed_forward=True)


LLAMA = _plain("llama", "Llama", fixed={}, chosen=("bias",), fields=_llama_fields, keys=_llama_keys)


# Mistral: a window in every layer.


def _mistral_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    return fields_with_rope(keys, length=131_072) | {"window": keys.maybe_size("sliding_window", 4096)}


def _mistral_keys(config: LMConfig) -> dict[str, Any]:
    check_amplitude(MISTRAL, config)
    return base_keys(config) | {"sliding_window": config.window}


MISTRAL = _plain("mistral", "Mistral", fixed={}, chosen=("window",), fields=_mistral_fields, keys=_mistral_keys)


# Qwen 2: biases of q, k and v; Qwen 3: QK-norm of each head. Windows in both, from some layer on.


def _qwen_windows(keys: Keys, layers: int) -> dict[str, Any]:
    window = keys.maybe_size("sliding_window", 4096) if keys.flag("use_sliding_window", False) else None
    full = layers if window is None else min(keys.size("max_window_layers", 28, least=0), layers)
    keys.get("max_window_layers")
    return window_fields(keys, ["full_attention"] * full + ["sliding_attention"] * (layers - full), window)


def _qwen_window_keys(config: LMConfig) -> dict[str, Any]:
    kinds = layer_types(config)
    return {
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "max_window_layers": kinds.index("sliding_attention") if "sliding_attention" in kinds else config.layers,
        "layer_types": kinds,
    }


def _qwen2_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    fields = fields_with_rope(keys, length=32_768)
    return fields | _qwen_windows(keys, fields["layers"])


def _qwen2_keys(config: LMConfig) -> dict[str, Any]:
    check_amplitude(QWEN2, config)
    return base_keys(config) | _qwen_window_keys(config)


QWEN2 = _plain("qwen2", "Qwen2", fixed={"bias": "q k v"}, chosen=WINDOWS, fields=_qwen2_fields, keys=_qwen2_keys)


def _qwen3_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    fields = fields_with_rope(keys, length=32_768) | {"bias": bias_of(keys), "d_kv": keys.size("head_dim", 128)}
    return fields | _qwen_windows(keys, fields["layers"])


def _qwen3_keys(config: LMConfig) -> dict[str, Any]:
    check_amplitude(QWEN3, config)
    return base_keys(config) | bias_keys(QWEN3, config) | _qwen_window_keys(config)


QWEN3 = _plain(
    "qwen3", "Qwen3", fixed={"qk_norm": "head"}, chosen=("bias", *WINDOWS), fields=_qwen3_fields, keys=_qwen3_keys
)


# OLMo 2: norms of what the parts give, QK-norm of all heads together.


def _olmo2_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    return fields_with_rope(keys, epsilon=1e-5) | {"bias": bias_of(keys)}


def _olmo2_keys(config: LMConfig) -> dict[str, Any]:
    check_amplitude(OLMO2, config)
    return base_keys(config) | bias_keys(OLMO2, config)


OLMO2 = _plain(
    "olmo2",
    "Olmo2",
    fixed={"qk_norm": "all", "norm_place": "output"},
    chosen=("bias",),
    fields=_olmo2_fields,
    keys=_olmo2_keys,
)
