"""Libraries that not every use of Weft needs, loaded where they are used.

Imports errors alone. `pyproject.toml` has them as extras; a missing one says how to install it.
"""

import importlib
import importlib.util
from typing import Any

from .errors import WeftError

_PACKAGES = {"orbax.checkpoint": "orbax-checkpoint", "tomli_w": "tomli-w"}  # where they are not called as modules are


class LibraryError(WeftError):
    """A library that is asked for and cannot be loaded."""


def import_library(name: str, purpose: str, error: type[WeftError] = LibraryError) -> Any:
    """A library by its name, or an error that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as cause:
        raise error(
            f"{purpose} needs `{name}`, which cannot be loaded: {cause}",
            fix=f"run `pip install {_package_of(name)}`",
        ) from None


def need_libraries(purpose: str, *names: str) -> None:
    """Raises where some of these are not installed, before anything is begun."""
    missing = [name for name in names if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing:
        packages = [_package_of(name) for name in missing]
        raise LibraryError(
            f"{purpose} needs {' and '.join(f'`{package}`' for package in packages)}, not installed here",
            fix=f"run `pip install {' '.join(packages)}`; weft's extra `train` has all that training can use",
        )


def _package_of(module: str) -> str:
    """What is installed for a module: mostly the first part of its name."""
    return _PACKAGES.get(module, module.partition(".")[0])
