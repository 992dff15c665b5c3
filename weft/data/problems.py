"""The error of this room, and libraries that are loaded only where they are needed."""

import importlib
from typing import Any

from ..errors import WeftError


class DataError(WeftError):
    """Data, a tokenizer or a cache that cannot be read, or that do not fit each other."""


def library(name: str, purpose: str) -> Any:
    """A library by its name; where it is not installed, an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"{purpose} needs `{name}`, which cannot be loaded: {error}", fix=f"run `pip install {name}`"
        ) from None
