"""`weft profile`: what each line of a program took when it ran, beside its plan."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

from ..models.decoding import adapt_args
from ..plan import Measured
from ..program import Program, trace
from ..program.profile import PROGRAMS
from ..program.profiling import fill_shapes, keep_own_scopes, profile_calls
from ..spmd import Bound, TrainState, TrainStep, bind, put
from ..text import time_text
from ..train.own.code import users_code
from ..train.profiling import PROFILE
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
    is_function,
    load,
    need_mesh_and_layout,
)
from .terminal import reported, write, write_program
from .trained import say

EXAMPLES = """Examples:

\b
  weft profile runs/tiny                      # the steps that `weft train --profile 10:20` kept, or some now
  weft profile configs/tiny.toml --steps 10 --top 20
  weft profile net.py:example --mesh rows=2,cols=4 --layout batch:rows --html page.html
  weft profile tiny-lm --mesh rows=2,cols=4 --layout batch:rows,d_ff:cols --hardware this --json

\b
where net.py holds
  def example():
      return net, (x, w, v)    # tensors of arrays, or of jax.ShapeDtypeStruct, which are filled at random
"""

_STEPS = 5


def profile(
    what: MODEL,
    mesh: MESH = None,
    layout: LAYOUT = None,
    steps: Annotated[
        int | None, typer.Option(min=2, metavar="N", help=f"Run so many steps now; {_STEPS} if not said.")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the prediction is for; this machine's if not said.")
    ] = None,
    batch: BATCH = None,
    length: LENGTH = None,
    optimizer: OPTIMIZER = None,
    loss: LOSS = False,
    decode: DECODE = None,
    changes: CHANGES = None,
    trust: TRUST = False,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Print only the N rows that took longest.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the profile that JAX writes in this folder.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that shows it all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Run a program and print it with what each line took, beside what was predicted.

    Collectives say what of them was hidden behind other work; what the program did not ask for has rows of its own: all
    rows together are the step. Weights and tokens are random.
    """
    with reported(layout=layout):
        folder = Path(what)
        kept = folder / PROFILE if folder.is_dir() and steps is None else None
        keep_own_scopes()
        how: dict[str, Any] = dict(batch=batch, length=length, optimizer=optimizer, loss=loss, decode=decode)
        chosen = load(what, changes=changes, trust=trust, mesh=mesh, layout=layout, **how)
        need_mesh_and_layout(chosen, mesh, layout)
        bound = _bind(chosen, mesh, layout)
        chosen = dataclasses.replace(chosen, args=adapt_args(chosen.args, bound.layout))
        program = _trace(chosen, bound)
        if kept is not None and any(kept.rglob(f"*{PROGRAMS}")):
            say(f"reads {kept}; `--steps {_STEPS}` runs steps now")
            measured = program.measured(kept, hardware=hardware)
        else:
            measured = _run(chosen, bound, program, steps or _STEPS, keep, hardware, is_decoding=decode is not None)
        if html is not None:
            measured.page().save(html)
        if as_json:
            return write(measured.to_json())
        if top is not None:
            write(f"{measured.title}\n\n{measured.longest(top)}")
        else:
            write_program(measured.printed())
        if html is not None:
            write(f"page: {html}")
        return None


def _bind(chosen: Model, mesh: str | None, layout: str | None) -> Bound:
    """The function on a mesh of devices, which say by which kernels it runs."""
    fn: Any = chosen.fn
    on, under = chosen.place(mesh, layout)
    on.jax_mesh()
    return fn if chosen.is_bound and fn.mesh is on and fn.layout is under else bind(fn, on, under)


def _trace(chosen: Model, bound: Bound) -> Program:
    with users_code(f"`{chosen.name}` failed while it was traced", f"layout: {bound.layout}   mesh: {bound.mesh}"):
        program = trace(bound, *chosen.args)
    if not is_function(chosen.name):
        program.name = f"{chosen.name} {program.name}"
    return program


def _run(
    chosen: Model,
    bound: Bound,
    program: Program,
    steps: int,
    keep: Path | None,
    hardware: str | None,
    *,
    is_decoding: bool,
) -> Measured:
    """Runs steps under a profile, and measures the program by it."""
    where = f"layout: {bound.layout}   mesh: {bound.mesh}"
    go_on = (lambda args, result: (*args[:2], result[1])) if is_decoding else None
    with _folder(keep) as folder:
        with users_code(f"`{chosen.name}` failed while it ran", where):
            took = profile_calls(bound, _values(chosen, bound), folder, steps=steps, go_on=go_on)
        measured: Measured = program.measured(folder, hardware=hardware)
    say(f"a step takes {time_text(took)} without the profiler, {time_text(measured.seconds)} with it")
    return measured


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="weft-profile-") as folder:
        yield Path(folder)


def _values(chosen: Model, bound: Bound) -> tuple[Any, ...]:
    """The arguments with values for shapes, on the mesh."""
    assert bound.mesh is not None
    first, *rest = chosen.args
    if chosen.start is None:
        values = fill_shapes(chosen.args)
        has_shapes = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(first))
        if isinstance(bound, TrainStep) and isinstance(first, TrainState) and has_shapes:
            return bound.init(values[0].params), *values[1:]
        return values
    model = chosen.start(bound.mesh, bound.layout)
    others = put(fill_shapes(tuple(rest), below=chosen.vocab, floats=np.ones), mesh=bound.mesh, layout=bound.layout)
    return bound.init(model) if isinstance(bound, TrainStep) else model, *others
