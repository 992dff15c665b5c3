"""A run begins with new weights, with Hugging Face's or with another run's, and trains all, some, or thin ones."""

from pathlib import Path

import numpy as np
import pytest

from tests.interop.folders import FIXTURES, changed, loaded
from weft import data, nn
from weft.layout import as_layout
from weft.mesh import as_mesh
from weft.nn.freezing import tensors_by_path
from weft.train.checkpoints import Checkpoints
from weft.train.config import ConfigError, parse
from weft.train.folder import Folder
from weft.train.keys import lines_of
from weft.train.runs import Run
from weft.train.start import first_weights
from weft.train.step import arrays_of

from .running import config_of, run, text_in

GPT2 = FIXTURES / "gpt2"
ALONE = {"mesh": "", "layout": ""}
EVERY = {"every": 1, "keep": 9}


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    """Tokens that the small models there are know."""
    path = tmp_path_factory.mktemp("ids") / "ids.npy"
    np.save(path, np.random.default_rng(0).integers(0, 60, 4000).astype("uint16"))
    return path


def started(start, ids, *, model=None, **changes):
    """The configuration of a run from given weights, whose model is theirs but for what is said."""
    values = config_of(ids, **{"train": {"steps": 3}, **ALONE, **changes}).to_dict()
    values |= {"init_from": str(start), "model": model or {}}
    return parse(values, lines_of(Path("run.toml"), ""))


def first(config):
    """The weights before the first step by path."""
    return tensors_by_path(first_weights(config, as_mesh("all=1"), as_layout("batch:all")))


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for path, x in wanted.items():
        np.testing.assert_array_equal(found[path].array, x.array, err_msg=path)


def moved(folder):
    """The weights that are not the same after every step."""
    sums = [Run(folder).checkpoints.metadata(step)["sums"] for step in (1, 2, 3)]
    return {path.removeprefix("params.") for path in sums[0] if len({x[path] for x in sums}) > 1 and "params." in path}


# Weights that are given.


def test_a_run_begins_with_hugging_faces_weights_and_their_model(ids):
    config = started(GPT2, ids, train={"length": 32})
    assert (config.model.d_model, config.model.layers, config.model.vocab) == (16, 2, 63)
    assert_same(first(config), tensors_by_path(loaded("gpt2")))


def test_shorter_sequences_leave_all_positions_as_they_are(ids):
    found, wanted = first(started(GPT2, ids, train={"length": 20})), tensors_by_path(loaded("gpt2"))
    table = "positions.table"
    np.testing.assert_array_equal(found.pop(table).array, wanted.pop(table).array)
    assert_same(found, wanted)


def test_the_model_may_differ_in_what_is_no_weight(ids):
    config = started(GPT2, ids, model={"dropout": 0.3}, train={"length": 32})
    assert config.model.dropout == 0.3
    assert_same(first(config), tensors_by_path(loaded("gpt2")))


@pytest.fixture(scope="module")
def lora(ids, tmp_path_factory):
    """A run of three steps with LoRA adapters beside GPT-2's, on 8 processors."""
    folder = tmp_path_factory.mktemp("lora")
    both = {"mesh": "rows=2,cols=4", "layout": "batch:rows,heads:cols,d_ff:cols,vocab:cols"}
    outcome, _ = run(started(GPT2, ids, lora={"rank": 2}, checkpoint=EVERY, **both), folder)
    assert outcome.is_finished
    return folder


@pytest.mark.slow
def test_only_adapters_are_trained_beside_frozen_weights(lora):
    thin = {f"decoder.layers.attention.{name}.{part}" for name in "qv" for part in ("down", "up")}
    assert moved(lora) == thin
    kept = tensors_by_path(Run(lora).load())
    np.testing.assert_array_equal(
        kept["decoder.layers.attention.q.weight"].array,
        tensors_by_path(loaded("gpt2"))["decoder.layers.attention.q"].array,
    )


def test_a_run_begins_with_another_runs_weights_where_thin_ones_are_folded_in(lora, ids):
    wanted = tensors_by_path(nn.lora.merge(Run(lora).load()))
    assert_same(first(started(lora, ids)), wanted)
    assert any(
        (x.array != tensors_by_path(loaded("gpt2"))[path].array).any() for path, x in wanted.items() if "q" in path
    )


@pytest.mark.parametrize(
    ("model", "changes", "fact", "fix"),
    [
        ({"layers": 3}, {}, "`decoder.layers.attention.k` is [layers=2", "leave out what `model` changes"),
        ({"vocab": 100}, {}, "`embedding.table` is [vocab=63", "what `model` changes"),
        ({"tied": False}, {}, "has no `softmax.table`", "what `model` changes"),
        ({}, {"train": {"length": 64}}, "`positions.table` is [positions=32", "`train.length`"),
    ],
)
def test_weights_that_do_not_fit_are_named(ids, model, changes, fact, fix):
    with pytest.raises(ConfigError) as caught:
        first(started(GPT2, ids, model=model, **changes))
    assert fact in caught.value.fact and fix in caught.value.fix


def test_weights_that_are_not_there_are_named(ids, tmp_path):
    with pytest.raises(ConfigError, match=r"`init_from`: there is no folder nowhere"):
        started("nowhere", ids)
    with pytest.raises(ConfigError) as caught:
        started(tmp_path, ids)
    assert "config.json" in caught.value.fact and "model.safetensors" in caught.value.fix
    with pytest.raises(ConfigError, match=r"`model`: a model has no `laers`"):
        started(GPT2, ids, model={"laers": 3})


def test_a_vocabulary_that_does_not_hold_the_datas_is_named_before_anything_is_learned(tmp_path):
    with pytest.raises(ConfigError) as caught:
        run(started(GPT2, text_in(tmp_path)), tmp_path / "run")
    assert f"tokenizer has 256 ids, and the weights of {GPT2} know 63" in caught.value.fact
    assert f'`[tokenizer]` with `path = "{GPT2}"`' in caught.value.fix  # no `vocab = 256`: these are the weights' own


def test_weights_of_another_tokenizer_are_said_to_be(ids, tmp_path):
    start, said = changed(tmp_path, "gpt2"), []
    opened = Folder(
        tmp_path, Checkpoints(tmp_path / "checkpoints"), started(start, ids), may_change=False, say=said.append
    )
    for theirs, own in ((True, True), (True, False)):
        data.ByteTokenizer(specials=theirs).save(start)
        opened.check_data(data.ByteTokenizer(specials=own))
    assert len(said) == 1 and "ANOTHER TOKENIZER, of 259 ids" in said[0] and f'tokenizer = "{start}"' in said[0]


# Some of the weights, and their average.


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    train = {"steps": 3, "freeze": ["embedding.*", "*.attention.*"], "average": 0.75}
    outcome, _ = run(config_of(text_in(folder), train=train, checkpoint=EVERY), folder / "run")
    assert outcome.is_finished
    return folder / "run"


def test_what_is_frozen_stays(frozen):
    paths = set(tensors_by_path(Run(frozen).load()))
    stays = {path for path in paths if path.startswith("embedding") or ".attention." in path}
    assert stays and moved(frozen) == paths - stays


def test_the_average_is_what_is_loaded_and_its_formula_holds_over_the_checkpoints(frozen):
    own = Run(frozen)
    like = {f"params.{path}": x for path, x in arrays_of(own.load()).items()}
    steps = [own.checkpoints.load(step, like) for step in (1, 2, 3)]
    means = [arrays_of(own.load(step=step)) for step in (1, 2, 3)]
    for path in means[0]:
        for before, mean, now in zip(means, means[1:], steps[1:], strict=False):
            wanted = 0.75 * np.asarray(before[path]) + 0.25 * np.asarray(now[f"params.{path}"])
            np.testing.assert_allclose(mean[path], wanted, rtol=1e-6, atol=1e-7, err_msg=path)
