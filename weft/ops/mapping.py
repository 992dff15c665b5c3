"""`vmap` by name: a function of one example, mapped over a dim.

Where the dim is split its axes are taken: nothing inside may use them, and what is not mapped is made to vary over
them first, so that each example's gradient is its own.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax

from ..checks import need_function
from ..dims import Dim, DimLike, Shape, list_dims, only, union
from ..errors import DimError, public
from ..layout import Axes, Region, open_region, tracing_in
from ..lower.collectives import from_first, varying
from ..lower.meet import common_region, with_layout
from ..lower.move import common, relocate, settle
from ..lower.padding import fill
from ..lower.recorded import note_loop, recorded_block
from ..lower.trees import Slot, check_numbers, map_tensors, put_together, slot_of, take_apart
from ..tensor import Kind, is_tensor, make, marks_of, with_marks

_is_mapped: contextvars.ContextVar[bool] = contextvars.ContextVar("inside a mapped function", default=False)


@contextlib.contextmanager
def _mapping() -> Iterator[None]:
    token = _is_mapped.set(True)
    try:
        yield
    finally:
        _is_mapped.reset(token)


def is_mapped() -> bool:
    """Whether what is traced now is for one row of a mapped function."""
    return _is_mapped.get()


@public
def vmap(fn: Callable[..., Any], *, over: DimLike) -> Callable[..., Any]:
    """`fn` of each slice along the dim `over`; arguments without it go to every call."""

    need_function(fn, "vmap")

    def mapped(*args: Any) -> Any:
        need_function(fn, "vmap", takes=len(args))
        leaves, structure = jax.tree.flatten(args, is_leaf=is_tensor)
        tensors = [leaf for leaf in leaves if is_tensor(leaf)]
        dim = _mapped_dim(over, tensors)
        region = _region_of(tensors)
        taken = axes_taken(dim, region, tensors)
        note_loop(dim.name, examples=dim.size // (region.ways(taken) if region is not None else 1))
        inner = region.within(taken) if region is not None else None
        leaves = [_fill_padding(prepare(leaf, dim, region, inner, taken), dim, region, taken) for leaf in leaves]
        slots = [_inner_slot(leaf, dim, inner) for leaf in leaves]
        axes = [leaf.dims.position(dim) if is_tensor(leaf) and leaf.dims.has(dim) else None for leaf in leaves]
        form: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            with tracing_in(inner or open_region()), _mapping():
                results_inside = map_tensors(
                    lambda x: with_layout(x, inner or x.region), fn(*put_together(arrays, slots, structure))
                )
            results, *form[:] = take_apart(results_inside)
            return check_numbers(results, "the result of vmap")

        arrays = check_numbers([leaf.raw if is_tensor(leaf) else leaf for leaf in leaves], "the arguments of vmap")
        results = jax.vmap(flat, in_axes=tuple(axes), out_axes=0)(*arrays)
        outputs = [_add_dim(slot, array, dim, region, taken) for slot, array in zip(form[0], results, strict=True)]
        return jax.tree.unflatten(form[1], outputs)

    because = "because it is the same for every {over}, which is split over {axes}"
    return recorded_block(name="vmap", is_mapped=True, reason_else=because)(mapped)


def _mapped_dim(over: DimLike, tensors: list[Any]) -> Dim:
    names = list_dims(over, "over")
    at_hand = union(*([x.dims.find(name) for name in names if x.dims.has(name)] for x in tensors))
    for name in names:
        if not at_hand.has(name):
            known = " ".join(dict.fromkeys(repr(dim) for x in tensors for dim in x.dims))
            raise DimError(
                f"vmap goes over {over!r}, which no argument has: [{known}]", fix="name a dim of an argument"
            )
    return only(Shape(at_hand.find(name) for name in names), "vmap")


def _region_of(tensors: list[Any]) -> Region | None:
    """The region a function is mapped in: that of a map around it, if there is one."""
    region, here = common_region(tensors), open_region()
    return here if region is not None and region.encloses(here) else region


def axes_taken(dim: Dim, region: Region | None, tensors: list[Any]) -> Axes:
    """The axes a mapped dim is split over in all that have it."""
    if region is None:
        return ()
    held = [region.placement(x.dims)[x.dims.position(dim)] for x in tensors if x.dims.has(dim)]
    return functools.reduce(common, held)


def prepare(leaf: Any, dim: Dim, region: Region | None, inner: Region | None, taken: Axes) -> Any:
    """A mapped tensor sharded as agreed; any other, varying over the axes taken."""
    if not is_tensor(leaf) or region is None or inner is None:
        return leaf
    marks = marks_of(leaf)
    if not leaf.dims.has(dim):
        return with_marks(with_layout(leaf, inner), marks)
    leaf = with_layout(leaf, region)
    rest = leaf.dims.without([dim])
    want = dict(zip(rest.names, inner.placement(rest), strict=True)) | {dim.name: taken}
    placed = relocate(leaf.raw, region.placement(leaf.dims), tuple(want[d.name] for d in leaf.dims), region)
    equal = varying(placed) - {axis for axes in want.values() for axis in axes}
    return with_marks(make(placed, leaf.dims, region, Kind(equal=equal)), marks)


def _fill_padding(leaf: Any, dim: Dim, region: Region | None, taken: Axes) -> Any:
    """A mapped tensor with its first row as padding: loops end, slopes are finite."""
    if not is_tensor(leaf) or not leaf.dims.has(dim) or not dim.is_padded:
        return leaf
    array, at = leaf.raw, leaf.dims.position(dim)
    own, ways = array.shape[at], region.ways(taken) if region is not None else 1
    first = lax.stop_gradient(lax.slice_in_dim(array, 0, 1, axis=at))
    if (ways - 1) * own >= dim.count:  # the last processor has padding alone
        first = from_first(first, taken)
    placed = tuple(taken if place == at else () for place in range(len(leaf.dims)))
    return with_marks(
        make(fill(array, leaf.dims, placed, first, [dim]), leaf.dims, leaf.region, leaf.kind), marks_of(leaf)
    )


def _inner_slot(leaf: Any, dim: Dim, inner: Region | None) -> Slot:
    if not is_tensor(leaf):
        return Slot()
    if not leaf.dims.has(dim):
        return slot_of(leaf)
    return slot_of(leaf).inner(dim, inner)


def _add_dim(slot: Slot, array: Any, dim: Dim, region: Region | None, taken: Axes) -> Any:
    if slot.dims is None and array.ndim > 1:
        return array
    region = region or slot.region  # a constant was mapped, by a function that closes over tensors of a region
    dims = Shape([dim, *(slot.dims or ())])
    inside = slot.region.placement(slot.dims) if slot.region is not None and slot.dims else ((),) * (len(dims) - 1)
    return settle(array, dims, (taken, *inside), region)
