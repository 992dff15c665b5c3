"""How runs begin and end: nothing is judged by what was learned, what is not finite is said, one trainer at a time."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from weft.train import prepare, saver, trainer
from weft.train.config import ConfigError
from weft.train.runs import Lock, Run, RunError
from weft.train.step import arrays_of, first_model, refill
from weft.train.trainer import Options

from .running import config_of, losses, run, sums, text_in
from .test_bad_runs import act, asked

ONE = {"mesh": "", "layout": "", "model": {"layers": 1}}


def small(text, **changes):
    """A run on one processor: nothing here depends on a mesh."""
    return config_of(text, **{**ONE, **changes})


def has(heard, *words):
    return any(all(word in message for word in words) for message in heard.messages)


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def done(text, tmp_path_factory):
    """The folder of a run that is finished."""
    folder = tmp_path_factory.mktemp("done")
    run(small(text), folder)
    return folder


# What is judged.


def test_a_run_that_holds_nothing_out_says_at_its_start_that_it_is_never_judged(text, tmp_path):
    config = small(text, data={"held_out": 0}, eval={"every": 15})
    outcome, heard = run(config, tmp_path, crash_at=3)
    (at,) = [i for i, message in enumerate(heard.messages) if "NOTHING IS HELD OUT: `eval.every` is 15" in message]
    assert at < heard.messages.index("compiling the step")
    assert "before it begins, `held_out = 0.05` or `evaluation = FILE` in `data`" in heard.messages[at]
    outcome, heard = run(config, tmp_path)
    told = next(message for message in heard.messages if "NOTHING IS HELD OUT" in message)
    assert outcome.is_finished and "`held_out" not in told and "--set data.evaluation=FILE" in told


def test_a_run_that_is_never_to_be_judged_says_nothing_of_it(text, tmp_path):
    _, heard = run(small(text, data={"held_out": 0}), tmp_path, crash_at=1)
    assert not has(heard, "HELD OUT")


def test_what_is_held_out_of_data_that_were_learned_from_is_said_to_be_so(text, tmp_path):
    run(small(text, data={"held_out": 0}), tmp_path, crash_at=3)
    _, heard = run(small(text), tmp_path, crash_at=3, options=Options(changed=True))
    assert has(heard, "WHAT IS HELD OUT NOW may be what it learned from before")


def test_a_run_judged_by_the_file_it_learns_from_says_so(text, tmp_path):
    same = tmp_path / "copy.txt"
    same.write_bytes(text.read_bytes())
    _, heard = run(small(text, data={"held_out": 0, "evaluation": str(same)}), tmp_path / "run", crash_at=1)
    assert has(heard, "IT IS JUDGED BY WHAT IT LEARNS FROM: copy.txt")


def test_a_run_without_data_says_what_it_learns_from_before_anything_else(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "open_data", lambda *_: (_ for _ in ()).throw(ConfigError("enough", fix="")))
    config = small(text_in(tmp_path))
    unsaid = type(config)(**{name: x for name, x in vars(config).items() if name != "data"})
    for each, is_told in ((config, False), (unsaid, True)):
        trained = trainer.Trainer(each, tmp_path / str(is_told), heard := Hearing())
        with pytest.raises(ConfigError, match="enough"):
            trained.run()
        told = [text for text in heard.messages if "THE RUN'S FILE NAMES NO DATA" in text]
        assert bool(told) == is_told
    assert "Python's standard library" in told[0] and 'data = "FOLDER"' in told[0]


class Hearing(trainer.NullListener):
    def __init__(self):
        self.messages = []

    def say(self, text):
        self.messages.append(text)


# What is not finite.


def test_a_run_whose_last_loss_is_not_finite_says_so_in_its_outcome_and_whenever_it_is_asked(text, tmp_path):
    config = small(text, train={"steps": 3, "loss_scale": 1e38})  # the loss times that is no float, its gradients are
    for turn in range(2):
        outcome, _ = run(config, tmp_path)
        assert (outcome.is_finished, outcome.was_finished) == (True, turn == 1)
        assert outcome.not_finite == "its last loss is inf"
    assert json.loads((tmp_path / "run.json").read_text())["not_finite"] == "its last loss is inf"


def test_a_run_all_of_whose_steps_were_left_out_says_so(text, tmp_path, monkeypatch):
    def broken(config, *_):
        model = first_model(config)
        arrays = {path: np.array(x) for path, x in arrays_of(model).items()}
        arrays["decoder.norm.scale"][3] = np.nan
        return refill(model, arrays)

    monkeypatch.setattr(saver, "first_weights", broken)
    outcome, _ = run(small(text), tmp_path)
    assert outcome.is_finished and outcome.not_finite == "the last 8 steps were left out"


def test_how_a_run_ended_is_in_its_folder_unless_it_is_under_way(text, done, tmp_path):
    told = json.loads((done / "run.json").read_text())
    assert (told["step"], told["steps"], told["not_finite"], told["is_saved"]) == (8, 8, "", True)
    run(small(text), tmp_path, crash_at=3)
    assert not (tmp_path / "run.json").exists()


# What is finished.


def test_a_finished_run_whose_last_state_is_broken_does_its_last_steps_again(text, done, tmp_path):
    folder = tmp_path / "run"
    run(small(text), folder)
    largest = max((folder / "checkpoints/8/arrays").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    outcome, heard = run(small(text), folder)
    assert (
        has(heard, "checkpoints/8", "broken", "the one before it is taken") and "goes on from step 6" in heard.messages
    )
    assert outcome.is_finished and not outcome.was_finished and sums(folder, 8) == sums(done, 8)
    assert run(small(text), folder)[0].was_finished


# Rows.


@pytest.mark.quick("5")
@pytest.mark.parametrize("stopped_at", [4, 5])
def test_a_run_that_was_stopped_has_the_rows_of_one_that_was_not(stopped_at, text, done, tmp_path):
    config = small(text, train={"log_every": 3})
    run(config, tmp_path, crash_at=stopped_at)
    _, heard = run(config, tmp_path)
    assert heard.rows[0]["step"] == (stopped_at - 1) // 2 * 2 + 1  # people see soon how it goes
    assert list(losses(tmp_path)) == [1, 3, 6, 8] == [row["step"] for row in rows(tmp_path)]


def test_the_row_a_stop_adds_is_gone_when_the_run_goes_on(text, tmp_path):
    config = small(text, train={"log_every": 3})
    act(config, tmp_path, at_5=asked(signal.SIGTERM))
    assert list(losses(tmp_path)) == [1, 3, 5]
    run(config, tmp_path)
    assert list(losses(tmp_path)) == [1, 3, 6, 8]


# One trainer at a time, in its own place.


def test_a_folder_in_use_stays_so_when_its_lock_file_is_removed(text, tmp_path):
    with Lock(tmp_path):
        (tmp_path / ".lock").unlink()
        with pytest.raises(RunError, match="another process is training"):
            run(small(text), tmp_path)
    code = f"from pathlib import Path; from weft.train.runs import Lock; Lock(Path({str(tmp_path)!r})).__enter__()"
    with Lock(tmp_path):
        (tmp_path / ".lock").unlink()
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert told.returncode == 1 and "another process is training" in told.stderr
    with Lock(tmp_path):
        pass


def test_what_a_killed_start_left_half_made_is_gone_after_the_next(text, tmp_path):
    for place in (tmp_path, tmp_path / "cache"):
        (place / ".tokens-1.abc.partial").mkdir(parents=True)
        (place / ".config.toml.1.partial").write_text("name =")
    run(small(text), tmp_path, crash_at=1)
    assert list(tmp_path.rglob("*.partial")) == [] and Run(tmp_path).settings.name == "run"


@pytest.mark.parametrize("name", ["../../x", "/x", "a/../../x", "..", ".", "", "a\x00b"])
def test_a_name_that_is_no_folder_below_runs_is_refused(name, text):
    with pytest.raises(ConfigError) as caught:
        small(text, name=name)
    assert "`name` is" in caught.value.fact and "--run DIR" in caught.value.fix


def test_a_name_of_a_folder_below_another_is_taken(text):
    assert small(text, name="sweep/first").name == "sweep/first"
