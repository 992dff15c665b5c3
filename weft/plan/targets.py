"""Machines to compile for, which need not be there: what XLA is told of them.

A target is written `h100:1x64x8` (slices x hosts x GPUs of a host) or `v5p:8x8x8` (the torus of chips).
"""

import math
import re
from dataclasses import dataclass

from ..errors import WeftError, closest

_EXAMPLES = "`h100:1x64x8` (slices x hosts x GPUs of a host) or `v5p:8x8x8` (the torus of chips)"

_GPU = """
gpu_device_info {{
  cuda_compute_capability {{ major: {capability} }}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {shared_optin}
  shared_memory_per_core: {shared}
  core_count: {cores}
  fpus_per_core: {units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {cache}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 9 }}
device_description_str: "{name}"
"""

# Published figures of the cards.
_HOPPER = dict(capability=9, shared_optin=232448, shared=233472, cores=132, units=128, cache=52428800, clock=1.98)
_GPUS: dict[str, dict[str, object]] = {
    "a100": dict(
        capability=8, shared_optin=166912, shared=167936, cores=108, units=64, cache=41943040, clock=1.41,
        bandwidth=2039000000000, memory=85899345920, name="NVIDIA A100-SXM4-80GB",
    ),
    "h100": dict(**_HOPPER, bandwidth=3352320000000, memory=84942979072, name="NVIDIA H100 80GB HBM3"),
    "h200": dict(**_HOPPER, bandwidth=4800000000000, memory=150754820096, name="NVIDIA H200"),
    "b200": dict(
        capability=10, shared_optin=232448, shared=233472, cores=148, units=128, cache=132644864, clock=1.965,
        bandwidth=8000000000000, memory=191503138816, name="NVIDIA B200",
    ),
}  # fmt: skip

_TPUS = {  # how many dims the torus has, and how many devices a chip
    "v2": (2, 2), "v3": (2, 2), "v4": (3, 1), "v5e": (2, 1), "v5p": (3, 1), "v6e": (2, 1),
}  # fmt: skip
_MOST_V5E = 16  # chips along a side of one slice; more aborts XLA


@dataclass(frozen=True)
class Target:
    """A machine to compile for."""

    text: str
    name: str
    sizes: tuple[int, ...]

    @property
    def kind(self) -> str:
        """`gpu` or `tpu`, as memory is asked for."""
        return "gpu" if self.name in _GPUS else "tpu"

    @property
    def platform(self) -> str:
        """As JAX calls it."""
        return "cuda" if self.kind == "gpu" else "tpu"

    @property
    def processors(self) -> int:
        each = _TPUS[self.name][1] if self.kind == "tpu" else 1
        return math.prod(self.sizes) * each

    @property
    def shape(self) -> str:
        return "x".join(map(str, self.sizes))

    @property
    def description(self) -> str:
        """What XLA is told of a GPU."""
        return _GPU.format(**_GPUS[self.name])


def read_target(text: str) -> Target:
    """The machine a text like `v5p:8x8x8` names."""
    name, _, shape = text.partition(":")
    known = [*_GPUS, *_TPUS]
    if name not in known:
        raise WeftError(f"`{text}` names no machine to compile for", fix=f"{closest(name, known)} e.g. {_EXAMPLES}")
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
        fact = f"`{text}` does not say how many processors there are and how they are joined"
        raise WeftError(fact, fix=f"write {_EXAMPLES}")
    sizes = tuple(map(int, shape.split("x")))
    target = Target(text, name, sizes)
    wanted = 3 if target.kind == "gpu" else _TPUS[name][0]
    if len(sizes) != wanted:
        like = "1x64x8" if target.kind == "gpu" else "x".join(["8"] * wanted)
        raise WeftError(
            f"`{text}` has {len(sizes)} sizes; {name} has {wanted}", fix=f"write it like `{name}:{like}`: {_EXAMPLES}"
        )
    if name == "v5e" and max(sizes) > _MOST_V5E:
        raise WeftError(
            f"`{text}` is more than one slice of {name} holds", fix=f"use up to `v5e:{_MOST_V5E}x{_MOST_V5E}`"
        )
    return target
