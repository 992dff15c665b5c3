"""What a run will take before it starts: the layout that is searched for, the plan that is shown, and how true it was.

Imports the configuration, the step and the rooms that plan.
"""

import dataclasses
from pathlib import Path
from typing import Any, Protocol

import jax

from ..errors import WeftError
from ..mesh import as_mesh
from ..plan import Hardware, Plan, Ranking, search
from ..plan.cost import time_text
from ..plan.hardware import hardware, hardware_of
from ..plan.search import Progress
from ..program import trace
from ..program.ledger import size_text
from ..small_files import Reader
from ..spmd.together import agreed_text
from .config import AUTO, CONFIG, ONE, ConfigError, RunConfig
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


def with_layout(config: RunConfig, folder: Path, heard: Heard) -> RunConfig:
    """The configuration with a mesh and a layout: where it says `auto`, those of its folder, or the best there are."""
    if AUTO not in (config.mesh, config.layout):
        return config
    found = ""
    if jax.process_index() == 0:
        found = "\n".join(_before(config, folder) or _searched(config, heard))
    mesh, layout = agreed_text(found).split("\n")
    return dataclasses.replace(config, mesh=mesh, layout=layout)


def _before(config: RunConfig, folder: Path) -> tuple[str, str] | None:
    """What a run that goes on was begun with, if it still can be."""
    try:
        told, _ = Reader(ConfigError).toml(folder / CONFIG)
    except ConfigError:
        return None
    mesh, layout = (told[key] if isinstance(told.get(key), str) else "" for key in ("mesh", "layout"))
    is_same = config.mesh == mesh if config.mesh != AUTO else _size(mesh) == jax.device_count()
    return (mesh, layout) if mesh and layout and is_same else None


def _size(mesh: str) -> int:
    try:
        return as_mesh(mesh).size
    except WeftError:
        return 0


def _searched(config: RunConfig, heard: Heard) -> tuple[str, str]:
    if config.mesh == AUTO and jax.device_count() == 1:
        heard.said("mesh = auto: there is one processor")
        return ONE
    step = make_step(config)
    where: dict[str, Any] = {"processors": jax.device_count()} if config.mesh == AUTO else {"mesh": config.mesh}

    def tell(at: Progress) -> None:
        heard.progress(f"searching layouts: {at.stage}", at.done, at.total)

    found: Ranking = search(step, *shapes_of_call(config, step), hardware=machine(), progress=tell, **where)
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
