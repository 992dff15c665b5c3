"""Bounds and choices of a configuration's fields, said beside each field.

Models, runs and tables of data are checked by what is said here. A number of which nothing is said is above 0.

    dropout: float = bounded(0.0, least=0, below=1)
    norm: str = one_of("rms", "layer")
"""

import dataclasses
import math
from types import UnionType
from typing import Any, get_args

_BOUNDS, _CHOICES = "bounds", "choices"


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a number may be: finite, above 0 or from `least` on, and below `below`."""

    least: float | None = None
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return (value > 0 if self.least is None else value >= self.least) and value < self.below

    def __str__(self) -> str:
        begin = "above 0" if self.least is None else f"from {self.least} on"
        return begin if self.below == math.inf else f"{begin} and below {self.below}"


def bounded(default: Any = None, *, least: float | None = None, below: float = math.inf) -> Any:
    """A field for a number from `least` on, or above 0, and below `below`."""
    return dataclasses.field(default=default, metadata={_BOUNDS: Bounds(least, below)})


def one_of(*choices: str, default: Any = ...) -> Any:
    """A field for one of some texts, or a list of them; by default the first."""
    return dataclasses.field(default=choices[0] if default is ... else default, metadata={_CHOICES: choices})


def bounds_of(field: "dataclasses.Field[Any]") -> Bounds:
    """The bounds of a number that stands in the field."""
    return field.metadata.get(_BOUNDS, Bounds())


def choices_of(field: "dataclasses.Field[Any]") -> tuple[str, ...] | None:
    """The texts that may stand in the field; None where any may."""
    return field.metadata.get(_CHOICES)


def kinds_of(field: "dataclasses.Field[Any]") -> tuple[Any, ...]:
    """The types of what may stand in the field: `int` and `None`'s for `int | None`."""
    return get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
