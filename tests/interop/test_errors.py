"""A folder that is not right is refused before any array is made, by an error that names the tensor and the file."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from tests.interop.folders import FIXTURES, changed, sharded
from weft import interop

INDEX = "model.safetensors.index.json"
Q = "decoder.block.1.layer.0.SelfAttention.q.weight"


@pytest.fixture(autouse=True)
def nothing_is_made(monkeypatch):
    """No array may be made while something is wrong."""

    def made(*args, **kwargs):
        raise AssertionError("an array was made")

    monkeypatch.setattr(jax, "device_put", made)
    monkeypatch.setattr(jax, "make_array_from_single_device_arrays", made)


def refused(folder, *args, **changes):
    return error_of(lambda: interop.load(folder, *args, **changes), interop.WeightsError)


# Tensors.


def test_a_missing_tensor_is_named(tmp_path):
    folder = changed(tmp_path, "t5", change=lambda found: found.pop(Q))
    error = refused(folder)
    assert error.fact == f"there is no tensor `{Q}` in {folder}"
    assert f"config: {folder / 'config.json'}" in error.state


def test_a_missing_part_of_a_joined_tensor_is_named(tmp_path):
    name = "transformer.h.1.attn.c_attn.bias"
    error = refused(changed(tmp_path, "gpt2", change=lambda found: found.pop(name)))
    assert f"there is no tensor `{name}`" in error.fact


def test_an_extra_tensor_is_named(tmp_path):
    folder = changed(tmp_path, "t5", change=lambda found: found.update(adapter=np.ones(2, "float32")))
    error = refused(folder)
    assert error.fact == f"tensor `adapter` in {folder / 'model.safetensors'} has no place in a t5"


def test_a_layer_too_many_is_extra(tmp_path):
    folder = changed(tmp_path, "gpt2", keys={"n_layer": 1})
    assert "tensor `transformer.h.1." in refused(folder).fact


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path):
    folder = changed(tmp_path, "t5", change=lambda found: found.update({Q: np.ones((16, 12), "float32")}))
    error = refused(folder)
    assert error.fact == (
        f"tensor `{Q}` in {folder / 'model.safetensors'} has shape [16, 12], "
        "and the model wants [16, 16] (heads*d_kv d_model)"
    )


def test_a_tied_copy_that_differs_is_an_error(tmp_path):
    def differing(found):
        found["lm_head.weight"] = found["shared.weight"].copy()
        found["lm_head.weight"][60, 15] += 1e-3

    folder = changed(tmp_path, "t5", change=differing)
    error = refused(folder)
    file = folder / "model.safetensors"
    assert error.fact == f"tensor `lm_head.weight` in {file} differs from `shared.weight`, with which it is tied"
    assert "set `tie_word_embeddings` to false" in error.fix


def test_a_stack_with_an_embedding_of_its_own_is_an_error(tmp_path):
    name = "decoder.embed_tokens.weight"
    folder = changed(tmp_path, "t5", change=lambda found: found.update({name: found["shared.weight"] + 1}))
    error = refused(folder)
    assert f"tensor `{name}` in {folder / 'model.safetensors'} differs from `shared.weight`" in error.fact
    assert "weft has one table for both stacks" in error.fix


def test_a_tied_copy_of_another_shape_is_an_error(tmp_path):
    folder = changed(tmp_path, "gpt2", change=lambda found: found.update({"lm_head.weight": np.ones(2, "float32")}))
    assert "`lm_head.weight` in" in refused(folder).fact


def test_numbers_that_are_no_floats_are_refused(tmp_path):
    folder = changed(tmp_path, "t5", change=lambda found: found.update({Q: np.ones((16, 16), "int8")}))
    assert refused(folder).fact == f"tensor `{Q}` in {folder / 'model.safetensors'} holds I8"


def test_layers_of_different_dtypes_are_refused_unless_one_is_asked_for(tmp_path):
    folder = changed(tmp_path, "t5", cast=lambda name: "bfloat16" if name == Q else "float32")
    error = refused(folder)
    assert f"holds float32 and `{Q}` bfloat16" in error.fact
    assert "param_dtype='float32'" in error.fix
    assert f"file: {folder / 'model.safetensors'}" in error.state


# Files.


def test_a_truncated_file_is_refused_by_its_first_cut_tensor(tmp_path):
    folder = changed(tmp_path, "t5")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    error = refused(folder)
    assert error.fact.startswith(f"{path} is cut short: tensor `shared.weight` ends at byte")


@pytest.mark.parametrize(
    "content",
    [b"", b"abc", b"\x10" + b"\0" * 7 + b"{not json at all", b"\xff" * 40, b"\x02" + b"\0" * 7 + b"{}" + b"more"],
)
def test_a_corrupt_header_is_refused(tmp_path, content):
    folder = changed(tmp_path, "t5")
    (folder / "model.safetensors").write_bytes(content)
    error = refused(folder)
    assert error.fact.startswith(f"{folder / 'model.safetensors'} is no safetensors file")
    assert error.fix == "fetch the file again"


def test_an_index_that_names_a_missing_file_is_refused(tmp_path):
    folder = sharded(tmp_path, "t5")
    (folder / "model-00002-of-00003.safetensors").unlink()
    error = refused(folder)
    assert str(folder / INDEX) in error.fact
    assert "is in 'model-00002-of-00003.safetensors', which is no file of the folder" in error.fact


def test_an_index_may_not_leave_its_folder(tmp_path):
    folder = sharded(tmp_path, "t5")
    shutil.copy(FIXTURES / "t5" / "model.safetensors", tmp_path / "other.safetensors")
    written = json.loads((folder / INDEX).read_text())
    written["weight_map"]["shared.weight"] = "../other.safetensors"
    (folder / INDEX).write_text(json.dumps(written))
    error = refused(folder)
    assert "is in '../other.safetensors', which is no file of the folder" in error.fact
    assert error.fix == "fetch the index again: it names files alone"


def test_a_tensor_that_is_not_where_the_index_says_is_named(tmp_path):
    folder = sharded(tmp_path, "t5")
    written = json.loads((folder / INDEX).read_text())
    file = written["weight_map"]["shared.weight"]
    other = next(name for name in written["weight_map"].values() if name != file)
    written["weight_map"]["shared.weight"] = other
    (folder / INDEX).write_text(json.dumps(written))
    error = refused(folder)
    assert error.fact == f"tensor `shared.weight` is not in {folder / other}, where the index says it is"
    assert f"index: {folder / INDEX}" in error.state


def test_a_tensor_that_the_index_does_not_name_is_named(tmp_path):
    folder = sharded(tmp_path, "t5")
    written = json.loads((folder / INDEX).read_text())
    file = written["weight_map"].pop("shared.weight")
    (folder / INDEX).write_text(json.dumps(written))
    assert refused(folder).fact == f"tensor `shared.weight` in {folder / file} is not in the index {folder / INDEX}"


def test_a_tensor_in_two_files_is_named(tmp_path):
    folder = sharded(tmp_path, "t5")
    written = json.loads((folder / INDEX).read_text())
    first = folder / written["weight_map"]["shared.weight"]
    shutil.copy(first, folder / "again.safetensors")
    written["weight_map"]["more"] = "again.safetensors"
    (folder / INDEX).write_text(json.dumps(written))
    assert f" is in both {first} and {folder / 'again.safetensors'}" in refused(folder).fact


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {}}'])
def test_an_index_without_its_map_is_refused(tmp_path, content):
    folder = sharded(tmp_path, "t5")
    (folder / INDEX).write_text(content)
    assert refused(folder).fact == f"{folder / INDEX} has no `weight_map` from tensors to files"


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = changed(tmp_path, "t5")
    (folder / "model.safetensors").unlink()
    assert f"there is neither `model.safetensors` nor `{INDEX}` in {folder}" in refused(folder).fact


@pytest.mark.parametrize("file", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "weights.pt"])
def test_pickles_are_not_read_and_the_way_out_is_told(tmp_path, file):
    folder = changed(tmp_path, "t5")
    (folder / "model.safetensors").rename(folder / file)
    error = refused(folder)
    assert error.fact == (
        f"the weights in {folder} are pickles (`{file}`), which are not read: a pickle can run any code"
    )
    assert "save_pretrained" in error.fix


# config.json.


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    folder = changed(tmp_path, "t5")
    (folder / "config.json").unlink()
    assert refused(folder).fact == f"there is no {folder / 'config.json'}"
    assert refused(tmp_path / "nowhere").fact == f"there is no folder {tmp_path / 'nowhere'}"
    assert refused(Path(__file__)).fact == f"there is no folder {__file__}"
    assert "`hf download openai-community/gpt2 --local-dir gpt2`" in refused(Path("openai-community/gpt2")).fix


@pytest.mark.parametrize(
    ("content", "fact"), [("{not json", " is not JSON: "), (b"\xff\xfe", ":1 is not JSON: "), ("[1]", " is a list")]
)
def test_a_configuration_that_is_no_json_object_is_refused(tmp_path, content, fact):
    path = changed(tmp_path, "t5") / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert refused(path.parent).fact.startswith(f"{path}{fact}")


def test_an_unknown_model_type_is_refused(tmp_path):
    error = refused(changed(tmp_path, "t5", keys={"model_type": "bart"}))
    assert "says that it is 'bart', which weft cannot read" in error.fact
    assert "`gpt2`" in error.fix and "`switch_transformers`, `t5`" in error.fix
    assert "has no `model_type`" in refused(changed(tmp_path, "t5", without=["model_type"])).fact


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("t5", "d_model"),
        ("t5", "num_layers"),
        ("t5", "vocab_size"),
        ("switch", "d_ff"),
        ("gpt2", "n_embd"),
        ("gpt2", "n_positions"),
        ("llama", "hidden_size"),
        ("llama", "num_attention_heads"),
    ],
)
def test_a_missing_key_is_named(tmp_path, name, key):
    folder = changed(tmp_path, name, without=[key])
    assert refused(folder).fact == f"{folder / 'config.json'} has no `{key}`"


@pytest.mark.parametrize(
    ("name", "keys", "fact"),
    [
        ("t5", {"feed_forward_proj": "mish"}, "`feed_forward_proj` is 'mish'"),
        ("t5", {"d_model": "16"}, "`d_model` is '16'"),
        ("t5", {"d_model": True}, "`d_model` is True"),
        ("t5", {"layer_norm_epsilon": "tiny"}, "`layer_norm_epsilon` is 'tiny'"),
        ("t5", {"tie_word_embeddings": "yes"}, "`tie_word_embeddings` is 'yes'"),
        ("t5", {"is_encoder_decoder": False}, "`is_encoder_decoder` is False"),
        ("t5.1.1", {"scale_decoder_outputs": True}, "`scale_decoder_outputs` is true"),
        ("switch", {"expert_capacity": 0}, "`expert_capacity` is 0"),
        ("t5", {"relative_attention_num_buckets": 3}, "`relative_attention_num_buckets` is 3 and"),
        ("t5", {"relative_attention_max_distance": 2}, "`relative_attention_max_distance` 2 in"),
        ("switch", {"num_decoder_layers": 4}, "the encoder has 2 layers"),
        ("switch", {"num_sparse_encoder_layers": 2}, "experts in every 1 layers and the decoder in every 2"),
        ("switch", {"num_layers": 6, "num_decoder_layers": 6, "num_sparse_encoder_layers": 2}, "layers [1, 4] have"),
        ("switch", {"num_sparse_decoder_layers": 3}, "`num_sparse_decoder_layers` is 3 of 2 layers"),
        ("switch", {"router_bias": True}, "`router_bias` is True"),
        ("switch", {"router_dtype": "bfloat16"}, "`router_dtype` is 'bfloat16'"),
        ("gpt2", {"n_head": 3}, "`n_embd` is 16 and `n_head` 3"),
        ("gpt2", {"scale_attn_weights": 2}, "`scale_attn_weights` is 2"),
        ("gpt2", {"activation_function": "quick_gelu"}, "`activation_function` is 'quick_gelu'"),
        ("llama", {"num_key_value_heads": 3}, "`num_attention_heads` is 4 and `num_key_value_heads` 3"),
        ("llama", {"hidden_size": 18, "head_dim": None}, "`hidden_size` is 18 and `num_attention_heads` 4"),
        ("llama", {"rope_scaling": {"type": "su"}, "rope_parameters": None}, "rotations are scaled by 'su'"),
        ("llama", {"rope_parameters": {"rope_type": "longrope", "factor": 4.0}}, "`short_factor` is None beside"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1}}, "and `beta_fast` 1.0"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "has no `factor` beside its `rope_type`"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "`factor` is 0.5 beside `rope_type`"),
        ("llama", {"rope_parameters": {"mrope_section": [1, 2]}}, "`mrope_section` is [1, 2] beside `rope_type`"),
        ("llama", {"layer_types": ["full_attention", "sliding_attention"]}, "`layer_types` is ['full_attention'"),
        ("llama", {"rope_parameters": 5}, "`rope_parameters` is 5"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "`partial_rotary_factor` is 0.5"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "has no `low_freq_factor`"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_computed_is_refused_by_its_key(tmp_path, name, keys, fact):
    folder = changed(tmp_path, name, keys=keys)
    error = refused(folder)
    assert fact in error.fact
    assert str(folder / "config.json") in error.fact


def test_waves_that_are_stretched_from_high_to_low_are_refused(tmp_path):
    rope = dict(rope_type="llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0)
    rope |= {"original_max_position_embeddings": 32}
    error = refused(changed(tmp_path, "llama", keys={"rope_parameters": rope}))
    assert "`low_freq_factor` is 4.0 and `high_freq_factor` 4.0" in error.fact


# What the caller asks for.


def test_an_unknown_field_is_refused():
    error = refused(FIXTURES / "t5", drop_out=0.1)
    assert error.fact == "this model has no `drop_out` to change"
    assert error.fix == "did you mean `dropout`?"


def test_a_field_that_changes_the_shape_of_a_weight_is_refused():
    assert "has shape [24, 16], and the model wants [32, 16]" in refused(FIXTURES / "t5", d_ff=32).fact


def test_a_mesh_needs_a_layout_and_a_layout_a_mesh():
    for given in ({"mesh": "rows=2"}, {"layout": "batch:rows"}):
        error = error_of(lambda given=given: interop.load(FIXTURES / "t5", **given), wf.RegionError)
        assert error.fact == "load got only one of mesh and layout"


@pytest.mark.parametrize("layout", ["haeds:cols", "heads:rows,d_kv:rows", "heads:cols"])
def test_a_layout_that_does_not_fit_is_refused(layout):
    error_of(lambda: interop.load(FIXTURES / "t5", "rows=2,cols=3", layout), wf.LayoutError)


def test_weights_are_neither_read_nor_written_inside_a_region(tmp_path):
    x = wf.tensor(jax.ShapeDtypeStruct((2,), "float32"), "batch")
    for act in (lambda x: interop.load(FIXTURES / "t5"), lambda x: interop.save(None, tmp_path / "made")):
        error = error_of(lambda act=act: wf.trace(act, x, mesh="rows=2", layout="batch:rows"), wf.RegionError)
        assert "was called inside a region" in error.fact
