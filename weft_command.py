"""Where the command `weft` begins, outside the package: importing that, and JAX with it, takes a second or two.

Ctrl-C in that time ends the process at once, as it does while it reads its options and while Python ends: there is
nothing to save then. Commands hear it themselves (`weft/train/stopping.py`).
"""

import os
import signal
import sys
from typing import Any


def main() -> None:
    """The command `weft`."""
    # No exception: one that is raised in a callback of the garbage collector is printed there, and lost.
    signal.signal(signal.SIGINT, _end)
    try:
        from weft.cli import main as command
    except ImportError as error:
        if os.environ.get("WEFT_TRACEBACK") == "full":
            raise
        fix = f"install it anew into {sys.prefix}: `pip install -e .` in Weft's folder"
        sys.exit(f"error: weft cannot be loaded: {error}\n  fix: {fix}")
    command()


def _end(number: int, frame: Any) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
