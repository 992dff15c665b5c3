"""Collective matmul: a gather or reduce-scatter as a ring beside products.

Same values and the same bytes on the wire as the collective it stands for, in pieces of which one travels while
another is multiplied. Works inside `einsum`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..dims import UNSHOWN, Dim, Shape, rename_dims
from ..errors import TensorError
from ..layout import Axes, Placement, Region
from ..record import operand_scope
from ..tensor import Kind, Tensor, make, placement
from .collectives import as_varying, index, permute, varying
from .meet import common_region, is_rematted
from .recorded import note_operands

Product = Callable[..., Any]


@dataclass(frozen=True)
class RingGather:
    """Operand `number`, needed whole along `dim`, as a piece; pieces go round `axes`."""

    number: int
    dim: Dim
    axes: Axes
    ways: int
    is_stored: bool

    def note(self, xs: Sequence[Tensor]) -> None:
        """Writes the operands down as those of the op, before one of them is a piece."""
        if (region := common_region(xs)) is not None:
            note_operands(region, {self.dim.name: self.axes}, xs, [region.placement(x.dims) for x in xs])

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """The operands' dims, that one's as a piece under a name that no rule splits."""
        piece = Shape(Dim(_PIECE, d.size // self.ways) if d.name == self.dim.name else d for d in shapes[self.number])
        return [piece if i == self.number else shape for i, shape in enumerate(shapes)]

    def operands(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """The operands, that one as the piece it is."""
        x, dims = xs[self.number], self.shapes([x.dims for x in xs])[self.number]
        # Each processor has a piece of its own: not equal, but so it is said, for the ring to make it right.
        kind = Kind(equal=frozenset(self.axes) | x.kind.equal)
        piece = make(x.local_array, dims, x.region, kind)
        return [piece if i == self.number else other for i, other in enumerate(xs)]

    def product(self, compute: Product, xs: Sequence[Tensor], out: Shape) -> Product:
        """`compute` piece by piece; parts are summed, or put along the dim in `out`."""
        partner = 1 - self.number
        position = xs[partner].dims.position(self.dim) if xs[partner].dims.has(self.dim) else None
        place = out.position(self.dim) if out.has(self.dim) else None

        def ring(*arrays: Any) -> Any:
            piece, other = as_varying(arrays[self.number], self.axes), arrays[partner]
            size = self.dim.size // self.ways
            here = index(self.axes)
            made = None
            for turn in range(self.ways):
                start = (here - turn) % self.ways * size  # where this piece stands in the whole
                beside = other if position is None else lax.dynamic_slice_in_dim(other, start, size, position)
                here_piece, made = _after(piece, made)
                part = compute(*((here_piece, beside) if self.number == 0 else (beside, here_piece)))
                made = _add_part(made, part, start, place, self.ways)
                if turn < self.ways - 1:
                    with operand_scope(self.number):
                        piece = permute(piece, self.axes, _next_in_ring(self.ways))
            return made

        # As a gathered parameter is never kept for the backward pass, its pieces are not.
        return jax.checkpoint(ring) if self.is_stored and not is_rematted() else ring


_PIECE = f"{UNSHOWN}piece"


def _after(piece: Any, made: Any) -> tuple[Any, Any]:
    """Both, in this order: a compiler that joined products would send nothing beside."""
    return (piece, None) if made is None else lax.optimization_barrier((piece, made))


def _next_in_ring(ways: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % ways) for i in range(ways)]


def _add_part(made: Any, part: Any, start: Any, place: int | None, ways: int) -> Any:
    if place is None:
        return part if made is None else made + part
    if made is None:
        sizes = [size * ways if i == place else size for i, size in enumerate(part.shape)]
        made = jnp.zeros_like(part, shape=sizes)
        made = as_varying(made, varying(part))
    return lax.dynamic_update_slice_in_dim(made, part, start, place)


def ring_of_stored(xs: Sequence[Tensor]) -> RingGather | None:
    """The parameter among two operands that would be gathered along one dim."""
    region = _region_of_two(xs)
    for number, x in enumerate(xs):
        if region is None or x.region is None or x.kind.store is None:
            continue
        found = _find_leaving(x.dims, placement(x), region.placement(x.dims))
        if found is None:
            continue
        if x.kind.sums is not None:
            raise TensorError(
                f"einsum overlaps the gather of {x!r}, whose gradient is to be summed in {x.kind.sums}",
                fix="leave out `overlap=True` here, or `sum_dtype`",
            )
        return _ring_gather(number, *found, xs, region)
    return None


def ring_of_renamed(xs: Sequence[Tensor], names: Mapping[str, Any]) -> RingGather | None:
    """The operand one dim of which would be gathered, to leave under a new name."""
    region = _region_of_two(xs)
    for number, x in enumerate(xs):
        own = {old: new for old, new in names.items() if x.dims.has(old)}
        if region is None or x.region is None or not own:
            continue
        found = _find_leaving(x.dims, region.placement(x.dims), region.placement(rename_dims(x.dims, own)))
        if found is not None and not xs[1 - number].dims.has(found[0]):
            return _ring_gather(number, *found, xs, region)
    return None


def _ring_gather(number: int, dim: Dim, axes: Axes, xs: Sequence[Tensor], region: Region) -> RingGather:
    return RingGather(number, dim, axes, region.ways(axes), xs[number].kind.store is not None)


def _find_leaving(dims: Shape, have: Placement, want: Placement) -> tuple[Dim, Axes] | None:
    """The one dim that gives up axes between two placements, with them; or None."""
    moved = [i for i in range(len(dims)) if have[i] != want[i]]
    if len(moved) != 1 or have[moved[0]][: len(want[moved[0]])] != want[moved[0]]:
        return None
    dim, axes = dims[moved[0]], have[moved[0]][len(want[moved[0]]) :]
    return (dim, axes) if axes and not want[moved[0]] and not dim.is_padded else None


@dataclass(frozen=True)
class RingScatter:
    """The dim of the result reduce-scattered over `axes`, to the placement `after`."""

    dim: Dim
    axes: Axes
    ways: int
    after: Placement

    def axes_left(self, partial: Axes) -> Axes:
        """Of the axes a product is to be summed over, those that this does not do."""
        return tuple(axis for axis in partial if axis not in self.axes)

    def product(self, compute: Product, xs: Sequence[Tensor]) -> Product:
        """The slice of `compute` that belongs here, summed over the axes."""
        positions = [x.dims.position(self.dim) if x.dims.has(self.dim) else None for x in xs]

        def ring(*arrays: Any) -> Any:
            here = index(self.axes)
            total = part = None
            for turn in range(self.ways):
                slot = (here + self.ways - 1 - turn) % self.ways
                pieces = [
                    a if at is None else lax.dynamic_slice_in_dim(a, slot * (n := a.shape[at] // self.ways), n, at)
                    for a, at in zip(arrays, positions, strict=True)
                ]
                pieces[0], part = _after(pieces[0], part)
                part = compute(*pieces)
                total = part if total is None else permute(total, self.axes, _next_in_ring(self.ways)) + part
            return total

        return ring


def ring_of_sum(kept: Shape, final: Shape, have: Placement, partial: Axes, xs: Sequence[Tensor]) -> RingScatter | None:
    """The dim along which the product would be reduce-scattered, if it would be."""
    region = _region_of_two(xs)
    if region is None or not partial:
        return None
    for position, wanted in enumerate(region.placement(final)):
        arriving = wanted[len(have[position]) :]
        if arriving and set(arriving) <= set(partial) and wanted[: len(have[position])] == have[position]:
            after = tuple(wanted if i == position else axes for i, axes in enumerate(have))
            return RingScatter(kept[position], arriving, region.ways(arriving), after)
    return None


def _region_of_two(xs: Sequence[Tensor]) -> Region | None:
    return common_region(xs) if len(xs) == 2 else None
