"""Errors of a search: no layout fits, or none uses all processors."""

from collections.abc import Sequence

from ..errors import MeshError, WeftError
from ..text import size_text
from .choices import Choices, shapes
from .compose import Composer
from .ranking import Ranked


def nothing_fits(plans: Sequence[Ranked], composer: Composer, capacity: int) -> WeftError:
    """The error where no plan fits: what the smallest needs, and what would do."""
    smallest = min(plans, key=lambda ranked: ranked.memory_bytes)
    memory = smallest.plan().memory
    enough = _enough_processors(composer, smallest.mesh.size, capacity)
    more = f"take {enough:,} processors or more, or " if enough else ""
    save = (
        "an optimizer with less state (adafactor)" if memory.arguments > capacity / 2 else "a smaller batch, or remat"
    )
    largest = ", ".join(f"{alive.name} {size_text(alive.bytes)}" for alive in memory.alive[:3])
    return WeftError(
        f"no layout fits: the smallest needs {size_text(smallest.memory_bytes)} on each processor, and "
        f"{size_text(capacity)} is there",
        state=f"layout: {smallest.layout}   mesh: {smallest.mesh}   largest at its peak: {largest}",
        fix=f"{more}{save}, or name more dims to split (`dims=`)",
    )


def _enough_processors(composer: Composer, count: int, capacity: int) -> int | None:
    """The smallest number of processors, doubled from `count`, whose memory may do."""
    for _ in range(8):
        count *= 2
        bounds = [composer.memory(s, legal).min() for s in shapes(count, 2) if len(legal := composer.legal(s))]
        if bounds and min(bounds) <= capacity:
            return count
    return None


def too_many(choices: Choices, count: int, most_axes: int, refusal: str) -> WeftError:
    """The error where no layout uses all processors; `refusal` is an op's reason."""
    if refusal:
        return MeshError(
            f"no layout of these dims can use {count:,} processors", state=f"refused: {refusal}",
            fix="name other dims to split (`dims=`)",
        )  # fmt: skip
    dims = ", ".join(f"{rule} in {choices.divisor(rule):,}" for rule in choices.rules)
    most = choices.most_ways(count, most_axes)
    return MeshError(
        f"no layout of these dims can use {count:,} processors; the most below is {most:,}",
        state=f"the dims divide at most: {dims}",
        fix=f"take `processors={most}`, or name more dims to split (`dims=`), or make a dim larger",
    )
