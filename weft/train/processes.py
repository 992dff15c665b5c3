"""Many processes as one program: how they find each other, and fail.

Imports errors alone. `join` and `share_out` come before anything that starts JAX, and do not start it.
"""

import contextlib
import dataclasses
import importlib.util
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ..errors import WeftError

COORDINATOR, PROCESSES, PROCESS = "WEFT_COORDINATOR", "WEFT_PROCESSES", "WEFT_PROCESS"
LAUNCHED = "WEFT_LAUNCHED"  # the words of `weft launch` that this process was started by, for the command that goes on
DEVICES = "WEFT_DEVICES"  # the accelerators that are this process's own, like `2,3`; all by default
ELASTIC = "WEFT_ELASTIC"  # how many processes there are when none is missing; those there are go on without the rest
CRASHED = 70  # the exit status of one of many processes that failed without an explanation
_IN_FLAGS = "xla_force_host_platform_device_count"
_OF_OTHERS = re.compile(r"gloo|connection (reset|closed|refused)|heartbeat|^UNAVAILABLE|disconnected", re.IGNORECASE)
HEARTBEAT = 20  # seconds without a sign of life after which a process counts as dead


class ProcessError(WeftError):
    """Processes that cannot become one program."""


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    used: int | None = None,
    timeout: int = 300,
) -> int:
    """Makes this one of the processes of a program, if there are many; their count.

    What is not given is taken from `WEFT_COORDINATOR`, `WEFT_PROCESSES` and `WEFT_PROCESS`, then from Slurm, MPI,
    Kubernetes or Cloud TPU. One process alone joins nothing. If the others do not come, this one ends with status 1.
    Only the first `used` processes join, where that is given; for one that is left over it is 0.
    """
    coordinator = coordinator or os.environ.get(COORDINATOR) or None
    processes = _number(PROCESSES, 1) if processes is None else processes
    process = _number(PROCESS, 0) if process is None else process
    if coordinator is None and processes == 1 and not process:
        return 1
    cluster = _find_cluster()
    is_all_given = None not in (coordinator, processes, process)
    if processes is None and process is None and cluster is not None:
        processes, process = cluster.processes, cluster.process
        if coordinator is None:
            return _join_cluster(cluster, used, timeout)
    elif (coordinator, processes, process) == (None, None, None):
        return 1
    if coordinator is None or processes is None or process is None:
        raise _explain_missing(coordinator, processes, process)
    if not 0 <= process < processes:
        raise ProcessError(
            f"there is no process {process} among {processes}", fix=f"number them from 0 to {max(processes - 1, 0)}"
        )
    if used is not None and process >= used:
        return 0
    processes = min(processes, used or processes)
    _check_reachable(coordinator, process, timeout)
    _initialize(
        timeout,
        coordinator_address=coordinator,
        num_processes=processes,
        process_id=process,
        local_device_ids=_own_devices(),
        cluster_detection_method="deactivate" if is_all_given else None,
    )
    return processes


def count_started(processes: int | None = None) -> int | None:
    """How many processes were started as one program; None where only JAX can tell."""
    processes = _number(PROCESSES, 1) if processes is None else processes
    if processes is None and (cluster := _find_cluster()) is not None:
        return cluster.processes
    return processes or 1


def full_count() -> int | None:
    """How many processes there are when none is missing; None where none may be."""
    return _number(ELASTIC, 1)


def share_out(size: int, processes: int) -> None:
    """Asks JAX for this process's share of `size` virtual processors."""
    if size % processes:
        raise ProcessError(
            f"a mesh of {size} processors cannot be shared out to {processes} processes",
            fix=f'start a number of processes that divides {size}, or say `layout = "auto"`: it takes what there is',
        )
    take_virtual(virtual_processors() or size // processes)


def take_virtual(count: int) -> None:
    """Asks JAX for so many virtual processors; alone, a mesh asks for them itself."""
    if jax.distributed.is_initialized() and _IN_FLAGS not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", count)


def virtual_processors() -> int | None:
    """How many virtual processors the environment gives each process, if it says so."""
    counts = re.findall(rf"--{_IN_FLAGS}=(\d+)", os.environ.get("XLA_FLAGS", "")) or [_count("JAX_NUM_CPU_DEVICES")]
    return int(counts[-1]) or None


def accelerators() -> int:
    """How many accelerators this process will have; 0 where the CPU computes."""
    if devices := _own_devices():
        return len(devices)
    by_cluster = _number(PROCESS, 0) is None and _find_cluster() is not None  # then JAX gives each process one
    return min(gpus_here(), 1) if by_cluster else gpus_here()


def gpus_here() -> int:
    """How many NVIDIA GPUs of this host may be used; 0 where the CPU computes."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return 0
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()])


def _number(name: str, least: int) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        raise ProcessError(f"{name} is {text!r}", fix=f"give a whole number of at least {least}")
    return int(text)


def _own_devices() -> list[int] | None:
    text = os.environ.get(DEVICES)
    if text and not all(part.isdecimal() for part in text.split(",")):
        raise ProcessError(f"{DEVICES} is {text!r}", fix="list the numbers of this process's accelerators, like `2,3`")
    return [int(part) for part in text.split(",")] if text else None


def _explain_missing(coordinator: str | None, processes: int | None, process: int | None) -> ProcessError:
    flags = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    here = " ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)
    missing = " and ".join(flag for flag, value in flags.items() if value is None)
    return ProcessError(
        f"of many processes only {here} is known, and no cluster says the rest",
        fix=f"give {missing} too, e.g. --coordinator host0:5000 --processes 2 --process 0",
    )


def _check_reachable(coordinator: str, process: int, timeout: int) -> None:
    """Waits until process 0 listens; for process 0 itself, sees that it can."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ProcessError(
            f"`{coordinator}` is no address of a coordinator", fix="give host and port of process 0, like host0:5000"
        )
    if process == 0:
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind(("", int(port)))
            except OSError as error:
                fact = f"process 0 cannot listen on port {port}: {error.strerror}"
                raise ProcessError(fact, fix="give all processes another port") from None
        return
    until = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise ProcessError(
                    f"process {process} did not reach the coordinator {coordinator} in {timeout} s: {error}",
                    fix="start process 0 on that host, with this port open to the others",
                ) from None
            time.sleep(0.2)


def _initialize(timeout: int, **options: Any) -> None:
    fix = "see that every process is started, once, with the same coordinator and number of processes"
    late = ProcessError(
        f"not all of {options['num_processes'] or 'the'} processes came together in {timeout} s", fix=fix
    )
    try:
        with _giving_up_after(timeout, late):
            jax.distributed.initialize(
                initialization_timeout=timeout + 30,
                heartbeat_timeout_seconds=HEARTBEAT,
                shutdown_timeout_seconds=60,
                **options,
            )
    except (RuntimeError, ValueError) as error:
        fact = f"the processes did not come together: {str(error).splitlines()[0]}"
        raise ProcessError(fact, fix=fix) from error
    _keep_stdout_for_python()


@contextlib.contextmanager
def _giving_up_after(seconds: int, error: WeftError) -> Iterator[None]:
    """Ends the process with this error after so many seconds, or at once by Ctrl-C."""

    def give_up() -> None:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if is_main else None
    try:
        yield
    finally:
        timer.cancel()
        if is_main:
            signal.signal(signal.SIGINT, before)


def _keep_stdout_for_python() -> None:
    """Drops what libraries print on stdout: Gloo greets every peer there, by group."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stdout.fileno() == 1:
            sys.stdout.flush()
            stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding=sys.stdout.encoding, errors=sys.stdout.errors)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.close(nowhere)
            sys.stdout = stdout


@dataclass(frozen=True)
class _Cluster:
    """What started this process as one of several."""

    name: str
    processes: int | None
    process: int | None
    method: str | None
    """By which method JAX finds the coordinator; None: by itself."""
    needs: str = ""
    """The Python package without which JAX does not find it."""


def _find_cluster() -> _Cluster | None:
    """What the environment says of several processes; None where this is alone."""
    env = os.environ
    if (count := _count("OMPI_COMM_WORLD_SIZE")) > 1:
        by_itself = "OMPI_MCA_orte_hnp_uri" in env  # Open MPI up to 4; of 5 JAX knows through mpi4py only
        method, needs = (None, "") if by_itself else ("mpi4py", "mpi4py")
        return _Cluster("Open MPI", count, _count("OMPI_COMM_WORLD_RANK"), method, needs)
    # In a batch script, outside of `srun`, there is no step: the script itself is one process.
    if "SLURM_STEP_NODELIST" in env and (count := _count("SLURM_STEP_NUM_TASKS") or _count("SLURM_NTASKS")) > 1:
        return _Cluster("Slurm", count, _count("SLURM_PROCID"), None)
    if (count := _count("PMI_SIZE")) > 1:
        return _Cluster("MPI", count, _count("PMI_RANK"), "mpi4py", "mpi4py")
    if any("," in env.get(name, "") for name in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")):
        return _Cluster("Cloud TPU", None, None, None)
    if "KUBERNETES_SERVICE_HOST" in env and "JOB_COMPLETION_INDEX" in env:
        return _Cluster("Kubernetes", None, None, None, "kubernetes")
    return None


def _count(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def _join_cluster(cluster: _Cluster, used: int | None, timeout: int) -> int:
    if used is not None and cluster.processes is not None and used < cluster.processes:
        if (cluster.process or 0) >= used:
            return 0
        cluster = dataclasses.replace(cluster, processes=used)
    if cluster.needs and importlib.util.find_spec(cluster.needs) is None:
        raise ProcessError(
            f"{cluster.name} started this as one of several processes, and JAX cannot find the others without the "
            f"package `{cluster.needs}`",
            fix=f"pip install {cluster.needs}, or set {COORDINATOR}, {PROCESSES} and {PROCESS}; "
            f"{PROCESSES}=1 if it is to run alone",
        )
    _initialize(
        timeout,
        num_processes=cluster.processes,
        process_id=cluster.process,
        local_device_ids=_own_devices(),
        cluster_detection_method=cluster.method,
    )
    return cluster.processes or jax.process_count()


@contextlib.contextmanager
def failing_at_once() -> Iterator[None]:
    """Ends this process where it fails as one of many: JAX would wait for the others."""
    try:
        yield
    except BaseException as error:
        if not jax.distributed.is_initialized():
            raise
        status = _status_of(error)
        if status == CRASHED and is_of_others(error):
            first_line = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            print(f"error: another process is gone; this one ends to be restarted\n  {first_line}", file=sys.stderr)
        elif status == CRASHED:
            traceback.print_exception(error)
        if status == 0:
            raise
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def is_of_others(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is that another process is gone."""
    if error is None or not jax.distributed.is_initialized():
        return False
    is_one = isinstance(error, jax.errors.JaxRuntimeError) and _OF_OTHERS.search(str(error)) is not None  # JAX, Gloo
    return is_one or is_of_others(error.__cause__ or error.__context__)


def _status_of(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if not isinstance(error, SystemExit):
        return CRASHED
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    return 1
