"""What a search found: plans in order, and why the others lost."""

from collections.abc import Callable, Iterator, Sequence
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
        }


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
    """Those not traced, since they cannot be the best."""
    refused: list[str]
    """Those that could not be traced: an op of the program refuses them, or the function fails; and why."""
    losers: list[Losers]
    is_complete: bool = True
    """False where the search was interrupted: the best so far."""
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
            "refused": self.refused,
            "complete": self.is_complete,
            "dims": list(self.dims),
            "left_out": list(self.left_out),
            "losers": [vars(losers) for losers in self.losers],
        }

    def __str__(self) -> str:
        rows = [("", "mesh", "layout", "a step", "MFU", "memory", "")]
        for place, ranked in enumerate(self.plans, 1):
            fits = "" if ranked.fits else "does not fit"
            cells = (time_text(ranked.seconds), f"{100 * ranked.mfu:.1f} %", size_text(ranked.memory_bytes), fits)
            rows.append((str(place), str(ranked.mesh), str(ranked.layout), *cells))
        return "\n".join([*columns(rows, right=(0, 3, 4, 5)), "", *self.words()])

    def page(self) -> Page:
        """An HTML page of time against memory; `save`, `open`, or show it in a notebook."""
        return page_of(self)

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()

    def words(self) -> list[str]:
        """Which layout wins, the runner-up, and why the others lost, a line each."""
        best = self.best
        lines = [f"best: {best.mesh} under {layout_text(best.layout)}: {best.why}"]
        if len(self.plans) > 1:
            second = self.plans[1]
            times = second.seconds / best.seconds
            slower = f"{100 * (times - 1):.1f} % slower" if times < 2 else f"{times:.1f} times as long"
            behind = slower if second.fits else "does not fit"
            lines.append(f"runner-up: {second.mesh} under {layout_text(second.layout)}: {behind}: {second.why}")
        lines += [f"lost: {losers}" for losers in self.losers]
        lines.append(
            f"{plural(self.searched, 'legal layout')}; "
            f"{self.traced:,} traced, {self.pruned:,} ruled out by bounds"
            + (f", {len(self.refused):,} refused, like {self.refused[0]}" if self.refused else "")
        )
        others = f"; not {', '.join(self.left_out)} (`dims` names what is searched)" if self.left_out else ""
        lines.append(f"searched: {', '.join(self.dims)}{others}")
        if not self.is_complete:
            lines.append("interrupted: the best so far")
        return lines
