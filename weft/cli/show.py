"""`weft show`: the SPMD program a model becomes, traced with no devices."""

from typing import Annotated, Any

import typer

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
    check_only_one,
    load,
    need_mesh_and_layout,
)
from .terminal import reported, with_size, write, write_program

EXAMPLES = """Examples:

\b
  weft show tiny-lm --mesh rows=2,cols=4 --layout batch:rows,heads:cols
  weft show lm-4.90b --mesh rows=16,cols=32 --layout batch:rows,vocab:cols,d_ff:cols,heads:cols
  weft show configs/tiny.toml --ledger
  weft show net.py:example --mesh rows=2,cols=4 --layout batch:rows --against batch:rows,hidden:cols

\b
where net.py holds
  def example():
      return net, (x, w, v)    # tensors of arrays, or of jax.ShapeDtypeStruct
"""


def show(
    model: MODEL,
    mesh: MESH = None,
    layout: LAYOUT = None,
    ledger: Annotated[bool, typer.Option("--ledger", help="Print only the collectives, as a table.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the program as JSON.")] = False,
    against: Annotated[
        str | None, typer.Option(metavar="RULES", help="Print what changes from --layout to this one.")
    ] = None,
    batch: BATCH = None,
    length: LENGTH = None,
    optimizer: OPTIMIZER = None,
    loss: LOSS = False,
    decode: DECODE = None,
    changes: CHANGES = None,
    trust: TRUST = False,
) -> None:
    """Print the SPMD program a model becomes on a mesh under a layout.

    Every op with its placement, every collective with its bytes and its reason. No devices are needed, whatever the
    size of the mesh.
    """
    check_only_one(ledger and "--ledger", json and "--json", against is not None and "--against")
    with reported(layout=layout):
        how: dict[str, Any] = dict(batch=batch, length=length, optimizer=optimizer, loss=loss, decode=decode)
        chosen = load(model, changes=changes, trust=trust, mesh=mesh, layout=layout, **how)
        need_mesh_and_layout(chosen, mesh, layout)
        program = chosen.traced(mesh=mesh, layout=layout)
        if json:
            return write(program.to_json())
        if against is not None:
            lines = program.diff(chosen.traced(mesh=mesh, layout=against)).printed()
        else:
            lines = program.ledger.printed() if ledger else with_size(program.printed(), [chosen.size])
    write_program(lines)
