"""`weft import` and `weft export`: from Hugging Face's files to a run and back, bit for bit."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import weft as wf
from tests.data.test_tokenizers import gpt2_files
from weft import interop, models
from weft.train import Run

from .command import error_of, started, weft

FIXTURES = Path(__file__).parents[1] / "interop" / "fixtures"
LAYOUT = ["--mesh", "rows=2,cols=4", "--layout", "heads:cols,vocab:rows,params.d_model:rows"]


@pytest.mark.parametrize(("name", "where"), [("t5", LAYOUT), ("llama", []), ("switch", [])])
def test_what_is_imported_and_exported_again_is_the_same_bit_for_bit(name, where, tmp_path):
    printed, said = weft("import", FIXTURES / name, tmp_path / "run", *where)
    count = interop.read_config(FIXTURES / name).param_count
    assert f"{count:,} parameters in float32" in printed and printed.endswith("as step 0\n")
    assert said == ""
    printed, _ = weft("export", tmp_path / "run", tmp_path / "out", *where)
    assert printed.endswith(f"written to {tmp_path / 'out'}\n")
    before, after = (load_file(folder / "model.safetensors") for folder in (FIXTURES / name, tmp_path / "out"))
    assert before.keys() <= after.keys()
    for tensor, values in before.items():
        np.testing.assert_array_equal(after[tensor], values, err_msg=tensor)


def test_a_run_is_loaded_onto_any_mesh(tmp_path):
    weft("import", FIXTURES / "t5", tmp_path / "run")
    whole, split = Run(tmp_path / "run").load(), Run(tmp_path / "run").load("rows=2,cols=4", LAYOUT[-1])
    assert whole.config == interop.load(FIXTURES / "t5").config
    assert split.decoder.layers.attention.q.raw.sharding.shard_shape((2, 16, 4, 4)) == (2, 8, 1, 4)
    for one, other in zip(wf.nn.paths(whole), wf.nn.paths(split), strict=True):
        assert one == other
    inputs = np.array([[3, 4, 5, 6]] * 2)
    np.testing.assert_allclose(split.logits(inputs, inputs), whole.logits(inputs, inputs), rtol=1e-5, atol=1e-5)


def test_it_runs_as_a_user_starts_it(tmp_path):
    with started("import", FIXTURES / "gpt2", tmp_path / "run") as process:
        _, said = process.communicate()
    assert process.returncode == 0, said
    assert said == ""
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoints", "config.toml", "hugging_face"]


def test_a_tokenizer_in_two_files_is_imported_and_exported_again(tmp_path):
    folder = tmp_path / "theirs"
    shutil.copytree(FIXTURES / "gpt2", folder)
    gpt2_files(folder, tokenizer_class="GPT2Tokenizer", model_max_length=32)
    _, said = weft("import", folder, tmp_path / "run")
    assert said == "" and Run(tmp_path / "run").tokenizer.encode("hello") == [259]
    weft("export", tmp_path / "run", tmp_path / "out")
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    (folder / "vocab.json").write_text('{"a": 0}')
    _, said = weft("import", folder, tmp_path / "other")
    assert said.startswith("the tokenizer is not read: ") and "merges.txt:2 is no merge" in said


def test_every_configuration_is_read_back_as_it_was_written():
    for name in models.PRESETS:
        config = models.preset(name)
        assert models.from_fields(models.fields(config), where="here") == config


# What cannot be.


@pytest.fixture
def run(tmp_path):
    weft("import", FIXTURES / "gpt2", tmp_path / "run")
    return tmp_path / "run"


def test_a_folder_that_is_there_is_left_alone(run):
    fact, _, fix = error_of("import", FIXTURES / "t5", run)
    assert fact == f"{run} is there already"
    assert "name a folder that is not there" in fix
    assert Run(run).config.positions == "learned"


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda run: (run / "config.toml").unlink(), "there is no run in"),
        (lambda run: (run / "config.toml").write_text("a = = 3"), "is not TOML"),
        (lambda run: (run / "config.toml").write_text("[modle]"), "`modle` is no key of a run"),
        (lambda run: (run / "config.toml").write_text("[model]\nkind = 'ml'"), "a model of the kind 'ml'"),
        (lambda run: _edited(run, "d_ff", "d_fff"), "has `d_fff`, which a model has not"),
        (lambda run: _edited(run, "layers = 2", "layers = 4"), "is float32[2, 16]"),
        (lambda run: shutil.rmtree(run / "checkpoints" / "0"), "there is no checkpoint in"),
        (lambda run: _cut(run), "checkpoint.json is not JSON"),
    ],
)
def test_what_is_wrong_with_a_run_is_told_and_nothing_is_written(run, change, fact):
    change(run)
    told, _, fix = error_of("export", run, run.parent / "out")
    assert fact in told
    assert fix
    assert not (run.parent / "out").exists()


def _edited(run, old, new):
    path = run / "config.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def _cut(run):
    """Cuts every file of weights in half."""
    for path in (run / "checkpoints" / "0").rglob("*"):
        if path.is_file() and path.stat().st_size > 2000:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_step_that_is_not_there_is_told_with_those_that_are(run):
    fact, _, fix = error_of("export", run, run.parent / "out", "--step", 7)
    assert "there is no checkpoint of step 7" in fact
    assert fix == "there are: 0"


def test_a_mesh_needs_a_layout():
    fact, _, fix = error_of("import", "a", "b", "--mesh", "x=8")
    assert (fact, fix) == ("only one of --mesh and --layout was given", "give both, or neither")


def test_weights_that_are_wrong_leave_no_run(tmp_path):
    shutil.copytree(FIXTURES / "gpt2", tmp_path / "broken")
    path = tmp_path / "broken" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    fact, _, _ = error_of("import", tmp_path / "broken", tmp_path / "run")
    assert "model.safetensors" in fact
    assert list(tmp_path.iterdir()) == [tmp_path / "broken"]
