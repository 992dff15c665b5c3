"""Foresight: what a program will need and how fast it will be on machines that need not be there."""

from .compile import Proof, compiled_for
from .sent import Sent

__all__ = ["Proof", "Sent", "compiled_for"]
