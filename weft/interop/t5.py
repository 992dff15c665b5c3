"""T5 with tied embeddings; 1.1 and Flan, gated (GEGLU) and not tied; mT5; UMT5.

Imports `architecture` and `mapping`. What Switch Transformers share with T5 is here too. mT5 is T5 1.1 whose logits are
never made smaller; in UMT5 each layer has relative biases of its own.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from ..models import EncoderConfig, Seq2SeqConfig
from .architecture import ACTIVATIONS, Architecture, Keys, tied_copy, with_softmax
from .files import WeightsError
from .mapping import FileEntry

# `gelu` behind a gate is the other one, approximated by a tanh; so it is only where there is no gate.
_FEED_FORWARD = {
    **{name: (activation, False) for name, activation in ACTIVATIONS.items()},
    **{f"gated-{name}": (activation, True) for name, activation in ACTIVATIONS.items()},
    "gated-gelu": ("gelu_tanh", True),
}
_LENGTH = 512
_BUCKETS = ("relative_attention_num_buckets", "relative_attention_max_distance")
_BIAS = "block.{layers}.layer.0.SelfAttention.relative_attention_bias.weight"

FIXED: dict[str, Any] = {
    "norm": "rms",
    "positions": "relative",
    "embedding_scale": False,
    "scale_scores": False,
    "qk_norm": "none",
    "softcap": None,
    "window": None,
    "bias": "",
    "group": 1,
}


def sizes(keys: Keys) -> dict[str, Any]:
    """The fields that all encoder-decoders of this family have."""
    keys.must_be("is_encoder_decoder", True)
    keys.must_be("is_causal", None, True)
    return _shared_sizes(keys)


def _shared_sizes(keys: Keys) -> dict[str, Any]:
    layers = keys.count("num_layers")
    others = keys.count("num_decoder_layers", layers)
    padding = None if keys.values.get("pad_token_id", 0) is None else keys.size("pad_token_id", 0, least=0)
    buckets, farthest = (keys.size(key, default) for key, default in zip(_BUCKETS, (32, 128), strict=True))
    if buckets < 4 or farthest <= buckets // 2:
        raise WeightsError(
            f"`{_BUCKETS[0]}` is {buckets} and `{_BUCKETS[1]}` {farthest} in {keys.path}, which leaves no far buckets",
            fix="give at least 4 buckets, and a distance above half as many",
        )
    return {
        "layers": layers,
        "decoder_layers": None if others == layers else others,
        "d_model": keys.size("d_model"),
        "heads": keys.size("num_heads"),
        "d_kv": keys.size("d_kv"),
        "d_ff": keys.size("d_ff"),
        "vocab": keys.size("vocab_size"),
        "buckets": buckets,
        "farthest": farthest,
        "dropout": keys.number("dropout_rate", 0.1),
        "epsilon": keys.number("layer_norm_epsilon", 1e-6, above=0),
        "padding": padding,
        "start": keys.size("decoder_start_token_id", padding or 0, least=0),
    }


def _encoder_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    """Of an encoder alone, whose files speak of a decoder too."""
    gated = "relu" if keys.values.get("model_type") == "t5" else "gated-gelu"
    left_out = ("decoder_layers", "start")
    fields = {key: value for key, value in _shared_sizes(keys).items() if key not in left_out}
    return {**fields, **_feed_forward(keys, gated), **_room(keys)}


def size_keys(config: Seq2SeqConfig) -> dict[str, Any]:
    """The keys of those fields."""
    return {
        **_stack_keys(config),
        "num_decoder_layers": config.of_decoder.layers,
        "decoder_start_token_id": config.start,
        "is_encoder_decoder": True,
        "tie_word_embeddings": config.tied,
    }


def _stack_keys(config: Seq2SeqConfig | EncoderConfig) -> dict[str, Any]:
    """The keys that a model of an encoder alone has too."""
    return {
        "num_layers": config.layers,
        "d_model": config.d_model,
        "num_heads": config.heads,
        "d_kv": config.d_kv,
        "d_ff": config.d_ff,
        "vocab_size": config.vocab,
        "relative_attention_num_buckets": config.buckets,
        "relative_attention_max_distance": config.farthest,
        "dropout_rate": config.dropout,
        "layer_norm_epsilon": config.epsilon,
        "pad_token_id": config.padding,
    }


def _fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    tied = keys.flag("tie_word_embeddings", True)
    scaled = keys.flag("scale_decoder_outputs", tied)
    if tied and not scaled and "lm_head.weight" in names:
        tied = False  # `transformers` from version 5 on calls every T5 tied, also those with two tables
    if scaled and not tied:
        raise WeightsError(
            f"`scale_decoder_outputs` is true and `tie_word_embeddings` false in {keys.path}",
            fix="only tied models make their logits smaller; set one of the two",
        )
    return {
        **sizes(keys),
        **_feed_forward(keys),
        **_room(keys),
        "tied": tied,
        "tied_scale": scaled or not tied,
    }


def _feed_forward(keys: Keys, default: str = "relu") -> dict[str, Any]:
    activation, gated = keys.one_of("feed_forward_proj", _FEED_FORWARD, default)
    said = keys.values.get("feed_forward_proj", default)
    keys.must_be("is_gated_act", gated)
    keys.must_be("dense_act_fn", "gelu_new" if said == "gated-gelu" else said.split("-")[-1])
    return {"activation": activation, "gated": gated}


def _multilingual_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    """Of mT5: `transformers` calls all of them tied, also those with two tables."""
    is_tied = keys.flag("tie_word_embeddings", True) and "lm_head.weight" not in names
    return {**sizes(keys), **_feed_forward(keys, "gated-gelu"), **_room(keys), "tied": is_tied}


def _by_layer_fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    """Of UMT5, which makes the logits of tied tables smaller, as T5 does."""
    return {
        **sizes(keys),
        **_feed_forward(keys, "gated-gelu"),
        **_room(keys),
        "tied": keys.flag("tie_word_embeddings", True),
    }


def _room(keys: Keys) -> dict[str, Any]:
    """For how many positions the model is made."""
    return dict.fromkeys(("length", "max_length"), keys.size("n_positions", _LENGTH))


def _encoder_keys(config: EncoderConfig) -> dict[str, Any]:
    return _written_keys(_stack_keys(config), config)


def _keys(config: Seq2SeqConfig) -> dict[str, Any]:
    keys = _written_keys(size_keys(config), config)
    return keys if not config.tied or config.tied_scale else keys | {"scale_decoder_outputs": False}


def _written_keys(sizes: dict[str, Any], config: Any) -> dict[str, Any]:
    """The keys of sizes, with those of the feed-forward part and of positions."""
    written = {what: name for name, what in reversed(_FEED_FORWARD.items())}
    written["gelu_tanh", True] = "gated-gelu"
    if (config.activation, config.gated) not in written:
        raise T5.no_form(config, "activation", "gelu_tanh")
    of_part = {"feed_forward_proj": written[config.activation, config.gated], "n_positions": config.max_positions}
    return sizes | of_part


def stacks(config: Any) -> list[tuple[str, str]]:
    """The two stacks, and where a layer of each has its feed-forward part."""
    return [("encoder", "encoder.block.{layers}.layer.1"), ("decoder", "decoder.block.{layers}.layer.2")]


def attention_entries(stack: str, part: str, layers: Sequence[int]) -> list[FileEntry]:
    """All of some layers but the feed-forward part and its norm."""
    ours, block = f"{stack}.{part}", f"{stack}.block.{{layers}}.layer"
    attentions = [("attention", f"{block}.0", "SelfAttention")]
    attentions += [("memory_attention", f"{block}.1", "EncDecAttention")] if stack == "decoder" else []
    entries = []
    for name, place, module in attentions:
        norm = f"{ours}.{name.replace('attention', 'norm') if 'memory' in name else 'attention_norm'}.scale"
        entries.append(FileEntry(norm, f"{place}.layer_norm.weight", "d_model", tuple(layers)))
        for letter in "qkv":
            weight = f"{place}.{module}.{letter}.weight"
            entries.append(FileEntry(f"{ours}.{name}.{letter}", weight, "heads*d_kv d_model", tuple(layers)))
        entries.append(FileEntry(f"{ours}.{name}.o", f"{place}.{module}.o.weight", "d_model heads*d_kv", tuple(layers)))
    return entries


def feed_forward_entries(
    stack: str, part: str, layers: Sequence[int], place: str, names: dict[str, str]
) -> list[FileEntry]:
    """The plain feed-forward part of some layers, and its norm."""
    ours = f"{stack}.{part}"
    dims = {"w_in": "d_ff d_model", "w_gate": "d_ff d_model", "w_out": "d_model d_ff"}
    norm = FileEntry(f"{ours}.feed_forward_norm.scale", f"{place}.layer_norm.weight", "d_model", tuple(layers))
    return [norm] + [
        FileEntry(f"{ours}.feed_forward.{weight}", f"{place}.{name}.weight", dims[weight], tuple(layers))
        for weight, name in names.items()
    ]


def outer_entries(config: Any, of_stacks: Sequence[str] = ("encoder", "decoder")) -> list[FileEntry]:
    """The embeddings, the last norms, and the relative position biases of layer 0."""
    bias = _BIAS.format(layers=0)
    entries = [FileEntry("embedding.table", "shared.weight", "vocab d_model")]
    if getattr(config, "separate_embeddings", False):
        tables = {"embedding": "encoder", "decoder_embedding": "decoder"}
        entries = [
            FileEntry(f"{ours}.table", f"{stack}.embed_tokens.weight", "vocab d_model")
            for ours, stack in tables.items()
        ]
    for stack in of_stacks:
        entries.append(FileEntry(f"{stack}.norm.scale", f"{stack}.final_layer_norm.weight", "d_model"))
        if not config.relative_by_layer:
            entries.append(FileEntry(f"{stack}.relative.table", f"{stack}.{bias}", "buckets heads"))
    return with_softmax(config, entries)


def copies(config: Seq2SeqConfig) -> dict[str, str]:
    stacks = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    return {**dict.fromkeys(stacks, "shared.weight"), **tied_copy("shared.weight")(config)}


def _entries(config: Seq2SeqConfig) -> list[FileEntry]:
    return _entries_of(config, stacks(config))


def _entries_of(config: Any, of_stacks: Sequence[tuple[str, str]]) -> list[FileEntry]:
    plain = {"w_in": "wi", "w_out": "wo"}
    names = {"w_gate": "wi_0", "w_in": "wi_1", "w_out": "wo"} if config.gated else plain
    names = {weight: f"DenseReluDense.{name}" for weight, name in names.items()}
    entries = outer_entries(config, [stack for stack, _ in of_stacks])
    for stack, place in of_stacks:
        layers = range(config.layers if stack == "encoder" else config.of_decoder.layers)
        entries += attention_entries(stack, "layers", layers)
        entries += feed_forward_entries(stack, "layers", layers, place, names)
        if config.relative_by_layer:
            bias = FileEntry(f"{stack}.layers.relative.table", f"{stack}.{_BIAS}", "buckets heads", tuple(layers))
            entries.append(bias)
    return entries


def _encoder_entries(config: EncoderConfig) -> list[FileEntry]:
    return [entry for entry in _entries_of(config, stacks(config)[:1]) if not entry.path.startswith("softmax")]


# Some files have a bias by distance for what the decoder takes from the encoder; no model ever used it.
ALIASES = {"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
UNUSED = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"

T5 = Architecture(
    "t5",
    "T5ForConditionalGeneration",
    Seq2SeqConfig,
    family="T5",
    fixed=FIXED | {"experts": 0, "relative_by_layer": False},
    chosen=("gated", "tied_scale"),
    fields=_fields,
    keys=_keys,
    entries=_entries,
    copies=copies,
    repeated=lambda config: {},
    unused=UNUSED,
    aliases=ALIASES | {"head_dim": "d_kv"},
)

MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    class_name="MT5ForConditionalGeneration",
    family="MT5",
    fixed={**T5.fixed, "tied_scale": False},
    fields=_multilingual_fields,
)

UMT5 = dataclasses.replace(
    T5,
    model_type="umt5",
    class_name="UMT5ForConditionalGeneration",
    family="UMT5",
    fixed={**T5.fixed, "relative_by_layer": True, "tied_scale": True},
    fields=_by_layer_fields,
)


def _alone(family: Architecture, class_name: str) -> Architecture:
    """The encoder alone of a family."""
    fixed = {**family.fixed, "head": "none", "pooler": "none", "embedding_norm": False, "token_types": 0}
    return dataclasses.replace(
        family,
        class_name=class_name,
        kind=EncoderConfig,
        fixed={**{key: value for key, value in fixed.items() if key != "tied_scale"}, "tied": True},
        fields=_encoder_fields,
        keys=_encoder_keys,
        entries=_encoder_entries,
        copies=lambda config: {"encoder.embed_tokens.weight": "shared.weight"},
        unused="",
    )


T5_ENCODER = _alone(T5, "T5EncoderModel")
MT5_ENCODER = _alone(MT5, "MT5EncoderModel")
UMT5_ENCODER = _alone(UMT5, "UMT5EncoderModel")
