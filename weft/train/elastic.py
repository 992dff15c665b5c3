"""Elastic training: a run whose mesh has no room goes on with a part of it.

The part is the largest that a layout divides over. Nothing here starts JAX: `join` comes before that.
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
    """Makes this a process of a run, with its virtual processors, if there is room."""
    started = processes.count_started(count)
    used, per_process = started, _processors_of_each(config, started or 1)
    if started is not None and started > 1 and may_be_searched(config) and not has_room(config, started, per_process):
        used = largest_part(config, started, per_process).processes
    joined = processes.join(coordinator, count, process, used=used)
    if joined and may_be_searched(config):
        processes.take_virtual(per_process)
    elif joined:
        processes.share_out(as_mesh(config.mesh or ONE[0]).size, joined)
    return Joined(started or joined, joined)


def may_be_searched(config: RunConfig) -> bool:
    """Whether a run may have another mesh: it says `auto`, or some may be missing."""
    return config.is_open or (bool(config.mesh) and processes.full_count() is not None)


def has_room(config: RunConfig, count: int, per_process: int) -> bool:
    """Whether the run's own mesh fits so many processes, as much of it in each."""
    if config.mesh in ("", AUTO):
        return False
    size = as_mesh(config.mesh).size
    return size % count == 0 and size // count <= per_process


def largest_part(config: RunConfig, count: int, per_process: int, below: int | None = None) -> Part:
    """The most processors, fewer than `below`, that a layout of the run divides over."""
    step = make_step(config)
    shapes = shapes_of_call(config, step)
    choices = Choices(trace(step, *shapes, mesh=Mesh({AXES[0]: 1}), layout=""), shapes, None)
    most = count * per_process
    most = most if config.mesh in ("", AUTO) else min(most, as_mesh(config.mesh).size)
    most = most if below is None else min(most, below - 1)
    while True:
        most = choices.most_ways(most + 1, MOST_AXES)
        for used in range(min(count, most), 0, -1):
            if most % used == 0 and most // used <= per_process:
                return Part(most, used)
        most -= 1


def _processors_of_each(config: RunConfig, started: int) -> int:
    """Processors of each process; virtual ones as if no process were missing."""
    if count := processes.accelerators() or processes.virtual_processors():
        return count
    size = 1 if config.mesh in ("", AUTO) else as_mesh(config.mesh).size
    return max(size // max(processes.full_count() or started, started), 1)
