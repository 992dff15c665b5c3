"""BERT: learned positions, token types, post-norm; heads of words and of classes.

Imports `architecture` and `mapping`. Which head there is, the tensors say: what was pretrained holds a head of words
and a pooler with two classes (next sentence), whatever class of `transformers` it is said to be of.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ..models import EncoderConfig
from .architecture import ACTIVATION_NAMES, Architecture, Keys
from .files import WeightsError
from .mapping import FileEntry

_WORDS = "bert.embeddings.word_embeddings.weight"
_TABLE, _BIAS, _OWN_BIAS = (f"cls.predictions.{name}" for name in ("decoder.weight", "bias", "decoder.bias"))
_NEXT = "cls.seq_relationship"
_UNREAD = {"qa_outputs.weight": "BertForQuestionAnswering"}
_KINDS = {"classes": "ForSequenceClassification", "token_classes": "ForTokenClassification", "none": "Model"}


def head_dims(keys: Keys) -> dict[str, int]:
    """`heads` and `d_kv` of a model whose heads share its width."""
    d_model, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    if d_model % heads:
        raise WeightsError(
            f"`hidden_size` is {d_model} and `num_attention_heads` {heads} in {keys.path}",
            fix="give a number of heads that divides it",
        )
    return {"d_model": d_model, "heads": heads, "d_kv": d_model // heads}


def check_heads(config: Any, architecture: Architecture) -> None:
    """Raises where heads do not share the model's width."""
    if config.heads * config.d_kv != config.d_model:
        raise architecture.no_form(config, "d_kv", config.d_model // config.heads)


def class_count(keys: Keys) -> int:
    """How many classes a head tells apart: `num_labels`, or as many as have names."""
    names = keys.values.get("id2label")
    return keys.size("num_labels", len(names) if isinstance(names, Mapping) else 2)


def class_keys(count: int) -> dict[str, Any]:
    """The keys of so many classes without names."""
    names = [f"LABEL_{i}" for i in range(count)]
    return {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {x: i for i, x in enumerate(names)}}


def _fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    keys.must_be("position_embedding_type", "absolute")
    keys.must_be("is_decoder", False)
    keys.must_be("add_cross_attention", False)
    dropout = keys.number("hidden_dropout_prob", 0.1)
    others = keys.values.get("classifier_dropout")
    padding = None if keys.values.get("pad_token_id", 0) is None else keys.size("pad_token_id", 0, least=0)
    return {
        **head_dims(keys),
        **_head(keys, names),
        "layers": keys.count("num_hidden_layers"),
        "d_ff": keys.size("intermediate_size"),
        "vocab": keys.size("vocab_size"),
        "length": keys.size("max_position_embeddings", 512),
        "max_length": keys.size("max_position_embeddings", 512),
        "token_types": keys.size("type_vocab_size", 2),
        "activation": keys.activation("hidden_act", "gelu"),
        "epsilon": keys.number("layer_norm_eps", 1e-12, above=0),
        "dropout": dropout,
        "hidden_dropout": 0.0,
        "attention_dropout": keys.number("attention_probs_dropout_prob", 0.1),
        "output_dropout": 0.0,
        "classifier_dropout": dropout if others is None else keys.number("classifier_dropout", 0.1),
        "padding": padding,
    }


def _head(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    """The fields of the head that the tensors are of."""
    has_words, has_next = "cls.predictions.transform.dense.weight" in names, f"{_NEXT}.weight" in names
    other = "BertForNextSentencePrediction" if has_next and not has_words else None
    if other := next((kind for name, kind in _UNREAD.items() if name in names), other):
        raise WeightsError(
            f"the weights in {keys.path.parent} are those of a {other}, whose head weft does not have",
            fix="read one of words, of classes of sequences or words, or without a head",
        )
    has_pooler = "bert.pooler.dense.weight" in names or "pooler.dense.weight" in names
    fields: dict[str, Any] = {
        "pooler": "tanh" if has_pooler else "none",
        "tied": keys.flag("tie_word_embeddings", True),
    }
    if has_words:
        head = {"head": "words", "transform": keys.activation("hidden_act", "gelu"), "logits_bias": True}
        return {**fields, **head, "classes": 2 if has_next else 0}
    if "classifier.weight" in names:
        return {**fields, "head": "classes" if has_pooler else "token_classes", "classes": class_count(keys)}
    return {**fields, "head": "none"}


def _keys(config: EncoderConfig) -> dict[str, Any]:
    check_heads(config, BERT)
    if config.token_types < 1:
        raise BERT.no_form(config, "token_types", 2)
    if config.head == "words" and (config.transform != config.activation or not config.logits_bias):
        raise BERT.no_form(config, "transform", config.activation)
    if config.pooler not in ("none", "tanh") or (config.head == "classes" and config.pooler == "none"):
        raise BERT.no_form(config, "pooler", "tanh")
    if config.head == "words" and config.classes not in (0, 2):
        raise BERT.no_form(config, "classes", 2)
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.heads,
        "intermediate_size": config.d_ff,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_positions,
        "type_vocab_size": config.token_types,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "layer_norm_eps": config.epsilon,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_drop,
        "classifier_dropout": None if config.classifier_drop == config.dropout else config.classifier_drop,
        "pad_token_id": config.padding,
        "tie_word_embeddings": config.tied,
        "is_decoder": False,
        "add_cross_attention": False,
        **(class_keys(config.classes) if config.classes and config.head != "words" else {}),
    }


def _class_of(config: EncoderConfig) -> str:
    if config.head == "words":
        return "BertForPreTraining" if config.classes else "BertForMaskedLM"
    return f"Bert{_KINDS[config.head]}"


def _entries(config: EncoderConfig) -> list[FileEntry]:
    layers, block, ours = tuple(range(config.layers)), "bert.encoder.layer.{layers}", "encoder.layers"
    names = {
        "attention_post_norm.scale": ("attention.output.LayerNorm.weight", "d_model"),
        "attention_post_norm.bias": ("attention.output.LayerNorm.bias", "d_model"),
        "attention.o": ("attention.output.dense.weight", "d_model heads*d_kv"),
        "attention.o_bias": ("attention.output.dense.bias", "d_model"),
        "feed_forward_post_norm.scale": ("output.LayerNorm.weight", "d_model"),
        "feed_forward_post_norm.bias": ("output.LayerNorm.bias", "d_model"),
        "feed_forward.w_in": ("intermediate.dense.weight", "d_ff d_model"),
        "feed_forward.in_bias": ("intermediate.dense.bias", "d_ff"),
        "feed_forward.w_out": ("output.dense.weight", "d_model d_ff"),
        "feed_forward.out_bias": ("output.dense.bias", "d_model"),
    }
    for letter, name in {"q": "query", "k": "key", "v": "value"}.items():
        names[f"attention.{letter}"] = (f"attention.self.{name}.weight", "heads*d_kv d_model")
        names[f"attention.{letter}_bias"] = (f"attention.self.{name}.bias", "heads*d_kv")
    entries = [FileEntry(f"{ours}.{path}", f"{block}.{name}", dims, layers) for path, (name, dims) in names.items()]
    entries += [
        FileEntry("embedding.table", _WORDS, "vocab d_model"),
        FileEntry("positions.table", "bert.embeddings.position_embeddings.weight", "positions d_model"),
        FileEntry("types.table", "bert.embeddings.token_type_embeddings.weight", "types d_model"),
        FileEntry("embedding_norm.scale", "bert.embeddings.LayerNorm.weight", "d_model"),
        FileEntry("embedding_norm.bias", "bert.embeddings.LayerNorm.bias", "d_model"),
    ]
    return entries + _head_entries(config)


def _head_entries(config: EncoderConfig) -> list[FileEntry]:
    entries = []
    if config.pooler != "none":
        entries += dense_entries("pooler.dense", "bert.pooler.dense")
    if config.head == "words":
        place = "cls.predictions.transform"
        entries += dense_entries("transform.dense", f"{place}.dense")
        entries += [
            FileEntry(f"transform.norm.{ours}", f"{place}.LayerNorm.{theirs}", "d_model")
            for ours, theirs in {"scale": "weight", "bias": "bias"}.items()
        ]
        entries.append(FileEntry("logits_bias", _BIAS if config.tied else _OWN_BIAS, "vocab"))
        if not config.tied:
            entries.append(FileEntry("softmax.table", _TABLE, "vocab d_model"))
    if config.classes:
        place = _NEXT if config.head == "words" else "classifier"
        entries += classifier_entries(place)
    return entries


def dense_entries(ours: str, theirs: str, *, bias: bool = True) -> list[FileEntry]:
    """A dense layer from `d_model` to `d_model`."""
    entries = [FileEntry(f"{ours}.weight", f"{theirs}.weight", "d_model_out d_model")]
    return entries + ([FileEntry(f"{ours}.bias", f"{theirs}.bias", "d_model_out")] if bias else [])


def classifier_entries(place: str) -> list[FileEntry]:
    """The map from `d_model` to classes."""
    return [
        FileEntry("classifier.weight", f"{place}.weight", "classes d_model"),
        FileEntry("classifier.bias", f"{place}.bias", "classes"),
    ]


def _copies(config: EncoderConfig) -> dict[str, str]:
    """What files may hold beside tied words: their table and bias again."""
    if config.head != "words":
        return {}
    return {_TABLE: _WORDS, _OWN_BIAS: _BIAS} if config.tied else {}


BERT = Architecture(
    "bert",
    "BertForMaskedLM",
    EncoderConfig,
    family="Bert",
    fixed={
        "norm": "layer",
        "norm_place": "post",
        "positions": "learned",
        "tied_scale": False,
        "scale_scores": True,
        "qk_norm": "none",
        "softcap": None,
        "window": None,
        "bias": "q k v o in out norm",
        "gated": False,
        "group": 1,
        "experts": 0,
        "embedding_norm": True,
        "embedding_scale": False,
        "pooling": "first",
        "pooler_norm": False,
        "head_bias": True,
    },
    fields=_fields,
    keys=_keys,
    entries=_entries,
    copies=_copies,
    repeated=lambda config: {_BIAS: _OWN_BIAS} if config.head == "words" and not config.tied else {},
    unused=r"(bert\.)?embeddings\.position_ids|cls\.predictions\.bias",
    prefix="bert.",
    class_of=_class_of,
    older=lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"),
)
