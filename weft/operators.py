"""Python's operators on tensors; the operations behind them register here."""

from collections.abc import Callable
from typing import Any

from .errors import fold_frames

operations: dict[str, Callable[..., Any]] = {}


def operation(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the function behind an operator or method of `Tensor`."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        operations[name] = fn
        return fn

    return register


def _of_one(name: str) -> Any:
    @fold_frames
    def operator(self: Any) -> Any:
        return operations[name](self)

    return operator


def _of_two(name: str) -> Any:
    @fold_frames
    def operator(self: Any, other: Any) -> Any:
        return operations[name](self, other)

    return operator


def _from_the_right(name: str) -> Any:
    @fold_frames
    def operator(self: Any, other: Any) -> Any:
        return operations[name](other, self)

    return operator


class Operators:
    """What `+`, `<`, `-x` and their like do with a tensor."""

    __slots__ = ()

    @fold_frames
    def __setitem__(self, place: Any, value: Any) -> None:
        operations["setitem"](self, place, value)

    def __pos__(self) -> Any:
        return self

    __neg__, __abs__, __invert__ = _of_one("negative"), _of_one("abs"), _of_one("invert")

    __add__, __radd__ = _of_two("add"), _from_the_right("add")
    __sub__, __rsub__ = _of_two("subtract"), _from_the_right("subtract")
    __mul__, __rmul__ = _of_two("multiply"), _from_the_right("multiply")
    __truediv__, __rtruediv__ = _of_two("divide"), _from_the_right("divide")
    __floordiv__, __rfloordiv__ = _of_two("floor_divide"), _from_the_right("floor_divide")
    __mod__, __rmod__ = _of_two("remainder"), _from_the_right("remainder")
    __pow__, __rpow__ = _of_two("power"), _from_the_right("power")
    __and__, __rand__ = _of_two("bitwise_and"), _from_the_right("bitwise_and")
    __or__, __ror__ = _of_two("bitwise_or"), _from_the_right("bitwise_or")
    __xor__, __rxor__ = _of_two("bitwise_xor"), _from_the_right("bitwise_xor")
    __lshift__, __rlshift__ = _of_two("left_shift"), _from_the_right("left_shift")
    __rshift__, __rrshift__ = _of_two("right_shift"), _from_the_right("right_shift")

    __eq__, __ne__ = _of_two("equal"), _of_two("not_equal")
    __lt__, __le__ = _of_two("less"), _of_two("less_equal")
    __gt__, __ge__ = _of_two("greater"), _of_two("greater_equal")
