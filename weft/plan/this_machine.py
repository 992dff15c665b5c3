"""This machine, measured: products, elementwise work, memory, and collectives between virtual processors.

Measured once in a process of its own with 8 virtual processors, and kept in the user's cache folder under the name of
the CPU and the version of JAX. Virtual processors share the cores: the work of all of them is the machine's.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from ..errors import WeftError
from .hardware import THIS, Hardware, Link

PROCESSORS = 8
VERSION = 1
_LONGEST = 300  # seconds


def measured() -> Hardware:
    """This machine; from the cache where it was measured before."""
    file = cache_file()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = _in_a_child()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found, indent=1), encoding="utf-8")
        except OSError:
            pass  # measured again next time
    return made_of(found)


def cache_file() -> Path:
    """Where the figures of this CPU under this JAX are kept."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"
    name = "".join(c if c.isalnum() else "-" for c in f"{cpu_name()}-{os.cpu_count()}-jax-{jax.__version__}")
    return folder / f"hardware-{VERSION}-{name}.json"


def cpu_name() -> str:
    """The CPU as it calls itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def made_of(found: dict[str, Any]) -> Hardware:
    """The hardware of measured figures."""
    source = f"measured on this machine ({found['cpu']}, JAX {found['jax']})"
    link = Link(
        "memory", found["sent_per_s"], found["sending_s_a_processor"], reach=0, efficiency=1.0, call=found["sending_s"]
    )
    flops = {"float32": found["float32"], "bfloat16": found["bfloat16"]}
    names = [*flops, "vector", "bandwidth", "memory", "cores", "call"]
    return Hardware(
        THIS,
        f"this machine: {found['cpu']}, {found['cores']} cores",
        "cpu",
        flops=flops,
        vector=found["elementwise_per_s"],
        cores=found["cores"],
        memory=found["memory"],
        bandwidth=found["bandwidth"],
        links=(link,),
        sources=dict.fromkeys(names, source),
        call=found["call_s"],
        is_shared=True,
    )


def _in_a_child() -> dict[str, Any]:
    """The figures, measured by another process: this one may have started JAX with fewer processors."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if "xla_force_host_platform_device_count" not in flag]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(PROCESSORS), "XLA_FLAGS": " ".join(flags)}
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "weft.plan.this_machine"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_LONGEST, check=True)
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError, OSError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise WeftError(
            f"this machine could not be measured: {said[-1] if said else type(error).__name__}",
            fix="name hardware of the table (`weft.plan.HARDWARE`), or give a `Hardware` of your own",
        ) from None


# In the child.


def measure() -> dict[str, Any]:
    """The figures of this machine."""
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from ..ops import collectives

    mesh = jax.make_mesh((PROCESSORS,), ("all",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("all"))

    def run(fn: Callable[..., Any], *args: Any) -> float:
        """Seconds of one call on all processors."""
        spec = PartitionSpec("all")
        made = jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=spec))
        placed = [jax.device_put(arg, split) for arg in args]
        return _fastest(lambda: jax.block_until_ready(made(*placed)))

    def random(*shape: int, dtype: Any = "float32") -> Any:
        return np.asarray(np.random.default_rng(0).standard_normal(shape), "float32").astype(dtype)

    n, turns = 512, 4
    found: dict[str, Any] = {}
    for dtype in ("float32", "bfloat16"):
        x = random(PROCESSORS, n, n, dtype=jnp.dtype(dtype))

        def products(x: Any) -> Any:
            y = x[0]
            for _ in range(turns):
                y = (y @ x[0]).astype(x.dtype)
            return y[None]

        found[dtype] = PROCESSORS * turns * 2 * n**3 / run(products, x)
    large = random(PROCESSORS, 1 << 22)
    found["bandwidth"] = 2 * large.nbytes / run(lambda x: x * 2 + 1, large)
    small = random(PROCESSORS, 1 << 16)

    def dear(x: Any) -> Any:
        for _ in range(8):
            x = jnp.exp(x) * 0.5
        return x

    found["elementwise_per_s"] = small.size * 8 * 9 / run(dear, small)
    tiny = random(PROCESSORS, 16)
    base = run(lambda x: x + 1, tiny)

    def sums(x: Any) -> Any:
        for _ in range(turns):
            x = collectives.all_reduce(x, ("all",)) * 0.125 + x
        return x

    sent = {size: (run(sums, random(PROCESSORS, size)) - base) / turns for size in (16, 1 << 20)}
    many = 64

    def steps(x: Any) -> Any:
        for _ in range(many):
            x = jnp.sort(x, axis=-1) + 1
        return x

    found["call_s"] = max(run(steps, tiny) - base, 0) / many / 2 / PROCESSORS
    found["sending_s"] = max(sent[16], 1e-6)
    found["sending_s_a_processor"] = 0.0
    found["sent_per_s"] = PROCESSORS * 4 * (1 << 20) / max(sent[1 << 20] - sent[16], 1e-6)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return found | {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "jax": jax.__version__,
        "memory": memory,
    }


def _fastest(call: Callable[[], Any], seconds: float = 0.5) -> float:
    """The lower quartile of as many calls as fit into so many seconds, and at least five."""
    call()
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return statistics.quantiles(took, n=4)[0]


if __name__ == "__main__":
    print(json.dumps(measure()))
