"""Layers: Equinox modules over named tensors, which say nothing about processors."""

import warnings
from typing import Any

from ..elsewhere import LAYERS, unknown_name
from ..errors import WeftWarning, folded, user_stacklevel
from ..record import show_as_source
from . import lora
from .attention import Attention, Mask
from .feed_forward import FeedForward
from .freezing import freeze, paths, unfreeze
from .linear import Embedding, Linear
from .loss import cross_entropy, summed_cross_entropy
from .moe import MixtureOfExperts
from .norm import BatchNorm, GroupNorm, LayerNorm, RMSNorm, ScaleNorm
from .position import RelativeBias, rope, sinusoids
from .weights import init, shapes

show_as_source(__path__[0])

__all__ = [
    "Attention",
    "BatchNorm",
    "Embedding",
    "FeedForward",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "Mask",
    "MixtureOfExperts",
    "RMSNorm",
    "RelativeBias",
    "ScaleNorm",
    "cross_entropy",
    "freeze",
    "init",
    "lora",
    "paths",
    "rope",
    "shapes",
    "sinusoids",
    "summed_cross_entropy",
    "unfreeze",
]

RENAMED = {"rotated": "rope"}
"""What was called otherwise in an earlier version, and still may be."""


@folded
def __getattr__(name: str) -> Any:
    if name in RENAMED:
        warnings.warn(f"`nn.{name}` is now `nn.{RENAMED[name]}`", WeftWarning, stacklevel=user_stacklevel())
        return globals()[RENAMED[name]]
    raise unknown_name("nn", name, __all__, LAYERS)
