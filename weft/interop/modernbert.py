"""ModernBERT: RoPE, local and global layers in turn, GeGLU, few biases.

Imports `architecture`, `bert` and `mapping`. q, k and v are one tensor, and so are the two maps of a feed-forward part.
The first layer's attention has no norm, for the embeddings have one.
"""

import warnings
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import WeftWarning, user_stacklevel
from ..models import EncoderConfig
from .architecture import ACTIVATION_NAMES, Architecture, Keys
from .bert import check_heads, class_count, class_keys, classifier_entries, dense_entries, head_dims
from .files import WeightsError
from .mapping import FileEntry, Share

_KINDS = {"full_attention": "global", "sliding_attention": "local"}
_BASES = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
_WORDS, _TABLE = "model.embeddings.tok_embeddings.weight", "decoder.weight"
_CLASSES = {
    "words": "ForMaskedLM",
    "classes": "ForSequenceClassification",
    "token_classes": "ForTokenClassification",
    "none": "Model",
}
_POOLING = {"cls": "first", "mean": "mean"}


def _layer_kinds(keys: Keys, layers: int) -> list[str]:
    """Which layers are local and which global."""
    kinds = keys.get("layer_types")
    if kinds is None:
        every = keys.size("global_attn_every_n_layers", 3)
        return ["local" if i % every else "global" for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in _KINDS for kind in kinds):
        raise keys.wrong("layer_types", f"a list of {layers} of {' and '.join(_KINDS)}")
    return [_KINDS[kind] for kind in kinds]


def _bases(keys: Keys) -> list[float]:
    """The bases of RoPE in global layers and in local ones."""
    bases = []
    for kind, (older, default) in _BASES.items():
        rope = keys.within("rope_parameters").within(kind)
        for name in ("rope_type", "type"):
            rope.must_be(name, "default")
        bases.append(rope.number("rope_theta", keys.number(older, default, above=0), above=0))
    return bases


def _fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    layers = keys.count("num_hidden_layers")
    if layers < 2:
        raise keys.wrong("num_hidden_layers", "a whole number from 2 on")
    sizes = head_dims(keys)
    keys.must_be("head_dim", None, sizes["d_kv"])  # by which `transformers` counts the channels that turn
    keys.must_be("sliding_window", None, keys.size("local_attention", 128) // 2)  # which sets the other
    kinds, (base, local_base) = _layer_kinds(keys, layers), _bases(keys)
    has_local = "local" in kinds
    biases = {"q k v o": ("attention_bias", False), "in gate out": ("mlp_bias", False), "norm": ("norm_bias", False)}
    dropouts = [keys.number(f"{place}_dropout", 0.0) for place in ("embedding", "attention", "mlp", "classifier")]
    if dropouts[0] or dropouts[1]:
        warnings.warn(
            f"{keys.path} has dropout of embeddings or of attention; `embedding_dropout`, {dropouts[0]}, is taken for "
            "what all parts of a layer give",
            WeftWarning,
            stacklevel=user_stacklevel(),
        )
    padding = keys.size("pad_token_id", 50283, least=0) if keys.get("pad_token_id", 50283) is not None else None
    return {
        **sizes,
        **_head(keys, names),
        "layers": layers,
        "d_ff": keys.size("intermediate_size"),
        "vocab": keys.size("vocab_size"),
        "length": keys.size("max_position_embeddings", 8192),
        "max_length": keys.size("max_position_embeddings", 8192),
        "activation": keys.activation("hidden_activation", "gelu"),
        "epsilon": keys.number("norm_eps", 1e-5, above=0),
        "bias": " ".join(named for named, (key, default) in biases.items() if keys.flag(key, default)),
        "pattern": " ".join(kinds) if has_local else "",
        "window": keys.size("local_attention", 128) // 2 + 1 if has_local else None,
        "rotary_base": base,
        "local_base": local_base if has_local else None,
        "dropout": dropouts[0],
        "attention_dropout": dropouts[1],
        "hidden_dropout": dropouts[2],
        "output_dropout": 0.0,
        "classifier_dropout": dropouts[3],
        "padding": padding,
    }


def _head(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    """The fields of the head: its tensors say which, its class of what classes are."""
    named = str((keys.values.get("architectures") or [""])[0])
    if other := next((kind for kind in ("QuestionAnswering", "MultipleChoice") if kind in named), None):
        raise WeightsError(
            f"`architectures` is {named!r} in {keys.path}, whose head weft does not have",
            fix=f"read one without a head for {other}: of words, of classes of sequences or words, or none",
        )
    activation = keys.activation("classifier_activation", "gelu")
    pooling = keys.one_of("classifier_pooling", _POOLING, "cls")
    fields: dict[str, Any] = {"tied": True, "head_bias": keys.flag("classifier_bias", False), "pooling": pooling}
    has_bias = keys.flag("decoder_bias", True)
    if "classifier.weight" in names:
        head = "token_classes" if "TokenClassification" in named else "classes"
        return {**fields, "head": head, "classes": class_count(keys), "pooler": activation, "pooler_norm": True}
    if "head.dense.weight" in names:
        tied = keys.flag("tie_word_embeddings", True)
        return {**fields, "head": "words", "transform": activation, "logits_bias": has_bias, "tied": tied}
    return {**fields, "head": "none"}


def _keys(config: EncoderConfig) -> dict[str, Any]:
    check_heads(config, MODERNBERT)
    if set(config.bias.split()) & set("qkvo") not in (set(), set("qkvo")):
        raise MODERNBERT.no_form(config, "bias", "q k v o in gate out norm")
    if "in" in config.bias.split() and "gate" not in config.bias.split():
        raise MODERNBERT.no_form(config, "bias", "in gate out")
    if config.pooler != "none" and not config.pooler_norm:
        raise MODERNBERT.no_form(config, "pooler_norm", True)
    kinds = [config.layer_kinds[i % len(config.layer_kinds)] for i in range(config.layers)]
    kinds = kinds if config.pattern else ["global"] * config.layers
    theirs = {ours: name for name, ours in _KINDS.items()}
    bases = dict(zip(_BASES, (config.rotary_base, config.local_base or config.rotary_base), strict=True))
    window = 65 if config.window is None else config.window
    activation = config.transform if config.head == "words" else config.pooler
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.heads,
        "intermediate_size": config.d_ff,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_positions,
        "hidden_activation": ACTIVATION_NAMES[config.activation],
        "norm_eps": config.epsilon,
        "norm_bias": "norm" in config.bias.split(),
        "attention_bias": "q" in config.bias.split(),
        "mlp_bias": "in" in config.bias.split(),
        "layer_types": [theirs[kind] for kind in kinds],
        "local_attention": 2 * (window - 1),
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        **{older: bases[kind] for kind, (older, _) in _BASES.items()},
        "embedding_dropout": config.dropout,
        "attention_dropout": config.attention_drop,
        "mlp_dropout": config.hidden_drop,
        "classifier_dropout": config.classifier_drop,
        "classifier_activation": ACTIVATION_NAMES.get(activation, "gelu"),
        "classifier_bias": config.head_bias,
        "classifier_pooling": {ours: name for name, ours in _POOLING.items()}[config.pooling],
        "decoder_bias": config.logits_bias or config.head != "words",
        "pad_token_id": config.padding,
        "tie_word_embeddings": config.tied,
        **(class_keys(config.classes) if config.classes else {}),
    }


def _norm_entries(
    ours: str, theirs: str, config: EncoderConfig, layers: tuple[int | None, ...] = ()
) -> list[FileEntry]:
    parts = {"scale": "weight", **({"bias": "bias"} if "norm" in config.bias.split() else {})}
    return [FileEntry(f"{ours}.{name}", f"{theirs}.{part}", "d_model", layers) for name, part in parts.items()]


def _entries(config: EncoderConfig) -> list[FileEntry]:
    layers, block, ours = tuple(range(config.layers)), "model.layers.{layers}", "encoder.layers"
    biases, width = config.bias.split(), config.d_model
    entries = [
        FileEntry("embedding.table", _WORDS, "vocab d_model"),
        FileEntry(f"{ours}.attention.o", f"{block}.attn.Wo.weight", "d_model heads*d_kv", layers),
        FileEntry(f"{ours}.feed_forward.w_out", f"{block}.mlp.Wo.weight", "d_model d_ff", layers),
        *_norm_entries("embedding_norm", "model.embeddings.norm", config),
        *_norm_entries(f"{ours}.attention_norm", f"{block}.attn_norm", config, (None, *layers[1:])),
        *_norm_entries(f"{ours}.feed_forward_norm", f"{block}.mlp_norm", config, layers),
        *_norm_entries("encoder.norm", "model.final_norm", config),
    ]
    for i, letter in enumerate("qkv"):
        share, path = Share(0, i * width, 3 * width), f"{ours}.attention.{letter}"
        entries.append(FileEntry(path, f"{block}.attn.Wqkv.weight", "heads*d_kv d_model", layers, share))
        if "q" in biases:
            entries.append(FileEntry(f"{path}_bias", f"{block}.attn.Wqkv.bias", "heads*d_kv", layers, share))
    for i, (weight, bias) in enumerate((("w_gate", "gate_bias"), ("w_in", "in_bias"))):
        share, path = Share(0, i * config.d_ff, 2 * config.d_ff), f"{ours}.feed_forward"
        entries.append(FileEntry(f"{path}.{weight}", f"{block}.mlp.Wi.weight", "d_ff d_model", layers, share))
        if "in" in biases:
            entries.append(FileEntry(f"{path}.{bias}", f"{block}.mlp.Wi.bias", "d_ff", layers, share))
    if "o" in biases:
        entries.append(FileEntry(f"{ours}.attention.o_bias", f"{block}.attn.Wo.bias", "d_model", layers))
    if "out" in biases:
        entries.append(FileEntry(f"{ours}.feed_forward.out_bias", f"{block}.mlp.Wo.bias", "d_model", layers))
    return entries + _head_entries(config)


def _head_entries(config: EncoderConfig) -> list[FileEntry]:
    if config.head == "none":
        return []
    place = "transform" if config.head == "words" else "pooler"
    entries = dense_entries(f"{place}.dense", "head.dense", bias=config.head_bias)
    entries += _norm_entries(f"{place}.norm", "head.norm", config)
    if config.head != "words":
        return entries + classifier_entries("classifier")
    if config.logits_bias:
        entries.append(FileEntry("logits_bias", "decoder.bias", "vocab"))
    return entries + ([] if config.tied else [FileEntry("softmax.table", _TABLE, "vocab d_model")])


def _copies(config: EncoderConfig) -> Mapping[str, str]:
    return {_TABLE: _WORDS} if config.head == "words" and config.tied else {}


MODERNBERT = Architecture(
    "modernbert",
    "ModernBertForMaskedLM",
    EncoderConfig,
    family="ModernBert",
    fixed={
        "norm": "layer",
        "norm_place": "pre",
        "first_norm": False,
        "tied_scale": False,
        "positions": "rotary",
        "gated": True,
        "embedding_norm": True,
        "token_types": 0,
    },
    chosen=("bias", "pattern", "window", "local_base"),
    fields=_fields,
    keys=_keys,
    entries=_entries,
    copies=_copies,
    repeated=lambda config: {},
    unused=r"(model\.)?rotary_emb\..*",
    prefix="model.",
    class_of=lambda config: f"ModernBert{_CLASSES[config.head]}",
)
