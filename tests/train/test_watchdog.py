"""A step that hangs ends its process with the stacks of all threads on disk, and the run goes on from there."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.environment import of_a_user
from weft.train.watchdog import STALLED, Watchdog

from ..cli.command import ROOT
from .running import config_of, run
from .test_crashes import write_config
from .test_launch import JOBS, PATIENCE, is_alive, launcher, starts, supervised
from .test_many import check_same, finished, launched

HANGS = """
import ctypes, sys, threading
from pathlib import Path
from weft.train import watchdog

def wait_in_c():
    ctypes.CDLL(None).sleep(600)

def wait_in_a_thread():
    threading.Event().wait()

threading.Thread(target=wait_in_a_thread, daemon=True).start()
watchdog.LINGER = 0.5
with watchdog.Watchdog(Path(sys.argv[1]), 0.005, process=3) as watched:
    watched.see(7)
    wait_in_c()
"""


def test_a_main_thread_that_hangs_in_c_ends_with_its_stacks_written(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HANGS, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    stacks = (tmp_path / "stacks" / "process-3.txt").read_text()
    assert done.returncode == STALLED
    assert "in wait_in_c" in stacks and "in wait_in_a_thread" in stacks
    assert "no step for 0.005 minutes after step 7\n" in stacks.splitlines(keepends=True)[0]
    assert done.stderr == (
        f"no step for 0.005 minutes after step 7: where its threads were stands in {tmp_path}/stacks/process-3.txt\n"
    )


@pytest.fixture
def ended(monkeypatch):
    """Set when the watchdog would end this process."""
    event = threading.Event()
    monkeypatch.setattr("weft.train.watchdog.LINGER", 0.0)
    monkeypatch.setattr(os, "_exit", lambda status: event.set())
    return event


def test_it_ends_nothing_while_steps_are_done_and_leaves_no_file(ended, tmp_path):
    with Watchdog(tmp_path, 0.5 / 60) as watchdog:
        for step in range(10):
            watchdog.see(step)
            time.sleep(0.1)
    assert not ended.is_set() and not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_paused", [True, False])
def test_what_is_no_step_may_take_as_long_as_it_takes(is_paused, ended, tmp_path):
    with Watchdog(tmp_path, 0.3 / 60) as watchdog:
        watchdog.see(1)
        if is_paused:
            with watchdog.paused():
                assert not ended.wait(1.0)
        assert ended.wait(PATIENCE)


def test_the_time_begins_with_the_first_step(ended, tmp_path):
    with Watchdog(tmp_path, 0.2 / 60) as watchdog:
        assert not ended.wait(0.8)
        watchdog.see(1)
        assert ended.wait(PATIENCE)


def test_it_can_be_left_out(ended, tmp_path):
    before = set(threading.enumerate())  # one of an earlier test may be about to end
    with Watchdog(tmp_path, 0.0) as watchdog:
        watchdog.see(1)
        assert watchdog._file is None and not list(tmp_path.iterdir())
        assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "watchdog"]


def test_all_write_their_stacks_and_are_restarted_and_none_is_to_blame(tmp_path):
    status, said = supervised(tmp_path, 2, "stall:0.02", "stall:0.02", "exit:0", elastic=True, grace=PATIENCE)
    assert status == 0
    assert said == [f"weft launch: every process was without a step for too long; restart {i} of 3" for i in (1, 2)]
    for number in range(2):
        assert (tmp_path / "stacks" / f"process-{number}.txt").read_text().count("no step for 0.02 minutes") == 2


def test_one_that_cannot_say_so_is_made_to_write_its_stacks_and_is_named(tmp_path):
    status, said = supervised(tmp_path, 2, "stall:0.02 1=freeze:0.02", "exit:0")
    assert (status, said) == (0, ["weft launch: process 1 was without a step for too long; restart 1 of 3"])
    assert "worker.py" in (tmp_path / "stacks" / "process-1.txt").read_text()
    assert not any(is_alive(int(pid)) for number in range(2) for pid, _ in starts(tmp_path, number))


@pytest.mark.slow
def test_one_that_was_stopped_writes_its_stacks_too(tmp_path):
    running, pids = launcher(tmp_path, 2, "stall:0.05")
    os.kill(pids[1], signal.SIGSTOP)
    said = running.stderr.readline()
    while "weft launch" not in said:
        said = running.stderr.readline()
    running.terminate()
    running.communicate(timeout=PATIENCE)
    assert said == "weft launch: process 1 was without a step for too long; restart 1 of 3\n"
    assert "worker.py" in (tmp_path / "stacks" / "process-1.txt").read_text()


def test_a_run_is_watched_while_it_steps(text, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Watchdog, "see", lambda self, step: seen.append((self.seconds, self.path, step)))
    alone = {"mesh": "rows=1", "layout": "batch:rows", "model": {"layers": 1}}
    config = config_of(text, train={"steps": 3, "watchdog_minutes": 2}, **alone)
    run(config, tmp_path)
    assert seen == [(120.0, tmp_path / "stacks" / "process-0.txt", step) for step in (1, 2, 3)]


@pytest.mark.slow
def test_a_run_whose_step_hangs_is_restarted_and_ends_with_the_same_losses(tmp_path):
    """One process hangs, the other waits for it in a collective: both are alive, and neither does a step."""
    config = write_config(tmp_path, 40)
    few = ["--set", "train.steps=10", "--set", "train.watchdog_minutes=0.2"]
    finished(launched(1, config, tmp_path / "one", *few))
    words = [str(tmp_path / "hung"), "train", str(config), "--run", str(tmp_path / "two"), *few]
    command = [str(JOBS / "supervisor.py"), "2", str(JOBS / "hanging.py"), *words]
    environment = of_a_user()
    environment |= {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "weft launch: every process was without a step for too long; restart 1 of 3\n" in done.stderr
    assert "in see_and_hang" in (tmp_path / "two" / "stacks" / "process-1.txt").read_text()
    assert "trainer.py" in (tmp_path / "two" / "stacks" / "process-0.txt").read_text()
    check_same(tmp_path / "two", tmp_path / "one", 10)
