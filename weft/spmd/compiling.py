"""The options that XLA compiles our programs with, by platform.

They are given to each jit of ours and to nothing else: no environment and no configuration of JAX is changed. One that
the user's own `XLA_FLAGS` name is left to these.
"""

import os
from collections.abc import Mapping
from typing import Any

import jax

from ..mesh import Mesh

OPTIONS: dict[str, Mapping[str, Any]] = {"gpu": {}}
"""By platform; none for others. What was measured and not kept: `xla_gpu_enable_triton_gemm=False` (no gain)."""


def compiler_options(mesh: Mesh | None) -> dict[str, Any] | None:
    """What `jax.jit` is given as `compiler_options` for programs on this mesh."""
    platform = jax.default_backend() if mesh is None else mesh.jax_mesh().devices.flat[0].platform
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in OPTIONS.get(platform, {}).items() if name not in flags} or None
