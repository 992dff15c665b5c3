"""The collectives: the only file that touches jax.lax's.

Works on local arrays and mesh axes; knows no dims. JAX types every value inside a region with the axes it varies
over (`varying`). A sum over an axis its operand does not vary over would multiply silently, so every collective
here first makes its operand vary (`as_varying`).

Where gradients are summed over processors. Almost always JAX does it, as the transpose of what the forward pass does:

1. A value that is equal over an axis meets one that varies over it (`meet.Meeting.run`): it is cast by `as_varying`,
   whose transpose is an all-reduce. The cast stands where the value was made (`level_of`), once however often it is
   used, so that weights used in a loop are summed once, after it.
2. A parameter stored split (FSDP, the `params.` rules) is gathered where it is used (`meet.Meeting.run`): the
   transpose of `all_gather` is a reduce-scatter, and the gradient leaves as the parameter is stored.

By hand, because no transpose does it:

3. With `sum_dtype` the same sums travel in another dtype than the values (`stored.sum_in`).
4. Where optimizer state is stored finer than its parameter (ZeRO-1, the `optimizer.` rules), the gradient is
   reduce-scattered to the slice that is updated (`spmd.zero`).
5. What is differentiated by is a copy on every processor, gathered inside the region, and each copy has a part of the
   gradient: an all-reduce (`spmd.gradients`).

Where a bar of the mesh parts the axes, what is sent goes in steps, one a level (`levels`): the ways there and back are
those of the one collective they stand for.

Nothing is summed where all processors do the same with a gathered value (`all_gather_equal`: the gradient is a slice),
or take their slices of an equal one (`own_slice`: the gradient is an all-gather).
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive, get_opaque_trace_state, set_current_trace
from jax.interpreters import ad, batching, mlir

from ..compat import trace_of, with_more_varying
from ..compat import varying as varying  # asked for together with the collectives
from ..layout import Axes, open_region, tracing_in
from ..record import sum_scope
from . import levels
from .levels import Steps, axes_of, steps_of


def level_of(array: Any) -> contextlib.AbstractContextManager[Any]:
    """Runs what is inside at the level of tracing where `array` was made.

    Work on a value closed over by a loop body then lands before the loop, and its gradient is summed once, after it.
    """
    if isinstance(array, jax.core.Tracer):
        return set_current_trace(trace_of(array))
    return contextlib.nullcontext()


def is_level_of(array: Any) -> bool:
    """Whether tracing is where `array` was made, not in a loop or remat inside it."""
    now = get_opaque_trace_state()
    with level_of(array):
        return now == get_opaque_trace_state()


def as_varying(array: Any, axes: Any) -> Any:
    """The same value typed as varying over these axes too; its transpose all-reduces."""
    missing = tuple(sorted(set(axes) - varying(array)))
    if not missing:
        return array
    aval = jax.typeof(array)
    steps = steps_of(missing, _bytes(aval)) if jnp.issubdtype(aval.dtype, jnp.inexact) else ()
    if len(steps) > 1:
        return vary_by_levels.bind(array, steps=steps)
    return lax.pcast(array, missing, to="varying")


vary_by_levels = Primitive("vary_by_levels")
"""As JAX's own cast to varying, which is transposed to one flat sum: this one's goes in steps."""
vary_by_levels.def_abstract_eval(lambda aval, *, steps: with_more_varying(aval, axes_of(steps)))
mlir.register_lowering(vary_by_levels, lambda _, array, *, steps: [array])
ad.deflinear2(vary_by_levels, lambda gradient, _, *, steps: [_sum_by_levels(gradient, steps)])
batching.primitive_batchers[vary_by_levels] = lambda arrays, positions, *, steps: (
    vary_by_levels.bind(*arrays, steps=steps),
    *positions,
)


def _bytes(array: Any) -> int:
    return math.prod(array.shape) * array.dtype.itemsize


def index(axes: Axes) -> Any:
    """This processor's number along these axes, the first one major."""
    return lax.axis_index(axes if len(axes) > 1 else axes[0])


def first_place(axes: Axes, own: int) -> Any:
    """The global index of the first of `own` places held here of a dim split so."""
    return index(axes) * own if axes else 0


def all_reduce(array: Any, axes: Axes) -> Any:
    """The sum over these axes, on every processor; of booleans whether any is true."""
    if not axes:
        return array
    return _sum(array, axes, lambda numbers: _sum_by_levels(numbers, steps_of(axes, _bytes(numbers))))


def _sum_by_levels(array: Any, steps: Steps) -> Any:
    """The sum of what varies over the axes; its gradient is what it is of one step."""
    axes = axes_of(steps)

    def total(array: Any) -> Any:
        return _reduce_by_levels(array, steps, scatter=_scatter, reduce=lax.psum)

    if len(steps) == 1:
        return lax.psum(array, axes)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return total(array)
    # Transposed step by step it would be sent again; transposed as one sum it is a cast.
    once = jax.custom_jvp(total)
    once.defjvp(lambda primals, tangents: (once(*primals), lax.psum(tangents[0], axes)))
    return once(array)


def _reduce_by_levels(array: Any, steps: Steps, *, scatter: Callable[..., Any], reduce: Callable[..., Any]) -> Any:
    """Scattered level by level from the inside out, reduced between, gathered back.

    Along the first dim that divides; where none does, along all numbers, with a few more at the end.
    """
    *inside, outermost = steps
    ways = lax.axis_size(axes_of(tuple(inside)))
    position = next((i for i, size in enumerate(array.shape) if size % ways == 0), None)
    part, along = array, position or 0
    if position is None:
        part = lax.pad(array.reshape(-1), np.zeros((), array.dtype), [(0, -array.size % ways, 0)])
    with sum_scope(axes_of(steps)):
        for axes in inside:
            part = scatter(part, axes, along)
        part = reduce(part, outermost)
        for axes in reversed(inside):
            part = lax.all_gather(part, axes, axis=along, tiled=True, to="invarying")
    return part if position is not None else part[: array.size].reshape(array.shape)


def _scatter(array: Any, axes: Axes, position: int) -> Any:
    return lax.psum_scatter(array, axes, scatter_dimension=position, tiled=True)


def reduce_scatter(array: Any, axes: Axes, position: int) -> Any:
    """The sum (of booleans, any) over these axes, of which each keeps its slice."""

    def send(numbers: Any) -> Any:
        steps = steps_of(axes, _bytes(numbers))
        if len(steps) == 1:
            return _scatter(numbers, axes, position)
        parts = levels.part(numbers, axes, steps, position)
        for i, step in enumerate(steps, 1):
            parts = _scatter(parts, step, position + len(steps) - i)
        return levels.merge(parts, position, len(steps) + 1)

    return _sum(array, axes, send)


def _sum(array: Any, axes: Axes, send: Callable[[Any], Any]) -> Any:
    if array.dtype != bool:
        return send(as_varying(array, axes))
    counts = array.astype("uint8" if lax.axis_size(axes) < 256 else "int32")
    return send(as_varying(counts, axes)) != 0


def all_gather(array: Any, axes: Axes, position: int) -> Any:
    """The slices of all processors along these axes, concatenated.

    The gradient is a reduce-scatter. The result is the same everywhere but typed as varying: see `all_gather_equal`.
    """
    return _gather(array, axes, position, "varying")


def all_gather_equal(array: Any, axes: Axes, position: int) -> Any:
    """As `all_gather`, typed as equal on all processors; the gradient is a slice."""
    return _gather(array, axes, position, "invarying")


def _gather(array: Any, axes: Axes, position: int, to: str) -> Any:
    array = as_varying(array, axes)
    steps = steps_of(axes, _bytes(array) * lax.axis_size(axes))
    if len(steps) == 1:
        return lax.all_gather(array, axes, axis=position, tiled=True, to=to)
    parts = jnp.expand_dims(array, [position + i for i in range(len(steps))])
    for i, step in enumerate(reversed(steps)):
        parts = lax.all_gather(parts, step, axis=position + i, tiled=True, to=to)
    return levels.join(parts, axes, steps, position)


def all_to_all(array: Any, axes: Axes, *, split: int, join: int) -> Any:
    """The axes move from dim `join`, which becomes whole, to dim `split`."""
    array = as_varying(array, axes)
    steps = levels.steps_of_exchange(axes, _bytes(array))
    if len(steps) == 1:
        return lax.all_to_all(array, axes, split_axis=split, concat_axis=join, tiled=True)
    # One dim a level of where numbers go to, in the place of `split`, and of where they came from, before `join`.
    count = len(steps)
    parts = levels.part(array, axes, steps, split)
    join += count * (split < join)
    parts = jnp.expand_dims(parts, [join + i for i in range(count)])
    split += count * (join < split)
    for i, step in zip(reversed(range(count)), steps, strict=True):
        parts = lax.all_to_all(parts, step, split_axis=split + i, concat_axis=join + i, tiled=True)
    if split > join:
        return levels.join(levels.merge(parts, split, count + 1), axes, steps, join)
    return levels.merge(levels.join(parts, axes, steps, join), split, count + 1)


def permute(array: Any, axes: Axes, pairs: Sequence[tuple[int, int]]) -> Any:
    """What the first of each pair holds, on the second; zeros on those in none."""
    ordered, numbers = _in_mesh_order(axes)
    moved, pairs = _along_moved_axes(ordered, [(numbers[a], numbers[b]) for a, b in pairs])
    return lax.ppermute(as_varying(array, axes), moved, pairs)


def _along_moved_axes(axes: Axes, pairs: list[tuple[int, int]]) -> tuple[Axes, list[tuple[int, int]]]:
    """The axes that pairs cross, and the pairs there; all, where they differ on one."""
    sizes = np.array([jax.sharding.get_abstract_mesh().shape[axis] for axis in axes])
    sources, targets = (np.stack(np.unravel_index(list(numbers), sizes), -1) for numbers in zip(*pairs, strict=True))
    crossed = (sources != targets).any(0)
    if crossed.all() or not crossed.any():
        return axes, pairs
    within = [np.ravel_multi_index(tuple(places[:, crossed].T), sizes[crossed]) for places in (sources, targets)]
    once = sorted({(int(a), int(b)) for a, b in zip(*within, strict=True)})
    if len(once) * math.prod(sizes[~crossed]) != len(pairs):
        return axes, pairs
    return tuple(axis for axis, is_crossed in zip(axes, crossed, strict=True) if is_crossed), once


def _in_mesh_order(axes: Axes) -> tuple[Axes, list[int]]:
    """Axes in the mesh's order, in which JAX's permute counts, and the numbers there."""
    mesh = jax.sharding.get_abstract_mesh()
    ordered = tuple(axis for axis in mesh.axis_names if axis in axes)
    grid = np.arange(math.prod(mesh.shape[axis] for axis in axes)).reshape([mesh.shape[axis] for axis in ordered])
    return ordered, grid.transpose([ordered.index(axis) for axis in axes]).reshape(-1).tolist()


def own_slice(array: Any, axes: Axes, position: int, ways: int) -> Any:
    """This processor's slice of a dim that is whole; nothing is sent."""
    if jnp.issubdtype(array.dtype, jnp.inexact) and not varying(array) & set(axes):
        return _own_slice_of_equal(array, axes, position, ways)
    return _own_slice(array, axes, position, ways)


def _own_slice(array: Any, axes: Axes, position: int, ways: int) -> Any:
    size = array.shape[position] // ways
    return lax.dynamic_slice_in_dim(as_varying(array, axes), index(axes) * size, size, position)


def _own_slice_of_equal(array: Any, axes: Axes, position: int, ways: int) -> Any:
    # Differentiated as it stands the slice's gradient would be an all-reduce of mostly zeros; a gather of the
    # slices is the same value at half the bytes on the wire.
    region = open_region()

    @jax.custom_vjp
    def slice_own(whole: Any) -> Any:
        return _own_slice(whole, axes, position, ways)

    def backward(_: None, gradient: Any) -> tuple[Any]:
        with tracing_in(region):  # a gradient may be taken from outside
            return (all_gather_equal(gradient, axes, position),)

    slice_own.defvjp(lambda whole: (_own_slice(whole, axes, position, ways), None), backward)
    return slice_own(array)


def from_first(array: Any, axes: Axes) -> Any:
    """A value equal over these axes but typed as varying, retyped by an all-reduce."""
    is_first = index(axes) == 0
    masked = jnp.where(is_first, array, jnp.zeros_like(array))
    return from_holder(lambda a: all_reduce(a, axes), masked, axes)


def from_holder(send: Callable[[Any], Any], array: Any, axes: Axes) -> Any:
    """`send`, a sum over axes, of what only one processor holds: its very bits.

    At each place the array is zero on all processors along the axes but one. A sum of floats may begin with 0, and 0
    + -0 is 0; so bits are sent, as integers. The gradient is that of the sum.
    """
    if not axes or not jnp.issubdtype(array.dtype, jnp.inexact):
        return send(array)

    @jax.custom_jvp
    def exact(array: Any) -> Any:
        bits = _to_bits(array)
        pairs = _pairs(bits, lax.axis_size(axes))
        return _from_bits(_unpack(send(_pack(bits, pairs)), pairs), array.dtype)

    @exact.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return exact(*primals), send(*tangents)

    return exact(array)


def _to_bits(array: Any) -> Any:
    if jnp.iscomplexobj(array):
        array = jnp.stack([array.real, array.imag], axis=-1)
    return lax.bitcast_convert_type(array, f"uint{jnp.finfo(array.dtype).bits}")


def _from_bits(bits: Any, dtype: Any) -> Any:
    floats = lax.bitcast_convert_type(bits, jnp.finfo(dtype).dtype)
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return floats
    return lax.complex(floats[..., 0], floats[..., 1])


# GPUs add up no integers of 16 bits, and XLA would send twice as much. So two of them, side by side, go as one of 32.
def _pairs(bits: Any, ways: int) -> int | None:
    """The dim along which 16-bit integers go in pairs that no scatter parts, or None."""
    if bits.dtype != "uint16":
        return None
    return next((i for i in reversed(range(bits.ndim)) if bits.shape[i] % (2 * ways) == 0), None)


def _pack(bits: Any, position: int | None) -> Any:
    if position is None:
        return bits
    low, high = (lax.slice_in_dim(bits, i, None, 2, axis=position).astype("uint32") for i in range(2))
    return low | (high << 16)


def _unpack(bits: Any, position: int | None) -> Any:
    if position is None:
        return bits
    both = jnp.stack([bits.astype("uint16"), (bits >> 16).astype("uint16")], axis=position + 1)
    return both.reshape([2 * n if i == position else n for i, n in enumerate(bits.shape)])


def all_max(array: Any, axes: Axes) -> Any:
    """The maximum over these axes; NaN wins, as in jnp. Has no gradient."""
    if not axes:
        return array
    if array.dtype == bool:
        return all_reduce(array, axes)
    if jnp.iscomplexobj(array):
        return _all_max_of_complex(array, axes)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return _max_by_levels(array, axes)
    return _from_ordered(_max_by_levels(_to_ordered(array), axes), array.dtype)


def _max_by_levels(array: Any, axes: Axes) -> Any:
    array = as_varying(array, axes)
    steps = steps_of(axes, _bytes(array))
    if len(steps) == 1:
        return lax.pmax(array, axes)
    return _reduce_by_levels(array, steps, scatter=_scatter_max, reduce=lax.pmax)


def _scatter_max(array: Any, axes: Axes, position: int) -> Any:
    """Each one's slice of the maximum: all of its pieces here, then the largest."""
    shape, ways = array.shape, lax.axis_size(axes)
    parts = array.reshape(*shape[:position], ways, shape[position] // ways, *shape[position + 1 :])
    return lax.all_to_all(parts, axes, split_axis=position, concat_axis=position, tiled=True).max(position)


def _all_max_of_complex(array: Any, axes: Axes) -> Any:
    """By the real part, of equal ones by the imaginary part."""
    real = all_max(array.real, axes)
    is_best = (array.real == real) | jnp.isnan(real)
    return lax.complex(real, all_max(jnp.where(is_best, array.imag, -jnp.inf), axes))


def all_min(array: Any, axes: Axes) -> Any:
    """The minimum over these axes; NaN wins, as in jnp. Has no gradient."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return ~all_max(~array, axes)
    return -all_max(-array, axes)


def max_for_shift(array: Any, axes: Axes) -> Any:
    """The maximum for a shift before exp: a NaN need not win; it has no gradient."""
    return _max_by_levels(lax.stop_gradient(array), axes) if axes else lax.stop_gradient(array)


def as_ordered(array: Any) -> Any:
    """Integers that order as the values do, with NaN on top; the two zeros are one."""
    if array.dtype == bool:
        return array.astype("uint8")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return _to_ordered(jnp.where(array == 0, jnp.zeros_like(array), array))


# The libraries below drop NaNs in a maximum. Integers that order as the floats do, with NaN on top, cannot.
def _to_ordered(array: Any) -> Any:
    wide = array if array.dtype.itemsize == 8 else array.astype("float32")
    integer = jnp.int64 if wide.dtype.itemsize == 8 else jnp.int32
    bits = lax.bitcast_convert_type(jnp.where(jnp.isnan(wide), jnp.full_like(wide, jnp.nan), wide), integer)
    return jnp.where(bits < 0, bits ^ jnp.iinfo(integer).max, bits)


def _from_ordered(ordered: Any, dtype: Any) -> Any:
    bits = jnp.where(ordered < 0, ordered ^ jnp.iinfo(ordered.dtype).max, ordered)
    wide = lax.bitcast_convert_type(bits, jnp.float64 if ordered.dtype.itemsize == 8 else jnp.float32)
    return wide.astype(dtype)
