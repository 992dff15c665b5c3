"""Stored parameters (FSDP): gathered where they are used, gradients scattered.

A parameter that several ops use is gathered for each of them, so that none keeps it whole; the gradients of all uses
meet before they are scattered, once. One that lies in the memory of the host (offload) is fetched for each of them in
the same way: a stand-in of its form in the processors' memory, never computed with, takes the gradients of all uses,
and the sum goes to the host, once. No arithmetic is done on the host.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..compat import is_differentiated, is_on_host, to_device, to_host
from ..layout import Placement, Region
from ..record import operand_scope
from ..tensor import Kind, Tensor, make, marks_of, placement, with_kind, with_marks
from . import collectives, sums
from .collectives import as_varying, level_of, varying
from .move import relocate


def is_stored(x: Tensor, want: Placement) -> bool:
    """Whether a tensor lies as it is stored, or where, which is not how it is wanted."""
    if x.region is None:
        return False
    return (x.kind.store is not None and placement(x) != want) or is_on_host(x.raw)


class OnHost(NamedTuple):
    """What stands among an op's arrays for a parameter that lies on the host."""

    array: Any
    """Its slice there, which has no gradient."""
    stand_in: Any
    """What takes its gradient: `as_operand` of `stand_in`, or a pair where it is wanted as it is stored."""


def stand_in(x: Tensor) -> Tensor:
    """What takes the gradients of `x`: `x` itself, unless it lies on the host.

    Zeros in its form in the processors' memory, made once, where `x` was.
    """
    if not is_on_host(x.raw) or not jnp.issubdtype(x.raw.dtype, jnp.inexact):
        return x

    def make_zeros() -> Any:
        def zeros(array: Any) -> Any:
            return as_varying(jnp.zeros(array.shape, array.dtype), varying(array))

        @jax.custom_vjp
        def standing_in(array: Any) -> Any:
            return zeros(array)

        standing_in.defvjp(lambda array: (zeros(array), None), lambda _, gradient: (to_host(gradient),))
        return standing_in(x.raw)

    def make_tensor() -> Tensor:
        array, kind = hoist(x, "stand-in", make_zeros), x.kind
        if kind.cast_to is not None and kind.sums is None:
            array, kind = array.astype(kind.cast_to), replace(kind, cast_to=None)
        return make(array, x.dims, x.region, kind)

    return hoist(x, "stand-in tensor", make_tensor)


def cast_on_host(x: Tensor, dtype: Any) -> Tensor:
    """`x`, which lies on the host, cast where it is fetched."""
    cast = with_kind(x, cast_to=dtype)
    if is_kept(x) and stand_in(x) is not x:
        cast._memo["stand-in"] = x._memo["stand-in"]
    return cast


def fetch_whole(x: Tensor) -> Tensor:
    """`x` in the processors' memory, stored as it was: for ops that need it there."""
    if x.region is None or not is_on_host(x.raw):
        return x
    lies = stand_in(x)
    if lies is x:
        return with_marks(make(to_device(x.raw), x.dims, x.region, x.kind), marks_of(x))
    array = _fetch(OnHost(lax.stop_gradient(x.raw), lies.raw))
    return with_marks(make(array, x.dims, x.region, lies.kind), marks_of(x))


def _fetch(operand: OnHost) -> Any:
    """The slice in the processors' memory, whose gradient goes to the stand-in."""

    @jax.custom_vjp
    def fetch(array: Any, stand_in: Any) -> Any:
        return to_device(array).astype(stand_in.dtype)

    def keep(array: Any, stand_in: Any) -> Any:
        return fetch(array, stand_in), None

    fetch.defvjp(keep, lambda _, gradient: (None, gradient))
    return fetch(*operand)


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


def as_operand_on_host(x: Tensor, lies: Tensor, want: Placement, over: frozenset[str], vary: Callable[[], Any]) -> Any:
    """As `as_operand`, of a parameter on the host whose stand-in is `lies`."""
    taker = (None, vary()) if placement(x) == want else as_operand(lies, want, over, vary)
    return OnHost(lax.stop_gradient(x.raw), taker)


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
    def join(array: Any) -> Any:
        return zeros(array)

    def backward(like: Any, gradient: Any) -> Any:
        return (_reduce_scatter(gradient, missing, have, want, x.kind.sums).astype(like.dtype),)

    join.defvjp(lambda array: (zeros(array), jnp.zeros((0,), array.dtype)), backward)
    return join(own)


def gather_stored(operand: Any, *, x: Tensor, i: int, want: Placement, region: Region, over: frozenset[str]) -> Any:
    """A stored parameter, operand `i` of an op, whole where the op needs it so.

    Of one that lies on the host `x` is its stand-in.
    """
    with operand_scope(i):
        if isinstance(operand, OnHost):
            is_pair = isinstance(operand.stand_in, tuple)
            operand = (operand.array, operand.stand_in[1]) if is_pair else _fetch(operand)
        if not isinstance(operand, tuple):
            return _gather_whole(to_device(operand), x, want, region, over)

        def whole(array: Any) -> Any:
            to = x.kind.cast_to or (x.raw.dtype if is_on_host(array) else None)
            cast = to_device(array) if to is None else to_device(array).astype(to)
            return relocate(as_varying(cast, over), placement(x), want, region)

        @jax.custom_vjp
        def use(array: Any, joined: Any) -> Any:
            return whole(array)

        use.defvjp(lambda array, joined: (whole(array), None), lambda _, gradient: (None, gradient))
        return use(*operand)


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
    forward: Callable[[Any], Any],
    kind: Kind,
    missing: frozenset[str],
    scatter: tuple[Placement, Placement] | None = None,
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
