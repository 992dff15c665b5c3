"""Writing: what was read comes out bit by bit, a folder is whole or not there, and what has no form is refused."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import weft as wf
from tests.errors.raised import error_of
from tests.interop.folders import FIXTURES, NAMES, changed, config, loaded, same_bits, sharded, tensors
from weft import interop, models
from weft.interop import saving

BOTH = "batch:rows,heads:cols,d_ff:cols,vocab:cols"
TOKENS = ("eos_token_id", "bos_token_id")


@pytest.mark.parametrize("name", NAMES)
def test_what_was_read_is_written_bit_by_bit(name, tmp_path):
    interop.save(loaded(name), tmp_path / name)
    assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["config.json", "model.safetensors"]
    assert same_bits(tensors(tmp_path / name), tensors(FIXTURES / name))
    assert interop.read_config(tmp_path / name) == loaded(name).config


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_says_what_the_first_one_said(name, tmp_path):
    interop.save(loaded(name), tmp_path / name)
    ours, theirs = config(tmp_path / name), config(FIXTURES / name)
    shared = [key for key in ours if key in theirs and key not in TOKENS]
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    assert len(shared) > 12


@pytest.mark.parametrize("layout", [BOTH, "batch:rows,params.d_model:cols,params.layers:rows"])
def test_what_lies_on_a_mesh_is_written_bit_by_bit(layout, tmp_path):
    model = interop.load(FIXTURES / "gpt2", "rows=2,cols=4", layout)
    interop.save(model, tmp_path / "gpt2")
    assert same_bits(tensors(tmp_path / "gpt2"), tensors(FIXTURES / "gpt2"))


def test_every_dtype_is_written_as_it_was(tmp_path):
    kinds = {"router": "float32", "embed": "float16", "shared": "float16"}
    folder = changed(
        tmp_path,
        "switch",
        cast=lambda name: next((kind for part, kind in kinds.items() if part in name), "bfloat16"),
    )
    model = interop.load(folder)
    interop.save(model, tmp_path / "again")
    assert same_bits(tensors(tmp_path / "again"), tensors(folder))
    assert config(tmp_path / "again")["torch_dtype"] == "float16"


def test_large_models_are_written_in_several_files(tmp_path):
    interop.save(loaded("t5.1.1"), tmp_path / "t5", shard_bytes=20_000)
    index = json.loads((tmp_path / "t5" / "model.safetensors.index.json").read_text())
    found = sorted((tmp_path / "t5").glob("model-*.safetensors"))
    assert [path.name for path in found] == [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    original = tensors(FIXTURES / "t5.1.1")
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in original.values())
    for path in found:
        held = load_file(path)
        assert sum(array.nbytes for array in held.values()) <= 20_000
        assert all(index["weight_map"][name] == path.name for name in held)
    assert same_bits(tensors(tmp_path / "t5"), original)
    assert interop.read_config(tmp_path / "t5") == interop.read_config(FIXTURES / "t5.1.1", name="t5")


def test_a_model_from_several_files_is_the_same(tmp_path):
    interop.save(interop.load(sharded(tmp_path, "llama")), tmp_path / "one")
    assert same_bits(tensors(tmp_path / "one"), tensors(FIXTURES / "llama"))


@pytest.mark.quick("t5-small-changes0", "t5.1.1-small-changes1", "gpt2-changes2", "llama-1b-changes4")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("t5-small", {}),
        ("t5.1.1-small", {}),
        ("gpt2", {}),
        ("llama-1b", {"rotary_stretch": 32.0}),
        ("llama-1b", {"bias": "q k v o", "tied": True, "tied_scale": False}),
        ("t5-small", {"experts": 4, "every": 2}),
        ("t5-small", {"experts": 4, "tied": False}),
        ("t5-small", {"gated": True, "activation": "gelu"}),
    ],
)
def test_a_model_made_here_is_written_and_read_again(name, changes, tmp_path):
    sizes = dict(layers=2, d_model=8, heads=2, d_kv=4, d_ff=12, vocab=30, length=16, capacity=1.5, dropout=0.1)
    made = models.preset(name, dtype="float32", **(sizes | changes))
    model = models.init(made, jax.random.key(0))
    interop.save(model, tmp_path / "made")
    again = interop.load(tmp_path / "made")
    assert (again.config.param_count, again.config.activation) == (made.param_count, made.activation)
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(again), strict=True):
        rows = slice(0, 30) if 128 in a.shape else slice(None)  # the padding of the vocab is not written
        np.testing.assert_array_equal(np.asarray(a)[rows], np.asarray(b)[rows])


def test_the_room_of_an_expert_is_that_at_the_models_length(tmp_path):
    sizes = dict(layers=2, d_model=8, heads=2, d_kv=4, d_ff=12, vocab=30, length=16, experts=4, capacity=1.5)
    interop.save(models.init(models.preset("t5-small", **sizes), jax.random.key(0)), tmp_path / "made")
    assert config(tmp_path / "made")["expert_capacity"] == 6


def test_more_keys_are_added_to_the_configuration(tmp_path):
    interop.save(loaded("llama"), tmp_path / "llama", keys={"eos_token_id": 2, "bos_token_id": 1})
    assert (config(tmp_path / "llama")["eos_token_id"], config(tmp_path / "llama")["bos_token_id"]) == (2, 1)


# A folder is whole, or not there.


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    calls = []

    def interrupted(array, places):
        calls.append(places)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return np.asarray(array[places])

    monkeypatch.setattr(saving, "_gather", interrupted)
    with pytest.raises(KeyboardInterrupt):
        interop.save(loaded("llama"), tmp_path / "llama")
    assert list(tmp_path.iterdir()) == [] and len(calls) == 7


def test_one_tensor_is_held_at_a_time(tmp_path, monkeypatch):
    sizes = []
    fetch = saving._gather

    def watched(array, places):
        found = fetch(array, places)
        sizes.append(found.size)
        return found

    monkeypatch.setattr(saving, "_gather", watched)
    interop.save(loaded("llama"), tmp_path / "llama")
    layers = loaded("llama").decoder.layers.feed_forward.w_in.array.size // 2
    assert max(sizes) == loaded("llama").embedding.table.array.size and layers in sizes
    assert len(sizes) == len(tensors(FIXTURES / "llama"))


def test_an_empty_folder_is_filled_and_missing_ones_are_made(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "deep" / "er"):
        interop.save(loaded("gpt2"), folder)
        assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize("target", ["there", "nowhere"])
def test_a_link_is_no_place_for_a_folder(target, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / target)
    error = error_of(lambda: interop.save(loaded("gpt2"), tmp_path / "link"), interop.WeightsError)
    assert error.fact.startswith(f"{tmp_path / 'link'} is a link") and "name a new folder" in error.fix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]
    assert not list((tmp_path / "there").iterdir())


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    error = error_of(lambda: interop.save(loaded("gpt2"), tmp_path / "full"), interop.WeightsError)
    assert error.fact == f"{tmp_path / 'full'} is there already, and not empty"
    assert "name a new folder" in error.fix
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
    error = error_of(lambda: interop.save(loaded("gpt2"), tmp_path / "full" / "notes.txt"), interop.WeightsError)
    assert "is there already" in error.fact
    assert (tmp_path / "full" / "notes.txt").read_text() == "mine"


# What has no Hugging Face form.


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("tiny-lm", {}, "positions='sinusoid'"),
        ("tiny-lm", {"positions": "relative"}, "positions='relative'"),
        ("tiny-mt", {}, "positions='sinusoid'"),
        ("llama-1b", {"experts": 4}, "experts=4"),
        ("gpt2", {"softcap": 30.0}, "softcap=30.0"),
        ("gpt2", {"window": 8}, "window=8"),
        ("gpt2", {"prefix": True}, "prefix=True"),
        ("gpt2", {"norm": "rms", "bias": "q k v o in out"}, "norm='rms'"),
        ("gpt2", {"bias": "q k v"}, "bias='q k v'"),
        ("gpt2", {"tied_scale": True}, "tied_scale=True"),
        ("gpt2", {"group": 2}, "group=2"),
        ("gpt2", {"d_kv": 16}, "d_kv=16"),
        ("llama-1b", {"gated": False}, "gated=False"),
        ("llama-1b", {"bias": "q k"}, "bias='q k'"),
        ("llama-1b", {"scale_scores": False}, "scale_scores=False"),
        ("llama-1b", {"tied_scale": True}, "tied_scale=True"),
        ("gpt2", {"embedding_scale": True}, "embedding_scale=True"),
        ("llama-1b", {"embedding_scale": True}, "embedding_scale=True"),
        ("t5-small", {"embedding_scale": True}, "embedding_scale=True"),
        ("t5-small", {"scale_scores": True}, "scale_scores=True"),
        ("t5-small", {"bias": "in out"}, "bias='in out'"),
        ("t5-small", {"experts": 4, "every": 3, "layers": 3}, "every=3"),
        ("t5-small", {"experts": 4, "gating": "top2"}, "gating='top2'"),
        ("t5-small", {"experts": 4, "gated": True}, "gated=True"),
        ("t5-small", {"experts": 4, "tied_scale": False}, "tied_scale=False"),
    ],
)
def test_a_model_without_a_hugging_face_form_is_refused(name, changes, field, tmp_path):
    sizes = dict(layers=2, d_model=16, heads=2, d_kv=8, d_ff=8, vocab=30, length=16)
    model = models.shapes(models.preset(name, **(sizes | changes)))
    error = error_of(lambda: interop.save(model, tmp_path / "made"), interop.WeightsError)
    assert f"with `{field}` has no Hugging Face form" in error.fact
    assert field.split("=")[0] in error.fix or "positions" in error.fix
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_model_is_refused(tmp_path):
    error = error_of(lambda: interop.save({"w": 1}, tmp_path / "made"), interop.WeightsError)
    assert error.fact == "dict is no model that can be written"


def test_shapes_without_values_are_refused(tmp_path):
    model = models.shapes(loaded("gpt2").config)
    error = error_of(lambda: interop.save(model, tmp_path / "made"), wf.RegionError)
    assert "holds no values" in error.fact


def test_weights_of_other_dtypes_are_refused(tmp_path):
    attention = loaded("gpt2").decoder.layers.attention

    def with_q(dtype):
        q = wf.parameter(attention.q.array.astype(dtype), attention.q.dims)
        return jax.tree.map(
            lambda leaf: q if leaf is attention.q else leaf, loaded("gpt2"), is_leaf=lambda x: isinstance(x, wf.Tensor)
        )

    error = error_of(lambda: interop.save(with_q(jnp.int32), tmp_path / "made"), interop.WeightsError)
    assert error.fact == "weight `decoder.layers.attention.q` holds int32"
    error = error_of(lambda: interop.save(with_q(jnp.bfloat16), tmp_path / "made"), interop.WeightsError)
    assert "`decoder.layers.attention.q` holds bfloat16 and `decoder.layers.attention.k` float32" in error.fact
    assert "go into tensor `transformer.h.0.attn.c_attn.weight`" in error.fact
    assert not Path(tmp_path / "made").exists()
