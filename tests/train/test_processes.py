"""Many processes as one program: who joins whom, and the step after which all stop."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from weft.train import processes
from weft.train.checkpoints import CheckpointError, Checkpoints
from weft.train.processes import CRASHED, ProcessError, join, share_out

ROOT = Path(__file__).parents[2]
STEPS = Path(__file__).parent / "jobs" / "steps.py"
PATIENCE = 120  # seconds; a loaded machine imports slowly
CLUSTERS = ("WEFT_", "SLURM_", "OMPI_", "PMI_", "TPU_", "KUBERNETES_", "JOB_")

SLURM = {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "16", "SLURM_PROCID": "3"}
MPI_4 = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:3"}
MPI_5 = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}
PMI = {"PMI_SIZE": "2", "PMI_RANK": "0"}
TPU = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}


@pytest.fixture
def joined(monkeypatch):
    """What `jax.distributed.initialize` is called with; no process is really joined."""
    calls = []
    for name in list(os.environ):
        if name.startswith(CLUSTERS):
            monkeypatch.delenv(name)
    monkeypatch.setattr(jax.distributed, "initialize", lambda **how: calls.append(how))
    monkeypatch.setattr(processes, "_keep_stdout_for_python", lambda: None)
    return calls


@pytest.fixture
def port():
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]


def said(how):
    return tuple(how[name] for name in ("num_processes", "process_id", "cluster_detection_method"))


# Joining.


def test_one_process_alone_joins_nothing(joined):
    assert join() == 1
    assert joined == []


def test_flags_name_the_coordinator_and_the_place(joined, port):
    assert join(f"localhost:{port}", 2, 0, timeout=7) == 2
    [how] = joined
    assert how["coordinator_address"] == f"localhost:{port}" and said(how) == (2, 0, "deactivate")
    assert how["initialization_timeout"] > 7 and how["heartbeat_timeout_seconds"] == processes.HEARTBEAT
    assert how["local_device_ids"] is None


def test_the_environment_says_what_flags_do_not(joined, port, monkeypatch):
    for name, value in (("COORDINATOR", f"localhost:{port}"), ("PROCESSES", "4"), ("PROCESS", "1"), ("DEVICES", "2,3")):
        monkeypatch.setenv(f"WEFT_{name}", value)
    assert join(process=0) == 4
    assert said(joined[0]) == (4, 0, "deactivate") and joined[0]["local_device_ids"] == [2, 3]


@pytest.mark.parametrize(
    ("given", "fact", "fix"),
    [
        (("h:5", None, None), "only --coordinator h:5 is known", "give --processes and --process too"),
        ((None, 2, None), "only --processes 2 is known", "give --coordinator and --process too"),
        ((None, 2, 1), "only --processes 2 --process 1 is known", "give --coordinator too"),
        ((None, None, 0), "only --process 0 is known", "give --coordinator and --processes too"),
        (("h:5", 2, 2), "there is no process 2 among 2", "number them from 0 to 1"),
        (("h:5", 2, -1), "there is no process -1 among 2", "number them from 0 to 1"),
        (("host", 2, 0), "`host` is no address of a coordinator", "give host and port"),
        ((":5000", 2, 0), "`:5000` is no address of a coordinator", "give host and port"),
        (("host:99999", 2, 0), "`host:99999` is no address of a coordinator", "give host and port"),
    ],
)
def test_what_does_not_go_together_is_an_error(given, fact, fix, joined):
    with pytest.raises(ProcessError) as caught:
        join(*given)
    assert fact in caught.value.fact and fix in caught.value.fix
    assert joined == []


@pytest.mark.parametrize(("name", "value"), [("WEFT_PROCESSES", "0"), ("WEFT_PROCESS", "-1"), ("WEFT_PROCESS", "one")])
def test_an_environment_without_a_number_is_an_error(name, value, joined, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ProcessError, match=f"{name} is '{value}'"):
        join()


def test_devices_that_are_no_numbers_are_an_error(joined, port, monkeypatch):
    monkeypatch.setenv("WEFT_DEVICES", "gpu0")
    with pytest.raises(ProcessError, match="WEFT_DEVICES is 'gpu0'"):
        join(f"localhost:{port}", 2, 0)


def test_a_port_in_use_is_an_error(joined):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ProcessError, match=f"process 0 cannot listen on port {port}: Address already in use"):
            join(f"localhost:{port}", 2, 0)


def test_a_coordinator_that_is_not_there_is_an_error(joined, port):
    with pytest.raises(
        ProcessError, match=f"process 1 did not reach the coordinator localhost:{port} in 1 s"
    ) as caught:
        join(f"localhost:{port}", 2, 1, timeout=1)
    assert caught.value.fix.startswith("start process 0 on that host")


def test_what_jax_refuses_is_said_in_one_line(joined, port, monkeypatch):
    def refuse(**how):
        raise RuntimeError("deadline exceeded\nand much more")

    monkeypatch.setattr(jax.distributed, "initialize", refuse)
    with pytest.raises(ProcessError) as caught:
        join(f"localhost:{port}", 2, 0)
    assert caught.value.fact == "the processes did not come together: deadline exceeded"


def test_a_process_whose_others_do_not_come_says_so_and_ends(port):
    program = f"from weft.train.processes import join; join('localhost:{port}', 3, 0, timeout=1)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    fact, _, fix = done.stderr.strip().splitlines()
    assert fact == "error: not all of 3 processes came together in 1 s"
    assert fix.startswith("  fix: see that every process is started, once")


# Clusters.


@pytest.mark.parametrize(
    ("environment", "count", "how"),
    [
        (SLURM, 8, (8, 3, None)),
        (MPI_4, 4, (4, 1, None)),
        ({**SLURM, **MPI_4}, 4, (4, 1, None)),  # mpirun inside of an allocation
        ({**SLURM, **PMI}, 8, (8, 3, None)),  # srun --mpi=pmi2
        (TPU, 1, (None, None, None)),
    ],
)
def test_a_cluster_that_jax_knows_is_joined(environment, count, how, joined, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert join() == count
    assert [said(call) for call in joined] == [how]


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # a batch script, outside of srun
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_SIZE": "1"},
        {"TPU_WORKER_HOSTNAMES": "localhost"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        {**SLURM, "WEFT_PROCESSES": "1"},
    ],
)
def test_one_process_of_a_cluster_stays_alone(environment, joined, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert join() == 1
    assert joined == []


def test_a_coordinator_is_enough_where_the_cluster_says_the_rest(joined, port, monkeypatch):
    for name, value in MPI_5.items():
        monkeypatch.setenv(name, value)
    assert join(f"localhost:{port}") == 4
    assert said(joined[0]) == (4, 0, None)


@pytest.mark.parametrize(("environment", "package"), [(MPI_5, "mpi4py"), (PMI, "mpi4py"), (KUBERNETES, "kubernetes")])
def test_a_cluster_that_jax_cannot_read_is_an_error_and_no_lone_run(environment, package, joined, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProcessError, match=f"cannot find the others without the package `{package}`") as caught:
        join()
    assert caught.value.fix.startswith(f"pip install {package}, or set WEFT_COORDINATOR")
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: name)
    join()
    assert joined[0]["cluster_detection_method"] == (package if package == "mpi4py" else None)


# Sharing out.


def test_a_mesh_that_does_not_divide_is_an_error():
    with pytest.raises(ProcessError, match="a mesh of 6 processors cannot be shared out to 4 processes"):
        share_out(6, 4)


@pytest.mark.parametrize(
    ("is_joined", "environment", "asked"),
    [
        (True, {}, [("jax_num_cpu_devices", 2)]),
        (True, {"JAX_NUM_CPU_DEVICES": "4"}, [("jax_num_cpu_devices", 4)]),  # a mesh may have asked for more
        (True, {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, []),
        (False, {}, []),
    ],
)
def test_each_of_many_asks_for_its_share(is_joined, environment, asked, monkeypatch):
    calls = []
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: is_joined)
    monkeypatch.setattr(jax.config, "update", lambda *what: calls.append(what))
    share_out(8, 4)
    assert calls == asked


# Two processes.


def two_processes(folder, *words):
    """Two processes of `steps.py`, under a supervisor in a process of its own."""
    command = [str(STEPS.parent / "supervisor.py"), "2", str(STEPS), str(folder), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *command], env=environment, text=True, **pipes)


def wait_for(*paths):
    until = time.monotonic() + PATIENCE
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until, f"{[path.name for path in paths if not path.exists()]} did not come"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "to", ["launcher", *(pytest.param(to, marks=pytest.mark.slow) for to in ("0", "1", "1 by SIGINT"))]
)
def test_two_processes_stop_after_the_same_step(to, tmp_path):
    running = two_processes(tmp_path, "100000")
    wait_for(tmp_path / "ready_0", tmp_path / "ready_1")
    if to == "launcher":
        running.terminate()
    else:
        number = signal.SIGINT if "SIGINT" in to else signal.SIGTERM
        os.kill(int((tmp_path / f"pid_{to[0]}").read_text()), number)
    printed, told = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, told
    (first, first_reason), (second, second_reason) = ((tmp_path / f"stopped_{i}").read_text().split() for i in (0, 1))
    assert first == second and 3 <= int(first) < 100000
    assert first_reason == "SIGTERM" and second_reason == ("SIGINT" if "SIGINT" in to else "SIGTERM")
    lines = ["2 of 4 devices", "[1] 2 of 4 devices"]
    assert sorted(printed.splitlines()) == sorted(lines)


@pytest.mark.slow
def test_a_crash_of_one_ends_it_at_once_and_all_are_restarted(tmp_path):
    running = two_processes(tmp_path, "20", "5", "crash")
    _, told = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, told
    assert "[1] RuntimeError: made to crash" in told
    assert "weft launch: process 1 crashed; restart 1 of 3" in told
    assert [(tmp_path / f"stopped_{i}").read_text() for i in (0, 1)] == ["20 None", "20 None"]


@pytest.mark.slow
def test_an_error_one_explains_ends_it_at_once_and_nothing_is_restarted(tmp_path):
    running = two_processes(tmp_path, "100000", "5", "explain")
    _, told = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert "weft launch: process 1 ended with status 1; not restarted" in told
    assert "Traceback" not in told


# A process that is gone.

GONE = "INTERNAL: Gloo AllGather failed: [external/gloo/pair.cc:547] Connection reset by peer [127.0.0.1]:2300"
FAILING = """
import sys, jax
from weft.train import processes
jax.distributed.is_initialized = lambda: True
with processes.failing_at_once():
    raise jax.errors.JaxRuntimeError(sys.argv[1])
"""


@pytest.mark.quick("text0-True")
@pytest.mark.parametrize(("text", "is_gone"), [(GONE, True), ("INTERNAL: a bug", False)])
def test_that_another_process_is_gone_is_said_in_words_and_any_other_crash_by_its_traceback(text, is_gone):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", FAILING, text], env=environment, capture_output=True, text=True)
    assert done.returncode == CRASHED and text in done.stderr
    assert ("another process is gone; this one ends to be restarted" in done.stderr) == is_gone
    assert ("Traceback" not in done.stderr) == is_gone


class Broken:
    """A writer whose other processes die while it writes."""

    def __init__(self, error):
        self.error = error

    def save(self, *_, **__): ...

    def close(self): ...

    def wait_until_finished(self):
        raise ValueError("could not be finished") from self.error


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_save_that_fails_as_another_process_is_gone_is_no_failure_of_the_disk(is_gone, tmp_path, monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    error = jax.errors.JaxRuntimeError(GONE) if is_gone else OSError(28, "No space left on device")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.store._writer = Broken(error)
    checkpoints.save(4, {"x": jnp.ones(2)}, {})
    with pytest.raises(ValueError if is_gone else CheckpointError):
        checkpoints.wait()
    assert checkpoints.steps == [] and not (tmp_path / "4").exists()
