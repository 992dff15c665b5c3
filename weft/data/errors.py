"""The error of this room, and libraries loaded only where they are needed."""

import importlib
from typing import Any

from ..errors import WeftError


class DataError(WeftError):
    """Data, a tokenizer or a cache that cannot be read, or do not fit each other."""


def import_library(name: str, purpose: str) -> Any:
    """A library by its name, or an error that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"{purpose} needs `{name}`, which cannot be loaded: {error}",
            fix=f"run `pip install {name.partition('.')[0]}`",
        ) from None
