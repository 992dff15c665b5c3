"""`weft plan`: what a program takes on some hardware, before it runs."""

import json
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..compat import expect_no_driver
from ..errors import WeftError, closest
from ..models.decoding import adapt_args, decode_tokens
from ..models.running import without_rules
from ..plan import DecodePlan, Plan, compiled_for
from ..plan.hardware import HARDWARE as MACHINES
from ..plan.hardware import Hardware
from ..plan.hardware import hardware as find_hardware
from ..plan.remedies import OPTIONS, Remedies, find_remedies
from ..program import Program, trace
from ..spmd import spmd
from ..text import Printed
from .model import (
    BATCH,
    CHANGES,
    DECODE,
    LAYOUT,
    LENGTH,
    LOSS,
    MESH,
    MODEL,
    OPTIMIZER,
    TRUST,
    Model,
    load,
    need_mesh_and_layout,
)
from .terminal import reported, with_size, write, write_program

EXAMPLES = """Examples:

\b
  weft plan lm-4.90b --mesh rows=16,cols=32 --layout batch:rows,vocab:cols,d_ff:cols,heads:cols --hardware h100
  weft plan configs/tiny.toml --hardware this --html page.html
  weft plan tiny-lm --mesh rows=2,cols=4 --layout batch:rows,d_ff:cols --fail-if "bytes.cols > 2e9"
  weft plan lm-4.90b --mesh x=512 --layout batch:x --compile v5p:8x8x8
  weft plan llama-8b --decode 8192 --mesh x=8 --layout heads:x,d_ff:x,vocab:x

\b
Exit codes: 0 it was planned, 1 an error, 2 the command was written wrong, 3 a --fail-if condition holds.
"""


def complete_hardware(incomplete: str) -> list[str]:
    """The machines of the table that begin so, and this one."""
    return [name for name in (*MACHINES, "this") if name.startswith(incomplete)]


ASSUMED = "h100"
HARDWARE = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_hardware,
        help="What `weft hardware` lists, a TOML file, or `this` machine; if not said, what the run's file says, or"
        f" {ASSUMED}.",
    ),
]
MEMORY = Annotated[
    float | None,
    typer.Option(min=1e-9, metavar="GIB", help="What a processor has, in GiB; the hardware's if not said."),
]
SHARE = Annotated[
    float | None,
    typer.Option(min=0.01, max=1.0, metavar="SHARE", help="Which part of it JAX may use; 0.75 of a GPU's if not said."),
]
FAILED = 3


def plan(
    model: MODEL,
    mesh: MESH = None,
    layout: LAYOUT = None,
    hardware: HARDWARE = None,
    batch: BATCH = None,
    length: LENGTH = None,
    optimizer: OPTIMIZER = None,
    loss: LOSS = False,
    decode: DECODE = None,
    changes: CHANGES = None,
    trust: TRUST = False,
    memory: MEMORY = None,
    share: SHARE = None,
    against: Annotated[
        str | None, typer.Option(metavar="RULES", help="A second layout; --html shows both side by side.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--compile", metavar="TARGET", help="Compile for `h100:1x64x8`, `v5p:8x8x8`, ... with none here."),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Exit with 3 if it holds: `bytes.cols > 2e9`. May be given again."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that shows it all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Say what a model's program takes on some hardware. Nothing runs.

    Time and MFU, memory by what holds it, what is sent over each axis. Of decoding: what a token takes.
    """
    with reported(layout=layout):
        if target is not None:
            expect_no_driver()  # JAX starts before anything is compiled
        conditions = [Condition(text) for text in fail_if or []]
        find_hardware(hardware or ASSUMED)  # a wrong name is said before anything is traced
        capacity = memory_bytes(memory)
        how: dict[str, Any] = dict(batch=batch, length=length, optimizer=optimizer, loss=loss, decode=decode)
        chosen = load(model, changes=changes, trust=trust, mesh=mesh, layout=layout, **how)
        need_mesh_and_layout(chosen, mesh, layout)
        machine, assumed = machine_of(hardware, chosen.hardware)
        planned = Plan(chosen.traced(mesh=mesh, layout=layout), machine, memory=capacity, share=share)
        other = None
        if against is not None:
            other = Plan(chosen.traced(mesh=mesh, layout=against), machine, memory=capacity, share=share)
        shown = planned if decode is None else _beside_one(chosen, planned, decode)
        remedies = None if planned.fits or decode is not None else _remedies(chosen, planned)
        proof = None
        if target is not None:
            args = adapt_args(chosen.args, planned.layout)
            proof = compiled_for(chosen.fn, args, planned.mesh, planned.layout, target)
        held = [condition for condition in conditions if condition.holds(planned)]
        if html is not None:
            planned.page(other).save(html)
        if as_json:
            sized = {} if chosen.params is None else {"parameters": chosen.params}
            write(json.dumps(_as_dict(shown, other, proof, held, remedies) | sized, indent=1))
        else:
            write_program(with_size(_lines(shown, other, proof, remedies), [chosen.size, assumed]))
            if html is not None:
                write(f"page: {html}")
        if held:
            for condition in held:
                typer.echo(f"failed: {condition.text} ({condition.value(planned):,.6g})", err=True)
            raise typer.Exit(FAILED)


def machine_of(said: str | None, of_run: str | None) -> tuple[Hardware, str]:
    """The hardware of the command line, of the run, or what is assumed.

    The last with a line that says so.
    """
    if name := said or of_run:
        return find_hardware(name), ""
    return find_hardware(ASSUMED), f"no --hardware was given: {ASSUMED} is assumed (`weft hardware` lists the others)"


def memory_bytes(gib: float | None) -> int | None:
    """GiB of the command line as bytes."""
    return None if gib is None else int(gib * 2**30)


def _beside_one(chosen: Model, planned: Plan, context: int) -> DecodePlan:
    """A step of decoding beside one processor's, and the loop of `decode.generate`."""
    alone = Plan(chosen.traced(mesh="x=1", layout=""), planned.hardware, memory=planned.capacity)
    under = without_rules(planned.layout, "beam", "samples", "layers")
    args = adapt_args(chosen.args, under)
    loop = trace(spmd(decode_tokens, mesh=planned.mesh, layout=under, donate="cache"), *args)
    return DecodePlan(planned, alone, context, Plan(loop, planned.hardware, memory=planned.capacity))


def _remedies(chosen: Model, planned: Plan) -> Remedies:
    """The cheapest changes of the layout and of a model's options that make it fit."""

    def retrace(layout: str, options: Mapping[str, Any]) -> Program:
        changed = chosen.change(**options) if options and chosen.change is not None else chosen
        return changed.traced(mesh=str(planned.mesh), layout=layout)

    return find_remedies(planned, retrace, OPTIONS if chosen.change is not None else ())


def _lines(planned: Plan | DecodePlan, other: Plan | None, proof: Any, remedies: Remedies | None) -> list[Printed]:
    lines, blank = planned.printed(), Printed("")
    if remedies is not None:
        lines += [blank, Printed(str(remedies))]
    if other is not None:
        ratio = other.seconds / planned.seconds
        than = f"{ratio:.2f} times as long" if ratio >= 1 else f"{1 / ratio:.2f} times as fast"
        head = f"against {other.layout or 'the empty layout'} ({than}):"
        lines += [blank, Printed(head), blank, *other.printed()]
    if proof is not None:
        lines += [blank, Printed(proof.beside(planned.program))]
    return lines


def _as_dict(
    planned: Plan | DecodePlan, other: Plan | None, proof: Any, held: list["Condition"], remedies: Remedies | None
) -> dict[str, Any]:
    values = planned.to_dict() | {"failed": [condition.text for condition in held]}
    if other is not None:
        values["against"] = other.to_dict()
    if proof is not None:
        values["compiled"] = proof.to_dict()
    if remedies is not None:
        values["would_fit"] = remedies.to_dict()
    return values


_SIGNS = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CONDITION = re.compile(r"\s*([a-z_]+)(?:\.([A-Za-z_]\w*))?\s*(>=|<=|==|!=|>|<)\s*([-+.\deE_]+)\s*\Z")
_FIGURES = {
    "seconds": lambda plan: plan.seconds,
    "memory": lambda plan: plan.memory.range[1],
    "mfu": lambda plan: plan.mfu,
    "flops": lambda plan: plan.program.flops,
    "duplicated": lambda plan: float(plan.program.flops_duplicated),
    "tokens_per_s": lambda plan: plan.tokens_per_s or 0.0,
    "fits": lambda plan: float(plan.fits),
}


class Condition:
    """What must not hold, like `bytes.cols > 2e9`: a figure, a sign and a number."""

    def __init__(self, text: str):
        self.text = text.strip()
        match = _CONDITION.match(text)
        figures = [*_FIGURES, "bytes", "count"]
        if not match:
            raise WeftError(
                f"`{text}` is not a condition",
                state=f"figures: {', '.join(figures)}, and of an axis: bytes.cols, count.cols",
                fix='write it like `--fail-if "bytes.cols > 2e9"`',
            )
        self.figure, self.axis, sign, number = match.groups()
        if self.figure not in figures or (self.axis and self.figure not in ("bytes", "count")):
            raise WeftError(
                f"a plan has no figure `{self.figure}{'.' + self.axis if self.axis else ''}`",
                state=f"condition: {self.text}",
                fix=closest(self.figure, figures if not self.axis else ["bytes", "count"]),
            )
        try:
            self.number = float(number)
        except ValueError:
            raise WeftError(f"`{number}` in `{self.text}` is not a number", fix="write one like 2e9 or 0.5") from None
        self._compare = _SIGNS[sign]

    def value(self, plan: Plan) -> float:
        """The figure of a plan."""
        if self.figure in _FIGURES:
            return float(_FIGURES[self.figure](plan))
        return float(getattr(plan.program.ledger, self.figure)(axis=self.axis))

    def holds(self, plan: Plan) -> bool:
        return bool(self._compare(self.value(plan), self.number))
