"""Runs: a folder each, with what was trained, how, and its checkpoints."""

from .runs import Run

__all__ = ["Run"]
