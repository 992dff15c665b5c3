"""What files of Llama and its relatives share: sizes, windows, tensors.

Imports `architecture`, `rope` and `mapping`. In RoPE channel i of a head turns with channel i + half in all of them, so
nothing is reordered. A family says what it has beside these: see `llama`, `gemma`, `moe`, `fused`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..models import LMConfig
from .architecture import ACTIVATION_NAMES, Keys
from .files import WeightsError
from .mapping import FileEntry
from .rope import rope_fields, rope_keys

FIXED: dict[str, Any] = {"norm": "rms", "positions": "rotary", "tied_scale": False, "gated": True}
CHOSEN = ("group", "rotary_scaling", "stretch")
"""Fields that all these files say."""
WINDOWS = ("window", "pattern")
_BIASES = {"q": "heads*group*d_kv", "k": "heads*d_kv", "v": "heads*d_kv", "o": "d_model"}
_KINDS = {"sliding_attention": "local", "full_attention": "global"}
_BLOCK, _OURS = "model.layers.{layers}", "decoder.layers"
UNUSED = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"


def base_fields(
    keys: Keys, *, length: int = 2048, epsilon: float = 1e-6, activation: str = "hidden_act", tied: bool = False
) -> dict[str, Any]:
    """The sizes and the other fields that all these files have, but those of RoPE."""
    keys.must_be("is_causal", None, True)
    d_model, queries = keys.size("hidden_size"), keys.size("num_attention_heads")
    heads = keys.size("num_key_value_heads", queries)
    if queries % heads:
        raise WeightsError(
            f"`num_attention_heads` is {queries} and `num_key_value_heads` {heads} in {keys.path}",
            fix="give a number of heads of keys and values that divides that of queries",
        )
    if keys.values.get("head_dim") is None and d_model % queries:
        raise WeightsError(
            f"`hidden_size` is {d_model} and `num_attention_heads` {queries} in {keys.path}, which has no `head_dim`",
            fix="give a number of heads that divides it, or `head_dim`",
        )
    length = keys.size("max_position_embeddings", length)
    return {
        "layers": keys.count("num_hidden_layers"),
        "d_model": d_model,
        "heads": heads,
        "group": queries // heads,
        "d_kv": keys.size("head_dim", d_model // queries),
        "d_ff": keys.size("intermediate_size"),
        "vocab": keys.size("vocab_size"),
        "length": length,
        "max_length": length,
        "activation": keys.activation(activation, "silu"),
        "epsilon": keys.number("rms_norm_eps", epsilon, above=0),
        "attention_dropout": keys.number("attention_dropout", 0.0),
        "tied": keys.flag("tie_word_embeddings", tied),
    }


def fields_with_rope(keys: Keys, *, base: float = 10_000.0, **how: Any) -> dict[str, Any]:
    """All of these fields."""
    fields = base_fields(keys, **how)
    return fields | rope_fields(keys, length=fields["length"], base=base)


def base_keys(config: LMConfig, activation: str = "hidden_act") -> dict[str, Any]:
    """The keys of those fields."""
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.heads * config.group,
        "num_key_value_heads": config.heads,
        "head_dim": config.d_kv,
        "intermediate_size": config.d_ff,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_positions,
        activation: ACTIVATION_NAMES[config.activation],
        "rms_norm_eps": config.epsilon,
        "attention_dropout": config.attention_drop,
        "tie_word_embeddings": config.tied,
        **rope_keys(config),
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


# Windows by layer.


def window_fields(keys: Keys, kinds: Sequence[str], window: int | None) -> dict[str, Any]:
    """How far layers look back, by `layer_types`, or else by what the family does."""
    layers, said = len(kinds), keys.get("layer_types")
    if said is not None:
        if not isinstance(said, list) or len(said) != layers or not all(isinstance(kind, str) for kind in said):
            raise keys.wrong("layer_types", f"a list of {layers} words, one for each layer")
        if unknown := next((kind for kind in said if kind not in _KINDS), None):
            raise WeightsError(
                f"`layer_types` names {unknown!r:.60} in {keys.path}, which weft does not compute",
                fix=f"only models with layers of {' and '.join(_KINDS)} are read",
            )
        kinds = said
    words = [_KINDS[kind] for kind in kinds]
    if "local" not in words:
        return {"window": None, "pattern": ""}
    if not window:
        raise WeightsError(
            f"`layer_types` names 'sliding_attention' and `sliding_window` is {window} in {keys.path}",
            fix="say how far those layers look back",
        )
    return {"window": window, "pattern": "" if "global" not in words else shorten(words)}


def shorten(words: Sequence[str]) -> str:
    """The fewest words that make these when they are repeated."""
    words = list(words)
    count = next(n for n in range(1, len(words) + 1) if words[n:] == words[:-n])
    return " ".join(words[:count])


def layer_types(config: LMConfig) -> list[str]:
    """The kind of each layer, as files name it."""
    names = {ours: theirs for theirs, ours in _KINDS.items()}
    if not config.pattern:
        return [names["global" if config.window is None else "local"]] * config.layers
    kinds = config.layer_kinds
    return [names[kinds[i % len(kinds)]] for i in range(config.layers)]


# Tensors.


def norm_names(config: LMConfig) -> dict[str, tuple[str, str]]:
    """The norms of a block, where the model has them: what of ours is called what."""
    places = {
        "pre": {"attention_norm": "input", "feed_forward_norm": "post_attention"},
        "output": {"attention_out_norm": "post_attention", "feed_forward_out_norm": "post_feedforward"},
        "sandwich": {
            "attention_norm": "input",
            "attention_out_norm": "post_attention",
            "feed_forward_norm": "pre_feedforward",
            "feed_forward_out_norm": "post_feedforward",
        },
    }[config.norm_place]
    return {f"{ours}.scale": (f"{theirs}_layernorm.weight", "d_model") for ours, theirs in places.items()}


def attention_names(config: LMConfig) -> dict[str, tuple[str, str]]:
    """The maps of attention with their biases, and the QK-norm."""
    names = {
        "attention.q": ("self_attn.q_proj.weight", "heads*group*d_kv d_model"),
        "attention.k": ("self_attn.k_proj.weight", "heads*d_kv d_model"),
        "attention.v": ("self_attn.v_proj.weight", "heads*d_kv d_model"),
        "attention.o": ("self_attn.o_proj.weight", "d_model heads*group*d_kv"),
    }
    for letter in (name for name in config.bias.split() if name in _BIASES):
        names[f"attention.{letter}_bias"] = (f"self_attn.{letter}_proj.bias", _BIASES[letter])
    if config.qk_norm != "none":
        for letter in "qk":
            dims = "d_kv" if config.qk_norm == "head" else _BIASES[letter]
            names[f"attention.{letter}_norm.scale"] = (f"self_attn.{letter}_norm.weight", dims)
    return names


def feed_forward_names(config: LMConfig) -> dict[str, tuple[str, str]]:
    """The maps of the feed-forward part, and their biases."""
    names = {
        "feed_forward.w_gate": ("mlp.gate_proj.weight", "d_ff d_model"),
        "feed_forward.w_in": ("mlp.up_proj.weight", "d_ff d_model"),
        "feed_forward.w_out": ("mlp.down_proj.weight", "d_model d_ff"),
    }
    if "in" in config.bias.split():
        names["feed_forward.gate_bias"] = ("mlp.gate_proj.bias", "d_ff")
        names["feed_forward.in_bias"] = ("mlp.up_proj.bias", "d_ff")
        names["feed_forward.out_bias"] = ("mlp.down_proj.bias", "d_model")
    return names


def entries_of(
    names: Mapping[str, tuple[str, str]], layers: Sequence[int], ours: str = _OURS, block: str = _BLOCK
) -> list[FileEntry]:
    """The entries of parameters of some layers."""
    return [FileEntry(f"{ours}.{path}", f"{block}.{name}", dims, tuple(layers)) for path, (name, dims) in names.items()]


def outer_entries() -> list[FileEntry]:
    """The embedding and the last norm."""
    return [
        FileEntry("embedding.table", "model.embed_tokens.weight", "vocab d_model"),
        FileEntry("decoder.norm.scale", "model.norm.weight", "d_model"),
    ]
