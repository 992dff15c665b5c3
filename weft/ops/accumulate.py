"""Gradient accumulation: a batch as microbatches, one gradient sum at the end."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr

from ..checks import is_whole, need_function
from ..dims import UNSHOWN, Dim, DimLike, Shape, union
from ..errors import DimError, TensorError, closest
from ..graph import keep_results, uses_inputs
from ..lower.collectives import as_varying, varying
from ..lower.dealt import deal_rows, dealing
from ..lower.meet import bring, common_region, operand, vary_before_loop, with_layout
from ..lower.move import result, settle
from ..lower.padding import need_no_padding
from ..lower.predicates import taken_axes
from ..lower.recorded import bring_in, bringing, note_loop, part_of_block, recorded_block
from ..lower.stored import is_stored
from ..lower.trees import map_tensors, slot_of
from ..tensor import Tensor, check_tensor, is_tensor, make, marks_of, placement, with_marks
from .branches import outputs
from .control import trace_on_slice

_TURN = f"{UNSHOWN}microbatch"


@recorded_block(reason_else="because it is the same for every microbatch, and the rows are split over {axes}")
def accumulate(
    fn: Callable[[Any, Any], tuple[Any, Any]], params: Any, data: Any, *, over: DimLike = "batch", count: int
) -> Tensor:
    """Gradient accumulation: Σsum / Σweight over `count` microbatches.

    `fn(params, microbatch)` gives (sum, weight). Global row i goes to microbatch i mod count, so no row moves; random
    numbers that it draws for its rows are those of these rows, as if all were drawn at once.
    Differentiated, gradients are summed over processors once, at the end. Parameters that are stored split (FSDP) stay
    so: each microbatch gathers them where it uses them, and its gradients are added up as they are stored.
    """
    need_function(fn, "accumulate", takes=2)
    if not is_whole(count, 1):
        raise DimError(f"accumulate got count={count!r}", fix="give a whole number of at least 1, e.g. `count=8`")
    name = over.name if isinstance(over, Dim) else over
    tensors = _tensors_with(name, data)
    if not tensors:
        named = [dim.name for x in jax.tree.leaves(data, is_leaf=is_tensor) if is_tensor(x) for dim in x.dims]
        raise DimError(
            f"no tensor of the data has dim `{name}`",
            fix=f"let `over=` name the dim that is cut into microbatches: {closest(str(name), named)}",
        )
    for leaf in jax.tree.leaves(data, is_leaf=is_tensor):
        if not is_tensor(leaf) and hasattr(leaf, "shape") and leaf.shape:
            operand(leaf, "accumulate")  # raises: the rows of a plain array cannot be dealt out
    need_no_padding(union(*([x.dims.find(name)] for x in tensors)), "accumulate")
    turn = Dim(_TURN, count)
    note_loop(turn.name)
    # In a mapped function all that the microbatches meet varies as its rows do, and the gradient of each with it.
    with bringing(bring) if taken_axes() else contextlib.nullcontext():
        return _accumulate(fn, bring_in(params), bring_in(data), name, turn)


def _accumulate(fn: Callable[[Any, Any], tuple[Any, Any]], params: Any, data: Any, name: str, turn: Dim) -> Tensor:
    tensors = _tensors_with(name, data)
    stored: dict[int, Tensor] = {}  # by the tensor given
    map_tensors(lambda x: _add_stored(x, tensors, stored), params)
    pieces = [_deal_out(x, name, turn) for x in tensors]
    inner = [slot_of(x).inner(turn, x.region) for x in pieces]
    regions: list[Any] = []

    def part(weights: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        number, *rows = arrays
        held = iter(weights)  # made anew in each turn, or they would be gathered before the first
        given = map_tensors(lambda x: slot_of(stored[id(x)]).fill(next(held)) if id(x) in stored else x, params)
        slices = (slot.fill(array) for slot, array in zip(inner, rows, strict=True))
        microbatch = map_tensors(lambda x: next(slices) if x.dims.has(name) else x, data)
        with dealing(name, turn.size, number):
            pair = fn(given, microbatch)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TensorError("accumulate's function gave no pair", fix="return `(sum, weight)`, two scalars")
        scalars = [bring_in(_scalar(x)) for x in pair]
        regions[:] = [x.region for x in scalars]
        return [x.local_array.astype(jnp.promote_types(x.dtype, "float32")) for x in scalars]

    weights, arrays = (
        [x.raw for x in stored.values()],
        [jnp.arange(turn.size, dtype="uint32"), *(x.raw for x in pieces)],
    )
    closed = trace_on_slice(lambda inputs: jax.make_jaxpr(part)(weights, inputs), arrays)
    total, weight = _sum_microbatches(closed, weights, arrays)
    with part_of_block():
        return result(total, (), regions[0]) / result(weight, (), regions[1])


def _tensors_with(name: Any, data: Any) -> list[Tensor]:
    return [leaf for leaf in jax.tree.leaves(data, is_leaf=is_tensor) if is_tensor(leaf) and leaf.dims.has(name)]


def _add_stored(x: Tensor, data: Sequence[Tensor], stored: dict[int, Tensor]) -> None:
    """Adds a parameter that is stored split, varying as the data does.

    What of its gradient is not scattered in a turn is then summed once, after all.
    """
    region = common_region([x, *data])
    if region is not None and is_stored(x, region.placement(x.dims)):
        over = frozenset[str]().union(*(varying(each.raw) for each in data))
        stored[id(x)] = with_marks(vary_before_loop(x, over), marks_of(x))


def _sum_microbatches(closed: ClosedJaxpr, weights: Sequence[Any], pieces: Sequence[Any]) -> Any:
    """Σsum and Σweight over the microbatches, where `closed` is the program of one.

    It is given the weights, the same each time, and a slice of each of the pieces.
    Differentiated, each microbatch's gradients are made as soon as its sum is, and added up: nothing of one
    microbatch is kept while the next one runs, and nothing is computed twice.
    """
    count = len(closed.consts) + len(weights)

    def loop(values: Sequence[Any], starts: Sequence[Any], step: Callable[[list[Any]], tuple[Any, Any]]) -> Any:
        def turn(totals: Sequence[Any], piece: Sequence[Any]) -> tuple[Any, Any]:
            terms, kept = step([*values[:count], *piece])
            return [total + x for total, x in zip(totals, terms, strict=True)], kept

        return lax.scan(turn, [_zeros(a) for a in starts], list(values[count:]))

    @jax.custom_vjp
    def sum_up(values: Sequence[Any]) -> tuple[Any, Any]:
        return tuple(loop(values, closed.out_avals, lambda v: (outputs(closed, v), None))[0])

    def forward(primals: Sequence[Any]) -> tuple[Any, Any]:
        values = [primal.value for primal in primals]
        wanted = [p.perturbed and jnp.issubdtype(p.value.dtype, jnp.inexact) for p in primals]
        of_weight = keep_results(closed, (1, 1))
        both = [flag and fed for flag, fed in zip(wanted, uses_inputs(of_weight), strict=True)]
        starts = [v for flags in (wanted, both) for v, flag in zip(values[:count], flags[:count], strict=True) if flag]

        def step(values: list[Any]) -> tuple[Any, Any]:
            (total, weight), slopes = _value_and_slopes(lambda v: tuple(outputs(closed, v)), values, wanted)
            _, by_weight = _value_and_slopes(lambda v: (outputs(of_weight, v)[0], None), values, both)
            ahead = [s for s in (*slopes[:count], *by_weight[:count]) if s is not None]
            return [total, weight, *ahead], [slopes[count:], by_weight[count:]]

        totals, (piecewise, piecewise_by_weight) = loop(values, [*closed.out_avals, *starts], step)
        summed_slopes = iter(totals[2:])
        ahead = [[next(summed_slopes) if flag else None for flag in flags[:count]] for flags in (wanted, both)]
        return tuple(totals[:2]), ([*ahead[0], *piecewise], [*ahead[1], *piecewise_by_weight])

    def backward(slopes: Any, gradients: Any) -> Any:
        scales = [jnp.zeros((), "float32") if isinstance(g, SymbolicZero) else g for g in gradients]
        of_sum, of_weight = ([None if s is None else s * g for s in of] for of, g in zip(slopes, scales, strict=True))
        return ([a if b is None else a + b for a, b in zip(of_sum, of_weight, strict=True)],)

    sum_up.defvjp(forward, backward, symbolic_zeros=True)
    return sum_up([*closed.consts, *weights, *pieces])


def _value_and_slopes(
    fn: Callable[[list[Any]], tuple[Any, Any]], values: list[Any], wanted: Sequence[bool]
) -> tuple[Any, Any]:
    """What `fn` gives, and its first output's slopes by the values wanted, else None."""
    if not any(wanted):
        return fn(values), [None] * len(values)

    def of_wanted(chosen: Sequence[Any]) -> tuple[Any, Any]:
        left = iter(chosen)
        return fn([next(left) if flag else value for value, flag in zip(values, wanted, strict=True)])

    chosen = [value for value, flag in zip(values, wanted, strict=True) if flag]
    outputs, slopes = jax.value_and_grad(of_wanted, has_aux=True)(chosen)
    left_slopes = iter(slopes)
    return outputs, [next(left_slopes) if flag else None for flag in wanted]


def _zeros(like: Any) -> Any:
    aval = like if isinstance(like, jax.core.ShapedArray) else jax.typeof(like)
    return as_varying(jnp.zeros(aval.shape, aval.dtype), varying(like))


def _deal_out(x: Tensor, name: str, turn: Dim) -> Tensor:
    """`x` with its rows dealt out to the microbatches in turn; no row moves."""
    x, marks = with_layout(check_tensor(x), x.region), marks_of(x)
    pieces, rest = deal_rows(x, name, turn.size, option="count")
    return with_marks(settle(pieces, Shape([turn, *rest]), ((), *placement(x)), x.region), marks)


def _scalar(x: Any) -> Any:
    if is_tensor(x) and x.dims:
        raise TensorError(
            f"accumulate's function gave {x!r} where a scalar is due", fix="sum it: `wf.sum(x, over=[...])`"
        )
    return x if is_tensor(operand(x, "accumulate")) else make(jnp.asarray(x), (), None)
