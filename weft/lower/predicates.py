"""The booleans that loops and branches go by, and who may differ in them.

No collective may stand under a predicate that differs between processors: some would wait for others that never
come. In a mapped function it may differ from row to row; then all processors do the work of all.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

from ..errors import RegionError, TensorError
from ..graph import visits
from ..layout import Axes, open_region
from ..primitives import Role, kind_of
from ..tensor import is_tensor
from .collectives import from_first, varying


def one_boolean(value: Any, what: str) -> Any:
    """One boolean, agreed on by all processors but for the rows of a mapped function."""
    if is_tensor(value) and value.dims:
        raise TensorError(
            f"{what} got {value!r} for its predicate", fix="give one boolean; `wf.where` chooses elementwise"
        )
    if not is_tensor(value) and not isinstance(value, bool | int | float) and not hasattr(value, "dtype"):
        raise TensorError(
            f"{what} got {value!r} for its predicate", fix="give one boolean, e.g. `wf.any(x > 0, over=...)`"
        )
    array = jnp.asarray(value.local_array if is_tensor(value) else value)
    if array.shape != ():
        raise TensorError(f"{what} got an array of shape {array.shape} for its predicate", fix="give one boolean")
    array = array if array.dtype == bool else array != 0
    differing = varying(array) - taken_axes()
    return from_first(array, tuple(sorted(differing))) if is_tensor(value) and differing else array


def taken_axes() -> frozenset[str]:
    """The axes that the dims of mapped functions around this are split over."""
    return frozenset(region.taken if (region := open_region()) is not None else ())


def differing_by_row(value: Any) -> Axes:
    """The axes over which a predicate differs from row to row of a `vmap`."""
    return tuple(sorted(varying(value) & taken_axes()))


def check_agreed(value: Any, what: str, branches: Sequence[ClosedJaxpr] | None = None) -> None:
    """Raises where processors would deadlock in a loop, or in these branches."""
    differing = varying(value) - taken_axes()
    if differing and (branches is None or any(_ever_sends(closed.jaxpr) for closed in branches)):
        raise RegionError(
            f"{what} has a predicate that differs between processors (over {', '.join(sorted(differing))}) "
            "and a collective under it: some processors would wait for others that never come",
            state=region.state if (region := open_region()) is not None else "",
            fix="make the predicate a tensor that all processors agree on, e.g. `wf.any(x, over=...)`, or use wf.where",
        )


def sends(jaxpr: Any) -> bool:
    """Whether a program has a collective in it."""
    return any(kind_of(visit.eqn) is Role.COLLECTIVE for visit in visits(jaxpr))


def _ever_sends(jaxpr: Any) -> bool:
    """Whether a jaxpr, or its gradient (a constant has none), has a collective in it."""

    def is_summed_back(eqn: Any) -> bool:
        return kind_of(eqn) is Role.VARY and not all(isinstance(var, Literal) for var in eqn.invars)

    return sends(jaxpr) or any(is_summed_back(visit.eqn) for visit in visits(jaxpr))
