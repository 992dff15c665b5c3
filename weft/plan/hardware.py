"""Hardware figures: FLOP/s, memory, bandwidth and links, with their sources.

The one table of such figures. Imports errors; `this` machine is measured on first use (`this_machine.py`).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import WeftError, closest
from .this_machine import machine_figures

MB, GB, TB = 1e6, 1e9, 1e12
TFLOP = 1e12
GIB = 2**30


@dataclass(frozen=True)
class Link:
    """What one processor sends over: its bandwidth, its latency, its reach."""

    name: str
    bandwidth: float
    """Bytes a second one processor sends, one way; of a torus, along one of its axes, both directions."""
    latency: float
    """Seconds of one step of a ring beside its bytes."""
    reach: int
    """How many processors are connected so: those of a host, of a pod; 0 for any number."""
    efficiency: float = 0.8
    """The share of the bandwidth that large messages get."""
    is_torus: bool = False
    """Whether messages to others than neighbours pass through them."""
    call: float = 0.0
    """Seconds a collective takes at least."""


@dataclass(frozen=True)
class Hardware:
    """One kind of processor and what it is wired to."""

    name: str
    title: str
    kind: str
    """`gpu`, `tpu` or `cpu`."""
    flops: dict[str, float]
    """Dense products a second, by dtype; a float32 product is what JAX makes of it by default."""
    vector: float
    """FLOP/s outside the matrix units: one float32 operation on each element of an array."""
    cores: int
    """Among how many units the tiles of a product are divided."""
    memory: int
    bandwidth: float
    links: tuple[Link, ...]
    """From the innermost out: inside a host or pod first."""
    sources: dict[str, str] = field(default_factory=dict)
    device_kinds: tuple[str, ...] = ()
    """Parts of JAX's `device_kind` by which it is known."""
    call: float = 0.0
    """Seconds a kernel takes at least."""
    cache: float = 0.0
    """Bytes that need not go to memory when they are read again at once."""
    is_shared: bool = False
    """Whether all processors of a mesh are one machine, which does the work of all of them."""

    def flops_of(self, dtype: str) -> float:
        """Products a second in a dtype; of one that is not listed, those of float32."""
        return self.flops.get(dtype, self.flops["float32"])

    def __str__(self) -> str:
        return f"{self.name}: {self.title}"


_NVIDIA = "NVIDIA {} data sheet"
_GOOGLE = "Google Cloud TPU documentation, {}"
_JAX_F32 = "{}; JAX makes float32 products so by default"


def _gpu(
    name: str,
    title: str,
    sheet: str,
    *,
    bfloat16: float,
    tf32: float,
    vector: float,
    cores: int,
    memory: float,
    bandwidth: float,
    cache: float,
    inside: Link,
    between: Link,
    network: str,
    kinds: Sequence[str],
) -> Hardware:
    sheet = _NVIDIA.format(sheet)
    half = f"{sheet}: BF16 tensor core, dense (half of the figure with sparsity)"
    return Hardware(
        name,
        title,
        "gpu",
        flops={"bfloat16": bfloat16, "float16": bfloat16, "float32": tf32},
        vector=vector,
        cores=cores,
        memory=int(memory),
        bandwidth=bandwidth,
        links=(inside, between),
        sources={
            "bfloat16": half,
            "float16": half,
            "float32": _JAX_F32.format(f"{sheet}: TF32 tensor core, dense"),
            "vector": f"{sheet}: FP32",
            "cores": f"{sheet}: streaming multiprocessors",
            "memory": sheet,
            "bandwidth": sheet,
            "cache": f"{sheet} and architecture paper: L2",
            inside.name: f"{sheet}: half of the total of both directions",
            between.name: network,
        },
        device_kinds=tuple(kinds),
        call=1e-6,
        cache=cache,
    )


def _nvlink(name: str, bandwidth: float, reach: int = 8) -> Link:
    return Link(name, bandwidth, latency=1e-6, reach=reach, efficiency=0.8, call=10e-6)


def _network(name: str, bandwidth: float) -> Link:
    return Link(name, bandwidth, latency=5e-6, reach=0, efficiency=0.8, call=20e-6)


_DGX = "NVIDIA {} data sheet: one {} Gbit/s adapter a GPU"
_NDR, _HDR = _network("InfiniBand NDR", 50 * GB), _network("InfiniBand HDR", 25 * GB)


def _tpu(
    name: str,
    title: str,
    page: str,
    *,
    bfloat16: float,
    int8: float,
    vector: float,
    memory: float,
    bandwidth: float,
    link: float,
    pod: int,
    outside: float,
    kinds: Sequence[str],
    notes: dict[str, str],
) -> Hardware:
    source = _GOOGLE.format(page)
    # A ring along one axis of the torus sends both ways at once.
    torus = Link("ICI", 2 * link, latency=1e-6, reach=pod, efficiency=0.9, is_torus=True, call=3e-6)
    return Hardware(
        name,
        title,
        "tpu",
        flops={"bfloat16": bfloat16, "float32": bfloat16, "int8": int8},
        vector=vector,
        cores=1,
        memory=int(memory),
        bandwidth=bandwidth,
        links=(torus, Link("data center network", outside, latency=20e-6, reach=0, efficiency=0.8, call=50e-6)),
        sources={
            "bfloat16": source,
            "float32": _JAX_F32.format(f"{source}: one pass of bfloat16"),
            "int8": source,
            "vector": "an estimate: 1/64 of the matrix units",
            "memory": source,
            "bandwidth": source,
            "ICI": f"{source}: the chip's total over its links, both directions of one axis",
            "data center network": source,
            **notes,
        },
        device_kinds=tuple(kinds),
        call=1e-6,
    )


_ALL = (
    _gpu(
        "a100", "NVIDIA A100 SXM 80 GB", "A100",
        bfloat16=312 * TFLOP, tf32=156 * TFLOP, vector=19.5 * TFLOP, cores=108, memory=80 * GB, bandwidth=2.039 * TB,
        cache=40 * MB,
        inside=_nvlink("NVLink 3", 300 * GB), between=_HDR, network=_DGX.format("DGX A100", 200), kinds=["A100"],
    ),
    _gpu(
        "h100-nvl", "NVIDIA H100 NVL 94 GB", "H100 NVL",
        bfloat16=835 * TFLOP, tf32=417 * TFLOP, vector=60 * TFLOP, cores=132, memory=94 * GB, bandwidth=3.9 * TB,
        cache=50 * MB,
        inside=_nvlink("NVLink bridge", 300 * GB, reach=2), between=_NDR, network=_DGX.format("DGX H100", 400),
        kinds=["H100 NVL"],
    ),
    _gpu(
        "h100-pcie", "NVIDIA H100 PCIe 80 GB", "H100 PCIe",
        bfloat16=756 * TFLOP, tf32=378 * TFLOP, vector=51 * TFLOP, cores=114, memory=80 * GB, bandwidth=2.0 * TB,
        cache=50 * MB,
        inside=_nvlink("NVLink bridge", 300 * GB, reach=2), between=_NDR, network=_DGX.format("DGX H100", 400),
        kinds=["H100 PCIe"],
    ),
    _gpu(
        "h100", "NVIDIA H100 SXM 80 GB", "H100",
        bfloat16=989 * TFLOP, tf32=494 * TFLOP, vector=67 * TFLOP, cores=132, memory=80 * GB, bandwidth=3.35 * TB,
        cache=50 * MB,
        inside=_nvlink("NVLink 4", 450 * GB), between=_NDR, network=_DGX.format("DGX H100", 400), kinds=["H100"],
    ),
    _gpu(
        "h200", "NVIDIA H200 SXM 141 GB", "H200",
        bfloat16=989 * TFLOP, tf32=494 * TFLOP, vector=67 * TFLOP, cores=132, memory=141 * GB, bandwidth=4.8 * TB,
        cache=50 * MB,
        inside=_nvlink("NVLink 4", 450 * GB), between=_NDR, network=_DGX.format("DGX H200", 400), kinds=["H200"],
    ),
    _gpu(
        "b200", "NVIDIA B200 SXM 180 GB", "DGX B200",
        bfloat16=2250 * TFLOP, tf32=1125 * TFLOP, vector=75 * TFLOP, cores=148, memory=180 * GB, bandwidth=8 * TB,
        cache=126 * MB,
        inside=_nvlink("NVLink 5", 900 * GB), between=_NDR, network=_DGX.format("DGX B200", 400), kinds=["B200"],
    ),
    _tpu(
        "v4", "Google TPU v4", "TPU v4",
        bfloat16=275 * TFLOP, int8=275 * TFLOP, vector=4.3 * TFLOP, memory=32 * GIB, bandwidth=1.228 * TB,
        link=50 * GB, pod=4096, outside=3.125 * GB, kinds=["TPU v4"],
        notes={
            "ICI": "Jouppi et al. 2023, TPU v4: six links of 50 GB/s each way, two an axis of a 3D torus",
            "data center network": "an estimate: as TPU v5e",
        },
    ),
    _tpu(
        "v5e", "Google TPU v5e", "TPU v5e",
        bfloat16=197 * TFLOP, int8=393 * TFLOP, vector=3.1 * TFLOP, memory=16 * GB, bandwidth=0.819 * TB,
        link=50 * GB, pod=256, outside=3.125 * GB, kinds=["TPU v5 lite", "TPU v5e"],
        notes={"ICI": f"{_GOOGLE.format('TPU v5e')}: 400 GB/s both ways over four links, two an axis of a 2D torus"},
    ),
    _tpu(
        "v5p", "Google TPU v5p", "TPU v5p",
        bfloat16=459 * TFLOP, int8=918 * TFLOP, vector=7.2 * TFLOP, memory=95 * GIB, bandwidth=2.765 * TB,
        link=100 * GB, pod=8960, outside=6.25 * GB, kinds=["TPU v5p", "TPU v5"],
        notes={"ICI": f"{_GOOGLE.format('TPU v5p')}: 1200 GB/s both ways over six links, two an axis of a 3D torus"},
    ),
    _tpu(
        "v6e", "Google TPU v6e", "TPU v6e",
        bfloat16=918 * TFLOP, int8=1836 * TFLOP, vector=14.3 * TFLOP, memory=32 * GB, bandwidth=1.6 * TB,
        link=100 * GB, pod=256, outside=12.5 * GB, kinds=["TPU v6 lite", "TPU v6e"],
        notes={"ICI": f"{_GOOGLE.format('TPU v6e')}: 3200 Gbit/s one way over four links, two an axis of a 2D torus"},
    ),
)  # fmt: skip

HARDWARE: dict[str, Hardware] = {listed.name: listed for listed in _ALL}
THIS = "this"


def hardware(name: str | Hardware) -> Hardware:
    """The hardware of a name; `this` is this machine, measured on first use."""
    if isinstance(name, Hardware):
        return name
    if name == THIS:
        return _this()
    listed = HARDWARE.get(str(name).lower().removeprefix("tpu").strip(" -_"))
    if listed is None:
        raise WeftError(
            f"there is no hardware `{name}`",
            state=f"hardware: {', '.join([*HARDWARE, THIS])}",
            fix=f"{closest(str(name), [*HARDWARE, THIS])} or give a `Hardware` of your own",
        )
    return listed


def hardware_of(device: Any) -> Hardware | None:
    """The hardware of a JAX device; None where it is not in the table."""
    # `H100 NVL` before `H100`, `TPU v5 lite` before `TPU v5`.
    named = [(kind, listed) for listed in _ALL for kind in listed.device_kinds if kind in device.device_kind]
    return max(named, key=lambda pair: len(pair[0]), default=("", None))[1]


@functools.cache
def _this() -> Hardware:
    return measured_hardware(machine_figures())


def measured_hardware(figures: dict[str, Any]) -> Hardware:
    """The hardware of measured figures."""
    source = f"measured on this machine ({figures['cpu']}, JAX {figures['jax']})"
    link = Link(
        "memory",
        figures["sent_per_s"],
        figures["sending_s_a_processor"],
        reach=0,
        efficiency=1.0,
        call=figures["sending_s"],
    )
    flops = {"float32": figures["float32"], "bfloat16": figures["bfloat16"]}
    names = [*flops, "vector", "bandwidth", "memory", "cores", "call"]
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


def ways_inside(link: Link, sizes: Sequence[int], strides: Sequence[int]) -> int:
    """How many of a group's processors one reach of a link holds.

    >>> ways_inside(Link("", 1, 0, reach=8), sizes=[16, 32], strides=[32, 1]), ways_inside(Link("", 1, 0, 8), [4], [2])
    (8, 4)
    """
    if not link.reach:
        return math.prod(sizes)
    ways = 1
    for size, stride in zip(sizes, strides, strict=True):
        ways *= math.gcd(size, max(link.reach // stride, 1))
    return min(ways, link.reach)
