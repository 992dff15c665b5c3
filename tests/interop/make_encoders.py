"""Makes the folders of encoders in `fixtures/`: tiny models with random weights as `transformers` writes them.

    python tests/interop/make_encoders.py [NAME ..]

in an environment with torch and transformers, as `make_fixtures.py`, from whose seeds these follow too.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.append(str(Path(__file__).parents[2]))
from tests.interop.make_fixtures import FIXTURES, fill

VOCAB = 29
BERT = dict(vocab_size=VOCAB, hidden_size=8, num_attention_heads=4, intermediate_size=8, num_hidden_layers=2)
BERT |= dict(max_position_embeddings=16, num_labels=3, pad_token_id=0)
MODERN = BERT | dict(num_hidden_layers=4, local_attention=4, bos_token_id=1, eos_token_id=1)
VIT = dict(hidden_size=8, num_attention_heads=4, intermediate_size=8, num_hidden_layers=2, num_labels=4)
VIT |= dict(image_size=(8, 12), patch_size=4)
T5 = dict(vocab_size=VOCAB, d_model=8, d_kv=2, d_ff=8, num_heads=4, num_layers=2, relative_attention_num_buckets=8)
MADE = {
    "t5-encoder": (transformers.T5EncoderModel, transformers.T5Config(**T5, feed_forward_proj="gated-gelu")),
    "bert": (transformers.BertForPreTraining, transformers.BertConfig(**BERT)),
    "modernbert": (transformers.ModernBertForMaskedLM, transformers.ModernBertConfig(**MODERN)),
    "vit": (transformers.ViTForImageClassification, transformers.ViTConfig(**VIT)),
    "bert-classes": (transformers.BertForSequenceClassification, transformers.BertConfig(**BERT)),
}


def inputs_of(seed: int, config: Any) -> dict[str, Any]:
    """Ids with padding behind the words of some, and types of them; images for a ViT."""
    random = np.random.default_rng(seed)
    if isinstance(config, transformers.ViTConfig):
        height, width = np.broadcast_to(config.image_size, 2)
        return {"images": random.normal(size=(4, height, width, config.num_channels)).astype("float32")}
    ids = random.integers(2, config.vocab_size, (4, 8))
    ids[1, 6:], ids[2, 3:] = 0, 0
    return {"tokens": ids, "types": np.sort(random.integers(0, 2, (4, 8)))}


def arguments_of(model: Any, given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The same as `transformers` takes them."""
    if "images" in given:
        return {"pixel_values": torch.tensor(given["images"]).permute(0, 3, 1, 2)}
    ids = torch.tensor(given["tokens"]).long()
    arguments = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    if model.config.model_type == "bert":
        arguments["token_type_ids"] = torch.tensor(given["types"]).long()
    return arguments


def outputs_of(model: Any, given: dict[str, Any]) -> dict[str, np.ndarray]:
    """The logits; of pretraining those of both heads; without any, what the encoder makes."""
    with torch.no_grad():
        out = model(**arguments_of(model, given))
    if hasattr(out, "prediction_logits"):
        return {"logits": out.prediction_logits.numpy(), "classes": out.seq_relationship_logits.numpy()}
    return {"logits": out.logits.numpy()} if hasattr(out, "logits") else {"hidden": out.last_hidden_state.numpy()}


def main(*names: str) -> None:
    for name in names or MADE:
        kind, config = MADE[name]
        model = kind(config).eval()
        seed = 40 + sorted(MADE).index(name)
        fill(model, seed)
        model.save_pretrained(FIXTURES / name)
        (FIXTURES / name / "generation_config.json").unlink(missing_ok=True)
        given = inputs_of(seed, config)
        arrays = {key: value if key == "images" else value.astype("int32") for key, value in given.items()}
        np.savez_compressed(FIXTURES / name / "expected.npz", **arrays, **outputs_of(model, given))


if __name__ == "__main__":
    main(*sys.argv[1:])
