"""Layers: Equinox modules over named tensors, which say nothing about processors."""

from ..elsewhere import LAYERS as _LAYERS
from ..namespace import namespace as _namespace
from ..record import show_as_source as _show_as_source
from . import lora
from .attention import Attention
from .block_attention import BlockAttention
from .compose import MLP, Dropout, Sequential, Stacked
from .conv import Conv, ConvTranspose
from .dice import dice
from .feed_forward import FeedForward
from .freezing import freeze, paths, unfreeze
from .linear import Embedding, Linear
from .loss import cross_entropy, summed_cross_entropy
from .mask import Mask
from .moe import MixtureOfExperts
from .norm import BatchNorm, GroupNorm, LayerNorm, RMSNorm, ScaleNorm
from .patches import Patches
from .position import RelativeBias, rope, sinusoids
from .recurrent import GRU, LSTM
from .weights import Weight, init, shapes, stack

_show_as_source(__path__[0])

__all__ = [
    "Attention",
    "BatchNorm",
    "BlockAttention",
    "Conv",
    "ConvTranspose",
    "Dropout",
    "Embedding",
    "FeedForward",
    "GRU",
    "GroupNorm",
    "LSTM",
    "LayerNorm",
    "Linear",
    "MLP",
    "Mask",
    "MixtureOfExperts",
    "Patches",
    "RMSNorm",
    "RelativeBias",
    "ScaleNorm",
    "Sequential",
    "Stacked",
    "Weight",
    "cross_entropy",
    "dice",
    "freeze",
    "init",
    "lora",
    "paths",
    "rope",
    "shapes",
    "sinusoids",
    "stack",
    "summed_cross_entropy",
    "unfreeze",
]

__dir__, __getattr__ = _namespace(globals(), called="nn", written=_LAYERS, renamed={"rotated": "rope"})
