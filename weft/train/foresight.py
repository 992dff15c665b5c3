"""What a run will take before it starts: the layout that is searched for, the plan that is shown, and how true it was.

Imports the configuration, the step, what is left to compute on, and the rooms that plan.
"""

import dataclasses
from pathlib import Path
from typing import Any, Protocol

import jax

from ..errors import MeshError, WeftError
from ..mesh import as_mesh
from ..plan import Hardware, Plan, Ranking, search
from ..plan.hardware import hardware, hardware_of
from ..plan.search import Progress
from ..program import trace
from ..small_files import Reader
from ..spmd.together import agreed_text
from ..text import size_text, time_text
from .config import AUTO, CONFIG, ONE, ConfigError, RunConfig
from .elastic import Part, has_room, largest_part, may_be_searched
from .step import make_step, shapes_of_call

FAR = {"gpu": 1.5, "tpu": 1.5, "cpu": 3.0}
"""How many times longer, or shorter, a step may take than planned before it is said; virtual processors vary most."""
FAR_MEMORY = 1.25


class Heard(Protocol):
    """Who hears of it."""

    def said(self, text: str) -> None: ...

    def progress(self, what: str, done: int, whole: int) -> None: ...


def machine() -> Hardware:
    """What this program runs on: known by its name, or measured."""
    return hardware_of(jax.devices()[0]) or hardware("this")


def with_layout(config: RunConfig, folder: Path, heard: Heard, *, started: int = 1) -> RunConfig:
    """The configuration with a mesh and a layout: where it says `auto`, those of its folder, or the best there are.

    Where its own mesh has no room and it may have another, it goes on with the best on what is left. Of `started`
    processes those that are none of this program are told as idle.
    """
    if not may_be_searched(config):
        return config
    count = jax.process_count()
    is_own = has_room(config, count, jax.device_count() // count)
    if is_own and not config.is_open:
        return config
    found = ""
    if jax.process_index() == 0:
        before = _before(folder)
        if is_own:
            found = "\n".join(before if before[0] == config.mesh else _searched(config, heard, mesh=config.mesh))
        else:
            found = "\n".join(_on_what_is_left(config, before, heard, max(started - count, 0)))
    mesh, layout = agreed_text(found).split("\n")
    return dataclasses.replace(config, mesh=mesh, layout=layout)


def _before(folder: Path) -> tuple[str, str]:
    """The mesh and the layout that a run that goes on was begun with; empty where there are none."""
    try:
        told, _ = Reader(ConfigError).toml(folder / CONFIG)
    except ConfigError:
        return "", ""
    mesh, layout = (told[key] if isinstance(told.get(key), str) else "" for key in ("mesh", "layout"))
    return (mesh, layout) if mesh and layout else ("", "")


def _size(mesh: str) -> int:
    try:
        return as_mesh(mesh).size
    except WeftError:
        return 0


def _on_what_is_left(config: RunConfig, before: tuple[str, str], heard: Heard, idle_processes: int) -> tuple[str, str]:
    """A mesh and a layout on all processors, or on the largest part that a layout divides over."""
    there, count = jax.device_count(), jax.process_count()
    wanted = _size(before[0] if config.mesh == AUTO else config.mesh)
    part = Part(there, count) if _size(before[0]) == there else largest_part(config, count, there // count)
    is_whole = part.processors == there and not idle_processes and wanted <= there
    if before[1] and _size(before[0]) == part.processors:
        found = before
    else:
        found, part = _searched_on(config, part, heard if is_whole else None)
    if not is_whole:
        over = there + idle_processes * (there // count)
        left = f"{over} of {wanted} processors are left" if over < wanted else f"there are {over} processors"
        idle = _idle(part, idle_processes)
        why = f"; no layout divides over {over}, idle: {idle}" if idle else ""
        begins = "goes on" if wanted else "begins"
        heard.said(f"{left}: {begins} with {found[0]} under {found[1]}{why}")
    return found


def _searched_on(config: RunConfig, part: Part, heard: Heard | None) -> tuple[tuple[str, str], Part]:
    while part.processors > 1:
        try:
            return _searched(config, heard, processors=part.processors), part
        except MeshError:  # an op refuses what divides
            part = largest_part(config, part.processes, part.processors // part.processes, below=part.processors)
    if heard is not None:
        heard.said("mesh = auto: there is one processor")
    return ONE, part


def _idle(part: Part, idle_processes: int) -> str:
    """Who has nothing to do."""
    count, each = jax.process_count(), jax.device_count() // jax.process_count()
    who = [f"process {number}" for number in range(count, count + idle_processes)]
    who += [f"processor {own * each + i}" for own in range(count) for i in range(part.processors // count, each)]
    return ", ".join(who)


def _searched(config: RunConfig, heard: Heard | None, **where: Any) -> tuple[str, str]:
    """The best mesh and layout; the search is told, if somebody hears of it."""
    step = make_step(config)

    def tell(at: Progress) -> None:
        if heard is not None:
            heard.progress(f"searching layouts: {at.stage}", at.done, at.total)

    found: Ranking = search(step, *shapes_of_call(config, step), hardware=machine(), progress=tell, **where)
    if heard is not None:
        heard.said("\n".join(["layout = auto:", *(f"  {line}" for line in found.words())]))
    # A run with a mesh has a layout that splits something, even where doing all work everywhere is fastest.
    best = next((each for each in found if each.fits and str(each.layout)), None)
    if best is None:
        fix = "name a layout, or leave `mesh` and `layout` out: one processor does it"
        raise ConfigError("no layout that splits anything fits this mesh", fix=fix, at=config.place("layout"))
    return str(best.mesh), str(best.layout)


class Forecast:
    """The plan of a run, and whether the run keeps to it."""

    def __init__(self, config: RunConfig, heard: Heard):
        mesh, layout = config.runs_on
        step = make_step(config, mesh, layout)
        self.plan = Plan(trace(step, *shapes_of_call(config, step)), machine())
        self.heard, self._is_told = heard, False

    def __str__(self) -> str:
        plan, memory = self.plan, self.plan.memory
        rate = f", {plan.tokens_per_s:,.0f} tokens/s" if plan.tokens_per_s else ""
        fits = "" if plan.fits else f"; IT MAY NOT FIT into {size_text(plan.capacity)}"
        sent = ", ".join(
            f"{size_text(plan.program.ledger.bytes(axis))} over {axis}" for axis in plan.mesh.axes if plan.mesh.size > 1
        )
        return (
            f"plan ({plan.hardware.name}): {time_text(plan.seconds)} a step{rate}; {size_text(memory.peak)} of memory "
            f"on each processor{fits}{'; sends ' + sent if sent else ''}; {plan.why}"
        )

    def compare(self, seconds: float) -> None:
        """Says once where a step, or the memory it takes, is far from the plan."""
        if self._is_told:
            return
        self._is_told = True
        plan = self.plan
        ratio, far = seconds / plan.seconds, FAR[plan.hardware.kind]
        if ratio > far or ratio < 1 / far:
            than = f"{ratio:.1f} times as long as" if ratio > 1 else f"{1 / ratio:.1f} times as fast as"
            self.heard.said(
                f"warning: a step takes {time_text(seconds)}, {than} planned ({time_text(plan.seconds)}); "
                "`--profile 10:20` shows where the time goes"
            )
        used = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        if used and used > plan.memory.range[1] * FAR_MEMORY:
            self.heard.said(
                f"warning: {size_text(used)} of memory were used, and {size_text(plan.memory.peak)} were planned"
            )
