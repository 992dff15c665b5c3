"""RoPE in a `config.json`: its base, its scaling, the share of channels it turns.

Imports `architecture`. Files of `transformers` 5 have all of it in `rope_parameters`, older ones `rope_theta`,
`rope_scaling` and a share beside each other. A kind of scaling, or a key of one, that is not known is an error.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from .architecture import Keys
from .files import WeightsError

_LENGTH = "original_max_position_embeddings"
_SCALING = {"rotary_stretch": "factor", "rotary_low": "low_freq_factor", "rotary_high": "high_freq_factor"}
_OF_KIND = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", _LENGTH),
    "llama3": (*_SCALING.values(), _LENGTH),
    "yarn": (
        "factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate", "finetuned",
        _LENGTH,
    ),
}  # fmt: skip
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", _LENGTH)
ROTARY = ("rotary_base", "rotary_share", "stretch")
"""Fields of RoPE that change numbers."""


def rope_fields(
    keys: Keys, *, length: int, base: float = 10_000.0, share: float | None = None, within: str | None = None
) -> dict[str, Any]:
    """The fields of RoPE, for a model of so many positions.

    `base` and `share` are those of a file that says nothing, `share` of a family that may turn only some channels;
    `within` names the layers whose RoPE it is, where kinds of layers have one each.
    """
    parameters = keys.within("rope_parameters")
    scaling = keys.within("rope_scaling")
    rope = parameters if parameters.values else scaling
    _check_agreement(keys, parameters.values, scaling.values)
    if within is not None and any(isinstance(value, Mapping) for value in rope.values.values()):
        rope = rope.within(within)
    base = keys.number("rotary_emb_base", keys.number("rope_theta", base))
    if share is None:
        rope.must_be("partial_rotary_factor", 1, 1.0)
    else:
        share = keys.number("rotary_pct", keys.number("partial_rotary_factor", share))
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind not in _OF_KIND:
        raise WeightsError(
            f"rotations are scaled by {kind!r:.60} (`rope_type`) in {keys.path}, which weft does not compute",
            fix=f"only {', '.join(f'`{known}`' for known in _OF_KIND)} are read",
        )
    for key in sorted(rope.values.keys() - {*_ALWAYS, *_OF_KIND[kind]}):
        raise WeightsError(
            f"`{key}` is {rope.values[key]!r:.60} beside `rope_type` {kind!r} in {keys.path}, which weft does not "
            "compute",
            fix=f"only models without `{key}` are read so: numbers would be wrong",
        )
    fields = {
        "rotary_base": rope.number("rope_theta", base),
        "rotary_share": rope.number("partial_rotary_factor", share or 1.0),
    }
    if not 0 < fields["rotary_share"] <= 1:
        raise WeightsError(
            f"RoPE turns a share of {fields['rotary_share']} of the channels (`partial_rotary_factor`) in {keys.path}",
            fix="give one above 0, and at most 1",
        )
    return fields if kind == "default" else fields | {"rotary_scaling": kind} | _scaling(keys, rope, kind, length)


def _check_agreement(keys: Keys, parameters: Mapping[str, Any], scaling: Mapping[str, Any]) -> None:
    """Raises where a file says RoPE's scaling twice, and not alike."""
    by_one_name = {("rope_type" if key == "type" else key): value for key, value in scaling.items()}
    for key, value in by_one_name.items() if parameters else ():
        if parameters.get(key, "default" if key == "rope_type" else None) != value:
            raise WeightsError(
                f"`rope_scaling` has {value!r:.60} for `{key}`, and `rope_parameters` {parameters.get(key)!r:.60}, in "
                f"{keys.path}",
                fix="keep the one the model was trained with",
            )


def _scaling(keys: Keys, rope: Keys, kind: str, length: int) -> dict[str, Any]:
    """The fields of a scaling of RoPE."""
    if kind == "llama3":
        return _by_waves(rope)
    first = keys.maybe_size(_LENGTH) or rope.maybe_size(_LENGTH) or length
    if rope.get("factor") is None and kind == "yarn":
        factor = length / first
    elif "factor" in rope.values:
        factor = rope.number("factor", 1.0)
    else:
        raise WeightsError(f"{rope.path} has no `factor` beside its `rope_type`", fix="add it")
    if factor < 1:
        raise WeightsError(
            f"`factor` is {factor} beside `rope_type` {kind!r} in {keys.path}", fix="give one of at least 1"
        )
    if kind != "yarn":
        return {"rotary_stretch": factor, "rotary_length": length}
    slow, fast = rope.maybe_number("beta_slow", 1.0) or 1.0, rope.maybe_number("beta_fast", 32.0) or 32.0
    if not 0 < slow < fast:
        raise WeightsError(
            f"`beta_slow` is {slow} and `beta_fast` {fast} in {keys.path}", fix="give a slow one below the fast one"
        )
    return {
        "rotary_stretch": factor,
        "rotary_low": slow,
        "rotary_high": fast,
        "rotary_length": first,
        "rotary_amplitude": _amplitude(rope, factor),
        "rotary_truncated": rope.flag("truncate", True),
    }


def _amplitude(rope: Keys, factor: float) -> float:
    """By how much YaRN makes queries and keys larger: said, or as its paper suggests."""
    said = rope.maybe_number("attention_factor")
    if said is not None:
        return said

    def suggested(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    one, all_dims = rope.maybe_number("mscale"), rope.maybe_number("mscale_all_dim")
    return suggested(one) / suggested(all_dims) if one and all_dims else suggested(1.0)


def _by_waves(rope: Keys) -> dict[str, Any]:
    """The fields of Llama 3's scaling, all of which it must say."""
    if missing := next((key for key in _OF_KIND["llama3"] if key not in rope.values), None):
        raise WeightsError(f"{rope.path} has no `{missing}` beside its `rope_type`", fix="add it")
    scaling = {field: rope.number(key, 0) for field, key in _SCALING.items()}
    low, high = scaling["rotary_low"], scaling["rotary_high"]
    if low >= high:
        raise WeightsError(
            f"`low_freq_factor` is {low} and `high_freq_factor` {high} in {rope.path}",
            fix="give a low one below the high one",
        )
    return {**scaling, "rotary_length": rope.size(_LENGTH)}


def rope_keys(config: Any, *, has_share: bool = False) -> dict[str, Any]:
    """The keys of RoPE, as old files have them and as new ones do."""
    scaling = rope_scaling(config)
    share = {"partial_rotary_factor": config.rotary_share} if has_share else {}
    return {
        "rope_theta": config.rotary_base,
        **share,
        "rope_scaling": None if scaling["rope_type"] == "default" else scaling,
        "rope_parameters": scaling | share | {"rope_theta": config.rotary_base},
    }


def rope_scaling(config: Any) -> dict[str, Any]:
    """The scaling of RoPE with its kind."""
    kind = config.rotary_scaling
    if config.stretch is None:
        return {"rope_type": "default"}
    if kind == "llama3":
        return {"rope_type": kind, **{key: getattr(config, field) for field, key in _SCALING.items()}} | {
            _LENGTH: config.rotary_length
        }
    scaling = {"rope_type": kind, "factor": config.rotary_stretch}
    if kind != "yarn":
        return scaling
    return scaling | {
        "beta_slow": config.rotary_low,
        "beta_fast": config.rotary_high,
        _LENGTH: config.rotary_length,
        "attention_factor": config.rotary_amplitude,
        "truncate": config.rotary_truncated,
    }


def check_amplitude(architecture: Any, config: Any, kinds: Collection[str] = _OF_KIND) -> None:
    """Raises where a scaling has no form in a file of this architecture."""
    if config.stretch is None:
        return
    if config.rotary_scaling not in kinds:
        raise architecture.no_form(config, "rotary_scaling", next(iter(kinds)))
    if config.rotary_scaling != "yarn" and config.rotary_amplitude != 1:
        raise architecture.no_form(config, "rotary_amplitude", 1.0)
    if config.rotary_scaling == "dynamic" and config.rotary_length != config.max_positions:
        raise architecture.no_form(config, "rotary_length", config.max_positions)
