"""This machine's devices and links, measured, as hardware of one's own.

A figure is such that the plan of what was measured takes as long as that took: rooflines and links reach only a share
of a data sheet's peaks, which is divided out. What is not measured (the network between hosts) is the table's, where
the device is in it.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from . import roofline
from .hardware import HARDWARE, hardware_of, measured_hardware
from .kernel import Kernel
from .machine import Hardware, Link
from .this_machine import Report, device_figures

Rows = list[dict[str, Any]]


def measure_devices(report: Report) -> tuple[Hardware, Rows]:
    """The hardware of this machine's devices, and its collectives by size."""
    figures = device_figures(report)
    rows: Rows = figures["collectives"]
    return (measured_hardware(figures["machine"]) if "machine" in figures else hardware_from(figures)), rows


def hardware_from(figures: dict[str, Any]) -> Hardware:
    """The hardware of devices that took so long for what was measured."""
    listed = hardware_of(_Device(figures["device_kind"]))
    source = f"measured on {figures['processors']} of {figures['device_kind']}, JAX {figures['jax']}"
    base = listed or dataclasses.replace(
        HARDWARE["h100" if figures["platform"] in ("gpu", "cuda", "rocm") else "v5e"],
        links=(), memory=figures["memory"], cores=figures["cores"] or 1, host_link=None, host_memory=0,
    )  # fmt: skip
    flops = dict(base.flops) if listed else {}
    measured = figures["products"]
    for dtype, each in measured.items():
        flops[dtype] = _product_peak(base, dtype, each["n"], each["s"])
    flops.setdefault("float32", flops.get("bfloat16", base.flops["float32"]))
    machine = dataclasses.replace(base, name="measured", title=f"{figures['device_kind']}, measured", flops=flops)
    sources = (dict(listed.sources) if listed else {}) | dict.fromkeys(measured, source)
    if stream := figures.get("stream"):
        kernel = Kernel("elementwise", None, "forward", bytes=stream["bytes"])
        machine = dataclasses.replace(machine, bandwidth=base.bandwidth * _ratio(kernel, base, stream["s"]))
        sources["bandwidth"] = source
    if vector := figures.get("vector"):
        kernel = Kernel("elementwise", None, "forward", work=vector["work"])
        machine = dataclasses.replace(machine, vector=base.vector * _ratio(kernel, base, vector["s"]))
        sources["vector"] = source
    if host := figures.get("host"):
        name = base.host_link.name if base.host_link else "host"
        slower = host["bytes"] / max(host["to_s"], host["from_s"])
        machine = dataclasses.replace(machine, host_link=Link(name, slower, latency=10e-6, reach=1, efficiency=1.0))
        sources[name] = source
    links = _links(figures["collectives"], figures["processors"], base.links, machine.host_link)
    if figures["collectives"]:
        sources[links[0].name] = source
    sources = {"memory": source, "cores": source, **sources}
    return dataclasses.replace(machine, links=links, sources=sources)


@dataclasses.dataclass(frozen=True)
class _Device:
    device_kind: str


def _product_peak(base: Hardware, dtype: str, n: int, took: float) -> float:
    """The peak at which the plan of a square product takes so long."""
    kernel = Kernel("product", None, "forward", flops=2.0 * n**3, dtype=dtype, shape=(1, n, n, n))
    return base.flops_of(dtype) * _ratio(kernel, base, took)


def _ratio(kernel: Kernel, base: Hardware, took: float) -> float:
    """By how much faster than planned a kernel was."""
    return roofline.seconds(kernel, dataclasses.replace(base, call=0.0), 1)[0] / took


def _links(rows: Rows, processors: int, known: Sequence[Link], host: Link | None) -> tuple[Link, ...]:
    """The links: the innermost as measured, the others as known."""
    if rows:
        name = known[0].name if known else "device to device"
        reach = max(processors, known[0].reach) if known[1:] else 0
        return (fitted_link(rows, processors, name, reach), *known[1:])
    if known:
        return tuple(known)
    rate = host.bandwidth if host else 1e10
    return (Link("over the host", rate, latency=10e-6, reach=0, efficiency=1.0, call=20e-6),)


def fitted_link(rows: Rows, processors: int, name: str, reach: int) -> Link:
    """The link over which the smallest and the largest all-reduce take as long.

    What a permute of the smallest takes is a call; what an all-reduce takes beyond it, the steps of a tree.
    """
    sums, permutes = (
        sorted((row["bytes"], row["us"] * 1e-6) for row in rows if row["collective"] == kind)
        for kind in ("all_reduce", "permute")
    )
    (small, least), (large, most) = sums[0], sums[-1]
    call = min(permutes[0][1], least)
    latency = max((least - call) / (2 * math.ceil(math.log2(processors))), 1e-7)
    sent = 2 * (processors - 1) / processors * (large - small)
    return Link(name, sent / max(most - least, 1e-9), latency, reach, efficiency=1.0, call=call)
