"""Gemma 1, 2 and 3 (text): `1 + w` norms, scaled embeddings, GEGLU.

Gemma 2 has softcaps; Gemma 2 and 3 norm before and after each part, have local and global layers and scale scores by a
number of their own; Gemma 3 has QK-norm, and RoPE of another base in local layers. Imports `decoder`.
"""

from collections.abc import Collection
from typing import Any

from ..models import LMConfig
from .architecture import Architecture, Keys, tied_copy
from .decoder import CHOSEN, FIXED, UNUSED, WINDOWS, base_fields, base_keys, layer_types, window_fields
from .files import WeightsError
from .llama import bias_keys, bias_of, dense_entries
from .rope import check_amplitude, rope_fields, rope_scaling

_FIXED = FIXED | {"norm_offset": True, "embedding_scale": True}
_SOFTCAPS = {"softcap": ("attn_logit_softcapping", 50.0), "logits_softcap": ("final_logit_softcapping", 30.0)}
_GLOBAL_BASE, _LOCAL_BASE = 1_000_000.0, 10_000.0
_LOCAL, _FULL = "sliding_attention", "full_attention"


def _sizes(keys: Keys, activation: str, length: int) -> dict[str, Any]:
    keys.must_be("use_bidirectional_attention", None, False)
    if keys.get("hidden_activation") is None:
        activation = "hidden_act"
    fields = base_fields(keys, length=length, activation=activation, tied=True)
    if keys.get(activation) is None:
        fields["activation"] = "gelu_tanh"
    return fields | {"d_kv": keys.size("head_dim", 256), "bias": bias_of(keys)}


def _gemma_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    fields = _sizes(keys, "hidden_act", 8192)
    if fields["activation"] == "gelu":  # as official files name the approximation
        fields["activation"] = "gelu_tanh"
    legacy = keys.get("hidden_activation")
    if legacy is not None and keys.activation("hidden_activation", "") != fields["activation"]:
        raise WeightsError(
            f"`hidden_activation` is {legacy!r} and `hidden_act` {keys.get('hidden_act')!r} in {keys.path}",
            fix="keep the one the model was trained with",
        )
    return fields | rope_fields(keys, length=fields["length"])


def _gemma_keys(config: LMConfig) -> dict[str, Any]:
    check_amplitude(GEMMA, config)
    if config.activation == "gelu":  # their files mean the approximation by that name
        raise GEMMA.no_form(config, "activation", "gelu_tanh")
    return _size_keys(config, "hidden_act") | bias_keys(GEMMA, config)


def _size_keys(config: LMConfig, activation: str) -> dict[str, Any]:
    """The keys of sizes, with the name that these files have for the activation."""
    keys = base_keys(config, activation)
    return keys | ({activation: "gelu_pytorch_tanh"} if config.activation == "gelu_tanh" else {})


def _alternating_fields(keys: Keys, length: int, kinds: Any) -> dict[str, Any]:
    """Of Gemma 2 and 3: windows by layer, the scale of scores."""
    fields = _sizes(keys, "hidden_activation", length)
    if keys.get("hidden_activation") is None and fields["activation"] != "gelu_tanh":
        raise WeightsError(
            f"`hidden_act` is {keys.get('hidden_act')!r} in {keys.path}, which has no `hidden_activation`",
            fix="give `hidden_activation`, which alone counts in these files",
        )
    types = [_FULL if kinds(i) else _LOCAL for i in range(fields["layers"])]
    fields |= window_fields(keys, types, keys.maybe_size("sliding_window", 4096))
    return fields | {"query_scalar": keys.number("query_pre_attn_scalar", 256.0, above=0)}


def _alternating_keys(architecture: Architecture, config: LMConfig) -> dict[str, Any]:
    check_amplitude(architecture, config)
    scalar = float(config.d_kv) if config.query_scalar is None else config.query_scalar
    return (
        _size_keys(config, "hidden_activation")
        | bias_keys(architecture, config)
        | {
            "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
            "sliding_window": 4096 if config.window is None else config.window,
            "layer_types": layer_types(config),
            **{key: getattr(config, field) for field, (key, _) in _SOFTCAPS.items()},
        }
    )


def _gemma2_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    fields = _alternating_fields(keys, 8192, lambda i: i % 2)
    fields |= {field: keys.maybe_number(key, cap) for field, (key, cap) in _SOFTCAPS.items()}
    return fields | rope_fields(keys, length=fields["length"])


def _gemma2_keys(config: LMConfig) -> dict[str, Any]:
    return _alternating_keys(GEMMA2, config)


def _gemma3_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    period = keys.size("sliding_window_pattern", 6)
    keys.must_be("attn_logit_softcapping", None)  # `transformers` says it, and does not compute it
    fields = _alternating_fields(keys, 131_072, lambda i: (i + 1) % period == 0)
    fields["logits_softcap"] = keys.maybe_number("final_logit_softcapping")
    of_global = rope_fields(keys, length=fields["length"], base=_GLOBAL_BASE, within=_FULL)
    local = keys.within("rope_parameters").within(_LOCAL)
    if (kind := local.get("rope_type", local.get("type", "default"))) != "default" or local.get("factor") is not None:
        raise WeightsError(
            f"rotations of local layers are scaled by {kind!r:.60} (`rope_type`) in {keys.path}, which weft does not "
            "compute",
            fix="only models whose local layers have `default` ones are read",
        )
    base = local.number("rope_theta", keys.number("rope_local_base_freq", _LOCAL_BASE, above=0), above=0)
    if not fields["window"]:
        return fields | of_global
    if not fields["pattern"]:  # all layers are local ones
        return fields | {"rotary_base": base}
    return fields | of_global | {"local_base": base}


def _gemma3_keys(config: LMConfig) -> dict[str, Any]:
    keys = _alternating_keys(GEMMA3, config)
    is_local = config.window is not None and not config.pattern
    if is_local and config.stretch is not None:
        raise GEMMA3.no_form(config, "rotary_stretch", 1.0)
    if config.pattern and config.local_base is None and config.stretch is not None:
        raise GEMMA3.no_form(config, "local_base", _LOCAL_BASE)
    base = config.rotary_base if config.local_base is None else config.local_base
    scaling = rope_scaling(config)
    return keys | {
        "rope_local_base_freq": base,
        "rope_parameters": {
            _FULL: scaling | {"rope_theta": config.rotary_base},
            _LOCAL: {"rope_type": "default", "rope_theta": base},
        },
        "rope_scaling": None,
        "sliding_window_pattern": len(config.layer_kinds),
    }


def _family(name: str, family: str, *, fixed: dict[str, Any], chosen: Collection[str], **how: Any) -> Architecture:
    return Architecture(
        name,
        f"{family}ForCausalLM",
        LMConfig,
        family=family,
        fixed=_FIXED | fixed,
        chosen=(*CHOSEN, "bias", *chosen),
        entries=dense_entries,
        copies=tied_copy("model.embed_tokens.weight"),
        repeated=lambda config: {},
        unused=UNUSED,
        **how,
    )


_ALTERNATING = (*WINDOWS, "logits_softcap", "query_scalar")
GEMMA = _family("gemma", "Gemma", fixed={}, chosen=(), fields=_gemma_fields, keys=_gemma_keys)
GEMMA2 = _family(
    "gemma2",
    "Gemma2",
    fixed={"norm_place": "sandwich"},
    chosen=(*_ALTERNATING, "softcap"),
    fields=_gemma2_fields,
    keys=_gemma2_keys,
)
GEMMA3 = _family(
    "gemma3_text",
    "Gemma3",
    fixed={"norm_place": "sandwich", "qk_norm": "head"},
    chosen=(*_ALTERNATING, "local_base"),
    fields=_gemma3_fields,
    keys=_gemma3_keys,
)
