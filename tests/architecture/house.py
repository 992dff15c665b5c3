"""The house: its rooms, which may import which, and the modules in them.

Every rule is a function from parsed source to a list of complaints. Each has a file beside this one, which holds the
package to the rule and shows, on a few lines of made-up source, that the rule can fail. Nothing of weft is imported.
"""

import functools
from collections.abc import Callable
from pathlib import Path

from tests.architecture.source import Module

ROOT = Path(__file__).resolve().parent.parent.parent

# Each room and the rooms directly below it. It may import those, and all that stand below them.
BELOW = {
    "compat": [],
    "kernels": ["compat"],
    "fields": [],
    "cells": [],
    "errors": ["compat"],
    "checks": ["errors"],
    "libraries": ["errors"],
    "text": ["errors"],
    "small_files": ["checks"],
    "dims": ["checks"],
    "dtypes": ["checks"],
    "elsewhere": ["errors"],
    "devices": ["errors"],
    "mesh": ["dims", "devices", "kernels", "cells"],
    "schedule": [],
    "record": ["dims", "schedule", "kernels"],
    "primitives": ["compat"],
    "graph": ["primitives", "record", "compat"],
    "hints": ["dims"],
    "layout": ["mesh", "record", "hints"],
    "namespace": ["errors"],
    "optim": ["namespace", "elsewhere"],
    "notebook": ["errors"],
    "operators": ["layout", "dtypes", "elsewhere", "namespace"],
    "tensor": ["operators"],
    "leaves": ["tensor"],
    "lower": ["leaves", "graph"],
    "ops": ["lower", "kernels"],
    "spmd": ["ops", "libraries", "text"],
    "program": ["spmd", "text", "notebook"],
    "plan": ["program", "small_files"],
    "nn": ["spmd"],
    "models": ["nn", "fields"],
    "decode": ["models", "data"],  # texts in, texts out: it needs their tokenizers
    "interop": ["models", "small_files", "libraries"],
    "data": ["spmd", "small_files", "fields", "libraries"],
    "train": ["data", "plan", "decode", "interop", "optim"],
    "cli": ["train"],
    "__main__": ["cli"],
    "__init__": ["cli"],  # the public names: may import every room, and no room imports it
}


def rooms_below(room: str) -> set[str]:
    """The room itself and every room it may import."""
    return {room}.union(*(rooms_below(below) for below in BELOW[room]))


@functools.cache
def package_modules() -> list[Module]:
    modules = []
    for path in sorted((ROOT / "weft").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return modules


def complaints(rule: Callable[[Module], list[str]]) -> list[str]:
    """What a rule says of the package."""
    return [complaint for module in package_modules() for complaint in rule(module)]
