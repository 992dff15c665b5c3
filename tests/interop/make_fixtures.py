"""Makes the folders in `fixtures/`: tiny models with random weights as `transformers` writes them, and its own results.

Run it in an environment of its own, for weft needs neither library:

    pip install torch transformers
    python tests/interop/make_fixtures.py [NAME ..]

Every model is made from its own seed, so that the files come out the same.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

FIXTURES = Path(__file__).parent / "fixtures"
SEQ2SEQ = dict(vocab_size=61, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=4)
SEQ2SEQ |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=20)
SEQ2SEQ |= dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
LLAMA = dict(vocab_size=67, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4)
LLAMA |= dict(num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=10_000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
SMALL = dict(vocab_size=29, d_model=8, d_kv=2, d_ff=8, num_heads=4, relative_attention_num_buckets=8)
SMALL |= dict(relative_attention_max_distance=20, num_layers=1, num_decoder_layers=2)
SEEDS = {"mt5": 7, "umt5": 8}
SEEDS |= {"t5": 25, "t5.1.1": 2, "gpt2": 3, "llama": 4, "llama-tied": 5, "switch": 6}  # 25: see `check_clear`
LENGTHS = (12, 7, 3, 9)  # of the inputs of an encoder; the rest is padding
MODELS = {
    "t5": (transformers.T5ForConditionalGeneration, transformers.T5Config(**SEQ2SEQ)),
    "t5.1.1": (
        transformers.T5ForConditionalGeneration,
        transformers.T5Config(**SEQ2SEQ, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "mt5": (transformers.MT5ForConditionalGeneration, transformers.MT5Config(**SMALL)),
    "umt5": (transformers.UMT5ForConditionalGeneration, transformers.UMT5Config(**SMALL)),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(
            vocab_size=63, n_embd=16, n_layer=2, n_head=4, n_positions=32, n_inner=40, bos_token_id=2, eos_token_id=2
        ),
    ),
    "llama": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(**LLAMA, rms_norm_eps=1e-5, rope_parameters={"rope_theta": 5000.0}),
    ),
    "llama-tied": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            **LLAMA,
            tie_word_embeddings=True,
            head_dim=8,
            rope_parameters=LLAMA3 | {"original_max_position_embeddings": 32},
        ),
    ),
    "switch": (
        transformers.SwitchTransformersForConditionalGeneration,
        transformers.SwitchTransformersConfig(
            **SEQ2SEQ, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1
        ),
    ),
}


def fill(model: Any, seed: int) -> None:
    """Gives every weight values at which every part of the model matters."""
    random = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        values = torch.randn(weight.shape, generator=random)
        if "norm" in name.lower() or "ln_" in name:
            values = values * 0.1 + (0.0 if name.endswith("bias") else 1.0)
        elif weight.ndim == 1:
            values = values * 0.1
        elif "relative" not in name and "shared" not in name:
            values = values * 0.3
        weight.data = values


def inputs_of(config: Any, seed: int) -> dict[str, torch.Tensor]:
    random = np.random.default_rng(seed)
    ids = random.integers(2, config.vocab_size, (len(LENGTHS), max(LENGTHS)))
    if not config.is_encoder_decoder:
        return {"tokens": torch.tensor(ids)}
    for row, length in zip(ids, LENGTHS, strict=True):
        row[length:] = 0
    targets_in = random.integers(2, config.vocab_size, (len(LENGTHS), 9))
    targets_in[:, 0] = 0
    return {"inputs": torch.tensor(ids), "targets_in": torch.tensor(targets_in)}


def logits_of(model: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        if "tokens" in given:
            return model(input_ids=given["tokens"]).logits
        mask = (given["inputs"] != 0).long()
        return model(
            input_ids=given["inputs"], attention_mask=mask, decoder_input_ids=given["targets_in"], use_cache=False
        ).logits


def make(name: str, seed: int) -> Any:
    kind, config = MODELS[name]
    model = kind(config).eval()
    if name in ("t5.1.1", "mt5"):  # this version of the library ties the two; the published files hold both
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(config.vocab_size, config.d_model))
    fill(model, seed)
    if name == "t5":
        model.shared.weight.data[config.eos_token_id] *= 2.0  # so that sequences end
    given = inputs_of(config, seed)
    folder = FIXTURES / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if name in ("t5.1.1", "mt5"):
        written = json.loads((folder / "config.json").read_text())
        written.pop("scale_decoder_outputs", None)
        (folder / "config.json").write_text(json.dumps(written | {"tie_word_embeddings": False}, indent=2) + "\n")
    logits = logits_of(model, given)
    arrays = {key: value.numpy().astype("int32") for key, value in given.items()}
    np.savez_compressed(folder / "expected.npz", **arrays, logits=logits.numpy())
    return model


def beams(model: Any, inputs: torch.Tensor) -> list[dict[str, Any]]:
    """What `generate` finds by beam search, for each way of searching."""
    found = []
    for count in (1, 4):
        for penalty in (0.0, 1.0):
            for early in (True, False, "never"):
                result = model.generate(
                    input_ids=inputs,
                    attention_mask=(inputs != 0).long(),
                    num_beams=count,
                    num_return_sequences=count,
                    length_penalty=penalty,
                    early_stopping=early,
                    max_new_tokens=12,
                    do_sample=False,
                    return_dict_in_generate=True,
                    output_scores=True,
                )
                rows = result.sequences.reshape(len(inputs), count, -1).tolist()
                scores = None if count == 1 else result.sequences_scores.reshape(len(inputs), count).tolist()
                how = {"num_beams": count, "length_penalty": penalty, "early_stopping": early}
                found.append(how | {"sequences": rows, "scores": scores})
    return found


def check_clear(model: Any, inputs: torch.Tensor, found: list[dict[str, Any]]) -> None:
    """Fails where slightly other weights would have found other sequences, or where none or all of them end."""
    ends = {(row + [1]).index(1) for how in found if how["num_beams"] > 1 for rows in how["sequences"] for row in rows}
    assert len(ends) >= 5, ends
    by_length = [str(how["sequences"]) for how in found if how["num_beams"] > 1 and how["length_penalty"] == 1]
    assert len(set(by_length)) == 3  # it matters when the search stops
    exact = [weight.data.clone() for weight in model.parameters()]
    for seed in range(3):
        random = torch.Generator().manual_seed(seed)
        for weight, kept in zip(model.parameters(), exact, strict=True):
            weight.data = kept * (1 + 1e-4 * torch.randn(kept.shape, generator=random))
        again = beams(model, inputs)
        assert [how["sequences"] for how in again] == [how["sequences"] for how in found]
    for weight, kept in zip(model.parameters(), exact, strict=True):
        weight.data = kept


def main(*names: str) -> None:
    for name, seed in ((name, SEEDS[name]) for name in names or SEEDS):
        model = make(name, seed)
        if name == "t5":
            inputs = inputs_of(model.config, seed)["inputs"][:3]
            found = beams(model, inputs)
            check_clear(model, inputs, found)
            written = {"inputs": inputs.tolist(), "max_new_tokens": 12, "eos": 1, "results": found}
            (FIXTURES / name / "beams.json").write_text(json.dumps(written) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
