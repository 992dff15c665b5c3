"""Loops over trees of tensors.

A carry made without a layout adopts the one its loop gives it. What a body closes over is made to vary before the
loop, so its gradient is summed once, after it. A mapped loop that each row ends at a turn of its own is turned
equally often on all processors where they send to each other in it.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..checks import is_whole, need_function
from ..dims import UNSHOWN, Dim, DimLike, Shape, list_dims, only, resolve
from ..errors import DimError, LayoutError, TensorError
from ..layout import Axes, open_region
from ..leaves import array_of
from ..lower.collectives import all_max, as_varying, varying
from ..lower.fetch import provide
from ..lower.meet import bring, inside_remat, need_tensor, operand, with_layout
from ..lower.move import align, settle
from ..lower.padding import need_no_padding
from ..lower.predicates import check_agreed, differing_by_row, one_boolean, sends, taken_axes
from ..lower.recorded import bring_in, bringing, note_loop, part_of_block, recorded_block, retrace
from ..lower.stored import fetch_whole
from ..lower.trees import Slot, check_numbers, map_tensors, put_together, slot_of, take_apart
from ..tensor import PLAIN, Tensor, check_tensor, is_tensor, make, marks_of, placement, with_marks
from .debug import only_where
from .kept import keep_little
from .mapping import is_mapped
from .prefetch import gather_ahead, scan_ahead


@recorded_block(reason_else="because the carry starts the same on all of {axes} and differs there after a turn")
def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    *,
    over: DimLike,
    reverse: bool = False,
    unroll: int | bool = 1,
    prefetch: bool = False,
) -> tuple[Any, Any]:
    """`fn(carry, x)` for each `x` along `over` in turn: last carry, stacked results.

    With `prefetch` stored parameters (FSDP) are gathered ahead of their use: those of the next turn beside the work of
    this one, in the backward pass too; what all turns share once, before the first.
    """
    need_function(fn, "scan", takes=2)
    if unroll is not True and not is_whole(unroll, least=1):
        raise TensorError(f"scan got unroll={unroll!r}", fix="give a whole number of turns, or True")
    tensors = [leaf for leaf in jax.tree.leaves(xs, is_leaf=is_tensor) if is_tensor(leaf)]
    dim = _scanned_dim(over, tensors)
    need_no_padding([dim], "scan")
    note_loop(dim.name)
    inputs, slots, structure = take_apart(_put_first(xs, dim))
    inner = [slot.inner(dim, slot.region) for slot in slots]

    def body(carry: Any, arrays: Sequence[Any]) -> tuple[Any, Any]:
        xs = put_together(arrays, inner, structure)
        gathered = gather_ahead(lambda: fn(carry, xs)) if prefetch else []
        with provide(gathered) if prefetch else contextlib.nullcontext():
            result = fn(carry, xs)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TensorError(
                f"the function scanned returned {type(result).__name__}", fix="return `(carry, result)`; None will do"
            )
        return (result[0], (result[1], [use.array for use in gathered if use is not None])) if prefetch else result

    loop = TracedLoop(body, carry, "scan", lambda trace: trace_on_slice(trace, inputs))
    unroll = unroll if unroll is True else int(unroll)
    turns: dict[str, Any] = {"length": dim.size, "reverse": reverse, "unroll": unroll}
    results = loop.extra_structure
    if prefetch:
        results, ahead = results.children()
        last, stacked = scan_ahead(loop.closed, loop.carry, inputs, ahead.num_leaves, **turns)
    else:
        last, stacked = lax.scan(keep_little(loop.step, loop.closed.jaxpr, inputs), loop.carry, inputs, **turns)
    slots = loop.extra_slots[: results.num_leaves]
    outputs = [_stack(slot, array, dim) for slot, array in zip(slots, stacked, strict=True)]
    return put_together(last, loop.slots, loop.structure), jax.tree.unflatten(results, outputs)


def _scanned_dim(over: DimLike, tensors: Sequence[Tensor]) -> Dim:
    names = list_dims(over, "over")
    if not tensors and len(names) == 1 and isinstance(names[0], Dim):
        return names[0]
    if not tensors:
        raise DimError(
            f"scan goes over {over!r} with nothing to go along", fix="give the dim itself: `wf.Dim('steps', 8)`"
        )
    return only(resolve(over, tensors[0].dims, what="over"), "scan")


def _put_first(xs: Any, dim: Dim) -> Any:
    """The inputs of a scan with `dim` first; it must be whole."""

    def first(x: Tensor) -> Tensor:
        x, marks = check_tensor(x), marks_of(x)
        dims = Shape([x.dims.find(dim), *x.dims.without([dim])])
        if x.region is not None and x.region.placement(x.dims)[x.dims.position(dim)]:
            axes = "+".join(x.region.placement(x.dims)[x.dims.position(dim)])
            raise LayoutError(
                f"scan goes over `{dim.name}` in turn, and `{dim.name}` is split over `{axes}`",
                state=x.region.state,
                fix=f"rename it to an unsplit dim first (`x.rename({dim.name}='{dim.name}_whole')`), "
                f"drop `{dim.name}:{axes}`, or use `wf.associative_scan`",
            )
        if placement(x)[x.dims.position(dim)]:  # a parameter stored split along it
            x = with_layout(x, x.region)
        if dims.names != x.dims.names:
            x = fetch_whole(x)
        return with_marks(make(align(x.raw, x.dims, dims), dims, x.region, x.kind), marks)

    for leaf in jax.tree.leaves(xs, is_leaf=is_tensor):
        need_tensor(leaf, "scan")
    return map_tensors(first, xs)


def trace_on_slice(trace: Callable[..., Any], inputs: Sequence[Any]) -> ClosedJaxpr:
    """The body traced on one slice of each input, taken where it leaves no trace."""
    traced = []

    def take_and_trace(inputs: Sequence[Any]) -> list[Any]:
        traced.append(trace([lax.index_in_dim(x, 0, 0, keepdims=False) for x in inputs]))
        return []

    jax.make_jaxpr(take_and_trace)(inputs)
    return traced[0]


def _stack(slot: Slot, array: Any, dim: Dim) -> Any:
    if slot.dims is None:
        return make(array, (dim,), None) if getattr(array, "ndim", 0) == 1 else array
    dims, region, kind = Shape([dim, *slot.dims]), slot.region, replace(slot.kind, equal=frozenset())
    if region is None:
        return make(array, dims, None, kind)
    have = ((), *region.placement(slot.dims, kind.store))
    if kind.store is not None and not region.can_store(dims, kind.store):
        array, kind = make(array, dims, region, kind).local_array, PLAIN
    return settle(array, dims, have, region, kind=kind)


class TracedLoop:
    """A loop's body, traced on a carry of the type that it gives back."""

    def __init__(self, body: Callable[..., Any], carry: Any, what: str, with_inputs: Callable[..., ClosedJaxpr]):
        arrays, slots, self.structure = take_apart(carry)
        self.slots = [replace(slot, marks={}) for slot in slots]  # what holds before the first turn may not after it
        self.carry = check_numbers(arrays, f"the carry of {what}")
        self.what = what
        mark: int | None = None
        for _ in range(16):
            closed, mark = retrace(
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
            with inside_remat(False):
                carry, extra = body(put_together(arrays, self.slots, self.structure), *inputs)
            leaves, structure = jax.tree.flatten(carry, is_leaf=is_tensor)
            if structure != self.structure:
                raise TensorError(
                    f"the carry of {self.what} enters as {self.structure} and leaves as {structure}",
                    fix="return a carry of the same structure",
                )
            self.found = [self._conform(leaf, slot) for leaf, slot in zip(leaves, self.slots, strict=True)]
            extra_arrays, self.extra_slots, self.extra_structure = take_apart(extra)
            results = [
                as_varying(jnp.asarray(array_of(leaf)), varying(array))
                for leaf, array in zip(self.found, arrays, strict=True)
            ]
            return results, check_numbers(extra_arrays, f"the results of {self.what}")

        return flat

    def _conform(self, leaf: Any, slot: Slot) -> Any:
        if (slot.dims is None) == is_tensor(leaf) or (slot.dims is not None and set(slot.dims) != set(leaf.dims)):
            enters = "a plain value" if slot.dims is None else f"[{slot.dims}]"
            leaves = f"[{leaf.dims}]" if is_tensor(leaf) else "a plain value"
            raise TensorError(
                f"the carry of {self.what} enters as {enters} and leaves as {leaves}",
                fix="start it with the dims it leaves with, or broadcast or sum it in the body",
            )
        if not is_tensor(leaf):
            return leaf
        if leaf.region is None or replace(leaf.kind, equal=frozenset()) != replace(slot.kind, equal=frozenset()):
            leaf = with_layout(leaf, leaf.region or slot.region)
        assert slot.dims is not None
        kind = replace(leaf.kind, equal=leaf.kind.equal | slot.kind.equal)
        return make(align(leaf.raw, leaf.dims, slot.dims), slot.dims, leaf.region, kind)

    def _is_fixed(self, closed: ClosedJaxpr) -> bool:
        """Whether the carry's type came back; if not, the carry adopts what did."""
        is_fixed = True
        for i, (leaf, aval) in enumerate(zip(self.found, closed.out_avals, strict=False)):
            slot, array = self.slots[i], self.carry[i]
            if slot.dims is not None and slot_of(leaf) != slot:
                adopted = with_layout(slot.fill(array), leaf.region) if leaf.kind.is_plain else slot.fill(array)
                self.slots[i], self.carry[i], is_fixed = slot_of(leaf), adopted.raw, False
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
            elif missing := varying(aval) - varying(array):
                self.carry[i], is_fixed = as_varying(array, missing), False
        return is_fixed


@recorded_block()
def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], carry: Any) -> Any:
    """`body` of the carry while the condition, one boolean, holds; no reverse mode."""
    need_function(condition, "while_loop", takes=1)
    need_function(body, "while_loop", takes=1)
    loop, mark = retrace(lambda: _While(condition, body, carry), None)
    if rows := differing_by_row(loop.asked.out_avals[0]):
        with bringing(bring):  # all that the loop makes differs by row, as the number of its turns does
            loop, _ = retrace(lambda: _While(condition, body, _by_row(carry)), mark)
    if rows and (sends(loop.asked.jaxpr) or sends(loop.closed.jaxpr)):
        last = _turn_together(loop.holds, loop.turn, loop.carry, rows)
    else:
        last = lax.while_loop(loop.holds, loop.turn, loop.carry)
    return put_together(last, loop.slots, loop.structure)


class _While(TracedLoop):
    """A while loop's body and condition, traced on a carry as the body gives it."""

    def __init__(self, condition: Callable[[Any], Any], body: Callable[[Any], Any], carry: Any):
        def ask(carry: Any) -> Any:
            array = one_boolean(condition(carry), "while_loop")
            check_agreed(array, "while_loop")
            return array

        def turn(carry: Any) -> tuple[Any, Any]:
            # Mapped, the body runs on for rows that are done.
            with only_where(lambda: ask(carry)) if is_mapped() else contextlib.nullcontext():
                return body(carry), ()

        super().__init__(turn, carry, "while_loop", lambda trace: trace())
        self.asked = jax.make_jaxpr(lambda arrays: ask(put_together(arrays, self.slots, self.structure)))(self.carry)

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


def _turn_together(holds: Callable[..., Any], turn: Callable[..., Any], carry: Any, rows: Axes) -> Any:
    """The last carry of a mapped loop; all turn till every row is done: sends match."""

    def turn_all(state: Any) -> Any:
        carry, is_on = state
        carry = [
            jnp.where(as_varying(is_on, varying(new)), new, old) for new, old in zip(turn(carry), carry, strict=True)
        ]
        return carry, holds(carry)

    def any_holds(state: Any) -> Any:
        region = open_region()
        assert region is not None
        with region.record.unasked("any", _TURNED_TOGETHER):
            return all_max(state[1], rows)

    return lax.while_loop(any_holds, turn_all, (carry, holds(carry)))[0]


@recorded_block()
def fori_loop(lower: Any, upper: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """`body(i, carry)` for i from `lower` to `upper`; differentiable between ints."""
    need_function(body, "fori_loop", takes=2)
    for bound in (lower, upper):
        dtype = getattr(operand(bound, "fori_loop"), "dtype", None)
        if is_tensor(bound) and bound.dims:
            raise TensorError(f"fori_loop got {bound!r} for a bound", fix="give one whole number")
        if (dtype is None and not is_whole(bound)) or (dtype is not None and not jnp.issubdtype(dtype, jnp.integer)):
            raise TensorError(f"fori_loop got the bound {bound!r}", fix="give whole numbers")
    if is_whole(lower) and is_whole(upper):
        if upper <= lower:
            return carry
        steps = Dim(UNSHOWN, int(upper) - int(lower))  # a dim of which no name is shown
        count = make(jnp.arange(lower, upper, dtype="int32"), (steps,), None)
        return scan(lambda c, i: (body(i.raw, c), None), carry, count, over=steps)[0]

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
