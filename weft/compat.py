"""What Weft needs of JAX that JAX does not make public: each name with its reason, and nowhere else.

Imports nothing of the house.
"""

import contextlib
from typing import Any

from jax._src import config as _config  # holds `_check_vma`


def without_variation() -> contextlib.AbstractContextManager[Any]:
    """While values are traced without JAX's types of what varies over the mesh."""
    return _config._check_vma(False)  # shard_map has it for a whole body; there is no public way for a part of one
