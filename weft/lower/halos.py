"""Sliding windows of convolutions and pools: strides, pads and halos.

Pads are those of the global size. A split dim is seen through `exchange_window`, one dim after the other; a whole one
is padded in place, by the op itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import is_whole
from ..dims import Dim, Shape
from ..errors import DimError, closest
from ..layout import Axes
from ..tensor import Tensor
from .exchange import exchange_window as exchange
from .meet import Meeting, make_once
from .move import result

Pads = tuple[int, int]


@dataclass(frozen=True)
class SlidingWindow:
    """The window that slides along one whole spatial dim: stride, pads, size out."""

    dim: Dim
    reach: int
    stride: int
    dilation: int
    low: int
    size: int

    def starts(self, ways: int) -> list[int]:
        """Where what each processor sees begins."""
        return [i * (self.size // ways) * self.stride - self.low for i in range(ways)]

    def size_seen(self, ways: int) -> int:
        """How much of the dim a processor sees."""
        return (self.size // ways - 1) * self.stride + self.reach

    def find_looked_at(self, ways: int) -> tuple[int, ...] | None:
        """The places of it that windows look at, where they leave some out."""
        if self.dilation == 1 and self.stride <= self.reach:
            return None
        firsts = range(0, self.size // ways * self.stride, self.stride)
        return tuple(sorted({first + k for first in firsts for k in range(0, self.reach, self.dilation)}))

    @property
    def pads(self) -> Pads:
        """The pads of a whole dim; what windows leave over at its end is not looked at."""
        return self.low, max(self.size_seen(1) - self.low - self.dim.size, 0)


def sliding_window(dim: Dim, reach: int, stride: int, dilation: int, padding: str | Pads, what: str) -> SlidingWindow:
    if padding == "SAME":
        size = -(-dim.size // stride)
        return SlidingWindow(dim, reach, stride, dilation, max((size - 1) * stride + reach - dim.size, 0) // 2, size)
    low, high = (0, 0) if isinstance(padding, str) else padding
    padded = dim.size + low + high
    if padded < reach:
        with_pads = f" and {padded} with its pads" if low + high else ""
        raise DimError(
            f"{what} has a window of {reach} along `{dim.name}` (size {dim.size}{with_pads})",
            fix=f"pad it (`padding='SAME'`), or take a window of at most {padded}",
        )
    return SlidingWindow(dim, reach, stride, dilation, low, (padded - reach) // stride + 1)


def _by_dim(given: Any, dims: Shape, what: str, name: str) -> dict[str, Any]:
    """A dict by dims or their names, with names for keys."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        if not isinstance(key, Dim | str) or not dims.has(key):
            shown = key.name if isinstance(key, Dim) else key
            raise DimError(
                f"{what} got {name} for `{shown}`, which is not among its dims [{dims}]",
                fix=closest(str(shown), dims.names),
            )
        found[dims.find(key).name] = value
    return found


def number_by_dim(given: Any, dims: Shape, what: str, name: str) -> dict[str, int]:
    """A whole number for each dim: one for all, or a dict in which 1 is left out."""
    values = _by_dim(given, dims, what, name) if isinstance(given, dict) else dict.fromkeys(dims.names, given)
    for value in values.values():
        if not is_whole(value, 1):
            raise DimError(
                f"{what} got {name}={given!r}",
                fix=f"give a whole number of at least 1, or one for each dim: `{name}={{'{dims[0].name}': 2}}`",
            )
    return {dim.name: values.get(dim.name, 1) for dim in dims}


def paddings_of(given: Any, dims: Shape, what: str) -> dict[str, str | Pads]:
    """For each dim SAME, VALID or its two pads; one left out of a dict has none."""
    values = _by_dim(given, dims, what, "padding") if isinstance(given, dict) else dict.fromkeys(dims.names, given)
    for value in values.values():
        is_pair = isinstance(value, list | tuple) and len(value) == 2 and isinstance(given, dict)
        is_pads = is_pair and all(is_whole(pad, 0) for pad in value)
        if not (value in ("SAME", "VALID") if isinstance(value, str) else is_pads):
            example = f"{{'{dims[0].name}': (1, 2)}}"
            raise DimError(
                f"{what} got padding={given!r}", fix=f"give 'SAME', 'VALID' or two pads of at least 0: `{example}`"
            )
    return {
        dim.name: tuple(found) if isinstance(found := values.get(dim.name, (0, 0)), list) else found for dim in dims
    }


class View:
    """Spatial dims on their processors: their axes, and tensors with halos."""

    def __init__(self, meeting: Meeting, stretches: Sequence[SlidingWindow]):
        sizes = {s.dim.name: s.size for s in stretches}
        self.meeting, self.stretches = meeting, stretches
        # What comes out must divide over the axes too.
        self.after = Meeting(meeting.region, meeting.dims.resized(sizes))

    def axes(self, s: SlidingWindow) -> Axes:
        return self.meeting.axes([s.dim])

    def ways(self, s: SlidingWindow) -> int:
        return self.meeting.ways(s.dim)

    def out(self, s: SlidingWindow) -> int:
        """How much of a dim of the result a processor makes."""
        return s.size // self.ways(s)

    def pads(self, s: SlidingWindow) -> Pads:
        return (0, 0) if self.axes(s) else s.pads

    def halos(self, x: Tensor, fill: Any = 0) -> Tensor:
        """`x` with the halos of its split dims; `fill` outside the dims."""
        split = [(s, self.ways(s)) for s in self.stretches if self.axes(s)]
        return with_halos(
            x, self.meeting, [(s.dim, s.starts(n), s.size_seen(n), s.find_looked_at(n)) for s, n in split], fill
        )


Seen = tuple[Dim, list[int], int, tuple[int, ...] | None]


def with_halos(x: Tensor, meeting: Meeting, seen: Sequence[Seen], fill: Any = 0) -> Tensor:
    """`x` with what each processor sees of these dims: halos too, `fill` outside."""
    needed = []
    for dim, starts, size, looked in seen:
        own = meeting.local_sizes([dim])[0]
        if size != own or starts != [i * own for i in range(len(starts))]:
            needed.append((x.dims.position(dim.name), meeting.axes([dim]), tuple(starts), size, looked))
    if not needed:
        return x

    def compute(array: Any) -> Any:
        # One dim after the other: the halo of the second holds the corners.
        for position, axes, starts, size, looked in needed:
            array = exchange(array, position, axes, len(starts), starts=starts, size=size, fill=fill, looked=looked)
        return array

    sizes = {x.dims[position].name: size * len(starts) for position, _, starts, size, _ in needed}
    # Made to vary over all axes of the op before it is exchanged, so that its gradient is summed without the halo on.
    vary = meeting.axes(meeting.dims)

    def add_halos() -> Tensor:
        return result(meeting.run(compute, [x], vary=vary), x.dims.resized(sizes), meeting.region)

    return make_once(x, ("halos", tuple(needed), vary, str(fill)), add_halos)
