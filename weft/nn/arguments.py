"""Checks of the arguments that layers are made with: dims, numbers, choices.

Imports tensors, dims, errors and what ops name. A check gives the value back, or raises.
"""

import math
from collections.abc import Iterable
from typing import Any

from ..checks import is_real, is_whole
from ..dims import Dim
from ..errors import DimError, TensorError, closest
from ..lower.meet import need_tensor
from ..ops.einsum import FLOAT8


def check_dim(value: Any, what: str) -> Dim:
    """The dim, if it is one."""
    if not isinstance(value, Dim):
        raise DimError(f"`{what}` is {value!r}, which is no dim", fix=f"give one, e.g. `wf.Dim('{what}', 8)`")
    return value


def check_choice(value: Any, known: Iterable[str], what: str) -> str:
    """The word, if it is one of those known."""
    if value not in (known := tuple(known)):
        raise TensorError(f"there is no {what} {value!r}", fix=closest(str(value), known))
    return str(value)


def check_number(
    value: Any, what: str, *, least: float, below: float, example: float | None = None, may_be_least: bool = True
) -> float:
    """The number, if it lies from `least` to below `below`."""
    if not is_real(value) or not least <= value < below or (value == least and not may_be_least):
        range_text = f"{'from' if may_be_least else 'above'} {least:g}" + f" and below {below:g}" * (below < 1e9)
        example_text = "" if example is None else f", e.g. `{what}={example}`"
        raise TensorError(f"`{what}` is {value!r}", fix=f"give a number {range_text}{example_text}")
    return value


def check_count(value: Any, what: str, least: int = 1) -> int:
    """The whole number, if it is at least so large."""
    if not is_whole(value, least):
        raise TensorError(f"`{what}` is {value!r}", fix=f"give a whole number from {least} on")
    return int(value)


def check_divisor(value: Any, what: str, *, divides: int, of: str, beside: int | None = None) -> int:
    """The number, if it divides the size `divides` of the dim `of`.

    The fix gives one that divides the size `beside` it too.
    """
    if not is_whole(value, 1) or divides % value:
        most, common = max(1, value) if is_whole(value) else 1, math.gcd(divides, beside or 0)
        near = max(n for n in range(1, common + 1) if common % n == 0 and n <= most)
        both = f"{divides} and {beside}" if beside not in (None, divides) else f"{divides}"
        raise DimError(
            f"`{what}` is {value!r}, and `{of}` has size {divides}",
            fix=f"give a whole number that divides {both}, e.g. `{what}={near}`",
        )
    return int(value)


def check_matmul_dtype(value: Any) -> str | None:
    """The dtype of a layer's products, if it is float8; None for that of operands."""
    return None if value is None else check_choice(value, [FLOAT8], "matmul_dtype")


def check_dims(x: Any, dims: Iterable[Dim], makes: Iterable[Dim] = ()) -> None:
    """Raises where `x`, given to a layer, is no tensor, or lacks one of the dims.

    It may have none of those that the layer `makes`: by names the two would be one.
    """
    need_tensor(x, "a layer")
    for dim in dims:
        x.dims.find(dim)
    if twice := next((dim.name for dim in makes if x.dims.has(dim.name)), None):
        raise DimError(
            f"a layer that makes `{twice}` was given [{x.dims}], which has it already",
            fix=f"rename it first, e.g. `x.rename({twice}='{twice}_in')`",
        )
