"""A profile of some steps: its events carry the names of ops, and it is whole however the run ends."""

import contextlib
import gzip
import json
import os
import re
import signal

import jax
import numpy as np
import pytest

import weft as wf
from tests.cli.command import weft
from weft.program.profile import read_op_names
from weft.train import profiling, trainer
from weft.train.config import read
from weft.train.profiling import Profile, ProfileError
from weft.train.step import make_step
from weft.train.trainer import Options, Trainer

CONFIG = """
model = {preset = "tiny-lm", vocab = 256, layers = 2, d_model = 16, d_ff = 32, heads = 2, d_kv = 8}
data = {path = "TEXT", held_out = 0.0}
mesh = "rows=2"
layout = "batch:rows"
train = {steps = 6, batch = 2, length = 8, log_every = 1}
eval = {every = 0}
checkpoint = {every = 0}
"""


class Listener:
    """Keeps what a run says, and does something when a step is done."""

    def __init__(self, at_step=lambda at: None):
        self.heard, self.at_step = [], at_step

    def say(self, text):
        self.heard.append(text)

    def step(self, at, steps):
        self.at_step(at)

    def stage(self, what):
        return contextlib.nullcontext()

    def log(self, row): ...

    def progress(self, what, done, whole): ...


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs six tiny steps with a profile in a folder of its own, with one step compiled for all; gives what is said."""
    jax.clear_caches()  # a profile holds every program that is alive, those of other files too
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("so it goes on and on, a" * 10)
    (folder / "run.toml").write_text(CONFIG.replace("TEXT", str(folder / "text.txt")))
    steps = []

    def once(*args):
        steps[:] = steps or [make_step(*args)]
        return steps[0]

    def begun(name, first, last, **how):
        listener = Listener(**how)
        Trainer(read(folder / "run.toml"), folder / name, listener, Options(profile=(first, last))).run()
        return folder / name / "profile", listener.heard

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "make_step", once)
        yield begun


@pytest.fixture(scope="module")
def profiled(run):
    return run("whole", 2, 4)


def events(folder):
    (file,) = folder.rglob("*.trace.json.gz")
    return json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]


@pytest.mark.slow
def test_events_carry_the_names_of_ops_with_their_phase_and_line(profiled):
    folder, heard = profiled
    assert heard == [
        f"steps 2 to 4 are profiled in {folder}; `weft profile {folder.parent}` reads them, ui.perfetto.dev shows them"
    ]
    names = {event.get("name", "") for event in events(folder)}
    for phase in ("forward", "backward"):
        pattern = rf"einsum \({phase}\) weft/nn/(attention|feed_forward)\.py:\d+"
        assert any(re.fullmatch(pattern, name) for name in names), phase
    assert any(re.fullmatch(r"\w+ \(update\)", name) for name in names)
    # Of very short ops the profiler may keep no event: all there are have names of the program, which has them all.
    (file,) = folder.rglob("*.xplane.pb")
    known = set(read_op_names(file.read_bytes()).values())
    assert {name for name in names if re.match(r"\w+ \((forward|backward|update|recompute)\)", name)} <= known
    assert any(re.fullmatch(r"softmax \(forward\) weft/nn/attention\.py:\d+", name) for name in known)


def test_the_steps_asked_for_are_profiled_and_no_others(profiled):
    steps = [event["args"]["step_num"] for event in events(profiled[0]) if event.get("name") == "train"]
    assert sorted(set(steps), key=int) == ["2", "3"]


def test_the_program_in_a_profile_keeps_the_scopes_of_ops(profiled):
    (file,) = profiled[0].rglob("*.xplane.pb")
    raw = file.read_bytes()
    assert re.search(rb"jvp\(wf\d+_scan\)/while/body/closed_call/wf\d+_softmax", raw)
    assert re.search(rb"transpose\(jvp\(wf\d+_scan\)\)/while/body/closed_call/(checkpoint/)?wf\d+_einsum", raw)
    named = read_op_names(raw)
    assert {program for program, _ in named} >= {"jit_train_step"}
    assert any(re.match(r"einsum \(backward\) weft/nn/", name) for name in named.values())


def test_the_command_reads_what_a_run_kept(profiled):
    folder, _ = profiled
    printed, said = weft("profile", folder.parent, "--hardware", "h100", "--json")
    found = json.loads(printed)
    assert said.startswith(f"reads {folder};") and found["steps"] == 2 and found["name"].endswith(" train_step")
    total = sum(row["seconds"] for row in (*found["lines"], *found["others"]))
    assert total == pytest.approx(found["seconds"], rel=1e-9) and found["exposed"] + found["hidden"] > 0


@pytest.mark.slow
def test_a_signal_within_the_steps_closes_the_profile(run):
    def stop(at):
        if at == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    folder, heard = run("stopped", 3, 6, at_step=stop)
    assert heard == [
        f"steps 3 to 4 are profiled in {folder}; `weft profile {folder.parent}` reads them, ui.perfetto.dev shows them"
    ]
    assert any("einsum (forward)" in event.get("name", "") for event in events(folder))
    folder, heard = run("stopped", 3, 6)
    assert heard[0] == "steps 4 to 6 are profiled: of 3:6 there are no others to come"
    assert "goes on from step 4" in heard[1]


@pytest.mark.parametrize(
    ("wanted", "at", "heard"),
    [
        (None, 0, []),
        ((10, 20), 20, ["nothing is profiled: the run is at step 20 already, past `--profile 10:20`"]),
        ((10, 20), 100, ["nothing is profiled: the run is at step 100 already, past `--profile 10:20`"]),
        ((10, 20), 12, ["steps 12 to 20 are profiled: of 10:20 there are no others to come"]),
        ((95, 120), 0, ["steps 95 to 100 are profiled: of 95:120 there are no others to come"]),
    ],
)
def test_steps_that_there_are_not_are_said(tmp_path, wanted, at, heard):
    said = []
    Profile(tmp_path, wanted, at=at, steps=100, say=said.append)
    assert said == heard


def test_a_profile_after_the_last_step_is_an_error(tmp_path):
    with pytest.raises(ProfileError, match=r"`--profile 100:110` begins after the last step, 100") as error:
        Profile(tmp_path, (100, 110), at=0, steps=100, say=print)
    assert error.value.fix == "name steps below 100, or raise `train.steps`"


def test_a_run_that_ends_before_its_profile_begins_says_so(tmp_path):
    said = []
    with Profile(tmp_path, (5, 8), at=0, steps=10, say=said.append) as profile, profile.step(0):
        pass
    assert said == ["nothing is profiled: training ended before step 5"]


def test_a_profile_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "profile").write_text("in the way")
    said = []
    with Profile(tmp_path, (0, 1), at=0, steps=10, say=said.append) as profile:
        with profile.step(0):
            pass
        with profile.step(1):
            pass
    assert len(said) == 1 and said[0].startswith("NOT PROFILED: ")


def test_an_array_of_which_a_slice_was_given_away_does_not_end_a_profile(run):
    x = wf.put(wf.tensor(np.ones(4), "d"), mesh=wf.Mesh("rows=2"), layout="d:rows").array
    x.addressable_shards[1].data.delete()  # `x` itself does not know
    assert not x.is_deleted()
    folder, heard = run("given-away", 2, 4)
    assert heard[0].startswith(f"steps 2 to 4 are profiled in {folder};")


def test_a_profile_that_could_not_be_ended_well_leaves_room_for_another(tmp_path, monkeypatch):
    said = []

    def fail(array):
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(profiling, "wait_for", fail)
        x = jax.numpy.ones(())  # something to wait for
        with Profile(tmp_path, (0, 1), at=0, steps=10, say=said.append) as profile, profile.step(0):
            pass
    assert said == ["NOT PROFILED: the device is gone"] and x == 1
    with Profile(tmp_path, (0, 1), at=0, steps=10, say=said.append) as profile, profile.step(0):
        pass
    assert said[1].startswith("steps 0 to 1 are profiled")
