"""What a leaf of a tree is: data, trained data, or a part of the program.

Asked here, and nowhere else. Imports dims and tensors. Data are tensors, arrays (keys too) and Python's numbers: they
are traced. All else is static: None, booleans, text, functions, dtypes.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .dims import Dim
from .errors import TensorError
from .tensor import Tensor, is_tensor, make


def is_array(leaf: Any) -> bool:
    """Whether a leaf is a plain array: JAX's, NumPy's, or a shape alone."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not is_tensor(leaf) and not isinstance(leaf, type)


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a number of Python's; a boolean is none."""
    return isinstance(leaf, int | float | complex) and not isinstance(leaf, bool)


def is_data(leaf: Any) -> bool:
    """Whether a leaf is traced, not compiled in; a tensor without an array is not."""
    return hasattr(leaf.raw, "shape") if is_tensor(leaf) else is_array(leaf) or is_number(leaf)


def is_trained(leaf: Any) -> bool:
    """Whether a leaf gets a gradient and updates: a float that is not frozen."""
    if not is_data(leaf) or (is_tensor(leaf) and leaf.kind.frozen):
        return False
    return isinstance(leaf, float | complex) if is_number(leaf) else jnp.issubdtype(leaf.dtype, jnp.inexact)


def is_stored(leaf: Any) -> bool:
    """Whether a leaf lies by rules of its own: `params.` rules, or `optimizer.`."""
    return is_tensor(leaf) and leaf.kind.store is not None


def array_of(leaf: Any) -> Any:
    """The array of a leaf, which may be a tensor."""
    return leaf.raw if is_tensor(leaf) else leaf


def with_array(x: Tensor, array: Any, dims: Sequence[Dim] | None = None) -> Tensor:
    """A tensor as `x` is, outside a region, of another array.

    Its dims are those of `x` unless given.
    """
    return make(array, x.dims if dims is None else dims, None, x.kind)


def unnamed_error(array: Any, where: str, *, by: str = "wf.tensor", more: str = "", state: str = "") -> TensorError:
    """The error of an array whose dims have no names."""
    dots = ", ".join("..." for _ in array.shape)
    return TensorError(
        f"{where} is a plain array of shape {tuple(array.shape)}, whose dims have no names",
        state=state,
        fix=f"name them: `{by}(array, [{dots}])`{more}",
    )


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree, tensors whole, by path: `['w']`, `.scale`."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in found]


def cure_of_no_floats(tree: Any, otherwise: str) -> str:
    """The fix where a tree has no float tensor.

    A plain class hides those of its attributes from JAX.
    """
    for leaf in jax.tree.leaves(tree, is_leaf=is_tensor):
        if _hides_data(leaf):
            kind = type(leaf).__name__
            return (
                f"`{kind}` is a plain class, of which JAX sees no attribute: make it a tree, "
                f"`class {kind}(eqx.Module)` with its attributes declared, or a dict"
            )
    return otherwise


def _hides_data(leaf: Any, depth: int = 3) -> bool:
    """Whether a leaf that is no data has attributes that are, or that hide some."""
    within = jax.tree.leaves(getattr(leaf, "__dict__", {}), is_leaf=is_tensor)
    return not is_data(leaf) and any(
        is_data(value) or (depth > 0 and _hides_data(value, depth - 1)) for value in within
    )
