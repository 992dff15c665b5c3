"""Gradients with respect to trees of tensors, inside or outside a region.

JAX differentiates; here tensors are taken apart and put together. A gradient has the dims, the layout and the
storage of what it is the gradient of.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..checks import is_whole, need_function
from ..compat import is_gradient_of_while
from ..dtypes import DTypeLike
from ..errors import TensorError, WeftError, fold_frames, public
from ..layout import axes_in, open_region
from ..leaves import array_of, cure_of_no_floats, is_trained, unnamed_error
from ..lower.collectives import all_reduce, as_varying
from ..lower.meet import bring, common_region, with_layout
from ..lower.move import result
from ..lower.recorded import bringing
from ..lower.sums import is_scaled
from ..tensor import Kind, Tensor, as_dtype, check_tensor, is_tensor, make, placement, with_kind, with_marks


@public
def value_and_grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, sum_dtype: DTypeLike | None = None
) -> Callable[..., Any]:
    """A function that gives the value of `fn`, a number, and its gradients.

    With respect to the arguments `argnums`: of float tensors that are not frozen and of plain floats; other leaves get
    None. `sum_dtype` says in which dtype gradient sums travel; in float8 they do with scales. Where nothing is summed
    between processors nothing is rounded.
    """

    need_function(fn, "value_and_grad")
    positions: list[Any] = list(argnums) if isinstance(argnums, Sequence) else [argnums]
    if bad := [i for i in positions if not is_whole(i)]:
        raise TensorError(f"`argnums` holds {bad[0]!r}", fix="count positional arguments from 0: `argnums=(0, 1)`")
    sums = read_sum_dtype(sum_dtype)

    @fold_frames
    @functools.wraps(fn)
    def value_and_gradients(*args: Any, **kwargs: Any) -> Any:
        if bad := [i for i in positions if not -len(args) <= i < len(args)]:
            raise TensorError(
                f"value_and_grad is to differentiate argument {bad[0]}, and {len(args)} were given",
                fix="count positional arguments from 0 in `argnums`",
            )
        trees = [args[i] for i in positions]
        leaves, structure = jax.tree.flatten(trees, is_leaf=is_tensor)
        picked = [i for i, leaf in enumerate(leaves) if is_trained(leaf)]
        if not picked:
            fix = cure_of_no_floats(trees, "check `argnums`, and name arrays by wf.tensor")
            raise TensorError("there is no float tensor to differentiate", fix=fix)
        starts = [_prepare(leaves[i], sums) for i in picked]

        def scalar(arrays: Sequence[Any]) -> tuple[Any, Any]:
            filled = list(leaves)
            for i, start, array in zip(picked, starts, arrays, strict=True):
                filled[i] = _fill(start, array)
            whole = list(args)
            for i, tree in zip(positions, jax.tree.unflatten(structure, filled), strict=True):
                whole[i] = tree
            with _mapped_numbers(starts):
                output = fn(*whole, **kwargs)
            value, aux = _split_aux(output) if has_aux else (output, None)
            value = _need_number(value)
            return value.raw, (value, aux)

        (_, (value, aux)), arrays = _differentiate(scalar, [array_of(x) for x in starts])
        gradients: list[Any] = [None] * len(leaves)
        for i, start, array in zip(picked, starts, arrays, strict=True):
            gradients[i] = _gradient_of(start, array)
        of_trees = jax.tree.unflatten(structure, gradients)
        of_arguments = of_trees[0] if isinstance(argnums, int) else tuple(of_trees)
        return ((value, aux) if has_aux else value), of_arguments

    return value_and_gradients


def read_sum_dtype(sum_dtype: DTypeLike | None) -> Any:
    """The dtype gradient sums travel in; one that loses them is refused on any mesh."""
    if sum_dtype is None:
        return None
    dtype = as_dtype(sum_dtype)
    if not jnp.issubdtype(dtype, jnp.floating) or (jnp.finfo(dtype).bits < 16 and str(dtype) not in _SCALED):
        raise TensorError(
            f"`sum_dtype` is {dtype}, in which sums of gradients would be lost",
            state="gradients are floats, of any size",
            fix="give a float of 16 bits or more: 'float32', 'bfloat16' or 'float16'; or one of 8 that travels with "
            "scales: 'float8_e4m3fn' or 'float8_e5m2'",
        )
    return dtype


_SCALED = ("float8_e4m3fn", "float8_e5m2")


def _differentiate(scalar: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    try:
        return jax.value_and_grad(scalar, has_aux=True)(arrays)
    except ValueError as error:
        if not is_gradient_of_while(error) or isinstance(error, WeftError):
            raise
        raise TensorError(
            "a gradient was asked for through a while_loop, which keeps nothing of its turns",
            fix="use `wf.scan`, or `wf.fori_loop` with Python integers for its bounds",
        ) from error


@public
def grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, sum_dtype: DTypeLike | None = None
) -> Callable[..., Any]:
    """As `value_and_grad`, without the value; with `has_aux`, gradients and the rest."""
    value_and_gradients = value_and_grad(fn, argnums, has_aux, sum_dtype)

    @fold_frames
    @functools.wraps(fn)
    def gradients(*args: Any, **kwargs: Any) -> Any:
        value, of_arguments = value_and_gradients(*args, **kwargs)
        return (of_arguments, value[1]) if has_aux else of_arguments

    return gradients


_OF_COPIES = "because every processor along {axes} has a copy, and each copy a part of the gradient"


def _mapped_numbers(starts: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """While a function is traced that is differentiated by numbers of a mapped dim."""
    region = open_region()
    if region is None or not region.taken or all(map(is_tensor, starts)):
        return contextlib.nullcontext()
    return bringing(bring)


def _fill(start: Any, array: Any) -> Any:
    """What is differentiated by, in the place of the leaf it started as."""
    if not is_tensor(start):
        return array
    return with_marks(make(array, start.dims, start.region, start.kind), {"has_gradient": True})


def _gradient_of(x: Any, gradient: Any) -> Any:
    if not is_tensor(x):
        return gradient
    # Of a gathered tensor every processor has a copy, and each copy a part of the gradient.
    if x.kind.equal:
        assert x.region is not None
        with x.region.record.unasked("gradient", _OF_COPIES):
            gradient = all_reduce(gradient, tuple(sorted(x.kind.equal)))
    return make(gradient, x.dims, x.region, Kind(store=x.kind.store))


def _prepare(x: Any, sum_dtype: Any) -> Any:
    """What to differentiate by: of a tensor on a mapped dim's axes, for each example."""
    region = open_region()
    if not is_tensor(x):
        if getattr(x, "shape", ()):
            raise unnamed_error(x, "what is to be differentiated by")
        return as_varying(jnp.asarray(x), region.taken) if region is not None else jnp.asarray(x)
    x = check_tensor(x)
    if region is not None and region.taken:
        x = with_layout(x, region)
        return result(as_varying(x.raw, region.taken), x.dims, region)
    if x.region is not None:
        x = make(as_varying(x.raw, axes_in(placement(x))), x.dims, x.region, x.kind)
    if sum_dtype is None:
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not is_scaled(sum_dtype):  # both parts, in the least JAX has
        sum_dtype = jnp.promote_types(sum_dtype, jnp.complex64)
    return with_kind(x, sums=sum_dtype)


def _split_aux(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TensorError(f"has_aux=True, and the function gave {type(result).__name__}", fix="return `(loss, aux)`")
    return result


def _need_number(value: Any) -> Tensor:
    if isinstance(value, tuple):
        raise TensorError("the function to differentiate gave a tuple", fix="say `has_aux=True` for `(loss, aux)`")
    if not is_tensor(value) and not hasattr(value, "dtype") and not isinstance(value, int | float):
        raise TensorError(f"the function to differentiate gave {value!r:.60}", fix="return the loss, one number")
    if not is_tensor(value):
        value = make(jnp.asarray(value), (), None) if getattr(value, "shape", ()) == () else value
    if not is_tensor(value) or value.dims:
        shown = repr(value) if is_tensor(value) else f"an array of shape {value.shape}"
        raise TensorError(
            f"the function to differentiate gave {shown}", fix="give one number: `wf.mean(loss, over=[...])`"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TensorError(f"the function to differentiate gave {value.dtype}", fix="cast it: `wf.cast(x, 'float32')`")
    return value if common_region([value]) is None else with_layout(value, value.region)
