"""How much of what there is a run uses: its mesh, or, where that has no room, the largest part a layout divides over.

Imports the configuration, the step and the rooms that plan. Nothing here starts JAX: `join` comes before that.
"""

from dataclasses import dataclass

from ..mesh import Mesh, as_mesh
from ..plan.choices import AXES, Choices
from ..plan.search import MOST_AXES
from ..program import trace
from . import processes
from .config import AUTO, ONE, RunConfig
from .step import make_step, shapes_of_call


@dataclass(frozen=True)
class Joined:
    """Of the processes that were started, how many are one program."""

    started: int
    used: int
    """0 in one that is left over."""


@dataclass(frozen=True)
class Part:
    """Some of the processors, as many of each process."""

    processors: int
    processes: int


def join(
    config: RunConfig, coordinator: str | None = None, count: int | None = None, process: int | None = None
) -> Joined:
    """Makes this one of the processes of a run, with its share of virtual processors; fewer where not all fit it."""
    started = processes.started(count)
    used, each = started, _processors_of_each(config, started or 1)
    if started is not None and started > 1 and may_be_searched(config) and not has_room(config, started, each):
        used = largest_part(config, started, each).processes
    joined = processes.join(coordinator, count, process, used=used)
    if joined and may_be_searched(config):
        processes.take_virtual(each)
    elif joined:
        processes.share_out(as_mesh(config.mesh or ONE[0]).size, joined)
    return Joined(started or joined, joined)


def may_be_searched(config: RunConfig) -> bool:
    """Whether the run may compute on another mesh than its own: it says `auto`, or processes may be missing."""
    return config.is_open or (bool(config.mesh) and processes.whole() is not None)


def has_room(config: RunConfig, count: int, each: int) -> bool:
    """Whether so many processes of so many processors hold the run's own mesh, as much of it in each."""
    if config.mesh in ("", AUTO):
        return False
    size = as_mesh(config.mesh).size
    return size % count == 0 and size // count <= each


def largest_part(config: RunConfig, count: int, each: int, below: int | None = None) -> Part:
    """The most processors, fewer than `below`, that a layout of the run divides over.

    Each process that takes part has as many of them; no more are used than the run's own mesh has.
    """
    step = make_step(config)
    shapes = shapes_of_call(config, step)
    choices = Choices(trace(step, *shapes, mesh=Mesh({AXES[0]: 1}), layout=""), shapes, None)
    most = count * each if config.mesh in ("", AUTO) else min(count * each, as_mesh(config.mesh).size)
    most = most if below is None else min(most, below - 1)
    while True:
        most = choices.most_ways(most + 1, MOST_AXES)
        for used in range(min(count, most), 0, -1):
            if most % used == 0 and most // used <= each:
                return Part(most, used)
        most -= 1


def _processors_of_each(config: RunConfig, started: int) -> int:
    """How many processors each process has; virtual ones as if no process were missing."""
    if own := processes.accelerators() or processes.virtual_processors():
        return own
    size = 1 if config.mesh in ("", AUTO) else as_mesh(config.mesh).size
    return max(size // max(processes.whole() or started, started), 1)
