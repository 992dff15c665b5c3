"""The models: one readable file each, and the sizes of the paper under their names."""

from .presets import PRESETS, LMConfig, preset
from .transformer_lm import TransformerLM, init, shapes

__all__ = ["PRESETS", "LMConfig", "TransformerLM", "init", "preset", "shapes"]
