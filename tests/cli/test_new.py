"""`weft new`: the file it writes is read and trains; nothing is overwritten, nothing half right is written."""

import pytest
from typer.testing import CliRunner

from tests.train.toys import pairs_file, text_file
from weft.cli import app
from weft.train.config import read

from .command import error_of, weft


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ([], {"mesh": "", "layout": "", "data.path": "python", "tokenizer.kind": "bytes", "model.vocab": 256}),
        (["--mesh", "rows=2"], {"mesh": "rows=2", "layout": "auto"}),
        (["--mesh", "x=2", "--layout", "batch:x", "--steps", 7], {"layout": "batch:x", "train.steps": 7}),
        (["--model", "gpt2", "--batch", 4, "--length", 64], {"model.vocab": 32000, "model.layers": 12, "length": 64}),
        (["--model", "tiny-bert", "--rate", 0.5], {"model.vocab": 259, "schedule.rate": 0.5}),
        (["--tokenizer", "sentencepiece"], {"tokenizer.vocab": 2000, "model.vocab": 2000}),
    ],
)
def test_what_is_said_is_in_the_file_and_the_file_is_read(here, words, values):
    printed, said = weft("new", "mine.toml", *words)
    assert said == "" and printed.endswith("  weft train mine.toml\n")
    config = read("mine.toml")
    assert config.name == "mine"
    for key, value in values.items():
        found = config
        for part in key.split("."):
            found = found[part] if isinstance(found, dict) else getattr(found, part)
        assert found == value, key
    assert [path.name for path in here.iterdir()] == ["mine.toml"]


def test_a_question_is_asked_again_until_its_answer_will_do(here, monkeypatch):
    answers = ["?", "tiny-nothing", "tiny-lm", "", "bytes", "rows=2", "batch:rows", "many", "9"]
    monkeypatch.setattr("weft.cli.new.is_typed", lambda: True)
    done = CliRunner().invoke(app, ["new", "mine.toml"], prog_name="weft", input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    assert "`?` lists all" in done.output and "`mixtral-8x7b`, `moe-1t`, `mt-0.15b`" in done.stderr
    assert "there is no preset `tiny-nothing`" in done.stderr and "give a number" in done.stderr
    config = read("mine.toml")
    assert (config.train.steps, config.layout, config.data["path"]) == (9, "batch:rows", "python")


@pytest.mark.parametrize(
    ("words", "fact", "fix"),
    [
        (["mine"], "mine does not end in .toml", "name it `mine.toml`"),
        (["folder/mine.toml"], "there is no folder folder", "make it first"),
        (["mine.toml", "--model", "tiny-l"], "there is no preset `tiny-l` of a Transformer", "`tiny-lm`"),
        (["mine.toml", "--model", "unet"], "there is no preset `unet` of a Transformer", ""),
        (["mine.toml", "--data", "nowhere"], "there is no nowhere", "give a file or a folder"),
        (["mine.toml", "--mesh", "x=3", "--layout", "heads:x"], "`decoder.layers.attention.q` does not fit", "3"),
    ],
)
def test_what_cannot_train_is_not_written(here, words, fact, fix):
    found = error_of("new", *words)
    assert fact in found[0] and fix in found[2]
    assert list(here.iterdir()) == []


def test_a_file_that_is_there_is_left_as_it_is(here, monkeypatch):
    (here / "mine.toml").write_text("mine")
    assert error_of("new", "mine.toml")[0] == "mine.toml is there already"
    monkeypatch.setattr("weft.cli.new._check_place", lambda file: None)  # as if it had come just now
    assert error_of("new", "mine.toml")[0] == "mine.toml is there already"
    assert (here / "mine.toml").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-lm", "tiny-mt", "tiny-bert", "tiny-moe"])
def test_what_is_written_trains(here, model):
    path = pairs_file(here) if model == "tiny-mt" else text_file(here)
    words = ["--mesh", "rows=2", "--layout", "batch:rows", "--steps", 2, "--length", 32]
    weft("new", "mine.toml", "--model", model, "--data", path, *words)
    printed, _ = weft("train", "mine.toml")
    assert "done: step 2 of 2" in printed and (here / "runs/mine/checkpoints/2/checkpoint.json").is_file()
