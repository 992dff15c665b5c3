"""ViT: patches, a token of class, learned positions, pre-norm with biases.

Imports `architecture`, `bert` and `mapping`. A patch is a convolution in the file, its channels first.
"""

from collections.abc import Collection
from typing import Any

from ..models import ViTConfig
from .architecture import ACTIVATION_NAMES, Architecture, Keys
from .bert import check_heads, class_count, class_keys, classifier_entries, dense_entries, head_dims
from .files import WeightsError
from .mapping import FileEntry

_SIDES = ("height", "width")
_MASKED = "decoder.0.weight"


def _sides(keys: Keys, key: str, default: int) -> list[int]:
    """The height and the width that a key says, as one number or two."""
    value = keys.values.get(key, default)
    if isinstance(value, list | tuple) and len(value) == len(_SIDES):
        return [Keys({key: side}, keys.path).size(key) for side in value]
    return [keys.size(key, default)] * len(_SIDES)


def _fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    if _MASKED in names:
        raise WeightsError(
            f"the weights in {keys.path.parent} are those of a ViTForMaskedImageModeling, whose head weft lacks",
            fix="read one of classes of images, or without a head",
        )
    d_model = keys.size("hidden_size")
    if (pooled := keys.size("pooler_output_size", d_model)) != d_model:
        raise WeightsError(
            f"`pooler_output_size` is {pooled} and `hidden_size` {d_model} in {keys.path}",
            fix="only poolers as wide as the model are read",
        )
    has_pooler = any(name.endswith("pooler.dense.weight") for name in names)
    if has_pooler:
        keys.must_be("pooler_act", "tanh")
    images, patches = _sides(keys, "image_size", 224), _sides(keys, "patch_size", 16)
    if any(side % patch for side, patch in zip(images, patches, strict=True)):
        raise WeightsError(
            f"`image_size` is {images} and `patch_size` {patches} in {keys.path}",
            fix="only images that patches fill are read",
        )
    sizes = {f"{part}{side}": size for part, sides in (("", images), ("patch_", patches))
             for side, size in zip(_SIDES, sides, strict=True)}  # fmt: skip
    return {
        **head_dims(keys),
        **sizes,
        "in_channels": keys.size("num_channels", 3),
        "layers": keys.count("num_hidden_layers"),
        "d_ff": keys.size("intermediate_size"),
        "activation": keys.activation("hidden_act", "gelu"),
        "epsilon": keys.number("layer_norm_eps", 1e-12, above=0),
        "dropout": keys.number("hidden_dropout_prob", 0.0),
        "attention_dropout": keys.number("attention_probs_dropout_prob", 0.0),
        "hidden_dropout": 0.0,
        "output_dropout": 0.0,
        "bias": "q k v o in out norm" if keys.flag("qkv_bias", True) else "o in out norm",
        "classes": class_count(keys) if "classifier.weight" in names else 0,
        "pooler": "tanh" if has_pooler else "none",
    }


def _keys(config: ViTConfig) -> dict[str, Any]:
    check_heads(config, VIT)
    if set(config.bias.split()) - set("qkv") != set("o in out norm".split()) or len(config.bias.split()) not in (4, 7):
        raise VIT.no_form(config, "bias", "q k v o in out norm")
    if config.pooler not in ("none", "tanh") or (config.pooler != "none" and config.classes):
        raise VIT.no_form(config, "pooler", "none")
    image, patch = ([getattr(config, f"{part}{side}") for side in _SIDES] for part in ("", "patch_"))
    return {
        "image_size": image[0] if image[0] == image[1] else image,
        "patch_size": patch[0] if patch[0] == patch[1] else patch,
        "num_channels": config.in_channels,
        "num_hidden_layers": config.layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.heads,
        "intermediate_size": config.d_ff,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "layer_norm_eps": config.epsilon,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_drop,
        "qkv_bias": "q" in config.bias.split(),
        **(class_keys(config.classes) if config.classes else {}),
    }


def _entries(config: ViTConfig) -> list[FileEntry]:
    layers, block, ours = tuple(range(config.layers)), "vit.encoder.layer.{layers}", "encoder.layers"
    names = {
        "attention_norm.scale": ("layernorm_before.weight", "d_model"),
        "attention_norm.bias": ("layernorm_before.bias", "d_model"),
        "attention.o": ("attention.output.dense.weight", "d_model heads*d_kv"),
        "attention.o_bias": ("attention.output.dense.bias", "d_model"),
        "feed_forward_norm.scale": ("layernorm_after.weight", "d_model"),
        "feed_forward_norm.bias": ("layernorm_after.bias", "d_model"),
        "feed_forward.w_in": ("intermediate.dense.weight", "d_ff d_model"),
        "feed_forward.in_bias": ("intermediate.dense.bias", "d_ff"),
        "feed_forward.w_out": ("output.dense.weight", "d_model d_ff"),
        "feed_forward.out_bias": ("output.dense.bias", "d_model"),
    }
    for letter, name in {"q": "query", "k": "key", "v": "value"}.items():
        names[f"attention.{letter}"] = (f"attention.attention.{name}.weight", "heads*d_kv d_model")
        if letter in config.bias.split():
            names[f"attention.{letter}_bias"] = (f"attention.attention.{name}.bias", "heads*d_kv")
    entries = [FileEntry(f"{ours}.{path}", f"{block}.{name}", dims, layers) for path, (name, dims) in names.items()]
    patches = "vit.embeddings.patch_embeddings.projection"
    entries += [
        FileEntry("token", "vit.embeddings.cls_token", "d_model", ones=2),
        FileEntry("positions.table", "vit.embeddings.position_embeddings", "positions d_model", ones=1),
        FileEntry("patches.weight", f"{patches}.weight", "d_model in_channels patch_height patch_width"),
        FileEntry("patches.bias", f"{patches}.bias", "d_model"),
        FileEntry("encoder.norm.scale", "vit.layernorm.weight", "d_model"),
        FileEntry("encoder.norm.bias", "vit.layernorm.bias", "d_model"),
    ]
    if config.pooler != "none":
        entries += dense_entries("pooler.dense", "vit.pooler.dense")
    return entries + (classifier_entries("classifier") if config.classes else [])


VIT = Architecture(
    "vit",
    "ViTForImageClassification",
    ViTConfig,
    family="ViT",
    fixed={
        "norm": "layer",
        "norm_place": "pre",
        "first_norm": True,
        "positions": "learned",
        "scale_scores": True,
        "qk_norm": "none",
        "softcap": None,
        "window": None,
        "gated": False,
        "group": 1,
        "experts": 0,
        "head_bias": True,
    },
    chosen=("bias",),
    fields=_fields,
    keys=_keys,
    entries=_entries,
    copies=lambda config: {},
    repeated=lambda config: {},
    unused=r"(vit\.)?embeddings\.mask_token|(vit\.)?embeddings\.position_ids",
    prefix="vit.",
    class_of=lambda config: "ViTForImageClassification" if config.classes else "ViTModel",
)
