"""`weft hardware`: what a plan can be made for, each figure with its source."""

import dataclasses
import json
from typing import Annotated

import typer

from ..plan.hardware import HARDWARE, Hardware
from ..plan.hardware import hardware as find_hardware
from ..text import columns, size_text
from .terminal import reported, titled, write, write_program

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
    """List the hardware a plan can be made for, or one with its sources."""
    with reported():
        chosen = list(HARDWARE.values()) if name is None else [find_hardware(name)]
        if as_json:
            listing = {"version": VERSION, "hardware": [dataclasses.asdict(machine) for machine in chosen]}
            return write(json.dumps(listing, indent=1))
        write_program(titled(_table(chosen) if name is None else _sheet(chosen[0])))


def _table(chosen: list[Hardware]) -> str:
    rows = [("name", "what", "bf16 FLOP/s", "memory", "bandwidth", "links, one way")]
    for machine in chosen:
        links = ", ".join(f"{link.name} {link.bandwidth / 1e9:,.0f} GB/s" for link in machine.links)
        speed = f"{machine.flops_of('bfloat16') / 1e12:,.0f} T"
        bandwidth = f"{machine.bandwidth / 1e9:,.0f} GB/s"
        rows.append((machine.name, machine.title, speed, size_text(machine.memory), bandwidth, links))
    return "\n".join(
        [*columns(rows), "", "`weft hardware NAME` gives the source of each figure; `this` is this machine"]
    )


def _sheet(machine: Hardware) -> str:
    figures = {
        **{dtype: f"{flops / 1e12:,.4g} TFLOP/s" for dtype, flops in machine.flops.items()},
        "memory": size_text(machine.memory),
        "bandwidth": f"{machine.bandwidth / 1e9:,.4g} GB/s",
        **{
            link.name: f"{link.bandwidth / 1e9:,.4g} GB/s one way, {1e6 * link.latency:,.3g} us"
            for link in machine.links
        },
    }
    rows = [(f"  {name}", figure, machine.sources.get(name, "")) for name, figure in figures.items()]
    return "\n".join([f"{machine.name}: {machine.title}", *columns(rows)])
