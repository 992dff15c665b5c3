"""How long a collective takes: ring formulas over the links of mesh axes.

Processors are numbered in the order of the mesh, its last axis the fastest: neighbours along it stand side by side, so
it lies inside a host as long as it fits there, and earlier axes go from host to host. A bar in the mesh
(`hosts=4 | cols=8`) says where hosts end. A group that spans hosts takes the faster of two ways: one ring over the
slower link, or first inside each host, then between hosts with what is left of the data.
"""

import math
from collections.abc import Sequence

from ..mesh import Mesh
from ..program.ledger import Row
from .hardware import Hardware, Link, ways_inside

# How often a collective goes around its ring: an all-reduce is a reduce-scatter and an all-gather.
_ROUNDS = {"all_reduce": 2}
# On virtual processors, in terms of a sum: what is gathered along another dim than the first is put in order after.
_PASSES = {"all_gather": 3}


def seconds(row: Row, mesh: Mesh, hardware: Hardware) -> float:
    """Seconds of one call of a collective on every processor."""
    if hardware.is_shared:
        return _on_one_machine(row, mesh, hardware)
    inner, outer = hardware.links[0], hardware.links[-1]
    inside = _ways_inside(inner, mesh, row.axes)
    if inside == row.ways:
        return _ring(row, row.ways, inner, len(row.axes))
    flat = _ring(row, row.ways, outer, 1)
    if inside == 1:
        return flat
    return min(flat, _in_two_steps(row, inside, inner, outer))


def _ways_inside(link: Link, mesh: Mesh, axes: Sequence[str]) -> int:
    """How many of a group stand within the reach of the inner link."""
    names, sizes = list(mesh.axes), list(mesh.axes.values())
    if mesh.slow:  # the user says what lies inside a host
        axes_inside = [axis for axis in axes if axis not in mesh.slow]
        fits = math.prod(size for name, size in mesh.axes.items() if name not in mesh.slow) <= (link.reach or math.inf)
        if fits:
            return math.prod(mesh.axes[axis] for axis in axes_inside)
    strides = [math.prod(sizes[names.index(axis) + 1 :]) for axis in axes]
    return ways_inside(link, [mesh.axes[axis] for axis in axes], strides)


def _ring(row: Row, ways: int, link: Link, axes: int) -> float:
    """One ring over all processors of a group; on a torus, one along each axis."""
    rate = link.bandwidth * link.efficiency
    steps = _ROUNDS.get(row.collective, 1) * (ways - 1)
    if link.is_torus:
        rate *= axes
        steps = _ROUNDS.get(row.collective, 1) * axes * math.ceil(ways ** (1 / axes) / 2)
    if row.collective == "permute":
        # To a neighbour: one direction of the ring.
        return link.call + row.bytes / (rate / 2 if link.is_torus else rate) + link.latency
    if row.collective == "all_to_all" and link.is_torus:
        # What goes to a processor k away takes k hops: a quarter of the ring on average.
        return link.call + row.wire_bytes * max(ways / 4, 1) / rate + link.latency * steps
    return link.call + row.wire_bytes / rate + link.latency * steps


def _in_two_steps(row: Row, inside: int, inner: Link, outer: Link) -> float:
    """Inside each host, then between hosts."""
    rounds = _ROUNDS.get(row.collective, 1)
    hosts = row.ways // inside
    within = row.bytes * (inside - 1) / inside
    between = row.bytes / inside * (hosts - 1) / hosts
    if row.collective == "permute":
        within, between = 0.0, row.bytes
    elif row.collective == "all_to_all":
        between = row.bytes * (hosts - 1) / hosts
    total = 0.0
    for wire, ways, link in ((within, inside, inner), (between, hosts, outer)):
        total += link.call + rounds * (wire / (link.bandwidth * link.efficiency) + link.latency * (ways - 1))
    return total


def _on_one_machine(row: Row, mesh: Mesh, hardware: Hardware) -> float:
    """On virtual processors, which share one memory that all bytes pass through."""
    link = hardware.links[0]
    passes = _PASSES.get(row.collective, 1)
    return link.call + link.latency * row.ways + passes * row.bytes * mesh.size / (link.bandwidth * link.efficiency)
