"""Dtypes and values of arrays: what a caller means, what has room, what is known."""

import contextlib
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike as DTypeLike

from .checks import is_whole
from .errors import TensorError


def as_dtype(given: DTypeLike | None) -> Any:
    """The dtype a caller means, as JAX holds it."""
    try:
        if given is None:
            raise TypeError
        return jax.dtypes.canonicalize_dtype(given)
    except TypeError:
        raise TensorError(f"{given!r} is no dtype", fix="give one such as 'float32', 'bfloat16' or 'int32'") from None


def need_room(value: Any, dtype: Any = None) -> None:
    """Raises where known whole numbers do not fit a dtype, or JAX's for them."""
    if not is_whole(value) and not isinstance(value, np.ndarray | np.generic):
        return
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuO" or numbers.dtype == dtype or not numbers.size:
        return
    held = jax.dtypes.canonicalize_dtype(numbers.dtype if isinstance(value, np.ndarray | np.generic) else int)
    held = held if dtype is None else dtype
    if held == numbers.dtype or not jax.numpy.issubdtype(held, jax.numpy.integer):
        return
    limits = jax.numpy.iinfo(held)
    for found in (int(numbers.min()), int(numbers.max())):
        if not limits.min <= found <= limits.max:
            raise TensorError(
                f"{found} does not fit {held}",
                state=f"{held} holds whole numbers from {limits.min} to {limits.max}",
                fix=f"give one of these, or a float: `{float(found)}`; 64 bits are had by "
                "`jax.config.update('jax_enable_x64', True)` before all else",
            )


def as_jax_holds(array: Any) -> Any:
    """An array of NumPy's in the dtype that the first operation would make of it."""
    need_room(array)
    if not isinstance(array, np.ndarray) or array.dtype == (held := as_dtype(array.dtype)):
        return array
    return array.astype(held)


def short_dtype(dtype: Any) -> str:
    """A dtype as it is printed.

    >>> short_dtype(np.dtype("float32"))
    'f32'
    """
    name = str(dtype)
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        if name.startswith(long):
            return short + name[len(long) :]
    return name


def has_values(array: Any) -> bool:
    """Whether the values of an array are known, and here."""
    if isinstance(array, np.ndarray | np.generic):
        return True
    if isinstance(array, jax.core.Tracer):
        return False
    is_there = isinstance(array, jax.Array) and array.is_fully_addressable and not array.is_deleted()
    return is_there and not is_key(array)


def value_text(array: Any) -> str:
    """A number's value after a space; empty where it is not known, or failed."""
    with contextlib.suppress(RuntimeError):  # what was to compute it has failed: whoever asks for it hears why
        return f" {np.asarray(array)}" if has_values(array) else ""
    return ""


def is_key(value: Any) -> bool:
    """Whether a value is a random key of JAX's, or an array or tensor of them."""
    return hasattr(value, "dtype") and bool(jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key))
