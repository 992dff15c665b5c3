"""Reading: the numbers of `transformers`, under every layout, each processor reading its own slices and no more."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import weft as wf
from tests.interop.folders import FIXTURES, NAMES, TOLERANCE, changed, expected, loaded, logits, sharded, tensors
from weft import interop, models
from weft.interop.files import Weights
from weft.interop.mapping import Parameter

BOTH = "batch:rows,heads:cols,d_ff:cols,vocab:cols"
STORED = "batch:rows,params.d_kv:cols,params.d_model:rows,params.vocab:cols"
MESHES = dict.fromkeys(("mt5", "umt5"), "rows=4,cols=2") | {
    "llama": "rows=4,cols=2",
    "llama-tied": "rows=4,cols=2",
}  # two heads of keys and values


def mesh_of(name):
    return wf.Mesh(MESHES.get(name, "rows=2,cols=4"))


def values(model):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(model)]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name):
    model, given = loaded(name), expected(name)
    assert isinstance(model, models.TransformerLM if "tokens" in given else models.Seq2Seq)
    assert (model.config.dtype, model.config.param_dtype, model.config.name) == ("float32", "float32", name)
    np.testing.assert_allclose(logits(model, given), given["logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.quick(
    "gpt2-batch:rows,heads:cols,d_ff:cols,vocab:cols",
    "llama-batch:rows,heads:cols,d_ff:cols,vocab:cols",
    "t5.1.1-batch:rows,heads:cols,d_ff:cols,vocab:cols",
    "umt5-batch:rows,heads:cols,d_ff:cols,vocab:cols",
    "gpt2-batch:rows,params.d_kv:cols,params.d_model:rows,params.vocab:cols",
    "llama-batch:rows,params.d_kv:cols,params.d_model:rows,params.vocab:cols",
    "llama-tied-batch:rows,params.d_kv:cols,params.d_model:rows,params.vocab:cols",
    "switch-batch:rows,params.d_kv:cols,params.d_model:rows,params.vocab:cols",
    "t5-batch:rows,params.d_kv:cols,params.d_model:rows,params.vocab:cols",
    "t5.1.1-batch:rows,params.d_kv:cols,params.d_model:rows,params.vocab:cols",
)
@pytest.mark.parametrize("layout", [BOTH, STORED])
@pytest.mark.parametrize("name", NAMES)
def test_a_layout_changes_neither_weights_nor_logits(name, layout):
    model = interop.load(FIXTURES / name, mesh_of(name), layout)
    for whole, split in zip(values(loaded(name)), values(model), strict=True):
        np.testing.assert_array_equal(whole, split)
    if layout == BOTH:
        given = expected(name)
        np.testing.assert_allclose(logits(model, given), given["logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *((name, layout) for name in ("gpt2", "llama", "switch") for layout in (BOTH, STORED)),
        ("gpt2", "batch:rows,params.layers:rows,params.d_ff:cols"),
        ("llama", "batch:rows,params.layers:cols,params.d_ff:rows"),
        ("switch", "batch:rows,params.experts:rows,params.d_ff:cols"),
    ],
)
def test_no_processor_reads_more_than_its_slice(name, layout, monkeypatch):
    asked, read_now = [], []
    read_slice, read_parameter = Weights.read, Parameter.read

    def counted(self, tensor, ranges):
        found = read_slice(self, tensor, ranges)
        read_now[-1] += found.size
        return found

    def slices(self, index, *args):
        places = [range(*part.indices(dim.size)) for part, dim in zip(index, self.dims, strict=True)]
        held = [sum(place < dim.count for place in part) for part, dim in zip(places, self.dims, strict=True)]
        asked.append((self.entry.path, math.prod(held), math.prod(map(len, places))))
        read_now.append(0)
        return read_parameter(self, index, *args)

    monkeypatch.setattr(Weights, "read", counted)
    monkeypatch.setattr(Parameter, "read", slices)
    model = interop.load(FIXTURES / name, mesh_of(name), layout)
    assert read_now == [count for _, count, _ in asked]
    stored = {shard.data.size for shard in model.embedding.table.array.addressable_shards}
    assert {size for path, _, size in asked if path == "embedding.table"} == stored
    assert sum(read_now) == sum(array.size for array in tensors(FIXTURES / name).values())


def test_parameters_lie_as_the_layout_stores_them():
    mesh = mesh_of("t5")
    model = interop.load(FIXTURES / "t5", mesh, BOTH + ",params.d_model:rows")
    made = models.init(model.config, jax.random.key(0), mesh, BOTH + ",params.d_model:rows")
    for ours, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(made), strict=True):
        assert ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim)
    assert jax.tree.structure(model) == jax.tree.structure(made)


def test_the_vocabs_padding_is_zero_and_never_predicted():
    model = loaded("t5.1.1")
    for table in (model.embedding.table.array, model.softmax.table.array):
        assert table.shape == (128, 16)
        assert np.all(np.asarray(table)[61:] == 0) and np.all(np.any(np.asarray(table)[:61], axis=1))


def test_the_stretch_of_rotations_matters():
    given = expected("llama-tied")
    plain = interop.load(FIXTURES / "llama-tied", rotary_stretch=1.0)
    assert loaded("llama-tied").config.stretch[:5] == (8.0, 1.0, 4.0, 32, "llama3")
    assert np.abs(logits(plain, given) - given["logits"]).max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", ["gpt2", "switch"])
def test_several_files_hold_the_same_model(name, tmp_path):
    model = interop.load(sharded(tmp_path, name))
    for whole, split in zip(values(loaded(name)), values(model), strict=True):
        np.testing.assert_array_equal(whole, split)


def test_weights_keep_the_dtype_of_the_file(tmp_path):
    narrow = interop.load(changed(tmp_path, "t5", cast=lambda name: "bfloat16"))
    assert (narrow.config.dtype, narrow.config.param_dtype) == ("bfloat16", "bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(narrow)} == {"bfloat16"}
    wide = interop.load(tmp_path / "t5", param_dtype="float32", dtype="float32")
    assert (wide.config.dtype, wide.config.param_dtype) == ("float32", "float32")
    for a, b in zip(values(narrow), values(wide), strict=True):
        np.testing.assert_array_equal(a.astype("float32"), b)


def test_some_weights_may_be_wider_than_others(tmp_path):
    folder = changed(tmp_path, "switch", cast=lambda name: "float32" if "router" in name else "bfloat16")
    model = interop.load(folder)
    assert (model.config.dtype, model.config.param_dtype) == ("bfloat16", "bfloat16")
    assert model.encoder.layers.feed_forward.gate.dtype == "float32"
    assert model.encoder.layers.feed_forward.w_in.dtype == "bfloat16"


def test_fields_are_changed_by_name():
    config = interop.read_config(FIXTURES / "gpt2", remat=False, vocab_multiple=8, name="mine")
    assert (config.remat, config.vocab_dim.size, config.name) == (False, 64, "mine")
    assert dataclasses.replace(config, remat=True, vocab_multiple=128, name="gpt2") == loaded("gpt2").config
    assert interop.load(FIXTURES / "gpt2", vocab_multiple=8).embedding.table.array.shape == (64, 16)


@pytest.mark.parametrize("name", ["t5", "t5.1.1", "gpt2", "llama", "switch"])
def test_a_configuration_has_what_the_file_says(name):
    config = interop.read_config(FIXTURES / name)
    wanted = {
        "t5": dict(heads=4, d_kv=4, tied=True, tied_scale=True, activation="relu", gated=False, padding=0, start=0),
        "t5.1.1": dict(tied=False, activation="gelu_tanh", gated=True, buckets=8, farthest=20, scale_scores=False),
        "gpt2": dict(d_ff=40, d_kv=4, length=32, tied=True, tied_scale=False, activation="gelu_tanh", norm="layer"),
        "llama": dict(heads=2, group=2, rotary_base=5000.0, epsilon=1e-5, length=64, tied=False, stretch=None),
        "switch": dict(experts=4, every=2, expert_room=64, length=512, jitter=0.01, router_z_loss=0.001),
    }
    assert {field: getattr(config, field) for field in wanted[name]} == wanted[name]


# What published files hold beside the weights.


def test_gpt2_may_come_without_its_prefix_and_with_its_masks(tmp_path):
    def as_published(found):
        for name in list(found):
            found[name.removeprefix("transformer.")] = found.pop(name)
        found |= {"h.0.attn.bias": np.tril(np.ones((1, 1, 32, 32), "float32"))}
        found |= {"h.1.attn.masked_bias": np.full(1, -1e4, "float32"), "lm_head.weight": found["wte.weight"]}

    model = interop.load(changed(tmp_path, "gpt2", change=as_published))
    for ours, theirs in zip(values(model), values(loaded("gpt2")), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_copies_of_the_embedding_are_accepted_and_may_stand_for_it(tmp_path):
    def with_copies(found):
        for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
            found[name] = found["shared.weight"]
        unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        found[unused] = np.ones((8, 4), "float32")

    def without_original(found):
        found["encoder.embed_tokens.weight"] = found.pop("shared.weight")

    for change in (with_copies, without_original):
        model = interop.load(changed(tmp_path, "t5", change=change))
        np.testing.assert_array_equal(np.asarray(model.embedding.table.array), loaded("t5").embedding.table.array)


def test_rotary_frequencies_in_a_file_are_passed_over(tmp_path):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder = changed(tmp_path, "llama", change=lambda found: found.update({name: np.ones(2, "float32")}))
    assert interop.load(folder).config.heads == 2


def test_a_t5_that_is_called_tied_but_has_two_tables_is_not(tmp_path):
    keys = {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    config = interop.read_config(changed(tmp_path, "t5.1.1", keys=keys))
    assert not config.tied
    one_table = changed(tmp_path, "t5.1.1", keys=keys, change=lambda found: found.pop("lm_head.weight"))
    config = interop.read_config(one_table)
    assert (config.tied, config.tied_scale) == (True, False)


def test_older_files_keep_the_base_of_rotations_apart(tmp_path):
    scaling = {
        "type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    keys = {"rope_theta": 10_000.0, "rope_scaling": scaling}
    folder = changed(tmp_path, "llama-tied", keys=keys, without=["rope_parameters", "head_dim"])
    config = interop.read_config(folder, d_kv=8)
    assert config == loaded("llama-tied").config


def test_a_bias_of_attention_is_read(tmp_path):
    def with_bias(found):
        for layer in range(2):
            for part, size in {"q": 16, "k": 8, "v": 8, "o": 16}.items():
                found[f"model.layers.{layer}.self_attn.{part}_proj.bias"] = np.full(size, layer + 0.5, "float32")

    model = interop.load(changed(tmp_path, "llama", keys={"attention_bias": True}, change=with_bias))
    assert model.config.bias == "q k v o"
    assert model.decoder.layers.attention.q_bias.array.shape == (2, 2, 2, 4)
    assert np.all(np.asarray(model.decoder.layers.attention.q_bias.array[1]) == 1.5)


def test_experts_have_the_room_of_the_file(tmp_path):
    config = loaded("switch").config
    assert [config.expert_slots(length) for length in (1, 12, 64, 1000)] == [1, 12, 64, 64]
    few = interop.load(changed(tmp_path, "switch", keys={"expert_capacity": 2}))
    told = few.loss_and_metrics({"inputs": np.full((2, 9), 5), "targets": np.full((2, 6), 5)})[1]
    assert float(told["dropped"]) > 0


def test_rates_of_dropout_stay_where_they_are_and_another_of_embeddings_is_told(tmp_path):
    config = interop.read_config(changed(tmp_path, "gpt2", keys={"attn_pdrop": 0.3}))
    assert (config.dropout, config.attention_drop, config.hidden_drop, config.output_drop) == (0.1, 0.3, 0.0, 0.0)
    folder = changed(tmp_path, "gpt2", keys={"embd_pdrop": 0.3})
    with pytest.warns(wf.WeftWarning, match=r"dropout of embeddings of its own; `resid_pdrop`, 0.1, is taken"):
        assert interop.read_config(folder).dropout == 0.1
