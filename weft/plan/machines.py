"""The table of hardware: FLOP/s, memory, bandwidth and links, with their sources.

Figures are those that vendors state, of dense products, in the units they state them in; of a link that is stated for
both directions together, half. Latencies are estimates after NCCL's tuner (`hwLat` in `src/graph/tuning.cc`: 0.5 to 3.4
us a step of NVLink, 2.7 to 14 us of a network). NCCL reaches 0.8 of NVLink, 275 of 450 GB/s where NVLink SHARP sums,
and 46 to 48 of 50 GB/s of an adapter, say its authors (NVIDIA/nccl-tests, issues 212 and 290).
"""

from collections.abc import Sequence

from ..kernels.choice import HOPPER
from .machine import Hardware, Link

MB, GB, TB = 1e6, 1e9, 1e12
GBIT = 1e9 / 8
TFLOP = 1e12
GIB = 2**30

_GOOGLE = "Google Cloud TPU documentation, {}"
_SCALING_BOOK = "Austin et al. 2025, How to Scale Your Model"
_JAX_F32 = "{}; JAX makes float32 products so by default"
_E4M3, _E5M2 = "float8_e4m3fn", "float8_e5m2"
_SHARP, _ADAPTER = 275 / 450, 46 / 50  # of the bandwidth


def _pcie(generation: int) -> Link:
    """PCIe x16 to the host; a lane of generation 4 has 2 GB/s each way."""
    lane = 2 * GB * 2 ** (generation - 4)
    return Link(f"PCIe {generation} x16", 16 * lane, latency=10e-6, reach=1, efficiency=0.8)


def _gpu(
    name: str,
    title: str,
    sheet: str,
    *,
    bfloat16: float,
    tf32: float,
    float8: float = 0.0,
    vector: float,
    cores: int,
    memory: float,
    bandwidth: float,
    cache: float,
    inside: Link,
    network: float,
    nodes: str,
    host_link: Link,
    host_memory: float = 0.0,
    kinds: Sequence[str],
    notes: dict[str, str] | None = None,
    capability: tuple[int, int] = HOPPER,
) -> Hardware:
    sheet = f"NVIDIA {sheet} data sheet"
    half = f"{sheet}: tensor core, dense (half of the figure with sparsity)"
    generation = "NDR" if network >= 400 * GBIT else "HDR"
    between = Link(f"InfiniBand {generation}", network, latency=5e-6, reach=0, efficiency=_ADAPTER, call=20e-6)
    products = {"bfloat16": bfloat16, "float16": bfloat16, "float32": tf32}
    return Hardware(
        name,
        title,
        "gpu",
        flops=products | ({_E4M3: float8, _E5M2: float8} if float8 else {}),
        vector=vector,
        cores=cores,
        memory=int(memory),
        bandwidth=bandwidth,
        links=(inside, between),
        sources={
            **dict.fromkeys(["bfloat16", "float16", *([_E4M3, _E5M2] if float8 else [])], half),
            "float32": _JAX_F32.format(f"{sheet}: TF32 tensor core, dense"),
            "vector": f"{sheet}: FP32",
            "cores": f"{sheet}: streaming multiprocessors",
            "memory": sheet,
            "bandwidth": sheet,
            "cache": f"{sheet} and architecture paper: L2",
            inside.name: f"{sheet}: half of the total of both directions",
            between.name: f"NVIDIA {nodes} data sheet: one {network / GBIT:.0f} Gbit/s adapter a GPU",
            host_link.name: f"{sheet}: half of the total of both directions",
            "host_memory": f"NVIDIA {nodes} data sheet: its system memory a GPU" if host_memory else "of the server",
            "capability": "NVIDIA CUDA GPU compute capability, developer.nvidia.com/cuda-gpus",
            **(notes or {}),
        },
        device_kinds=tuple(kinds),
        call=1e-6,
        cache=cache,
        host_link=host_link,
        host_memory=int(host_memory),
        capability=capability,
    )


def _nvlink(name: str, bandwidth: float, reach: int = 8, *, summing: float = 0.0) -> Link:
    return Link(name, bandwidth, latency=1e-6, reach=reach, efficiency=0.8, call=10e-6, summing=summing)


def _tpu(
    name: str,
    title: str,
    *,
    bfloat16: float,
    int8: float,
    float8: float = 0.0,
    memory: float,
    bandwidth: float,
    link: float,
    slice_size: int,
    sides: int,
    outside: float,
    host_link: float,
    host_memory: float,
    kinds: Sequence[str],
    notes: dict[str, str],
) -> Hardware:
    source = _GOOGLE.format(f"TPU {name}")
    # A ring along one side of the torus sends both ways at once. Slices of three sides are made of cubes of 4; of two,
    # a pod has 16 a side.
    block = 4 if sides == 3 else 16
    torus = Link(
        "ICI", 2 * link, latency=1e-6, reach=slice_size, efficiency=0.9, is_torus=True, call=3e-6,
        sides=sides, block=block,
    )  # fmt: skip
    return Hardware(
        name,
        title,
        "tpu",
        flops={"bfloat16": bfloat16, "float32": bfloat16, "int8": int8}
        | ({_E4M3: float8, _E5M2: float8} if float8 else {}),
        vector=bfloat16 / 64,
        cores=1,
        memory=int(memory),
        bandwidth=bandwidth,
        links=(torus, Link("data center network", outside, latency=20e-6, reach=0, efficiency=0.8, call=50e-6)),
        sources={
            **dict.fromkeys(["bfloat16", "int8", *([_E4M3, _E5M2] if float8 else [])], source),
            "float32": _JAX_F32.format(f"{source}: one pass of bfloat16"),
            "vector": "an estimate: 1/64 of the matrix units",
            "cores": "the matrix units of a chip work on one product",
            "memory": source,
            "bandwidth": source,
            "ICI": f"{source}: the chip's total over its links, both directions of one axis",
            "data center network": source,
            "PCIe": f"{_SCALING_BOOK}: about {host_link / GB:.0f} GB/s a chip",
            "host_memory": f"{source}: memory of a host, a chip",
            **notes,
        },
        device_kinds=tuple(kinds),
        call=1e-6,
        host_link=Link("PCIe", host_link, latency=10e-6, reach=1, efficiency=1.0),
        host_memory=int(host_memory),
    )


_AMD = "AMD Instinct MI300X data sheet"
_FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")
_MI300X = Hardware(
    "mi300x", "AMD Instinct MI300X 192 GB", "gpu",
    flops={"bfloat16": 1307.4 * TFLOP, "float16": 1307.4 * TFLOP, "float32": 163.4 * TFLOP}
    | dict.fromkeys(_FNUZ, 2614.9 * TFLOP),
    vector=163.4 * TFLOP, cores=304, memory=int(192 * GB), bandwidth=5.3 * TB,
    links=(
        Link("Infinity Fabric", 7 * 64 * GB, latency=1e-6, reach=8, efficiency=0.7, call=15e-6, is_direct=True),
        Link("InfiniBand NDR", 400 * GBIT, latency=5e-6, reach=0, efficiency=_ADAPTER, call=20e-6),
    ),
    sources={
        **dict.fromkeys(["bfloat16", "float16", *_FNUZ], f"{_AMD}: matrix, dense"),
        "float32": f"{_AMD}: FP32 matrix; an estimate of what JAX makes of it (TF32 is 653.7)",
        "vector": f"{_AMD}: FP32 vector",
        "cores": f"{_AMD}: compute units",
        "memory": _AMD,
        "bandwidth": _AMD,
        "cache": f"{_AMD}: last level (Infinity Cache)",
        "Infinity Fabric": f"{_AMD}: seven links of 128 GB/s both ways, one to each other GPU of eight",
        "InfiniBand NDR": "Microsoft Azure ND MI300X v5: one 400 Gbit/s adapter a GPU",
        "PCIe 5 x16": f"{_AMD}: half of 128 GB/s",
        "host_memory": "Microsoft Azure ND MI300X v5: 1,850 GiB of eight GPUs",
    },
    capability=(0, 0), device_kinds=("MI300X",), call=1e-6,
    cache=256 * MB, host_link=_pcie(5), host_memory=1850 * GIB // 8,
)  # fmt: skip


LISTED = (
    _gpu(
        "a100", "NVIDIA A100 SXM 80 GB", "A100",
        bfloat16=312 * TFLOP, tf32=156 * TFLOP, vector=19.5 * TFLOP, cores=108, memory=80 * GB, bandwidth=2.039 * TB,
        cache=40 * MB, inside=_nvlink("NVLink 3", 300 * GB), network=200 * GBIT, nodes="DGX A100",
        host_link=_pcie(4), host_memory=2 * TB / 8, kinds=["A100"], capability=(8, 0),
    ),
    _gpu(
        "h100-nvl", "NVIDIA H100 NVL 94 GB", "H100 NVL",
        bfloat16=835 * TFLOP, tf32=417 * TFLOP, float8=1670 * TFLOP, vector=60 * TFLOP, cores=132, memory=94 * GB,
        bandwidth=3.9 * TB, cache=50 * MB, inside=_nvlink("NVLink bridge", 300 * GB, reach=2), network=400 * GBIT,
        nodes="DGX H100", host_link=_pcie(5), kinds=["H100 NVL"],
    ),
    _gpu(
        "h100-pcie", "NVIDIA H100 PCIe 80 GB", "H100 PCIe",
        bfloat16=756 * TFLOP, tf32=378 * TFLOP, float8=1513 * TFLOP, vector=51 * TFLOP, cores=114, memory=80 * GB,
        bandwidth=2.0 * TB, cache=50 * MB, inside=_nvlink("NVLink bridge", 300 * GB, reach=2), network=400 * GBIT,
        nodes="DGX H100", host_link=_pcie(5), kinds=["H100 PCIe"],
    ),
    _gpu(
        "h100", "NVIDIA H100 SXM 80 GB", "H100",
        bfloat16=989 * TFLOP, tf32=494 * TFLOP, float8=1979 * TFLOP, vector=67 * TFLOP, cores=132, memory=80 * GB,
        bandwidth=3.35 * TB, cache=50 * MB, inside=_nvlink("NVLink 4", 450 * GB, summing=_SHARP), network=400 * GBIT,
        nodes="DGX H100", host_link=_pcie(5), host_memory=2 * TB / 8, kinds=["H100"],
    ),
    _gpu(
        "h200", "NVIDIA H200 SXM 141 GB", "H200",
        bfloat16=989 * TFLOP, tf32=494 * TFLOP, float8=1979 * TFLOP, vector=67 * TFLOP, cores=132, memory=141 * GB,
        bandwidth=4.8 * TB, cache=50 * MB, inside=_nvlink("NVLink 4", 450 * GB, summing=_SHARP), network=400 * GBIT,
        nodes="DGX H200", host_link=_pcie(5), host_memory=2 * TB / 8, kinds=["H200"],
    ),
    _gpu(
        "b200", "NVIDIA B200 SXM 180 GB", "DGX B200",
        bfloat16=2250 * TFLOP, tf32=1125 * TFLOP, float8=4500 * TFLOP, vector=75 * TFLOP, cores=148, memory=180 * GB,
        bandwidth=8 * TB, cache=126 * MB, inside=_nvlink("NVLink 5", 900 * GB, summing=_SHARP), network=400 * GBIT,
        nodes="DGX B200", host_link=_pcie(5), host_memory=2 * TB / 8, kinds=["B200"], capability=(10, 0),
    ),
    _gpu(
        "gb200", "NVIDIA GB200 NVL72 186 GB", "GB200 NVL72",
        bfloat16=2500 * TFLOP, tf32=1250 * TFLOP, float8=5000 * TFLOP, vector=80 * TFLOP, cores=148, memory=186 * GB,
        bandwidth=8 * TB, cache=126 * MB, inside=_nvlink("NVLink 5", 900 * GB, reach=72, summing=_SHARP),
        network=400 * GBIT, nodes="GB200 NVL72",
        host_link=Link("NVLink-C2C", 225 * GB, latency=2e-6, reach=1, efficiency=0.8), host_memory=240 * GB,
        kinds=["GB200"], capability=(10, 0),
        notes={
            "NVLink-C2C": "NVIDIA GB200 NVL72 data sheet: 900 GB/s both ways, of one Grace CPU and two GPUs",
            "host_memory": "NVIDIA GB200 NVL72 data sheet: 480 GB of LPDDR5X a Grace CPU, of two GPUs",
        },
    ),
    _MI300X,
    _tpu(
        "v4", "Google TPU v4",
        bfloat16=275 * TFLOP, int8=275 * TFLOP, memory=32 * GIB, bandwidth=1.228 * TB,
        link=50 * GB, slice_size=4096, sides=3, outside=25 * GBIT, host_link=15 * GB, host_memory=407 * GIB / 4,
        kinds=["TPU v4"],
        notes={
            "ICI": "Jouppi et al. 2023, TPU v4: six links of 50 GB/s each way, two an axis of a 3D torus",
            "data center network": "an estimate: as TPU v5e",
        },
    ),
    _tpu(
        "v5e", "Google TPU v5e",
        bfloat16=197 * TFLOP, int8=393 * TFLOP, memory=16 * GB, bandwidth=0.819 * TB,
        link=50 * GB, slice_size=256, sides=2, outside=25 * GBIT, host_link=15 * GB, host_memory=512 * GIB / 8,
        kinds=["TPU v5 lite", "TPU v5e"],
        notes={"ICI": f"{_GOOGLE.format('TPU v5e')}: 400 GB/s both ways over four links, two an axis of a 2D torus"},
    ),
    _tpu(
        "v5p", "Google TPU v5p",
        bfloat16=459 * TFLOP, int8=918 * TFLOP, float8=459 * TFLOP, memory=95 * GIB, bandwidth=2.765 * TB,
        link=100 * GB, slice_size=6144, sides=3, outside=50 * GBIT, host_link=15 * GB, host_memory=448 * GB / 4,
        kinds=["TPU v5p", "TPU v5"],
        notes={
            "ICI": f"{_GOOGLE.format('TPU v5p')}: 1200 GB/s both ways over six links, two an axis of a 3D torus; "
            "slices of up to 6,144 chips",
        },
    ),
    _tpu(
        "v6e", "Google TPU v6e",
        bfloat16=918 * TFLOP, int8=1836 * TFLOP, memory=32 * GB, bandwidth=1.638 * TB,
        link=100 * GB, slice_size=256, sides=2, outside=100 * GBIT, host_link=32 * GB, host_memory=1536 * GIB / 8,
        kinds=["TPU v6 lite", "TPU v6e"],
        notes={"ICI": f"{_GOOGLE.format('TPU v6e')}: 800 GB/s both ways over four links, two an axis of a 2D torus"},
    ),
)  # fmt: skip
