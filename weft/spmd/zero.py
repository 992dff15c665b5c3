"""ZeRO: gradients arrive as the slices whose optimizer state is held here.

For the layout's `optimizer.` rules. The loss is differentiated by slices of the parameters, to which the whole ones
are attached: the gradient of a whole one is then summed and sliced at once, by a reduce-scatter. Imports the lowering.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ..compat import is_on_host
from ..errors import LayoutError
from ..layout import Placement
from ..leaves import is_trained
from ..lower.collectives import as_varying, own_slice
from ..lower.move import result
from ..lower.recorded import type_of
from ..lower.sums import reduce_scatter
from ..record import Place, operand_scope
from ..tensor import Kind, Tensor, is_tensor, placement


def optimizer_slice(x: Tensor) -> Tensor:
    """The slice of a parameter whose optimizer state this processor holds."""
    if not is_trained(x) or x.region is None:
        return x
    array, have, want = x.raw, placement(x), x.region.placement(x.dims, "optimizer")
    if is_on_host(array):
        _check_not_finer(x, have, want)
        return x
    for position, (held, wanted) in enumerate(zip(have, want, strict=True)):
        if more := wanted[len(held) :]:
            array = own_slice(array, more, position, x.region.ways(more))
    return result(array, x.dims, x.region, Kind(store="optimizer"))


def _check_not_finer(x: Tensor, have: Placement, want: Placement) -> None:
    """Raises where what lies on the host would be updated in finer slices."""
    assert x.region is not None
    for dim, held, wanted in zip(x.dims, have, want, strict=True):
        if finer := "+".join(wanted[len(held) :]):
            raise LayoutError(
                f"parameters with `{dim.name}` lie on the host, and their optimizer state is split over `{finer}` too",
                state=x.region.state,
                fix=f"split both, `params.{dim.name}:{finer}` for `optimizer.{dim.name}:{finer}`, "
                "or leave the parameters on the processors: `optimizer.*:host`",
            )


_FINER = (
    "because the optimizer's state of {name} is stored split over {axes} (`optimizer.` rules): each keeps its slice"
)


def attach_slice(part: Any, whole: Any, *, made: Place) -> Any:
    """The whole parameter, whose gradient arrives at `part`, reduce-scattered."""
    if not is_tensor(part):
        return part
    if part.kind.store != "optimizer":
        return part if is_on_host(part.raw) else whole
    finer = [
        (position, axes[len(held) :])
        for position, (held, axes) in enumerate(zip(placement(whole), placement(part), strict=True))
        if axes != held
    ]
    all_axes = [axis for _, axes in finer for axis in axes]

    @jax.custom_vjp
    def attach(part: Any, whole: Any) -> Any:
        return as_varying(whole, all_axes)

    def backward(like: Any, gradient: Any) -> Any:
        for position, axes in finer:
            gradient = reduce_scatter(gradient, axes, position, part.kind.sums or gradient.dtype)
        return gradient.astype(like.dtype), jnp.zeros_like(like)

    attach.defvjp(lambda part, whole: (as_varying(whole, all_axes), whole), backward)
    with whole.region.record.unasked("update", _FINER, at=made) as draft, operand_scope(0):
        draft.note(operands=(type_of(whole),), makers=(None,), gradients=(True,))
        kind = replace(whole.kind, sums=part.kind.sums)
        return result(attach(part.raw, whole.raw), whole.dims, whole.region, kind)
