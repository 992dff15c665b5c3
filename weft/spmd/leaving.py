"""What comes out of a region: local results, joined to global tensors."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ..compat import is_on_host
from ..errors import RegionError
from ..layout import Region, axes_in, spec
from ..leaves import is_data
from ..lower import collectives
from ..lower.collectives import varying
from ..record import Place
from ..tensor import Kind, Tensor, check_tensor, is_tensor, make, placement
from .arguments import Static

_LEAVING = "because a result that is the same on all of {axes} must leave the region as one copy"


class Leaving:
    """A region's results: their arrays, the specs, and how to join them."""

    def __init__(self, results: Any, region: Region, at: Place):
        self.at = at
        leaves, self.structure = jax.tree.flatten(results, is_leaf=is_tensor)
        self.arrays: list[Any] = []
        self.specs: list[PartitionSpec] = []
        self.forms: list[Any] = []
        """For each result the dims and the kind of a tensor, None for a plain value, or what is static."""
        for i, leaf in enumerate(leaves):
            if not is_data(leaf):
                self.forms.append(Static(leaf))
            elif is_tensor(leaf):
                self._add_tensor(leaf, region)
            else:
                self._add_value(results, i, jnp.asarray(leaf))

    def _add_tensor(self, x: Tensor, region: Region) -> None:
        if x.region is not None and x.region is not region:
            raise RegionError(
                f"the result {x!r} belongs to another region, which has ended",
                state=x.region.state,
                fix="return it from that region and pass it in as an argument",
            )
        fits = x.region is not None or tuple(x.raw.shape) == x.dims.sizes
        placed: list[Any] = list(placement(check_tensor(x))) if fits else [()] * x.raw.ndim
        with region.record.unasked("return", _LEAVING, at=self.at):
            lies = x.raw if is_on_host(x.raw) and x.kind.cast_to is None else x.local_array
            array, placed = _equalize(lies, placed, region)
        self.arrays.append(array)
        self.specs.append(spec(tuple(placed)))
        self.forms.append((x.dims, Kind(store=x.kind.store, frozen=x.kind.frozen)))

    def _add_value(self, results: Any, i: int, array: Any) -> None:
        if differing := varying(array):
            path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(results, is_leaf=is_tensor)[0][i][0])
            raise RegionError(
                f"result {path or 'of the region'} is a plain array that differs between processors "
                f"(over {', '.join(sorted(differing))})",
                fix="return a tensor: name its dims, or use `wf.local(fn, x, out=..., summed=...)`",
            )
        self.arrays.append(array)
        self.specs.append(PartitionSpec())
        self.forms.append(None)

    def join(self, arrays: Sequence[Any]) -> Any:
        """The tree of results, of the global arrays."""
        left = iter(arrays)
        leaves: list[Any] = []
        for form in self.forms:
            if isinstance(form, Static):
                leaves.append(form.value)
            elif form is None:
                leaves.append(next(left))
            else:
                leaves.append(make(next(left), form[0], None, form[1]))
        return jax.tree.unflatten(self.structure, leaves)


def _equalize(array: Any, placed: list[Any], region: Region) -> tuple[Any, list[Any]]:
    """An array that is equal over some axes though typed as varying, fit to leave.

    Where a dim divides each processor gives a slice, which costs nothing; else the first one's copy is sent round.
    """
    excess = tuple(sorted(varying(array) - set(axes_in(placed))))
    if not excess:
        return array, placed
    ways = region.ways(excess)
    for position, size in enumerate(array.shape):
        if size % ways == 0:
            placed[position] = placed[position] + excess
            return collectives.own_slice(array, excess, position, ways), placed
    return collectives.from_first(array, excess), placed
