"""Tracing a function to the SPMD program it becomes, on a mesh of any size, with no devices."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import RegionError, WeftError, public
from ..layout import Layout, Region
from ..mesh import Mesh
from ..record import Placed, Record, recording
from ..spmd import Traced, spmd
from .diff import Diff
from .ledger import Ledger, ledger_of
from .lines import Line, text_of
from .listing import listing
from .memory import Memory
from .memory_names import Given, Names, given_to
from .reading import Reading
from .work import Duplicated, Work, flops_text

VERSION = 1


@public(form="wf.trace(fn, *args, mesh=..., layout=...)")
class Program:
    """A traced SPMD program; `jaxpr` is the very thing that is compiled, `print(program)` shows it."""

    def __init__(
        self,
        traced: Traced,
        mesh: Mesh,
        layout: Layout,
        record: Record,
        name: str = "",
        given: Sequence[Given] = (),
    ):
        self.jaxpr, self.mesh, self.layout, self.name = traced.jaxpr, mesh, layout, name
        self._reading, self._given = Reading(traced, record, mesh), given
        self._memory: dict[str, Memory] = {}

    @functools.cached_property
    def ledger(self) -> Ledger:
        """The collectives of the program."""
        return ledger_of(self._reading)

    @functools.cached_property
    def lines(self) -> list[Line]:
        """The printed program, line by line."""
        return listing(self._reading)

    def text(self, *, lines: bool = True) -> str:
        """The printed program; with `lines=False` the names of functions stand in place of line numbers."""
        layout = str(self.layout) or "the empty layout"
        processors = "1 processor" if self.mesh.size == 1 else f"{self.mesh.size} processors"
        head = f"{self.name} on {self.mesh} ({processors}) under {layout}"
        if sizes := self._reading.sizes:
            head += f"\n{sizes}"
        body = text_of(self.lines, lines=lines) or "nothing runs"
        return "\n".join([head, "", body, "", *self._summary()])

    def _summary(self) -> list[str]:
        sent = self.ledger.totals() if len(self.ledger) else ["nothing is sent"]
        return [*sent, f"work: {flops_text(self.flops)} on each processor; {self.flops_duplicated.reason}"]

    def __str__(self) -> str:
        return self.text()

    @property
    def flops(self) -> int:
        """FLOPs of the products and convolutions of one processor: loops, gradients and recomputation counted."""
        return self._work.total

    @property
    def flops_useful(self) -> float:
        """This processor's share of `flops`, were no work done twice: of what n processors do alike, an n-th."""
        return self._work.useful

    @property
    def flops_duplicated(self) -> Duplicated:
        """`flops - flops_useful`; its `reason` is a sentence that says what is done more than once, and why."""
        return self._work.duplicated

    @property
    def flops_recomputed(self) -> int:
        """Those of `flops` that are done again for the gradients."""
        return self._work.recomputed

    @functools.cached_property
    def _work(self) -> Work:
        return Work(self._reading)

    @property
    def tensors(self) -> list[Placed]:
        """The placed types of what its ops work on and give, in the order they were traced."""
        found = ((*entry.operands, *entry.results) for entry in self._reading.entries)
        return [placed for each in found for placed in each if placed is not None]

    @property
    def memory(self) -> Memory:
        """What the program holds in the memory of one GPU, and at the peak; found without compiling."""
        return self.memory_on("gpu")

    def memory_on(self, target: str) -> Memory:
        """`memory`, by the rules of the compiler for `"gpu"`, `"tpu"` or `"cpu"`."""
        if target not in self._memory:
            names = Names(self._reading, self._given, Region(self.mesh, self.layout))
            self._memory[target] = Memory(self._reading.tree, self.mesh.axes, names, target)
        return self._memory[target]

    def diff(self, other: "Program") -> Diff:
        """What changes from this program to another: another layout, or another version of the code."""
        return Diff(self, other)

    def to_dict(self) -> dict[str, Any]:
        """The program as plain values; `version` changes when their form does."""
        return {
            "version": VERSION,
            "name": self.name,
            "mesh": dict(self.mesh.axes),
            "layout": str(self.layout),
            "lines": [dataclasses.asdict(line) for line in self.lines],
            "ledger": [{**dataclasses.asdict(row), "wire_bytes": row.wire_bytes} for row in self.ledger],
            "exact": self.ledger.exact,
            "flops": self.flops,
            "flops_useful": self.flops_useful,
            "flops_duplicated": float(self.flops_duplicated),
            "flops_recomputed": self.flops_recomputed,
            "duplicated": self.flops_duplicated.reason,
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def __repr__(self) -> str:
        return f"Program(mesh={str(self.mesh)!r}, layout={str(self.layout)!r}, {len(self.ledger)} collectives)"


@public
def trace(fn: Callable[..., Any], *args: Any, mesh: Any = None, layout: Any = None, **kwargs: Any) -> Program:
    """The program that `fn` becomes on a mesh under a layout; arguments may be `jax.ShapeDtypeStruct` tensors.

    A function made by `wf.spmd`, or a train step with a mesh, brings its own.
    """
    bound: Any = fn if mesh is None else spmd(getattr(fn, "fn", fn), mesh=mesh, layout=layout)
    if not hasattr(bound, "abstract"):
        raise RegionError("trace got no mesh", fix="say `wf.trace(fn, ..., mesh=..., layout=...)`")
    name = getattr(bound, "__name__", "")
    try:
        with recording() as record:
            traced = bound.abstract(*args, **kwargs)
    except WeftError:
        raise  # names mesh and layout itself, and ends with the fix
    except Exception as error:
        error.add_note(f"while tracing {name} on mesh {bound.mesh} under layout {str(bound.layout) or '(empty)'}")
        raise
    return Program(traced, bound.mesh, bound.layout, record, name, given_to(bound, args, kwargs))
