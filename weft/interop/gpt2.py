"""GPT-2: learned positions, LayerNorm, biases everywhere, q, k, v in one tensor.

Imports `architecture` and `mapping`. Its matrices are stored with the dims that go in first.
"""

import warnings
from collections.abc import Collection
from typing import Any

from ..errors import WeftWarning, user_stacklevel
from ..models import LMConfig
from .architecture import ACTIVATION_NAMES, Architecture, Keys, tied_copy, with_softmax
from .files import WeightsError
from .mapping import FileEntry, Share

_DROPOUTS = ("resid_pdrop", "embd_pdrop")


def _fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    keys.must_be("is_causal", None, True)
    d_model, heads = keys.size("n_embd"), keys.size("n_head")
    if d_model % heads:
        raise WeightsError(
            f"`n_embd` is {d_model} and `n_head` {heads} in {keys.path}", fix="give a number of heads that divides it"
        )
    dropout, of_embeddings = (keys.number(key, 0.1) for key in _DROPOUTS)
    if of_embeddings != dropout:
        warnings.warn(
            f"{keys.path} has dropout of embeddings of its own; `resid_pdrop`, {dropout}, is taken for both",
            WeftWarning,
            stacklevel=user_stacklevel(),
        )
    return {
        "layers": keys.count("n_layer"),
        "d_model": d_model,
        "heads": heads,
        "d_kv": d_model // heads,
        "d_ff": keys.size("n_inner", 4 * d_model),
        "vocab": keys.size("vocab_size"),
        "length": keys.size("n_positions"),
        "max_length": keys.size("n_positions"),
        "activation": keys.activation("activation_function", "gelu_new"),
        "epsilon": keys.number("layer_norm_epsilon", 1e-5, above=0),
        "dropout": dropout,
        "attention_dropout": keys.number("attn_pdrop", 0.1),
        "hidden_dropout": 0.0,
        "output_dropout": 0.0,
        "tied": keys.flag("tie_word_embeddings", True),
        "scale_scores": keys.flag("scale_attn_weights", True),
        "scale_by_layer": keys.flag("scale_attn_by_inverse_layer_idx", False),
        "cross_attention": keys.flag("add_cross_attention", False),
    }


def _keys(config: LMConfig) -> dict[str, Any]:
    if config.heads * config.d_kv != config.d_model:
        raise GPT2.no_form(config, "d_kv", config.d_model // config.heads)
    return {
        "n_layer": config.layers,
        "n_embd": config.d_model,
        "n_head": config.heads,
        "n_inner": config.d_ff,
        "vocab_size": config.vocab,
        "n_positions": config.max_positions,
        "activation_function": ACTIVATION_NAMES[config.activation],
        "layer_norm_epsilon": config.epsilon,
        **dict.fromkeys(_DROPOUTS, config.dropout),
        "attn_pdrop": config.attention_drop,
        "tie_word_embeddings": config.tied,
        "scale_attn_weights": config.scale_scores,
        "scale_attn_by_inverse_layer_idx": config.scale_by_layer,
        "add_cross_attention": config.cross_attention,
        "bos_token_id": None,
        "eos_token_id": None,
    }


_CROSS = {
    "memory_norm.scale": ("ln_cross_attn.weight", "d_model"),
    "memory_norm.bias": ("ln_cross_attn.bias", "d_model"),
    "memory_attention.q": ("crossattention.q_attn.weight", "d_model heads*d_kv"),
    "memory_attention.q_bias": ("crossattention.q_attn.bias", "heads*d_kv"),
    "memory_attention.o": ("crossattention.c_proj.weight", "heads*d_kv d_model"),
    "memory_attention.o_bias": ("crossattention.c_proj.bias", "d_model"),
}


def _entries(config: LMConfig) -> list[FileEntry]:
    layers, block, ours = tuple(range(config.layers)), "transformer.h.{layers}", "decoder.layers"
    entries: list[FileEntry] = []
    names = {
        "attention_norm.scale": ("ln_1.weight", "d_model"),
        "attention_norm.bias": ("ln_1.bias", "d_model"),
        "attention.o": ("attn.c_proj.weight", "heads*d_kv d_model"),
        "attention.o_bias": ("attn.c_proj.bias", "d_model"),
        "feed_forward_norm.scale": ("ln_2.weight", "d_model"),
        "feed_forward_norm.bias": ("ln_2.bias", "d_model"),
        "feed_forward.w_in": ("mlp.c_fc.weight", "d_model d_ff"),
        "feed_forward.in_bias": ("mlp.c_fc.bias", "d_ff"),
        "feed_forward.w_out": ("mlp.c_proj.weight", "d_ff d_model"),
        "feed_forward.out_bias": ("mlp.c_proj.bias", "d_model"),
    }
    if config.cross_attention:
        names |= _CROSS
        for part, letter in enumerate("kv"):
            share = Share(-1, part * config.d_model, 2 * config.d_model)
            for ours_name, name, dims in (
                (letter, "weight", "d_model heads*d_kv"),
                (f"{letter}_bias", "bias", "heads*d_kv"),
            ):
                path = f"{ours}.memory_attention.{ours_name}"
                entries.append(FileEntry(path, f"{block}.crossattention.c_attn.{name}", dims, layers, share))
    entries += [FileEntry(f"{ours}.{path}", f"{block}.{name}", dims, layers) for path, (name, dims) in names.items()]
    for part, letter in enumerate("qkv"):
        fused, share = f"{block}.attn.c_attn", Share(-1, part * config.d_model, 3 * config.d_model)
        entries += [
            FileEntry(f"{ours}.attention.{letter}", f"{fused}.weight", "d_model heads*d_kv", layers, share),
            FileEntry(f"{ours}.attention.{letter}_bias", f"{fused}.bias", "heads*d_kv", layers, share),
        ]
    entries += [
        FileEntry("embedding.table", "transformer.wte.weight", "vocab d_model"),
        FileEntry("positions.table", "transformer.wpe.weight", "positions d_model"),
        FileEntry("decoder.norm.scale", "transformer.ln_f.weight", "d_model"),
        FileEntry("decoder.norm.bias", "transformer.ln_f.bias", "d_model"),
    ]
    return with_softmax(config, entries)


GPT2 = Architecture(
    "gpt2",
    "GPT2LMHeadModel",
    LMConfig,
    family="GPT2",
    fixed={"norm": "layer", "positions": "learned", "tied_scale": False, "bias": "q k v o in out norm"},
    chosen=("scale_scores", "scale_by_layer", "cross_attention"),
    fields=_fields,
    keys=_keys,
    entries=_entries,
    copies=tied_copy("transformer.wte.weight"),
    repeated=lambda config: {},
    unused=r"(transformer\.)?h\.\d+\.(attn|crossattention)\.(bias|masked_bias)",  # masks
    prefix="transformer.",
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
)
