"""A function of slices, traced without the types of what varies.

Inside a region JAX types every value with the axes it varies over. A function written for plain arrays may be
refused there: a loop whose carry begins as a constant, a Pallas kernel whose results are plain shapes. Such a
function is traced apart and stands in the program as one call, whose results vary over whatever its operands do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from ..compat import with_variation_of, without_variation
from .collectives import as_varying, varying

local_call = Primitive("local_call")
local_call.multiple_results = True


def call_unchecked(fn: Callable[..., Any], *arrays: Any) -> Any:
    """`fn(*arrays)`, a tree, traced apart; differentiable backwards as often as `fn`."""
    traced, structure, closed_over = _trace(fn, arrays)
    operands = [*closed_over, *arrays]
    over = frozenset[str]().union(*map(varying, operands))
    # Each operand varies over all axes before the call, so that its gradient comes back with that type, to be summed.
    return jax.tree.unflatten(structure, _make_differentiable(traced)(*(as_varying(x, over) for x in operands)))


def _trace(fn: Callable[..., Any], arrays: Sequence[Any]) -> tuple[ClosedJaxpr, Any, list[Any]]:
    """The jaxpr of `fn`, the tree of its result, and what it closes over.

    The jaxpr is a function of what is closed over and of the arrays.
    """
    plain = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=jax.typeof(x).weak_type) for x in map(jnp.asarray, arrays)
    ]
    with without_variation():
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*plain)
        jaxpr = closed.jaxpr.replace(constvars=[], invars=[*closed.jaxpr.constvars, *closed.jaxpr.invars])
    return ClosedJaxpr(jaxpr, ()), jax.tree.structure(shapes), list(closed.consts)


def _make_differentiable(traced: ClosedJaxpr) -> Callable[..., list[Any]]:
    """The call of a traced function; its gradient is such a call of its gradient."""
    run = jaxpr_as_fun(traced)
    is_float = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in traced.in_avals]
    gives_float = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in traced.out_avals]
    residual_structures: list[Any] = []

    @jax.custom_vjp
    def call(*operands: Any) -> list[Any]:
        return local_call.bind(*operands, jaxpr=traced)

    def forward(*operands: Any) -> tuple[list[Any], list[Any]]:
        def run_and_keep(*operands: Any) -> tuple[list[Any], list[Any]]:
            def of_floats(*floats: Any) -> tuple[list[Any], list[Any]]:
                left = iter(floats)
                results = run(*(next(left) if is_one else x for x, is_one in zip(operands, is_float, strict=True)))
                return _choose(results, gives_float), results

            _, pull_back, results = jax.vjp(of_floats, *_choose(operands, is_float), has_aux=True)
            residuals, structure = jax.tree.flatten(pull_back)
            residual_structures[:] = [structure]
            return results, residuals

        return call_unchecked(run_and_keep, *operands)

    def backward(residuals: Sequence[Any], gradients: Sequence[Any]) -> tuple[Any, ...]:
        def pull_back(*arrays: Any) -> Any:
            pull = jax.tree.unflatten(residual_structures[0], arrays[: len(residuals)])
            return pull(list(arrays[len(residuals) :]))

        found = iter(call_unchecked(pull_back, *residuals, *_choose(gradients, gives_float)))
        return tuple(next(found) if is_one else None for is_one in is_float)

    call.defvjp(forward, backward)
    return call


def _choose(values: Sequence[Any], are_chosen: Sequence[bool]) -> list[Any]:
    return [value for value, is_chosen in zip(values, are_chosen, strict=True) if is_chosen]


@local_call.def_impl
def _run(*operands: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    return jax.jit(jaxpr_as_fun(jaxpr))(*operands)


@local_call.def_effectful_abstract_eval
def _type(*operands: Any, jaxpr: ClosedJaxpr) -> tuple[list[Any], Any]:
    if not operands:
        return list(jaxpr.out_avals), jaxpr.effects
    like = operands[0]  # all vary over the same axes

    def retype(aval: Any) -> Any:
        sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*(None,) * aval.ndim))
        return with_variation_of(aval, like, sharding)

    return [retype(aval) for aval in jaxpr.out_avals], jaxpr.effects


def _lower(ctx: Any, *operands: Any, jaxpr: ClosedJaxpr) -> Any:
    plain = ctx.replace(avals_in=jaxpr.in_avals, avals_out=jaxpr.out_avals)
    with without_variation():
        return mlir.lower_fun(jaxpr_as_fun(jaxpr), multiple_results=True)(plain, *operands)


mlir.register_lowering(local_call, _lower)


def _map(operands: Sequence[Any], positions: Sequence[Any], *, jaxpr: ClosedJaxpr) -> tuple[list[Any], list[int]]:
    mapped = jax.vmap(jaxpr_as_fun(jaxpr), in_axes=tuple(positions))
    results = call_unchecked(mapped, *operands)
    return results, [0] * len(results)


batching.primitive_batchers[local_call] = _map
