"""Against `transformers` itself, where it is installed: models of other sizes, and its reading of what is written."""

import numpy as np
import pytest

from tests.interop.folders import FIXTURES, NAMES, TOLERANCE, expected, loaded, logits
from weft import interop

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.interop import make_fixtures  # noqa: E402  (it needs both)

SEQ2SEQ = dict(relative_attention_num_buckets=16, relative_attention_max_distance=30, decoder_start_token_id=0)
MADE = {
    "t5": ("T5", dict(d_kv=6, num_heads=3, d_ff=20, d_model=12, num_layers=3, **SEQ2SEQ)),
    "flan": ("T5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=1, feed_forward_proj="gated-gelu")),
    "silu": ("T5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=2, feed_forward_proj="gated-silu")),
    "unscaled": ("T5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=2, tie_word_embeddings=False)),
    "gpt2": ("GPT2", dict(n_embd=24, n_layer=3, n_head=2, n_positions=20)),
    "gpt2-untied": ("GPT2", dict(n_embd=8, n_layer=1, n_head=1, n_positions=20, tie_word_embeddings=False)),
    "llama": ("Llama", dict(hidden_size=24, num_attention_heads=6, num_key_value_heads=2, intermediate_size=20)),
    "llama-biased": (
        "Llama",
        dict(hidden_size=16, num_attention_heads=2, head_dim=12, intermediate_size=20, attention_bias=True),
    ),
    "switch": (
        "SwitchTransformers",
        dict(d_kv=4, num_heads=2, d_ff=10, d_model=8, num_layers=4, num_decoder_layers=4, num_experts=3)
        | dict(num_sparse_encoder_layers=2, num_sparse_decoder_layers=2, decoder_start_token_id=0),
    ),
    "switch-all": (
        "SwitchTransformers",
        dict(d_kv=4, num_heads=2, d_ff=10, d_model=8, num_layers=2, num_decoder_layers=2, num_experts=5)
        | dict(num_sparse_encoder_layers=2, num_sparse_decoder_layers=2, tie_word_embeddings=False),
    ),
}
KINDS = {
    "T5": "T5ForConditionalGeneration",
    "GPT2": "GPT2LMHeadModel",
    "Llama": "LlamaForCausalLM",
    "SwitchTransformers": "SwitchTransformersForConditionalGeneration",
}


def made(name, seed=11):
    family, sizes = MADE[name]
    sizes = {"vocab_size": 71, **sizes}
    if family == "Llama":
        sizes = {"num_hidden_layers": 3, "max_position_embeddings": 32, **sizes}
    model = getattr(transformers, KINDS[family])(getattr(transformers, f"{family}Config")(**sizes)).eval()
    make_fixtures.fill(model, seed)
    if name == "switch-all":  # untied, the library gives each stack a table of its own
        for stack in (model.encoder, model.decoder):
            stack.embed_tokens.weight.data = model.shared.weight.data.clone()
    return model


def theirs(model, given):
    return make_fixtures.logits_of(model, {key: torch.tensor(given[key]).long() for key in given}).numpy()


@pytest.mark.parametrize("name", MADE)
def test_logits_of_any_sizes_are_those_of_transformers(name, tmp_path):
    model = made(name)
    model.save_pretrained(tmp_path / name)
    given = {key: value.numpy() for key, value in make_fixtures.inputs_of(model.config, 5).items()}
    ours = interop.load(tmp_path / name)
    np.testing.assert_allclose(logits(ours, given), theirs(model, given), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", [*NAMES, *MADE])
def test_transformers_reads_what_is_written(name, tmp_path):
    if name in MADE:
        first = made(name)
        first.save_pretrained(tmp_path / "first")
        ours, kind = interop.load(tmp_path / "first"), type(first)
        given = {key: value.numpy() for key, value in make_fixtures.inputs_of(first.config, 5).items()}
        wanted = theirs(first, given)
    else:
        ours, kind = loaded(name), make_fixtures.MODELS[name][0]
        given = dict(expected(name))
        wanted = given.pop("logits")
    interop.save(ours, tmp_path / "ours", shard_bytes=10_000)
    again, report = kind.from_pretrained(tmp_path / "ours", dtype="auto", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert again.dtype == torch.float32
    np.testing.assert_array_equal(theirs(again.eval(), given), wanted)


def test_narrow_weights_are_narrow_in_transformers_too(tmp_path):
    interop.save(interop.load(FIXTURES / "llama", param_dtype="bfloat16"), tmp_path / "ours")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto")
    assert again.dtype == torch.bfloat16
