"""Switch Transformers: T5 with experts in every layer, or in every second one.

Imports `t5`. An expert takes so many tokens of a sequence as the file says, however long it is; a dropped token gets
nothing from the layer. Of a model made here without such a number what is written is the room an expert has at its
length. The router's losses are those of `transformers` where every second layer has experts; where all have,
`transformers` adds none. Untied, each stack has a table of words of its own.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ..models import Seq2SeqConfig
from . import t5
from .architecture import ACTIVATION_NAMES, Architecture, Keys
from .files import WeightsError
from .mapping import FileEntry

_STACKS = ("encoder", "decoder")
_SEPARATE = "separate_embeddings"  # a key of ours: false where the two tables of an untied file are one
_UNUSED_TABLE = r"shared\.weight"


def _every(keys: Keys, layers: int) -> int:
    """Every how many layers there is one with experts, by the library's own rule."""
    steps = []
    for key in ("num_sparse_encoder_layers", "num_sparse_decoder_layers"):
        count = keys.size(key, 3, least=0)
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
    for stack in _STACKS:
        keys.must_be(f"{stack}_sparse_step", None, steps[0])  # which the library takes where it is there
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
    experts, tied = keys.size("num_experts", 8), keys.flag("tie_word_embeddings", True)
    is_separate = not tied and keys.flag(_SEPARATE, True)
    return {
        **{key: size for key, size in sizes.items() if key != "decoder_layers"},
        "experts": experts,
        "every": _every(keys, sizes["layers"]),
        "expert_room": keys.size("expert_capacity", 64),  # tokens of a sequence
        "balance_over": "sequences",
        "separate_embeddings": is_separate and {f"{stack}.embed_tokens.weight" for stack in _STACKS} <= set(names),
        **dict.fromkeys(("length", "max_length"), keys.size("n_positions", 512)),
        "activation": keys.activation("dense_act_fn", "relu"),
        "tied": tied,
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
        "expert_capacity": config.expert_room or config.expert_slots(config.max_positions),
        "dense_act_fn": ACTIVATION_NAMES[config.activation],
        "router_jitter_noise": config.jitter,
        "router_aux_loss_coef": config.balance_loss,
        "router_z_loss_coef": config.router_z_loss,
        "router_bias": False,
        "router_dtype": "float32",
        **({} if config.tied or config.separate_embeddings else {_SEPARATE: False}),
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


def _list_repeated(config: Seq2SeqConfig) -> dict[str, str]:
    """What files of untied models hold beside: a table that nothing uses."""
    if config.separate_embeddings:
        return {"shared.weight": f"{_STACKS[0]}.embed_tokens.weight"}
    return {} if config.tied else t5.copies(config)


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
    copies=lambda config: {} if config.separate_embeddings else t5.copies(config),
    repeated=_list_repeated,
    unused=rf"{t5.UNUSED}|{_UNUSED_TABLE}",
    aliases=t5.ALIASES,
)
