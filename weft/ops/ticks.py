"""The ticks of a pipeline, at each of which stages run on one microbatch each.

Works on microbatches dealt out and weights brought to their stages (`ops.pipeline`). A stage that has no work, while
the pipeline fills and empties, works on real data whose results go nowhere: its gradients are finite, and zero.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..dims import UNSHOWN, Dim, Shape
from ..errors import TensorError
from ..layout import Axes, Region
from ..lower.collectives import as_varying, index, permute, varying
from ..lower.dealt import dealing
from ..lower.meet import operand, with_layout
from ..lower.move import align, result
from ..lower.recorded import bring_in
from ..schedule import PipelineSchedule
from ..tensor import Tensor, is_tensor, make, marks_of, with_marks
from .control import TracedLoop, scan, trace_on_slice
from .debug import only_where
from .remat import remat

ROUNDS = "rounds"


@dataclass(frozen=True)
class Flow:
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
    def schedule(self) -> PipelineSchedule:
        """Who works on which microbatch at which tick."""
        return PipelineSchedule(self.axes, self.ways, self.local_stages.size, self.micro.size, self.passes)


_HANDED_ON = "because stages are split over {axes}: each hands its microbatch on to the next"
_DRIFT = "because microbatches wait split over {axes}: they drift to the first stage, and finished ones home"


def because(reason: str, region: Region | None) -> contextlib.AbstractContextManager[Any]:
    """While a pipeline sends something for this reason."""
    return region.record.unasked("pipeline", reason) if region is not None else contextlib.nullcontext()


def run_ticks(run: "Stages", dealt: list[Tensor], flow: Flow, inner: Region | None) -> tuple[list[Tensor], list[Any]]:
    """The microbatches after all ticks, still one slot from home; extras by tick."""
    schedule = flow.schedule
    numbers = jnp.arange(schedule.turns, dtype="int32")
    begun = [make(x.raw[0], x.dims[1:], inner, x.kind) for x in dealt]
    # A stage without work works on these, real data: what is made of zeros may have no finite gradient.
    idle = [lax.stop_gradient(x.raw) for x in begun]
    waiting = Dim(f"{UNSHOWN}waiting", flow.micro.size - flow.ways + 1)

    def tick(carry: Any, inputs: Sequence[Any]) -> tuple[Any, Any]:
        stream, arrived, kept = carry
        number = inputs[0]
        place = index(flow.axes) if flow.axes else 0
        done = jnp.clip(number - place, 0, schedule.work - 1)
        turn, micro = done // flow.micro.size, done % flow.micro.size
        slot = number % flow.slots
        next_in = [lax.dynamic_index_in_dim(x.raw, slot, 0, keepdims=False) for x in stream]
        x = next_in
        if flow.axes:
            behind = [a.raw for a in arrived]
            if kept:
                kept = [_write(k, a, number % waiting.size, inner) for k, a in zip(kept, behind, strict=True)]
                waited = [lax.dynamic_index_in_dim(k.raw, (number + 1) % waiting.size, 0, False) for k in kept]
                x = [choose(turn == 0, a, b) for a, b in zip(x, waited, strict=True)]
            x = [choose(place == 0, a, b) for a, b in zip(x, behind, strict=True)]
            x = [choose(number - place == done, a, b) for a, b in zip(x, idle, strict=True)]
        with only_where(lambda: number - place == done) if flow.axes else contextlib.nullcontext():
            y, extras = run([result(a, b.dims, inner) for a, b in zip(x, begun, strict=True)], turn, micro)
        ended = [a.raw for a in y]
        if flow.axes:
            extras = [choose(number - place == done, a, jnp.zeros_like(a)) for a in extras]
            last, ring = flow.ways - 1, [(i, (i + 1) % flow.ways) for i in range(flow.ways)]
            with because(_HANDED_ON, inner):
                behind = [permute(a, flow.axes, ring if kept else ring[:-1]) for a in ended]
            with because(_DRIFT, inner):
                drifted = [permute(a, flow.axes, [(i + 1, i) for i in range(last)]) for a in next_in]
            ended = [choose(place == last, a, b) for a, b in zip(ended, drifted, strict=True)]
            arrived = [result(a, b.dims, inner) for a, b in zip(behind, begun, strict=True)]
        stream = [_write(x, a, slot, inner) for x, a in zip(stream, ended, strict=True)]
        return (stream, arrived, kept), extras

    kept = [_repeat(x, waiting, inner) for x in begun] if flow.passes > 1 else []
    carry = (dealt, begun if flow.axes else [], kept)
    loop = TracedLoop(tick, carry, "pipeline", lambda trace: trace_on_slice(trace, [numbers]))
    last, extras = lax.scan(loop.step, loop.carry, [numbers], length=schedule.turns)
    return [slot.fill(a) for slot, a in zip(loop.slots[: len(dealt)], last[: len(dealt)], strict=True)], extras


def choose(is_first: Any, a: Any, b: Any) -> Any:
    """One of two arrays, by a boolean that may differ between processors."""
    axes = varying(is_first) | varying(a) | varying(b)
    return jnp.where(*(as_varying(jnp.asarray(part), axes) for part in (is_first, a, b)))


def _write(x: Tensor, array: Any, at: Any, inner: Region | None) -> Tensor:
    """`x` with this array in a place along its first dim."""
    axes = varying(x.raw) | varying(array)
    written = lax.dynamic_update_index_in_dim(as_varying(x.raw, axes), as_varying(array, axes), at, 0)
    return result(written, x.dims, inner)


def _repeat(x: Tensor, dim: Dim, inner: Region | None) -> Tensor:
    return result(jnp.broadcast_to(x.raw, (dim.size, *x.raw.shape)), Shape([dim, *x.dims]), inner)


class Stages:
    """The stages of one processor on one microbatch, each recomputed when needed."""

    def __init__(self, fn: Callable[..., Any], weights: Any, structure: Any, flow: Flow, save: Sequence[str]):
        self.fn, self.structure, self.flow, self.save = fn, structure, flow, save
        self.leaves, self.weights_structure = jax.tree.flatten(weights, is_leaf=is_tensor)
        self.is_stacked = [is_tensor(leaf) and leaf.dims.has(flow.stage) for leaf in self.leaves]
        self.stacked = [leaf for leaf, flag in zip(self.leaves, self.is_stacked, strict=True) if flag]
        loops = {flow.stage.name: flow.local_stages.size}
        if flow.passes < flow.rounds:
            loops = {ROUNDS: flow.rounds, **loops}
        self.loops = {name: size for name, size in loops.items() if size > 1}
        for name in loops.keys() - self.loops.keys():
            self.stacked = [at_place(w, name, 0) for w in self.stacked]
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
            own = iter([at_place(w, ROUNDS, turn) for w in weights] if flow.passes > 1 else weights)
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
            flowing = [_flow_on(before, after) for before, after in zip(x, y, strict=True)]
            return flowing, [_scalar(bring_in(a)) for a in extras]

        return remat(run, save=self.save)(x)


def _flow_on(before: Tensor, after: Any) -> Tensor:
    """What a stage made of `before`, its dims in the same order; it must be alike."""
    is_alike = is_tensor(after) and set(before.dims) == set(after.dims) and before.dtype == after.dtype
    if not is_alike:
        raise TensorError(
            f"what flows through the pipeline enters a stage as {before!r} and leaves as {after!r:.60}",
            fix="return what has the same dims and dtype: rename, broadcast, sum or cast it in the stage",
        )
    after = with_layout(bring_in(after), before.region)
    return with_marks(
        make(align(after.raw, after.dims, before.dims), before.dims, after.region, after.kind), marks_of(after)
    )


def at_place(w: Tensor, name: str, place: Any) -> Tensor:
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
