"""Train steps of `gpu.py` for `weft profile` and `weft show`.

weft profile benchmarks/profiled.py:deep --keep profile         # also dropout, packed, t5, moe, llama
SMALL=1 weft profile benchmarks/profiled.py:deep                # tiny sizes, to try it without a GPU
"""

import functools
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rivals import by_weft, workloads

IS_SMALL = bool(os.environ.get("SMALL"))


def train(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A workload's train step with its state, a batch and a key."""
    return by_weft.train_step(workloads.find(name, is_small=IS_SMALL))


deep, dropout, packed, t5, moe, llama = (
    functools.partial(train, name) for name in ("deep", "dropout", "packed", "t5", "moe", "llama")
)
