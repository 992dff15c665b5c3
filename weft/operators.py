"""Python's operators on tensors; the operations behind them register themselves here.

Imports nothing of the house, so that a tensor can have operators without knowing the operations.
"""

from collections.abc import Callable
from typing import Any

operations: dict[str, Callable[..., Any]] = {}


def operation(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the function behind an operator or method of `Tensor`."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        operations[name] = fn
        return fn

    return register


class Operators:
    """What `+`, `<`, `-x` and their like do with a tensor."""

    __slots__ = ()

    def __setitem__(self, place: Any, value: Any) -> None:
        operations["setitem"](self, place, value)

    def __add__(self, other: Any) -> Any:
        return operations["add"](self, other)

    def __radd__(self, other: Any) -> Any:
        return operations["add"](other, self)

    def __sub__(self, other: Any) -> Any:
        return operations["subtract"](self, other)

    def __rsub__(self, other: Any) -> Any:
        return operations["subtract"](other, self)

    def __mul__(self, other: Any) -> Any:
        return operations["multiply"](self, other)

    def __rmul__(self, other: Any) -> Any:
        return operations["multiply"](other, self)

    def __truediv__(self, other: Any) -> Any:
        return operations["divide"](self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return operations["divide"](other, self)

    def __floordiv__(self, other: Any) -> Any:
        return operations["floor_divide"](self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return operations["floor_divide"](other, self)

    def __mod__(self, other: Any) -> Any:
        return operations["remainder"](self, other)

    def __rmod__(self, other: Any) -> Any:
        return operations["remainder"](other, self)

    def __pow__(self, other: Any) -> Any:
        return operations["power"](self, other)

    def __rpow__(self, other: Any) -> Any:
        return operations["power"](other, self)

    def __and__(self, other: Any) -> Any:
        return operations["bitwise_and"](self, other)

    def __rand__(self, other: Any) -> Any:
        return operations["bitwise_and"](other, self)

    def __or__(self, other: Any) -> Any:
        return operations["bitwise_or"](self, other)

    def __ror__(self, other: Any) -> Any:
        return operations["bitwise_or"](other, self)

    def __xor__(self, other: Any) -> Any:
        return operations["bitwise_xor"](self, other)

    def __rxor__(self, other: Any) -> Any:
        return operations["bitwise_xor"](other, self)

    def __lshift__(self, other: Any) -> Any:
        return operations["left_shift"](self, other)

    def __rshift__(self, other: Any) -> Any:
        return operations["right_shift"](self, other)

    def __eq__(self, other: Any) -> Any:
        return operations["equal"](self, other)

    def __ne__(self, other: Any) -> Any:
        return operations["not_equal"](self, other)

    def __lt__(self, other: Any) -> Any:
        return operations["less"](self, other)

    def __le__(self, other: Any) -> Any:
        return operations["less_equal"](self, other)

    def __gt__(self, other: Any) -> Any:
        return operations["greater"](self, other)

    def __ge__(self, other: Any) -> Any:
        return operations["greater_equal"](self, other)

    def __neg__(self) -> Any:
        return operations["negative"](self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return operations["abs"](self)

    def __invert__(self) -> Any:
        return operations["invert"](self)
