"""Positions under a name of the user's own, for layers that call them `length`.

Imports the language. The rule of the own name splits them as before: the new dim follows it.
"""

from typing import Any

import jax

from ..dims import Dim
from ..tensor import Tensor, is_tensor


def as_places(tree: Any, over: str) -> Any:
    """Every tensor with `over` called `length`, and `memory_` of it `memory_length`."""
    if over == "length":
        return tree

    def rename(x: Any) -> Any:
        if not is_tensor(x):
            return x
        names = {over: "length", f"memory_{over}": "memory_length"}
        return x.rename(**{old: _make_follower(x, old, new) for old, new in names.items() if x.dims.has(old)})

    return jax.tree.map(rename, tree, is_leaf=is_tensor)


def _make_follower(x: Tensor, old: str, new: str) -> Dim:
    return Dim(new, x.size(old), follows=old, valid=x.dim(old).valid)
