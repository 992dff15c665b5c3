"""`weft eval`: a checkpoint judged by what it has not learned from, on any mesh."""

import json
import shutil

import jax
import pytest

from weft import models
from weft.train import Run

from .command import error_of, weft

SPLIT = ("--mesh", "rows=2,cols=4", "--layout", "batch:rows,heads:cols")


@pytest.fixture(scope="module")
def found(lm):
    printed, said = weft("eval", lm.folder, "--json")
    assert said == ""
    return json.loads(printed)


def test_eval_prints_one_object_of_all_that_was_found(lm, found):
    held_out = (lm.folder.parent / "text.txt").read_bytes()
    assert found["step"] == 3 and found["run"] == str(lm.folder)
    assert found["tokens"] == round(0.05 * len(held_out))
    names = {"loss", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "accuracy", "seconds"}
    assert names < found.keys()


def test_eval_prints_aligned_lines(lm, found):
    lines = weft("eval", lm.folder)[0].splitlines()
    assert lines[0].split() == ["step", "3"]
    assert lines[1].split() == ["loss", f"{found['loss']:.4f}", "nats", "a", "token"]
    assert len({line.index(line[16:].lstrip()[0], 16) for line in lines}) == 1


def test_a_mesh_does_not_change_what_is_found(lm, found):
    on_mesh = json.loads(weft("eval", lm.folder, "--json", *SPLIT)[0])
    for name in ("loss", "accuracy", "tokens", "word_perplexity"):
        assert on_mesh[name] == pytest.approx(found[name], rel=1e-5)


def test_other_checkpoints_and_other_data_are_judged(lm, found, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("the dog sat on the mat\n" * 5)
    words = ["eval", lm.folder, "--json", "--mesh", ""]
    earlier = json.loads(weft(*words, "--step", 1)[0])
    assert earlier["step"] == 1 and earlier["loss"] > found["loss"]
    elsewhere = json.loads(weft(*words, "--data", other)[0])
    assert elsewhere["tokens"] == other.stat().st_size
    printed, said = weft(*words, "--data", lm.folder.parent / "text.txt", "--set", "eval.batches=1")
    assert json.loads(printed)["tokens"] == 16 * 32
    assert said == f"warning: {lm.folder} has learned from text.txt: this is no loss on unseen data\n"


def test_what_cannot_be_judged(lm, tmp_path):
    fact, _, fix = error_of("eval", lm.folder, "--set", "data.held_out=0")
    assert fact == f"nothing is held out of the data of {lm.folder} so" and "leave --set out" in fix
    assert "is no key of a run" in error_of("eval", lm.folder, "--set", "eval.batchs=3")[0]
    assert "there is no" in error_of("eval", lm.folder, "--data", tmp_path / "nothing.txt")[0]
    fact, _, fix = error_of("eval", lm.folder, "--set", 'eval.metrics=["bleu"]')
    assert "the data are no pairs" in fact and "`eval.metrics`" in fix


@pytest.fixture
def all_learned(lm, tmp_path):
    """A run that held nothing out."""
    folder = shutil.copytree(lm.folder, tmp_path / "run")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("held_out = 0.05", "held_out = 0"))
    return folder


def test_a_run_is_not_judged_by_what_it_learned_from(all_learned):
    fact, _, fix = error_of("eval", all_learned)
    assert fact == f"nothing was held out of the data of {all_learned}: it has learned from all of them"
    assert f"weft eval {all_learned} --data FILE" in fix and "held_out" not in fix
    fact, where, fix = error_of("eval", all_learned, "--set", "data.held_out=0.05")
    assert fact == f"`data.held_out` is 0.05: {all_learned} has learned from these data, from all of them"
    assert where == "at --set data.held_out" and "--data FILE" in fix and "held_out" not in fix


def test_more_is_not_held_out_than_was(lm):
    fact, _, _ = error_of("eval", lm.folder, "--set", "data.held_out=0.5")
    assert "and 0.05 was held out of them" in fact
    fact, _, _ = error_of("eval", lm.folder, "--set", "data.held_out=10")  # tokens, and it was a share
    assert "and 0.05 was held out of them" in fact


def test_a_run_without_tokenizer_or_data_is_not_judged_by_bytes(lm, tmp_path):
    run = Run.create(tmp_path / "imported", models.init(lm.config, jax.random.key(0)))
    fact, _, fix = error_of("eval", run.folder)
    assert fact == f"the run {run.folder} names no data to judge it by" and "--data FILE" in fix
    text = lm.folder.parent / "text.txt"
    fact, state, fix = error_of("eval", run.folder, "--data", text)
    assert fact == f"the run {run.folder} has no tokenizer, and {text} is text"
    assert "tokenizer.json" in state and "--set tokenizer.path=FOLDER" in fix
