"""Signals: what has nothing to save ends at once, what has finishes its step, and a second one ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.train.checkpoints import Checkpoints
from weft.train.evaluation import Evaluator
from weft.train.interface import before_a_step
from weft.train.stopping import GRACE, Interrupted, Stop

from .running import config_of, run
from .test_bad_runs import act, asked

ROOT = Path(__file__).parents[2]
ONE = {"mesh": "", "layout": "", "model": {"layers": 1}}
BOTH = [signal.SIGTERM, signal.SIGINT]
DEAF = """
import hashlib, sys, threading
from weft.train.stopping import Stop
with Stop(is_own=True, lost="nothing saved, no step was taken") as stop:
    if "saving" in sys.argv:
        stop.begin_steps()
    threading.Timer(0.5, print, ["ready"], {"flush": True}).start()
    hashlib.pbkdf2_hmac("sha512", b"a", b"b", 2_000_000_000)  # hours in C
"""


@pytest.mark.parametrize("number", BOTH)
def test_where_nothing_is_to_be_saved_a_signal_interrupts(number):
    before = signal.getsignal(number)
    with Stop(lost="nothing saved") as stop:
        with pytest.raises(Interrupted) as caught:
            os.kill(os.getpid(), number)
        assert str(caught.value) == f"stopped by {number.name}: nothing saved"
        assert caught.value.status == 128 + number and stop.reason == number.name
    assert signal.getsignal(number) is before


def test_who_goes_on_after_a_signal_is_told_again():
    with Stop() as stop:
        stop.check()
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            stop.check()


@pytest.mark.parametrize("number", BOTH)
def test_where_steps_are_saved_a_signal_asks_for_a_stop_and_a_second_one_interrupts(number):
    with Stop() as stop:
        stop.begin_steps()
        assert not stop.is_wanted() and stop.reason is None
        os.kill(os.getpid(), number)
        assert stop.is_wanted() and stop.reason == number.name
        with pytest.raises(Interrupted, match="stopped by SIGTERM: what followed the last checkpoint is not saved"):
            os.kill(os.getpid(), signal.SIGTERM)


def deaf(*words):
    """A process that hears nothing, once it does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", DEAF, *words], env=environment, text=True, **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_process_that_hears_no_signal_is_ended_and_says_that_nothing_is_saved(number):
    process = deaf()
    process.send_signal(number)
    assert process.wait(GRACE + 60) == 128 + number, process.stderr.read()
    assert process.stderr.read().strip() == f"stopped by {number.name}: nothing saved, no step was taken"


def test_a_second_signal_ends_also_a_process_that_is_saving():
    process = deaf("saving")
    process.send_signal(signal.SIGTERM)
    time.sleep(2 * GRACE)
    assert process.poll() is None  # it is given the time to finish
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert process.stderr.read().strip() == "stopped by SIGTERM: what followed the last checkpoint is not saved"


def test_what_a_signal_ended_waits_at_its_exit_for_nothing():
    code = """
import threading, time
from weft.train.stopping import ending_at_once
with ending_at_once():
    threading.Thread(target=time.sleep, args=(600,)).start()
    print("ready")
    raise SystemExit(143)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (143, "ready\n")


@pytest.mark.parametrize("stage", ["making", "compiling"])
def test_a_run_stopped_before_its_first_step_says_that_nothing_was_saved(stage, text, tmp_path):
    outcome, heard = act(config_of(text, **ONE), tmp_path, **{stage: asked(signal.SIGTERM)})
    assert (outcome.step, outcome.reason, outcome.is_begun) == (0, "SIGTERM", False)
    assert heard.rows == [] and not (tmp_path / "checkpoints").exists()


def test_a_run_that_goes_on_and_is_stopped_before_a_step_stands_where_it_stood(text, tmp_path):
    run(config_of(text, **ONE), tmp_path, crash_at=3)
    outcome, _ = act(config_of(text, **ONE), tmp_path, compiling=asked(signal.SIGINT))
    assert (outcome.step, outcome.reason, outcome.is_begun) == (2, "SIGINT", False)


def test_a_run_stopped_while_it_reads_a_checkpoint_stands_at_the_last_whole_one(text, tmp_path):
    run(config_of(text, **ONE), tmp_path, crash_at=5)
    for wanted in (4, 2):
        outcome, _ = act(config_of(text, **ONE), tmp_path, reading=asked(signal.SIGTERM))
        assert (outcome.step, outcome.reason, outcome.is_begun) == (wanted, "SIGTERM", False)
        (tmp_path / "checkpoints/4/checkpoint.json").write_text("{")


def test_where_a_start_stands_is_said_also_by_who_ends_it_from_outside():
    with Stop() as stop:
        stop.at, stop.lost = before_a_step(12, 20, "weft train a.toml")
        told = "stopped by SIGTERM at step 12 of 20: no step was taken since; goes on with:\n  weft train a.toml"
        assert str(stop.make_interrupted(signal.SIGTERM)) == told
        stop.at, stop.lost = before_a_step(0, 20)
        told = "stopped by SIGTERM at step 0 of 20: nothing saved, no step was taken"
        assert str(stop.make_interrupted(signal.SIGTERM)) == told


SWALLOWING = """
import gc, os, signal, sys, time, weakref
from weft.train.stopping import Stop

def ask(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000): pass

class Falls:
    def __del__(self):
        if "del" in sys.argv: ask()

with Stop(is_own=True, lost="nothing saved"):
    thing = Falls()
    if "weakref" in sys.argv: kept = weakref.ref(thing, ask)
    if "gc" in sys.argv: gc.callbacks.append(ask)
    del thing
    gc.collect()
    time.sleep(100)
"""


@pytest.mark.quick("gc")
@pytest.mark.parametrize("where", ["del", "weakref", "gc"])
def test_a_signal_that_is_heard_where_nothing_can_be_raised_ends_the_process(where):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SWALLOWING, where]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (143, "stopped by SIGTERM: nothing saved")


def test_a_signal_that_is_swallowed_is_raised_by_the_next_check_where_the_process_is_anothers():
    class Falls:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    before = sys.unraisablehook
    with Stop() as stop:
        del (it := [Falls()])[0]
        assert it == [] and stop.reason == "SIGTERM"
        with pytest.raises(Interrupted):
            stop.check()
    assert sys.unraisablehook is before


@pytest.mark.parametrize("layout", [ONE, pytest.param({}, marks=pytest.mark.slow)])
def test_a_run_stopped_in_an_evaluation_leaves_it_and_saves_the_step_it_stands_at(layout, text, tmp_path, monkeypatch):
    batches = []

    def judged(model, batch, turn):
        batches.append(int(turn))
        asked(signal.SIGTERM)()
        return {"nll": 1.0, "accuracy": 1.0, "tokens": 8.0}

    monkeypatch.setattr(Evaluator, "_run", property(lambda self: judged, lambda self, found: None), raising=False)
    config = config_of(text, **layout, eval={"every": 3, "batches": 8}, checkpoint={"every": 100})
    outcome, heard = act(config, tmp_path)
    assert batches == [0] and (outcome.step, outcome.reason, outcome.is_saved) == (3, "SIGTERM", True)
    assert Checkpoints(tmp_path / "checkpoints").steps == [3]
    assert not any("eval" in row for row in heard.rows)
    assert any("the evaluation of step 3 is left out" in message for message in heard.messages)
    monkeypatch.undo()
    outcome, heard = run(config, tmp_path)
    assert outcome.is_finished and [row["step"] for row in heard.rows if "eval" in row] == [6, 8]
