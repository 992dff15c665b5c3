"""A model and data of one's own in the trainer: the loop, checkpoints, exact resume, evaluation, export."""

import json
import os
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import weft as wf
from weft import data, interop, nn
from weft.data.streams import StreamBatches
from weft.train import Run
from weft.train.config import ConfigError, parse
from weft.train.keys import lines_of
from weft.train.own.code import CodeError
from weft.train.own.copies import keep_code
from weft.train.own.trust import TrustError
from weft.train.start import first_weights
from weft.train.trainer import Options

from . import own_net
from .running import losses, run, sums

HERE = Path(__file__).parent
TABLES = {
    "model": {"call": "own_net.py:make", "width": 16},
    "data": {"call": "own_net.py:dataset"},
    "train": {"steps": 8, "batch": 8, "log_every": 1},
    "schedule": {"rate": 1e-2},
    "eval": {"every": 0},
    "checkpoint": {"every": 2},
}
BOTH = {"mesh": "x=2,y=2", "layout": "batch:x,hidden:y,params.features:x"}


def config_of(folder=HERE, **changes):
    values = {**TABLES, **BOTH}
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return parse(values, lines_of(folder / "run.toml", ""))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The folder of a run that went to its end at once."""
    folder = tmp_path_factory.mktemp("own")
    outcome, _ = run(config_of(), folder)
    assert outcome.is_finished
    return folder


def test_a_run_that_crashed_ends_with_the_same_bits(straight, tmp_path):
    run(config_of(), tmp_path, crash_at=5)
    outcome, heard = run(config_of(), tmp_path)
    assert outcome.step == 8 and "goes on from step 4" in heard.messages
    assert sums(tmp_path, 8) == sums(straight, 8)
    assert losses(tmp_path) == losses(straight)


def test_one_processor_learns_the_same(straight, tmp_path):
    run(config_of(mesh="", layout=""), tmp_path)
    found, wanted = losses(tmp_path), losses(straight)
    assert list(found) == list(wanted)
    assert list(found.values()) == pytest.approx(list(wanted.values()), rel=1e-4)
    assert min(wanted.values()) < 0.8 * wanted[1]


def test_evaluation_counts_every_row_once(straight, tmp_path):
    """21 rows in batches of 8: the last five are a batch of four, and one that no axis splits."""
    outcome, heard = run(config_of(eval={"every": 8}), tmp_path)
    assert outcome.is_finished
    found = heard.rows[-1]["eval"]
    model, rows = Run(tmp_path).load(), own_net.dataset("evaluation")
    batch = {
        "points": wf.tensor(rows.points.astype("float32"), "batch features"),
        "label": wf.tensor(rows.label.astype("int32"), "batch"),
    }
    loss, metrics = model.loss(batch, None)
    assert found["rows"] == 21
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float(metrics["accuracy"]), rel=1e-5)


@pytest.mark.slow
def test_gradient_accumulation_changes_no_step(straight, tmp_path):
    plain, parts = ({"model": {"rate": 0.0}, "train": {"steps": 3, "microbatches": n}} for n in (1, 2))
    run(config_of(**plain), tmp_path / "plain")
    run(config_of(**parts), tmp_path / "parts")
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "plain"), rel=1e-5)


def test_weights_are_exported_by_their_paths_and_read_back(straight, tmp_path):
    from safetensors.numpy import load_file

    model = Run(straight).load("x=2", "hidden:x")
    interop.save_weights(model, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert set(found) == {"first.weight", "first.bias", "second.weight"}
    np.testing.assert_array_equal(found["first.weight"], wf.get(model.first.weight))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dims"]["first.weight"] == "features hidden"
    again = interop.load_weights(own_net.make(), tmp_path / "out", "x=2,y=2", "hidden:x,params.features:y")
    assert again.first.weight.array.sharding.spec == jax.sharding.PartitionSpec("y", "x")
    np.testing.assert_array_equal(wf.get(again.second.weight), found["second.weight"])
    with pytest.raises(interop.WeightsError, match="is \\[features=8 hidden=32\\] in the module"):
        interop.load_weights(own_net.make(32), tmp_path / "out")
    with pytest.raises(interop.WeightsError, match="has no weight `bias`"):
        interop.load_weights(nn.Linear(own_net.FEATURES, own_net.CLASSES, bias=True), tmp_path / "out")


def test_a_run_keeps_its_code_and_opens_by_it_when_it_is_moved(straight, tmp_path, monkeypatch):
    shutil.copytree(straight, tmp_path / "moved")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nobody"))
    note = tmp_path / "moved" / "code" / "origin.json"
    note.write_text(json.dumps({"model": "/nowhere/own_net.py", "data": "/nowhere/own_net.py"}))
    with pytest.raises(TrustError) as caught:
        Run(tmp_path / "moved").load()
    copy = tmp_path / "moved" / "code" / "model" / "own_net.py"
    assert caught.value.fact == f"{tmp_path}/moved/config.toml runs code that you have not run before: {copy}"
    assert "--trust" in caught.value.fix
    asked = []
    with pytest.raises(TrustError):
        Run(tmp_path / "moved", trust=lambda fact: asked.append(fact)).load()
    assert asked == [caught.value.fact]
    assert Run(tmp_path / "moved", trust=True).load().second.weight.dims.names == ("hidden", "classes")


def test_what_it_has_run_before_is_known(straight, tmp_path):
    shutil.copytree(straight, tmp_path / "copied")
    assert Run(tmp_path / "copied").settings.model.param_count == 8 * 16 + 16 + 16 * 4


def test_a_file_of_another_user_is_asked_about(tmp_path, monkeypatch):
    shutil.copy(HERE / "own_net.py", tmp_path)
    owner = (tmp_path / "own_net.py").stat().st_uid
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(TrustError, match="that you have not run before"):
        config_of(tmp_path)
    asked = []
    values = {**TABLES, **BOTH}
    parse(values, lines_of(tmp_path / "run.toml", ""), trust=lambda fact: asked.append(fact) or True)
    assert len(asked) == 1
    config_of(tmp_path)  # known from now on
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    config_of(tmp_path)


def test_other_code_does_not_go_on_unless_told(straight, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    (tmp_path / "own_net.py").write_text((HERE / "own_net.py").read_text() + "\n# another\n")
    with pytest.raises(ConfigError) as caught:
        run(config_of(tmp_path, train={"steps": 9}), tmp_path / "run")
    assert caught.value.fact == f"{tmp_path}/run was begun with other code: own_net.py is another"
    outcome, heard = run(config_of(tmp_path, train={"steps": 9}), tmp_path / "run", options=Options(changed=True))
    assert outcome.step == 9 and "goes on with other code: own_net.py is another" in heard.messages
    assert "# another" in (tmp_path / "run" / "code" / "model" / "own_net.py").read_text()
    assert Run(tmp_path / "run").config.call.file == tmp_path / "own_net.py"


def test_what_a_file_imports_from_beside_it_is_kept_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "loom").mkdir()
    (tmp_path / "loom" / "__init__.py").write_text("from .deep import WIDTH\n")
    (tmp_path / "loom" / "deep.py").write_text("WIDTH = 8\n")
    (tmp_path / "unused.py").write_text("WIDTH = 9\n")
    text = "import numpy\nfrom loom import WIDTH\nfrom tests.train import own_net\n\n"
    (tmp_path / "woven_net.py").write_text(f"{text}def make():\n    return own_net.make(WIDTH)\n")
    values = {**TABLES, "model": {"call": "woven_net.py:make"}, "data": {"call": f"{HERE}/own_net.py:dataset"}}
    config = parse(values, lines_of(tmp_path / "run.toml", ""))
    assert sorted(config.model.call.sources()) == ["loom/__init__.py", "loom/deep.py", "woven_net.py"]
    keep_code(tmp_path / "run", [config.model.call])
    copies = [path.relative_to(tmp_path / "run").as_posix() for path in sorted((tmp_path / "run").rglob("*.py"))]
    assert copies == [f"code/model/{name}" for name in ("loom/__init__.py", "loom/deep.py", "woven_net.py")]


# Rows that come one after the other.

FLOW = {"data": {"call": "own_net.py:flow"}}


def test_a_stream_goes_on_from_its_state_with_the_same_bits(tmp_path):
    run(config_of(**FLOW), tmp_path / "straight")
    run(config_of(**FLOW), tmp_path / "again", crash_at=5)
    outcome, heard = run(config_of(**FLOW), tmp_path / "again")
    assert outcome.step == 8 and "goes on from step 4" in heard.messages
    assert sums(tmp_path / "again", 8) == sums(tmp_path / "straight", 8)
    assert losses(tmp_path / "again") == losses(tmp_path / "straight")


@pytest.mark.slow
def test_a_stream_is_evaluated_to_its_end(tmp_path):
    _, heard = run(config_of(**FLOW, train={"steps": 1}, eval={"every": 1}), tmp_path)
    assert heard.rows[-1]["eval"]["rows"] == 10


def test_a_stream_reaches_a_batch_from_any_state_before_it():
    stream = config_of(**FLOW).own_data.training
    rows = np.arange(8)
    batches = StreamBatches(stream, batch=8, rows=rows)
    wanted = [next(batches)["points"] for _ in range(5)]
    state = batches.state
    batches.close()
    assert state["step"] == 5
    np.testing.assert_array_equal(batches.at(2)["points"], wanted[2])
    batches.seek(1)
    np.testing.assert_array_equal(next(batches)["points"], wanted[1])
    batches.close()
    later = StreamBatches(stream, batch=8, rows=rows)
    later.seek(6, state)
    batches.seek(6)
    np.testing.assert_array_equal(next(later)["points"], next(batches)["points"])
    later.close(), batches.close()


def test_a_stream_without_a_state_goes_on_only_where_that_is_said(tmp_path):
    stateless = {"data": {"call": "own_net.py:stateless"}}
    with pytest.raises(CodeError) as caught:
        run(config_of(**stateless), tmp_path)
    assert caught.value.fact.startswith("`own_net.py:stateless` gave Stateless, which has no `state()` and `restore(")
    assert caught.value.fix.endswith('or say `resume = "approximate"` in `[data]`')
    roughly = {"data": {"call": "own_net.py:stateless", "resume": "approximate"}}
    run(config_of(**roughly), tmp_path / "run", crash_at=5)
    outcome, heard = run(config_of(**roughly), tmp_path / "run")
    assert outcome.is_finished and any("THE DATA BEGIN ANEW" in message for message in heard.messages)
    with pytest.raises(ConfigError, match="is 'rough'"):
        config_of(data={"call": "own_net.py:stateless", "resume": "rough"})


def test_a_stream_that_does_not_go_on_from_its_state_is_found_out(tmp_path):
    with pytest.raises(data.DataError) as caught:
        run(config_of(data={"call": "own_net.py:late"}), tmp_path)
    assert "`own_net.py:late` does not go on from its state: restored after 3 rows, row 4 has another `points`" in (
        caught.value.fact
    )
    assert "count a row before it is given" in caught.value.fix
    with pytest.raises(data.DataError, match="which JSON does not take"):
        run(config_of(data={"call": "own_net.py:numbered"}), tmp_path)


@pytest.mark.slow
def test_a_model_of_the_library_reads_rows_of_ones_own(tmp_path):
    model = {"preset": "tiny-lm", "layers": 1, "d_model": 16, "heads": 2, "d_kv": 8, "d_ff": 16, "vocab": 16}
    values = {**TABLES, "model": model, "data": {"call": "own_net.py:tokens"}, "mesh": "x=2", "layout": "batch:x"}
    values |= {"train": {"steps": 2, "batch": 4, "length": 8, "log_every": 1}, "eval": {"every": 2}}
    _, heard = run(parse(values, lines_of(HERE / "run.toml", "")), tmp_path)
    found = heard.rows[-1]["eval"]
    assert found["tokens"] == 40  # five rows of eight: those that fill the last batch up count nothing


@pytest.mark.slow
def test_a_model_of_ones_own_reads_texts(tmp_path):
    (tmp_path / "words.txt").write_text("warp and weft\n" * 200)
    text = "import equinox as eqx\nimport weft as wf\nfrom weft import nn\n\nclass Bigram(eqx.Module):\n"
    text += "    table: nn.Embedding\n\n    def __init__(self):\n"
    text += "        self.table = nn.Embedding(wf.Dim('vocab', 256), wf.Dim('next', 256), stddev=0.1)\n\n"
    text += "    def loss(self, batch, key):\n"
    text += "        logits = self.table(batch['inputs']).rename(next='vocab')\n"
    text += "        losses = nn.cross_entropy(logits, batch['targets'])[0] * batch['weights']\n"
    text += "        weight = wf.sum(batch['weights'], over='batch length')\n"
    text += "        return wf.sum(losses, over='batch length') / weight, {'weight': weight}\n"
    (tmp_path / "bigram.py").write_text(text)
    values = {**TABLES, "model": {"call": "bigram.py:Bigram"}, "data": {"path": str(tmp_path / "words.txt")}}
    values |= {"mesh": "x=2,y=2", "layout": "batch:x,vocab:y", "eval": {"every": 0}}
    with pytest.raises(ConfigError, match="is not said"):
        run(parse(values, lines_of(tmp_path / "run.toml", "")), tmp_path / "run")
    values["train"] = {"steps": 10, "batch": 8, "length": 16, "log_every": 1}
    run(parse(values, lines_of(tmp_path / "run.toml", "")), tmp_path / "run")
    found = losses(tmp_path / "run")
    assert found[10] < found[1]


def test_weights_of_a_run_are_those_another_begins_with(straight, tmp_path):
    config = config_of(init_from=str(straight), train={"steps": 1})
    first = first_weights(config, *config.runs_on)
    np.testing.assert_array_equal(wf.get(first.first.weight), wf.get(Run(straight).load().first.weight))
    with pytest.raises(ConfigError, match="leave out what `model` changes"):
        wider = config_of(init_from=str(straight), model={"width": 32})
        first_weights(wider, *wider.runs_on)
