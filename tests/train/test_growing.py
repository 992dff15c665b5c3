"""A run on a folder that grows goes on with the very batches it had."""

import shutil

import pytest

from .running import config_of, losses, run, sums


def grown(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.txt").write_text(f"{name} weft " * 60)


@pytest.mark.slow
def test_a_run_that_crashed_after_files_came_ends_with_the_same_bits(tmp_path):
    def config(text):
        how = {"data": {"grows": True, "held_out": 0}, "train": {"steps": 16}, "model": {"layers": 1}}
        return config_of(text, **how, mesh="", layout="")

    grown(tmp_path / "a", "one", "two")
    run(config(tmp_path / "a"), tmp_path / "run", crash_at=12)  # in its second epoch
    grown(tmp_path / "a", "three")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    shutil.rmtree(tmp_path / "other/cache")
    for folder in ("run", "other"):
        outcome, heard = run(config(tmp_path / "a"), tmp_path / folder)
        assert outcome.is_finished and "goes on from step 10" in heard.messages
    assert sums(tmp_path / "run", 16) == sums(tmp_path / "other", 16)
    assert losses(tmp_path / "run") == losses(tmp_path / "other")
