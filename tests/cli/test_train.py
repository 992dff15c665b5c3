"""`weft train` as a person uses it: what it prints, what it leaves in the run's folder, and how it ends."""

import importlib
import json
import re
import shlex
import signal
import subprocess
import time
from collections import namedtuple
from pathlib import Path

import pytest

from tests.cli.command import error_of, started, weft
from tests.train.conftest import compile_each_step_once  # noqa: F401
from tests.train.running import text_in
from weft.cli.train import command_of
from weft.train import local_store as saving
from weft.train import saver
from weft.train.launch import Supervisor
from weft.train.processes import LAUNCHED

TOML = """\
name = "small"
data = {{path = "{text}", held_out = 0.1}}

[model]
preset = "tiny-lm"
layers = 2
d_model = 16
heads = 4
d_kv = 4
d_ff = 32
vocab = 256

[train]
steps = 6
batch = 8
length = 16
log_every = 4

[eval]
every = 3

[checkpoint]
every = 3
"""
ONE_STEP = ("--set", "train.peak_flops=1e9", "--set", "train.steps=1")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    (folder / "small.toml").write_text(TOML.format(text=text_in(folder)))
    return folder / "small.toml"


@pytest.fixture(scope="module")
def done(file):
    """A run that is done, and what was printed."""
    folder = file.parent / "done"
    printed, said = weft("train", file, "--run", folder)
    assert said == ""
    return folder, printed


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_it_says_what_is_trained_and_how_it_went(done):
    folder, printed = done
    first, second, *_, last = printed.splitlines()
    assert re.fullmatch(rf"{folder}: tiny-lm, [\d,]+ parameters", first)
    assert second == "mesh all=1   layout batch:all   batch 8 x 16"
    assert "compiling the step…" in printed and re.search(r"^step 4/6  loss \d\.\d{3}  ", printed, re.M)
    assert re.fullmatch(rf"done: step 6 of 6 in \d+ s, in {folder}", last)


def test_a_runs_folder_holds_all_of_it(done):
    folder, _ = done
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    given = {"config.toml", "metrics.jsonl", "checkpoints", "tokenizer.bytes.json"}
    assert names == given | {"data.json", "run.json", "tensorboard", "cache"}
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"3", "6"}
    told = json.loads((folder / "checkpoints" / "3" / "checkpoint.json").read_text())
    assert told["step"] == 3 and told["config"]["train"]["steps"] == 6 and told["loss"] > 0


def test_metrics_end_with_the_last_step_and_know_no_peak_of_a_cpu(done):
    told = rows(done[0])
    steps = [row for row in told if "loss" in row]
    assert [row["step"] for row in steps] == [1, 4, 6] and told[-1]["step"] == 6
    assert [row["step"] for row in told if "eval" in row] == [3, 6]
    assert all(row["mfu"] is None and row["tokens_per_s"] > 0 and row["grad_norm"] > 0 for row in steps)


def test_a_given_peak_makes_the_share_that_is_used_known(file, tmp_path):
    weft("train", file, "--run", tmp_path / "run", *ONE_STEP)
    assert [row["mfu"] > 0 for row in rows(tmp_path / "run") if "loss" in row] == [True]


def test_a_finished_run_says_so(done, file):
    folder, _ = done
    before = (folder / "metrics.jsonl").read_bytes()
    printed, _ = weft("train", file, "--run", folder)
    assert printed.splitlines()[-1] == f"{folder} is finished: step 6 of 6"
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_runs_folder_is_as_good_as_its_file(done):
    folder, _ = done
    assert weft("train", folder)[0].splitlines()[-1] == f"{folder} is finished: step 6 of 6"


def test_what_goes_on_is_written_as_it_was_started(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(Supervisor, "run", lambda self: seen.append(self._environment(0, 5000)[LAUNCHED]) or 0)
    weft("launch", "-n", "4", "--devices", "2", "--elastic", "--", "train", "run.toml")
    assert seen == ["weft launch -n 4 --devices 2 --elastic --"]
    run, changes = tmp_path / "run", ["mesh=hosts=2 | x=2"]
    words = shlex.join(["train", "run.toml", "--run", str(run), "--set", *changes])
    assert command_of(Path("run.toml"), run, changes) == f"weft {words}"
    monkeypatch.setenv(LAUNCHED, seen[0])
    assert command_of(Path("run.toml"), run, changes) == f"{seen[0]} {words}"


def test_a_changed_configuration_names_its_keys_and_stops(done, file):
    _, said = weft("train", file, "--run", done[0], "--set", "seed=3", "--set", "schedule.rate=1", status=1)
    assert "begun with another configuration: schedule.rate: 0.001, now 1.0; seed: 0, now 3" in said
    assert "fix: name another folder with --run, or say --changed" in said


def test_the_folder_is_runs_and_the_name_where_none_is_said(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed, _ = weft("train", file, "--set", "name=other", *ONE_STEP)
    assert printed.startswith("runs/other: tiny-lm") and (tmp_path / "runs" / "other" / "config.toml").is_file()


def test_an_error_in_the_file_is_named_with_its_line(file, tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text(file.read_text().replace("steps = 6", "stepz = 6"))
    assert error_of("train", bad) == ("`train.stepz` is no key of a run", f"at {bad}:14", "did you mean `steps`?")
    bad.write_text(file.read_text().replace("steps = 6", "steps = [1"))
    assert error_of("train", bad)[1] == f"at {bad}:15"
    assert error_of("train", file, "--set", "train.batch=-1")[1] == "at --set train.batch"
    fact, _, fix = error_of("train", file.with_name("smal.toml"))
    assert "there is no file" in fact and "small.toml" in fix


def test_an_error_that_stands_in_no_file_is_on_the_command_line(file, tmp_path):
    _, said = weft("train", file, "--run", file, status=1)
    assert f"error: {file} cannot be written: there is a file in its place\n  on the command line\n  fix: " in said
    fact, where, _ = error_of("train", file, "--run", tmp_path / "run", "--profile", "20:10")
    assert fact == "`--profile 20:10` names no steps" and where == "on the command line"


def test_a_run_that_is_not_saved_ends_with_1(file, tmp_path, monkeypatch):
    usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda path: usage(1 << 40, 0, 0))
    printed, _ = weft("train", file, "--run", tmp_path / "run", status=1)
    assert "NOT SAVED: step 3 could not be saved" in printed and "NOT SAVED: step 6" in printed


@pytest.mark.slow
def test_a_run_that_ends_not_finite_says_so_last_and_ends_with_1_also_when_it_is_asked_again(file, tmp_path):
    words = ["train", file, "--run", tmp_path / "run", "--set", "train.steps=2", "--set", "train.loss_scale=1e38"]
    for _ in range(2):
        printed, _ = weft(*words, status=1)
        last = printed.splitlines()[-1]
        assert last.startswith(f"{tmp_path / 'run'} ended NOT FINITE at step 2 of 2: its last loss is inf. fix: ")


def test_a_signal_before_the_first_step_is_obeyed_with_a_status_of_its_own(file, tmp_path, monkeypatch):
    def asked(*_):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(saver, "first_weights", asked)
    words = ["train", file, "--run", tmp_path / "run"]
    printed, _ = weft(*words, status=143)
    command = shlex.join(["weft", *map(str, words)])
    told = f"stopped by SIGTERM at step 0 of 6: nothing saved, no step was taken; goes on with:\n  {command}\n"
    assert printed.endswith(told)


def test_a_signal_ends_a_command_that_has_nothing_to_save(monkeypatch, tmp_path):
    command = importlib.import_module("weft.cli.evaluate")
    monkeypatch.setattr(command, "Run", lambda *folder: signal.raise_signal(signal.SIGINT))
    assert weft("eval", tmp_path, status=130) == ("", "stopped by SIGINT\n")


def stopped_by(number, words, cwd):
    """What a run in a process of its own prints that gets a signal after its first row; it must end with 0."""
    process = started(*words, cwd=cwd, stdout=subprocess.PIPE)
    printed = []
    try:
        until = time.monotonic() + 240
        for line in process.stdout:
            printed.append(line)
            if line.startswith("step ") and sum(other.startswith("step ") for other in printed) == 1:
                process.send_signal(number)
            assert time.monotonic() < until
        assert process.wait(60) == 0, process.stderr.read()
    finally:
        process.kill()
    return "".join(printed)


@pytest.mark.slow
def test_a_signal_saves_and_the_command_it_prints_goes_on(file, tmp_path):
    words = ["train", file, "--run", tmp_path / "a run", "--set", "train.steps=1000000", "--set", "eval.every=0"]
    printed = stopped_by(signal.SIGTERM, words, tmp_path)
    found = re.search(
        r"^stopped by SIGTERM at step (\d+) of 1000000, saved; goes on with:\n  weft (.+)\n\Z", printed, re.M
    )
    assert found, printed
    step, command = int(found[1]), shlex.split(found[2])
    assert rows(tmp_path / "a run")[-1]["step"] == step
    printed = stopped_by(signal.SIGINT, command, tmp_path)
    assert f"goes on from step {step}" in printed and "stopped by SIGINT" in printed
    assert rows(tmp_path / "a run")[-1]["step"] > step
