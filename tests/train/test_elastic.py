"""A run goes on with the processes and processors that are left, and says who has nothing to do."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from weft.devices import take
from weft.train import elastic, foresight, processes
from weft.train.config import CONFIG
from weft.train.elastic import Joined, Part, has_room, largest_part
from weft.train.trainer import Trainer

from ..cli.command import ROOT
from .running import Heard, config_of
from .test_crashes import write_config
from .test_many import check_same, finished, launched

FIXED = {"mesh": "rows=4", "layout": "batch:rows"}
AUTO = {"mesh": "auto", "layout": "auto"}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("WEFT_PROCESSES", "WEFT_PROCESS", "WEFT_ELASTIC", "WEFT_DEVICES", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


class Found(list):
    def words(self):
        return ["found"]


@pytest.fixture
def left(monkeypatch):
    """So many processors are left, and what a search on them finds first splits the batch."""

    def search(*_, processors, **__):
        return Found([SimpleNamespace(mesh=f"x={processors}", layout="batch:x", fits=True)])

    monkeypatch.setattr(foresight, "search", search)
    return lambda count: monkeypatch.setattr(jax, "device_count", lambda *_: count)


# The largest part.


@pytest.mark.parametrize(
    ("there", "part"),
    [
        ((4, 1), Part(4, 4)),
        ((3, 1), Part(2, 2)),  # all that can be split has a size that is a power of two
        ((3, 2), Part(4, 2)),
        ((2, 3), Part(4, 2)),  # two of the three of each
        ((1, 7), Part(4, 1)),
        ((1, 1), Part(1, 1)),
    ],
)
def test_the_largest_part_is_one_that_a_layout_divides_over(there, part, text):
    assert largest_part(config_of(text, **AUTO), *there) == part


def test_sizes_that_divide_by_three_use_three(text):
    config = config_of(text, **AUTO, model={"d_ff": 48})
    assert largest_part(config, 3, 1) == Part(3, 3)
    assert largest_part(config, 7, 1) == Part(6, 6)
    assert largest_part(config, 7, 1, below=6) == Part(4, 4)


def test_no_more_are_used_than_the_mesh_has(text):
    assert largest_part(config_of(text, **FIXED), 3, 8) == Part(4, 2)


@pytest.mark.parametrize(
    ("there", "has"), [((4, 1), True), ((2, 2), True), ((1, 8), True), ((3, 2), False), ((2, 1), False)]
)
def test_a_mesh_has_room_where_each_process_holds_as_much_of_it(there, has, text):
    assert has_room(config_of(text, **FIXED), *there) is has


@pytest.mark.parametrize(
    ("owners", "count", "which"),
    [([0, 0, 1, 1], 2, [0, 2]), ([0, 0, 1, 1], 3, [0, 1, 2]), ([0, 0, 0], 2, [0, 1]), ([0, 1, 1], 2, [0, 1])],
)
def test_of_the_devices_as_many_of_each_process_are_taken(owners, count, which):
    devices = [SimpleNamespace(id=number, process_index=owner) for number, owner in enumerate(owners)]
    assert [device.id for device in take(devices, count)] == which


# Joining.


@pytest.fixture
def joining(monkeypatch):
    """How many processes of those started join, and how many virtual processors each then asks for."""
    asked = {}

    def join(coordinator, count, process, *, used):
        asked["used"] = used
        return 0 if process >= used else used

    monkeypatch.setattr(processes, "join", join)
    monkeypatch.setattr(processes, "take_virtual", lambda count: asked.update(each=count))
    return asked


@pytest.mark.parametrize(
    ("keys", "whole", "started", "used", "each"),
    [
        (FIXED, 4, 4, 4, 1),  # nobody is missing
        (FIXED, 4, 3, 2, 1),
        (FIXED, 2, 1, 1, 2),
        (FIXED, 3, 3, 2, 1),  # never had room
        ({"mesh": "rows=8", "layout": "batch:rows"}, 4, 3, 2, 2),
        ({"mesh": "rows=4", "layout": "auto"}, None, 3, 2, 1),
        (AUTO, None, 3, 2, 1),
        (AUTO, None, 4, 4, 1),
    ],
)
def test_as_many_processes_join_as_a_layout_divides_over(keys, whole, started, used, each, joining, text, monkeypatch):
    if whole is not None:
        monkeypatch.setenv("WEFT_ELASTIC", str(whole))
    assert elastic.join(config_of(text, **keys), "host:5", started, 0) == Joined(started, used)
    assert joining == {"used": used, "each": each}


def test_one_that_is_left_over_joins_nothing(joining, text):
    assert elastic.join(config_of(text, **AUTO), "host:5", 3, 2) == Joined(3, 0)


def test_a_mesh_that_may_not_change_must_be_shared_out(joining, text):
    with pytest.raises(
        processes.ProcessError, match="a mesh of 4 processors cannot be shared out to 3 processes"
    ) as at:
        elastic.join(config_of(text, **FIXED), "host:5", 3, 0)
    assert at.value.fix.endswith('say `layout = "auto"`: it takes what there is')


def test_of_the_processes_of_a_cluster_the_first_ones_join(monkeypatch):
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **how: calls.append(how))
    monkeypatch.setattr(processes, "_keep_stdout_for_python", lambda: None)
    for name, value in (("STEP_NODELIST", "n[1-3]"), ("STEP_NUM_TASKS", "3"), ("PROCID", "1")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert processes.count_started() == 3
    assert processes.join(used=2) == 2 and calls[0]["num_processes"] == 2
    monkeypatch.setenv("SLURM_PROCID", "2")
    assert processes.join(used=2) == 0 and len(calls) == 1


# The layout on what is left.


def test_a_mesh_without_room_is_searched_anew_and_told_in_one_line(text, tmp_path, monkeypatch):
    search, least = foresight.search, {"dims": ["batch"], "workers": 1}
    monkeypatch.setattr(foresight, "search", lambda *args, **how: search(*args, **{**how, **least}))
    monkeypatch.setattr(jax, "device_count", lambda *_: 3)
    monkeypatch.setenv("WEFT_ELASTIC", "4")
    heard = Heard()
    config = foresight.choose_layout(config_of(text, **FIXED), tmp_path, heard)
    assert (config.mesh, config.layout, config.batch) == ("x=2", "batch:x", 8)
    (told,) = heard.messages
    assert told == (
        "3 of 4 processors are left: goes on with x=2 under batch:x; no layout divides over 3, idle: processor 2"
    )


def test_processes_that_did_not_join_are_named(left, text, tmp_path, monkeypatch):
    left(1)
    monkeypatch.setenv("WEFT_ELASTIC", "4")
    heard = Heard()
    foresight.choose_layout(config_of(text, **FIXED), tmp_path, heard, started=3)
    (told,) = heard.messages
    assert told == (
        "3 of 4 processors are left: goes on with all=1 under batch:all; no layout divides over 3, "
        "idle: process 1, process 2"
    )


def test_a_run_begins_with_the_largest_part_too(left, text, tmp_path):
    left(7)
    heard = Heard()
    foresight.choose_layout(config_of(text, **AUTO), tmp_path, heard)
    assert heard.messages == [
        "there are 7 processors: begins with x=4 under batch:x; no layout divides over 7, "
        "idle: processor 4, processor 5, processor 6"
    ]


def test_a_mesh_with_room_stays_as_it_is(left, text, tmp_path, monkeypatch):
    left(4)
    monkeypatch.setenv("WEFT_ELASTIC", "4")
    heard = Heard()
    config = config_of(text, **FIXED)
    assert foresight.choose_layout(config, tmp_path, heard) is config and heard.messages == []


@pytest.mark.parametrize("keys", [AUTO, {"mesh": "rows=4", "layout": "auto"}])
def test_a_run_whose_layout_is_auto_comes_back_on_fewer_processors(keys, left, text, tmp_path):
    (tmp_path / CONFIG).write_text(config_of(text, **FIXED).to_toml())
    left(2)
    heard = Heard()
    config = Trainer(config_of(text, **keys), tmp_path, heard).config
    assert config.mesh == "x=2"
    assert heard.messages == [f"2 of 4 processors are left: goes on with x=2 under {config.layout}"]
    (tmp_path / CONFIG).write_text(config.to_toml())
    again = Heard()
    assert Trainer(config_of(text, **keys), tmp_path, again).config.layout == config.layout
    assert not any("layout = auto" in message for message in again.messages)


def test_what_an_op_refuses_is_not_used(left, text, tmp_path, monkeypatch):
    left(4)
    search = foresight.search

    def refusing(*args, processors, **how):
        if processors == 4:
            raise foresight.MeshError("no layout of these dims can use 4 processors", fix="none")
        return search(*args, processors=processors, **how)

    monkeypatch.setattr(foresight, "search", refusing)
    assert foresight.choose_layout(config_of(text, **AUTO), tmp_path, Heard()).mesh == "x=2"


# Real processes.


def kill_at_step(job: subprocess.Popen, step: int, which: int, told: list[str]) -> None:
    for line in job.stdout:
        told.append(line)
        if line.startswith(f"step {step}/"):
            children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            os.kill(int(children[which]), signal.SIGKILL)
            return


@pytest.mark.slow
def test_a_process_killed_twice_is_gone_without_and_the_losses_stay(tmp_path):
    config, four = write_config(tmp_path, 40), ["--set", "mesh=rows=4"]
    finished(launched(1, config, tmp_path / "one", *four))
    job, told = launched(4, config, tmp_path / "four", *four, how=["--elastic"]), []
    kill_at_step(job, 10, 3, told)
    kill_at_step(job, 20, 3, told)
    text = "".join(told) + finished(job)
    assert "process 3 was killed by SIGKILL; restart 1 of 3 without it, with 3 of 4 processes" in text
    assert "3 of 4 processors are left: goes on with x=2 under " in text
    assert "; no layout divides over 3, idle: process 2\n" in text and "[2] idle: " in text
    check_same(tmp_path / "four", tmp_path / "one", 40)


@pytest.mark.slow
def test_the_first_process_may_be_late():
    program = """
import jax, time
from weft.spmd.together import broadcast_text
from weft.train import processes
processes.join()
time.sleep(40 * (jax.process_index() == 0))
print(broadcast_text("said" if jax.process_index() == 0 else ""))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests/train/jobs/supervisor.py"), "2", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert sorted(done.stdout.splitlines()) == ["[1] said", "said"], done.stderr
