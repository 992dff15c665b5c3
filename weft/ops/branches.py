"""Branches over trees of tensors.

Where the predicate differs from row to row of a mapped function, both branches run on all processors and each row
keeps what it chose; all that they close over varies by row before, so that its gradient is each row's own.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..checks import need_function
from ..dims import Shape
from ..errors import TensorError
from ..layout import Axes, Region
from ..leaves import array_of
from ..lower.collectives import as_varying, varying
from ..lower.meet import bring, common_region, with_layout
from ..lower.move import align
from ..lower.predicates import check_agreed, differing_by_row, one_boolean
from ..lower.recorded import bring_in, bringing, recorded_block, retrace
from ..lower.trees import Slot, check_numbers, put_together, slot_of, take_apart
from ..record import BRANCHES
from ..tensor import is_tensor, make
from .debug import only_where, put_after


@recorded_block()
def cond(predicate: Any, on_true: Callable[..., Any], on_false: Callable[..., Any], *operands: Any) -> Any:
    """`on_true(*operands)` if the predicate, one boolean, holds, else `on_false`."""
    for branch in (on_true, on_false):
        need_function(branch, "cond", takes=len(operands))
    chosen = one_boolean(predicate, "cond")
    rows = differing_by_row(chosen)
    with bringing(bring) if rows else contextlib.nullcontext():
        return _branch(chosen, rows, on_true, on_false, operands)


def _branch(chosen: Any, rows: Axes, on_true: Callable[..., Any], on_false: Callable[..., Any], operands: Any) -> Any:
    arrays, slots, structure = take_apart(bring_in(operands))
    arrays = check_numbers(arrays, "the operands of cond")
    branches = [
        _Branch(recorded_block(name=BRANCHES[holds])(fn), is_on, slots, structure)
        for fn, holds, is_on in ((on_true, True, lambda: chosen), (on_false, False, lambda: ~chosen))
    ]
    traced, mark = retrace(lambda: [jax.make_jaxpr(branch)(arrays) for branch in branches], None)
    _check_same(branches)
    region = common_region([leaf for branch in branches for leaf in branch.leaves if is_tensor(leaf)])
    for branch in branches:
        branch.region = region
    if branches[0].slots != branches[1].slots:
        # A new function each: JAX keeps what it has traced.
        traced, _ = retrace(lambda: [jax.make_jaxpr(lambda a, b=b: b(a))(arrays) for b in branches], mark)
    avals = list(zip(*(closed.out_avals for closed in traced), strict=True))
    unions = [varying(a) | varying(b) for a, b in avals]
    for pair in avals:
        if pair[0].dtype != pair[1].dtype or pair[0].shape != pair[1].shape:
            raise TensorError(
                f"the branches of cond give {' and '.join(f'{a.dtype}{list(a.shape)}' for a in pair)}",
                fix=f"cast one: `wf.cast(x, '{pair[0].dtype}')`",
            )

    if rows:
        results = _run_both(chosen, traced, arrays, unions)
    else:
        check_agreed(chosen, "cond", traced)
        if not avals:  # only for what it shows
            chosen = put_after([*arrays, *(const for closed in traced for const in closed.consts)], chosen)
        results = lax.cond(chosen, *(_vary_results(closed, unions) for closed in traced), *arrays)
    slots = [
        replace(a, kind=replace(a.kind, equal=a.kind.equal | b.kind.equal))
        for a, b in zip(branches[0].slots, branches[1].slots, strict=True)
    ]
    return put_together(results, slots, branches[0].structure)


def _vary_results(closed: ClosedJaxpr, axes: Sequence[frozenset[str]]) -> Callable[..., Any]:
    """A branch whose results vary over the axes that those of any branch do."""
    return lambda *arrays: [
        as_varying(array, over) for array, over in zip(jaxpr_as_fun(closed)(*arrays), axes, strict=True)
    ]


def _run_both(
    chosen: Any, branches: Sequence[ClosedJaxpr], arrays: Sequence[Any], axes: Sequence[frozenset[str]]
) -> Any:
    """The results of both branches, of which each row of a mapped function keeps one.

    This is what JAX makes of a mapped `lax.cond`, done where it is known how the branches' values are typed: all
    processors run both branches, so that what they send to each other matches.
    """
    results = []
    for closed, is_on in zip(branches, (chosen, ~chosen), strict=True):
        values = [_guard(array, is_on) for array in (*closed.consts, *arrays)]
        results.append(outputs(closed, values))
    return [
        jnp.where(as_varying(chosen, over), as_varying(a, over), as_varying(b, over))
        for a, b, over in zip(*results, [over | varying(chosen) for over in axes], strict=True)
    ]


def _guard(array: Any, is_on: Any) -> Any:
    """`array`, without the gradient, maybe NaN, from rows that took the other branch."""
    if not jnp.issubdtype(array.dtype, jnp.inexact) or varying(is_on) - varying(array):
        return array
    return jnp.where(as_varying(is_on, varying(array)), array, lax.stop_gradient(array))


def outputs(closed: ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
    """What a program makes of other constants and inputs."""
    count = len(closed.jaxpr.constvars)
    return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, list(values[:count])))(*values[count:])


class _Branch:
    """A branch of `cond` on arrays; its results come to one form with the other's."""

    structure: Any
    leaves: list[Any]
    slots: list[Slot]

    def __init__(self, fn: Callable[..., Any], is_on: Callable[[], Any], slots: Sequence[Slot], structure: Any):
        self.fn, self.is_on, self.operand_slots, self.operand_structure = fn, is_on, slots, structure
        self.region: Region | None = None
        self.order: list[Shape | None] = []

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        with only_where(self.is_on):
            result = bring_in(self.fn(*put_together(arrays, self.operand_slots, self.operand_structure)))
        self.leaves, self.structure = jax.tree.flatten(result, is_leaf=is_tensor)
        if self.order:
            self.leaves = [self._bring(leaf, dims) for leaf, dims in zip(self.leaves, self.order, strict=True)]
        self.slots = [slot_of(leaf) for leaf in self.leaves]
        return check_numbers([array_of(leaf) for leaf in self.leaves], "the result of cond")

    def _bring(self, leaf: Any, dims: Shape | None) -> Any:
        if dims is None:
            return leaf
        leaf = with_layout(leaf, self.region)
        return make(align(leaf.raw, leaf.dims, dims), dims, leaf.region, leaf.kind)


def _check_same(branches: Sequence[_Branch]) -> None:
    first, second = branches
    if first.structure != second.structure:
        raise TensorError(
            f"the branches of cond give different trees: {first.structure} and {second.structure}",
            fix="return the same structure from both",
        )
    for a, b in zip(first.leaves, second.leaves, strict=True):
        if is_tensor(a) != is_tensor(b) or (is_tensor(a) and set(a.dims) != set(b.dims)):
            raise TensorError(
                f"the branches of cond give {a!r} and {b!r}", fix="return tensors of the same dims from both"
            )
    for branch in branches:
        branch.order = [leaf.dims if is_tensor(leaf) else None for leaf in first.leaves]
