"""The error of this room, and libraries loaded only where they are needed."""

from typing import Any

from .. import libraries
from ..errors import WeftError


class DataError(WeftError):
    """Data, a tokenizer or a cache that cannot be read, or do not fit each other."""


def import_library(name: str, purpose: str) -> Any:
    """A library by its name, or a `DataError` that says how to install it."""
    return libraries.import_library(name, purpose, DataError)
