"""What the configurations of models let errors about their dims say.

The language knows no model: a model tells here which of its fields makes a dim, and which pads one.
"""

from collections.abc import Mapping

from .dims import Dim

_MULTIPLES: dict[str, str] = {}
_FACTORS: dict[str, tuple[str, Mapping[int, int]]] = {}
_MAKERS: dict[str, str] = {}


def tell_maker(dim: str, field: str) -> None:
    """Lets errors about a dim that is not there name the field that makes one."""
    _MAKERS[dim] = field


def what_makes(rule: str) -> str:
    """The end of a fix: what gives a model the dim of a rule that matches nothing."""
    dim = rule.rpartition(".")[2]
    said = f"`{_MAKERS[dim]}` in its configuration (in a run's file, `[model]`)" if dim in _MAKERS else ""
    return f"; a model has `{dim}` by {said}" if said else ""


def tell_multiple(dim: str, field: str) -> None:
    """Lets errors about a dim that does not divide name the field that pads it."""
    _MULTIPLES[dim] = field


def tell_factors(dim: str, models: str, factors: Mapping[int, int]) -> None:
    """Lets errors about a dim that does not divide say what some models ask besides.

    `factors` says for how many levels of theirs by what its slices must divide too.
    """
    _FACTORS[dim] = models, factors


def how_to_pad(dim: Dim, ways: int) -> str:
    """How a dim is padded that is split so many ways; some models need more."""
    by_field = f"; in a model's configuration `{_MULTIPLES[dim.name]}={ways}`" if dim.name in _MULTIPLES else ""
    if dim.name in _FACTORS:
        models, factors = _FACTORS[dim.name]
        sizes = [f"{-(-dim.size // (ways * n)) * ways * n} with {levels}" for levels, n in factors.items()]
        by_field += f"; for {models} to {', '.join(sizes)} levels"
    return f"`wf.pad_to(x, '{dim.name}', {ways})`{by_field}"
