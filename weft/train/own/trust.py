"""Whether code that a run calls may be run: another's is asked about.

A run's file that one wrote is one's own, as a Python file is. The folder of a run is not: it may come from anybody, and
calls code as soon as it is opened. What was run before, by its hash, is known and not asked about again.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from .code import CodeError, OwnCall

Trust = bool | Callable[[str], bool]
"""Whether code that is not known may be run; or what asks, with what it is told."""
_FOLDER = ("checkpoints", "data.json", "run.json", "code")  # what is beside the configuration in a run's folder


class TrustError(CodeError):
    """Code of somebody else's, that nobody has said may be run."""


def need_trust(call: OwnCall, file: Path, trust: Trust) -> None:
    """Raises where the code that a run's file calls is another's, and is not trusted."""
    if not call.file.is_file() or _is_own(call, file) or trust is True:  # what is not there is said where it is run
        return
    fact = f"{file} runs code that you have not run before: {call.file}"
    if callable(trust) and trust(fact):
        remember(call)
        return
    raise TrustError(fact, fix="read that code; if it may be run, say `--trust` (in Python, `trust=True`)", at=call.at)


def remember(call: OwnCall) -> None:
    """Keeps the hash of a call's code, so that it is not asked about again."""
    path, known = _known_file(), _read_known()
    with contextlib.suppress(OSError):  # without a home it is asked about again
        if (line := call.print()) not in known:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")


def _is_own(call: OwnCall, file: Path) -> bool:
    is_in_folder = any((file.parent / name).exists() for name in _FOLDER) and file.name == "config.toml"
    if not is_in_folder and all(_is_mine(path) for path in (file, call.file)):
        return True
    return call.print() in _read_known()


def _is_mine(path: Path) -> bool:
    """Whether a file belongs to who runs this; all do to root, as in a container."""
    return not hasattr(os, "geteuid") or not path.exists() or os.geteuid() in (0, path.stat().st_uid)


def _known_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return Path(base or Path.home() / ".local" / "state") / "weft" / "code-that-was-run"


def _read_known() -> set[str]:
    try:
        return set(_known_file().read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return set()
