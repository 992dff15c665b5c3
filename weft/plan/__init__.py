"""Planning: what a program needs and how fast it is on machines not at hand."""

from ..namespace import make_dir as _make_dir
from .compile import Proof, compiled_for
from .cost import OpCost, Plan
from .decoding import DecodePlan
from .hardware import HARDWARE, hardware
from .machine import Hardware, Link
from .page import page
from .profiled import Measured
from .ranking import LayoutClass, Ranked, Ranking
from .search import search
from .sent import Sent
from .variants import Choice

__all__ = [
    "HARDWARE", "Choice", "DecodePlan", "Hardware", "LayoutClass", "Link", "Measured", "OpCost", "Plan", "Proof",
    "Ranked", "Ranking", "Sent", "compiled_for", "hardware", "page", "search",
]  # fmt: skip

__dir__ = _make_dir(globals())
