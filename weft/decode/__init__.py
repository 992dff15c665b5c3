"""Decoding: sampling, beam search, and texts continued or translated by them.

Imports the models and the data's tokenizers. It works under any layout.
"""

from .beam import Hypotheses, beam_search
from .generate import Continuations, generate

__all__ = ["Continuations", "Hypotheses", "beam_search", "generate"]
