"""The architectures that can be read and written, by their `model_type`."""

from collections.abc import Collection
from typing import Any

from .architecture import Architecture
from .bert import BERT
from .gpt2 import GPT2
from .llama import LLAMA
from .switch import SWITCH
from .t5 import MT5, MT5_ENCODER, T5, T5_ENCODER, UMT5, UMT5_ENCODER
from .vit import VIT

ARCHITECTURES = {family.model_type: family for family in (T5, MT5, UMT5, BERT, VIT, GPT2, LLAMA, SWITCH)}
ENCODERS = {family.model_type: family for family in (T5_ENCODER, MT5_ENCODER, UMT5_ENCODER)}
"""Encoders alone of families whose models have a decoder too."""


def choose(model_type: str, names: Collection[str]) -> Architecture:
    """The architecture of a `model_type` whose tensors have these names."""
    if model_type in ENCODERS and not any(name.startswith("decoder.") for name in names):
        return ENCODERS[model_type]
    return ARCHITECTURES[model_type]


def remembered(config: Any) -> Architecture | None:
    """The architecture of the family a model was read from, if it is one of its kind."""
    for table in (ARCHITECTURES, ENCODERS):
        found = table.get(config.family or "")
        if found is not None and found.kind is type(config):
            return found
    return None
