"""This machine, measured: products, elementwise work, memory, collectives.

Measured once in a process of its own with 8 virtual processors, and kept in the user's cache folder under the name of
the CPU and the version of JAX. Virtual processors share the cores: the work of all of them is the machine's. Figures
are of a machine that does nothing else, as far as one that does can tell.
"""

import functools
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from ..errors import WeftError
from ..lower.collectives import all_gather, all_reduce, all_to_all, permute
from ..small_files import Reader
from ..text import size_text
from .workers import cores

PROCESSORS = 8
VERSION = 2
_LONGEST = 300  # seconds
_MARK = "weft-progress"  # before what the process that measures says of how far it is
_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")
_SIZES = {"cpu": (1 << 12, 1 << 18, 1 << 22), "others": (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28)}
COLLECTIVES = ("all_reduce", "all_gather", "all_to_all", "permute")
Report = Callable[[str, int, int], None]
"""Told what is measured, how many parts are done, and how many there are."""
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


def device_figures(report: Report) -> dict[str, Any]:
    """Seconds of products, streams, copies and collectives on the devices JAX has.

    Without another kind these are 8 virtual processors of the CPU, whose other figures are those of the machine.
    """
    return _measure_in_child("devices", report)


def _measure_in_child(what: str = "machine", report: Report | None = None) -> dict[str, Any]:
    """The figures, measured by a process that starts JAX with 8 processors."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if "xla_force_host_platform_device_count" not in flag]
    env = os.environ | {"JAX_NUM_CPU_DEVICES": str(PROCESSORS), "XLA_FLAGS": " ".join(flags)}
    if what == "machine":
        env["JAX_PLATFORMS"] = "cpu"
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "weft.plan.this_machine", what]
    said, stop = list[str](), None
    try:
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            stop = threading.Timer(_LONGEST, child.kill)
            stop.start()
            assert child.stderr is not None and child.stdout is not None
            for line in child.stderr:
                mark, _, rest = line.partition(" ")
                if mark != _MARK:
                    said.append(line.strip())
                elif report is not None:
                    done, whole, name = rest.split(" ", 2)
                    report(name.strip(), int(done), int(whole))
            printed = child.stdout.read()
        if child.returncode:
            raise OSError(said[-1] if said else f"the process ended with {child.returncode}")
        return dict(json.loads(printed.strip().splitlines()[-1]))
    except (ValueError, IndexError, OSError) as error:
        raise WeftError(
            f"this machine could not be measured: {error}",
            fix="name hardware of the table (`weft hardware`), or describe your own in a file of TOML",
        ) from None
    finally:
        if stop is not None:
            stop.cancel()


def measure() -> dict[str, Any]:
    """The figures of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    about = {"cpu": cpu_name(), "cores": cores(), "jax": jax.__version__, "memory": memory}
    return _measure_compute() | _measure_sending() | about


def measure_devices(report: Report) -> dict[str, Any]:
    """What the devices JAX has take for what is done on them."""
    device, is_cpu = jax.devices()[0], jax.default_backend() == "cpu"
    about = {
        "platform": device.platform, "device_kind": device.device_kind, "processors": jax.device_count(),
        "jax": jax.__version__, "cores": getattr(device, "core_count", 0) or 0,
        "memory": 0 if is_cpu else (device.memory_stats() or {}).get("bytes_limit", 0),
    }  # fmt: skip
    parts: list[tuple[str, Callable[[], dict[str, Any]]]] = []
    if is_cpu:
        parts.append(("products, memory and sums", lambda: {"machine": measure()}))
    else:
        parts += [(f"products of {dtype}", functools.partial(_product_seconds, dtype)) for dtype in _DTYPES]
        parts += [("memory", _stream_seconds), ("elementwise work", _vector_seconds), ("the host", _host_seconds)]
    sizes = _SIZES["cpu" if is_cpu else "others"] if jax.device_count() > 1 else ()
    parts += [
        (f"{name} of {size_text(size)}", functools.partial(_collective_seconds, name, size))
        for name in COLLECTIVES
        for size in sizes
    ]
    figures: dict[str, Any] = about | {"collectives": [], "products": {}}
    for done, (what, part) in enumerate(parts):
        report(what, done, len(parts))
        for key, value in part().items():
            if key == "collectives":
                figures[key].append(value)
            elif key == "products":
                figures[key] |= value
            else:
                figures[key] = value
    report("done", len(parts), len(parts))
    return figures


def _product_seconds(dtype: str, n: int = 8192) -> dict[str, Any]:
    """Seconds of a product of two matrices; nothing where this dtype has none."""
    turns, sums = 4, jnp.int32 if dtype == "int8" else jnp.float32

    def products(x: Any) -> Any:
        y = x[0]
        for _ in range(turns):
            y = jnp.matmul(y, x[0], preferred_element_type=sums).astype(x.dtype)
        return y[None]

    try:
        x = _random(n, n).astype(jnp.dtype(dtype))
        return {"products": {dtype: {"n": n, "s": _time_on_all(products, x, by_clock=True) / turns}}}
    except Exception:  # of XLA's: the device has no such product
        return {}


def _stream_seconds(count: int = 1 << 27) -> dict[str, Any]:
    x = _random(count)
    return {"stream": {"bytes": 2 * 4 * count, "s": _time_on_all(lambda x: x * 2 + 1, x, by_clock=True)}}


def _vector_seconds(count: int = 1 << 24, turns: int = 256) -> dict[str, Any]:
    def steps(x: Any) -> Any:
        for _ in range(turns):
            x = x * x + 0.5
        return x

    return {"vector": {"work": 2 * turns * count, "s": _time_on_all(steps, _random(count), by_clock=True)}}


def _host_seconds(count: int = 1 << 26) -> dict[str, Any]:
    """Seconds of a copy from pinned memory of the host to one device, and back."""
    device, array = jax.devices()[0], np.zeros(count, "float32")
    try:
        here, there = (SingleDeviceSharding(device, memory_kind=kind) for kind in (None, "pinned_host"))
        pinned, placed = jax.device_put(array, there), jax.device_put(array, here)
        took = {
            "to_s": _least_seconds(lambda: jax.block_until_ready(jax.device_put(pinned, here)), by_clock=True),
            "from_s": _least_seconds(lambda: jax.block_until_ready(jax.device_put(placed, there)), by_clock=True),
        }
    except (ValueError, RuntimeError):  # no such memory
        return {}
    return {"host": {"bytes": array.nbytes, **took}}


def _collective_seconds(name: str, size: int) -> dict[str, Any]:
    """Seconds of one collective over all devices, of so many bytes on each."""
    ways = jax.device_count()
    count = max(size // 4 // ways, 1)
    pairs = [(i, (i + 1) % ways) for i in range(ways)]
    send: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda x: all_reduce(x, ("all",)),
        "all_gather": lambda x: all_gather(x[:, :1], ("all",), 1),
        "all_to_all": lambda x: all_to_all(x, ("all",), split=1, join=1),
        "permute": lambda x: permute(x, ("all",), pairs),
    }
    is_alike = name == "all_reduce"
    took = _time_on_all(send[name], _random(ways, count), is_alike=is_alike, by_clock=True, seconds=0.2)
    idle = _time_on_all(lambda x: x + 1, _random(1), by_clock=True, seconds=0.1)
    row = {"collective": name, "processors": ways, "bytes": 4 * count * ways, "us": max(took - idle, 0.0) * 1e6}
    return {"collectives": row}


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
    return np.random.default_rng(0).standard_normal((jax.device_count(), *shape), "float32")


def _time_on_all(
    fn: Callable[[Any], Any], x: Any, *, is_alike: bool = False, by_clock: bool = False, seconds: float = 0.5
) -> float:
    """Seconds of one call on all processors; `is_alike` says its result is."""
    mesh, split = jax.make_mesh((len(x),), ("all",), axis_types=(AxisType.Auto,)), PartitionSpec("all")
    made = jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=split, out_specs=PartitionSpec() if is_alike else split))
    placed = jax.device_put(x, NamedSharding(mesh, split))
    return _least_seconds(lambda: jax.block_until_ready(made(placed)), seconds, by_clock=by_clock)


def _least_seconds(call: Callable[[], Any], seconds: float = 0.5, *, by_clock: bool = False) -> float:
    """Seconds of a call on a quiet machine: the least of at least five calls.

    As many calls are made as fit into `seconds`.

    Work of all processors keeps all cores busy: it takes the time of the cores divided by their number, which other
    programs hardly change. With more cores than processors, and where one waits, the clock says.
    """
    count, took = cores(), list[float]()
    by_clock = by_clock or count > PROCESSORS
    now = time.perf_counter if by_clock else time.process_time
    call()
    end = time.perf_counter() + seconds
    while len(took) < 5 or time.perf_counter() < end:
        start = now()
        call()
        took.append(now() - start)
    return min(took) if by_clock else min(took) / count


def _tell(what: str, done: int, whole: int) -> None:
    print(_MARK, done, whole, what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(json.dumps(measure_devices(_tell) if sys.argv[1:] == ["devices"] else measure()))
