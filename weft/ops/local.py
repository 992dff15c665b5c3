"""The escape hatch: any JAX function on local slices, as a Pallas kernel.

The caller says which dims the result has, which must be whole, and which are summed; a split dim that is none of
these would silently differ between processors, and is an error.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..checks import need_function
from ..dims import Dim, DimLike, Dims, Shape, list_dims, rename_dims, resolve, union
from ..errors import DimError, LayoutError, TensorError, WeftError
from ..graph import visits
from ..layout import Region
from ..lower.collectives import all_reduce, index, varying
from ..lower.meet import Meeting, meet, operand
from ..lower.move import settle
from ..lower.padding import need_no_padding
from ..lower.recorded import recorded
from ..lower.unchecked import call_unchecked
from ..primitives import Role, kind_of
from ..record import SUMS
from ..tensor import Tensor, is_tensor
from .einsum import read_rename


class Here:
    """Where this processor's slices lie in the whole."""

    def __init__(self, meeting: Meeting):
        self._meeting = meeting

    def start(self, dim: DimLike) -> Any:
        """The global index at which the local slice of this dim starts."""
        named = self._meeting.dims.find(dim)
        axes = self._meeting.axes([named])
        return index(axes) * self.size(named) if axes else 0

    def size(self, dim: DimLike) -> int:
        """The local size of this dim."""
        return self._meeting.local_sizes([self._meeting.dims.find(dim)])[0]

    def sum(self, array: Any, dim: DimLike) -> Any:
        """The sum of an array over the slices of this dim: an all-reduce if split."""
        return all_reduce(array, self._meeting.axes([self._meeting.dims.find(dim)]))


@recorded(
    arguments_before=1,
    reason_along=SUMS,
    reason_else="because the function given to local calls it over {axes}",
)
def local(
    fn: Callable[..., Any],
    *xs: Any,
    out: Dims | Sequence[Dims],
    whole: Dims = (),
    summed: Dims = (),
    rename: Mapping[Any, DimLike] | None = None,
) -> Any:
    """`fn` of the local arrays of `xs`, giving an array of the dims `out`.

    A list of such dims is for several arrays. `whole` dims must not be split; `summed` dims come back as partial sums
    and are added up; `rename` lets the results leave under new names, as in `einsum`. If `fn` takes `here`, it is told
    where its slices lie.
    """
    names = read_rename(rename)
    need_function(fn, "local", of="arrays")
    xs = tuple(operand(x, "local") for x in xs)
    known = union(*(x.dims for x in xs if is_tensor(x)))
    shapes, is_single = _result_shapes(out, known)
    meeting = meet(xs, union(*shapes))
    gone = resolve(summed, known, what="summed")
    need_no_padding(gone, "local")
    if both := next((dim.name for dim in gone for shape in shapes if shape.has(dim)), None):
        raise DimError(f"local sums `{both}` and keeps it in `out`", fix=f"take `{both}` out of `out` or of `summed`")
    _check_accounted(meeting, known, shapes, resolve(whole, meeting.dims, what="whole"), gone)
    takes_here = "here" in inspect.signature(fn).parameters if _has_signature(fn) else False

    run = functools.partial(fn, here=Here(meeting)) if takes_here else fn
    result = meeting.run(lambda *arrays: _call(run, arrays, meeting.region), xs)
    arrays = [result] if is_single else list(result) if isinstance(result, list | tuple) else [result]
    if len(arrays) != len(shapes):
        raise TensorError(
            f"local's function gave {len(arrays)} arrays, and `out` names {len(shapes)}", fix="match them"
        )
    for array in arrays:
        if not hasattr(array, "shape") and not isinstance(array, bool | int | float | complex):
            raise TensorError(
                f"local's function gave {type(array).__name__}", fix="return one array for each shape in `out`"
            )
    _check_variation(meeting, [jnp.asarray(array) for array in arrays], xs, shapes)
    results = [_settle(meeting, array, shape, gone, names) for array, shape in zip(arrays, shapes, strict=True)]
    return results[0] if is_single else tuple(results)


def _call(fn: Callable[..., Any], arrays: Sequence[Any], region: Region | None) -> Any:
    """`fn` of slices, traced apart where JAX refuses it for its types in a region."""
    places = [i for i, x in enumerate(arrays) if hasattr(x, "dtype")]

    def of_slices(*slices: Any) -> Any:
        by_place = dict(zip(places, slices, strict=True))
        return fn(*(by_place.get(i, x) for i, x in enumerate(arrays)))

    slices = [arrays[i] for i in places]
    try:
        if region is None or _is_accepted(of_slices, slices):
            return of_slices(*slices)
        return call_unchecked(of_slices, *slices)
    except (TypeError, ValueError) as error:
        shapes = ", ".join(str(getattr(x, "shape", x)) for x in arrays)
        raise TensorError(
            f"local's function failed on slices of shapes {shapes}: {str(error).strip()}",
            fix="mend the function: called alone on arrays of these shapes it fails in the same way",
        ) from error


def _is_accepted(fn: Callable[..., Any], slices: Sequence[Any]) -> bool:
    """Whether JAX takes `fn` inside a region, and the gradients it defines by hand."""
    try:
        jaxpr = jax.make_jaxpr(fn)(*slices).jaxpr
        if any(kind_of(visit.eqn) is Role.CUSTOM_GRADIENT for visit in visits(jaxpr)):
            jax.make_jaxpr(functools.partial(_gradients, fn))(*slices)
    except WeftError:
        raise
    except Exception:  # JAX raises several kinds; what fails without its types too is raised by the call itself
        return False
    return True


def _gradients(fn: Callable[..., Any], *slices: Any) -> Any:
    """Some gradients of `fn`, by which to see that there are any."""
    differs = [jnp.issubdtype(x.dtype, jnp.inexact) for x in slices]

    def of_floats(*floats: Any) -> list[Any]:
        left = iter(floats)
        result = fn(*(next(left) if is_one else x for x, is_one in zip(slices, differs, strict=True)))
        return [x for x in map(jnp.asarray, jax.tree.leaves(result)) if jnp.issubdtype(x.dtype, jnp.inexact)]

    results, pull_back = jax.vjp(of_floats, *(x for x, is_one in zip(slices, differs, strict=True) if is_one))
    return pull_back(results)


def _check_variation(meeting: Meeting, arrays: Sequence[Any], xs: Sequence[Any], shapes: Sequence[Shape]) -> None:
    """Raises where results differ over an axis that no operand or dim accounts for."""
    if meeting.region is None:
        return
    known = {axis for x in xs if is_tensor(x) for axis in varying(x.raw) | set(meeting.axes(x.dims))}
    for array, shape in zip(arrays, shapes, strict=True):
        if differing := varying(array) - known - set(meeting.axes(shape)):
            raise LayoutError(
                f"local's result differs over {', '.join(f'`{axis}`' for axis in sorted(differing))}, "
                f"which splits no dim of [{shape}]",
                state=meeting.region.state,
                fix="let the function depend on its slices and on `here` alone",
            )


def _settle(meeting: Meeting, array: Any, shape: Shape, gone: Shape, names: Mapping[str, DimLike]) -> Tensor:
    sizes = meeting.local_sizes(shape)
    array = jnp.asarray(array)
    if array.shape != sizes:
        raise TensorError(
            f"local's function gave an array of shape {array.shape} where the slice of [{shape}] has {sizes}",
            state=meeting.region.state if meeting.region else "",
            fix="return the local slice, with the dims in the order of `out`",
        )
    left = rename_dims(shape, {old: new for old, new in names.items() if shape.has(old)})
    return settle(array, left, meeting.placement(shape), meeting.region, partial=meeting.axes(gone))


def _result_shapes(out: Any, known: Shape) -> tuple[list[Shape], bool]:
    several = isinstance(out, list | tuple) and any(isinstance(item, list | tuple) for item in out)
    shapes = []
    for one in out if several else [out]:
        items = list_dims(one, "out")
        for item in items:
            if isinstance(item, str):
                resolve(item, known, what="out")
        shapes.append(Shape(item if isinstance(item, Dim) else known.find(item) for item in items))
    return shapes, not several


def _check_accounted(meeting: Meeting, known: Shape, shapes: Sequence[Shape], whole: Shape, gone: Shape) -> None:
    for dim in meeting.dims:
        axes = meeting.axes([dim])
        if not axes:
            continue
        state = meeting.region.state if meeting.region else ""
        over = "+".join(axes)
        if whole.has(dim):
            raise LayoutError(
                f"local needs `{dim.name}` whole, and it is split over `{over}`",
                state=state,
                fix=f"rename it to an unsplit dim first: `x.rename({dim.name}='{dim.name}_whole')`, "
                f"or drop `{dim.name}:{over}`",
            )
        if known.has(dim) and not gone.has(dim) and not all(shape.has(dim) for shape in shapes):
            raise LayoutError(
                f"local's result lacks `{dim.name}`, which is split over `{over}`: "
                "processors would give different results",
                state=state,
                fix=f"put it in `out`, or in `summed` if the results are partial sums, or make it whole: "
                f"`x.rename({dim.name}='{dim.name}_whole')`",
            )


def _has_signature(fn: Any) -> bool:
    try:
        inspect.signature(fn)
    except (TypeError, ValueError):
        return False
    return True
