"""Compiles cases in bfloat16 for eight H100 that need not be there, and prints what each sends, a line of JSON each.

A program of its own (`python -m tests.program.cuda '[["NAME", "PASS,PASS"], ...]'`; the passes are turned off), since
a failure of this compiler can end the process.
"""

import json
import sys
import warnings

from jax.experimental import topologies

import weft as wf
from tests.program.cases import cases
from tests.program.independent import compiled

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # there is no driver to ask
    "TF_CPP_MIN_LOG_LEVEL": "3",
}

# What XLA is told of an H100; published figures of the card.
H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def main(asked: list[tuple[str, str]]) -> None:
    shape = "1x1x8"
    topology = topologies.get_topology_desc(platform="cuda", topology_name=shape, topology=shape, target_config=H100)
    found = cases("bfloat16")
    for name, passes in asked:
        mesh = wf.Mesh(found[name].mesh, devices=topology.devices)
        # Triton finds no tiles for sizes as small and uneven as these; no collective depends on it.
        options = {"xla_gpu_enable_triton_gemm": False, "xla_disable_hlo_passes": passes}
        text = found[name].lowered(mesh).compile(options).as_text()
        sent = [[kind, sorted(axes), size] for (kind, axes), size in compiled(text, mesh.axes).items()]
        print(json.dumps([name, passes, sent]), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", wf.WeftWarning)
    main(json.loads(sys.argv[1]))
