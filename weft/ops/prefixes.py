"""`associative_scan`: all prefixes of a sequence under an associative function.

On a split dim each processor joins the elements of its slice, one total each is exchanged, and what came before is
joined on. The function sees elements, without the dim, as in `vmap`: its axes are taken.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxpr_as_fun

from ..checks import need_function
from ..dims import Dim, DimLike, Shape, only, resolve, same_size
from ..errors import TensorError
from ..layout import Axes, Region, open_region, tracing_in
from ..lower.collectives import all_gather, as_varying, index, varying
from ..lower.meet import common_region, need_tensor, with_layout
from ..lower.move import align, result, settle
from ..lower.recorded import note_loop, recorded_block, retrace
from ..tensor import Tensor, is_tensor
from .control import trace_on_slice
from .mapping import axes_taken, prepare


@recorded_block(is_mapped=True, reason_else="because associative_scan goes over {over}, split over {axes}")
def associative_scan(fn: Callable[[Any, Any], Any], xs: Any, *, over: DimLike) -> Any:
    """Parallel prefix scan: prefixes of `xs` along the dim `over`, joined by `fn`.

    `xs` is a tree of tensors; the result is the same tree with the same dims. `fn(a, b)` joins two elements, trees of
    tensors without that dim, of which `a` came first. It must be associative.
    """
    need_function(fn, "associative_scan", takes=2)
    leaves, structure = jax.tree.flatten(xs, is_leaf=is_tensor)
    tensors = [need_tensor(leaf, "associative_scan") for leaf in leaves]
    if not tensors:
        raise TensorError("associative_scan got nothing to go along", fix="give it a tensor, or a tree of tensors")
    dim = only(resolve(over, tensors[0].dims, what="over"), "associative_scan")
    for x in tensors:
        same_size(dim, x.dims.find(dim))
    region = common_region(tensors)
    taken = axes_taken(dim, region, tensors)
    note_loop(dim.name)
    inner = region.within(taken) if region is not None else None
    shapes = [x.dims.without([dim]) for x in tensors]
    at = _shared_position(tensors, dim)
    orders = [[*dims[:at], dim, *dims[at:]] for dims in shapes]
    arrays = [
        align(prepare(x, dim, region, inner, taken).raw, x.dims, order)
        for x, order in zip(tensors, orders, strict=True)
    ]
    join = _Join(fn, arrays, at, shapes, structure, inner)
    outputs = []
    for array, x, dims, order in zip(join.prefixes(taken), tensors, shapes, orders, strict=True):
        inside = inner.placement(dims) if inner is not None else ((),) * len(dims)
        split = {dim.name: taken, **dict(zip(dims.names, inside, strict=True))}
        array = align(array, order, x.dims)
        outputs.append(settle(array, x.dims, tuple(split[d.name] for d in x.dims), region))
    return jax.tree.unflatten(structure, outputs)


def _shared_position(tensors: Sequence[Tensor], dim: Dim) -> int:
    """Where the dim stands in all of them, so that none is transposed; or first."""
    positions = {x.dims.position(dim) for x in tensors}
    return positions.pop() if len(positions) == 1 else 0


class _Join:
    """The function traced on two elements, and arrays of all, along their axis `at`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        arrays: Sequence[Any],
        at: int,
        shapes: Sequence[Shape],
        structure: Any,
        inner: Any,
    ):
        self.fn, self.at, self.shapes, self.structure = fn, at, shapes, structure
        self.inner: Region | None = inner
        self.arrays = list(arrays)
        mark: int | None = None
        for _ in range(16):
            closed, mark = retrace(
                lambda: trace_on_slice(lambda _: jax.make_jaxpr(self._flat())(*[self._first()] * 2), []), mark
            )
            axes_of_results = [varying(aval) for aval in closed.out_avals]
            if all(axes == varying(array) for axes, array in zip(axes_of_results, self.arrays, strict=True)):
                break
            self.arrays = [as_varying(array, axes) for array, axes in zip(self.arrays, axes_of_results, strict=True)]
        else:
            raise AssertionError("the type of an element did not settle")
        self.run = jaxpr_as_fun(closed)

    def _first(self) -> list[Any]:
        return [lax.index_in_dim(array, 0, self.at, keepdims=False) for array in self.arrays]

    def _flat(self) -> Callable[..., Any]:
        # A new function each time: JAX keeps what it has traced.
        def flat(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
            with tracing_in(self.inner or open_region()):
                return self._join(left, right)

        return flat

    def _join(self, left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        leaves, structure = jax.tree.flatten(self.fn(self._element(left), self._element(right)), is_leaf=is_tensor)
        if structure != self.structure:
            raise TensorError(
                f"the function of associative_scan takes elements {self.structure} and gives {structure}",
                fix="return one element: a tree of the same structure",
            )
        arrays = []
        for leaf, array, dims in zip(leaves, left, self.shapes, strict=True):
            if not is_tensor(leaf) or set(leaf.dims) != set(dims):
                given = f"[{leaf.dims}]" if is_tensor(leaf) else type(leaf).__name__
                raise TensorError(
                    f"the function of associative_scan takes an element [{dims}] and gives {given}",
                    fix="return tensors of the dims it was given; broadcast `xs` first if they grow",
                )
            if leaf.dtype != array.dtype:
                raise TensorError(
                    f"the function of associative_scan takes {array.dtype}[{dims}] and gives {leaf.dtype}",
                    fix=f"give `xs` as {leaf.dtype}, or cast in the function: `wf.cast(x, '{array.dtype}')`",
                )
            leaf = with_layout(leaf, self.inner)
            arrays.append(as_varying(align(leaf.raw, leaf.dims, dims), varying(array)))
        return arrays

    def _element(self, arrays: Sequence[Any]) -> Any:
        return jax.tree.unflatten(
            self.structure, [result(array, dims, self.inner) for array, dims in zip(arrays, self.shapes, strict=True)]
        )

    def __call__(self, left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        """Rows of elements joined one by one."""
        return jax.vmap(lambda a, b: self.run(*a, *b), in_axes=self.at, out_axes=self.at)(left, right)

    def prefixes(self, taken: Axes) -> list[Any]:
        """All prefixes, along the axis of the elements, sharded over the axes taken."""
        at = self.at
        inside = lax.associative_scan(self, self.arrays, axis=at)
        if not taken:
            return inside
        last = inside[0].shape[at] - 1
        ends = [lax.slice_in_dim(a, last, last + 1, axis=at) for a in inside]
        totals = lax.associative_scan(self, [all_gather(a, taken, at) for a in ends], axis=at)
        is_first = index(taken) == 0

        def keep(array: Any) -> Any:
            # Nothing came before the first slice: what is joined there is not used, nor may its gradient be.
            return jnp.where(is_first, lax.stop_gradient(array), array)

        before = [
            keep(lax.dynamic_index_in_dim(total, jnp.maximum(index(taken) - 1, 0), at, keepdims=False))
            for total in totals
        ]
        join = jax.vmap(lambda element: self.run(*before, *element), in_axes=at, out_axes=at)
        joined = join([keep(array) for array in inside])
        return [jnp.where(is_first, a, b) for a, b in zip(inside, joined, strict=True)]
