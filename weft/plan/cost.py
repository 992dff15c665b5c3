"""The cost of a program on some hardware: seconds of a step, memory, and why.

Each kernel takes the longer of computing and moving its bytes, one after the other. A collective that the next op
waits for adds all its seconds; one that nothing in its body waits for (the sum of a weight's gradient), or that waits
for nothing there (the gather of a stored weight), hides under a stated share of the body's compute; one that only the
next turn of a loop needs (a gather ahead, a ring's permute) under nearly all of it.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import public
from ..layout import HOST, Layout
from ..mesh import Mesh
from ..notebook import Page, page_of
from ..program import Program
from ..program.memory import Memory
from ..program.source import NOWHERE
from ..program.transfers import transfers_text
from ..record import Axes
from ..text import Printed, join_lines, placed_line, size_text, time_text
from . import links, roofline
from .capacity import capacity_of
from .hardware import Hardware
from .hardware import hardware as find_hardware
from .kernel import Kernel
from .traffic import kernels

VERSION = 1
_SHOWN = 12


@dataclass(frozen=True)
class OpCost:
    """What one op takes in one phase, all its calls together."""

    op: int | None
    """The number of its entry in the record; None for what no op of the program does."""
    text: str
    """What the user wrote."""
    axes: Axes
    """Those it sends over; none where it computes."""
    phase: str
    source: str
    seconds: float
    bound_by: str
    """`flops`, `memory` or `sending`: what most of its seconds go to."""
    flops: float
    bytes: float
    """Moved through memory, or sent."""
    count: int
    """How often it runs."""

    @property
    def label(self) -> str:
        """The op in words: `sending over rows: sum(x)`."""
        if not self.axes:
            return self.text
        if self.axes == (HOST,):
            return f"between host and processor: {self.text}"
        return f"sending over {'+'.join(self.axes)}" + (f": {self.text}" if self.text else "")

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        names = ("label", "phase", "source", "seconds", "bound_by", "flops", "bytes", "count")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Bubble:
    """The turns of a pipeline in which a processor has no work."""

    over: str
    """The dim of the stages."""
    idle: int
    turns: int
    seconds: float
    """What the plan says these turns take."""

    @property
    def share(self) -> float:
        """Of the stages' work: (p - 1) / (m r + p - 1)."""
        return self.idle / self.turns

    def __str__(self) -> str:
        counted = f"{self.idle}/{self.turns} of the work of `{self.over}`, (p - 1) / (m r + p - 1)"
        return f"bubble: {counted}, {time_text(self.seconds)}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"over": self.over, "idle": self.idle, "turns": self.turns, "seconds": self.seconds}


@dataclass
class _OpTotal:
    """The kernels of one op in one phase."""

    op: int | None
    phase: str
    axes: Axes
    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    count: int = 0
    by: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@public(form="wf.Plan(program, 'h100')")
class Plan:
    """A program on some hardware: `seconds` of a step, `memory`, and `why`.

    The argument `memory` is what a processor has, if not what the table says; `share` how much of it JAX may use (the
    `capacity`), if not 75 % of a GPU's; the property `memory` is what the program holds at its peak. A program is
    traced with no devices, its attention written out: `fused=False` says that a GPU does it so too, `fused=True` that a
    TPU fuses it, by a kernel of one's own.
    """

    def __init__(
        self,
        program: Program,
        hardware: str | Hardware,
        *,
        memory: float | None = None,
        share: float | None = None,
        fused: bool | None = None,
    ):
        self.program, self.hardware, self.fused = program, find_hardware(hardware), fused
        self.mesh: Mesh = program.mesh
        self.layout: Layout = program.layout
        self._capacity = capacity_of(self.hardware, processors=self.mesh.size, memory=memory, share=share)
        self.capacity = self._capacity.bytes
        self.compute_seconds = self.exposed = 0.0
        self.sending: dict[Axes, float] = defaultdict(float)
        """Seconds of all collectives over each group of axes, hidden or not."""
        self.phases: dict[str, float] = defaultdict(float)
        self.kinds: dict[str, float] = defaultdict(float)
        """Seconds of each kind of kernel: `product`, `attention`, `elementwise`, `moved`, `sent`."""
        self._totals: dict[Any, _OpTotal] = {}
        self._dtypes: dict[str, float] = defaultdict(float)
        self._cost(kernels(program.reading, self.hardware, fused=fused))
        self.sending, self.phases, self.kinds = dict(self.sending), dict(self.phases), dict(self.kinds)

    @property
    def seconds(self) -> float:
        """Seconds of one step."""
        return self.compute_seconds + self.exposed

    @property
    def communication(self) -> dict[str, float]:
        """`sending`, the axes of each group as they are written: `rows+cols`.

        Groups of the same axes in another order are one: the same processors.
        """
        names: dict[frozenset[str], str] = {}
        totals: dict[str, float] = {}
        for axes, took in self.sending.items():
            name = names.setdefault(frozenset(axes), "+".join(axes))
            totals[name] = totals.get(name, 0.0) + took
        return totals

    def _cost(self, run: list[Kernel]) -> None:
        computing: dict[int, float] = defaultdict(float)
        beside: dict[int, float] = defaultdict(float)
        ahead: dict[int, float] = defaultdict(float)
        sent: list[tuple[Kernel, float]] = []
        for kernel in run:
            if kernel.row is not None:
                took = links.seconds(kernel.row, self.mesh, self.hardware) * kernel.count
                sent.append((kernel, took))
                if kernel.is_beside:
                    (ahead if kernel.is_ahead else beside)[kernel.body] += took
                continue
            one, bound_by = roofline.seconds(kernel, self.hardware, self.mesh.size)
            took = one * kernel.count
            computing[kernel.body] += took
            self.compute_seconds += took
            if kernel.kind == "product":
                self._dtypes[kernel.dtype] += kernel.flops * kernel.count
            self._add(kernel, took, bound_by)
        left = _shares_left(computing, beside, ahead, self.hardware.kind)
        for kernel, took in sent:
            assert kernel.row is not None
            self.sending[kernel.row.axes] += took
            shown = took * (left[kernel.body, kernel.is_ahead] if kernel.is_beside else 1.0)
            self.exposed += shown
            self._add(kernel, shown, "sending")

    def _add(self, kernel: Kernel, took: float, bound_by: str) -> None:
        key = (kernel.op, kernel.phase, kernel.row.axes if kernel.row is not None else ())
        total = self._totals.setdefault(key, _OpTotal(*key))
        total.seconds += took
        total.by[bound_by] += took
        total.flops += kernel.flops * kernel.count
        total.bytes += kernel.bytes * kernel.count
        total.count = max(total.count, kernel.count)
        self.phases[kernel.phase] += took
        self.kinds[kernel.kind] += took

    @functools.cached_property
    def ops(self) -> list[OpCost]:
        """What each op takes in each phase, the longest first; in all `seconds`."""
        return [self._op_cost(total) for total in sorted(self._totals.values(), key=lambda total: -total.seconds)]

    def _op_cost(self, total: _OpTotal) -> OpCost:
        reading, is_update = self.program.reading, total.phase == "update"
        entry = reading.entry(total.op)
        if entry is not None:
            text, site = reading.text(entry), reading.site(entry)
        else:
            text, site = ("the optimizer's update", reading.update_site) if is_update else ("", NOWHERE)
        bound_by = max(total.by, key=total.by.__getitem__)
        place, figures = (total.op, text, total.axes, total.phase, str(site)), (total.flops, total.bytes, total.count)
        return OpCost(*place, total.seconds, bound_by, *figures)

    @functools.cached_property
    def bubbles(self) -> list[Bubble]:
        """The bubble of each pipeline whose stages are split, in the program's order."""
        reading = self.program.reading
        pipelines = {entry.id: entry for entry in reading.entries if entry.idle[0]}
        seconds: dict[int, float] = defaultdict(float)
        for op in self.ops:
            entry = reading.entry(op.op)
            around = reading.around(entry) if entry is not None else ()
            if (outer := next((e for e in around if e.id in pipelines), None)) is not None:
                seconds[outer.id] += op.seconds * outer.idle[0] / outer.idle[1]
        return [Bubble(e.over[0] if e.over else "", *e.idle, seconds[e.id]) for e in pipelines.values()]

    @property
    def peak_flops(self) -> float:
        """FLOP/s at most, in the dtype of most of the program's products."""
        dtype = max(self._dtypes, key=lambda name: self._dtypes[name], default="float32")
        return self.hardware.flops_of(dtype)

    @property
    def mfu(self) -> float:
        """The model FLOPs utilization: the share of the peak, work done again left out."""
        program = self.program
        again = program.flops_recomputed / program.flops if program.flops else 0.0
        useful = program.flops_useful * (1 - again)
        times = self.mesh.size if self.hardware.is_shared else 1
        return useful * times / self.seconds / self.peak_flops if self.seconds else 0.0

    @functools.cached_property
    def memory(self) -> Memory:
        """What one processor holds at the peak."""
        return self.program.memory_on(self.hardware.chip, fused=self.fused)

    @property
    def fits(self) -> bool:
        """Whether the peak fits into a processor's memory, and the rest into its host's."""
        has_room = not self.hardware.host_memory or self.memory.host <= self.hardware.host_memory
        return bool(self.memory.fits(self.capacity)) and has_room

    @functools.cached_property
    def tokens(self) -> int | None:
        """Tokens of one step: batch times length of the ids; None without ids.

        When decoding, which shows by a KV cache, an id of each sequence is one token.
        """
        ids = [
            placed.dims
            for entry in self.program.reading.entries
            for placed, maker in zip(entry.operands, entry.makers, strict=False)
            if placed is not None and maker is None and placed.dtype.kind in "iu" and placed.dims.has("batch")
        ]
        if self.memory.cache:
            return max((math.prod(dims.sizes) for dims in ids if not dims.has("memory_length")), default=None)
        sizes = [dims.find("batch").size * dims.find("length").size for dims in ids if dims.has("length")]
        return max(sizes, default=None)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of all processors; None without ids."""
        return None if self.tokens is None or not self.seconds else self.tokens / self.seconds

    @functools.cached_property
    def why(self) -> str:
        """One line: what most of the time goes to, and the largest waste."""
        return _why(self)

    @functools.cached_property
    def attention(self) -> list[str]:
        """What does each kind of attention here, and why no faster kernel: a line each."""
        if self.fused is not None:
            return []
        return self.program.explain_attention(self.hardware.chip)

    def table(self, most: int = _SHOWN) -> str:
        """The longest ops, a line each."""
        return join_lines(self.printed_table(most))

    def printed_table(self, most: int = _SHOWN) -> list[Printed]:
        """The lines of `table`, each with where its place stands."""
        lines = [Printed(f"{'seconds':>10}  {'share':>6}  {'bound by':9} {'phase':9} {'op':60} source")]
        for op in self.ops[:most]:
            share = op.seconds / self.seconds if self.seconds else 0.0
            figures = f"{time_text(op.seconds):>10}  {share:6.1%}  {op.bound_by:9} {op.phase:9}"
            lines.append(placed_line(f"{figures} {op.label[:60]:60} ", op.source))
        if len(self.ops) > most:
            rest = sum(op.seconds for op in self.ops[most:])
            lines.append(Printed(f"{time_text(rest):>10}  {rest / self.seconds:6.1%}  {len(self.ops) - most} more"))
        return lines

    @property
    def title(self) -> str:
        """The program, its mesh, its layout and the hardware."""
        return f"{self.program.title}, {self.hardware.title}"

    def __str__(self) -> str:
        return join_lines(self.printed())

    def printed(self) -> list[Printed]:
        """The lines of its text, each with what it is."""
        rate = f", {self.tokens_per_s:,.0f} tokens/s" if self.tokens_per_s is not None else ""
        lines = [f"{time_text(self.seconds)} a step{rate}, {self.mfu:.1%} of the peak; {self.why}"]
        lines.append("  ".join(f"{phase} {time_text(took)}" for phase, took in self.phases.items()))
        for axes, took in self.communication.items():
            lines.append(self._host_text(took) if axes == HOST else f"over {axes}: {time_text(took)} of sending")
        lines += [*map(str, self.bubbles), *self.attention, self.memory_text]
        return [Printed(self.title, "title"), *map(Printed, [*lines, ""]), *self.printed_table()]

    def _host_text(self, took: float) -> str:
        """One line: the transfers to and from the host, and what of them is not hidden."""
        over = "" if self.hardware.host_link is None else f" over {self.hardware.host_link.name}"
        shown = sum(total.seconds for total in self._totals.values() if total.axes == (HOST,))
        (said,) = transfers_text(self.program.transfers)
        return f"{said}: {time_text(took)}{over}, of which {time_text(shown)} are waited for"

    @property
    def memory_text(self) -> str:
        """One line: the peak, whether it fits, and what of it can be said apart."""
        low, high = map(size_text, self.memory.range)
        fits = "it fits" if self.fits else "IT MAY NOT FIT"
        line = f"memory: {size_text(self.memory.peak)} at the peak ({low} to {high}) of {self._capacity}: {fits}"
        if self.memory.host:
            of = f" of {size_text(self.hardware.host_memory)}" if self.hardware.host_memory else ""
            line += f"; beside it {size_text(self.memory.host)}{of} on the host"
        if cache := sum(array.bytes for array in self.memory.cache):
            return f"{line}; {size_text(cache)} of it are the KV cache"
        return line

    def __repr__(self) -> str:
        return f"Plan({self.hardware.name}, {time_text(self.seconds)})"

    def page(self, against: "Plan | None" = None) -> Page:
        """An HTML page about it, or about two; `save`, `open`, or show it in a notebook."""
        return page_of(self, against)

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values; `version` changes when their form does."""
        return {
            "version": VERSION,
            "name": self.program.name,
            "hardware": self.hardware.name,
            "mesh": str(self.mesh),
            "layout": str(self.layout),
            "seconds": self.seconds,
            "compute_seconds": self.compute_seconds,
            "communication": self.communication,
            "exposed": self.exposed,
            "phases": self.phases,
            "bubbles": [bubble.to_dict() for bubble in self.bubbles],
            "mfu": self.mfu,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens_per_s,
            "memory": self.memory.to_dict(),
            "capacity": self.capacity,
            "share": self._capacity.share,
            "fits": self.fits,
            "why": self.why,
            "attention": self.attention,
            "ops": [op.to_dict() for op in self.ops],
        }


def _shares_left(
    computing: Mapping[int, float], beside: Mapping[int, float], ahead: Mapping[int, float], kind: str
) -> dict[tuple[int, bool], float]:
    """Of each body's collectives the share its work does not hide; True: those ahead."""
    left: dict[tuple[int, bool], float] = {}
    for body in {*beside, *ahead}:
        room = roofline.BESIDE[kind] * computing.get(body, 0.0)
        hidden = min(beside.get(body, 0.0), room)
        more = min(ahead.get(body, 0.0), max(roofline.AHEAD[kind] * computing.get(body, 0.0) - hidden, 0.0))
        for took, hides, is_ahead in ((beside.get(body), hidden, False), (ahead.get(body), more, True)):
            left[body, is_ahead] = 1 - hides / took if took else 0.0
    return left


def _why(plan: Plan) -> str:
    """What most time goes to, and the worst repeated work or axis waited for."""
    by: dict[str, float] = defaultdict(float)
    for op in plan.ops:
        by[op.bound_by] += op.seconds
    words = {"flops": "computing", "memory": "moving bytes through memory", "sending": "sending"}
    most = max(by, key=lambda name: by[name], default="flops")
    share = by[most] / plan.seconds if plan.seconds else 0.0
    most_of_it = f"{share:.0%} of it {words[most]}"
    duplicated = plan.program.flops_duplicated
    wasted = 1 - plan.program.flops_useful / plan.program.flops if plan.program.flops else 0.0
    sending = plan.exposed / plan.seconds if plan.seconds else 0.0
    if wasted >= max(sending, 0.05):
        return f"{most_of_it}; {duplicated.reason}"
    if sending >= 0.05:
        exposed: dict[Axes, float] = defaultdict(float)
        for total in plan._totals.values():
            exposed[total.axes] += total.seconds if total.axes else 0.0
        axes = max(exposed, key=exposed.__getitem__)
        rows = [row for row in plan.program.ledger if row.axes == axes]
        row = max(rows, key=lambda row: row.wire_bytes * row.count, default=None)
        if row is not None:
            sent = size_text(row.bytes * row.count)
            busy = f"{exposed[axes] / plan.seconds:.0%} waiting for {'+'.join(axes)}"
            return f"{most_of_it}; {busy}, most for {sent} of {row.collective} {row.reason}"
    return most_of_it
