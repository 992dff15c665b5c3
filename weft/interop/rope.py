"""RoPE in a `config.json`: its base, its scaling, the share of channels it turns.

Imports `architecture`. Files of `transformers` 5 have all of it in `rope_parameters`, older ones `rope_theta`,
`rope_scaling` and a share beside each other. A kind of scaling, or a key of one, that is not known is an error.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from ..checks import is_real
from .architecture import Keys
from .files import WeightsError

_LENGTH = "original_max_position_embeddings"
_SCALING = {"rotary_stretch": "factor", "rotary_low": "low_freq_factor", "rotary_high": "high_freq_factor"}
_BY_WAVE = {"rotary_short": "short_factor", "rotary_long": "long_factor"}
_OF_KIND = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", _LENGTH),
    "llama3": (*_SCALING.values(), _LENGTH),
    "yarn": (
        "factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate", "finetuned",
        _LENGTH,
    ),
    "longrope": ("factor", *_BY_WAVE.values(), "attention_factor", _LENGTH),
}  # fmt: skip
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", _LENGTH)
_FORMERLY = ("su", "yarn")  # what Phi-3's first files call `longrope`


def rope_fields(
    keys: Keys,
    *,
    length: int,
    base: float = 10_000.0,
    share: float | None = None,
    within: str | None = None,
    names: tuple[str, str] = ("rope_theta", "partial_rotary_factor"),
    first: int | None = None,
) -> dict[str, Any]:
    """The fields of RoPE, for a model of so many positions.

    `base` and `share` are those of a file that says nothing, `share` of a family that may turn only some channels;
    `within` names the layers whose RoPE it is, where kinds of layers have one each; `names` are what the family's older
    files call base and share. `first` is how many positions a family's model was first trained at, where a file does
    not say so beside its RoPE.
    """
    parameters = keys.within("rope_parameters")
    scaling = keys.within("rope_scaling")
    rope = parameters if parameters.values else scaling
    base = keys.number(names[0], base, above=0)
    share = None if share is None else keys.number(names[1], share)
    _check_agreement(keys, parameters.values, scaling.values, base, share)
    if within is not None and parameters.values:
        if not any(isinstance(value, Mapping) for value in parameters.values.values()):
            raise WeightsError(
                f"`rope_parameters` does not say of which layers it speaks in {keys.path}",
                fix=f"give it by kinds of layers, as in {{{within!r}: {{'rope_type': 'default'}}}}",
            )
        rope = rope.within(within)
        rope.must_be("truncate", True)  # `transformers` does not look for it there
    if share is None:
        rope.must_be("partial_rotary_factor", 1, 1.0)
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind in _FORMERLY and "long_factor" in rope.values:
        kind = "longrope"
    if not isinstance(kind, str) or kind not in _OF_KIND:
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
        "rotary_base": rope.number("rope_theta", base, above=0),
        "rotary_share": rope.number("partial_rotary_factor", share or 1.0),
    }
    if not 0 < fields["rotary_share"] <= 1:
        raise WeightsError(
            f"RoPE turns a share of {fields['rotary_share']} of the channels (`partial_rotary_factor`) in {keys.path}",
            fix="give one above 0, and at most 1",
        )
    return (
        fields if kind == "default" else fields | {"rotary_scaling": kind} | _scaling(keys, rope, kind, length, first)
    )


def _check_agreement(
    keys: Keys, parameters: Mapping[str, Any], scaling: Mapping[str, Any], base: float, share: float | None
) -> None:
    """Raises where a file says RoPE twice, and not alike; `base`, `share` beside it."""
    if not parameters or not scaling:
        return
    beside = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 1.0 if share is None else share}
    flat = {key: value for key, value in parameters.items() if not isinstance(value, Mapping)}
    of_scaling, of_parameters = (
        beside | {"rope_type" if key == "type" else key: value for key, value in said.items()}
        for said in (scaling, flat)
    )
    for key in of_scaling | of_parameters:
        one, other = of_scaling.get(key), of_parameters.get(key)
        if one != other:
            raise WeightsError(
                f"`rope_scaling` has {one!r:.60} for `{key}`, and `rope_parameters` {other!r:.60}, in {keys.path}",
                fix="keep the one the model was trained with",
            )


def _scaling(keys: Keys, rope: Keys, kind: str, length: int, first: int | None) -> dict[str, Any]:
    """The fields of a scaling of RoPE."""
    if kind == "llama3":
        return _by_waves(rope)
    first = keys.maybe_size(_LENGTH, first) or rope.maybe_size(_LENGTH) or length
    if rope.get("factor") is None and kind in ("yarn", "longrope"):
        factor = max(length / first, 1.0) if kind == "longrope" else length / first
    elif "factor" in rope.values:
        factor = rope.number("factor", 1.0)
    else:
        raise WeightsError(f"{rope.path} has no `factor` beside its `rope_type`", fix="add it")
    if factor < 1:
        raise WeightsError(
            f"`factor` is {factor} beside `rope_type` {kind!r} in {keys.path}", fix="give one of at least 1"
        )
    if kind == "longrope":
        by_wave = {field: _numbers(rope, key) for field, key in _BY_WAVE.items()}
        return {**by_wave, "rotary_stretch": factor, "rotary_length": first} | _by_length(rope, factor, first)
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


def _numbers(rope: Keys, key: str) -> str:
    """A list of numbers above 0, as the text that a configuration has for it."""
    values = rope.get(key)
    if not isinstance(values, list) or not all(is_real(value) and 0 < value < math.inf for value in values):
        raise WeightsError(
            f"`{key}` is {values!r:.60} beside `rope_type` 'longrope' in {rope.path}",
            fix="give a list of numbers above 0, one for each pair of channels that turn",
        )
    return " ".join(map(repr, map(float, values)))


def _by_length(rope: Keys, factor: float, first: int) -> dict[str, float]:
    """By how much LongRoPE makes queries and keys larger: said, or by its paper."""
    said = rope.maybe_number("attention_factor")
    if said is None:
        if first < 2 and factor > 1:
            raise WeightsError(f"`{_LENGTH}` is {first} in {rope.path}", fix="give one of at least 2")
        said = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(first))
    return {"rotary_amplitude": said}


def _amplitude(rope: Keys, factor: float) -> float:
    """By how much YaRN makes queries and keys larger: said, or as its paper suggests."""
    said = rope.maybe_number("attention_factor")
    if said is not None:
        return said

    def suggest(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    one, all_dims = rope.maybe_number("mscale"), rope.maybe_number("mscale_all_dim")
    return suggest(one) / suggest(all_dims) if one and all_dims else suggest(1.0)


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
    if kind == "longrope":
        by_wave = {key: list(map(float, getattr(config, field).split())) for field, key in _BY_WAVE.items()}
        return scaling | by_wave | {_LENGTH: config.rotary_length, "attention_factor": config.rotary_amplitude}
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
    if config.rotary_scaling not in ("yarn", "longrope") and config.rotary_amplitude != 1:
        raise architecture.no_form(config, "rotary_amplitude", 1.0)
    if config.rotary_scaling == "dynamic" and config.rotary_length != config.max_positions:
        raise architecture.no_form(config, "rotary_length", config.max_positions)
