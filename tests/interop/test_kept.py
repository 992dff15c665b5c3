"""What is read keeps its numbers, and what weft has no use for is written again as it was."""

import json
import shutil

import numpy as np
import pytest

from tests.errors.raised import error_of
from tests.interop.folders import FIXTURES, TOLERANCE, changed, config, expected, logits, tensors
from weft import interop
from weft.train import Run
from weft.train.start import first_weights

BESIDE = {
    "generation_config.json": {"do_sample": True, "eos_token_id": [2, 7]},
    "vocab.json": {"a": 0},
    "tokenizer_config.json": {"model_max_length": 10**30},
    "special_tokens_map.json": {"eos_token": "a"},
}


def folder_with_all(tmp_path, name="gpt2"):
    folder = changed(tmp_path, name, keys={"eos_token_id": [2, 7], "task_specific_params": {"a": 1}})
    for file, content in BESIDE.items():
        (folder / file).write_text(json.dumps(content))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    return folder


def refused(folder, **changes):
    return error_of(lambda: interop.load(folder, **changes), interop.WeightsError)


# What lies beside the weights.


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "switch"])
def test_keys_and_files_that_weft_has_no_use_for_are_written_again(name, tmp_path):
    folder = folder_with_all(tmp_path, name)
    interop.save(interop.load(folder), tmp_path / "out", like=folder)
    assert {path.name for path in tmp_path.joinpath("out").iterdir()} == {path.name for path in folder.iterdir()}
    for file in (*BESIDE, "merges.txt"):
        assert (tmp_path / "out" / file).read_bytes() == (folder / file).read_bytes()
    before, after = config(folder), config(tmp_path / "out")
    lost = {"dtype", "transformers_version"}
    assert {key: after.get(key) for key in before if key not in lost} == {
        key: value for key, value in before.items() if key not in lost
    }


def test_the_tokenizer_is_left_out_where_it_is_another(tmp_path):
    folder = folder_with_all(tmp_path)
    interop.save(interop.load(folder), tmp_path / "out", like=folder, tokenizer=False)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "model.safetensors", "generation_config.json"}


def test_what_is_beside_another_kind_of_model_is_refused(tmp_path):
    model = interop.load(FIXTURES / "gpt2")
    error = error_of(lambda: interop.save(model, tmp_path / "out", like=FIXTURES / "t5"), interop.WeightsError)
    assert "is of a 't5', and the model is a gpt2" in error.fact and not (tmp_path / "out").exists()


# Positions.


def run_at(length, folder):
    from weft.train.config import parse
    from weft.train.keys import Where

    values = {"init_from": str(folder), "train": {"length": length, "batch": 2}, "tokenizer": "bytes"}
    return parse(values, Where("here", {}))


@pytest.mark.quick("gpt2-n_positions-8", "llama-max_position_embeddings-128")
@pytest.mark.parametrize(
    ("name", "key", "length"),
    [("gpt2", "n_positions", 8), ("llama", "max_position_embeddings", 8), ("llama", "max_position_embeddings", 128),
     ("t5", "n_positions", 8)],
)  # fmt: skip
def test_another_length_of_training_loses_no_positions(name, key, length, tmp_path):
    before = config(FIXTURES / name).get(key, 512)
    settings = run_at(length, FIXTURES / name)
    mesh, layout = settings.runs_on
    model = first_weights(settings, mesh, layout)
    assert model.config.length == length
    interop.save(model, tmp_path / "out", like=FIXTURES / name)
    assert config(tmp_path / "out")[key] == max(before, length)
    again, given = interop.load(tmp_path / "out"), expected(name)
    want = logits(interop.load(FIXTURES / name), given)
    np.testing.assert_allclose(logits(again, given), want, atol=TOLERANCE)
    if name == "gpt2":
        table = "transformer.wpe.weight"
        np.testing.assert_array_equal(tensors(tmp_path / "out")[table], tensors(FIXTURES / name)[table])


def test_a_shorter_model_still_computes_all_its_positions():
    settings = run_at(8, FIXTURES / "gpt2")
    model, given = first_weights(settings, *settings.runs_on), expected("gpt2")
    assert given["tokens"].shape[1] > 8
    np.testing.assert_allclose(logits(model, given), logits(interop.load(FIXTURES / "gpt2"), given), atol=TOLERANCE)


# Numbers.


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_float16_computes_in_float32(name, tmp_path):
    folder = changed(tmp_path, name, cast=lambda key: "float16")
    model, given = interop.load(folder), expected(name)
    assert (model.config.dtype, model.config.param_dtype) == ("float32", "float16")
    want = logits(interop.load(folder, param_dtype="float32", dtype="float32"), given)
    np.testing.assert_allclose(logits(model, given), want, atol=TOLERANCE)


def test_biases_that_the_files_have_are_read_and_others_are_refused(tmp_path):
    folder = changed(tmp_path, "llama")
    assert "no tensor `model.layers.0.self_attn.q_proj.bias`" in refused(folder, bias="q k v").fact
    shapes = {"q": 16, "k": 8, "v": 8}

    def with_biases(found):
        for layer in range(2):
            for letter, size in shapes.items():
                found[f"model.layers.{layer}.self_attn.{letter}_proj.bias"] = np.full(size, 0.5, "float32")

    model = interop.load(changed(tmp_path, "llama", change=with_biases), bias="q k v")
    assert float(model.decoder.layers.attention.k_bias.array.min()) == 0.5
    assert not hasattr(model.decoder.layers.attention, "o_bias") or model.decoder.layers.attention.o_bias is None


@pytest.mark.parametrize(
    "changes",
    [{"norm": "layer", "bias": "norm"}, {"gated": False}, {"positions": "learned"}, {"bias": "in out"}, {"experts": 4}],
)
def test_changes_that_make_another_kind_of_model_are_refused(changes):
    assert "with these changes the model" in refused(FIXTURES / "llama", **changes).fact


@pytest.mark.parametrize("name", ["longt5", "gemma3n", "gptj", "llama4", "ministral", [], {}, 3, None])
def test_an_unknown_kind_of_model_gets_no_hint_that_leads_to_wrong_numbers(name, tmp_path):
    error = refused(changed(tmp_path, "llama", keys={"model_type": name}))
    assert "which weft cannot read" in error.fact and "did you mean" not in error.fix
    assert "computes wrong numbers" in error.fix


@pytest.mark.parametrize(
    ("name", "written"),
    [("t5", "MT5ForConditionalGeneration"), ("t5", "T5GemmaForConditionalGeneration"), ("gpt2", "GPTJForCausalLM"),
     ("llama", "Llama4ForCausalLM"), ("llama", "MistralForCausalLM"), ("llama", "GemmaForCausalLM")],
)  # fmt: skip
def test_another_family_under_a_known_name_is_refused(name, written, tmp_path):
    assert written in refused(changed(tmp_path, name, keys={"architectures": [written]})).fact


@pytest.mark.parametrize("written", ["LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM"])
def test_every_class_of_the_family_is_read(written, tmp_path):
    interop.read_config(changed(tmp_path, "llama", keys={"architectures": [written]}))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("llama", "sliding_window", 4096), ("llama", "attn_logit_softcapping", 50.0), ("llama", "logit_scale", 0.06),
     ("llama", "hidden_activation", "gelu_pytorch_tanh"), ("llama", "num_local_experts", 8), ("gpt2", "rotary_dim", 64),
     ("t5", "is_causal", False), ("switch", "is_causal", False), ("switch", "decoder_sparse_step", 1),
     ("t5", "transformers_weights", "other.safetensors"),
     ("llama", "partial_rotary_factor", 0.5), ("t5", "quantization_config", {"bits": 4})],
)  # fmt: skip
def test_a_key_of_another_family_that_changes_numbers_is_refused(name, key, value, tmp_path):
    assert f"`{key}` is {value!r}" in refused(changed(tmp_path, name, keys={key: value})).fact


@pytest.mark.parametrize(
    "keys", [{"sliding_window": None}, {"sliding_window": 4096, "use_sliding_window": False}, {"logit_scale": 1.0}]
)
def test_such_a_key_that_changes_nothing_is_fine(keys, tmp_path):
    interop.read_config(changed(tmp_path, "llama", keys=keys))


# Files that are broken.


@pytest.mark.parametrize(
    "header",
    [b"[" * 5000, b'{"a": 3}', b'{"a": {"data_offsets": []}}', b'{"a": {"data_offsets": [0, "b"]}}', b"[]", b"\xff",
     b'{"a": {"data_offsets": [0, ' + b"9" * 5000 + b"]}}"],
)  # fmt: skip
def test_a_broken_header_of_tensors_is_an_error_that_names_the_file(header, tmp_path):
    folder = changed(tmp_path, "t5")
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 16)
    assert str(file) in refused(folder).fact


@pytest.mark.parametrize("name", ["n" * 300, "a\0b", "../model.safetensors", "", "."])
def test_a_name_of_a_file_that_cannot_be_is_an_error_that_names_the_index(name, tmp_path):
    folder = changed(tmp_path, "t5")
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"shared.weight": name}}))
    error = refused(folder)
    assert str(index) in error.fact and len(error.fact) < 600


def test_names_that_a_file_chose_neither_fill_the_screen_nor_command_it(tmp_path):
    def extra(name):
        return lambda found: found.update({name: np.ones(2, "float32")})

    error = refused(changed(tmp_path, "t5", change=extra("y" * 100_000)))
    assert "has no place in a t5" in error.fact and len(str(error)) < 1000
    error = refused(changed(tmp_path, "t5", change=extra("\x1b[2Jx")))
    assert "tensor `\\x1b[2Jx` in" in error.fact and "\x1b" not in str(error)


@pytest.mark.parametrize("key", ["n_layer", "n_embd", "vocab_size"])
@pytest.mark.parametrize("value", [10**9, 10**39, 1e300, float("inf"), [], "[" * 100])
def test_a_size_that_cannot_be_is_refused_before_room_is_made(key, value, tmp_path):
    assert (
        "config.json"
        in refused(changed(tmp_path, "gpt2", keys={key: value})).state
        + refused(changed(tmp_path, "gpt2", keys={key: value})).fact
    )


def test_a_run_made_of_weights_keeps_what_lay_beside_them(tmp_path):
    from tests.cli.command import weft

    folder = folder_with_all(tmp_path)
    weft("import", folder, tmp_path / "run")
    weft("export", tmp_path / "run", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in folder.iterdir()}
    assert config(tmp_path / "out")["eos_token_id"] == [2, 7] and config(tmp_path / "out")["bos_token_id"] == 2
    assert Run(tmp_path / "run").config.max_length == 32
    shutil.rmtree(tmp_path / "run" / "hugging_face")
    weft("export", tmp_path / "run", tmp_path / "bare")
    assert {path.name for path in (tmp_path / "bare").iterdir()} == {"config.json", "model.safetensors"}
