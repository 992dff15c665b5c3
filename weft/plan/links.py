"""How long a collective takes: the faster of rings and trees over its links.

A call of S bytes takes a + b S seconds by each algorithm, and the fastest is taken, as NCCL's tuner does. Where a group
stands is said by `placement.py`: on each level of links it has m units of the level below, whose c members each send
over a link of their own.

- Ring: rounds * (m - 1)/m * S/c bytes over each level, all levels at once (NCCL sends in chunks), so the slowest level
  decides; a latency for each of the n - 1 steps around the group, of which the fewest go over the slower link.
  An all-reduce has two rounds (reduce-scatter, all-gather), others one.
- Tree (all-reduce): as a ring at 0.92 of the bandwidth, with log2(m) latencies up and down on each level. Where the
  innermost switch adds up by itself (NVLink SHARP), S bytes at its own rate in two steps there.
- PAT (all-gather and reduce-scatter of one member a host): as a ring at 0.75 of the bandwidth, in log2(m) steps, and
  0.56 of a latency a member. These shares are those of NCCL's tuner (`src/graph/tuning.cc`, 2.23 and later).
- An all-to-all sends each level its share of the bytes, to eight others at a time; a permute sends all of them over
  the outermost link the group needs.
- On a torus a group of sides e1 x e2 x ... sends along all its sides at once: a ring at its bandwidth W (both
  directions), a line at W/2, either divided by its stride. Steps are hops: e/2 of a ring, e - 1 of a line. In an
  all-to-all half of the bytes cross the middle of each side: e/4 S/W on a ring, e/2 S/W on a line, and the longest
  side decides. What goes on between slices comes after.
"""

import functools
import math
from collections.abc import Sequence

from ..layout import HOST
from ..mesh import Mesh
from ..program.ledger import Row
from .machine import Hardware, Link
from .placement import Axes, Crossing, Levels, place

Line = tuple[float, float]
"""Seconds of a call, and of each of its bytes."""

# How often a collective goes around its ring: an all-reduce is a reduce-scatter and an all-gather.
_ROUNDS = {"all_reduce": 2}
_TREE, _PAT, _PAT_STEPS = 0.92, 0.75, 0.56  # of NCCL's tuner; the last is 2.8 us of a latency of 5
_AT_ONCE = 8  # others that NCCL's all-to-all sends to at a time
# On virtual processors, in terms of a sum: what is gathered along another dim than the first is put in order after.
_PASSES = {"all_gather": 3}


def seconds(row: Row, mesh: Mesh, hardware: Hardware) -> float:
    """Seconds of one call of a collective, or of one transfer to the host."""
    if row.axes == (HOST,):
        link = hardware.host_link
        return 0.0 if link is None else link.latency + row.bytes / link.rate
    if hardware.is_shared:
        return _on_one_machine(row, mesh, hardware)
    group = frozenset(row.axes)
    lines = _lines(row.collective, tuple(mesh.axes.items()), mesh.levels, group, hardware.links)
    return min(a_call + row.bytes * a_byte for a_call, a_byte in lines)


@functools.lru_cache(maxsize=1 << 16)
def _lines(
    collective: str,
    axes: Axes,
    levels: Levels,
    group: frozenset[str],
    links: tuple[Link, ...],
) -> tuple[Line, ...]:
    """What each algorithm takes: seconds a call and a byte."""
    crossings = place(axes, levels, group, links)
    if not crossings:  # one processor
        return ((0.0, 0.0),)
    if collective == "permute":
        return (_permute(crossings),)
    if collective == "all_to_all":
        return (_all_to_all(crossings, math.prod(size for name, size in axes if name in group)),)
    lines = [_ring(crossings, _ROUNDS.get(collective, 1))]
    if collective == "all_reduce":
        lines += [_tree(crossings), _tree(crossings, in_switches=True)]
    elif crossings[0].link != links[0]:  # one member a host
        lines.append(_pat(crossings))
    return tuple(lines)


def _ring(crossings: Sequence[Crossing], rounds: int) -> Line:
    parts = []
    for at in crossings:
        bytes_sent = (at.ways - 1) / at.ways / at.sharing
        parts.append((at.link, rounds * _ring_steps(at), rounds * bytes_sent / _rate(at)))
    return _together(parts)


def _tree(crossings: Sequence[Crossing], *, in_switches: bool = False) -> Line:
    """A tree; `in_switches`: where a switch can, it adds up what passes."""
    parts = []
    for at in crossings:
        bytes_sent = 2 * (at.ways - 1) / at.ways / at.sharing
        if in_switches and at.link.summing:
            parts.append((at.link, 2, 1 / at.sharing / (at.link.bandwidth * at.link.summing)))
        elif at.sides:
            parts.append((at.link, 2 * _ring_steps(at), bytes_sent / _rate(at)))
        else:
            parts.append((at.link, 2 * _doublings(at), bytes_sent / (_rate(at) * _TREE)))
    return _together(parts)


def _pat(crossings: Sequence[Crossing]) -> Line:
    parts = []
    for at in crossings:
        bytes_sent = (at.ways - 1) / at.ways / at.sharing
        parts.append((at.link, _doublings(at) + _PAT_STEPS * at.steps, bytes_sent / (_rate(at) * _PAT)))
    return _together(parts)


def _all_to_all(crossings: Sequence[Crossing], ways: int) -> Line:
    parts = []
    for at in crossings:
        if at.sides:
            inside = at.away + 1 / ways
            longest = max(side.size * side.stride / (4 if side.is_ring else 2) for side in at.sides)
            parts.append((at.link, _ring_steps(at), inside * longest / at.link.rate))
        else:
            parts.append((at.link, math.ceil(round(at.away * ways) / _AT_ONCE), at.away / _rate(at)))
    return _together(parts)


def _permute(crossings: Sequence[Crossing]) -> Line:
    at = crossings[-1]
    stride = at.sides[0].stride if at.sides else 1
    # To a neighbour: of a torus one direction of a side, of direct links one.
    rate = at.link.rate / 2 if at.sides else at.link.rate / (at.link.reach - 1 if at.link.is_direct else 1)
    return at.link.call + at.link.latency * stride, stride / rate


def _together(parts: Sequence[tuple[Link, float, float]]) -> Line:
    """Links with their steps and seconds a byte: all at once, but a torus by itself."""
    alone = [part for part in parts if part[0].is_torus]
    joined = [part for part in parts if not part[0].is_torus]
    calls = sum(link.call for link, _, _ in alone) + max((link.call for link, _, _ in joined), default=0.0)
    a_byte = sum(each for _, _, each in alone) + max((each for _, _, each in joined), default=0.0)
    return calls + sum(link.latency * steps for link, steps, _ in parts), a_byte


def _rate(at: Crossing) -> float:
    """Bytes a second that a member of a group sends in rings over all it can."""
    if at.sides:
        return sum(at.link.rate * (1.0 if side.is_ring else 0.5) / side.stride for side in at.sides)
    if at.link.is_direct:
        return at.link.rate * (at.ways - 1) / (at.link.reach - 1)
    return at.link.rate


def _ring_steps(at: Crossing) -> int:
    """How often the bytes of a ring go on: hops along the sides of a torus."""
    if not at.sides:
        return at.steps
    return sum(side.stride * (math.ceil(side.size / 2) if side.is_ring else side.size - 1) for side in at.sides)


def _doublings(at: Crossing) -> int:
    return math.ceil(math.log2(at.ways))


def _on_one_machine(row: Row, mesh: Mesh, hardware: Hardware) -> float:
    """On virtual processors, which share one memory that all bytes pass through."""
    link = hardware.links[0]
    passes = _PASSES.get(row.collective, 1)
    return link.call + link.latency * row.ways + passes * row.bytes * mesh.size / link.rate
