"""Checks of what layers are given, where they are made. Imports tensors, dims and errors alone."""

from collections.abc import Iterable
from typing import Any

from ..checks import is_real, is_whole
from ..dims import Dim
from ..errors import DimError, TensorError, closest
from ..tensor import is_tensor


def one_dim(given: Any, what: str) -> Dim:
    """The dim, if it is one."""
    if not isinstance(given, Dim):
        raise DimError(f"`{what}` is {given!r}, which is no dim", fix=f"give one, e.g. `wf.Dim('{what}', 8)`")
    return given


def one_of(given: Any, known: Iterable[str], what: str) -> str:
    """The word, if it is one of those known."""
    if given not in (known := tuple(known)):
        raise TensorError(f"there is no {what} {given!r}", fix=closest(str(given), known))
    return str(given)


def number(
    given: Any, what: str, *, least: float, below: float, example: float | None = None, may_be_least: bool = True
) -> float:
    """The number, if it lies from `least` to below `below`."""
    if not is_real(given) or not least <= given < below or (given == least and not may_be_least):
        range_text = f"{'from' if may_be_least else 'above'} {least:g}" + f" and below {below:g}" * (below < 1e9)
        example_text = "" if example is None else f", e.g. `{what}={example}`"
        raise TensorError(f"`{what}` is {given!r}", fix=f"give a number {range_text}{example_text}")
    return given


def whole(given: Any, what: str, least: int = 1) -> int:
    """The whole number, if it is at least so large."""
    if not is_whole(given, least):
        raise TensorError(f"`{what}` is {given!r}", fix=f"give a whole number from {least} on")
    return int(given)


def whole_number(given: Any, what: str, *, divides: int, of: str) -> int:
    """The number, if it divides the size `divides` of the dim `of`."""
    if not is_whole(given, 1) or divides % given:
        most = max(1, given) if is_whole(given) else 1
        near = max(n for n in range(1, divides + 1) if divides % n == 0 and n <= most)
        raise DimError(
            f"`{what}` is {given!r}, and `{of}` has size {divides}",
            fix=f"give a whole number that divides {divides}, e.g. `{what}={near}`",
        )
    return int(given)


def has_dims(x: Any, dims: Iterable[Dim]) -> None:
    """Raises where `x` is a tensor without one of the dims; what is no tensor, the first operation names."""
    for dim in dims if is_tensor(x) else ():
        x.dims.find(dim)
