"""Calling a bound program while JAX profiles it.

The calls are those a user makes: none waits for the one before, but on virtual processors, which would else work on
several at once.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..dtypes import is_key
from ..spmd import Bound, TrainStep

_SPREAD = 0.02  # of the numbers that stand for those that are not given
_WARM = 2

GoOn = Callable[[tuple[Any, ...], Any], tuple[Any, ...]]


def keep_own_scopes() -> None:
    """Lets what is compiled from now on have its own scopes and lines.

    A program from JAX's compilation cache has those of the one that was compiled: its key leaves them out.
    """
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)


def start_profile(folder: Path) -> None:
    """Lets JAX profile what runs from now on, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)  # one that cannot be written is better known now: JAX would not stop
    options: Any = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # every call of Python would be in it, and slow the steps down
    jax.profiler.start_trace(str(folder), profiler_options=options)


def profile_calls(bound: Bound, args: tuple[Any, ...], folder: Path, *, steps: int, go_on: GoOn | None = None) -> float:
    """Calls a program `steps` times under a profile; seconds of a call without one.

    `go_on(args, result)` gives the arguments of the next call; a train step's is with the state that it gave.
    """
    assert bound.mesh is not None
    waits = bound.mesh.platform == "cpu"
    go_on = go_on or (_next_step if isinstance(bound, TrainStep) else lambda args, _: args)

    def run(args: tuple[Any, ...], times: int) -> tuple[Any, ...]:
        for _ in range(times):
            result = bound(*args)
            args = go_on(args, result)
            if waits:
                jax.block_until_ready(result)
        jax.block_until_ready((args, result))
        return args

    args = run(args, _WARM)
    began = time.perf_counter()
    args = run(args, steps)
    took = (time.perf_counter() - began) / steps
    start_profile(folder)
    try:
        run(args, steps)
    finally:
        jax.profiler.stop_trace()
    return took


def _next_step(args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
    return result[0], *args[1:]


def fill_shapes(tree: Any, *, below: int = 1, floats: Callable[[Any], Any] | None = None) -> Any:
    """A tree with arrays for shapes: small random floats, whole numbers from 0 up.

    Whole numbers are below `below`; a key is that of 0.
    """
    random = np.random.default_rng(0)

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if is_key(leaf):
            return jnp.broadcast_to(jax.random.key(0), leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            make = floats or (lambda shape: _SPREAD * random.standard_normal(shape, dtype=np.float32))
            return make(leaf.shape).astype(leaf.dtype)
        if leaf.dtype == jnp.bool_:
            return np.ones(leaf.shape, bool)
        return random.integers(0, below, leaf.shape).astype(leaf.dtype)

    return jax.tree.map(fill, tree)
