"""Pipeline parallelism: stages on processors, and microbatches that flow through.

Where the dim of stages is split, each processor holds its own stages' weights and at each tick runs them on one
microbatch; results move to the next processor by a permute. Microbatches wait split over the same processors: at each
tick those not yet begun drift by one towards the first stage, and finished ones enter behind them and drift home. So
nothing is gathered, and what comes before and after (embedding, loss) can be split over the stages too. Each run of a
stage is recomputed in the backward pass: what is kept are its inputs (GPipe).
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..checks import is_whole, need_function
from ..dims import UNSHOWN, Dim, DimLike, Shape, list_dims, only
from ..errors import DimError, TensorError
from ..layout import Axes, Placement, Region, tracing_in
from ..lower.collectives import as_varying, index, permute, varying
from ..lower.dealt import dealing
from ..lower.meet import bring, common_region, need_tensor, operand, vary_before_loop, with_layout
from ..lower.move import align, relocate, result, settle
from ..lower.padding import need_no_padding
from ..lower.recorded import bring_in, bringing, note_loop, recorded_block
from ..lower.trees import map_tensors
from ..tensor import PLAIN, Tensor, check_tensor, is_tensor, make, marks_of, placement, with_marks
from .control import TracedLoop, scan, trace_on_slice
from .mapping import axes_taken
from .remat import remat

ROUNDS = "rounds"
_MICROBATCH = "microbatch"


@recorded_block(reason_else="because it is the same for every microbatch, and the rows or stages are split over {axes}")
def pipeline(
    fn: Callable[[Any, Any, Any], tuple[Any, Any]],
    x: Any,
    weights: Any,
    *,
    over: DimLike = "stage",
    micro: int | DimLike,
    rounds: int = 1,
    key: Any = None,
    batch: DimLike = "batch",
    save: Sequence[str] = (),
) -> tuple[Any, Any]:
    """Pipeline: `x` after all stages, `micro` microbatches one after another; extras.

    `fn(x, w, key)` is one stage, on trees without the dim `over`; it gives the next x and a tree of scalars, which are
    summed over stages and microbatches. Tensors of `x` have the dim `batch`: global row i goes to microbatch i mod
    `micro`. Where x is dealt out already, `micro` is the dim of microbatches. With `rounds` weights are [rounds stage
    ..], and go round. A key is folded with the stage's number (of the round too). Stages are recomputed in the backward
    pass but for values marked by `wf.name` with a name in `save`.
    """
    need_function(fn, "pipeline", takes=3)
    leaves, structure = jax.tree.flatten(x, is_leaf=is_tensor)
    stage, rows = _name(over), _name(batch)
    tensors = [_need_rows(leaf, rows) for leaf in leaves]
    stacked = [leaf for leaf in jax.tree.leaves(weights, is_leaf=is_tensor) if is_tensor(leaf) and leaf.dims.has(stage)]
    dim = _stage_dim(stage, stacked, rounds)
    micro_dim = _micro_dim(micro, tensors, dim)
    region = common_region([*tensors, *stacked])
    axes = axes_taken(dim, region, stacked)
    flow = _Flow(dim, axes, region.ways(axes) if region is not None else 1, micro_dim, rounds, rows, key)
    _check_divides(flow, region)
    note_loop(dim.name, idle=(flow.ways - 1, flow.ticks))
    inner = region.within(axes) if region is not None and axes else region
    dealt = [_deal_out(leaf, flow, region, inner) for leaf in tensors]
    over_axes = frozenset().union(*(varying(leaf.raw) for leaf in dealt))
    weights = map_tensors(lambda w: _bring_weight(w, flow, region, inner, over_axes), weights)
    with tracing_in(inner) if axes else contextlib.nullcontext(), bringing(bring) if axes else contextlib.nullcontext():
        run = _Stages(fn, weights, structure, flow, save)
        last, extras = _run_ticks(run, dealt, flow, inner)
    outputs = [_put_back(a, like, flow, region, inner) for a, like in zip(last, tensors, strict=True)]
    sums = [_total(a, flow, region) for a in extras]
    return jax.tree.unflatten(structure, outputs), jax.tree.unflatten(run.extras_structure, sums)


@dataclass(frozen=True)
class _Flow:
    """Which stages are where, and how many microbatches flow through them."""

    stage: Dim
    axes: Axes
    """Over which the stages are split."""
    ways: int
    micro: Dim
    rounds: int
    rows: str
    key: Any

    @property
    def local_stages(self) -> Dim:
        return self.stage.resized(self.stage.size // self.ways)

    @property
    def slots(self) -> int:
        """How many microbatches wait on one processor."""
        return self.micro.size // self.ways

    @property
    def passes(self) -> int:
        """How often a microbatch passes a processor: on one, all rounds are one pass."""
        return self.rounds if self.axes else 1

    @property
    def work(self) -> int:
        """How many ticks a processor works."""
        return self.micro.size * self.passes

    @property
    def ticks(self) -> int:
        """With those in which the pipeline fills and empties (the bubble)."""
        return self.work + self.ways - 1


# What goes in, and what comes out.


def _name(dim: Any) -> str:
    found = only(list_dims(dim, "over"), "pipeline")
    return found.name if isinstance(found, Dim) else found


def _need_rows(leaf: Any, rows: str) -> Tensor:
    if not is_tensor(leaf) or not leaf.dims.has(rows):
        operand(leaf, "pipeline")
        raise DimError(
            f"pipeline got {leaf!r:.60} among what flows through its stages, which has no dim `{rows}`",
            fix="close over what is the same for all rows, or name the dim of rows: `batch=`",
        )
    need_no_padding([leaf.dims.find(rows)], "pipeline")
    return check_tensor(leaf)


def _stage_dim(name: str, stacked: Sequence[Tensor], rounds: Any) -> Dim:
    if not stacked:
        raise DimError(f"pipeline goes over `{name}`, which no weight has", fix="name the dim of stages: `over=`")
    if not is_whole(rounds, 1):
        raise DimError(f"pipeline got rounds={rounds!r}", fix="give a whole number of at least 1, e.g. `rounds=2`")
    for w in stacked:
        found = w.dims.find(ROUNDS).size if w.dims.has(ROUNDS) else 1
        if found != rounds:
            raise DimError(
                f"pipeline goes {rounds} times round, and a weight is [{w.dims}]",
                fix=f"give weights with a dim `{ROUNDS}` of size {rounds}, or `rounds={found}`",
            )
    need_no_padding([stacked[0].dims.find(name)], "pipeline")
    return stacked[0].dims.find(name)


def _micro_dim(micro: Any, tensors: Sequence[Tensor], stage: Dim) -> Dim:
    if isinstance(micro, int):
        if not is_whole(micro, 1):
            raise DimError(f"pipeline got micro={micro!r}", fix="give how many microbatches there are, e.g. `micro=8`")
        return Dim(f"{UNSHOWN}{_MICROBATCH}", micro, follows=stage.name)
    for x in tensors:
        x.dims.find(_name(micro))  # raises where one is not dealt out
    if not tensors:
        raise DimError("pipeline got nothing that flows", fix="give a tensor with a dim of rows")
    return tensors[0].dims.find(_name(micro))


def _check_divides(flow: _Flow, region: Region | None) -> None:
    count, ways = flow.micro.size, flow.ways
    if count % ways:
        raise DimError(
            f"{count} microbatches do not divide over the {ways} processors of `{flow.stage.name}`",
            state=region.state if region is not None else "",
            fix=f"give a multiple of {ways} (nearest: {-(-count // ways) * ways})",
        )


def _deal_out(x: Tensor, flow: _Flow, region: Region | None, inner: Region | None) -> Tensor:
    """`x` as microbatches, which come first and wait split over the stages."""
    x, marks = with_layout(x, region), marks_of(x)
    micro, have = flow.micro, placement(x)
    if x.dims.has(micro):
        rest = x.dims.without([micro])
        array = jnp.moveaxis(x.raw, x.dims.position(micro), 0)
        have = (have[x.dims.position(micro)], *(a for d, a in zip(x.dims, have, strict=True) if d.name != micro.name))
    else:
        position = x.dims.position(flow.rows)
        dim, ways = x.dims[position], x.ways(flow.rows)
        if dim.size % (ways * micro.size):
            step = ways * micro.size
            raise DimError(
                f"`{dim.name}` (size {dim.size}, split {ways} ways) does not divide into {micro.size} microbatches",
                state=x.region.state if x.region is not None else "",
                fix=f"make it a multiple of {step} (nearest: {-(-dim.size // step) * step}), or choose another `micro`",
            )
        rest, have = x.dims.resized({dim.name: dim.size // micro.size}), ((), *have)
        local = x.raw.shape[position] // micro.size
        shape = (*x.raw.shape[:position], local, micro.size, *x.raw.shape[position + 1 :])
        array = jnp.moveaxis(x.raw.reshape(shape), position + 1, 0)
    dims = Shape([micro.resized(flow.slots), *rest])
    if region is None or inner is None:
        return with_marks(make(array, dims, None), marks)
    with _because(_ENTER, region):
        array = relocate(array, have, (flow.axes, *inner.placement(rest)), region)
    return with_marks(result(as_varying(array, flow.axes), dims, inner), marks)


def _put_back(x: Tensor, like: Tensor, flow: _Flow, region: Region | None, inner: Region | None) -> Tensor:
    """What the microbatches have become, in the order in which `like` came."""
    micro, rest = flow.micro, x.dims[1:]
    array = jnp.roll(x.raw, -((flow.ways - 1) % flow.slots), axis=0)
    have: Placement = ((),) * len(x.dims) if inner is None else (flow.axes, *inner.placement(rest))
    if like.dims.has(micro):
        order = [micro if dim.name == micro.name else Shape(rest).find(dim.name) for dim in like.dims]
        places = [[micro, *rest].index(dim) for dim in order]
        return settle(jnp.transpose(array, places), Shape(order), tuple(have[i] for i in places), region)
    if region is not None:
        with _because(_LEAVE, region):
            array = relocate(array, have, ((), *region.placement(rest)), region)
    position = like.dims.position(flow.rows)
    order = Shape([*(d for d in rest if d.name != flow.rows)])
    order = Shape([*order[:position], Shape(rest).find(flow.rows), *order[position:]])
    array = jnp.moveaxis(align(array, [micro, *rest], [micro, *order]), 0, position + 1)
    shape = [*array.shape[:position], array.shape[position] * micro.size, *array.shape[position + 2 :]]
    return result(array.reshape(shape), order.resized({flow.rows: like.dims.find(flow.rows).size}), region)


def _bring_weight(w: Tensor, flow: _Flow, region: Region | None, inner: Region | None, over: frozenset[str]) -> Tensor:
    """A weight of this processor's stages, rounds and stages first; still stored so.

    It varies over the axes of the data from here on: its gradient is summed once, after all ticks.
    """
    w, marks = check_tensor(w), marks_of(w)
    if not w.dims.has(flow.stage):
        return bring(w, inner) if inner is not None and flow.axes else w
    if region is not None and w.region is None:
        w = with_layout(w, region)
    first = [dim for dim in (ROUNDS, flow.stage.name) if w.dims.has(dim)]
    dims = Shape([*(w.dims.find(name) for name in first), *w.dims.without(first)])
    local = dims.resized({flow.stage.name: flow.local_stages.size})
    if region is None or inner is None:
        return with_marks(make(align(w.raw, w.dims, dims), dims, None, w.kind), marks)

    def with_stages(placed: Placement) -> Placement:
        return tuple(flow.axes if d.name == flow.stage.name else axes for d, axes in zip(dims, placed, strict=True))

    def held(w: Tensor) -> Placement:
        by_name = dict(zip(w.dims.names, placement(w), strict=True))
        return tuple(by_name[dim.name] for dim in dims)

    kind, want = w.kind, with_stages(inner.placement(local, w.kind.store))
    if held(w) != want:  # stored otherwise than a stage's own weights would be
        w, kind, want = with_layout(w, region), PLAIN, with_stages(inner.placement(local))
    array = as_varying(relocate(align(w.raw, w.dims, dims), held(w), want, region), flow.axes)
    w = result(array, local, inner) if kind.is_plain else make(array, local, inner, kind)
    return with_marks(vary_before_loop(w, over), marks)


def _total(array: Any, flow: _Flow, region: Region | None) -> Tensor:
    """An extra of all ticks, summed; over the stages' processors once."""
    with _because(_SUMMED, region):
        return settle(jnp.sum(array, axis=0), (), (), region, partial=flow.axes)


_HANDED_ON = "because stages are split over {axes}: each hands its microbatch on to the next"
_DRIFT = "because microbatches wait split over {axes}: they drift to the first stage, and finished ones home"
_ENTER = "because microbatches wait split over {axes}, and the rows come otherwise"
_LEAVE = "because microbatches end split over {axes}, and the rows leave otherwise"
_SUMMED = "because extras are summed over stages, split over {axes}"


def _because(reason: str, region: Region | None) -> contextlib.AbstractContextManager[Any]:
    return region.record.unasked("pipeline", reason) if region is not None else contextlib.nullcontext()


# The ticks.


def _run_ticks(
    run: "_Stages", dealt: list[Tensor], flow: _Flow, inner: Region | None
) -> tuple[list[Tensor], list[Any]]:
    """The microbatches after all ticks, still one slot from home; extras by tick."""
    numbers = jnp.arange(flow.ticks, dtype="int32")
    begun = [make(x.raw[0], x.dims[1:], inner, x.kind) for x in dealt]
    # A stage without work works on these, real data: what is made of zeros may have no finite gradient.
    idle = [lax.stop_gradient(x.raw) for x in begun]
    waiting = Dim(f"{UNSHOWN}waiting", flow.micro.size - flow.ways + 1)

    def tick(carry: Any, inputs: Sequence[Any]) -> tuple[Any, Any]:
        stream, arrived, kept = carry
        number = inputs[0]
        place = index(flow.axes) if flow.axes else 0
        done = jnp.clip(number - place, 0, flow.work - 1)
        turn, micro = done // flow.micro.size, done % flow.micro.size
        slot = number % flow.slots
        next_in = [lax.dynamic_index_in_dim(x.raw, slot, 0, keepdims=False) for x in stream]
        x = next_in
        if flow.axes:
            behind = [a.raw for a in arrived]
            if kept:
                kept = [_write(k, a, number % waiting.size, inner) for k, a in zip(kept, behind, strict=True)]
                waited = [lax.dynamic_index_in_dim(k.raw, (number + 1) % waiting.size, 0, False) for k in kept]
                x = [_choose(turn == 0, a, b) for a, b in zip(x, waited, strict=True)]
            x = [_choose(place == 0, a, b) for a, b in zip(x, behind, strict=True)]
            x = [_choose(number - place == done, a, b) for a, b in zip(x, idle, strict=True)]
        y, extras = run([result(a, b.dims, inner) for a, b in zip(x, begun, strict=True)], turn, micro)
        ended = [a.raw for a in y]
        if flow.axes:
            extras = [_choose(number - place == done, a, jnp.zeros_like(a)) for a in extras]
            last, ring = flow.ways - 1, [(i, (i + 1) % flow.ways) for i in range(flow.ways)]
            with _because(_HANDED_ON, inner):
                behind = [permute(a, flow.axes, ring if kept else ring[:-1]) for a in ended]
            with _because(_DRIFT, inner):
                drifted = [permute(a, flow.axes, [(i + 1, i) for i in range(last)]) for a in next_in]
            ended = [_choose(place == last, a, b) for a, b in zip(ended, drifted, strict=True)]
            arrived = [result(a, b.dims, inner) for a, b in zip(behind, begun, strict=True)]
        stream = [_write(x, a, slot, inner) for x, a in zip(stream, ended, strict=True)]
        return (stream, arrived, kept), extras

    kept = [_repeated(x, waiting, inner) for x in begun] if flow.passes > 1 else []
    carry = (dealt, begun if flow.axes else [], kept)
    loop = TracedLoop(tick, carry, "pipeline", lambda trace: trace_on_slice(trace, [numbers]))
    last, extras = lax.scan(loop.step, loop.carry, [numbers], length=flow.ticks)
    return [slot.filled(a) for slot, a in zip(loop.slots[: len(dealt)], last[: len(dealt)], strict=True)], extras


def _choose(is_first: Any, a: Any, b: Any) -> Any:
    axes = varying(is_first) | varying(a) | varying(b)
    return jnp.where(*(as_varying(jnp.asarray(part), axes) for part in (is_first, a, b)))


def _write(x: Tensor, array: Any, at: Any, inner: Region | None) -> Tensor:
    """`x` with this array in a place along its first dim."""
    axes = varying(x.raw) | varying(array)
    written = lax.dynamic_update_index_in_dim(as_varying(x.raw, axes), as_varying(array, axes), at, 0)
    return result(written, x.dims, inner)


def _repeated(x: Tensor, dim: Dim, inner: Region | None) -> Tensor:
    return result(jnp.broadcast_to(x.raw, (dim.size, *x.raw.shape)), Shape([dim, *x.dims]), inner)


class _Stages:
    """The stages of one processor on one microbatch, each recomputed when needed."""

    def __init__(self, fn: Callable[..., Any], weights: Any, structure: Any, flow: _Flow, save: Sequence[str]):
        self.fn, self.structure, self.flow, self.save = fn, structure, flow, save
        self.leaves, self.weights_structure = jax.tree.flatten(weights, is_leaf=is_tensor)
        self.is_stacked = [is_tensor(leaf) and leaf.dims.has(flow.stage) for leaf in self.leaves]
        self.stacked = [leaf for leaf, flag in zip(self.leaves, self.is_stacked, strict=True) if flag]
        loops = {flow.stage.name: flow.local_stages.size}
        if flow.passes < flow.rounds:
            loops = {ROUNDS: flow.rounds, **loops}
        self.loops = {name: size for name, size in loops.items() if size > 1}
        for name in loops.keys() - self.loops.keys():
            self.stacked = [_at(w, name, 0) for w in self.stacked]
        self.extras_structure: Any = None

    def __call__(self, x: list[Tensor], turn: Any, micro: Any) -> tuple[list[Tensor], list[Any]]:
        """What they make of `x`, and the extras summed; in round `turn` of several."""
        flow = self.flow
        first = turn * flow.stage.size if flow.passes > 1 else 0
        if flow.axes:
            first = first + index(flow.axes) * flow.local_stages.size
        return self._loop(list(self.loops), x, self.stacked, first, turn, micro)

    def _loop(
        self, over: list[str], x: list[Tensor], weights: list[Tensor], number: Any, turn: Any, micro: Any
    ) -> tuple[list[Tensor], list[Any]]:
        if not over:
            return self._run(x, weights, number, turn, micro)
        size, inside = self.loops[over[0]], math.prod(self.loops[name] for name in over[1:])
        numbers = make(jnp.arange(size, dtype="int32") * inside, (Dim(over[0], size),), None)

        def one(x: list[Tensor], xs: Any) -> tuple[list[Tensor], list[Any]]:
            own, after = xs
            return self._loop(over[1:], x, own, number + after.raw, turn, micro)

        x, extras = scan(one, x, (weights, numbers), over=over[0])
        return x, [jnp.sum(a.raw, axis=0) for a in extras]

    def _run(
        self, x: list[Tensor], weights: list[Tensor], number: Any, turn: Any, micro: Any
    ) -> tuple[list[Tensor], list[Any]]:
        """One stage, by its number (that of its round too), on one microbatch."""
        flow = self.flow

        def run(x: list[Tensor]) -> tuple[list[Tensor], list[Any]]:
            own = iter([_at(w, ROUNDS, turn) for w in weights] if flow.passes > 1 else weights)
            tree = [next(own) if flag else leaf for leaf, flag in zip(self.leaves, self.is_stacked, strict=True)]
            key = None if flow.key is None else jax.random.fold_in(flow.key, number)
            with dealing(flow.rows, flow.micro.size, micro):
                pair = self.fn(
                    jax.tree.unflatten(self.structure, x), jax.tree.unflatten(self.weights_structure, tree), key
                )
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TensorError(
                    "a stage of the pipeline gave no pair", fix="return `(x, extras)`; `{}` for no extras"
                )
            y, structure = jax.tree.flatten(pair[0], is_leaf=is_tensor)
            if structure != self.structure:
                raise TensorError(
                    f"what flows through the pipeline enters a stage as {self.structure} and leaves as {structure}",
                    fix="return a tree of the same structure",
                )
            extras, self.extras_structure = jax.tree.flatten(pair[1], is_leaf=is_tensor)
            return bring_in([need_tensor(a, "pipeline") for a in y]), [_scalar(bring_in(a)) for a in extras]

        return remat(run, save=self.save)(x)


def _at(w: Tensor, name: str, place: Any) -> Tensor:
    """The weights at one place of a dim that is whole; stored as they were."""
    position = w.dims.position(name)
    if isinstance(place, int):
        array = lax.index_in_dim(w.raw, place, position, keepdims=False)
    else:
        axes = varying(place) | varying(w.raw)
        array = lax.dynamic_index_in_dim(as_varying(w.raw, axes), as_varying(place, axes), position, keepdims=False)
    return with_marks(make(array, w.dims.without([name]), w.region, w.kind), marks_of(w))


def _scalar(x: Any) -> Any:
    if is_tensor(x) and x.dims:
        raise TensorError(f"an extra of a pipeline's stage is {x!r}", fix="sum it: `wf.sum(x, over=[...])`")
    return x.local_array if is_tensor(operand(x, "pipeline")) else jnp.asarray(x)
