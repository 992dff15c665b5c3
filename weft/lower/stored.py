"""Stored parameters (FSDP): gathered where they are used, gradients scattered.

A parameter that several ops use is gathered for each of them, so that none keeps it whole; the gradients of all uses
meet before they are scattered, once.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..compat import is_differentiated
from ..layout import Placement, Region
from ..record import operand_scope
from ..tensor import Kind, Tensor, placement
from . import collectives, sums
from .collectives import as_varying, level_of, varying
from .move import relocate


def is_stored(x: Tensor, want: Placement) -> bool:
    """Whether a tensor lies as it is stored, which is not how it is wanted."""
    return x.kind.store is not None and x.region is not None and placement(x) != want


def hoist(x: Tensor, key: Any, make: Callable[[], Any]) -> Any:
    """What `make` makes of `x`, once, where `x` was made: before a loop that uses it."""
    if not is_kept(x):
        return make()
    if key not in x._memo:
        with level_of(x.raw):
            x._memo[key] = make()
    return x._memo[key]


def is_kept(x: Tensor) -> bool:
    """Whether what is made of `x` can be kept: a whole constant may be from outside."""
    return x.region is not None and isinstance(x.raw, jax.core.Tracer)


def as_operand(x: Tensor, want: Placement, over: frozenset[str], vary: Callable[[], Any]) -> Any:
    """What stands for a stored parameter among an op's arrays: its slice, or a pair.

    Where it is differentiated by, the gradients of all its uses meet in the second of the pair, which is never computed
    with: the first has none. `vary()` is the slice, varying as all that is done with it does.
    """
    have = placement(x)
    leaving = set().union(*have) - set().union(*want)
    is_gathered = all(stored[: len(whole)] == whole for stored, whole in zip(have, want, strict=True))
    if not is_gathered or not leaving & over or not is_differentiated(x.raw):
        return x.raw
    return hoist(x, ("uses", want, over), lambda: (lax.stop_gradient(x.raw), _join_gradients(x, want, over, vary)))


def _join_gradients(x: Tensor, want: Placement, over: frozenset[str], vary: Callable[[], Any]) -> Any:
    """Zeros in the form of the gathered parameter, whose gradient is scattered to it."""
    assert x.region is not None
    have, sizes = placement(x), x.region.local_sizes(x.dims, want)
    dtype = x.raw.dtype if x.kind.cast_to is None else x.kind.cast_to
    own = vary() if x.kind.sums is None else x.raw  # sums that travel as asked are made here
    missing = over - varying(own)

    def zeros(array: Any) -> Any:
        return as_varying(jnp.zeros(sizes, dtype), varying(array) | over)

    @jax.custom_vjp
    def joined(array: Any) -> Any:
        return zeros(array)

    def backward(like: Any, gradient: Any) -> Any:
        return (_reduce_scatter(gradient, missing, have, want, x.kind.sums).astype(like.dtype),)

    joined.defvjp(lambda array: (zeros(array), jnp.zeros((0,), array.dtype)), backward)
    return joined(own)


def gather_stored(operand: Any, *, x: Tensor, i: int, want: Placement, region: Region, over: frozenset[str]) -> Any:
    """A stored parameter, operand `i` of an op, whole where the op needs it so."""
    with operand_scope(i):
        if not isinstance(operand, tuple):
            return _gather_whole(operand, x, want, region, over)

        def whole(array: Any) -> Any:
            cast = array if x.kind.cast_to is None else array.astype(x.kind.cast_to)
            return relocate(as_varying(cast, over), placement(x), want, region)

        @jax.custom_vjp
        def used(array: Any, joined: Any) -> Any:
            return whole(array)

        used.defvjp(lambda array, joined: (whole(array), None), lambda _, gradient: (None, gradient))
        return used(*operand)


def _gather_whole(array: Any, x: Tensor, want: Placement, region: Region, over: frozenset[str]) -> Any:
    have = placement(x)
    leaving = set().union(*have) - set().union(*want)
    if not leaving & over:
        # All processors do the same with it: its gradient is a slice of what each of them has.
        if x.kind.sums is None:
            return relocate(as_varying(array, over), have, want, region, collectives.all_gather_equal)
        equal = relocate(array, have, want, region, collectives.all_gather_equal)
        return sum_in(lambda a: as_varying(a, over), x.kind, over - varying(equal))(equal)

    def whole(array: Any) -> Any:
        # Varying first: its gradient is then scattered before what is left of it is summed over other axes.
        return relocate(as_varying(array, over), have, want, region)

    if x.kind.sums is None:
        return whole(array)
    return sum_in(whole, x.kind, over - varying(array), scatter=(have, want))(array)


def sum_in(
    forward: Callable[[Any], Any], kind: Kind, missing: frozenset[str], scatter: tuple[Any, ...] | None = None
) -> Callable[[Any], Any]:
    """`forward` of the cast array, whose gradient is summed in `kind.sums`.

    Over the axes `missing`; scattered from one placement to another where the array was stored.
    """

    def cast(array: Any) -> Any:
        return array if kind.cast_to is None else array.astype(kind.cast_to)

    @jax.custom_vjp
    def adopt(array: Any) -> Any:
        return forward(cast(array))

    def keep(array: Any) -> Any:
        return forward(cast(array)), jnp.zeros((0,), array.dtype)

    def backward(like: Any, gradient: Any) -> Any:
        if scatter is None:
            total = sums.all_reduce(gradient, tuple(sorted(missing)), kind.sums)
        else:
            total = _reduce_scatter(gradient, missing, *scatter, kind.sums)
        return (total.astype(like.dtype),)

    adopt.defvjp(keep, backward)
    return adopt


def _reduce_scatter(total: Any, missing: frozenset[str], have: Placement, want: Placement, dtype: Any) -> Any:
    dtype = total.dtype if dtype is None else dtype
    for position, (stored, whole) in enumerate(zip(have, want, strict=True)):
        if stored != whole:
            total = sums.reduce_scatter(total, stored[len(whole) :], position, dtype)
    return sums.all_reduce(total, tuple(sorted(missing & varying(total))), dtype)
