"""What stands in a folder already is never overwritten by a run, nor removed."""

from pathlib import Path

import pytest

from tests.errors.raised import error_of
from weft.cli.train import check_folder
from weft.errors import WeftError
from weft.notebook import Page
from weft.train.checkpoints import CheckpointError, Checkpoints
from weft.train.runs import RunError

from .running import config_of, run, text_in


def test_a_configuration_of_something_else_is_not_overwritten(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.toml").write_text("lr = 1\n")
    config = config_of(text_in(tmp_path), train={"steps": 1})
    with pytest.raises(RunError, match=r"is not what a run writes, and would be overwritten\n(.|\n)*fix: .*--run"):
        run(config, folder)
    assert (folder / "config.toml").read_text() == "lr = 1\n"


def test_a_folder_that_only_looks_like_a_checkpoint_is_not_removed(tmp_path):
    theirs = tmp_path / "5" / "pytorch_model.bin"
    theirs.parent.mkdir()
    theirs.write_bytes(b"weights")
    (tmp_path / "6").mkdir()
    with pytest.raises(CheckpointError, match=r"is no checkpoint that weft wrote: it holds `pytorch_model.bin`"):
        Checkpoints(tmp_path).remove_torn()
    assert theirs.read_bytes() == b"weights"


OTHERS = [("", "the current folder"), (".", "the current"), ("runs/a/checkpoints", "the checkpoints of runs/a")]


@pytest.mark.parametrize(("named", "what"), OTHERS)
def test_a_run_has_a_folder_of_its_own(named, what):
    error = error_of(lambda: check_folder(Path(named)), RunError)
    assert what in error.fact and "--run runs/first" in error.fix


def test_a_page_is_not_written_over_what_is_none(tmp_path):
    (tmp_path / "run.toml").write_text("steps = 1")
    error = error_of(lambda: Page("<p>").save(tmp_path / "run.toml"), WeftError)
    assert "is there already" in error.fact and (tmp_path / "run.toml").read_text() == "steps = 1"
    assert Page("<p>").save(Page("<p>").save(tmp_path / "a.html")).read_text() == "<p>"
