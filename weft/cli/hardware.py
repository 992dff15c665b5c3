"""`weft hardware`: the pieces of hardware a plan can be made for, each figure with its source."""

import dataclasses
import json
from typing import Annotated

import typer

from ..plan.hardware import HARDWARE, Hardware
from ..plan.hardware import hardware as find_hardware
from ..text import columns, size_text
from .terminal import reported, write, write_program

EXAMPLES = """Examples:

\b
  weft hardware
  weft hardware h100
  weft hardware this --json
"""

VERSION = 1


def hardware(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="One of them, with the sources; `this`: this machine, measured."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List the hardware a plan can be made for, or one piece with the sources of its figures."""
    with reported():
        chosen = list(HARDWARE.values()) if name is None else [find_hardware(name)]
        if as_json:
            found = {"version": VERSION, "hardware": [dataclasses.asdict(each) for each in chosen]}
            return write(json.dumps(found, indent=1))
        write_program(_table(chosen) if name is None else _sheet(chosen[0]))


def _table(chosen: list[Hardware]) -> str:
    rows = [("name", "what", "bf16 FLOP/s", "memory", "bandwidth", "links, one way")]
    for each in chosen:
        links = ", ".join(f"{link.name} {link.bandwidth / 1e9:,.0f} GB/s" for link in each.links)
        speed = f"{each.flops_of('bfloat16') / 1e12:,.0f} T"
        rows.append((each.name, each.title, speed, size_text(each.memory), f"{each.bandwidth / 1e9:,.0f} GB/s", links))
    return "\n".join(
        [*columns(rows), "", "`weft hardware NAME` gives the source of each figure; `this` is this machine"]
    )


def _sheet(each: Hardware) -> str:
    figures = {
        **{dtype: f"{flops / 1e12:,.4g} TFLOP/s" for dtype, flops in each.flops.items()},
        "memory": size_text(each.memory),
        "bandwidth": f"{each.bandwidth / 1e9:,.4g} GB/s",
        **{link.name: f"{link.bandwidth / 1e9:,.4g} GB/s one way, {1e6 * link.latency:,.3g} us" for link in each.links},
    }
    rows = [(f"  {name}", figure, each.sources.get(name, "")) for name, figure in figures.items()]
    return "\n".join([f"{each.name}: {each.title}", *columns(rows)])
