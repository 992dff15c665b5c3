"""The process that compiles a lowered program and prints what XLA says of it.

Run by `compiled_for` as `python -m weft.plan.compile_child REQUEST`; the last line it prints is JSON: what XLA says of
the program, or `refused` with its message whole and `during`, what it was asked for when it refused.
"""

import dataclasses
import json
import pickle
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding

from ..errors import WeftWarning
from ..mesh import Mesh
from .sent import read_collectives
from .targets import Target


def devices_of(target: Target) -> list[Any]:
    """The processors of a machine that need not be there."""
    if target.kind == "gpu":
        return topologies.get_topology_desc(
            platform="cuda", topology_name=target.shape, topology=target.shape, target_config=target.description
        ).devices
    options: dict[str, Any] = {}
    if target.name == "v4":
        options["chip_config_name"] = "megacore"
    if target.processors == 1:
        options["chips_per_host_bounds"] = [1] * 3
    return topologies.get_topology_desc(platform="tpu", topology_name=target.text, **options).devices


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What XLA says of a lowered program, or why it refuses."""
    start, during = time.perf_counter(), "machine"
    try:
        devices = devices_of(request["target"])
        during = "program"
        said = compile_request(request, devices)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}", "during": during}
    return said | {"seconds": round(time.perf_counter() - start, 1)}


def compile_request(request: dict[str, Any], machine: Sequence[Any]) -> dict[str, Any]:
    """The memory and the collectives of a lowered program on the processors given."""
    mesh = Mesh(request["mesh"], devices=machine)
    devices = mesh.jax_mesh()
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype, weak_type=weak, sharding=NamedSharding(devices, spec))
        for shape, dtype, weak, spec in request["shapes"]
    ]
    exported, needed = request["exported"], [i for i, _ in enumerate(shapes) if i in request["needed"]]

    def run(*arrays: Any) -> Any:
        kept = dict(zip(needed, arrays, strict=True))
        return exported.call(*(kept[i] if i in kept else jnp.empty(x.shape, x.dtype) for i, x in enumerate(shapes)))

    donated = [at for at, i in enumerate(needed) if i in request["donated"]]
    program = jax.jit(run, donate_argnums=donated).lower(*(shapes[i] for i in needed)).compile()
    memory: Any = program.memory_analysis()
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "collectives": [dataclasses.asdict(sent) for sent in read_collectives(program.as_text() or "", mesh.axes)],
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore", WeftWarning)
    print(json.dumps(answer(pickle.loads(Path(sys.argv[1]).read_bytes()))))
