"""Processes that are watched: restarts, reasons, signals, and nobody left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from weft.train.launch import End, Supervisor, _copy, free_port, gpus_of_each
from weft.train.processes import ProcessError

from ..cli.command import ROOT, error_of, started, weft

JOBS = Path(__file__).parent / "jobs"
WORKER = str(JOBS / "worker.py")
PATIENCE = 120  # seconds; a loaded machine imports slowly


def supervised(folder, count, *plans, **how):
    """The exit status and what was said of `count` workers with these plans, one for each start."""
    said = []
    command = [sys.executable, WORKER, str(folder), *plans]
    how = {"first_pause": 0.01, "grace": 0.3, **how}
    return Supervisor(command, count, say=said.append, **how).run(), said


def starts(folder, number):
    return [line.split() for line in (folder / f"starts_{number}").read_text().splitlines()]


def wait_for(*paths):
    until = time.monotonic() + PATIENCE
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until, f"{[path.name for path in paths if not path.exists()]} did not come"
        time.sleep(0.05)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def launcher(folder, count, plan):
    """A supervisor in a process of its own, once all its workers are there, and their pids."""
    command = [sys.executable, str(JOBS / "supervisor.py"), str(count), WORKER, str(folder), plan]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(*(folder / f"ready_{number}" for number in range(count)))
    return running, [int(starts(folder, number)[-1][0]) for number in range(count)]


# Restarts.


def test_all_are_restarted_when_one_is_killed_and_the_reason_is_said(tmp_path):
    status, said = supervised(tmp_path, 3, "hang 2=signal:9", "exit:0")
    assert status == 0
    assert said == ["weft launch: process 2 was killed by SIGKILL; restart 1 of 3"]
    assert [len(starts(tmp_path, number)) for number in range(3)] == [2, 2, 2]


def test_every_start_meets_at_a_port_of_its_own(tmp_path):
    supervised(tmp_path, 2, "hang 0=signal:6", "exit:0")
    (_, first), (_, second) = starts(tmp_path, 1)
    assert first != second
    assert [place for _, place in starts(tmp_path, 0)] == [first, second]


def test_those_that_hang_are_killed_after_the_grace(tmp_path):
    supervised(tmp_path, 3, "hang 1=signal:9", "exit:0")
    assert not any(is_alive(pid) for number in range(3) for pid, _ in starts(tmp_path, number))


def test_it_gives_up_after_the_last_restart(tmp_path):
    status, said = supervised(tmp_path, 2, "exit:0 1=signal:9", restarts=2)
    assert status == 128 + 9
    assert said[-1] == "weft launch: process 1 was killed by SIGKILL; given up after 2 restarts"
    assert len(starts(tmp_path, 1)) == 3


def test_without_restarts_there_is_one_start(tmp_path):
    status, said = supervised(tmp_path, 2, "exit:0 1=exit:70", restarts=0)
    assert (status, said) == (70, ["weft launch: process 1 crashed; not restarted"])


def test_the_count_starts_over_after_a_long_healthy_time(tmp_path):
    plans = [*["hang 1=signal:9"] * 4, "exit:0"]
    status, said = supervised(tmp_path, 2, *plans, restarts=1, healthy=0.0)
    assert status == 0
    assert said == ["weft launch: process 1 was killed by SIGKILL; restart 1 of 1"] * 4


def test_a_process_that_fails_in_two_starts_in_a_row_is_left_out_if_it_may(tmp_path):
    plans = ["hang 2=signal:9", "hang 2=signal:9", "hang 2=exit:70"]
    status, said = supervised(tmp_path, 4, *plans, elastic=True, restarts=1)
    assert status == 70
    assert said == [
        "weft launch: process 2 was killed by SIGKILL; restart 1 of 1",
        "weft launch: process 2 was killed by SIGKILL; restart 1 of 1 without it, with 3 of 4 processes",
        "weft launch: process 2 crashed; given up after 1 restart",
    ]


def test_the_others_keep_their_own_accelerators_when_one_is_left_out(tmp_path, capfd):
    plans = ["hang 1=signal:9", "hang 1=signal:9", "show:WEFT_DEVICES"]
    supervised(tmp_path, 3, *plans, elastic=True, devices=2)
    assert sorted(capfd.readouterr().out.splitlines()) == ["WEFT_DEVICES=0,1", "[1] WEFT_DEVICES=4,5"]


@pytest.mark.parametrize(
    ("plans", "how"),
    [
        (["hang 1=signal:9"] * 2 + ["exit:0"], {}),  # not asked for
        (
            ["hang 1=signal:9", "hang 2=signal:9", "hang 1=signal:9", "exit:0"],
            {"elastic": True},
        ),  # never twice in a row
        (["hang 1=signal:9"] * 2 + ["exit:0"], {"elastic": True, "healthy": 0.0}),
    ],
)
def test_otherwise_nobody_is_left_out(plans, how, tmp_path):
    status, said = supervised(tmp_path, 3, *plans, **how)
    assert status == 0 and not any("without it" in line for line in said)


def test_the_last_process_is_never_left_out(tmp_path):
    status, said = supervised(tmp_path, 1, "exit:70", elastic=True, restarts=2)
    assert status == 70 and said[-1] == "weft launch: process 0 crashed; given up after 2 restarts"


@pytest.mark.parametrize("code", [1, 2])
def test_an_explained_error_is_not_tried_again_and_its_status_is_passed_on(code, tmp_path):
    status, said = supervised(tmp_path, 2, f"hang 1=exit:{code}")
    assert status == code
    assert said == [
        f"weft launch: process 1 ended with status {code}; not restarted, since the same would happen again"
    ]
    assert len(starts(tmp_path, 0)) == 1


@pytest.mark.parametrize("code", [3, 70, 75, 134])
def test_any_other_status_is_tried_again(code, tmp_path):
    status, said = supervised(tmp_path, 2, f"hang 1=exit:{code}", "exit:0")
    assert status == 0 and said[0].endswith("; restart 1 of 3")


@pytest.mark.parametrize(
    ("status", "text", "exit_status"),
    [
        (-9, "process 2 was killed by SIGKILL", 137),
        (-6, "process 2 was killed by SIGABRT", 134),
        (-64, "process 2 was killed by SIGRTMAX", 192),
        (70, "process 2 crashed", 70),
        (75, "process 2 was without a step for too long", 75),
        (3, "process 2 ended with status 3", 3),
    ],
)
def test_an_end_reads_as_what_happened(status, text, exit_status):
    end = End(2, status)
    assert (str(end), end.exit_status) == (text, exit_status)


# What the processes see and say.


def test_process_0_writes_as_it_is_and_the_others_with_their_number(tmp_path, capfd):
    status, said = supervised(tmp_path, 3, "say:hello")
    printed = capfd.readouterr()
    assert (status, said) == (0, [])
    assert sorted(printed.out.splitlines()) == ["[1] hello on stdout", "[2] hello on stdout", "hello on stdout"]
    assert sorted(printed.err.splitlines()) == ["[1] hello on stderr", "[2] hello on stderr", "hello on stderr"]


def test_a_line_of_one_process_never_stands_within_that_of_another(tmp_path, capfd):
    supervised(tmp_path, 2, "halves:one 1=say:other")
    assert sorted(capfd.readouterr().out.splitlines()) == ["[1] other on stdout", "one"]


@pytest.mark.parametrize(
    ("how", "name", "values"),
    [
        ({}, "WEFT_PROCESSES", ["2", "2"]),
        ({"port": 20001}, "WEFT_COORDINATOR", ["127.0.0.1:20001"] * 2),
        ({"devices": 4}, "JAX_NUM_CPU_DEVICES", ["4", "4"]),
        ({"devices": 2}, "WEFT_DEVICES", ["0,1", "2,3"]),
        ({}, "WEFT_DEVICES", ["", ""]),
    ],
)
def test_every_process_is_told_its_place(how, name, values, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    supervised(tmp_path, 2, f"show:{name}", **how)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted([f"{name}={values[0]}", f"[1] {name}={values[1]}"])


def test_a_line_is_written_with_its_newline_at_once_however_it_comes():
    class Target:
        def __init__(self):
            self.pieces = []

        def write(self, text):
            self.pieces.append(text)

        def flush(self): ...

    (read, write), target = os.pipe(), Target()
    copying = threading.Thread(target=_copy, args=(os.fdopen(read, "rb"), target, b"[1] "))
    copying.start()
    for piece in (b"a li", b"ne", b"\n", b"the last"):
        os.write(write, piece)
        time.sleep(0.01)
    os.close(write)
    copying.join(PATIENCE)
    assert target.pieces == ["[1] a line\n", "[1] the last\n"]


@pytest.mark.parametrize(("visible", "each"), [("0,1,2,3", 2), ("0,1,2", 1), ("", 0), ("-1", 0)])
def test_the_gpus_are_shared_out(visible, each, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus_of_each(2) == each


def test_fewer_gpus_than_processes_are_an_error(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(ProcessError, match="1 GPU cannot be shared out to 2 processes") as caught:
        gpus_of_each(2)
    assert caught.value.fix == "start at most 1: -n 1; or compute on the CPU: JAX_PLATFORMS=cpu"


def test_a_free_port_is_below_those_of_outgoing_connections():
    assert 20000 <= free_port() < 32768


@pytest.mark.parametrize(
    ("how", "fact"),
    [({"processes": 0}, "0 processes cannot be started"), ({"devices": 0}, "a process cannot have 0 devices")],
)
def test_no_processes_and_no_devices_are_errors(how, fact):
    with pytest.raises(ProcessError, match=fact):
        Supervisor(["true"], **{"processes": 1, **how})


# Signals, and what is left behind.


@pytest.mark.quick("15-0", "2-5", "2-143")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 0),
        (signal.SIGINT, 5),
        (signal.SIGHUP, 0),
        (signal.SIGINT, 143),
        *(
            pytest.param(*other, marks=pytest.mark.slow)
            for other in [(signal.SIGTERM, 5), (signal.SIGINT, 0), (signal.SIGHUP, 5)]
        ),
    ],
)
def test_a_signal_is_passed_on_and_the_status_is_theirs(number, code, tmp_path):
    running, pids = launcher(tmp_path, 2, f"obey:{code}")
    running.send_signal(number)
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == (128 + number if code == 143 else code)  # 143: ended by the SIGTERM it was sent
    assert said.splitlines()[0] == f"weft launch: {number.name}: every process is asked to stop"
    assert "restart" not in said
    assert not any(map(is_alive, pids))


def test_a_second_sigint_ends_all_at_once(tmp_path):
    running, pids = launcher(tmp_path, 2, "hang")
    running.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert running.poll() is None and all(map(is_alive, pids))
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 128 + signal.SIGINT
    assert not any(map(is_alive, pids))


def test_nobody_lives_on_when_the_supervisor_is_killed(tmp_path):
    running, pids = launcher(tmp_path, 3, "hang")
    running.kill()
    running.communicate(timeout=PATIENCE)
    until = time.monotonic() + PATIENCE
    while any(map(is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


# The command.


@pytest.mark.slow
def test_it_runs_a_command_of_wefts_in_every_process():
    running = started("launch", "-n", "2", "--", "--version", stdout=subprocess.PIPE)
    printed, said = running.communicate(timeout=PATIENCE)
    first, second = sorted(printed.splitlines(), key=len)
    assert running.returncode == 0, said
    assert first.startswith("weft ") and second == f"[1] {first}"


@pytest.mark.slow
def test_a_command_that_cannot_be_is_said_once_for_each_and_not_restarted():
    running = started("launch", "-n", "2", "--", "trian", stdout=subprocess.PIPE)
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 2
    assert "there is no command `trian`" in said
    assert "ended with status 2; not restarted, since the same would happen again" in said


@pytest.mark.parametrize("words", [["-n", "0", "--", "show"], ["--", "show"], ["-n", "2"]])
def test_options_that_cannot_be_are_misuse(words):
    printed, said = weft("launch", *words, status=2)
    assert printed == "" and said.startswith("error: ") and "\n  usage: weft launch [OPTIONS] -- COMMAND...\n" in said


def test_too_few_gpus_are_an_error_of_the_command(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    fact, _, fix = error_of("launch", "-n", "2", "--", "show")
    assert fact == "1 GPU cannot be shared out to 2 processes" and fix.startswith("start at most 1")
