"""This machine, measured: products, elementwise work, memory, collectives.

Measured once in a process of its own with 8 virtual processors, and kept in the user's cache folder under the name of
the CPU and the version of JAX. Virtual processors share the cores: the work of all of them is the machine's. Figures
are of a machine that does nothing else, as far as one that does can tell.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..errors import WeftError
from ..lower.collectives import all_reduce
from ..small_files import Reader

PROCESSORS = 8
VERSION = 2
_LONGEST = 300  # seconds
_RATES = "float32 bfloat16 elementwise_per_s bandwidth sent_per_s".split()
_TIMES = "call_s sending_s sending_s_a_processor".split()
_FIGURES = {"cpu": str, "jax": str, **dict.fromkeys([*_RATES, *_TIMES, "memory", "cores"], float)}


def machine_figures() -> dict[str, Any]:
    """The figures of this machine; from the cache where it was measured before."""
    file = cache_file()
    try:
        figures = Reader(WeftError).json(file, _FIGURES)
    except WeftError:
        figures = _measure_in_child()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(figures, indent=1), encoding="utf-8")
        except OSError:
            pass  # measured again next time
    return figures


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


def _measure_in_child() -> dict[str, Any]:
    """The figures, measured by a process that starts JAX with 8 processors."""
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


def measure() -> dict[str, Any]:
    """The figures of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    about = {"cpu": cpu_name(), "cores": _cores(), "jax": jax.__version__, "memory": memory}
    return _measure_compute() | _measure_sending() | about


def _measure_compute() -> dict[str, float]:
    """FLOPs, bytes and operations a second of all processors, and a kernel's least."""
    n, turns, many, figures = 512, 4, 64, {}

    def products(x: Any) -> Any:
        y = x[0]
        for _ in range(turns):
            y = (y @ x[0]).astype(x.dtype)
        return y[None]

    def exponentials(x: Any) -> Any:
        for _ in range(8):
            x = jnp.exp(x) * 0.5
        return x

    def small_kernels(x: Any) -> Any:
        for _ in range(many):
            x = jnp.sort(x, axis=-1) + 1
        return x

    for dtype in ("float32", "bfloat16"):
        figures[dtype] = PROCESSORS * turns * 2 * n**3 / _time_on_all(products, _random(n, n).astype(jnp.dtype(dtype)))
    large, small, tiny = _random(1 << 22), _random(1 << 16), _random(16)
    figures["bandwidth"] = 2 * large.nbytes / _time_on_all(lambda x: x * 2 + 1, large)
    figures["elementwise_per_s"] = small.size * 8 * 9 / _time_on_all(exponentials, small)
    in_kernels = max(_time_on_all(small_kernels, tiny) - _time_on_all(lambda x: x + 1, tiny), 0)
    figures["call_s"] = in_kernels / many / 2 / PROCESSORS
    return figures


def _measure_sending() -> dict[str, float]:
    """The least seconds of an all-reduce, and the bytes a second all processors give."""
    turns, tiny, large = 4, _random(16), _random(1 << 20)

    def sums(x: Any) -> Any:
        for _ in range(turns):
            x = all_reduce(x, ("all",)) * 0.125 + x
        return x

    # In a short sum processors wait for each other; a long one is work.
    waited = _time_on_all(sums, tiny, by_clock=True) - _time_on_all(lambda x: x + 1, tiny, by_clock=True)
    worked = _time_on_all(lambda x: all_reduce(x, ("all",)), large, is_alike=True) - _time_on_all(lambda x: x + 1, tiny)
    return {
        "sending_s": max(waited / turns, 1e-6),
        "sending_s_a_processor": 0.0,
        "sent_per_s": large.nbytes / max(worked, 1e-6),
    }


def _random(*shape: int) -> np.ndarray[Any, Any]:
    """Random numbers, so many for each processor."""
    return np.random.default_rng(0).standard_normal((PROCESSORS, *shape), "float32")


def _time_on_all(fn: Callable[[Any], Any], x: Any, *, is_alike: bool = False, by_clock: bool = False) -> float:
    """Seconds of one call on all processors; `is_alike` says its result is."""
    mesh, split = jax.make_mesh((PROCESSORS,), ("all",), axis_types=(AxisType.Auto,)), PartitionSpec("all")
    made = jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=split, out_specs=PartitionSpec() if is_alike else split))
    placed = jax.device_put(x, NamedSharding(mesh, split))
    return _least_seconds(lambda: jax.block_until_ready(made(placed)), by_clock=by_clock)


def _least_seconds(call: Callable[[], Any], seconds: float = 0.5, *, by_clock: bool = False) -> float:
    """Seconds of a call on a quiet machine: the least of at least five calls.

    As many calls are made as fit into `seconds`.

    Work of all processors keeps all cores busy: it takes the time of the cores divided by their number, which other
    programs hardly change. With more cores than processors, and where one waits, the clock says.
    """
    cores, took = _cores(), list[float]()
    by_clock = by_clock or cores > PROCESSORS
    now = time.perf_counter if by_clock else time.process_time
    call()
    end = time.perf_counter() + seconds
    while len(took) < 5 or time.perf_counter() < end:
        start = now()
        call()
        took.append(now() - start)
    return min(took) if by_clock else min(took) / cores


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    print(json.dumps(measure()))
