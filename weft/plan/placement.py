"""Where the processors of a group stand: in which hosts, pods and slices.

Processors are numbered in the order of the mesh, its last axis the fastest, and fill one unit of a link (a host, a
slice) before the next one begins: number // reach is the unit. A bar in the mesh (`hosts=4 | cols=8`) says where units
end. A mesh that fills its units alike but for a little (64 of the 72 of a rack) does so; slices of a torus are always
alike. Groups may lie differently (of groups of 3 on hosts of 8 one stands across two hosts): all run at once, so a
figure is that of the worst.
"""

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .machine import Link

Axes = tuple[tuple[str, int], ...]
"""The axes of a mesh with their sizes."""
Levels = tuple[tuple[str, ...], ...]
"""The axes between the bars of a mesh, from the outermost in."""

_FILLED = 7 / 8  # of a unit: a mesh that uses more of all of them uses as many of each


@dataclass(frozen=True)
class Stretch:
    """A group along one side of a torus."""

    size: int
    """How many of the group stand along it."""
    stride: int
    """Links from one of them to the next, over which as many groups send."""
    is_ring: bool
    """Whether they go all around; otherwise they are a line with two ends."""


@dataclass(frozen=True)
class Crossing:
    """A group on one level of links: units of the level below, inside one of this."""

    link: Link
    ways: int
    """The most of them in one unit."""
    steps: int
    """How many of the steps of a ring over the whole group go over this link."""
    sharing: int
    """The fewest members of a unit below: they send its bytes together, each over its own link."""
    away: float
    """The share of the group that a member reaches over this link."""
    sides: tuple[Stretch, ...] = ()
    """Of a torus."""


@functools.lru_cache(maxsize=1 << 16)
def place(axes: Axes, levels: Levels, group: frozenset[str], links: tuple[Link, ...]) -> tuple[Crossing, ...]:
    """The crossings of the groups over some axes of a mesh, from the innermost out."""
    units = unit_sizes(axes, levels, links)
    ways = math.prod(size for name, size in axes if name in group)
    counts = [_members_inside(axes, group, unit) for unit in units]
    if None in counts:
        return _place_one_by_one(axes, group, links, units)
    crossings, inside = [], 1
    for link, unit, now in zip(links, units, counts, strict=True):
        assert now is not None
        if now > inside:
            sides = _sides(axes, group, link, unit) if link.is_torus else ()
            steps = ways // inside - ways // now
            crossings.append(Crossing(link, now // inside, steps, inside, (now - inside) / ways, sides))
        inside = now
    return tuple(crossings)


def unit_sizes(axes: Axes, levels: Levels, links: Sequence[Link]) -> list[int]:
    """How many processors one unit of each link holds; all are in one of the last.

    A bar ends a unit of the first link that reaches as far; a torus goes on to the outermost bar it reaches.
    """
    sizes = dict(axes)
    count = math.prod(sizes.values())
    inside = itertools.accumulate(
        (math.prod(sizes[axis] for axis in level) for level in reversed(levels)), operator.mul
    )
    bars = [size for size in inside if size < count]
    units: list[int] = []
    for link in links[:-1]:
        within = [bar for bar in bars if bar <= (link.reach or count)]
        unit = (within[-1] if link.is_torus else within[0]) if within else _unit_size(link, count)
        bars = [bar for bar in bars if bar > unit]
        units.append(max([unit, *units[-1:]]))
    return [*units, count]


def _unit_size(link: Link, count: int) -> int:
    """How many of `count` processors a unit of a link holds where no bar says."""
    if not link.reach or count <= link.reach:
        return count
    alike = next(size for size in range(link.reach, 0, -1) if count % size == 0)
    return alike if link.is_torus or alike > _FILLED * link.reach else link.reach


def _members_inside(axes: Axes, group: frozenset[str], unit: int) -> int | None:
    """How many of a group one unit holds; None where not all groups lie alike.

    They do where the unit ends between two axes, or at a divisor inside one.
    """
    inside, members = 1, 1
    for name, size in reversed(axes):
        fitting = min(size, unit // inside)
        if unit % inside or (fitting and size % fitting):
            return None
        inside *= max(fitting, 1)
        members *= max(fitting, 1) if name in group else 1
        if fitting < size:
            return members if inside == unit else None
    return members


def _place_one_by_one(
    axes: Axes, group: frozenset[str], links: Sequence[Link], units: Sequence[int]
) -> tuple[Crossing, ...]:
    """The crossings where units end inside groups: of all groups the worst."""
    sizes = [size for _, size in axes]
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    taken = [index for index, (name, _) in enumerate(axes) if name in group]
    ways = math.prod(sizes[index] for index in taken)
    numbers = np.moveaxis(numbers, taken, range(-len(taken), 0)).reshape(-1, ways)
    group_number = np.arange(len(numbers))[:, None] * numbers.size  # tells units of one group from those of another
    crossings = []
    below = (group_number + numbers).reshape(-1)  # the unit of each member; of the level below, the member itself
    for link, unit in zip(links, units, strict=True):
        here = (group_number + numbers // unit).reshape(-1)
        _, at, members_below = np.unique(below, return_inverse=True, return_counts=True)
        firsts = np.unique(below, return_index=True)[1]
        _, at_here, members_here = np.unique(here, return_inverse=True, return_counts=True)
        parts = np.bincount(at_here[firsts])  # units of the level below in each of this
        if parts.max() > 1:
            away = (members_here[at_here] - members_below[at]).max() / ways
            in_group = np.bincount(below[firsts] // numbers.size) - np.bincount(
                here[np.unique(here, return_index=True)[1]] // numbers.size
            )
            sharing = int(members_below.min())
            sides = (Stretch(int(parts.max()), 1, False),) if link.is_torus else ()
            crossings.append(Crossing(link, int(parts.max()), int(in_group.max()), sharing, float(away), sides))
        below = here
    return tuple(crossings)


@functools.lru_cache(maxsize=4096)
def slice_sides(count: int, link: Link) -> tuple[int, ...]:
    """The sides of a slice of so many processors: as even as whole blocks can be.

    >>> torus = Link("", 1, 0, 8960, is_torus=True, sides=3, block=4)
    >>> slice_sides(512, torus), slice_sides(128, torus), slice_sides(6, torus)
    ((8, 8, 8), (4, 4, 8), (1, 2, 3))
    """
    block = link.block**link.sides
    if count % block == 0 and count > block:
        return tuple(link.block * side for side in slice_sides(count // block, link))
    return min(_factorings(count, link.sides), key=lambda sides: (sum(sides), sides))


def _factorings(count: int, parts: int) -> list[tuple[int, ...]]:
    """All ways to write a count as a product of so many factors, ascending."""
    if parts == 1:
        return [(count,)]
    firsts = [size for size in range(1, math.isqrt(count) + 1) if count % size == 0]
    found = [(size, *rest) for size in firsts for rest in _factorings(count // size, parts - 1)]
    return [factors for factors in found if list(factors) == sorted(factors)]


def _sides(axes: Axes, group: frozenset[str], link: Link, unit: int) -> tuple[Stretch, ...]:
    """How a group lies along the sides of its slice of a torus."""
    inside: list[tuple[str, int]] = []  # the axes as far as they are inside the slice, the last first
    for name, size in reversed(axes):
        fitting = min(size, unit // math.prod(size for _, size in inside))
        inside.append((name, fitting))
    sides = slice_sides(unit, link)
    is_whole = all(side % link.block == 0 for side in sides)
    found = []
    for side, taken in zip(sides, zip(*_assign(sides, [size for _, size in inside]), strict=True), strict=True):
        ours = [name in group for name, _ in inside]
        size = math.prod(part for part, is_ours in zip(taken, ours, strict=True) if is_ours)
        if size == 1:
            continue
        outermost = max(i for i, part in enumerate(taken) if ours[i] and part > 1)
        stride = math.prod(part for part, is_ours in zip(taken[:outermost], ours, strict=False) if not is_ours)
        wraps = side % link.block == 0 and (is_whole or link.sides < 3)
        found.append(Stretch(size, stride, wraps and size * stride == side))
    return tuple(found)


def _assign(sides: tuple[int, ...], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """What each axis takes of each side of a torus, as `create_device_mesh` does.

    The last axis, which comes first here, takes whole sides where it can, and as many as it can.
    """
    left = sides
    parts: list[tuple[int, ...]] = []
    for size in sizes:
        best = max(_shares(size, left), key=functools.partial(_worth, sides, left))
        parts.append(best)
        left = tuple(side // some for side, some in zip(left, best, strict=True))
    return parts


def _worth(sides: tuple[int, ...], left: tuple[int, ...], part: tuple[int, ...]) -> tuple[object, ...]:
    """What JAX prefers in a part of the sides: whole ones, many, and those begun."""
    whole = [some for some, side in zip(part, sides, strict=True) if some == side]
    begun = math.prod(some for some, side, now in zip(part, sides, left, strict=True) if now < side)
    return math.prod(whole), sum(some > 1 for some in whole), begun, part


def _shares(size: int, left: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All ways to divide a size among what is left of the sides."""
    if not left:
        return [()] if size == 1 else []
    some = [part for part in range(1, math.gcd(size, left[0]) + 1) if size % part == 0 and left[0] % part == 0]
    return [(part, *rest) for part in some for rest in _shares(size // part, left[1:])]
