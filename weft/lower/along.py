"""One dim that an op goes along: its position, its axes, its local places."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from ..dims import Dim, Shape, only, resolve
from ..layout import Axes
from ..tensor import Tensor
from .collectives import as_varying, first_place
from .meet import Meeting, meet, need_tensor
from .move import align, result, settle
from .padding import need_no_padding

ANYTHING = object()  # for the padding of an op whose values do not depend on it


class Along:
    """The dim `over` that an op goes along; what to put in padding, or `ANYTHING`."""

    def __init__(self, x: Any, over: Any, what: str, *, padding: Any = None):
        self.x = need_tensor(x, what)
        self.dim = only(resolve(over, self.x.dims, what="over"), what)
        if padding is None:
            need_no_padding([self.dim], what)
        self.padding = padding
        self.position = self.x.dims.position(self.dim)
        self._take(meet([self.x]))

    def _take(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self.axes = self.meeting.axes([self.dim])
        self.own = self.meeting.local_sizes([self.dim])[0]
        self.ways = self.meeting.ways(self.dim)

    def rearrange(self, size: int) -> "Along":
        """The same, of this size and still stored, for an op that only rearranges values."""
        self._take(meet([self.x], into=self.resized(size), along=self.dim))
        return self

    def resized(self, size: int) -> Shape:
        """The dims where the dim has this size."""
        return self.x.dims if size == self.dim.size else self.x.dims.resized({self.dim.name: size})

    def local(self, compute: Callable[[Any], Any]) -> Any:
        """`compute` of the slice, which varies over the axes the dim is split over."""
        return self.meeting.run(lambda a: compute(as_varying(self._fill(a), self.axes)), [self.x])

    def _fill(self, array: Any) -> Any:
        return array if self.padding is ANYTHING else self.meeting.fill(array, self.x.dims, self.padding, [self.dim])

    def start(self) -> Any:
        """The place in the whole where this processor's slice starts."""
        return first_place(self.axes, self.own)

    def same_shape(self, array: Any) -> Tensor:
        return result(array, self.x.dims, self.meeting.region)

    def drop(self, array: Any, new: tuple[Dim, ...]) -> Tensor:
        """The tensor of an array without the dim, or with whole ones in its place."""
        placed = self.meeting.placement(self.x.dims)
        at = self.position
        dims = Shape([*self.x.dims[:at], *new, *self.x.dims[at + 1 :]])
        return settle(array, dims, (*placed[:at], *((),) * len(new), *placed[at + 1 :]), self.meeting.region)


def places(dim: Dim | str, dims: Sequence[Dim], axes: Axes, own: int) -> Any:
    """The global indices of this processor's slice of a dim, broadcast with `dims`."""
    found = next(d for d in dims if d.name == (dim.name if isinstance(dim, Dim) else dim))
    return align(jnp.arange(own) + first_place(axes, own), [found], dims)
