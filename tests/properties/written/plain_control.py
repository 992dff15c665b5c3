"""The plain language's loops, branches, maps and gradients: those of JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import weft
from tests.properties.written.plain import Named, _is_named, _map, _name


def _as(new: Any, old: Any) -> Any:
    """A tree of named arrays with their axes in the order of another's."""

    def ordered(one: Any, other: Any) -> Any:
        if not _is_named(one):
            return jnp.asarray(one)
        return Named(one.along(other.dims), other.dims)

    return jax.tree.map(ordered, new, old, is_leaf=_is_named)


def _without(x: Named, name: str) -> tuple[weft.Dim, ...]:
    return tuple(d for d in x.dims if d.name != name)


def vmap(fn: Callable[..., Any], *, over: Any) -> Callable[..., Any]:
    name = _name(over)

    def mapped(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args, is_leaf=_is_named)
        dim = next(x.dims[x.axis(name)] for x in leaves if _is_named(x) and name in x.names)
        axes = [x.axis(name) if _is_named(x) and name in x.names else None for x in leaves]

        def row(*arrays: Any) -> Any:
            rows = [Named(a, _without(x, name)) if _is_named(x) else a for a, x in zip(arrays, leaves, strict=True)]
            return fn(*jax.tree.unflatten(structure, rows))

        arrays = [x.array if _is_named(x) else jnp.asarray(x) for x in leaves]
        return _map(lambda y: Named(y.array, (dim, *y.dims)), jax.vmap(row, axes)(*arrays))

    return mapped


def scan(fn: Any, carry: Any, xs: Any = None, *, over: Any, reverse: bool = False, unroll: Any = 1) -> Any:
    name = _name(over)
    leaves, structure = jax.tree.flatten(xs, is_leaf=_is_named)
    dim = leaves[0].dims[leaves[0].axis(name)] if leaves else over
    arrays = [jnp.moveaxis(x.array, x.axis(name), 0) for x in leaves]

    def turn(carry: Any, rows: Any) -> Any:
        row = jax.tree.unflatten(structure, [Named(a, _without(x, name)) for a, x in zip(rows, leaves, strict=True)])
        after, made = fn(carry, row)
        return _as(after, carry), made

    last, made = lax.scan(turn, carry, arrays, length=dim.size, reverse=reverse)
    return last, _map(lambda y: Named(y.array, (dim, *y.dims)), made)


def _boolean(x: Any) -> Any:
    return x.array if _is_named(x) else x


def while_loop(condition: Any, body: Any, carry: Any) -> Any:
    return lax.while_loop(lambda c: _boolean(condition(c)), lambda c: _as(body(c), c), carry)


def fori_loop(lower: Any, upper: Any, body: Any, carry: Any) -> Any:
    bounds = [_boolean(x) for x in (lower, upper)]
    return lax.fori_loop(*bounds, lambda i, c: _as(body(i, c), c), carry)


def cond(predicate: Any, on_true: Any, on_false: Any, *operands: Any) -> Any:
    like = jax.eval_shape(on_true, *operands)
    return lax.cond(_boolean(predicate), on_true, lambda *xs: _as(on_false(*xs), like), *operands)


def remat(fn: Any, *, save: Any = ()) -> Any:
    return jax.checkpoint(fn)


def accumulate(fn: Any, params: Any, data: Any, *, over: Any = "batch", count: int) -> Named:
    name, total, weight = _name(over), 0.0, 0.0
    for i in range(count):

        def dealt(x: Named, i: int = i) -> Named:
            if name not in x.names:
                return x
            return x.like(x.array[tuple(slice(i, None, count) if n == name else slice(None) for n in x.names)])

        one, other = (jnp.asarray(_boolean(part), "float32") for part in fn(params, _map(dealt, data)))
        total, weight = total + one, weight + other
    return Named(total / weight, ())


class custom_vjp:
    def __init__(self, fn: Any):
        self.run = jax.custom_vjp(fn)

    def defvjp(self, forward: Any, backward: Any) -> None:
        def ordered(kept: Any, gradient: Any) -> Any:
            args, rest = kept
            gradients = backward(rest, gradient)
            return tuple(None if g is None else _as(g, x) for g, x in zip(gradients, args, strict=True))

        def keeping(*args: Any) -> Any:
            result, kept = forward(*args)
            return result, (args, kept)

        self.run.defvjp(keeping, ordered)

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)


def grad(fn: Any) -> Any:
    """The gradient by the first argument."""

    def run(x: Named, *more: Any) -> Named:
        return Named(jax.grad(lambda a: fn(Named(a, x.dims), *more).array)(x.array), x.dims)

    return run


def local(fn: Any, *xs: Named, out: Any, whole: Any = (), summed: Any = ()) -> Named:
    known = {d.name: d for x in xs for d in x.dims}
    return Named(fn(*(x.array for x in xs)), tuple(known[n] if isinstance(n, str) else n for n in out))
