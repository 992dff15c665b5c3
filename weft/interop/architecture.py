"""The description of one family of models, and how its `config.json` is read.

Imports the models, `files` and `mapping`. An architecture is a table with its checks; `loading` and `saving` act on it.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import is_real, is_whole
from ..models import TransformerConfig
from .files import WeightsError
from .mapping import FileEntry

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
    "gelu_python": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}
LM_HEAD = "lm_head.weight"
_LARGEST = 2**31
ACTIVATION_NAMES = {activation: name for name, activation in reversed(ACTIVATIONS.items())}
"""The first name of each, which is written."""


_CLASS = r"(For\w+|Model|LMHeadModel|DoubleHeadsModel|EncoderModel|WithLMHeadModel|PreTrainedModel)"
_OFF: tuple[Any, ...] = (None, False, 0, "", (), [])
_COMPUTED_ELSEWHERE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        "sliding_window use_sliding_window attention_chunk_size attn_logit_softcapping final_logit_softcapping "
        "query_pre_attn_scalar hidden_activation qk_norm use_qk_norm qk_layernorm clip_qkv alibi use_parallel_residual "
        "parallel_attn no_rope_layers no_rope_layer_interval attn_temperature_tuning rotary_dim rope_interleave "
        "rope_local_base_freq sliding_window_pattern n_routed_experts num_local_experts kv_lora_rank "
        "quantization_config attention_bias mlp_bias qkv_bias use_bias add_qkv_bias use_bidirectional_attention "
        "num_experts n_shared_experts shared_expert_intermediate_size first_k_dense_replace mlp_only_layers "
        "q_lora_rank altup_num_inputs attn_output_gate layer_norm_type rope_scaling rope_parameters "
        "scale_attn_by_inverse_layer_idx add_cross_attention router_jitter_noise multi_query new_decoder_architecture "
        "normalize_embeddings use_post_norm interleaved rotary_emb_base "
        "per_layer_config fusion_config transformers_weights".split(),
        (),
    ),
    **dict.fromkeys(
        "partial_rotary_factor rotary_pct logit_scale logits_scaling embedding_multiplier residual_multiplier "
        "attention_multiplier scale_emb scale_depth routed_scaling_factor".split(),
        (1,),
    ),
    "scale_attn_weights": (True,),
    "rope_type": ("default",),
}
"""Keys of other families that change numbers, with the values that do not; where none is given, those of `_OFF`.

A file may be one of those families under another's name. Those that an architecture reads are its own.
"""

_OF_LLAMA = {"rope_parameters", "rope_scaling", "attention_bias", "mlp_bias"}

NEUTRAL: dict[str, Any] = {
    "bias": "", "group": 1, "gated": False, "experts": 0, "scale_scores": True, "prefix": False, "tied_scale": False,
    "norm_place": "pre", "norm_offset": False, "qk_norm": "none", "query_scalar": None, "scale_by_layer": False,
    "softcap": None, "logits_softcap": None, "window": None, "pattern": "", "local_base": None, "parallel": False,
    "rotary_share": 1.0, "stretch": None, "embedding_scale": False, "relative_by_layer": False, "gating": "switch",
    "normalised": None, "expert_ff": None, "shared_experts": 0, "scoring": "softmax", "choice_bias": False,
    "routed_scale": 1.0, "cross_attention": False,
}  # fmt: skip
"""What fields that change numbers must be, where an architecture neither fixes nor chooses them."""


@dataclass(frozen=True)
class Architecture:
    """A `model_type` of Hugging Face: its fields and its tensors."""

    model_type: str
    class_name: str
    """The class of `transformers` that computes logits."""
    kind: type[TransformerConfig]
    family: str
    """How the names of all its classes in `transformers` begin."""
    fixed: Mapping[str, Any]
    """Fields of the configuration that are the same for all such models."""
    fields: "Callable[[Keys, Collection[str]], dict[str, Any]]"
    """The other fields, from the keys of `config.json` and the names of the tensors."""
    keys: Callable[[Any], dict[str, Any]]
    """The keys of `config.json` from a configuration."""
    entries: Callable[[Any], Sequence[FileEntry]]
    copies: Callable[[Any], Mapping[str, str]]
    """Tensors that a file may hold beside the ones they are equal to."""
    repeated: Callable[[Any], Mapping[str, str]]
    """Those of them that a file must hold for `transformers` to find them."""
    unused: str
    """What tensors are called that a file may hold and no model needs."""
    chosen: Collection[str] = ()
    """Fields that `config.json` says, of those that change numbers."""
    prefix: str = ""
    """How the names of tensors begin, which some files leave out."""
    class_of: Callable[[Any], str] | None = None
    """The class of a configuration, where there are several."""
    older: Callable[[str], str] = str
    """What older files call a tensor."""
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Other names of keys, which count in files too."""

    def class_name_of(self, config: Any) -> str:
        """The class of `transformers` that a model of this configuration is."""
        return self.class_name if self.class_of is None else self.class_of(config)

    def no_form(self, config: Any, field: str, wanted: Any) -> WeightsError:
        """The error of a model that cannot be written."""
        return WeightsError(
            f"a model with `{field}={getattr(config, field)!r}` has no Hugging Face form",
            state=f"model: {config.name}   nearest: {self.model_type}, where `{field}` is {wanted!r}",
            fix=f"only a model made with `{field}={wanted!r}` can be written so",
        )

    def check_family(self, keys: "Keys") -> None:
        """Raises where `config.json` asks for what this architecture does not compute."""
        named = keys.values.get("architectures")
        for name in named if isinstance(named, list) else [named] if isinstance(named, str) else ():
            if not re.fullmatch(self.family + _CLASS, str(name), re.IGNORECASE):
                raise WeightsError(
                    f"`model_type` is {self.model_type!r} and `architectures` {name!r} in {keys.path}",
                    fix=f"weft computes {self.class_name} and no other of this type; under another name numbers are "
                    "wrong, so take the file as it was written",
                )

    def check_unread(self, keys: "Keys") -> None:
        """Raises where a key that was not read changes numbers in other families."""
        idle = {"sliding_window"} if keys.values.get("use_sliding_window") is False else set()
        for key in sorted(keys.values.keys() - keys.seen - idle):
            value = keys.values[key]
            if key == "layer_types":
                is_harmless = isinstance(value, list) and all(kind == "full_attention" for kind in value)
            else:
                neutral = _COMPUTED_ELSEWHERE.get(key, (value,))
                is_harmless = value is None or value in (neutral or _OFF)
            if not is_harmless:
                raise WeightsError(
                    f"`{key}` is {value!r:.60} in {keys.path}, which a {self.model_type} in weft does not compute",
                    fix=f"only models without `{key}` are read so: numbers would be wrong",
                )

    def check_fixed(self, config: Any) -> None:
        """Raises where the configuration is not one of this architecture's."""
        neutral = {field: value for field, value in NEUTRAL.items() if field not in self.chosen}
        for field, wanted in (dict(self.fixed) | {k: v for k, v in neutral.items() if k not in self.fixed}).items():
            if (field == "tied_scale" and not config.tied) or not hasattr(config, field):
                continue  # says nothing then
            value = getattr(config, field)
            is_same = set(value.split()) == set(wanted.split()) if field == "bias" else value == wanted
            if not is_same:
                raise self.no_form(config, field, wanted)


def find_foreign(values: Mapping[str, Any]) -> list[str]:
    """The keys of a `config.json` that change numbers, and that no Llama has."""

    def is_foreign(key: str, value: Any) -> bool:
        neutral = _COMPUTED_ELSEWHERE.get(key, (value,)) or _OFF
        holds_model = key.endswith("_config") and isinstance(value, Mapping)
        return value is not None and (value not in neutral or holds_model) and key not in _OF_LLAMA

    return sorted(key for key, value in values.items() if is_foreign(key, value))


def with_softmax(config: Any, entries: Sequence[FileEntry], head: str = LM_HEAD) -> list[FileEntry]:
    """The entries, and that of the embedding of the logits where it is not tied."""
    return [*entries, *([] if config.tied else [FileEntry("softmax.table", head, "vocab d_model")])]


def tied_copy(table: str, head: str = LM_HEAD) -> Callable[[Any], Mapping[str, str]]:
    """The copy that a file of a tied model may hold of its embedding."""
    return lambda config: {head: table} if config.tied else {}


class Keys:
    """The keys of a `config.json`; each is checked where it is read."""

    def __init__(self, values: Mapping[str, Any], path: Path, tensors: int = _LARGEST):
        self.values, self.path, self._tensors = values, path, tensors
        self.seen: set[str] = set()

    def resolve(self, aliases: Mapping[str, str]) -> "Keys":
        """The keys by one name each; an error where two names of one do not say the same."""
        values = dict(self.values)
        for alias, key in aliases.items():
            if alias not in values:
                continue
            said = values.pop(alias)
            if said is not None and values.setdefault(key, said) != said:
                raise WeightsError(
                    f"`{key}` is {values[key]!r:.60} and `{alias}`, another name of it, {said!r:.60} in {self.path}",
                    fix="keep the one that the tensors were trained with",
                )
        return Keys(values, self.path, self._tensors)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, which then is read."""
        self.seen.add(key)
        return self.values.get(key, default)

    def within(self, key: str) -> "Keys":
        """The keys of an object in this one; none of one that is not there."""
        values = self.get(key)
        if values is not None and not isinstance(values, Mapping):
            raise self.wrong(key, "an object")
        return Keys(values or {}, self.path, self._tensors)

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`; it must be there unless there is a default."""
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            raise WeightsError(f"{self.path} has no `{key}`", fix=f"add it, as in `{key}: 16`")
        if not is_whole(value, least) or value >= _LARGEST:
            raise self.wrong(key, f"a whole number {f'from {least} on, ' if least else ''}below {_LARGEST:,}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """How many layers there are."""
        value = self.size(key, default)
        self.check_count("layers", value)
        return value

    def check_count(self, what: str, value: Any) -> None:
        """Raises where there are to be more layers or experts than tensors."""
        if isinstance(value, int) and value > self._tensors:
            raise WeightsError(
                f"{self.path} says that there are {value:,} {what}, and there are {self._tensors} tensors",
                fix="fetch the files again",
            )

    def number(self, key: str, default: float, *, above: float = -math.inf) -> float:
        """A finite number, which is larger than `above`."""
        value = self.get(key, default)
        if not is_real(value) or not math.isfinite(value) or not value > above:
            raise self.wrong(key, "a finite number" if above == -math.inf else f"a finite number above {above:g}")
        return float(value)

    def maybe_size(self, key: str, default: int | None = None, *, least: int = 1) -> int | None:
        """A whole number, or None where the file says null."""
        return None if self.get(key, default) is None else self.size(key, default, least=least)

    def maybe_number(self, key: str, default: float | None = None) -> float | None:
        """A number, or None where the file says null."""
        return None if self.get(key, default) is None else self.number(key, default or 0.0)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def activation(self, key: str, default: str) -> str:
        return self.one_of(key, ACTIVATIONS, default)

    def one_of(self, key: str, known: Mapping[str, Any], default: str) -> Any:
        """What a word stands for."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in known:
            raise WeightsError(
                f"`{key}` is {value!r:.60} in {self.path}, which weft does not compute",
                fix=f"only these are read, and another gives other numbers: {', '.join(sorted(known))}",
            )
        return known[value]

    def must_be(self, key: str, *wanted: Any) -> None:
        """Raises unless a key has one of these values, or is not there."""
        self.seen.add(key)
        if key in self.values and self.values[key] not in wanted:
            values = " or ".join(repr(value) for value in wanted)
            raise WeightsError(
                f"`{key}` is {self.values[key]!r} in {self.path}, which weft does not compute",
                fix=f"only models with `{key}` {values} are read",
            )

    def wrong(self, key: str, wanted: str) -> WeightsError:
        return WeightsError(
            f"`{key}` is {self.values.get(key)!r:.60} in {self.path}, which is not {wanted}", fix=f"give {wanted}"
        )
