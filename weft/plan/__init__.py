"""What a program will take: seconds and memory on hardware that need not be there."""

from .cost import OpCost, Plan
from .hardware import HARDWARE, Hardware, Link, hardware

__all__ = ["HARDWARE", "Hardware", "Link", "OpCost", "Plan", "hardware"]
