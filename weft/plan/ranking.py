"""What a search found: plans in order, and why the others lost."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..layout import Layout
from ..mesh import Mesh
from ..notebook import Page, page_of
from ..text import columns, layout_text, plural, size_text, time_text
from .cost import Plan
from .hardware import Hardware

VERSION = 1


@dataclass(frozen=True)
class Ranked:
    """A layout on a mesh, and what its own traced program costs."""

    mesh: Mesh
    layout: Layout
    seconds: float
    memory_bytes: int
    """What one processor needs, the high end of the range."""
    fits: bool
    mfu: float
    tokens_per_s: float | None
    why: str
    bytes: int
    """What one processor's collectives carry."""
    make: Callable[[], Plan] = field(compare=False, repr=False)
    choices: Mapping[str, Any] = field(default_factory=dict)
    """What of the program was chosen beside the layout: `{"remat": False}`."""

    def plan(self) -> Plan:
        """The plan itself, with its program: traced again."""
        return self.make()

    def to_dict(self) -> dict[str, Any]:
        """As plain values, mesh and layout as the command line takes them."""
        return {
            "mesh": str(self.mesh),
            "layout": str(self.layout),
            "seconds": self.seconds,
            "memory_bytes": self.memory_bytes,
            "fits": self.fits,
            "mfu": self.mfu,
            "tokens_per_s": self.tokens_per_s,
            "why": self.why,
            "choices": dict(self.choices),
        }

    @property
    def text(self) -> str:
        """The mesh, the layout, and what else was chosen."""
        return f"{self.mesh} under {layout_text(self.layout)}" + (f", {self.chosen}" if self.choices else "")

    @property
    def chosen(self) -> str:
        """What was chosen beside the layout, as a configuration writes it."""
        return ", ".join(f"{name}={value}" for name, value in self.choices.items())


@dataclass(frozen=True)
class LayoutClass:
    """The layouts that are made of the same parallelisms, and the best of them."""

    parallelisms: tuple[str, ...]
    count: int
    best: Ranked
    """The fastest of those that were traced and fit, if any does."""
    times: float
    """How long its step takes, in steps of the winner."""

    @property
    def name(self) -> str:
        return " + ".join(self.parallelisms) or "nothing split"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"name": self.name, "count": self.count, "times": self.times, "best": self.best.to_dict()}

    def __str__(self) -> str:
        slower = "" if self.best.fits else f"does not fit ({size_text(self.best.memory_bytes)}), "
        return f"{self.name} ({self.count:,}): {slower}{self.times:.2f}x the time: {self.best.text}: {self.best.why}"


@dataclass(frozen=True)
class Losers:
    """Layouts that lost for one reason, and the best of them."""

    reason: str
    count: int
    example: str

    def __str__(self) -> str:
        return f"{self.count:,} {self.reason}; the best of them: {self.example}"


@dataclass
class Ranking(Sequence[Ranked]):
    """The plans a search found, the fastest that fits first."""

    plans: list[Ranked]
    hardware: Hardware
    capacity: int
    searched: int
    """Legal layouts, over all meshes."""
    traced: int
    pruned: int
    """Those not traced, since they cannot be the best. `searched` is `traced`, `pruned` and `not_seen` together."""
    refused: list[str]
    """Those that could not be traced: an op of the program refuses them, or the function fails; and why."""
    losers: list[Losers]
    not_seen: int = 0
    """Those neither traced nor ruled out, since the search was interrupted or its time was up."""
    stopped: str = ""
    """`interrupted`, or `late` where the time was up; empty where all was seen."""
    front: list[Ranked] = field(default_factory=list)
    """The Pareto front: plans that no other beats in both time and memory, the fastest first."""
    classes: list[LayoutClass] = field(default_factory=list)
    """The layouts by the parallelisms they are made of: the best of each, fastest first."""
    variants: list[str] = field(default_factory=list)
    """What else was tried beside layouts, and what was ruled out, a line each."""
    dims: tuple[str, ...] = ()
    """What was split one way and another."""
    left_out: tuple[str, ...] = ()
    """Dims of the program that were not, and could be."""

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, index: Any) -> Any:
        return self.plans[index]

    def __iter__(self) -> Iterator[Ranked]:
        return iter(self.plans)

    @property
    def best(self) -> Ranked:
        return self.plans[0]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left that could be better; else these are the best so far."""
        return not self.stopped

    def to_dict(self) -> dict[str, Any]:
        """As plain values; `version` changes when their form does."""
        return {
            "version": VERSION,
            "hardware": self.hardware.name,
            "memory_limit_bytes": self.capacity,
            "plans": [ranked.to_dict() for ranked in self.plans],
            "searched": self.searched,
            "traced": self.traced,
            "pruned": self.pruned,
            "not_seen": self.not_seen,
            "refused": self.refused,
            "complete": self.is_complete,
            "stopped": self.stopped,
            "dims": list(self.dims),
            "left_out": list(self.left_out),
            "losers": [vars(losers) for losers in self.losers],
            "front": [ranked.to_dict() for ranked in self.front],
            "classes": [each.to_dict() for each in self.classes],
            "variants": list(self.variants),
        }

    def __repr__(self) -> str:
        best = f"{self.best.text} takes {time_text(self.best.seconds)}"
        return f"Ranking({plural(self.searched, 'legal layout')} on {self.hardware.name}: {best})"

    def __str__(self) -> str:
        parts = [self._table(self.plans)]
        if len(self.front) > 1:
            parts += ["time against memory: what no other beats in both", self._table(self.front)]
        if len(self.classes) > 1:
            parts += ["by the parallelisms they are made of: the best of each", self._table_of_classes()]
        return "\n".join([*parts, *self.words()])

    def _table(self, plans: Sequence[Ranked]) -> str:
        has_chosen = any(ranked.choices for ranked in plans)
        rows = [("", "mesh", "layout", "a step", "MFU", "memory", "chosen" if has_chosen else "")]
        for place, ranked in enumerate(plans, 1):
            fits = "" if ranked.fits else "does not fit"
            cells = (time_text(ranked.seconds), f"{100 * ranked.mfu:.1f} %", size_text(ranked.memory_bytes))
            last = " ".join(filter(None, (ranked.chosen, fits)))
            rows.append((str(place), str(ranked.mesh), layout_text(ranked.layout), *cells, last))
        return "\n".join([*columns(rows, right=(0, 3, 4, 5)), ""])

    def _table_of_classes(self) -> str:
        rows = [("parallelisms", "layouts", "times", "memory", "best", "")]
        for each in self.classes:
            fits = "" if each.best.fits else "does not fit"
            cells = (f"{each.count:,}", f"{each.times:.2f}x", size_text(each.best.memory_bytes))
            rows.append((each.name, *cells, each.best.text, fits))
        return "\n".join([*columns(rows, right=(1, 2, 3)), ""])

    def page(self) -> Page:
        """An HTML page of time against memory; `save`, `open`, or show it in a notebook."""
        return page_of(self)

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()

    def words(self) -> list[str]:
        """Which layout wins, the runner-up, and why the others lost, a line each."""
        best = self.best
        lines = [f"best: {best.text}: {best.why}"]
        if len(self.plans) > 1:
            second = self.plans[1]
            times = second.seconds / best.seconds
            slower = f"{100 * (times - 1):.1f} % slower" if times < 2 else f"{times:.1f} times as long"
            behind = slower if second.fits else "does not fit"
            lines.append(f"runner-up: {second.text}: {behind}: {second.why}")
        lines += [f"lost: {losers}" for losers in self.losers]
        lines += [f"chosen: {line}" for line in self.variants]
        lines.append(
            f"{plural(self.searched, 'legal layout')}; "
            f"{self.traced:,} traced, {self.pruned:,} ruled out by bounds"
            + (f", {self.not_seen:,} NOT SEEN" if self.stopped else "")
            + (f", {len(self.refused):,} refused, like {self.refused[0]}" if self.refused else "")
        )
        others = f"; not {', '.join(self.left_out)} (`dims` names what is searched)" if self.left_out else ""
        lines.append(f"searched: {', '.join(self.dims)}{others}")
        if self.stopped:
            why = "interrupted" if self.stopped == "interrupted" else "its time was up"
            lines.append(
                f"{why}: the best so far; not seen, though they may be better: {plural(self.not_seen, 'layout')}"
            )
        return lines


def front_of(plans: Sequence[Ranked]) -> list[Ranked]:
    """Of plans that fit, fastest first, those that need less memory than all before."""
    front: list[Ranked] = []
    for plan in sorted(plans, key=lambda plan: (plan.seconds, plan.memory_bytes)):
        if plan.fits and (not front or plan.memory_bytes < front[-1].memory_bytes):
            front.append(plan)
    return front


def drop_repeated(plans: Sequence[Ranked]) -> list[Ranked]:
    """The plans without those equal to an earlier one under other names or orders."""
    distinct: dict[Any, Ranked] = {}
    for plan in plans:
        layout = plan.layout
        stores = (("", layout.rules), ("params.", layout.params), ("optimizer.", layout.optimizer))
        rules = {f"{store}{dim}": axes for store, kept in stores for dim, axes in kept.items()}
        ways = frozenset((rule, math.prod(plan.mesh.axes[a] for a in axes)) for rule, axes in rules.items())
        distinct.setdefault((ways, plan.seconds, plan.memory_bytes, plan.chosen), plan)
    return list(distinct.values())
