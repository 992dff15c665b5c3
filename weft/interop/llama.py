"""Llama: RoPE, RMSNorm, SwiGLU, grouped-query attention (GQA).

In RoPE channel i of a head turns with channel i + half in both, so nothing is reordered.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ..models import LMConfig
from .architecture import ACTIVATION_NAMES, Architecture, Keys, tied_copy, with_softmax
from .files import WeightsError
from .mapping import FileEntry

_BIASES = {"q": "heads*group*d_kv", "k": "heads*d_kv", "v": "heads*d_kv", "o": "d_model"}
_ROPE_SCALING = {
    "rotary_stretch": "factor",
    "rotary_low": "low_freq_factor",
    "rotary_high": "high_freq_factor",
    "rotary_length": "original_max_position_embeddings",
}


def _rope(keys: Keys) -> dict[str, Any]:
    """The base of RoPE, and its scaling; older files keep the two apart."""
    values = keys.values.get("rope_parameters") or keys.values.get("rope_scaling") or {}
    if not isinstance(values, Mapping):
        raise keys.wrong("rope_parameters" if keys.values.get("rope_parameters") else "rope_scaling", "an object")
    kind = values.get("rope_type", values.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise WeightsError(
            f"rotations are scaled by {kind!r} (`rope_type`) in {keys.path}, which weft does not compute",
            fix="only `default` and `llama3` are read",
        )
    rope = Keys(values, keys.path)
    rope.must_be("partial_rotary_factor", 1, 1.0)
    base = rope.number("rope_theta", keys.number("rope_theta", 10_000.0))
    if kind == "default":
        return {"rotary_base": base}
    if missing := next((key for key in _ROPE_SCALING.values() if key not in values), None):
        raise WeightsError(f"{keys.path} has no `{missing}` beside its `rope_type`", fix="add it")
    scaling = {field: rope.number(key, 0) for field, key in _ROPE_SCALING.items() if field != "rotary_length"}
    low, high = scaling["rotary_low"], scaling["rotary_high"]
    if low >= high:
        raise WeightsError(
            f"`low_freq_factor` is {low} and `high_freq_factor` {high} in {keys.path}",
            fix="give a low one below the high one",
        )
    return {"rotary_base": base, **scaling, "rotary_length": rope.size(_ROPE_SCALING["rotary_length"])}


def _fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    keys.must_be("mlp_bias", False)
    d_model, queries = keys.size("hidden_size"), keys.size("num_attention_heads")
    heads = keys.size("num_key_value_heads", queries)
    if not heads or queries % heads:
        raise WeightsError(
            f"`num_attention_heads` is {queries} and `num_key_value_heads` {heads} in {keys.path}",
            fix="give a number of heads of keys and values that divides that of queries",
        )
    return {
        "layers": keys.size("num_hidden_layers"),
        "d_model": d_model,
        "heads": heads,
        "group": queries // heads,
        "d_kv": keys.size("head_dim", d_model // queries),
        "d_ff": keys.size("intermediate_size"),
        "vocab": keys.size("vocab_size"),
        "length": keys.size("max_position_embeddings", 2048),
        "max_length": keys.size("max_position_embeddings", 2048),
        "activation": keys.activation("hidden_act", "silu"),
        "epsilon": keys.number("rms_norm_eps", 1e-6),
        "dropout": keys.number("attention_dropout", 0.0),
        "bias": "q k v o" if keys.flag("attention_bias", False) else "",
        "tied": keys.flag("tie_word_embeddings", False),
        **_rope(keys),
    }


def _keys(config: LMConfig) -> dict[str, Any]:
    if config.bias and set(config.bias.split()) != set("qkvo"):
        raise LLAMA.no_form(config, "bias", "")
    if config.stretch is None:
        rotary: dict[str, Any] = {"rope_type": "default"}
    else:
        rotary = {"rope_type": "llama3", **{key: getattr(config, field) for field, key in _ROPE_SCALING.items()}}
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.heads * config.group,
        "num_key_value_heads": config.heads,
        "head_dim": config.d_kv,
        "intermediate_size": config.d_ff,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_positions,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "rms_norm_eps": config.epsilon,
        "attention_dropout": config.dropout,
        "attention_bias": bool(config.bias),
        "mlp_bias": False,
        "tie_word_embeddings": config.tied,
        "rope_theta": config.rotary_base,
        "rope_scaling": None if config.stretch is None else rotary,
        "rope_parameters": rotary | {"rope_theta": config.rotary_base},
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _entries(config: LMConfig) -> list[FileEntry]:
    layers, block, ours = tuple(range(config.layers)), "model.layers.{layers}", "decoder.layers"
    names = {
        "attention_norm.scale": ("input_layernorm.weight", "d_model"),
        "attention.q": ("self_attn.q_proj.weight", "heads*group*d_kv d_model"),
        "attention.k": ("self_attn.k_proj.weight", "heads*d_kv d_model"),
        "attention.v": ("self_attn.v_proj.weight", "heads*d_kv d_model"),
        "attention.o": ("self_attn.o_proj.weight", "d_model heads*group*d_kv"),
        "feed_forward_norm.scale": ("post_attention_layernorm.weight", "d_model"),
        "feed_forward.w_gate": ("mlp.gate_proj.weight", "d_ff d_model"),
        "feed_forward.w_in": ("mlp.up_proj.weight", "d_ff d_model"),
        "feed_forward.w_out": ("mlp.down_proj.weight", "d_model d_ff"),
    }
    for letter in (name for name in config.bias.split() if name in _BIASES):
        names[f"attention.{letter}_bias"] = (f"self_attn.{letter}_proj.bias", _BIASES[letter])
    entries = [FileEntry(f"{ours}.{path}", f"{block}.{name}", dims, layers) for path, (name, dims) in names.items()]
    entries += [
        FileEntry("embedding.table", "model.embed_tokens.weight", "vocab d_model"),
        FileEntry("decoder.norm.scale", "model.norm.weight", "d_model"),
    ]
    return with_softmax(config, entries)


LLAMA = Architecture(
    "llama",
    "LlamaForCausalLM",
    LMConfig,
    family="Llama",
    fixed={
        "norm": "rms",
        "positions": "rotary",
        "tied_scale": False,
        "embedding_scale": False,
        "scale_scores": True,
        "qk_norm": "none",
        "softcap": None,
        "window": None,
        "gated": True,
        "experts": 0,
        "prefix": False,
    },
    fields=_fields,
    keys=_keys,
    entries=_entries,
    copies=tied_copy("model.embed_tokens.weight"),
    repeated=lambda config: {},
    unused=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
)
