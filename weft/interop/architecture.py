"""The description of one family of models, and how its `config.json` is read.

Imports the models, `files` and `mapping`. An architecture is a table with its checks; `loading` and `saving` act on it.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import is_real, is_whole
from ..errors import closest
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
}
LM_HEAD = "lm_head.weight"
_LARGEST = 2**31
ACTIVATION_NAMES = {activation: name for name, activation in reversed(ACTIVATIONS.items())}


_CLASS = r"(For\w+|Model|LMHeadModel|DoubleHeadsModel|EncoderModel|WithLMHeadModel|PreTrainedModel)"
_OFF: tuple[Any, ...] = (None, False, 0, "", (), [])
_COMPUTED_ELSEWHERE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        "sliding_window use_sliding_window attention_chunk_size attn_logit_softcapping final_logit_softcapping "
        "query_pre_attn_scalar hidden_activation qk_norm use_qk_norm qk_layernorm clip_qkv alibi use_parallel_residual "
        "parallel_attn no_rope_layers no_rope_layer_interval attn_temperature_tuning rotary_dim rope_interleave "
        "rope_local_base_freq sliding_window_pattern n_routed_experts num_local_experts kv_lora_rank "
        "quantization_config".split(),
        (),
    ),
    **dict.fromkeys(
        "partial_rotary_factor rotary_pct logit_scale logits_scaling embedding_multiplier residual_multiplier "
        "attention_multiplier scale_emb scale_depth".split(),
        (1,),
    ),
}
"""Keys of other families that change numbers, with the values that do not beside those that leave them out.

A file may be one of those families under another's name.
"""


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
    prefix: str = ""
    """How the names of tensors begin, which some files leave out."""
    class_of: Callable[[Any], str] | None = None
    """The class of a configuration, where there are several."""
    older: Callable[[str], str] = str
    """What older files call a tensor."""

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
        for name in named if isinstance(named, list) else ():
            if not re.fullmatch(self.family + _CLASS, str(name), re.IGNORECASE):
                raise WeightsError(
                    f"`model_type` is {self.model_type!r} and `architectures` {name!r} in {keys.path}",
                    fix=f"weft computes {self.class_name} and no other of this type; under another name numbers are "
                    "wrong, so take the file as it was written",
                )
        windows = {"sliding_window"} if keys.values.get("use_sliding_window") is False else set()
        for key in keys.values.keys() & _COMPUTED_ELSEWHERE.keys() - windows:
            if (value := keys.values[key]) not in _OFF and value not in _COMPUTED_ELSEWHERE[key]:
                raise WeightsError(
                    f"`{key}` is {value!r:.60} in {keys.path}, which a {self.model_type} in weft does not compute",
                    fix=f"only models without `{key}` are read so: numbers would be wrong",
                )

    def check_fixed(self, config: Any) -> None:
        """Raises where the configuration is not one of this architecture's."""
        for field, wanted in self.fixed.items():
            if field == "tied_scale" and not config.tied:
                continue  # says nothing then
            value = getattr(config, field)
            is_same = set(value.split()) == set(wanted.split()) if field == "bias" else value == wanted
            if not is_same:
                raise self.no_form(config, field, wanted)


def with_softmax(config: Any, entries: Sequence[FileEntry]) -> list[FileEntry]:
    """The entries, and that of the embedding of the logits where it is not tied."""
    return [*entries, *([] if config.tied else [FileEntry("softmax.table", LM_HEAD, "vocab d_model")])]


def tied_copy(table: str) -> Callable[[Any], Mapping[str, str]]:
    """The copy that a file of a tied model may hold of its embedding."""
    return lambda config: {LM_HEAD: table} if config.tied else {}


class Keys:
    """The keys of a `config.json`; each is checked where it is read."""

    def __init__(self, values: Mapping[str, Any], path: Path):
        self.values, self.path = values, path

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number; it must be there unless there is a default."""
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise WeightsError(f"{self.path} has no `{key}`", fix=f"add it, as in `{key}: 16`")
        if not is_whole(value, 0) or value >= _LARGEST:
            raise self.wrong(key, f"a whole number below {_LARGEST:,}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if not is_real(value) or not math.isfinite(value):
            raise self.wrong(key, "a finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def activation(self, key: str, default: str) -> str:
        return self.one_of(key, ACTIVATIONS, default)

    def one_of(self, key: str, known: Mapping[str, Any], default: str) -> Any:
        """What a word stands for."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or value not in known:
            raise WeightsError(
                f"`{key}` is {value!r} in {self.path}, which weft does not compute", fix=closest(str(value), known)
            )
        return known[value]

    def must_be(self, key: str, *wanted: Any) -> None:
        """Raises unless a key has one of these values, or is not there."""
        if key in self.values and self.values[key] not in wanted:
            values = " or ".join(repr(value) for value in wanted)
            raise WeightsError(
                f"`{key}` is {self.values[key]!r} in {self.path}, which weft does not compute",
                fix=f"only models with `{key}` {values} are read",
            )

    def wrong(self, key: str, wanted: str) -> WeightsError:
        return WeightsError(
            f"`{key}` is {self.values[key]!r} in {self.path}, which is not {wanted}", fix=f"give {wanted}"
        )
