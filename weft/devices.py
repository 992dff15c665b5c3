"""The physical order of devices: which of them stand where in a mesh.

Imports errors. Devices that reach each other over fast links (one host, one TPU slice) form a group. Later axes of a
mesh are inside groups and earlier ones go between them, the first of them the farthest: groups stand in the order of
their numbers, so neighbouring hosts share a pod. Inside a group JAX knows the wiring.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.experimental import mesh_utils

from .errors import MeshError


def groups_of(devices: Sequence[Any]) -> list[list[Any]]:
    """The devices, group by group."""
    slices = {getattr(device, "slice_index", None) for device in devices}
    by_slice = None not in slices and (len(slices) > 1 or devices[0].platform == "tpu")
    groups: dict[Any, list[Any]] = defaultdict(list)
    for device in devices:
        groups[device.slice_index if by_slice else device.process_index].append(device)
    return [groups[key] for key in sorted(groups)]


def take(devices: Sequence[Any], count: int) -> list[Any]:
    """The first `count` devices, as many of each process where that is even."""
    owners = sorted({device.process_index for device in devices})
    if count % len(owners):
        return list(devices[:count])
    seen: dict[int, int] = defaultdict(int)
    even = []
    for device in devices:
        seen[device.process_index] += 1
        if seen[device.process_index] <= count // len(owners):
            even.append(device)
    return even if len(even) == count else list(devices[:count])


def arrange(devices: Sequence[Any], axes: Mapping[str, int], slow: Sequence[str], mesh: str) -> np.ndarray:
    """The devices as an array; only the axes in `slow` may go from group to group."""
    groups = groups_of(devices)
    if len(groups) == 1:
        return _arrange_group(groups[0], tuple(axes.values()))
    if slow and not _is_even(groups, math.prod(axes[name] for name in slow)):
        sizes = ", ".join(str(len(group)) for group in groups)
        raise MeshError(
            f"mesh {mesh} cannot keep what is after the last bar inside groups of fast links: {len(groups)} groups "
            f"have {sizes} of its devices",
            fix=f"give the axes before it a product of {len(groups)}, or leave the bar out",
        )
    between = _crossings(axes, slow or tuple(axes), len(groups))
    if math.prod(between) != len(groups) or not _is_even(groups, len(groups)):
        return in_given_order([device for group in groups for device in group], tuple(axes.values()))
    inside = tuple(size // outer for size, outer in zip(axes.values(), between, strict=True))
    blocks = np.empty(between, dtype=object)
    for number, group in enumerate(groups):
        blocks[np.unravel_index(number, between)] = _arrange_group(group, inside)
    return np.block(blocks.tolist())


def _is_even(groups: Sequence[Sequence[Any]], ways: int) -> bool:
    return len({len(group) for group in groups}) == 1 and ways % len(groups) == 0


def _crossings(axes: Mapping[str, int], slow: Sequence[str], count: int) -> tuple[int, ...]:
    """How often each axis crosses between groups: the first axes as often as can be."""
    crossings = []
    for name, size in axes.items():
        crossings.append(math.gcd(size, count) if name in slow else 1)
        count //= crossings[-1]
    return tuple(crossings)


def _arrange_group(devices: Sequence[Any], sizes: tuple[int, ...]) -> np.ndarray:
    """One group's devices as JAX arranges them; as given where no wiring fits."""
    for may_split in (False, True):
        try:
            return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=may_split)
        except (ValueError, NotImplementedError, AssertionError):
            continue
    return in_given_order(devices, sizes)


def in_given_order(devices: Sequence[Any], sizes: tuple[int, ...]) -> np.ndarray:
    """The devices as an array of these sizes, in the order given."""
    grid = np.empty(len(devices), dtype=object)
    grid[:] = devices
    return grid.reshape(sizes)


_MOST_SHOWN = 64


def describe(axes: Mapping[str, int], levels: Sequence[Sequence[str]], mesh: str, grid: np.ndarray | None) -> str:
    """A mesh as a text: its axes, their links, and where each device stands."""
    count = math.prod(axes.values())
    lines = [f"mesh {mesh}: {count} processor{'s' if count > 1 else ''}"]
    width = max(map(len, axes))
    for position, (name, size) in enumerate(axes.items()):
        lines.append(f"  {name:<{width}}  {size:>4}  {_describe_links(name, position, levels, grid)}".rstrip())
    if grid is None:
        return "\n".join([*lines, "not enough devices here to run on; `wf.trace` needs none"])
    devices = grid.reshape(-1).tolist()
    hosts = len({device.process_index for device in devices})
    lines.append(f"devices: {count} of {devices[0].device_kind} in {hosts} process{'es' if hosts > 1 else ''}")
    if count > _MOST_SHOWN:
        return "\n".join(lines)
    *outer, _ = axes
    for row in np.ndindex(grid.shape[:-1]):
        at = " ".join(f"{name}={i}" for name, i in zip(outer, row, strict=True))
        lines.append(f"  {at}  {' '.join(str(device.id) for device in grid[row])}".rstrip())
    return "\n".join(lines)


def _describe_links(name: str, position: int, levels: Sequence[Sequence[str]], grid: np.ndarray | None) -> str:
    """Over which links an axis goes: what the mesh says, or what the devices show."""
    level = next(i for i, names in enumerate(levels) if name in names)
    said = "slower links" if level < len(levels) - 1 else "fast links" if level else ""
    which = f", level {level + 1} of {len(levels)}" if len(levels) > 2 else ""
    if grid is None:
        return said + which
    number = {id(device): i for i, group in enumerate(groups_of(grid.reshape(-1).tolist())) for device in group}
    if len(set(number.values())) == 1:
        return said + which
    places = np.array([number[id(device)] for device in grid.reshape(-1)]).reshape(grid.shape)
    crosses = bool((places != places.take([0], axis=position)).any())
    return ("slower links, from group to group" if crosses else "fast links, inside a group") + which
