"""A run that was stopped goes on as if it had not been, on the same mesh or on another."""

import shutil

import pytest

from weft.train.config import ConfigError
from weft.train.interface import TrainingError
from weft.train.runs import Run, RunError
from weft.train.start import first_weights
from weft.train.trainer import Options

from .running import BOTH, MODEL, config_of, losses, run, sums

OTHERS = {
    "one processor": {"mesh": "", "layout": ""},
    "fully sharded": {"mesh": "x=8", "layout": "batch:x,params.d_model:x"},
}


def test_a_run_that_crashed_ends_with_the_same_bits(text, straight, tmp_path):
    outcome, _ = run(config_of(text), tmp_path, crash_at=5)
    assert outcome is None
    outcome, heard = run(config_of(text), tmp_path)
    assert outcome.step == 8 and "goes on from step 4" in heard.messages
    assert sums(tmp_path, 8) == sums(straight, 8)
    assert losses(tmp_path) == losses(straight)


@pytest.mark.parametrize("other", ["one processor", pytest.param("fully sharded", marks=pytest.mark.slow)])
def test_a_state_is_bit_equal_on_another_mesh_and_goes_on_there(other, text, straight, tmp_path):
    run(config_of(text), tmp_path, crash_at=5)
    began = sums(tmp_path, 4)
    outcome, heard = run(config_of(text, **OTHERS[other]), tmp_path)
    assert outcome.step == 8 and any("mesh" in message for message in heard.messages)
    assert began == sums(straight, 4)
    found, wanted = losses(tmp_path), losses(straight)
    assert [found[step] for step in (1, 2, 3, 4)] == [wanted[step] for step in (1, 2, 3, 4)]
    assert found[5] == pytest.approx(wanted[5], rel=1e-5)
    assert found[8] == pytest.approx(wanted[8], rel=1e-4)


@pytest.mark.slow
def test_8_bit_moments_go_on_with_the_same_bits(text, tmp_path):
    """Saved at step 2 under one layout; codes and scales come back as they were, and go on under another."""
    own = {"optimizer": {"name": "adamw8bit", "block_size": 16}, "model": {"d_model": 64, "d_ff": 64}}
    own |= {"train": {"steps": 4}, "mesh": "x=2", "layout": "batch:x,optimizer.d_ff:x"}
    other = own | {"layout": "batch:x,params.d_model:x"}
    run(config_of(text, **own), tmp_path / "whole")
    run(config_of(text, **own), tmp_path / "again", crash_at=3)
    shutil.copytree(tmp_path / "again", tmp_path / "other")
    run(config_of(text, **own), tmp_path / "again")
    assert sums(tmp_path / "again", 4) == sums(tmp_path / "whole", 4)
    outcome, _ = run(config_of(text, **other), tmp_path / "other")
    assert outcome.step == 4 and losses(tmp_path / "other") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.slow
def test_a_run_goes_on_with_its_state_on_the_host_and_back(text, straight, tmp_path):
    """Saved at step 4 in the processors' memory, at step 6 on the host; sums of bits are held to where it is read."""
    on_host = {"mesh": BOTH["mesh"], "layout": f"{BOTH['layout']},params.*:host"}
    run(config_of(text), tmp_path, crash_at=5)
    run(config_of(text, **on_host), tmp_path, crash_at=7)
    outcome, heard = run(config_of(text), tmp_path)
    assert outcome.step == 8 and "goes on from step 6" in heard.messages
    assert losses(tmp_path) == pytest.approx(losses(straight), rel=1e-6)


def test_a_finished_run_says_so_and_does_nothing(text, straight):
    before = (straight / "metrics.jsonl").read_bytes()
    outcome, _ = run(config_of(text), straight)
    assert outcome.was_finished and outcome.step == 8
    assert (straight / "metrics.jsonl").read_bytes() == before


def test_what_changes_the_learning_stops_unless_told_otherwise(text, straight):
    other = config_of(text, seed=3, train={"steps": 9})
    with pytest.raises(ConfigError) as caught:
        run(other, straight)
    assert "seed: 0, now 3" in str(caught.value) and "train.steps: 8, now 9" in str(caught.value)
    assert "--changed" in caught.value.fix
    outcome, heard = run(other, straight, options=Options(changed=True))
    assert outcome.step == 9 and any("seed: 0, now 3" in message for message in heard.messages)


def test_a_run_in_other_stages_does_not_go_on_and_begins_with_the_weights(text, straight, tmp_path):
    shutil.copytree(straight, tmp_path / "uncut")
    cut = config_of(text, model={**MODEL, "stages": 2}, train={"steps": 50})
    with pytest.raises(TrainingError) as caught:
        run(cut, tmp_path / "uncut", options=Options(changed=True))
    assert caught.value.fact.startswith("`model.stages` was 1 and is 2, and a checkpoint keeps its stages: `")
    assert "go on with `model.stages = 1`" in caught.value.fix
    assert f'`init_from = "{tmp_path / "uncut"}"`' in caught.value.fix
    cut = config_of(text, model={**MODEL, "stages": 2}, init_from=str(tmp_path / "uncut"))
    first_weights(cut, *cut.runs_on)


def test_a_broken_checkpoint_is_named_and_the_one_before_it_taken(text, straight, tmp_path):
    run(config_of(text), tmp_path, crash_at=7)
    files = [path for path in (tmp_path / "checkpoints" / "6" / "arrays").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    for place in range(0, len(content), 97):
        content[place] ^= 0x55
    largest.write_bytes(content)
    _, heard = run(config_of(text), tmp_path)
    assert any("checkpoints/6" in message and "broken" in message for message in heard.messages)
    assert "goes on from step 4" in heard.messages
    assert sums(tmp_path, 8) == sums(straight, 8)


def test_a_file_that_is_cut_is_named(text, tmp_path):
    run(config_of(text), tmp_path, crash_at=5)
    files = [path for path in (tmp_path / "checkpoints" / "4" / "arrays").rglob("*") if path.stat().st_size > 100]
    files[0].write_bytes(files[0].read_bytes()[:50])
    _, heard = run(config_of(text), tmp_path, crash_at=5)
    assert any(files[0].name in message and "50 bytes" in message for message in heard.messages)
    assert "goes on from step 2" in heard.messages


def test_what_was_half_written_is_passed_over_and_removed(text, tmp_path):
    run(config_of(text), tmp_path, crash_at=5)
    (tmp_path / "checkpoints" / "4" / "checkpoint.json").unlink()
    _, heard = run(config_of(text), tmp_path, crash_at=5)
    assert "goes on from step 2" in heard.messages
    assert Run(tmp_path).checkpoints.steps == [2, 4]


def test_two_processes_do_not_train_in_one_folder(text, tmp_path):
    from weft.train.runs import Lock

    tmp_path.joinpath("run").mkdir()
    with Lock(tmp_path / "run"), pytest.raises(RunError) as caught:
        run(config_of(text), tmp_path / "run")
    assert "another process is training" in caught.value.fact
