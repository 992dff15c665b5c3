"""Phi-3 and GPT-NeoX (Pythia), whose files hold several maps in one tensor.

Phi-3 is a Llama with q, k, v in one tensor and the gate beside the other map. GPT-NeoX has LayerNorm, biases, both
parts of a layer reading the same stream, and q, k, v side by side for each head. Both may turn only a share of the
channels. Imports `decoder`.
"""

from collections.abc import Collection
from typing import Any

from ..models import LMConfig
from .architecture import ACTIVATION_NAMES, Architecture, Keys, tied_copy, with_softmax
from .decoder import CHOSEN, FIXED, UNUSED, base_fields, base_keys, entries_of, norm_names, outer_entries
from .files import WeightsError
from .mapping import FileEntry, Share
from .rope import check_amplitude, rope_fields, rope_keys


def _phi3_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    keys.must_be("resid_pdrop", 0, 0.0)
    keys.must_be("embd_pdrop", 0, 0.0)
    fields = base_fields(keys, length=4096, epsilon=1e-5)
    keys.get("original_max_position_embeddings")  # says something to `longrope` alone
    rope = rope_fields(keys, length=fields["length"], share=1.0, first=4096)
    if (kind := rope.get("rotary_scaling", "longrope")) != "longrope":
        raise WeightsError(
            f"rotations are scaled by {kind!r} (`rope_type`) in {keys.path}, which no Phi-3 computes",
            fix="only 'default' and 'longrope' are read",
        )
    return fields | rope | {"window": keys.maybe_size("sliding_window")}


def _phi3_keys(config: LMConfig) -> dict[str, Any]:
    check_amplitude(PHI3, config, ("longrope",))
    keys = base_keys(config) | rope_keys(config, has_share=True)
    if config.stretch is not None:
        keys["original_max_position_embeddings"] = config.rotary_length
    return keys | {"sliding_window": config.window, "resid_pdrop": 0.0, "embd_pdrop": 0.0}


def _phi3_entries(config: LMConfig) -> list[FileEntry]:
    block, layers = "model.layers.{layers}", tuple(range(config.layers))
    names = norm_names(config) | {
        "attention.o": ("self_attn.o_proj.weight", "d_model heads*group*d_kv"),
        "feed_forward.w_out": ("mlp.down_proj.weight", "d_model d_ff"),
    }
    entries = entries_of(names, layers)
    one = config.heads * config.d_kv
    begins = {"q": 0, "k": config.group * one, "v": (config.group + 1) * one}
    for letter, start in begins.items():
        dims = f"heads*{'group*' if letter == 'q' else ''}d_kv d_model"
        share = Share(0, start, (config.group + 2) * one)
        path, name = f"decoder.layers.attention.{letter}", f"{block}.self_attn.qkv_proj.weight"
        entries.append(FileEntry(path, name, dims, layers, share))
    for i, weight in enumerate(("w_gate", "w_in")):
        path, name = f"decoder.layers.feed_forward.{weight}", f"{block}.mlp.gate_up_proj.weight"
        entries.append(FileEntry(path, name, "d_ff d_model", layers, Share(0, i * config.d_ff, 2 * config.d_ff)))
    return with_softmax(config, [*entries, *outer_entries()])


PHI3 = Architecture(
    "phi3",
    "Phi3ForCausalLM",
    LMConfig,
    family="Phi3",
    fixed=FIXED,
    chosen=(*CHOSEN, "window", "rotary_share"),
    fields=_phi3_fields,
    keys=_phi3_keys,
    entries=_phi3_entries,
    copies=tied_copy("model.embed_tokens.weight"),
    repeated=lambda config: {},
    unused=UNUSED,
)


_HEAD, _TABLE = "embed_out.weight", "gpt_neox.embed_in.weight"
_BIASED, _UNBIASED = "q k v o in out norm", "in out norm"


def _neox_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    d_model, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    if d_model % heads:
        raise WeightsError(
            f"`hidden_size` is {d_model} and `num_attention_heads` {heads} in {keys.path}",
            fix="give a number of heads that divides it",
        )
    keys.must_be("head_dim", None, d_model // heads)  # by which `transformers` counts the channels that turn
    length = keys.size("max_position_embeddings", 2048)
    return {
        "layers": keys.count("num_hidden_layers"),
        "d_model": d_model,
        "heads": heads,
        "d_kv": d_model // heads,
        "d_ff": keys.size("intermediate_size"),
        "vocab": keys.size("vocab_size"),
        "length": length,
        "max_length": length,
        "activation": keys.activation("hidden_act", "gelu"),
        "epsilon": keys.number("layer_norm_eps", 1e-5, above=0),
        "dropout": keys.number("hidden_dropout", 0.0),
        "hidden_dropout": 0.0,
        "attention_dropout": keys.number("attention_dropout", 0.0),
        "tied": keys.flag("tie_word_embeddings", False),
        "parallel": keys.flag("use_parallel_residual", True),
        "bias": _BIASED if keys.flag("attention_bias", True) else _UNBIASED,
        **_neox_rope(keys, length),
    }


def _neox_rope(keys: Keys, length: int) -> dict[str, Any]:
    """The fields of RoPE, by names of their own or by the usual ones."""
    keys.must_be("is_causal", None, True)
    for usual, own, default in (
        ("partial_rotary_factor", "rotary_pct", 0.25),
        ("rope_theta", "rotary_emb_base", 10_000),
    ):
        if keys.get(usual) is not None and keys.get(usual) != (said := keys.values.get(own, default)):
            raise WeightsError(
                f"`{usual}` is {keys.get(usual)!r} and `{own}` {said!r} in {keys.path}", fix=f"give `{own}` alone"
            )
    return rope_fields(keys, length=length, share=0.25, names=("rotary_emb_base", "rotary_pct"))


def _neox_keys(config: LMConfig) -> dict[str, Any]:
    check_amplitude(NEOX, config)
    if config.heads * config.d_kv != config.d_model:
        raise NEOX.no_form(config, "d_kv", config.d_model // config.heads)
    if set(config.bias.split()) not in (set(_BIASED.split()), set(_UNBIASED.split())):
        raise NEOX.no_form(config, "bias", _BIASED)
    rope = rope_keys(config, has_share=True)
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.heads,
        "intermediate_size": config.d_ff,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_positions,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "layer_norm_eps": config.epsilon,
        "hidden_dropout": config.dropout,
        "attention_dropout": config.attention_drop,
        "tie_word_embeddings": config.tied,
        "use_parallel_residual": config.parallel,
        "attention_bias": "q" in config.bias.split(),
        **{key: rope[key] for key in ("rope_scaling", "rope_parameters")},
        "rotary_pct": config.rotary_share,
        "rotary_emb_base": config.rotary_base,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _neox_entries(config: LMConfig) -> list[FileEntry]:
    block, layers = "gpt_neox.layers.{layers}", tuple(range(config.layers))
    names: dict[str, tuple[str, str]] = {
        "attention.o": ("attention.dense.weight", "d_model heads*d_kv"),
        "feed_forward.w_in": ("mlp.dense_h_to_4h.weight", "d_ff d_model"),
        "feed_forward.in_bias": ("mlp.dense_h_to_4h.bias", "d_ff"),
        "feed_forward.w_out": ("mlp.dense_4h_to_h.weight", "d_model d_ff"),
        "feed_forward.out_bias": ("mlp.dense_4h_to_h.bias", "d_model"),
    }
    for ours, theirs in (("attention_norm", "input_layernorm"), ("feed_forward_norm", "post_attention_layernorm")):
        names |= {f"{ours}.scale": (f"{theirs}.weight", "d_model"), f"{ours}.bias": (f"{theirs}.bias", "d_model")}
    has_biases = "q" in config.bias.split()
    if has_biases:
        names["attention.o_bias"] = ("attention.dense.bias", "d_model")
    entries = entries_of(names, layers, block=block)
    for i, letter in enumerate("qkv"):
        path, name = f"decoder.layers.attention.{letter}", f"{block}.attention.query_key_value"
        share = Share(0, i * config.d_kv, 3 * config.d_kv, outer=1)  # for each head
        entries.append(FileEntry(path, f"{name}.weight", "heads*d_kv d_model", layers, share))
        if has_biases:
            entries.append(FileEntry(f"{path}_bias", f"{name}.bias", "heads*d_kv", layers, share))
    entries += [
        FileEntry("embedding.table", _TABLE, "vocab d_model"),
        FileEntry("decoder.norm.scale", "gpt_neox.final_layer_norm.weight", "d_model"),
        FileEntry("decoder.norm.bias", "gpt_neox.final_layer_norm.bias", "d_model"),
    ]
    return with_softmax(config, entries, _HEAD)


NEOX = Architecture(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    LMConfig,
    family="GPTNeoX",
    fixed={"norm": "layer", "positions": "rotary", "tied_scale": False},
    chosen=("bias", "parallel", "rotary_share", "stretch"),
    fields=_neox_fields,
    keys=_neox_keys,
    entries=_neox_entries,
    copies=tied_copy(_TABLE, _HEAD),
    repeated=lambda config: {},
    unused=r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
)
