"""Decoding: sampling, beam search, and texts continued or translated by them.

Imports the models and the data's tokenizers. It works under any layout.
"""

from ..namespace import namespace as _namespace
from ..record import show_as_source as _show_as_source
from .beam import Hypotheses, beam_search
from .generate import Continuations, generate

_show_as_source(__path__[0])

__all__ = ["Continuations", "Hypotheses", "beam_search", "generate"]

__dir__, __getattr__ = _namespace(globals(), called="decode")
