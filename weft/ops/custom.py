"""Functions with a gradient of their own: jax.custom_vjp for tensors.

Forward and backward are written with wf operations on whole named tensors, so they are right on every layout. The
arrays that JAX sees in between have one type each: a tensor's slice varies over the axes its dims are split over.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..checks import need_function
from ..compat import is_differentiated
from ..errors import TensorError, fold_frames, public
from ..layout import Axes, Region, open_region
from ..leaves import is_data, is_number
from ..lower.collectives import as_varying, from_first, index, varying
from ..lower.meet import common_region, with_layout
from ..lower.move import result
from ..lower.padding import fill
from ..lower.recorded import bring_in
from ..lower.trees import Slot, check_numbers, map_tensors, put_together, take_apart
from ..tensor import Tensor, excess, is_tensor, make, placement


@public
class custom_vjp:
    """A function of trees of tensors whose gradient is given by `defvjp`.

    `f.defvjp(forward, backward)`: `forward(*args)` gives the result and what is kept of it; `backward(kept, gradient)`
    gives a tuple with the gradient of each argument, or None for zero.
    """

    def __init__(self, fn: Callable[..., Any]):
        self.fn = need_function(fn, "custom_vjp")
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None
        functools.update_wrapper(self, fn)

    @public
    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Sets what runs forward for a gradient, and what makes the gradient."""
        self.forward = need_function(forward, "defvjp")
        self.backward = need_function(backward, "defvjp", of="what was kept and the gradient", takes=2)

    @fold_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.forward is None or self.backward is None:
            raise TensorError(
                f"{self.__name__} is a custom_vjp without a gradient",  # type: ignore[attr-defined]
                fix="say how to make one: `f.defvjp(forward, backward)`",
            )
        args = bring_in(self._bind(args, kwargs))
        for fn in (self.fn, self.forward, self.backward):
            _check_closure(fn)
        leaves = jax.tree.leaves(args, is_leaf=is_tensor)
        region = common_region([leaf for leaf in leaves if is_tensor(leaf)]) or open_region()
        call = _CustomCall(self, _in_region(args, region), region)
        return call.result()

    def _bind(self, args: Any, kwargs: Any) -> Any:
        """The arguments by position."""
        try:
            bound = inspect.signature(self.fn).bind(*args, **kwargs)
        except TypeError as error:
            raise TensorError(
                f"{self.__name__} was called wrongly: {error}",  # type: ignore[attr-defined]
                fix=f"call it as `{self.__name__}{inspect.signature(self.fn)}`",  # type: ignore[attr-defined]
            ) from None
        bound.apply_defaults()
        return bound.args


def _in_region(args: Any, region: Region | None) -> Any:
    """The arguments as tensors of the region.

    If one varies from row to row of a mapped dim all do, and their gradients. Where none does, the function is no row's
    own: its backward function is given the sum of all rows' gradients.
    """
    args = map_tensors(lambda x: with_layout(x, region), args)
    if region is None or not region.taken:
        return args
    arrays = [leaf.raw for leaf in jax.tree.leaves(args, is_leaf=is_tensor) if is_tensor(leaf)]
    if not any(varying(array) & set(region.taken) for array in arrays):
        return args
    return map_tensors(lambda x: result(as_varying(x.raw, region.taken), x.dims, region), args)


def _check_closure(fn: Any) -> None:
    """Raises where `fn` closes over a tensor whose gradient would be lost."""
    code, cells = getattr(fn, "__code__", None), getattr(fn, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code is not None else (), cells, strict=False):
        try:
            held = cell.cell_contents
        except ValueError:
            continue  # not there yet
        for leaf in jax.tree.leaves(held, is_leaf=is_tensor):
            if is_tensor(leaf) and is_differentiated(leaf.raw):
                raise TensorError(
                    f"a custom_vjp closes over `{name}`, a tensor whose gradient is asked for",
                    fix=f"pass `{name}` as an argument, and let `backward` give its gradient",
                )


class _CustomCall:
    """One call: its arguments, their arrays, and what its results' arrays stand for."""

    def __init__(self, owner: custom_vjp, args: Any, region: Region | None):
        self.owner, self.region = owner, region
        leaves, self.structure = jax.tree.flatten(args, is_leaf=is_tensor)
        self.is_value = [is_data(leaf) and not is_number(leaf) for leaf in leaves]
        self.fixed = [None if value else leaf for leaf, value in zip(leaves, self.is_value, strict=True)]
        values = [leaf for leaf, value in zip(leaves, self.is_value, strict=True) if value]
        self.arrays, self.slots, _ = take_apart(values)
        self.counts = [len(jax.tree.leaves(arg, is_leaf=is_tensor)) for arg in args]
        self.made: tuple[list[Slot], Any] | None = None

    def result(self) -> Any:
        run = jax.custom_vjp(lambda *arrays: self._out(self.owner.fn(*self._args(arrays))))
        run.defvjp(self._forward, self._backward)
        arrays = run(*self.arrays)
        assert self.made is not None
        return put_together(arrays, *self.made)

    def _args(self, arrays: Sequence[Any]) -> Any:
        filled_slots = (slot.fill(array) for slot, array in zip(self.slots, arrays, strict=True))
        whole = [next(filled_slots) if value else leaf for leaf, value in zip(self.fixed, self.is_value, strict=True)]
        return jax.tree.unflatten(self.structure, whole)

    def _out(self, results: Any) -> tuple[Any, ...]:
        results = map_tensors(lambda x: equal_elsewhere(with_layout(x, self.region)), results)
        arrays, slots, structure = take_apart(results)
        self.made = slots, structure
        return tuple(check_numbers(arrays, f"the result of {self.owner.__name__}"))  # type: ignore[attr-defined]

    def _forward(self, *arrays: Any) -> tuple[Any, Any]:
        assert self.owner.forward is not None
        pair = self.owner.forward(*self._args(arrays))
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TensorError(
                f"the forward function of a custom_vjp gave {type(pair).__name__}", fix="return `(result, kept)`"
            )
        return self._out(pair[0]), pair[1]

    def _backward(self, kept: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
        assert self.owner.backward is not None and self.made is not None
        returned = self.owner.backward(kept, put_together(gradients, *self.made))
        if not isinstance(returned, tuple) or len(returned) != len(self.counts):
            what = f"{len(returned)} gradients" if isinstance(returned, tuple) else type(returned).__name__
            raise TensorError(
                f"the backward function of a custom_vjp gave {what} for {len(self.counts)} arguments",
                fix="return a tuple with one gradient for each argument, None for zero",
            )
        leaves = [leaf for count, tree in zip(self.counts, returned, strict=True) for leaf in _leaves(tree, count)]
        values = [leaf for leaf, value in zip(leaves, self.is_value, strict=True) if value]
        return tuple(map(self._gradient, values, self.slots, self.arrays))

    def _gradient(self, gradient: Any, slot: Slot, array: Any) -> Any:
        """The array of a gradient, of the type of the array it is the gradient of."""
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            return np.zeros(array.shape, jax.dtypes.float0)
        if gradient is None:
            return as_varying(jnp.zeros(array.shape, array.dtype), varying(array))
        if slot.dims is None:
            return jnp.asarray(gradient.local_array if is_tensor(gradient) else gradient).astype(array.dtype)
        if not is_tensor(gradient) or set(gradient.dims) != set(slot.dims):
            raise TensorError(
                f"the backward function of a custom_vjp gave {gradient!r:.80} for an argument [{slot.dims}]",
                fix="give the gradient of an argument the dims of the argument",
            )
        gradient = equal_elsewhere(with_layout(_reorder(gradient, slot), self.region))
        slice = fill(gradient.raw.astype(array.dtype), slot.dims, placement(gradient), 0)  # padding has no gradient
        return _to_one_copy(slice, varying(array), () if self.region is None else self.region.taken)


def _leaves(tree: Any, count: int) -> list[Any]:
    if tree is None:
        return [None] * count
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: leaf is None or is_tensor(leaf))
    if len(leaves) != count:
        raise TensorError(
            f"the backward function of a custom_vjp gave {len(leaves)} gradients for an argument of {count} tensors",
            fix="give a tree like the argument, None for zero",
        )
    return leaves


def _reorder(x: Tensor, slot: Slot) -> Tensor:
    assert slot.dims is not None
    order = [x.dims.position(dim) for dim in slot.dims]
    return x if order == sorted(order) else make(jnp.transpose(x.raw, order), slot.dims, x.region, x.kind)


def equal_elsewhere(x: Tensor) -> Tensor:
    """`x`, typed as equal over axes that split none of its dims; may all-reduce."""
    if x.region is None or not (axes := tuple(sorted(excess(x)))):
        return x
    return result(from_first(x.raw, axes), x.dims, x.region)


def _to_one_copy(gradient: Any, wanted: frozenset[str], taken: Axes) -> Any:
    """The gradient of a value with a copy on each processor, given to the first copy."""
    gradient = as_varying(gradient, wanted & set(taken))
    axes = tuple(sorted(wanted - varying(gradient)))
    if not axes:
        return gradient
    gradient = as_varying(gradient, axes)
    return jnp.where(index(axes) == 0, gradient, jnp.zeros_like(gradient))
