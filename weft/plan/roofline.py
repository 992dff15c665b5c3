"""Roofline: the seconds of a kernel, computing it or moving its bytes.

The shares of the peaks that kernels reach are stated here, once. Those of GPUs were fitted to train steps and to steps
of decoding measured on one H200, those of virtual processors to steps on one machine of two cores
(`benchmarks/README.md` says which, and how far off others are); those of TPUs are estimates.
"""

import math
from itertools import pairwise

from .hardware import Hardware
from .kernel import Kernel

# Tiles of a product on a GPU: rows, columns, and the share of the peak inside a full wave of them.
_TILES = ((256, 128, 0.84), (128, 256, 0.84), (128, 128, 0.68), (64, 128, 0.50), (64, 64, 0.30))
_SPLITS = (1, 2, 4, 8, 16)
_LEAST_SUMMED = 256  # numbers a split product sums at least
_START = 128  # numbers whose time it takes to begin and end a tile
_ATTENTION = {64: 0.27, 128: 0.58, 256: 0.226}  # by the width of a head, of what is computed
_SHORT = 192  # positions whose time it takes to begin and end rows of scores
_MEMORY = {"gpu": 0.78, "tpu": 0.85, "cpu": 1.0}  # of the bandwidth
_STREAMED = {"gpu": 0.82}  # of it, where whole arrays are only copied, or read by a product
_VECTOR = {"gpu": 0.25, "tpu": 0.5, "cpu": 1.0}  # of the FLOP/s outside the matrix units
_TPU_PRODUCT = 0.85
_STARTED = {"gpu": 3e-6}  # seconds the host takes to start a kernel; inside a loop the GPU has them all
_LANES, _SUBLANES = 128, 8  # to which a TPU pads
# Of what virtual processors do at best, which is what is measured. Their results are in new memory each time and few
# ops are joined, but for the update, which is in place; what is simpler than an exponential is faster than it counts.
_SHARED_PRODUCT, _SHARED_SMALL_PRODUCTS, _SHARED_MEMORY, _SHARED_VECTOR = 0.8, 0.17, 0.45, 2.0

BESIDE = {"gpu": 0.6, "tpu": 0.8, "cpu": 0.0}
"""The share of a body's compute that collectives can hide under where nothing waits for them. Not measured: stated."""
AHEAD = {"gpu": 0.95, "tpu": 0.95, "cpu": 0.0}
"""As `BESIDE`, of collectives that only the next turn of a loop needs: nearly all the time its work takes."""


def seconds(kernel: Kernel, hardware: Hardware, processors: int) -> tuple[float, str]:
    """Seconds of one call of no collective, and what bounds it: `flops` or `memory`."""
    if hardware.is_shared:
        return _on_one_machine(kernel, hardware, processors)
    share = _MEMORY[hardware.kind]
    if kernel.kind in ("moved", "product"):
        share = _STREAMED.get(hardware.kind, share)
    moving = kernel.bytes / (hardware.bandwidth * share)
    computing = _time_computing(kernel, hardware) + kernel.work / (hardware.vector * _VECTOR[hardware.kind])
    found = max(moving, computing) + kernel.calls * hardware.call
    if kernel.calls and not kernel.is_looped:
        found = max(found, _STARTED.get(hardware.kind, 0.0))
    return found, "flops" if computing >= moving else "memory"


def _on_one_machine(kernel: Kernel, hardware: Hardware, processors: int) -> tuple[float, str]:
    """On virtual processors: the machine does the work of all of them."""
    moving = kernel.bytes / (hardware.bandwidth * (1.0 if kernel.phase == "update" else _SHARED_MEMORY))
    share = _SHARED_SMALL_PRODUCTS if kernel.shape[0] > 1 else _SHARED_PRODUCT
    computing = kernel.flops / (hardware.flops_of(kernel.dtype) * share)
    computing += kernel.work / (hardware.vector * _SHARED_VECTOR)
    found = max(moving, computing) + kernel.calls * hardware.call
    return processors * found, "flops" if computing >= moving else "memory"


def _time_computing(kernel: Kernel, hardware: Hardware) -> float:
    if not kernel.flops:
        return 0.0
    peak = hardware.flops_of(kernel.dtype)
    if kernel.kind == "attention":
        return _attention(kernel, peak)
    if hardware.kind == "gpu":
        return _on_tiles(kernel.shape, peak, hardware.cores)
    if hardware.kind == "tpu":
        return kernel.flops / (peak * _TPU_PRODUCT * _share_filled(kernel.shape))
    return kernel.flops / peak


def _on_tiles(shape: tuple[int, int, int, int], peak: float, cores: int) -> float:
    """A product cut into tiles, done in waves: of all tiles and splits the fastest."""
    many, rows, columns, summed = shape
    best = math.inf
    for height, width, share in _TILES:
        tiles = many * math.ceil(rows / height) * math.ceil(columns / width)
        for split in _SPLITS:
            each = summed / split
            if split > 1 and each < _LEAST_SUMMED:
                break
            waves = math.ceil(tiles * split / cores)
            best = min(best, waves * (each + _START) * 2 * height * width * cores / (peak * share))
    return best


def _share_filled(shape: tuple[int, int, int, int]) -> float:
    """The share of a TPU's matrix units that is not padding."""
    _, rows, columns, summed = shape
    sizes = ((rows, _SUBLANES), (columns, _LANES), (summed, _LANES))
    return math.prod(size / (math.ceil(size / to) * to) for size, to in sizes)


def _attention(kernel: Kernel, peak: float) -> float:
    _, length, memory, width = kernel.shape
    share = _share_of_attention(width)
    short = min(length, memory)
    return kernel.slower * kernel.flops / (peak * share * short / (short + _SHORT) * (1024 + _SHORT) / 1024)


def _share_of_attention(width: int) -> float:
    """The share of the peak that fused attention reaches, between widths measured."""
    widths = sorted(_ATTENTION)
    low, high = next(((a, b) for a, b in pairwise(widths) if width <= b), (widths[-2], widths[-1]))
    between = min(max((width - low) / (high - low), -0.5), 1.0)
    return _ATTENTION[low] + between * (_ATTENTION[high] - _ATTENTION[low])
