"""What the six programs share: results with gradients at a place, and what is sent there.

A place is a mesh and a layout; None is no mesh.
"""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.ops.test_meanings import EPS, arrays, assert_same

Place = tuple[str, str] | None


def at_each(*places: Place) -> Any:
    """A test run on one processor and at these places."""
    return pytest.mark.parametrize("place", [("one=1", ""), *places], ids=" ".join)


def values(dims: Any, seed: int, scale: float = 1.0) -> np.ndarray:
    """Floats around zero for dims."""
    sizes = [dim.size for dim in dims]
    return (np.random.default_rng(seed).uniform(-scale, scale, sizes)).astype("float32")


def weights(**dims: Any) -> dict[str, wf.Tensor]:
    """Parameters of these dims, by name."""
    return {name: wf.parameter(values(given, 7 * i + 1, 0.5), given) for i, (name, given) in enumerate(dims.items())}


def total(results: Any) -> Any:
    """One number that every float of the results moves in a way of its own."""
    parts = jax.tree.leaves(results, is_leaf=lambda x: isinstance(x, wf.Tensor))
    return sum(wf.sum(wf.sin(x), over=x.dims) for x in parts if _is_float(x))


def with_gradients(program: Any) -> Any:
    """A function that gives a program's results and the gradients of all floats it is given."""

    def run(*given: Any) -> Any:
        def loss(*given: Any) -> Any:
            results = program(*given)
            return total(results), results

        gradients, results = wf.grad(loss, argnums=tuple(range(len(given))), has_aux=True)(*given)
        return results, gradients

    return run


def outcome(place: Place, program: Any, *given: Any) -> Any:
    """The results and gradients of a program at a place, as arrays."""
    run = with_gradients(program)
    done = jax.jit(run) if place is None else wf.spmd(run, mesh=place[0], layout=place[1])
    return arrays(done(*given))


def plain_outcome(plain: Any, *given: Any) -> Any:
    """The same of a function of plain arrays, given those of these tensors."""
    given = jax.tree.map(lambda x: jnp.asarray(x.array), given, is_leaf=lambda x: isinstance(x, wf.Tensor))
    floats = [i for i, arg in enumerate(given) if all(_is_float(x) for x in jax.tree.leaves(arg))]

    def loss(*given: Any) -> Any:
        results = plain(*given)
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(results) if _is_float(x)), results

    gradients, results = jax.jit(jax.grad(loss, argnums=floats, has_aux=True))(*given)
    found = dict(zip(floats, gradients, strict=True))
    return arrays((results, tuple(found.get(i) for i in range(len(given)))))


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def assert_close(got: Any, want: Any, terms: int) -> None:
    """Sums of `terms` numbers in two orders: each addition rounds by at most eps/2 of a partial sum."""
    assert_same(got, want, (16 + terms) * EPS)


def sends(place: tuple[str, str], program: Any, *args: Any) -> dict[tuple[str, str], int]:
    """How many calls there are of each collective over each axis, those of one number aside."""
    found: Counter[tuple[str, str]] = Counter()
    for row in wf.trace(program, *args, mesh=place[0], layout=place[1]).ledger:
        if row.bytes > np.dtype(row.dtype).itemsize:
            found[row.collective, "+".join(row.axes)] += row.count
    return dict(found)
