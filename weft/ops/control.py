"""Loops and branches over trees of tensors.

A carry made without a layout adopts the one its loop gives it. What a body closes over is made to vary before the
loop, so its gradient is summed once, after it. No collective may stand under a predicate that differs between
processors: some would wait for others that never come.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun, jaxprs_in_params

from ..dims import Dim, Shape, listed, resolve
from ..errors import DimError, LayoutError, RegionError, TensorError
from ..layout import Axes, Region, open_region
from ..tensor import Tensor, checked, is_tensor, make, marked, marks_of, placement
from .collectives import PRIMITIVES, all_max, as_varying, from_first, varying
from .elementwise import aligned
from .index import only
from .meet import brought, common_region, need_function, need_tensor, operand, rematted, with_layout
from .move import settle
from .padding import need_no_padding
from .recorded import bring_in, bringing, forgetting, note_loop, part_of_block, recorded_block
from .trees import Slot, map_tensors, numbers, put_together, slot_of, take_apart


@recorded_block
def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    *,
    over: Any,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """`fn(carry, x)` for each `x` along the dim `over` in turn; gives the last carry and all results, stacked."""
    need_function(fn, "scan", takes=2)
    if not isinstance(unroll, int) or unroll < 1:
        raise TensorError(f"scan got unroll={unroll!r}", fix="give a whole number of turns, or True")
    tensors = [leaf for leaf in jax.tree.leaves(xs, is_leaf=is_tensor) if is_tensor(leaf)]
    dim = _scanned_dim(over, tensors)
    need_no_padding([dim], "scan")
    note_loop(dim.size, dim.name)
    inputs, slots, structure = take_apart(_along(xs, dim))
    inner = [slot.inner(dim, slot.region) for slot in slots]

    def body(carry: Any, arrays: Sequence[Any]) -> tuple[Any, Any]:
        result = fn(carry, put_together(arrays, inner, structure))
        if not isinstance(result, tuple) or len(result) != 2:
            raise TensorError(
                f"the function scanned returned {type(result).__name__}", fix="return `(carry, result)`; None will do"
            )
        return result

    loop = _Loop(body, carry, "scan", lambda trace: sliced(trace, inputs))
    last, stacked = lax.scan(loop.step, loop.carry, inputs, length=dim.size, reverse=reverse, unroll=unroll)
    outputs = [_stacked(slot, array, dim) for slot, array in zip(loop.extra_slots, stacked, strict=True)]
    return put_together(last, loop.slots, loop.structure), jax.tree.unflatten(loop.extra_structure, outputs)


def _scanned_dim(over: Any, tensors: Sequence[Tensor]) -> Dim:
    names = listed(over, "over")
    if not tensors and len(names) == 1 and isinstance(names[0], Dim):
        return names[0]
    if not tensors:
        raise DimError(
            f"scan goes over {over!r} with nothing to go along", fix="give the dim itself: `wf.Dim('steps', 8)`"
        )
    return only(resolve(over, tensors[0].dims, what="over"), "scan")


def _along(xs: Any, dim: Dim) -> Any:
    """The inputs of a scan with `dim` first; it must be whole."""

    def first(x: Tensor) -> Tensor:
        x, marks = checked(x), marks_of(x)
        dims = Shape([x.dims.find(dim), *x.dims.without([dim])])
        if x._region is not None and x._region.placement(x.dims)[x.dims.position(dim)]:
            axes = "+".join(x._region.placement(x.dims)[x.dims.position(dim)])
            raise LayoutError(
                f"scan goes over `{dim.name}` in turn, and `{dim.name}` is split over `{axes}`",
                state=x._region.state,
                fix=f"rename it to an unsplit dim first (`x.rename({dim.name}='{dim.name}_whole')`), "
                f"drop `{dim.name}:{axes}`, or use `wf.associative_scan`",
            )
        if placement(x)[x.dims.position(dim)]:  # a parameter stored split along it
            x = with_layout(x, x._region)
        return marked(make(aligned(x._array, x.dims, dims), dims, x._region, x._kind), marks)

    for leaf in jax.tree.leaves(xs, is_leaf=is_tensor):
        need_tensor(leaf, "scan")
    return map_tensors(first, xs)


def sliced(trace: Callable[..., Any], inputs: Sequence[Any]) -> ClosedJaxpr:
    """The body traced on one slice of each input, taken where it leaves nothing behind."""
    found = []

    def take_and_trace(inputs: Sequence[Any]) -> list[Any]:
        found.append(trace([lax.index_in_dim(x, 0, 0, keepdims=False) for x in inputs]))
        return []

    jax.make_jaxpr(take_and_trace)(inputs)
    return found[0]


def _stacked(slot: Slot, array: Any, dim: Dim) -> Any:
    if slot.dims is None:
        return make(array, (dim,), None) if getattr(array, "ndim", 0) == 1 else array
    dims = Shape([dim, *slot.dims])
    if slot.region is None or slot.kind.store is not None:
        return make(array, dims, slot.region, slot.kind)
    return settle(array, dims, ((), *slot.region.placement(slot.dims)), slot.region)


class _Loop:
    """A loop's body, traced on a carry of the type that it gives back."""

    def __init__(self, body: Callable[..., Any], carry: Any, what: str, with_inputs: Callable[..., ClosedJaxpr]):
        arrays, slots, self.structure = take_apart(carry)
        self.slots = [replace(slot, marks={}) for slot in slots]  # what holds before the first turn may not after it
        self.carry = numbers(arrays, f"the carry of {what}")
        self.what = what
        mark: int | None = None
        for _ in range(16):
            closed, mark = forgetting(
                lambda: with_inputs(lambda *inputs: jax.make_jaxpr(self._flat(body))(self.carry, *inputs)), mark
            )
            if self._is_fixed(closed):
                break
        else:
            raise AssertionError("the type of a carry did not settle")
        self.closed = closed
        run = jaxpr_as_fun(closed)
        count = len(self.carry)

        def step(carry: Sequence[Any], *inputs: Any) -> tuple[list[Any], list[Any]]:
            results = run(*carry, *jax.tree.leaves(inputs))
            return list(results[:count]), list(results[count:])

        self.step = step

    def _flat(self, body: Callable[..., Any]) -> Callable[..., Any]:
        def flat(arrays: Sequence[Any], *inputs: Any) -> tuple[list[Any], list[Any]]:
            with rematted(False):
                carry, extra = body(put_together(arrays, self.slots, self.structure), *inputs)
            leaves, structure = jax.tree.flatten(carry, is_leaf=is_tensor)
            if structure != self.structure:
                raise TensorError(
                    f"the carry of {self.what} enters as {self.structure} and leaves as {structure}",
                    fix="return a carry of the same structure",
                )
            self.found = [self._conformed(leaf, slot) for leaf, slot in zip(leaves, self.slots, strict=True)]
            extra_arrays, self.extra_slots, self.extra_structure = take_apart(extra)
            results = [
                as_varying(jnp.asarray(_array(leaf)), varying(array))
                for leaf, array in zip(self.found, arrays, strict=True)
            ]
            return results, numbers(extra_arrays, f"the results of {self.what}")

        return flat

    def _conformed(self, leaf: Any, slot: Slot) -> Any:
        if (slot.dims is None) == is_tensor(leaf) or (slot.dims is not None and set(slot.dims) != set(leaf.dims)):
            enters = "a plain value" if slot.dims is None else f"[{slot.dims}]"
            leaves = f"[{leaf.dims}]" if is_tensor(leaf) else "a plain value"
            raise TensorError(
                f"the carry of {self.what} enters as {enters} and leaves as {leaves}",
                fix="start it with the dims it leaves with, or broadcast or sum it in the body",
            )
        if not is_tensor(leaf):
            return leaf
        if leaf._region is None or replace(leaf._kind, equal=frozenset()) != replace(slot.kind, equal=frozenset()):
            leaf = with_layout(leaf, leaf._region or slot.region)
        assert slot.dims is not None
        kind = replace(leaf._kind, equal=leaf._kind.equal | slot.kind.equal)
        return make(aligned(leaf._array, leaf.dims, slot.dims), slot.dims, leaf._region, kind)

    def _is_fixed(self, closed: ClosedJaxpr) -> bool:
        """Whether the carry's type came back; if not, the carry adopts what did."""
        is_fixed = True
        for i, (leaf, aval) in enumerate(zip(self.found, closed.out_avals, strict=False)):
            slot, array = self.slots[i], self.carry[i]
            if slot.dims is not None and slot_of(leaf) != slot:
                adopted = with_layout(slot.filled(array), leaf._region) if leaf._kind.is_plain else slot.filled(array)
                self.slots[i], self.carry[i], is_fixed = slot_of(leaf), adopted._array, False
                continue
            if aval.dtype != array.dtype:
                if not jax.typeof(array).weak_type:
                    name = f"[{slot.dims}]" if slot.dims is not None else "a plain value"
                    raise TensorError(
                        f"the carry of {self.what}, {name}, enters as {array.dtype} and leaves as {aval.dtype}",
                        fix=f"start it as {aval.dtype}, or cast it in the body: `wf.cast(x, '{array.dtype}')`",
                    )
                self.carry[i], is_fixed = lax.convert_element_type(array, aval.dtype), False
            elif aval.shape != array.shape:
                raise TensorError(
                    f"the carry of {self.what} enters with shape {array.shape} and leaves with {aval.shape}",
                    fix="keep its shape",
                )
            elif missing := aval.manual_axis_type.varying - varying(array):
                self.carry[i], is_fixed = as_varying(array, missing), False
        return is_fixed


def _array(leaf: Any) -> Any:
    return leaf._array if is_tensor(leaf) else leaf


@recorded_block
def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], carry: Any) -> Any:
    """`body` of the carry for as long as the condition, one boolean, holds; has no reverse gradient."""
    need_function(condition, "while_loop")
    need_function(body, "while_loop")
    loop, mark = forgetting(lambda: _While(condition, body, carry), None)
    if rows := _differing_by_row(loop.asked.out_avals[0]):
        with bringing(brought):  # all that the loop makes differs by row, as the number of its turns does
            loop, _ = forgetting(lambda: _While(condition, body, _by_row(carry)), mark)
    if rows and (_sends(loop.asked.jaxpr) or _sends(loop.closed.jaxpr)):
        last = _turned_together(loop.holds, loop.turn, loop.carry, rows)
    else:
        last = lax.while_loop(loop.holds, loop.turn, loop.carry)
    return put_together(last, loop.slots, loop.structure)


class _While(_Loop):
    """The body and the condition of a while loop, traced on a carry of the type that the body gives back."""

    def __init__(self, condition: Callable[[Any], Any], body: Callable[[Any], Any], carry: Any):
        super().__init__(lambda carry: (body(carry), ()), carry, "while_loop", lambda trace: trace())

        def ask(arrays: Sequence[Any]) -> Any:
            array = _predicate(condition(put_together(arrays, self.slots, self.structure)), "while_loop")
            _check_agreed(array, "while_loop")
            return array

        self.asked = jax.make_jaxpr(ask)(self.carry)

    def holds(self, arrays: Sequence[Any]) -> Any:
        return jaxpr_as_fun(self.asked)(*arrays)[0]

    def turn(self, arrays: Sequence[Any]) -> list[Any]:
        return self.step(arrays)[0]


def _by_row(carry: Any) -> Any:
    """A carry each part of which may differ from row to row of a mapped function."""

    def vary(leaf: Any) -> Any:
        return leaf if is_tensor(leaf) else as_varying(jnp.asarray(leaf), taken_axes())

    leaves, structure = jax.tree.flatten(bring_in(carry), is_leaf=is_tensor)
    return jax.tree.unflatten(structure, map(vary, leaves))


_TURNED_TOGETHER = "because rows split over {axes} end the loop at different turns, and all turn until the last does"


def _turned_together(holds: Callable[..., Any], turn: Callable[..., Any], carry: Any, rows: Axes) -> Any:
    """The last carry of a mapped loop that all processors turn equally often, for what they send to each other in it.

    It turns until it is done for every row of every processor; a row for which it is done stays as it is.
    """

    def turn_all(state: Any) -> Any:
        carry, is_on = state
        carry = [
            jnp.where(as_varying(is_on, varying(new)), new, old) for new, old in zip(turn(carry), carry, strict=True)
        ]
        return carry, holds(carry)

    def any_holds(state: Any) -> Any:
        region = open_region()
        assert region is not None
        with region.record.op("any", reason=_TURNED_TOGETHER):
            return all_max(state[1], rows)

    return lax.while_loop(any_holds, turn_all, (carry, holds(carry)))[0]


@recorded_block
def fori_loop(lower: Any, upper: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """`body(i, carry)` for i, a plain number, from `lower` up to `upper`.

    Differentiable if both bounds are Python integers.
    """
    need_function(body, "fori_loop")
    for bound in (lower, upper):
        dtype = getattr(operand(bound, "fori_loop"), "dtype", None)
        if is_tensor(bound) and bound.dims:
            raise TensorError(f"fori_loop got {bound!r} for a bound", fix="give one whole number")
        if (dtype is None and not isinstance(bound, int)) or (
            dtype is not None and not jnp.issubdtype(dtype, jnp.integer)
        ):
            raise TensorError(f"fori_loop got the bound {bound!r}", fix="give whole numbers")
    if isinstance(lower, int) and isinstance(upper, int):
        if upper <= lower:
            return carry
        steps = Dim("step", upper - lower)
        count = make(jnp.arange(lower, upper, dtype="int32"), (steps,), None)
        return scan(lambda c, i: (body(i._array, c), None), carry, count, over=steps)[0]

    def turn(state: Any) -> Any:
        i, carry = state
        with part_of_block():
            following = i + 1
        return following, body(i.local_array, carry)

    def is_below(state: Any) -> Any:
        with part_of_block():
            return state[0] < bounds[1]

    bounds = [b if is_tensor(b) else make(jnp.asarray(b), (), None) for b in (lower, upper)]
    return while_loop(is_below, turn, (bounds[0], carry))[1]


@recorded_block
def cond(predicate: Any, on_true: Callable[..., Any], on_false: Callable[..., Any], *operands: Any) -> Any:
    """`on_true(*operands)` if the predicate, one boolean, holds; else `on_false(*operands)`."""
    need_function(on_true, "cond")
    need_function(on_false, "cond")
    chosen = _predicate(predicate, "cond")
    rows = _differing_by_row(chosen)
    with bringing(brought) if rows else contextlib.nullcontext():
        return _branched(chosen, rows, on_true, on_false, operands)


def _branched(chosen: Any, rows: Axes, on_true: Callable[..., Any], on_false: Callable[..., Any], operands: Any) -> Any:
    arrays, slots, structure = take_apart(bring_in(operands))
    arrays = numbers(arrays, "the operands of cond")
    branches = [
        _Branch(recorded_block(fn, name), slots, structure)
        for fn, name in ((on_true, "on_true"), (on_false, "on_false"))
    ]
    traced, mark = forgetting(lambda: [jax.make_jaxpr(branch)(arrays) for branch in branches], None)
    _check_same(branches)
    region = common_region([leaf for branch in branches for leaf in branch.leaves if is_tensor(leaf)])
    for branch in branches:
        branch.region = region
    if branches[0].slots != branches[1].slots:
        # A new function each: JAX keeps what it has traced.
        traced, _ = forgetting(lambda: [jax.make_jaxpr(lambda a, b=b: b(a))(arrays) for b in branches], mark)
    avals = list(zip(*(closed.out_avals for closed in traced), strict=True))
    unions = [a.manual_axis_type.varying | b.manual_axis_type.varying for a, b in avals]
    for pair in avals:
        if pair[0].dtype != pair[1].dtype or pair[0].shape != pair[1].shape:
            raise TensorError(
                f"the branches of cond give {' and '.join(f'{a.dtype}{list(a.shape)}' for a in pair)}",
                fix=f"cast one: `wf.cast(x, '{pair[0].dtype}')`",
            )

    if rows:
        results = _both(chosen, traced, arrays, unions)
    else:
        _check_agreed(chosen, "cond", traced)
        results = lax.cond(chosen, *(_retyped(closed, unions) for closed in traced), *arrays)
    slots = [_joined(a, b) for a, b in zip(branches[0].slots, branches[1].slots, strict=True)]
    return put_together(results, slots, branches[0].structure)


def _retyped(closed: ClosedJaxpr, axes: Sequence[frozenset[str]]) -> Callable[..., Any]:
    """A branch whose results vary over the axes that those of any branch do."""
    return lambda *arrays: [
        as_varying(array, over) for array, over in zip(jaxpr_as_fun(closed)(*arrays), axes, strict=True)
    ]


def _both(chosen: Any, branches: Sequence[ClosedJaxpr], arrays: Sequence[Any], axes: Sequence[frozenset[str]]) -> Any:
    """The results of both branches, of which each row of a mapped function keeps one.

    This is what JAX makes of a mapped `lax.cond`, done where it is known how the branches' values are typed: all
    processors run both branches, so that what they send to each other matches.
    """
    results = []
    for closed, is_on in zip(branches, (chosen, ~chosen), strict=True):
        given = [_guarded(array, is_on) for array in (*closed.consts, *arrays)]
        results.append(outputs(closed, given))
    return [
        jnp.where(as_varying(chosen, over), as_varying(a, over), as_varying(b, over))
        for a, b, over in zip(*results, [over | varying(chosen) for over in axes], strict=True)
    ]


def _guarded(array: Any, is_on: Any) -> Any:
    """`array`; no gradient flows back to it from rows that took the other branch, where one could be NaN."""
    if not jnp.issubdtype(array.dtype, jnp.inexact) or varying(is_on) - varying(array):
        return array
    return jnp.where(as_varying(is_on, varying(array)), array, lax.stop_gradient(array))


def outputs(closed: ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
    """What a program makes of other constants and inputs."""
    count = len(closed.jaxpr.constvars)
    return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, list(values[:count])))(*values[count:])


def _joined(a: Slot, b: Slot) -> Slot:
    return replace(a, kind=replace(a.kind, equal=a.kind.equal | b.kind.equal))


class _Branch:
    """A branch of `cond` as a function of arrays; its results are brought to one form once the other's is known."""

    structure: Any
    leaves: list[Any]
    slots: list[Slot]

    def __init__(self, fn: Callable[..., Any], slots: Sequence[Slot], structure: Any):
        self.fn, self.operand_slots, self.operand_structure = fn, slots, structure
        self.region: Region | None = None
        self.order: list[Shape | None] = []

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        result = bring_in(self.fn(*put_together(arrays, self.operand_slots, self.operand_structure)))
        self.leaves, self.structure = jax.tree.flatten(result, is_leaf=is_tensor)
        if self.order:
            self.leaves = [self._brought(leaf, dims) for leaf, dims in zip(self.leaves, self.order, strict=True)]
        self.slots = [slot_of(leaf) for leaf in self.leaves]
        return numbers([_array(leaf) for leaf in self.leaves], "the result of cond")

    def _brought(self, leaf: Any, dims: Shape | None) -> Any:
        if dims is None:
            return leaf
        leaf = with_layout(leaf, self.region)
        return make(aligned(leaf._array, leaf.dims, dims), dims, leaf._region, leaf._kind)


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


def _predicate(value: Any, what: str) -> Any:
    """One boolean; where a tensor holds it, the same on all processors but for the rows of a mapped function."""
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


def _differing_by_row(predicate: Any) -> Axes:
    """The axes over which a predicate differs because a function is mapped over a dim that is split over them."""
    kind = predicate if hasattr(predicate, "manual_axis_type") else jax.typeof(predicate)
    return tuple(sorted(kind.manual_axis_type.varying & taken_axes()))


def _check_agreed(predicate: Any, what: str, branches: Sequence[ClosedJaxpr] | None = None) -> None:
    """Raises where processors would wait in a loop, or in these branches, for others that never come."""
    differing = varying(predicate) - taken_axes()
    if differing and (branches is None or any(_sends(closed.jaxpr) for closed in branches)):
        raise RegionError(
            f"{what} has a predicate that differs between processors (over {', '.join(sorted(differing))}) "
            "and a collective under it: some processors would wait for others that never come",
            state=region.state if (region := open_region()) is not None else "",
            fix="make the predicate a tensor that all processors agree on, e.g. `wf.any(x, over=...)`, or use wf.where",
        )


def _is_sending(eqn: Any) -> bool:
    if eqn.primitive.name == "pvary":  # its gradient is a sum, unless it is a constant
        return not all(isinstance(var, Literal) for var in eqn.invars)
    return eqn.primitive.name in PRIMITIVES


def _sends(jaxpr: Any) -> bool:
    """Whether a program has a collective in it, or something whose gradient is one."""
    return any(
        _is_sending(eqn) or any(_sends(getattr(sub, "jaxpr", sub)) for sub in jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )
