"""Ops on values, outside any region and any trace: compiled as a whole.

An op made of several functions of JAX would else run them one by one, each with its own way to the device. An op is
compiled once for a way of calling: the dims of its operands, and all that is no array. One whose arguments are numbers
is compiled when it is called so again, since numbers may be others each time; an elementwise one takes floats
as data. Whatever cannot be compiled runs as it is written, which also says what is wrong with a call.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..compat import is_nothing_traced

_MOST = 4096
"""How many ways of calling are remembered; past that all are forgotten, and what is still used is compiled again."""

_compiled: dict[Any, Callable[..., Any] | None] = {}
"""By op and way of calling; None for what runs as it is written."""
_called_once: set[Any] = set()
_arrays: set[type] = set()
"""The classes JAX's arrays have had so far: asking by class is ten times as fast as `isinstance`."""
_NUMBERS = (int, float)


def run_compiled(fn: Callable[..., Any], args: Any, kwargs: Any, *, numbers_are_data: bool) -> Any:
    """What `fn` gives, compiled as a whole; NotImplemented where it cannot be."""
    if not is_nothing_traced():
        return NotImplemented
    try:
        leaves, structure = jax.tree.flatten((args, kwargs))
    except ValueError:  # a dict by dims, which have no order
        return NotImplemented
    arrays, data, rest, has_numbers = [], [], [], False
    for i, leaf in enumerate(leaves):
        kind = type(leaf)
        if kind in _arrays:
            if leaf.is_deleted():
                return NotImplemented
        elif kind in _NUMBERS:
            if kind is int or not numbers_are_data:  # a whole number may not fit its dtype
                rest.append((i, kind, leaf if leaf else str(leaf)))  # 0.0 and -0.0 are equal
                has_numbers = True
                continue
        elif kind is np.ndarray:
            if leaf.dtype.itemsize > 4:  # which JAX may narrow
                return NotImplemented
        elif not _is_array(leaf):
            if isinstance(leaf, jax.core.Tracer | np.generic) or (callable(leaf) and not _is_known(leaf)):
                return NotImplemented
            rest.append((i, kind, leaf))
            continue
        data.append(i)
        arrays.append(leaf)
    return _run(fn, (structure, tuple(data), tuple(rest)), arrays, has_numbers)


def _is_array(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer) or leaf.is_deleted():
        return False
    _arrays.add(type(leaf))
    return True


def _is_known(fn: Any) -> bool:
    """Whether it is a type, or a function of JAX's: one that will do the same again."""
    return isinstance(fn, type) or (getattr(fn, "__module__", None) or "").split(".")[0] == "jax"


def _run(fn: Callable[..., Any], way: Any, arrays: list[Any], has_numbers: bool) -> Any:
    key = fn, *way
    try:
        program = _compiled.get(key, NotImplemented)
    except TypeError:  # something among the arguments cannot be hashed
        return NotImplemented
    if program is NotImplemented:
        if has_numbers and hash(key) not in _called_once:
            _remember(hash(key))
            return NotImplemented
        program = _compile(fn, *way)
    if program is None:
        return NotImplemented
    try:
        results = program(*arrays)
    except Exception:  # said better by the op as it is written
        results, program = NotImplemented, None
    if key not in _compiled:
        if len(_compiled) >= _MOST:
            _compiled.clear()
        _compiled[key] = program
    return results


def _remember(number: int) -> None:
    if len(_called_once) >= _MOST:
        _called_once.clear()
    _called_once.add(number)


def _compile(fn: Callable[..., Any], structure: Any, data: tuple[int, ...], rest: tuple[Any, ...]) -> Any:
    """`fn` of the arrays among its arguments."""

    def run(*arrays: Any) -> Any:
        leaves = [None] * (len(data) + len(rest))
        for i, array in zip(data, arrays, strict=True):
            leaves[i] = array
        for i, kind, leaf in rest:
            leaves[i] = leaf if isinstance(leaf, kind) else kind(leaf)
        args, kwargs = jax.tree.unflatten(structure, leaves)
        results = fn(*args, **kwargs)
        made = jax.tree.leaves(results)
        if not made or any(a is b for a in made for b in arrays):
            raise NotImplementedError  # it gives what it was given, or nothing
        return results

    run.__name__ = getattr(fn, "__name__", "op")
    return jax.jit(run)
