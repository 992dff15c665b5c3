"""Every family of language models against what `transformers` made of it: numbers, layouts, decoding, and files again.

The weights of a fixture are drawn from a seed; it holds their shapes, the configuration and results.
"""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import weft as wf
from tests.errors.raised import error_of
from tests.interop.families import FAMILIES, FIRST, LONG, batch_of, memory_of, tokens_of, values_of
from tests.interop.folders import METADATA, TOLERANCE, config, same_bits, tensors
from weft import decode, interop, models
from weft.interop.table import ARCHITECTURES, DECODERS, DIFFERS

FIXTURES = Path(__file__).parent / "fixtures" / "families"


@functools.cache
def fixture(family):
    return json.loads((FIXTURES / f"{family}.json").read_text())


@functools.cache
def folder_of(family):
    """The family's fixture as a folder, made once."""
    folder = Path(tempfile.mkdtemp(prefix=f"{family}-"))
    write(folder, family)
    return folder


def write(folder, family, *, without=(), **keys):
    """A fixture's folder with some keys of its configuration changed or gone."""
    folder.mkdir(exist_ok=True)
    written = {key: value for key, value in (fixture(family)["config"] | keys).items() if key not in without}
    (folder / "config.json").write_text(json.dumps(written))
    save_file(values_of(family, fixture(family)["shapes"]), folder / "model.safetensors", METADATA)
    return folder


@functools.cache
def results(family, mesh=None, layout=None):
    """The logits, the loss and its gradients, by the tensors of a file."""
    where = () if mesh is None else (mesh, layout)
    model = interop.load(folder_of(family), *where, remat=False)
    batch = {name: wf.tensor(x, "batch length") for name, x in batch_of(family).items()}
    run = wf.value_and_grad(lambda model, batch: (model.loss(batch), model.logits(batch["inputs"])), has_aux=True)
    run = jax.jit(run) if mesh is None else wf.spmd(run, mesh=mesh, layout=layout)
    (loss, logits), gradients = run(model, batch)
    return np.asarray(logits.array)[..., :61], float(loss), gradients


QUICK = ("mixtral", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "olmo2", "gpt_neox")  # others have less


@pytest.mark.parametrize("family", [pytest.param(x, marks=[pytest.mark.slow] * (x not in QUICK)) for x in FIRST])
def test_logits_are_those_of_transformers(family):
    model = interop.load(folder_of(family), remat=False)
    found = np.asarray(model.logits(tokens_of(family)).array)[..., :61]
    np.testing.assert_allclose(found, np.load(FIXTURES / f"{family}.npy"), atol=TOLERANCE, rtol=0)


def test_cross_attention_to_what_an_encoder_made_is_that_of_transformers(tmp_path):
    """Of a GPT-2 made here, written, and read with the values of the fixture."""
    sizes = dict(layers=2, d_model=16, heads=4, d_kv=4, d_ff=64, vocab=61, length=32, norm="layer", positions="learned")
    sizes |= dict(bias="q k v o in out norm", activation="gelu_tanh", tied=True, tied_scale=False, epsilon=1e-5)
    how = dict(cross_attention=True, scale_by_layer=True, dtype="float32", remat=False)
    made = models.init(models.LMConfig(name="crossed", **sizes, **how), jax.random.key(0))
    interop.save(made, tmp_path / "made")
    shapes = {name: values.shape for name, values in tensors(tmp_path / "made").items()}
    save_file(values_of("gpt2", shapes), tmp_path / "made" / "model.safetensors", METADATA)
    model = interop.load(tmp_path / "made", remat=False)
    found = np.asarray(model.logits(tokens_of("gpt2"), memory=memory_of()).array)[..., :61]
    np.testing.assert_allclose(found, np.load(FIXTURES / "gpt2-cross.npy"), atol=TOLERANCE, rtol=0)
    assert error_of(lambda: made.logits(tokens_of("gpt2"), memory=memory_of()[..., :8])).fact


@pytest.mark.slow
@pytest.mark.parametrize("family", FIRST)
def test_loss_and_gradients_are_those_of_transformers(family, tmp_path):
    _, loss, gradients = results(family)
    assert loss == pytest.approx(fixture(family)["loss"], abs=1e-5)
    interop.save(gradients, tmp_path / "gradients")
    found = tensors(tmp_path / "gradients")
    wanted = fixture(family)["gradients"]
    assert wanted.keys() <= found.keys() and len(wanted) > 10
    for name, size in wanted.items():
        assert np.linalg.norm(found[name]) == pytest.approx(size, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("family", FIRST)
def test_what_is_read_is_written_again_with_its_keys(family, tmp_path):
    folder = folder_of(family)
    interop.save(interop.load(folder), tmp_path / "again")
    assert same_bits(tensors(tmp_path / "again"), tensors(folder))
    written, first = config(tmp_path / "again"), config(folder)
    own = set(written) & set(first) - {
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "architectures",
        "rope_parameters",
    }
    not_equal = {key: (written[key], first[key]) for key in own if written[key] != first[key]}
    if family == "qwen3_moe":
        not_equal.pop("intermediate_size")  # no layer of it has a part without experts
    harmless = {
        "max_window_layers",
        "head_dim",
        "n_inner",
    }  # said where the library says nothing, or where nothing follows
    assert not_equal.keys() <= harmless, not_equal
    assert interop.read_config(tmp_path / "again", name="x") == interop.read_config(folder, name="x")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize("layout", ["batch:x,heads:y,d_ff:y,vocab:y", "batch:x,stream:y,params.d_model:x,vocab:y"])
@pytest.mark.parametrize("family", FIRST)
def test_no_layout_changes_a_number(family, layout):
    logits, loss, gradients = results(family, "x=2,y=2", layout)
    alone = results(family)
    np.testing.assert_allclose(logits, alone[0], atol=TOLERANCE / 5, rtol=0)
    assert loss == pytest.approx(alone[1], abs=1e-5)
    for a, b in zip(jax.tree.leaves(wf.get(gradients)), jax.tree.leaves(wf.get(alone[2])), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * max(np.abs(b).max(), 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("family", FIRST)
def test_greedy_decoding_with_the_cache_is_the_whole_model(family):
    model = interop.load(folder_of(family))
    prompts = tokens_of(family)[:, :5]
    found = np.asarray(decode.generate(model, prompts.tolist(), max_new_tokens=8).tokens)
    logits = np.asarray(model.logits(np.concatenate([prompts, found], axis=1)).array)
    np.testing.assert_array_equal(found, logits[:, 4:-1, :61].argmax(-1))


# What older files say, and what is refused.

OLD: dict[str, dict[str, Any]] = {
    "llama": dict(rope_theta=10_000.0, rope_scaling={"type": "linear", "factor": 3.0}),
    "qwen3_moe": dict(num_experts=4, rope_theta=10_000.0),
    "gemma3_text": dict(
        rope_theta=1000.0,
        rope_local_base_freq=50.0,
        sliding_window_pattern=2,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    "gpt_neox": dict(rotary_pct=0.5, rotary_emb_base=100),
    "gpt2": dict(num_attention_heads=4),
}
GONE = {
    "gpt2": ["n_head"],
    "qwen3_moe": ["num_local_experts"],
    "gemma3_text": ["layer_types", "_sliding_window_pattern"],
}


@pytest.mark.parametrize("family", OLD)
def test_older_files_say_the_same_in_other_keys(family, tmp_path):
    without = ["rope_parameters", *GONE.get(family, [])]
    folder = write(tmp_path / "old", family, without=without, **OLD[family])
    wanted = interop.read_config(folder_of(family), name="x")
    if family == "llama":  # which had a base of another size
        wanted = interop.read_config(folder_of(family), name="x", rotary_base=10_000.0)
    assert interop.read_config(folder, name="x") == wanted


REFUSED = [
    ("mistral", {"sliding_window": "far"}, "`sliding_window` is 'far'"),
    ("mistral", {"layer_types": ["sliding_attention", "full_attention"]}, "`layer_types` is ['sliding_attention'"),
    ("mixtral", {"num_experts_per_tok": 5}, "`num_experts_per_tok` is 5 of 4 experts"),
    ("mixtral", {"num_local_experts": 10**9}, "says that there are 1,000,000,000 experts"),
    ("qwen2", {"num_hidden_layers": 10**9, "layer_types": None}, "says that there are 1,000,000,000 layers"),
    ("gemma2", {"num_hidden_layers": 10**9, "layer_types": None}, "says that there are 1,000,000,000 layers"),
    ("qwen2", {"layer_types": ["full_attention"]}, "`layer_types` is ['full_attention']"),
    ("qwen2", {"layer_types": ["linear_attention", {}]}, "`layer_types` is ['linear_attention', {}]"),
    ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, "`layer_types` names 'linear_attention'"),
    ("qwen3", {"layer_types": ["sliding_attention"] * 2}, "and `sliding_window` is None"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, "`mlp_only_layers` is [0]"),
    ("qwen3_moe", {"decoder_sparse_step": 3}, "`decoder_sparse_step` is 3 of 2 layers"),
    ("qwen3_moe", {"shared_expert_intermediate_size": 8}, "`shared_expert_intermediate_size` is 8"),
    ("llama", {"is_causal": False}, "`is_causal` is False"),
    ("gpt_neox", {"is_causal": False}, "`is_causal` is False"),
    (
        "qwen3",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "rope_scaling": {"type": "linear", "factor": 3.0},
        },
        "`rope_scaling` has 'linear' for `rope_type`, and `rope_parameters` 'default'",
    ),
    (
        "gpt_neox",
        {"rope_parameters": None, "partial_rotary_factor": 0.5},
        "`partial_rotary_factor` is 0.5 and `rotary_pct`",
    ),
    ("gemma", {"hidden_activation": "relu"}, "`hidden_activation` is 'relu' and `hidden_act`"),
    ("gemma", {"use_bidirectional_attention": True}, "`use_bidirectional_attention` is True"),
    ("gemma2", {"query_pre_attn_scalar": "all"}, "`query_pre_attn_scalar` is 'all'"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping` is 50.0"),
    (
        "gemma3_text",
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        "rotations of local layers are scaled by 'linear'",
    ),
    ("phi3", {"resid_pdrop": 0.1}, "`resid_pdrop` is 0.1"),
    ("phi3", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rotations are scaled by 'yarn'"),
    ("phi3", {"rope_parameters": {**LONG, "long_factor": [1.0, 0]}}, "`long_factor` is [1.0, 0] beside"),
    ("olmo2", {"clip_qkv": 8.0}, "`clip_qkv` is 8.0"),
    ("olmo2", {"hidden_act": "quick_gelu"}, "`hidden_act` is 'quick_gelu'"),
    ("gpt_neox", {"num_attention_heads": 3}, "`hidden_size` is 16 and `num_attention_heads` 3"),
    ("gpt_neox", {"rope_parameters": None, "rotary_pct": 1.5}, "RoPE turns a share of 1.5"),
    ("llama", {"sliding_window": 6}, "`sliding_window` is 6"),
    ("llama", {"num_attention_heads": 0}, "`num_attention_heads` is 0"),
    ("llama", {"num_hidden_layers": 0}, "`num_hidden_layers` is 0"),
    ("llama", {"rms_norm_eps": 0.0}, "`rms_norm_eps` is 0.0"),
    ("llama", {"rope_parameters": {"rope_type": {}}}, "rotations are scaled by {}"),
    ("llama", {"rope_parameters": None, "rope_theta": 0}, "`rope_theta` is 0"),
    ("llama", {"rotary_emb_base": 300}, "`rotary_emb_base` is 300"),
    ("llama", {"scale_attn_weights": False}, "`scale_attn_weights` is False"),
    ("llama", {"architectures": "MistralForCausalLM"}, "`architectures` 'MistralForCausalLM'"),
    # `rope_scaling` counts for the library, which then has a base of 10,000.
    (
        "llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
        "`rope_scaling` has 10000.0 for `rope_theta`, and `rope_parameters` 1000.0",
    ),
    (
        "gemma3_text",
        {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 0}}},
        "`rope_theta` is 0",
    ),
    ("gemma2", {"hidden_activation": None, "hidden_act": "relu"}, "`hidden_act` is 'relu'"),
    (
        "llama",
        {
            "rope_scaling": {
                "full_attention": {"rope_theta": 5.0},
                "rope_type": "linear",
                "factor": 3.0,
                "rope_theta": 1e3,
            }
        },
        "`rope_scaling` has {'rope_theta': 5.0} for `full_attention`",
    ),
    ("phi3", {"rotary_pct": 0.5}, "`rotary_pct` is 0.5"),
    ("mixtral", {"num_experts": 3}, "`num_local_experts` is 4 and `num_experts`, another name of it, 3"),
    ("gpt2", {"num_attention_heads": 2}, "`n_head` is 4 and `num_attention_heads`, another name of it, 2"),
    ("gpt_neox", {"head_dim": 2}, "`head_dim` is 2"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "`query_pre_attn_scalar` is 0"),
    ("qwen3", {"per_layer_config": {"0": {"sliding_window": 2}}}, "`per_layer_config` is {'0'"),
    (
        "gemma3_text",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}},
        "`rope_parameters` does not say of which layers",
    ),
    (
        "gemma3_text",
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}},
        "`truncate` is False",
    ),
    (
        "gemma3_text",
        {"rope_parameters": {"sliding_attention": {"type": "linear"}}},
        "rotations of local layers are scaled by 'linear'",
    ),
]


@pytest.mark.parametrize(("family", "keys", "fact"), REFUSED)
def test_what_is_not_computed_is_refused_by_its_key(family, keys, fact, tmp_path):
    folder = write(tmp_path / family, family, **keys)
    error = error_of(lambda: interop.load(folder), interop.WeightsError)
    assert fact in error.fact and str(folder) in error.fact and error.fix


@pytest.mark.parametrize(("name", "usual"), [("gelu_fast", "gelu_tanh"), ("gelu_python", "gelu")])
def test_other_names_of_an_activation_are_read(name, usual, tmp_path):
    assert interop.read_config(write(tmp_path / "made", "llama", hidden_act=name)).activation == usual


FIRST_LENGTH = {"original_max_position_embeddings": 5}  # Phi-3 has it beside RoPE's keys


def test_a_size_that_does_not_fit_is_an_error_that_names_the_file(tmp_path):
    folder = write(tmp_path / "odd", "llama", head_dim=5)
    error = error_of(lambda: interop.read_config(folder), wf.DimError)
    assert "`d_kv` is 5" in error.fact and str(folder / "config.json") in error.state


def test_longrope_is_read_by_its_first_name_and_asks_for_a_number_of_each_wave(tmp_path):
    named = {key: value for key, value in LONG.items() if key != "rope_type"} | {"type": "su"}
    model = interop.read_config(
        write(tmp_path / "su", "phi3", rope_parameters=None, rope_scaling=named, **FIRST_LENGTH)
    )
    assert (model.rotary_scaling, model.rotary_long, model.rotary_length) == ("longrope", "1.25 4.0", 5)
    assert model.rotary_amplitude == pytest.approx((1 + np.log(32 / 5) / np.log(5)) ** 0.5)
    folder = write(
        tmp_path / "three", "phi3", rope_parameters={**LONG, "short_factor": [1.0, 1.0, 1.0]}, **FIRST_LENGTH
    )
    error = error_of(lambda: interop.read_config(folder), wf.DimError)
    assert "`rotary_short` has 3 numbers, and a head of 4 channels that turn has 2 waves" in error.fact


def test_a_text_is_not_continued_over_where_longrope_turns_all_keys_otherwise(tmp_path):
    model = interop.load(write(tmp_path / "long", "phi3", rope_parameters=LONG, **FIRST_LENGTH))
    error = error_of(lambda: decode.generate(model, [[5, 6, 7]], max_new_tokens=3), wf.DimError)
    assert "3 tokens and 3 more go beyond 5 positions" in error.fact and "at most 2 tokens" in error.fix
    assert decode.generate(model, [[5, 6, 7]], max_new_tokens=2).tokens.shape == (1, 2)


@pytest.mark.parametrize("name", ["gptj", "llama4", "gemma3", "gpt_oss"])
def test_a_family_that_is_not_read_is_named_with_what_differs(name, tmp_path):
    folder = write(tmp_path / name, "llama", model_type=name)
    error = error_of(lambda: interop.load(folder), interop.WeightsError)
    assert DIFFERS[name] in error.fact and "did you mean" not in str(error)


def test_of_an_unknown_family_the_keys_are_named_that_change_numbers(tmp_path):
    keys = {
        "n_routed_experts": 8,
        "first_k_dense_replace": 1,
        "kv_lora_rank": None,
        "qk_norm": False,
        "use_cache": True,
    }
    folder = write(tmp_path / "new", "llama", model_type="brand_new", vision_config={"depth": 3}, **keys)
    error = error_of(lambda: interop.load(folder), interop.WeightsError)
    assert "`first_k_dense_replace`, `n_routed_experts`, " in error.fact and "`vision_config`" in error.fact
    assert not any(f"`{key}`" in error.fact for key in ("kv_lora_rank", "qk_norm", "use_cache", "rope_parameters"))


def test_no_family_is_both_read_and_not():
    assert not ARCHITECTURES.keys() & DIFFERS.keys()
    assert {family.model_type for family in DECODERS} == set(FAMILIES)


# A model that was made here takes the form of the first family that can say it.

FITTING = {
    "llama": dict(),
    "mistral": dict(window=8),
    "qwen2": dict(bias="q k v", window=8, pattern="global local"),
    "qwen3": dict(qk_norm="head"),
    "mixtral": dict(experts=4, gating="dropless"),
    "olmo2": dict(qk_norm="all", norm_place="output"),
    "gemma": dict(norm_offset=True, embedding_scale=True, tied=True),
}


@pytest.mark.quick("qwen2")
@pytest.mark.parametrize("family", FITTING)
def test_a_model_made_here_is_written_as_the_family_that_it_is(family, tmp_path):
    changes = dict(layers=2, positions="rotary", gated=True, activation="silu", tied_scale=False, dropout=0.0)
    made = models.init(models.preset("tiny-lm", **changes | FITTING[family]), jax.random.key(0))
    interop.save(made, tmp_path / "made")
    assert config(tmp_path / "made")["model_type"] == family
    again = interop.load(tmp_path / "made")
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.asarray(a)[: b.shape[0]], np.asarray(b)[: a.shape[0]])


def test_a_model_that_no_family_can_say_is_refused(tmp_path):
    changes = dict(layers=2, positions="rotary", gated=True, tied_scale=False, parallel=True)
    made = models.init(models.preset("tiny-lm", **changes), jax.random.key(0))
    error = error_of(lambda: interop.save(made, tmp_path / "made"), interop.WeightsError)
    assert error.fact == "a model with `parallel=True` has no Hugging Face form"
    assert not (tmp_path / "made").exists()
