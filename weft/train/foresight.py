"""What a run will take: the layout searched for it, and its plan."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from ..errors import MeshError, WeftError
from ..mesh import as_mesh
from ..models import TransformerConfig
from ..models.config import SEARCHED_FIRST
from ..plan import Hardware, Plan, Ranking, search
from ..plan.hardware import hardware, hardware_of
from ..plan.search import SearchProgress
from ..program import trace
from ..small_files import Reader
from ..spmd.together import broadcast_text
from ..text import size_text, time_text
from .config import AUTO, CONFIG, ONE, ConfigError, RunConfig
from .elastic import Part, has_room, largest_part, may_be_searched
from .interface import Listener
from .step import make_step, shapes_of_call

FAR = {"gpu": 1.5, "tpu": 1.5, "cpu": 3.0}
"""How many times longer, or shorter, a step may take than planned before it is said; virtual processors vary most."""
FAR_MEMORY = 1.25


def machine(config: RunConfig) -> Hardware:
    """The hardware of a run: what its file says, or what its devices are known as."""
    if config.hardware is None:
        return hardware_of(jax.devices()[0]) or hardware("this")
    try:
        return hardware(config.hardware)
    except WeftError as error:
        at = config.place("hardware")
        raise ConfigError(f"`hardware`: {error.fact}", state=error.state, fix=error.fix, at=at) from None


def choose_layout(config: RunConfig, folder: Path, listener: Listener, *, started: int = 1) -> RunConfig:
    """The configuration with a mesh and a layout, searched for where it says `auto`.

    Those its folder was begun with come first. Where its own mesh has no room and it may have another, it goes on with
    the best on what is left. Of `started` processes those that are none of this program are named as idle.
    """
    if not may_be_searched(config):
        return config
    count = jax.process_count()
    is_own = has_room(config, count, jax.device_count() // count)
    if is_own and not config.is_open:
        return config
    chosen = "", ""
    if jax.process_index() == 0:
        before = _before(folder)
        if is_own:
            chosen = before if before[0] == config.mesh else _search(config, listener, mesh=config.mesh)
        else:
            chosen = _choose_of_what_is_left(config, before, listener, max(started - count, 0))
    mesh, layout = broadcast_text("\n".join(chosen)).split("\n")
    return dataclasses.replace(config, mesh=mesh, layout=layout)


def _before(folder: Path) -> tuple[str, str]:
    """The mesh and the layout that a run was begun with; empty where there are none."""
    try:
        values, _ = Reader(ConfigError).toml(folder / CONFIG)
    except ConfigError:
        return "", ""
    mesh, layout = (values[key] if isinstance(values.get(key), str) else "" for key in ("mesh", "layout"))
    return (mesh, layout) if mesh and layout else ("", "")


def _size(mesh: str) -> int:
    try:
        return as_mesh(mesh).size
    except WeftError:
        return 0


def _choose_of_what_is_left(
    config: RunConfig, before: tuple[str, str], listener: Listener, idle_processes: int
) -> tuple[str, str]:
    """A mesh and a layout on all processors, or on the largest part one divides over."""
    there, count = jax.device_count(), jax.process_count()
    wanted = _size(before[0] if config.mesh == AUTO else config.mesh)
    part = Part(there, count) if _size(before[0]) == there else largest_part(config, count, there // count)
    is_whole = part.processors == there and not idle_processes and wanted <= there
    if before[1] and _size(before[0]) == part.processors:
        chosen = before
    else:
        chosen, part = _search_on(config, part, listener if is_whole else None)
    if not is_whole:
        over = there + idle_processes * (there // count)
        left = f"{over} of {wanted} processors are left" if over < wanted else f"there are {over} processors"
        idle = _idle(part, idle_processes)
        why = f"; no layout divides over {over}, idle: {idle}" if idle else ""
        begins = "goes on" if wanted else "begins"
        listener.say(f"{left}: {begins} with {chosen[0]} under {chosen[1]}{why}")
    return chosen


def _search_on(config: RunConfig, part: Part, listener: Listener | None) -> tuple[tuple[str, str], Part]:
    while part.processors > 1:
        try:
            return _search(config, listener, processors=part.processors), part
        except MeshError:  # an op refuses what divides
            part = largest_part(config, part.processes, part.processors // part.processes, below=part.processors)
    if listener is not None:
        listener.say("mesh = auto: there is one processor")
    return ONE, part


def _idle(part: Part, idle_processes: int) -> str:
    """The processes and processors that have nothing to do."""
    count, per_process = jax.process_count(), jax.device_count() // jax.process_count()
    used = part.processors // count
    idle = [f"process {number}" for number in range(count, count + idle_processes)]
    idle += [f"processor {process * per_process + i}" for process in range(count) for i in range(used, per_process)]
    return ", ".join(idle)


def _search(config: RunConfig, listener: Listener | None, **where: Any) -> tuple[str, str]:
    """The best mesh and layout; the listener, if there is one, hears of the search."""
    step = make_step(config)

    def report(at: SearchProgress) -> None:
        if listener is not None:
            listener.progress(f"searching layouts: {at.stage}", at.done, at.total)

    ranking: Ranking = search(
        step,
        *shapes_of_call(config, step),
        hardware=machine(config),
        dims=_list_searched(config),
        progress=report,
        **where,
    )
    if listener is not None:
        listener.say("\n".join(["layout = auto:", *(f"  {line}" for line in ranking.words())]))
    # A run with a mesh has a layout that splits something, even where doing all work everywhere is fastest.
    best = next((plan for plan in ranking if plan.fits and str(plan.layout)), None)
    if best is None:
        fix = "name a layout, or leave `mesh` and `layout` out: one processor does it"
        raise ConfigError("no layout that splits anything fits this mesh", fix=fix, at=config.place("layout"))
    return str(best.mesh), str(best.layout)


def _list_searched(config: RunConfig) -> list[str] | None:
    """The dims that are searched before a run; None: those the model says."""
    model = config.sized_model
    if not isinstance(model, TransformerConfig):
        return None
    names = model.dims.names
    return [rule for rule in SEARCHED_FIRST if rule in names or rule == "params.d_model"]


class Forecast:
    """The plan of a run, and whether the run keeps to it."""

    def __init__(self, config: RunConfig, listener: Listener):
        mesh, layout = config.runs_on
        step = make_step(config, mesh, layout)
        self.plan = Plan(trace(step, *shapes_of_call(config, step)), machine(config))
        self.listener, self._is_compared = listener, False

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
        if self._is_compared:
            return
        self._is_compared = True
        plan = self.plan
        ratio, far = seconds / plan.seconds, FAR[plan.hardware.kind]
        if ratio > far or ratio < 1 / far:
            than = f"{ratio:.1f} times as long as" if ratio > 1 else f"{1 / ratio:.1f} times as fast as"
            self.listener.say(
                f"warning: a step takes {time_text(seconds)}, {than} planned ({time_text(plan.seconds)}); "
                "`--profile 10:20` shows where the time goes"
            )
        used = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        if used and used > plan.memory.range[1] * FAR_MEMORY:
            self.listener.say(
                f"warning: {size_text(used)} of memory were used, and {size_text(plan.memory.peak)} were planned"
            )
