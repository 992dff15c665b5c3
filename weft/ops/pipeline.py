"""Pipeline parallelism: stages on processors, and microbatches that flow through.

Where the dim of stages is split, each processor holds its own stages' weights and at each tick runs them on one
microbatch; results move to the next processor by a permute. Microbatches wait split over the same processors: at each
tick those not yet begun drift by one towards the first stage, and finished ones enter behind them and drift home. So
nothing is gathered, and what comes before and after (embedding, loss) can be split over the stages too. Each run of a
stage is recomputed in the backward pass: what is kept are its inputs (GPipe). Backward passes come after all forward
passes, as JAX differentiates: there is no 1F1B.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..checks import is_whole, need_function
from ..dims import UNSHOWN, Dim, DimLike, Shape, list_dims
from ..errors import DimError
from ..layout import Placement, Region, tracing_in
from ..lower.collectives import as_varying, varying
from ..lower.dealt import MICROBATCH, deal_rows
from ..lower.meet import bring, common_region, operand, vary_before_loop, with_layout
from ..lower.move import align, relocate, result, settle
from ..lower.padding import need_no_padding
from ..lower.recorded import bringing, note_loop, recorded_block
from ..lower.stored import fetch_whole
from ..lower.trees import map_tensors
from ..tensor import PLAIN, Tensor, check_tensor, is_tensor, make, marks_of, placement, with_marks
from .mapping import axes_taken
from .random import need_key
from .ticks import ROUNDS, Flow, Stages, because, run_ticks


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
    stage, rows = _name(over, "over"), _name(batch, "batch")
    tensors = [_need_rows(leaf, rows) for leaf in leaves]
    stacked = [leaf for leaf in jax.tree.leaves(weights, is_leaf=is_tensor) if is_tensor(leaf) and leaf.dims.has(stage)]
    dim = _stage_dim(stage, stacked, rounds)
    micro_dim = _micro_dim(micro, tensors, dim)
    region = common_region([*tensors, *stacked])
    axes = axes_taken(dim, region, stacked)
    key = None if key is None else need_key(key, "pipeline")
    flow = Flow(dim, axes, region.ways(axes) if region is not None else 1, micro_dim, rounds, rows, key)
    _check_divides(flow, region)
    note_loop(dim.name, schedule=flow.schedule)
    inner = region.within(axes) if region is not None and axes else region
    dealt = [_deal_out(leaf, flow, region, inner) for leaf in tensors]
    over_axes = frozenset().union(*(varying(leaf.raw) for leaf in dealt))
    weights = map_tensors(lambda w: bring_weight(w, flow, region, inner, over_axes), weights)
    with tracing_in(inner) if axes else contextlib.nullcontext(), bringing(bring) if axes else contextlib.nullcontext():
        run = Stages(fn, weights, structure, flow, save)
        last, extras = run_ticks(run, dealt, flow, inner)
    outputs = [_put_back(a, like, flow, region, inner) for a, like in zip(last, tensors, strict=True)]
    sums = [_total(a, flow, region) for a in extras]
    return jax.tree.unflatten(structure, outputs), jax.tree.unflatten(run.extras_structure, sums)


# What goes in, and what comes out.


def _name(dim: Any, option: str) -> str:
    names = list_dims(dim, option)
    if len(names) != 1:
        raise DimError(f"pipeline got {option}={dim!r} where one dim is due", fix=f"name one dim: `{option}='...'`")
    return names[0].name if isinstance(names[0], Dim) else names[0]


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
    if is_whole(micro, 1):
        return Dim(f"{UNSHOWN}{MICROBATCH}", int(micro), follows=stage.name)
    if not isinstance(micro, str | Dim):
        raise DimError(
            f"pipeline got micro={micro!r}",
            fix="give how many microbatches there are, e.g. `micro=8`, or the name of their dim where x has one",
        )
    for x in tensors:
        x.dims.find(_name(micro, "micro"))  # raises where one is not dealt out
    if not tensors:
        raise DimError("pipeline got nothing that flows", fix="give a tensor with a dim of rows")
    return tensors[0].dims.find(_name(micro, "micro"))


def _check_divides(flow: Flow, region: Region | None) -> None:
    count, ways = flow.micro.size, flow.ways
    if count % ways:
        raise DimError(
            f"{count} microbatches do not divide over the {ways} processors of `{flow.stage.name}`",
            state=region.state if region is not None else "",
            fix=f"give a multiple of {ways} (nearest: {-(-count // ways) * ways})",
        )


def _deal_out(x: Tensor, flow: Flow, region: Region | None, inner: Region | None) -> Tensor:
    """`x` as microbatches, which come first and wait split over the stages."""
    x, marks = with_layout(x, region), marks_of(x)
    micro, have = flow.micro, placement(x)
    if x.dims.has(micro):
        rest = x.dims.without([micro])
        array = jnp.moveaxis(x.raw, x.dims.position(micro), 0)
        have = (have[x.dims.position(micro)], *(a for d, a in zip(x.dims, have, strict=True) if d.name != micro.name))
    else:
        array, rest = deal_rows(x, flow.rows, micro.size, option="micro")
        have = ((), *have)
    dims = Shape([Dim(f"{UNSHOWN}{micro.name}", flow.slots), *rest])  # a name no rule splits
    if region is None or inner is None:
        return with_marks(make(array, dims, None), marks)
    with because(_ENTER, region):
        array = relocate(array, have, (flow.axes, *inner.placement(rest)), region)
    return with_marks(result(as_varying(array, flow.axes), dims, inner), marks)


def _put_back(x: Tensor, like: Tensor, flow: Flow, region: Region | None, inner: Region | None) -> Tensor:
    """What the microbatches have become, in the order in which `like` came."""
    micro, rest = flow.micro, x.dims[1:]
    array = jnp.roll(x.raw, -((flow.ways - 1) % flow.slots), axis=0)
    have: Placement = ((),) * len(x.dims) if inner is None else (flow.axes, *inner.placement(rest))
    if like.dims.has(micro):
        order = [micro if dim.name == micro.name else Shape(rest).find(dim.name) for dim in like.dims]
        places = [[micro, *rest].index(dim) for dim in order]
        with because(_LEAVE, region):
            return settle(jnp.transpose(array, places), Shape(order), tuple(have[i] for i in places), region)
    if region is not None:
        with because(_LEAVE, region):
            array = relocate(array, have, ((), *region.placement(rest)), region)
    position = like.dims.position(flow.rows)
    others = [dim for dim in rest if dim.name != flow.rows]
    dims = Shape([*others[:position], Shape(rest).find(flow.rows), *others[position:]])
    array = jnp.moveaxis(align(array, [micro, *rest], [micro, *dims]), 0, position + 1)
    shape = [*array.shape[:position], array.shape[position] * micro.size, *array.shape[position + 2 :]]
    return result(array.reshape(shape), dims.resized({flow.rows: like.dims.find(flow.rows).size}), region)


def bring_weight(w: Tensor, flow: Flow, region: Region | None, inner: Region | None, over: frozenset[str]) -> Tensor:
    """A weight of this processor's stages, rounds and stages first; still stored so.

    It varies over the axes of the data from here on: its gradient is summed once, after all ticks.
    """
    w, marks = fetch_whole(check_tensor(w)), marks_of(w)
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


def _total(array: Any, flow: Flow, region: Region | None) -> Tensor:
    """An extra of all ticks, summed; over the stages' processors once."""
    with because(_SUMMED, region):
        return settle(jnp.sum(array, axis=0), (), (), region, partial=flow.axes)


_ENTER = "because microbatches wait split as the stages are, and come split over {axes} otherwise"
_LEAVE = "because microbatches end split as the stages are, and leave split over {axes} otherwise"
_SUMMED = "because extras are summed over stages, split over {axes}"
