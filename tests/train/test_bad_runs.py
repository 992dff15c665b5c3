"""What goes wrong with a run is said in a sentence, and nothing that was learned is lost."""

import contextlib
import errno
import os
import resource
import shutil
import signal
from collections import namedtuple

import jax
import numpy as np
import pytest

from weft import data
from weft.cli.train import _word_ending
from weft.errors import MeshError
from weft.small_files import summed
from weft.train import folder as keeping
from weft.train import local_store as saving
from weft.train.checkpoints import Checkpoints
from weft.train.config import ConfigError
from weft.train.folder import Folder
from weft.train.runs import CACHE, Run, RunError
from weft.train.trainer import OPTIONS, Options, Trainer, TrainingError

from .running import Crash, Heard, config_of, losses, run, sums, text_in


@pytest.fixture(scope="module")
def begun(text, tmp_path_factory):
    """A run with the checkpoints 2, 4 and 6 of 8 steps."""
    folder = tmp_path_factory.mktemp("begun")
    run(config_of(text), folder, crash_at=7)
    return folder


@pytest.fixture
def folder(begun, tmp_path):
    return shutil.copytree(begun, tmp_path / "run")


class Acting(Heard):
    """A listener that does something at some steps, or when something begins."""

    def __init__(self, **acts):
        super().__init__()
        self.acts = acts

    def stage(self, what):
        self.acts.get(what.split()[0], lambda: None)()
        return super().stage(what)

    def step(self, at, steps):
        self.acts.get(f"at_{at}", lambda: None)()


def act(config, folder, options=OPTIONS, **acts):
    heard = Acting(**acts)
    return Trainer(config, folder, heard, options).run(), heard


def content(folder):
    """Every file but those of the cache, which keeps the hash of a text once it is some seconds old."""
    files = [path for path in folder.rglob("*") if path.is_file() and CACHE not in path.relative_to(folder).parts]
    return {path: path.read_bytes() for path in files}


def has(heard, *words):
    return any(all(word in message for word in words) for message in heard.messages)


# A disk that is full.


def room(monkeypatch, free):
    usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda path: usage(1 << 40, 0, free))


def test_a_full_disk_is_said_and_training_goes_on_until_there_is_room(text, straight, tmp_path, monkeypatch):
    full, empty = (lambda: room(monkeypatch, 1000)), (lambda: room(monkeypatch, 1 << 40))
    outcome, heard = act(config_of(text), tmp_path, at_3=full, at_7=empty)
    for step in (4, 6):
        assert has(heard, f"NOT SAVED: step {step}", "0.0 MB are free", "last good checkpoint is of step 2", "goes on")
    assert outcome.is_saved and Run(tmp_path).checkpoints.steps == [2, 8]
    assert losses(tmp_path) == losses(straight) and sums(tmp_path, 8) == sums(straight, 8)


def test_a_run_whose_end_is_not_saved_says_so_and_goes_on_from_the_last_good_one(text, straight, tmp_path, monkeypatch):
    outcome, heard = act(config_of(text), tmp_path, at_3=lambda: room(monkeypatch, 1000))
    assert outcome.step == 8 and not outcome.is_saved
    assert has(heard, "NOT SAVED: step 8") and Run(tmp_path).checkpoints.steps == [2]
    told = _word_ending(outcome, tmp_path, 0.0, "weft train a.toml")
    assert f"{tmp_path} ended NOT SAVED: step 8 of 8; the last good checkpoint is step 2; goes on" in told
    outcome, heard = run(config_of(text), tmp_path)  # the disk is as full
    assert "goes on from step 2" in heard.messages and not outcome.is_saved
    monkeypatch.undo()
    outcome, heard = run(config_of(text), tmp_path)
    assert "goes on from step 2" in heard.messages and outcome.is_saved
    assert sums(tmp_path, 8) == sums(straight, 8)


def test_a_run_that_is_told_to_stops_where_the_disk_is_full(text, straight, tmp_path, monkeypatch):
    config = config_of(text, checkpoint={"stop_if_full": True})
    with pytest.raises(TrainingError) as caught:
        act(config, tmp_path, at_3=lambda: room(monkeypatch, 1000))
    assert "step 4 could not be saved" in caught.value.fact and "is of step 2" in caught.value.fact
    assert "make room" in caught.value.fix
    monkeypatch.undo()
    outcome, _ = run(config, tmp_path)
    assert outcome.is_saved and sums(tmp_path, 8) == sums(straight, 8)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_the_system_refuses_while_a_checkpoint_is_written_is_said_and_leaves_nothing(text, straight, tmp_path):
    """Files may not grow beyond 1 kB from step 3 to step 7: neither arrays nor metrics can be written."""
    limit, before = resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        outcome, heard = act(
            config_of(text),
            tmp_path,
            at_3=lambda: resource.setrlimit(limit, (1024, before[1])),
            at_7=lambda: resource.setrlimit(limit, before),
        )
    finally:
        resource.setrlimit(limit, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert has(heard, "NOT SAVED: step 4", os.strerror(errno.EFBIG))
    assert has(heard, "metrics.jsonl CANNOT BE WRITTEN") and has(heard, "is written again, with all rows")
    assert outcome.is_saved and sums(tmp_path, 8) == sums(straight, 8)
    assert losses(tmp_path) == losses(straight)
    assert 4 not in Run(tmp_path).checkpoints.steps and not (tmp_path / "checkpoints" / "4").exists()


def no_room(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_folder_without_room_for_its_first_files_is_named(text, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "write_atomic", no_room)
    with pytest.raises(RunError) as caught:
        run(config_of(text), tmp_path / "run")
    assert f"{tmp_path / 'run'} cannot be written: No space left" in caught.value.fact
    assert "make room" in caught.value.fix and "--run" in caught.value.fix
    monkeypatch.undo()
    outcome, _ = run(config_of(text), tmp_path / "run", crash_at=3)
    assert outcome is None and Run(tmp_path / "run").checkpoints.steps == [2]


def test_that_old_checkpoints_cannot_be_removed_costs_no_new_one(text, folder, monkeypatch):
    monkeypatch.setattr(Checkpoints, "_remove_old", no_room)
    outcome, heard = run(config_of(text), folder)
    assert outcome.is_saved and not has(heard, "NOT SAVED")
    assert Run(folder).checkpoints.steps == [2, 4, 6, 8]


# A folder that is not as it was left.


def test_a_folder_that_is_a_file_or_below_one_is_named(text, tmp_path):
    for place in (text, text / "below"):
        with pytest.raises(RunError) as caught:
            run(config_of(text), place)
        assert f"{place} cannot be written: there is a file in its place" in caught.value.fact
        assert "--run" in caught.value.fix


def test_a_configuration_that_is_broken_or_gone_is_taken_from_the_last_checkpoint(text, folder):
    whole = (folder / "config.toml").read_bytes()
    (folder / "config.toml").write_text("steps = [")
    _, heard = run(config_of(text), folder, crash_at=7)
    assert has(heard, "config.toml is not TOML") and "goes on from step 6" in heard.messages
    assert (folder / "config.toml").read_bytes() == whole
    (folder / "config.toml").unlink()
    with pytest.raises(ConfigError, match="seed: 0, now 4"):
        run(config_of(text, seed=4), folder)


@pytest.mark.quick('{"step": 6, "sums"', "{}")
@pytest.mark.parametrize("told", ["", '{"step": 6, "sums"', "[]", "{}"])
def test_a_broken_checkpoint_is_passed_over_and_its_step_saved_again(told, text, folder, straight):
    (folder / "checkpoints" / "6" / "checkpoint.json").write_text(told)
    outcome, heard = run(config_of(text), folder)
    assert has(heard, "checkpoint of step 6 is broken", "checkpoint.json", "the one before it is taken")
    assert "goes on from step 4" in heard.messages and not has(heard, "NOT SAVED")
    assert outcome.is_saved and sums(folder, 6) == sums(straight, 6) and sums(folder, 8) == sums(straight, 8)
    assert (folder / "checkpoints" / "set-aside-6" / "checkpoint.json").read_text() == told


def test_where_all_checkpoints_are_broken_nothing_is_touched(text, folder):
    for step in (2, 4, 6):
        (folder / "checkpoints" / str(step) / "checkpoint.json").write_text("{}")
    before = content(folder)
    with pytest.raises(TrainingError) as caught:
        run(config_of(text), folder)
    assert "no checkpoint in" in caught.value.fact and "begin anew" in caught.value.fix
    assert content(folder) == before


def test_a_checkpoint_of_another_model_is_named_and_the_folder_left_as_it_was(text, folder):
    before, other = content(folder), config_of(text, model={"d_ff": 64})
    with pytest.raises(ConfigError) as caught:
        run(other, folder)
    assert "model.d_ff: 32, now 64" in caught.value.fact
    with pytest.raises(TrainingError) as caught:
        run(other, folder, options=Options(changed=True))
    assert "feed_forward" in caught.value.fact and "checkpoints/6" in caught.value.fact
    assert "64" in caught.value.fact and "--run" in caught.value.fix
    assert content(folder) == before


def test_the_best_checkpoint_is_one_whose_loss_is_known_and_finite(folder):
    own = Checkpoints(folder / "checkpoints")
    for step, loss in ((2, float("nan")), (4, 3.0)):
        told = own.metadata(step) | {"loss": loss}
        (folder / "checkpoints" / str(step) / "checkpoint.json").write_bytes(summed(told))
    (folder / "checkpoints" / "6" / "checkpoint.json").write_text("")
    assert own.best_step() == 4 and own.choose(best=True) == 4


def test_metrics_that_are_garbage_are_said_and_left_out(text, folder):
    (folder / "metrics.jsonl").write_bytes(b"\x00\xff no row\n")
    _, heard = run(config_of(text), folder)
    assert has(heard, "metrics.jsonl:1 is not a row of metrics") and sorted(losses(folder)) == [7, 8]


# Data and tokenizers that are not those of the beginning.


def test_data_that_changed_are_named_and_stop_a_run_unless_that_is_wanted(tmp_path):
    text = text_in(tmp_path)
    config = config_of(text)
    run(config, tmp_path / "run", crash_at=3)
    text.write_text(text.read_text().replace("weft", "waft"))
    with pytest.raises(ConfigError) as caught:
        run(config, tmp_path / "run")
    assert "begun with other data: words.txt is another" in caught.value.fact and "--changed" in caught.value.fix
    outcome, heard = run(config, tmp_path / "run", options=Options(changed=True))
    assert outcome.is_finished and has(heard, "goes on with other data: words.txt is another")
    assert run(config, tmp_path / "run")[0].was_finished


UNKNOWN_DATA = {
    "gone": (None, "there is no "),
    "torn": ('{"learned": [["a.txt"', "is not JSON"),
    "deep": ("[" * 100_000, "nested more than 64 deep"),
    "no prints": ('{"learned": [[]], "evaluation": []}', "a name and a print are due"),
}


@pytest.mark.parametrize("case", UNKNOWN_DATA)
def test_that_the_data_of_the_beginning_are_not_known_is_said(case, text, folder):
    (content, why), said = UNKNOWN_DATA[case], []
    (folder / "data.json").unlink()
    if content is not None:
        (folder / "data.json").write_text(content)
    own = Checkpoints(folder / "checkpoints")
    Folder(folder, own, config_of(text), may_change=False, say=said.append).check_data(data.ByteTokenizer())
    assert len(said) == 1 and why in said[0] and "data.json" in said[0]
    assert said[0].endswith("; whether the data are those it was begun with is not known")
    assert keeping.learned_files(folder, data.open_source(text)) == []


def test_a_run_made_of_weights_alone_has_no_data_to_be_known(text, folder):
    (folder / "data.json").unlink()
    for step in (2, 4):
        shutil.rmtree(folder / "checkpoints" / str(step))
    (folder / "checkpoints" / "6").rename(folder / "checkpoints" / "0")
    said = []
    own = Checkpoints(folder / "checkpoints")
    Folder(folder, own, config_of(text), may_change=False, say=said.append).check_data(data.ByteTokenizer())
    assert own.steps == [0] and said == []


def test_a_run_whose_metrics_and_data_are_gone_says_so_and_goes_on(text, folder, straight):
    (folder / "metrics.jsonl").unlink()
    (folder / "data.json").unlink()
    outcome, heard = run(config_of(text), folder)
    assert has(heard, "metrics.jsonl is gone: the rows up to step 6 are lost")
    assert has(heard, "data.json; whether the data are those it was begun with is not known")
    assert outcome.is_saved and sums(folder, 8) == sums(straight, 8) and (folder / "data.json").is_file()


def test_files_that_came_and_went_are_named(text, folder, tmp_path):
    def check(*names):
        for name in names:
            (tmp_path / "texts").mkdir(exist_ok=True)
            (tmp_path / "texts" / name).write_text(name)
        config = config_of(tmp_path / "texts", data={"evaluation": str(text)})
        own = Checkpoints(folder / "checkpoints")
        opened = Folder(folder, own, config, may_change=False, say=[].append)
        opened.check_data(data.ByteTokenizer())
        return opened

    (folder / "data.json").unlink()
    check("a.txt", "b.txt").write(data.ByteTokenizer())
    check()
    (tmp_path / "texts" / "a.txt").unlink()
    with pytest.raises(ConfigError, match=r"c.txt is new, d.txt is new, e.txt is new and 1 more"):
        check("c.txt", "d.txt", "e.txt")


def test_another_tokenizer_is_named_and_stops_a_run_unless_that_is_wanted(text, folder):
    own, other, said = Checkpoints(folder / "checkpoints"), data.ByteTokenizer(specials=True), []
    opened = Folder(folder, own, config_of(text), may_change=False, say=said.append)
    opened.check_data(data.ByteTokenizer())
    with pytest.raises(ConfigError) as caught:
        opened.check_data(other)
    assert "begun with another tokenizer, of 256 ids" in caught.value.fact and "--changed" in caught.value.fix
    opened.may_change = True
    opened.check_data(other)
    opened.write(other)
    assert said == ["goes on with another tokenizer than before, of 259 ids"]
    assert data.load_tokenizer(folder).key == other.key


def test_an_array_of_tokens_is_known_by_its_size_and_its_ends(tmp_path):
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(200_000, dtype=np.uint16))
    before = data.open_source(str(path)).prints()
    ids = np.load(path)
    ids[-1] += 1
    np.save(path, ids)
    assert [name for name, _ in before] == ["ids.npy"] and data.open_source(str(path)).prints() != before


# Data that cannot be learned from: each stops before the first step, and the same command goes on when it is mended.


def broken(name, content):
    def make(folder):
        path = folder / name
        path.mkdir() if content is None else path.write_bytes(content)
        return str(path)

    return make


BAD_DATA = {
    "a folder with nothing in it": ({"path": broken("a.txt", None)}, "has no file"),
    "an empty file": ({"path": broken("a.txt", b"")}, "there is nothing in"),
    "binary garbage": ({"path": broken("a.txt", b"one\ntwo \xff\xfe\n")}, "a.txt:2 holds bytes that are no UTF-8"),
    "a zero byte": ({"path": broken("a.txt", b"one\0two\n")}, "a.txt:1 holds a zero byte"),
    "a packed file that is cut": ({"path": broken("a.txt.gz", b"\x1f\x8b\x08\0")}, "a.txt.gz cannot be read beyond"),
    "a line of 10 MB": (
        {"path": broken("a.txt", b"x" * 10_000_000), "documents": "lines"},
        "a.txt:1 has a line of more than",
    ),
    "too little to hold out": ({"path": broken("a.txt", b"x"), "held_out": 0.1}, "leaves 1 of 1 tokens"),
    "pairs": ({"path": broken("a.tsv", b"one\ttwo\n")}, "learns from texts, and"),
    "what is not there": ({"path": lambda folder: str(folder / "a.txt")}, "there is no"),
}


@pytest.mark.parametrize("what", BAD_DATA)
def test_bad_data_are_named(what, tmp_path):
    told, fact = BAD_DATA[what]
    config = config_of("", data={**told, "path": told["path"](tmp_path)})
    with pytest.raises((data.DataError, ConfigError)) as caught:
        run(config, tmp_path / "run")
    assert fact in caught.value.fact and caught.value.fix
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_line_of_10_mb_in_a_text_is_learned_from(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"weft" * 2_500_000)
    outcome, heard = run(config_of(tmp_path / "a.txt"), tmp_path / "run", crash_at=3)
    assert outcome is None and [row["step"] for row in heard.rows] == [1, 2]


def test_when_data_are_mended_the_run_begins_and_until_then_everything_may_change(tmp_path):
    config = config_of(tmp_path / "words.txt", data={"held_out": 0.1})
    (tmp_path / "words.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(data.DataError):
        run(config, tmp_path / "run")
    text_in(tmp_path)
    run(config_of(tmp_path / "words.txt", data={"held_out": 0.2}), tmp_path / "run", crash_at=3)
    own = Run(tmp_path / "run")
    assert own.checkpoints.steps == [2] and own.settings.data["held_out"] == 0.2


def test_a_tokenizer_that_is_missing_or_too_large_is_named(text, tmp_path):
    with pytest.raises(data.DataError) as caught:
        run(config_of(text, tokenizer={"path": str(tmp_path / "t.model")}), tmp_path / "run")
    assert "there is no tokenizer at" in caught.value.fact and 'tokenizer = "bytes"' in caught.value.fix
    with pytest.raises(data.DataError) as caught:
        run(config_of(text, tokenizer={"kind": "bytes", "specials": True}), tmp_path / "run")
    assert "has 259 ids, and the model's vocabulary 256" in caught.value.fact


def test_scores_of_data_that_nothing_is_held_out_of_are_refused(text, tmp_path):
    with pytest.raises(ConfigError, match=r"`eval.metrics` asks for scores, and no data are held out"):
        run(config_of(text, data={"held_out": 0}, eval={"metrics": ["bleu"]}), tmp_path / "run")


def test_a_mesh_of_more_processors_than_there_are_is_refused(text, tmp_path):
    count = jax.device_count()
    with pytest.raises(MeshError, match=f"wants {2 * count} processors, and JAX has {count}"):
        run(config_of(text, mesh=f"rows={count // 2},cols=4"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Signals.


def asked(number):
    return lambda: signal.raise_signal(number)


@pytest.mark.quick("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_step_saves_and_the_run_goes_on_as_if_it_had_not_been(number, text, straight, tmp_path):
    outcome, _ = act(config_of(text), tmp_path, at_3=asked(number))
    assert (outcome.step, outcome.reason, outcome.is_saved) == (3, number.name, True)
    assert Run(tmp_path).checkpoints.steps == [2, 3] and sorted(losses(tmp_path)) == [1, 2, 3]
    outcome, heard = run(config_of(text), tmp_path)
    assert "goes on from step 3" in heard.messages and sums(tmp_path, 8) == sums(straight, 8)
    assert losses(tmp_path) == losses(straight)


def test_what_crashes_leaves_the_checkpoint_that_was_begun(text, tmp_path):
    def crash():
        raise Crash

    with contextlib.suppress(Crash):
        act(config_of(text), tmp_path, at_2=lambda: None, at_3=crash)
    assert Run(tmp_path).checkpoints.steps == [2]
