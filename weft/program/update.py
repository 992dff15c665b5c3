"""The collectives of a train step's update, which XLA adds to global arrays.

Nobody wrote them. The update is traced on a mesh where JAX types every value with how it is sharded
(`TrainStep.abstract`). What an equation then sends follows from the types around it by the few rules below, which are
XLA's; where none is known the row says that it is not exact.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

from jax.sharding import AxisType

from ..layout import Axes, placement_of
from ..primitives import ELEMENTWISE, Role, reduced_dims, row_of
from ..text import and_text

Split = tuple[Axes, ...]  # for each dim of a global array the mesh axes it is split over


@dataclass(frozen=True)
class Implied:
    """One collective that XLA adds, and what one call carries on one processor."""

    collective: str
    axes: Axes
    dtype: str
    bytes: int
    reason: str
    exact: bool = True


# Work on each slice by itself; a whole value is sliced where it meets one that is split.
_LOCAL = ELEMENTWISE | {Role.VIEW, Role.BITCAST, Role.TRANSPOSE, Role.BROADCAST}
# So is this, where the dims that are split stay as they are.
_LOCAL_ALONG_WHOLE_DIMS = frozenset({Role.RESHAPE, Role.SLICE, Role.CONCATENATE})


def find_implied(eqn: Any, mesh_axes: dict[str, int]) -> list[Implied]:
    """Collectives XLA adds for an equation on sharded arrays, not for ones inside it."""
    if any(is_untyped(var.aval) for var in (*eqn.invars, *eqn.outvars)):
        return []  # XLA decides how it lies: nothing is known
    row, split = row_of(eqn), [var for var in eqn.invars if any(split_of(var))]
    if row.kind in _LOCAL or not split:
        return []
    if row.does:
        return _of_reduction(eqn, row.does, mesh_axes)
    if row.kind is Role.RESHARD:
        return _of_reshard(eqn, mesh_axes)
    if row.kind is Role.RESHAPE and _slices(eqn.invars[0]) == _slices(eqn.outvars[0]):
        return []
    if row.kind in _LOCAL_ALONG_WHOLE_DIMS and all(_split_dims(var) == _split_dims(eqn.outvars[0]) for var in split):
        return []
    return [_guess(eqn, var, mesh_axes) for var in split]


def is_untyped(aval: Any) -> bool:
    """Whether a global value's type leaves to XLA how it is sharded."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and AxisType.Auto in sharding.mesh.axis_types


def split_of(var: Any) -> Split:
    """Over which axes each dim of a global value is split, by its type."""
    return placement_of(getattr(getattr(var.aval, "sharding", None), "spec", ()))


def _local_bytes(aval: Any, split: Split, mesh_axes: dict[str, int]) -> int:
    ways = math.prod(mesh_axes[axis] for axis in itertools.chain(*split))
    return math.prod(aval.shape) * aval.dtype.itemsize // ways


def _of_reduction(eqn: Any, does: str, mesh_axes: dict[str, int]) -> list[Implied]:
    """A reduction over sharded dims: an all-reduce of the local result for each."""
    aval = eqn.outvars[0].aval
    size = _local_bytes(aval, split_of(eqn.outvars[0]), mesh_axes)
    over = [axes for dim, axes in enumerate(split_of(eqn.invars[0])) if axes and dim in reduced_dims(eqn)]
    return [
        Implied(
            "all_reduce",
            axes,
            str(aval.dtype),
            size,
            f"because the update {does} over a dim split over {and_text(axes)}",
        )
        for axes in over
    ]


def _of_reshard(eqn: Any, mesh_axes: dict[str, int]) -> list[Implied]:
    """A reshard: whole dims are sliced, sharded ones gathered, one by one."""
    have, want, aval = split_of(eqn.invars[0]), split_of(eqn.outvars[0]), eqn.outvars[0].aval
    if any(a[: len(b)] != b[: len(a)] for a, b in zip(have, want, strict=True)):
        return [_guess(eqn, eqn.invars[0], mesh_axes)]
    split, sent = [max(pair, key=len) for pair in zip(have, want, strict=True)], []
    for dim, (held, wanted) in enumerate(zip(split, want, strict=True)):
        if gone := held[len(wanted) :]:
            split[dim] = wanted
            size = _local_bytes(aval, tuple(split), mesh_axes)
            reason = "because optimizer state is stored finer than the parameter (`optimizer.` rules)"
            sent.append(Implied("all_gather", gone, str(aval.dtype), size, reason))
    return sent


def _split_dims(var: Any) -> list[tuple[int, Axes]]:
    return [(size, axes) for size, axes in zip(var.aval.shape, split_of(var), strict=True) if axes]


def _slices(var: Any) -> list[tuple[int, Axes]]:
    """Where a value is cut, row by row: how many parts lie before each split dim.

    A reshape moves nothing where these stay: [d/x] as [blocks/x block] is cut at the same places.
    """
    sizes = var.aval.shape
    return [(math.prod(sizes[:dim]), axes) for dim, axes in enumerate(split_of(var)) if axes]


def _guess(eqn: Any, var: Any, mesh_axes: dict[str, int]) -> Implied:
    """The most that XLA may send for an operand: all of it, gathered."""
    axes = tuple(itertools.chain(*split_of(var)))
    reason = f"because the update's `{row_of(eqn).name}` meets a dim split over {and_text(axes)} (a guess)"
    return Implied("all_gather", axes, str(var.aval.dtype), _local_bytes(var.aval, (), mesh_axes), reason, exact=False)
