"""Hardware by its name, by the file it is described in, or by a device of JAX's.

`this` machine is measured on first use (`this_machine.py`).
"""

import functools
from pathlib import Path
from typing import Any

from ..errors import WeftError, closest
from .hardware_file import read_hardware
from .machine import Hardware, Link
from .machines import LISTED
from .this_machine import machine_figures

HARDWARE: dict[str, Hardware] = {listed.name: listed for listed in LISTED}
THIS = "this"


def hardware(name: str | Path | Hardware) -> Hardware:
    """The hardware of a name, or of a file of TOML; `this` is this machine, measured."""
    if isinstance(name, Hardware):
        return name
    if isinstance(name, Path) or str(name).lower().endswith(".toml"):
        return read_hardware(Path(name), HARDWARE)
    if name == THIS:
        return _this()
    listed = HARDWARE.get(str(name).lower().removeprefix("tpu").strip(" -_"))
    if listed is None:
        raise WeftError(
            f"there is no hardware `{name}`",
            fix=f"{closest(str(name), [*HARDWARE, THIS])} or describe your own in a file: `--hardware mine.toml`",
        )
    return listed


def hardware_of(device: Any) -> Hardware | None:
    """The hardware of a JAX device; None where it is not in the table."""
    # `H100 NVL` before `H100`, `TPU v5 lite` before `TPU v5`.
    named = [(kind, listed) for listed in LISTED for kind in listed.device_kinds if kind in device.device_kind]
    return max(named, key=lambda pair: len(pair[0]), default=("", None))[1]


@functools.cache
def _this() -> Hardware:
    return measured_hardware(machine_figures())


def measured_hardware(figures: dict[str, Any]) -> Hardware:
    """The hardware of measured figures."""
    source = f"measured on this machine ({figures['cpu']}, JAX {figures['jax']})"
    link = Link(
        "shared memory",
        figures["sent_per_s"],
        figures["sending_s_a_processor"],
        reach=0,
        efficiency=1.0,
        call=figures["sending_s"],
    )
    flops = {"float32": figures["float32"], "bfloat16": figures["bfloat16"]}
    names = [*flops, link.name, "vector", "bandwidth", "memory", "cores", "call"]
    return Hardware(
        THIS,
        f"this machine: {figures['cpu']}, {figures['cores']} cores",
        "cpu",
        flops=flops,
        vector=figures["elementwise_per_s"],
        cores=figures["cores"],
        memory=figures["memory"],
        bandwidth=figures["bandwidth"],
        links=(link,),
        sources=dict.fromkeys(names, source),
        call=figures["call_s"],
        is_shared=True,
    )
