"""The cheapest change with which a program would fit, and its price.

Tried are rules that store parameters or the optimizer's state in slices, or on the host, and of a model its options:
recomputation, the loss in pieces, microbatches. First each alone; where none is enough, those that save most together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import WeftError
from ..layout import as_layout
from ..program import Program
from ..text import size_text, time_text
from .cost import Plan

Retrace = Callable[[str, Mapping[str, Any]], Program]
"""The program under another layout, its model with other options."""
_PARAMS, _OPTIMIZER = "params", "optimizer"
_MOST_DIMS = 2
_MOST_TOGETHER = 4
_SHOWN = 3
OPTIONS: tuple[Mapping[str, Any], ...] = (
    {"loss_chunks": 8},
    {"remat": True},
    {"microbatches": 2},
    {"microbatches": 4},
    {"microbatches": 8},
)
"""What a configuration can say to hold less, where it does not say so already."""


@dataclass(frozen=True)
class Remedy:
    """What to say otherwise, and the plan with it."""

    rules: tuple[str, ...]
    options: Mapping[str, Any]
    plan: Plan
    before: Plan

    @property
    def text(self) -> str:
        """As it is written: `params.d_model:rows, remat=True`."""
        return ", ".join([*self.rules, *(f"{name}={value}" for name, value in self.options.items())])

    @property
    def bytes_sent(self) -> int:
        """How many bytes more a processor sends in a step."""
        return self.plan.program.ledger.bytes() - self.before.program.ledger.bytes()

    def __str__(self) -> str:
        more = self.plan.seconds - self.before.seconds
        slower = f"{'+' if more >= 0 else '-'}{time_text(abs(more))}"
        sent = f"{'+' if self.bytes_sent >= 0 else '-'}{size_text(abs(self.bytes_sent))}"
        high = size_text(self.plan.memory.range[1])
        return f"{self.text} ({high} at most; a step takes {time_text(self.plan.seconds)}, {slower}; sent {sent})"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "change": self.text,
            "rules": list(self.rules),
            "options": dict(self.options),
            "layout": str(self.plan.layout),
            "fits": self.plan.fits,
            "memory_bytes": self.plan.memory.range[1],
            "seconds": self.plan.seconds,
            "more_seconds": self.plan.seconds - self.before.seconds,
            "more_bytes_sent": self.bytes_sent,
        }


@dataclass(frozen=True)
class Remedies:
    """The changes with which a program fits, the fastest first; or the nearest."""

    changes: list[Remedy]
    nearest: Remedy | None = None

    def __str__(self) -> str:
        if self.changes:
            first, *others = self.changes[:_SHOWN]
            also = f"; or with {'; or with '.join(map(str, others))}" if others else ""
            return f"it would fit with {first}{also}"
        if self.nearest is None:
            return "nothing that was tried makes it smaller"
        return f"nothing that was tried makes it fit; nearest comes {self.nearest}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "changes": [change.to_dict() for change in self.changes],
            "nearest": None if self.nearest is None else self.nearest.to_dict(),
        }


def find_remedies(plan: Plan, retrace: Retrace, options: Sequence[Mapping[str, Any]] = ()) -> Remedies:
    """The changes of layout and of options with which a plan fits, the fastest first."""
    search = _Trials(plan, retrace)
    single = [
        change
        for rules, chosen in [*(((rule,), {}) for rule in rules_to_try(plan.program)), *(((), one) for one in options)]
        if (change := search.of(rules, chosen)) is not None
    ]
    if fitting := [change for change in single if change.plan.fits]:
        return Remedies(sorted(fitting, key=lambda change: change.plan.seconds))
    saving = sorted(
        (change for change in single if _high(change.plan) < _high(plan)), key=lambda change: _high(change.plan)
    )
    nearest = saving[0] if saving else None
    for change in saving[1 : 1 + _MOST_TOGETHER]:
        assert nearest is not None
        if set(change.options) & set(nearest.options):
            continue  # another number for the same option
        together = search.of((*nearest.rules, *change.rules), {**nearest.options, **change.options})
        if together is not None and _high(together.plan) < _high(nearest.plan):
            nearest = together
        if nearest.plan.fits:
            return Remedies([nearest])
    return Remedies([], nearest)


def rules_to_try(program: Program) -> list[str]:
    """Rules that store what the program is given in slices, or on the host."""
    bytes_of: dict[str, int] = {}
    for given, held in zip(program.inputs, program.memory.given, strict=False):
        for dim in given.dims if given.store is not None and given.dims is not None else ():
            bytes_of[dim.name] = bytes_of.get(dim.name, 0) + held.bytes
    has_optimizer = any(given.store == _OPTIMIZER for given in program.inputs)
    layout, sizes = program.layout, program.mesh.axes
    axes = "+".join(layout.rules.get("batch") or [axis for axis, size in sizes.items() if size > 1])
    rules = []
    stores = [(_PARAMS, layout.params), *[(_OPTIMIZER, layout.optimizer)] * has_optimizer] if bytes_of else []
    for store, said in stores:
        dims = sorted((dim for dim in bytes_of if dim not in said), key=lambda dim: -bytes_of[dim])
        rules += [f"{store}.{dim}:{axes}" for dim in dims[:_MOST_DIMS] if axes]
        rules.append(f"{store}.*:host")
    return rules


class _Trials:
    """Programs with changes, each traced once; one that cannot be is no change."""

    def __init__(self, plan: Plan, retrace: Retrace):
        self.plan, self.retrace = plan, retrace

    def of(self, rules: tuple[str, ...], options: Mapping[str, Any]) -> Remedy | None:
        layout = ",".join([*filter(None, [str(self.plan.layout)]), *rules])
        try:
            as_layout(layout)
            program = self.retrace(layout, options)
        except WeftError:
            return None
        again = Plan(program, self.plan.hardware, memory=self.plan.capacity, fused=self.plan.fused)
        return Remedy(rules, options, again, self.plan) if math.isfinite(again.seconds) else None


def _high(plan: Plan) -> int:
    return plan.memory.range[1]
