"""The copy that a run's folder has of the code it calls.

A run is opened by that copy wherever it lies, also when the code has changed since; where the file it was made of is
there and the same, that file itself is run, since it may look for what lies beside it.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from ...data.atomic import write_atomic
from .code import CODE, ORIGIN, OwnCall
from .trust import remember


def keep_code(folder: Path, calls: Sequence[OwnCall]) -> None:
    """Copies the sources of calls into a run's folder; they are known from now on."""
    if not calls:
        return
    for call in calls:
        remember(call)
        root, sources = folder / CODE / call.table, call.sources()
        if call.file.parent == root:
            continue
        if root.is_dir() and _read(root) != sources:
            shutil.rmtree(root)
        for name, content in sources.items():
            if not (root / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                write_atomic(root / name, content)
    origins = {call.table: str(call.file) for call in calls}
    if not any(call.file.is_relative_to(folder / CODE) for call in calls):
        write_atomic(folder / CODE / ORIGIN, json.dumps(origins).encode())


def code_changes(folder: Path, calls: Sequence[OwnCall]) -> str:
    """In which files the code differs from what a run was begun with; empty in none."""
    changes: list[str] = []
    for call in calls:
        root = folder / CODE / call.table
        if not root.is_dir():
            continue
        old, new = _read(root), call.sources()
        changes += [f"{name} is another" for name in new if name in old and old[name] != new[name]]
        changes += [f"{name} is new" for name in new if name not in old]
        changes += [f"{name} is gone" for name in old if name not in new]
    return ", ".join(dict.fromkeys(changes))


def _read(root: Path) -> dict[str, bytes]:
    files = (path for path in sorted(root.rglob("*.py")) if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
