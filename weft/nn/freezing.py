"""Which parameters are trained: all of them, but for those frozen by their paths.

Imports the language. A path is written like `decoder.layers.attention.q`.
"""

import fnmatch
from collections.abc import Callable
from typing import Any

import jax

from ..errors import TensorError, closest, public
from ..leaves import is_stored
from ..tensor import Tensor, is_tensor, with_kind
from .weights import path_text


@public
def freeze(model: Any, *patterns: str) -> Any:
    """The model with the parameters whose paths match a pattern frozen.

    They get no gradient, no update and no optimizer state. Patterns are as in a shell:
    `freeze(model, "embedding.*", "decoder.layers.feed_forward.*")`.
    """
    if not patterns:
        raise TensorError(
            "freeze got no pattern", fix="name paths, e.g. `freeze(model, 'embedding.*')`, or '*' for all"
        )
    return _mark(model, patterns, True)


@public
def unfreeze(model: Any, *patterns: str) -> Any:
    """The model with the parameters whose paths match, or all, trained again."""
    return _mark(model, patterns or ("*",), False)


@public
def paths(model: Any) -> list[str]:
    """The paths of all parameters."""
    return list(tensors_by_path(model))


def tensors_by_path(model: Any) -> dict[str, Tensor]:
    """All tensors of a model by their paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_tensor)
    return {path_text(path): leaf for path, leaf in leaves if is_tensor(leaf)}


def map_paths(fn: Callable[[str, Any], Any], model: Any) -> Any:
    """The model with `fn(path, leaf)` in place of every leaf; tensors are leaves."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: fn(path_text(path), leaf), model, is_leaf=is_tensor)


def match_paths(patterns: Any, model: Any) -> set[str]:
    """The paths that match some of the patterns, each of which must match one."""
    patterns = patterns.split() if isinstance(patterns, str) else patterns
    chosen: set[str] = set()
    known = paths(model)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TensorError(f"{pattern!r:.60} is no pattern of paths", fix="give text, e.g. 'embedding.*'")
        matches = fnmatch.filter(known, pattern)
        if not matches:
            raise TensorError(f"no parameter's path matches {pattern!r}", fix=closest(pattern, known))
        chosen.update(matches)
    return chosen


def _mark(model: Any, patterns: tuple[str, ...], frozen: bool) -> Any:
    chosen = match_paths(patterns, model)

    def mark(path: str, x: Any) -> Any:
        return with_kind(x, frozen=frozen) if path in chosen and is_stored(x) else x

    return map_paths(mark, model)
