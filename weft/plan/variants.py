"""The variants of a program that a search chooses among beside layouts.

`choices` name arguments of a function that builds the program: rematerialisation, microbatches, stages. Every
combination is a variant, which needs traces of its own, so one is taken up only where its bound says that it may win:
- a value that only adds work (`is_slower`) where the value before it does not fit, at what that would have taken;
- any other when its work, divided over all processors, takes less than the best so far.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import WeftError, public


@public(form="wf.plan.Choice([False, True], is_slower=True)")
@dataclass(frozen=True)
class Choice:
    """Values of an argument for a search to choose among."""

    values: Sequence[Any]
    is_slower: bool = False
    """Whether a value never makes a step faster than the one before it, under no layout: it only saves memory."""
    needs: str | None = None
    """A dim that all values but the first are for: they are tried only where it is split."""

    def __post_init__(self) -> None:
        if isinstance(self.values, str) or not isinstance(self.values, Sequence) or not self.values:
            raise WeftError(f"a choice has {self.values!r:.60} for values", fix="give a list, e.g. `[False, True]`")


@dataclass
class Variant:
    """One combination of values."""

    number: int
    values: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    after: list[int] = field(default_factory=list)
    """Variants that are as fast under every layout, and need more memory."""

    @property
    def text(self) -> str:
        """The values, as a configuration writes them."""
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


def combine(choices: Mapping[str, Choice | Sequence[Any]]) -> list[Variant]:
    """Every combination of values, those that come first in each choice first.

    >>> [(v.values["remat"], v.after) for v in combine({"remat": Choice([False, True], is_slower=True)})]
    [(False, []), (True, [0])]
    """
    named = {name: each if isinstance(each, Choice) else Choice(each) for name, each in choices.items()}
    places = list(itertools.product(*(range(len(choice.values)) for choice in named.values())))
    places.sort(key=sum)
    numbers = {place: number for number, place in enumerate(places)}
    variants = []
    for number, place in enumerate(places):
        chosen = list(zip(named.items(), place, strict=True))
        values = {name: choice.values[at] for (name, choice), at in chosen}
        needs = tuple(choice.needs for (_, choice), at in chosen if at and choice.needs is not None)
        before = [(*place[:i], at - 1, *place[i + 1 :]) for i, ((_, c), at) in enumerate(chosen) if at and c.is_slower]
        variants.append(Variant(number, values, needs, [numbers[each] for each in before]))
    return variants


def build_with(
    fn: Callable[..., Any], args: tuple[Any, ...], values: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A variant of the program: the function and arguments `fn` returns."""
    built = fn(*args, **values)
    if not (isinstance(built, tuple) and len(built) == 2 and callable(built[0]) and isinstance(built[1], tuple)):
        raise WeftError(
            f"with `choices` the function builds the program, and it returned a {type(built).__name__}",
            state=f"called with {', '.join(f'{name}={value!r}' for name, value in values.items())}",
            fix="return the function to trace and a tuple of its arguments: `return fn, (x, w)`",
        )
    return built
