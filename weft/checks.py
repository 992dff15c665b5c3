"""What a plain value is: a whole number, a number, a function.

Asked here, and nowhere else. Imports errors alone. Python's and NumPy's numbers are numbers; a boolean is none, and
neither is an array of JAX's, whose value may not be known.
"""

import inspect
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, TypeGuard

from .errors import TensorError


def is_whole(value: Any, least: int | None = None) -> TypeGuard[int]:
    """Whether a value is a whole number, and at least so large.

    >>> is_whole(3), is_whole(3, least=4), is_whole(3.0), is_whole(True)
    (True, False, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool) and (least is None or int(value) >= least)


def is_real(value: Any) -> TypeGuard[float]:
    """Whether a value is a real number.

    >>> is_real(0.5), is_real(3), is_real("3"), is_real(True)
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def need_function(fn: Any, what: str, of: str = "tensors", takes: int | None = None) -> Callable[..., Any]:
    """`fn`, if it can be called, with so many arguments where their number is known."""
    if not callable(fn):
        raise TensorError(f"{what} got {fn!r:.60}, which is no function", fix=f"give {what} a function of {of}")
    if takes is not None:
        try:
            inspect.signature(fn).bind(*range(takes))
        except TypeError as error:
            number = f"{takes} argument{'' if takes == 1 else 's'}"
            raise TensorError(
                f"{what} calls its function with {number}: {error}", fix=f"give {what} a function of {number}"
            ) from None
        except ValueError:  # it has no signature
            pass
    return fn
