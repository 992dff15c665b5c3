"""Switch Transformers: T5 with experts in every layer, or in every second one.

Imports `t5`. Hugging Face gives an expert room for a number of tokens of a sequence, however long it is; weft for so
many times its fair share. A model is read with room for all tokens, which is the same for sequences of up to
`expert_capacity` tokens; of longer ones Hugging Face may drop tokens where weft drops none. The number itself is kept
as the configuration's `length`, and what is written is the room an expert has at that length. A dropped token gets
nothing from the layer in either.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ..models import Seq2SeqConfig
from ..nn.moe import expert_capacity
from . import t5
from .architecture import ACTIVATION_NAMES, Architecture, Keys
from .files import WeightsError
from .mapping import FileEntry


def _every(keys: Keys, layers: int) -> int:
    """Every how many layers there is one with experts, by the library's own rule."""
    steps = []
    for key in ("num_sparse_encoder_layers", "num_sparse_decoder_layers"):
        count = keys.size(key, 3)
        step = layers // count if count else layers
        sparse = [i for i in range(layers) if step == 1 or (step > 0 and i % step == 1)]
        if step < 1 or layers % step or sparse != list(range(step - 1, layers, step)):
            raise WeightsError(
                f"`{key}` is {count} of {layers} layers in {keys.path}: layers {sparse} have experts, counted from 0",
                fix="only models with experts in every layer, or in every second one, are read",
            )
        steps.append(step)
    if steps[0] != steps[1]:
        raise WeightsError(
            f"the encoder has experts in every {steps[0]} layers and the decoder in every {steps[1]} in {keys.path}",
            fix="only models with as many in both are read",
        )
    return steps[0]


def _fields(keys: Keys, names: Collection[str]) -> dict[str, Any]:
    keys.must_be("router_bias", False)
    keys.must_be("router_dtype", "float32")
    sizes = t5.sizes(keys)
    if sizes["decoder_layers"] is not None:
        raise WeightsError(
            f"the encoder has {sizes['layers']} layers (`num_layers`) and the decoder {sizes['decoder_layers']} "
            f"(`num_decoder_layers`) in {keys.path}",
            fix="only models with experts and as many layers in both are read",
        )
    experts = keys.size("num_experts", 8)
    return {
        **{key: size for key, size in sizes.items() if key != "decoder_layers"},
        "experts": experts,
        "every": _every(keys, sizes["layers"]),
        "capacity": float(experts),
        "length": keys.size("expert_capacity", 64),
        "max_length": keys.size("expert_capacity", 64),
        "activation": keys.activation("dense_act_fn", "relu"),
        "tied": keys.flag("tie_word_embeddings", True),
        "tied_scale": True,
        "jitter": keys.number("router_jitter_noise", 0.01),
        "balance_loss": keys.number("router_aux_loss_coef", 0.001),
        "router_z_loss": keys.number("router_z_loss_coef", 0.001),
    }


def _keys(config: Seq2SeqConfig) -> dict[str, Any]:
    if config.every > 2:
        raise SWITCH.no_form(config, "every", 2)
    if config.tied and not config.tied_scale:
        raise SWITCH.no_form(config, "tied_scale", True)
    sparse = config.layers // config.every
    return t5.size_keys(config) | {
        "num_experts": config.experts,
        "num_sparse_encoder_layers": sparse,
        "num_sparse_decoder_layers": sparse,
        "expert_capacity": expert_capacity(
            config.max_length or config.length, config.experts, config.choices, config.capacity
        ),
        "dense_act_fn": ACTIVATION_NAMES[config.activation],
        "router_jitter_noise": config.jitter,
        "router_aux_loss_coef": config.balance_loss,
        "router_z_loss_coef": config.router_z_loss,
        "router_bias": False,
        "router_dtype": "float32",
    }


def _entries(config: Seq2SeqConfig) -> list[FileEntry]:
    every, numbers = config.every, range(config.layers)
    sparse = [i for i in numbers if i % every == every - 1]
    plain = [i for i in numbers if i not in sparse]
    entries = t5.outer_entries(config)
    for stack, place in t5.stacks(config):
        entries += t5.attention_entries(stack, "layers", sparse) + _expert_entries(stack, sparse, place)
        if plain:
            entries += t5.attention_entries(stack, "dense", plain)
            entries += t5.feed_forward_entries(stack, "dense", plain, place, {"w_in": "mlp.wi", "w_out": "mlp.wo"})
    return entries


def _expert_entries(stack: str, layers: list[int], place: str) -> list[FileEntry]:
    names: Mapping[str, tuple[str, str]] = {
        "feed_forward_norm.scale": ("layer_norm.weight", "d_model"),
        "feed_forward.gate": ("mlp.router.classifier.weight", "router d_model"),
        "feed_forward.w_in": ("mlp.experts.expert_{experts}.wi.weight", "d_ff d_model"),
        "feed_forward.w_out": ("mlp.experts.expert_{experts}.wo.weight", "d_model d_ff"),
    }
    return [
        FileEntry(f"{stack}.layers.{path}", f"{place}.{name}", dims, tuple(layers))
        for path, (name, dims) in names.items()
    ]


SWITCH = Architecture(
    "switch_transformers",
    "SwitchTransformersForConditionalGeneration",
    Seq2SeqConfig,
    family="SwitchTransformers",
    fixed=t5.FIXED
    | {"gated": False, "gating": "switch", "shared_experts": 0, "relative_by_layer": False, "decoder_layers": None},
    chosen=("experts", "tied_scale"),
    fields=_fields,
    keys=_keys,
    entries=_entries,
    copies=t5.copies,
    repeated=lambda config: {} if config.tied else t5.copies(config),  # untied, the stacks have tables of their own
    unused=t5.UNUSED,
)
