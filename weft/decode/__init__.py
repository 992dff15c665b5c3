"""Decoding: continuations of prompts by sampling or beam search, under any layout."""

from .beam import Hypotheses, beam_search
from .generate import Continuations, generate

__all__ = ["Continuations", "Hypotheses", "beam_search", "generate"]
