"""Stages one after the other, as a token goes through them when decoding.

Weights and caches stay with their stages. Where these are split over processors, what flows is handed on by permutes:
at each tick all run their stages, and what counts is what the one does whose turn it is.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..dims import UNSHOWN, Dim, Shape
from ..layout import Region, tracing_in
from ..lower.collectives import index, permute
from ..lower.meet import bring, common_region
from ..lower.move import result, settle
from ..lower.recorded import bringing, note_loop, recorded_block
from ..lower.trees import map_tensors
from ..tensor import Tensor, is_tensor
from .control import TracedLoop, scan, trace_on_slice
from .debug import only_where
from .mapping import axes_taken
from .pipeline import bring_weight
from .ticks import ROUNDS, Flow, at_place, because, choose

_HANDED_ON = "because stages are split over {axes}: each hands on to the next what it has made"
_TOLD_ALL = "because the last stage, of those split over {axes}, has what all need"


@recorded_block(reason_else="because it is the same for every stage, and stages are split over {axes}")
def in_turn(fn: Callable[[Any, Any], tuple[Any, Any]], x: Any, weights: Any, *, over: str = "stage") -> tuple[Any, Any]:
    """`fn(x, w)` of each stage in turn: the last x, and what each stage makes.

    What they make is stacked along the dims of stages (and rounds) as the weights are, and stays where it was made.
    """
    tensors = [leaf for leaf in jax.tree.leaves(x, is_leaf=is_tensor) if is_tensor(leaf)]
    leaves = [leaf for leaf in jax.tree.leaves(weights, is_leaf=is_tensor) if is_tensor(leaf)]
    stacked = [leaf for leaf in leaves if leaf.dims.has(over)]
    dim, region = stacked[0].dims.find(over), common_region([*tensors, *leaves])
    rounds = stacked[0].dims.find(ROUNDS).size if stacked[0].dims.has(ROUNDS) else 1
    axes = axes_taken(dim, region, stacked)
    note_loop(dim.name)
    if not axes or region is None:
        return _loop([ROUNDS, over] if rounds > 1 else [over], fn, x, weights)
    ways = region.ways(axes)
    flow = Flow(dim, axes, ways, Dim(f"{UNSHOWN}token", ways), rounds, "", None)
    inner = region.within(axes)
    weights = map_tensors(lambda w: bring_weight(w, flow, region, inner, frozenset()), weights)
    with tracing_in(inner), bringing(bring):
        x = map_tensors(lambda leaf: bring(leaf, inner), x)
        made = []
        for number in range(rounds):
            x = x if number == 0 else _hand_on(x, flow, inner)
            x, new = _take_turns(fn, x, _of_round(weights, number), flow, inner)
            made.append(new)
    x = map_tensors(lambda leaf: _tell_all(leaf, flow, region, inner), x)
    return x, jax.tree.map(lambda *each: _join(each, flow, region, inner), *made, is_leaf=is_tensor)


def _loop(over: Sequence[str], fn: Callable[..., Any], x: Any, weights: Any) -> tuple[Any, Any]:
    """The stages of a dim that is whole, or of several, one inside the other."""
    if not over:
        return fn(x, weights)
    return scan(lambda x, own: _loop(over[1:], fn, x, own), x, weights, over=over[0])


def _of_round(weights: Any, number: int) -> Any:
    """The weights of one round, where there are several."""
    return map_tensors(lambda w: at_place(w, ROUNDS, number) if w.dims.has(ROUNDS) else w, weights)


def _take_turns(fn: Callable[..., Any], x: Any, weights: Any, flow: Flow, inner: Region) -> tuple[Any, Any]:
    """What the last processor's stages give, there; what each processor's own make."""

    def run(x: Any, number: Any) -> tuple[Any, Any]:
        with only_where(lambda: index(flow.axes) == number):  # the others run too, on what is not for them
            return _loop([flow.stage.name], fn, x, weights)

    def turn(carry: Any, inputs: Sequence[Any]) -> tuple[Any, Any]:
        x, made = carry
        x, new = run(_hand_on(x, flow, inner), inputs[0])
        is_own = index(flow.axes) == inputs[0]

        def keep(new: Tensor, old: Tensor) -> Tensor:
            return result(choose(is_own, new.raw, old.raw), new.dims, inner)

        return (x, jax.tree.map(keep, new, made, is_leaf=is_tensor)), None

    numbers = jnp.arange(1, flow.ways, dtype="int32")
    loop = TracedLoop(turn, run(x, 0), "in_turn", lambda trace: trace_on_slice(trace, [numbers]))
    last, _ = lax.scan(loop.step, loop.carry, [numbers], length=flow.ways - 1)
    arrays = (slot.fill(array) for slot, array in zip(loop.slots, last, strict=True))
    return jax.tree.unflatten(loop.structure, list(arrays))


def _hand_on(x: Any, flow: Flow, inner: Region) -> Any:
    """What flows, on the next processor."""
    ring = [(i, (i + 1) % flow.ways) for i in range(flow.ways)]
    with because(_HANDED_ON, inner) if jax.tree.leaves(x) else contextlib.nullcontext():
        return map_tensors(lambda leaf: result(permute(leaf.raw, flow.axes, ring), leaf.dims, inner), x)


def _tell_all(x: Tensor, flow: Flow, region: Region, inner: Region) -> Tensor:
    """What the last stage has, on all processors: its very bits."""
    array = choose(index(flow.axes) == flow.ways - 1, x.raw, jnp.zeros_like(x.raw))
    with because(_TOLD_ALL, region):
        return settle(array, x.dims, inner.placement(x.dims), region, partial=flow.axes, one_holds=True)


def _join(each: Sequence[Tensor], flow: Flow, region: Region, inner: Region) -> Tensor:
    """What the stages made in each round, as one tensor along rounds and stages."""
    dims = Shape([flow.stage, *each[0].dims[1:]])
    have = (flow.axes, *inner.placement(each[0].dims[1:]))
    if len(each) == 1:
        return settle(each[0].raw, dims, have, region)
    stacked = jnp.stack([x.raw for x in each])
    return settle(stacked, Shape([Dim(ROUNDS, len(each)), *dims]), ((), *have), region)
