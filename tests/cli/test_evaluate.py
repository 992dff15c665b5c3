"""`weft eval`: a checkpoint judged by what it has not learned from, on any mesh."""

import json

import pytest

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
    some = json.loads(weft(*words, "--data", lm.folder.parent / "text.txt", "--set", "eval.batches=1")[0])
    assert some["tokens"] == 16 * 32


def test_what_cannot_be_judged(lm, tmp_path):
    fact, _, fix = error_of("eval", lm.folder, "--set", "data.held_out=0")
    assert fact == f"nothing was held out of the data of {lm.folder}" and "--data PATH" in fix
    assert "is no key of a run" in error_of("eval", lm.folder, "--set", "eval.batchs=3")[0]
    assert "there is no" in error_of("eval", lm.folder, "--data", tmp_path / "nothing.txt")[0]
    fact, _, fix = error_of("eval", lm.folder, "--set", 'eval.metrics=["bleu"]')
    assert "the data are no pairs" in fact and "`eval.metrics`" in fix
