"""Remat (activation, or gradient, checkpointing): what a backward pass keeps.

All else it computes again. A gathered parameter is never kept. Collectives inside a recomputed function run twice
unless their results are kept by name. What is kept may wait for the backward pass in the memory of the host (offload).
"""

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from ..checks import need_function
from ..compat import PINNED
from ..errors import TensorError, closest, fold_frames, public
from ..leaves import is_data
from ..lower.fetch import is_collecting
from ..lower.meet import inside_remat, need_tensor
from ..lower.recorded import bring_in, recorded
from ..lower.trees import check_numbers
from ..tensor import is_tensor, make, marks_of, with_marks

_named: contextvars.ContextVar[set[str]] = contextvars.ContextVar("names given inside remat")


@public
def remat(fn: Callable[..., Any], *, save: Sequence[str] = ()) -> Callable[..., Any]:
    """Activation checkpointing: `fn`, recomputed in the backward pass.

    Only values marked by `wf.name` with a name in `save` are kept; one of `attn@host` in the memory of the host.
    """
    need_function(fn, "remat")
    if isinstance(save, str):
        save = save.split()
    if not isinstance(save, Sequence) or not all(isinstance(word, str) for word in save):
        raise TensorError(
            f"remat got save={save!r}", fix="give the names that `wf.name(x, ...)` gave, e.g. save=['attn']"
        )
    kept, on_host = split_names(save)

    @fold_frames
    @functools.wraps(fn)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if is_collecting():
            return fn(*args, **kwargs)
        leaves, structure = jax.tree.flatten(bring_in((args, kwargs)), is_leaf=is_tensor)
        is_value = [is_data(leaf) for leaf in leaves]
        fixed = [None if value else leaf for leaf, value in zip(leaves, is_value, strict=True)]
        marks = [marks_of(leaf) if is_tensor(leaf) else {} for leaf in leaves]

        def run(values: Sequence[Any]) -> Any:
            left = iter(values)
            whole: list[Any] = [next(left) if value else leaf for leaf, value in zip(fixed, is_value, strict=True)]
            for x, before in zip(whole, marks, strict=True):
                if is_tensor(x):
                    with_marks(x, before)
            named: set[str] = set()
            token = _named.set(named)
            try:
                with inside_remat():
                    inner_args, inner_kwargs = jax.tree.unflatten(structure, whole)
                    result = fn(*inner_args, **inner_kwargs)
            finally:
                _named.reset(token)
                _named.get(set()).update(named)  # what is recomputed around this one may keep them too
            if missing := next((word for word in (*kept, *on_host) if word not in named), None):
                raise TensorError(
                    f"remat is to keep `{missing}`, a name nothing in it has",
                    fix=closest(missing, named) if named else f"give it where it is made: `wf.name(x, '{missing}')`",
                )
            check_numbers(
                [leaf for leaf in jax.tree.leaves(result, is_leaf=is_tensor) if not is_tensor(leaf)],
                "the result of remat",
            )
            return result

        policy = _policy(kept, on_host) if save else None
        values = [leaf for leaf, value in zip(leaves, is_value, strict=True) if value]
        return jax.checkpoint(run, policy=policy)(values)

    return recomputed


_ON_HOST = "@host"


def split_names(save: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of what is kept by the processors, and of what is on the host.

    >>> split_names(["attention@host", "feed_forward"])
    (['feed_forward'], ['attention'])
    """
    on_host = [word.removesuffix(_ON_HOST) for word in save if word.endswith(_ON_HOST)]
    kept = [word for word in save if not word.endswith(_ON_HOST)]
    if both := next((word for word in kept if word in on_host), None):
        raise TensorError(f"remat is to keep `{both}` twice", fix=f"say `{both}` or `{both}@host`")
    return kept, on_host


def _policy(kept: Sequence[str], on_host: Sequence[str]) -> Any:
    if not on_host:
        return jax.checkpoint_policies.save_only_these_names(*kept)
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=kept,
        names_which_can_be_offloaded=on_host,
        offload_src="device",
        offload_dst=PINNED,
    )


@recorded
def name(x: Any, label: str) -> Any:
    """`x` under a name that `remat(..., save=[...])` can keep."""
    x = need_tensor(x, "name")
    if not isinstance(label, str):
        raise TensorError(f"name got {label!r} for the name", fix="give a word: `wf.name(x, 'attn')`")
    _named.get(set()).add(label)
    return make(checkpoint_name(x.raw, label), x.dims, x.region, x.kind)
