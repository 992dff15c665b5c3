"""`weft hardware`: what a plan can be made for, each figure with its source."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import WeftError
from ..plan.hardware import HARDWARE, Hardware, Link
from ..plan.hardware import hardware as find_hardware
from ..plan.hardware_file import hardware_toml
from ..plan.measured import measure_devices
from ..text import Printed, columns, size_text
from .progress import Reporter, stderr_console
from .terminal import reported, write, write_program

EXAMPLES = """Examples:

\b
  weft hardware
  weft hardware h100
  weft hardware h100 --toml > mine.toml
  weft hardware --measure --out here.toml
  weft plan tiny-lm --mesh rows=2 --layout batch:rows --hardware here.toml
"""

VERSION = 1


def hardware(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="One of them, or a TOML file, with the sources; `this`: this machine."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print it as a file that --hardware takes.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine's devices and links.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where --measure writes what it found.")] = None,
) -> None:
    """List the hardware a plan can be made for, or one with its sources.

    With --measure: products by dtype, memory, the link to the host, and collectives by size over all devices.
    """
    if measure and name is not None:
        raise typer.BadParameter("--measure is of this machine: leave the name out", param_hint="NAME")
    if out is not None and not measure:
        raise typer.BadParameter("say --measure too", param_hint="--out")
    if as_toml and name is None and not measure:
        raise typer.BadParameter("say of which hardware: `weft hardware h100 --toml`", param_hint="--toml")
    with reported():
        rows: list[dict[str, object]] = []
        if measure:
            with Reporter(stderr_console()) as bar:
                machine, rows = measure_devices(lambda what, done, of: bar.progress(what, done, of, ""))
            chosen = [machine]
        else:
            chosen = list(HARDWARE.values()) if name is None else [find_hardware(name)]
        if out is not None:
            _write_file(out, hardware_toml(chosen[0], rows))
        if as_json:
            listing = {"version": VERSION, "hardware": [dataclasses.asdict(machine) for machine in chosen]}
            return write(json.dumps(listing | ({"measured": rows} if measure else {}), indent=1))
        if as_toml:
            return write(hardware_toml(chosen[0], rows))
        head, *lines = _table(chosen) if name is None and not measure else _sheet(chosen[0])
        written = [f"written to {out}: `--hardware {out}`"] if out is not None else []
        write_program([Printed(head, "title"), *map(Printed, [*lines, *_list_measured(rows), *written])])


def _write_file(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WeftError(
            f"{out} cannot be written: {error.strerror}", fix="name a file in a folder that is there"
        ) from None


def _table(chosen: list[Hardware]) -> list[str]:
    rows = [("name", "what", "bf16 FLOP/s", "memory", "bandwidth", "links, one way")]
    for machine in chosen:
        links = ", ".join(f"{link.name} {_one_way(link):,.4g} GB/s" for link in machine.links)
        speed = f"{machine.flops_of('bfloat16') / 1e12:,.0f} T"
        bandwidth = f"{machine.bandwidth / 1e9:,.0f} GB/s"
        rows.append((machine.name, machine.title, speed, _memory_text(machine.memory), bandwidth, links))
    ending = "`weft hardware NAME` gives the source of each figure; `this` is this machine, and a file may be your own"
    return [*columns(rows), "", ending]


def _sheet(machine: Hardware) -> list[str]:
    figures = {
        **{dtype: f"{flops / 1e12:,.4g} TFLOP/s" for dtype, flops in machine.flops.items()},
        "vector": f"{machine.vector / 1e12:,.4g} TFLOP/s",
        "cores": f"{machine.cores}",
        "memory": _memory_text(machine.memory),
        "bandwidth": f"{machine.bandwidth / 1e9:,.4g} GB/s",
        **({"cache": size_text(int(machine.cache))} if machine.cache else {}),
        **{link.name: _link_text(link) for link in machine.links},
    }
    if machine.host_link is not None:
        figures[machine.host_link.name] = f"{machine.host_link.bandwidth / 1e9:,.4g} GB/s one way, to the host"
    if machine.host_memory:
        figures["host_memory"] = f"{_memory_text(machine.host_memory)} a processor"
    rows = [(f"  {name}", figure, machine.sources.get(name, "")) for name, figure in figures.items()]
    return [f"{machine.name}: {machine.title}", *columns(rows)]


def _link_text(link: Link) -> str:
    reach = f", {link.reach:,} processors" if link.reach else ""
    wiring = f" ({link.sides}D torus, two links a side)" if link.is_torus else ", one to each other" * link.is_direct
    return f"{_one_way(link):,.4g} GB/s one way, {1e6 * link.latency:,.3g} us{reach}{wiring}"


def _one_way(link: Link) -> float:
    """GB/s of a link in one direction, as vendors state it; a torus has two a side."""
    return link.bandwidth / 1e9 / (2 if link.is_torus else 1)


def _memory_text(memory: int) -> str:
    """A size as vendors state it: in whole GB, or else in GiB."""
    return f"{memory // 10**9:,} GB" if memory % 10**9 == 0 else size_text(memory)


def _list_measured(rows: list[dict[str, object]]) -> list[str]:
    """The collectives that were measured, by size."""
    if not rows:
        return []
    cells = [("  collective", "processors", "bytes", "us")]
    cells += [
        (f"  {row['collective']}", str(row["processors"]), str(row["bytes"]), f"{row['us']:,.1f}") for row in rows
    ]
    return ["", *columns(cells, right=(1, 2, 3))]
