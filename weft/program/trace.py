"""Tracing a function to its SPMD program, on any mesh, with no devices."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import WeftError, public
from ..kernels.choice import Chip
from ..layout import Layout, LayoutLike, Region
from ..mesh import Mesh, MeshLike
from ..notebook import Page, page_of
from ..record import Placed, Record, recording
from ..spmd import Input, Traced, bind
from ..text import Printed, flops_text, join_lines, layout_text, plural
from .attention import explain_attention, find_scores
from .diff import Diff
from .ledger import Ledger, ledger_of
from .lines import Line, printed_lines
from .listing import listing
from .memory import Memory
from .memory_names import Names
from .reading import Reading
from .step_times import measure
from .transfers import read_transfers, transfers_text
from .work import Duplicated, Work

VERSION = 1


@public(form="wf.trace(fn, *args, mesh=..., layout=...)")
class Program:
    """A traced SPMD program: `print(program)` shows it, `jaxpr` is what is compiled."""

    def __init__(
        self,
        traced: Traced,
        mesh: Mesh,
        layout: Layout,
        record: Record,
        name: str = "",
        inputs: Sequence[Input] = (),
    ):
        self.jaxpr, self.mesh, self.layout, self.name = traced.jaxpr, mesh, layout, name
        self.reading = Reading(traced, record, mesh)
        """The equations with what the record says of them: what costing, planning and the page read."""
        self.inputs = inputs
        """The arrays the program is given, in the order it takes them."""
        self._memory: dict[tuple[Chip, bool | None], Memory] = {}

    @functools.cached_property
    def ledger(self) -> Ledger:
        """The collectives of the program."""
        return ledger_of(self.reading)

    @functools.cached_property
    def transfers(self) -> Ledger:
        """What is fetched from the host's memory and stored there, a row each (offload)."""
        return read_transfers(self.reading)

    @functools.cached_property
    def lines(self) -> list[Line]:
        """The printed program, line by line."""
        return listing(self.reading)

    @property
    def title(self) -> str:
        """What the program is, on which mesh and under which layout."""
        return f"{self.name} on {self.mesh} under {layout_text(self.layout)}"

    def text(self, *, lines: bool = True) -> str:
        """The printed program; with `lines=False` functions in place of line numbers."""
        return join_lines(self.printed(lines=lines))

    def printed(self, *, lines: bool = True) -> list[Printed]:
        """The lines of `text`, each with what it is."""
        processors = "1 processor" if self.mesh.size == 1 else f"{self.mesh.size} processors"
        head = f"{self.name} on {self.mesh} ({processors}) under {layout_text(self.layout)}"
        sizes = [Printed(self.reading.sizes)] if self.reading.sizes else []
        body = printed_lines(self.lines, lines=lines) or [Printed("nothing runs")]
        blank = Printed("")
        return [Printed(head, "title"), *sizes, blank, *body, blank, *map(Printed, self._summary())]

    def _summary(self) -> list[str]:
        sent = self.ledger.totals() if len(self.ledger) else ["nothing is sent"]
        return [
            *sent,
            *transfers_text(self.transfers),
            f"work: {flops_text(self.flops)} on each processor; {self.flops_duplicated.reason}",
            *(f"on a GPU, {line}" for line in self.explain_attention()),
        ]

    def __str__(self) -> str:
        return self.text()

    @property
    def flops(self) -> int:
        """FLOPs of one processor's products and convolutions, all turns and passes."""
        return self._work.total

    @property
    def flops_useful(self) -> float:
        """One processor's share of `flops`, were no work done twice or in a bubble."""
        return self._work.useful

    @property
    def flops_duplicated(self) -> Duplicated:
        """Those of `flops` that others do too; its `reason` says what, and why."""
        return self._work.duplicated

    @property
    def flops_idle(self) -> int:
        """Those of `flops` done while a pipeline fills and empties: its bubble."""
        return self._work.idle

    @property
    def flops_recomputed(self) -> int:
        """Those of `flops` that are done again for the gradients."""
        return self._work.recomputed

    @functools.cached_property
    def _work(self) -> Work:
        return Work(self.reading)

    @property
    def tensors(self) -> list[Placed]:
        """The placed types of all operands and results, in the order of the trace."""
        of_entries = ((*entry.operands, *entry.results) for entry in self.reading.entries)
        return [placed for types in of_entries for placed in types if placed is not None]

    @property
    def memory(self) -> Memory:
        """What the program holds in the memory of one GPU; found without compiling."""
        return self.memory_on("gpu")

    def memory_on(self, target: str | Chip, *, fused: bool | None = False) -> Memory:
        """`memory`, by the rules of the compiler for `"gpu"`, `"tpu"` or `"cpu"`.

        With `fused` attention is done by the fused kernel wherever a GPU has one for it, which stores no scores; with
        None, wherever the target itself has one. A program traced where none is has them written out.
        """
        chip = Chip(target) if isinstance(target, str) else target
        key = chip, fused
        if key not in self._memory:
            names = Names(self.reading, self.inputs, Region(self.mesh, self.layout))
            scores = find_scores(self.reading, chip, fused) or None
            self._memory[key] = Memory(self.reading.graph, self.mesh.axes, names, chip.kind, scores)
        return self._memory[key]

    def explain_attention(self, target: str | Chip = "gpu") -> list[str]:
        """What does each attention on a `"gpu"`, a `"tpu"` or a `"cpu"`, and why.

        A line for each kind of attention: `fused by cuDNN`, or `plain, because ...`. A GPU is one of Hopper's or newer.
        """
        return explain_attention(self.reading, Chip(target) if isinstance(target, str) else target)

    def diff(self, other: "Program") -> Diff:
        """What changes from this program to another, of another layout or version."""
        return Diff(self, other)

    def measured(self, profile: Any, *, hardware: Any = None) -> Any:
        """The program after it ran: what each line took, beside what was predicted.

        `profile` is the folder that `jax.profiler.trace(folder)` wrote while the program ran. What is predicted is for
        the hardware it ran on, or for the one that is named.
        """
        return measure(self, profile, hardware)

    def page(self, against: "Program | None" = None) -> Page:
        """An HTML page about it, or about two; `save`, `open`, or show it in a notebook."""
        return page_of(self, against)

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """The program as plain values; `version` changes when their form does."""
        return {
            "version": VERSION,
            "name": self.name,
            "mesh": dict(self.mesh.axes),
            "layout": str(self.layout),
            "lines": [line.to_dict() for line in self.lines],
            "ledger": [{**dataclasses.asdict(row), "wire_bytes": row.wire_bytes} for row in self.ledger],
            "exact": self.ledger.exact,
            "flops": self.flops,
            "flops_useful": self.flops_useful,
            "flops_duplicated": float(self.flops_duplicated),
            "flops_recomputed": self.flops_recomputed,
            "flops_idle": self.flops_idle,
            "duplicated": self.flops_duplicated.reason,
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def __repr__(self) -> str:
        return (
            f"Program(mesh={str(self.mesh)!r}, layout={str(self.layout)!r}, {plural(len(self.ledger), 'collective')})"
        )


@public
def trace(
    fn: Callable[..., Any],
    *args: Any,
    mesh: MeshLike | None = None,
    layout: LayoutLike | None = None,
    **kwargs: Any,
) -> Program:
    """The SPMD program that `fn` becomes on a mesh under a layout.

    Arguments may be tensors of `jax.ShapeDtypeStruct`.

    A function made by `wf.spmd`, or a train step with a mesh, brings its own.
    """
    bound = bind(fn, mesh, layout)
    try:
        with recording() as record:
            traced = bound.abstract(*args, **kwargs)
    except WeftError:
        raise  # names mesh and layout itself, and ends with the fix
    except Exception as error:
        error.add_note(
            f"while tracing {bound.__name__} on mesh {bound.mesh} under layout {str(bound.layout) or '(empty)'}"
        )
        raise
    assert bound.mesh is not None  # or it would not have been traced
    return Program(traced, bound.mesh, bound.layout, record, bound.__name__, bound.inputs(*args, **kwargs))
