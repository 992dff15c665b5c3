"""Makes `fixtures/decoding.json`: what `transformers` writes with the fixtures' models, constrained in every way.

Run it as `make_fixtures.py`, after it, from the repository:

    python -m tests.interop.make_decoding
"""

import json
from typing import Any

import numpy as np
import torch
import transformers
from transformers.generation import logits_process

from tests.interop.cases import BEAMS, CONSTRAINTS, FILTERS
from tests.interop.make_fixtures import FIXTURES, MODELS

MADE = FIXTURES / "decoding.json"
LENGTHS = (1, 2, 3, 5, 6, 8, 9, 11)
STEPS = 12


class Own(transformers.LogitsProcessor):
    """No id after the one before it; at every other step, small ids are likelier."""

    def __init__(self, begun: int):
        self.begun = begun

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ids, step = torch.arange(scores.shape[-1]), input_ids.shape[-1] - self.begun
        scores = torch.where(ids == input_ids[:, -1:] + 1, -1e9, scores)
        return scores + 2.0 * (step % 2) * (ids < 10)


def write(model: Any, prompt: list[int], how: dict[str, Any], **more: Any) -> Any:
    how = {"eos_token_id": [7], **how, **more}
    begun = 1 if model.config.is_encoder_decoder else len(prompt)
    own = [Own(begun)] if how.pop("own", False) else []
    ids = torch.tensor([prompt])
    model.generation_config.pad_token_id = 0
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        logits_processor=transformers.LogitsProcessorList(own),
        max_new_tokens=STEPS,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **how,
    ), begun


def cut(row: list[int], ends: list[int]) -> list[int]:
    """A row up to its first end."""
    at = next((place for place, token in enumerate(row) if token in ends), len(row))
    return row[: at + 1]


def rows_of(name: str, model: Any, prompts: list[list[int]]) -> dict[str, Any]:
    greedy, beams = {}, {}
    for case, how in CONSTRAINTS.items():
        found = [write(model, prompt, how) for prompt in prompts]
        ends = how.get("eos_token_id", [7])
        greedy[case] = [cut(result.sequences[0, begun:].tolist(), ends) for result, begun in found]
    for case, how in BEAMS.items():
        ends = how.get("eos_token_id", [7])
        beams[case] = []
        for prompt in prompts[::2]:
            more = {"early_stopping": "never"} | how
            result, begun = write(model, prompt, more, num_beams=3, num_return_sequences=3)
            tokens = [cut(row[begun:].tolist(), ends) for row in result.sequences]
            beams[case].append({"tokens": tokens, "scores": result.sequences_scores.tolist()})
    return {"prompts": prompts, "greedy": greedy, "beams": beams}


def filtered() -> list[dict[str, Any]]:
    """The chances of ids after filters, in the order in which the library has them."""
    logits = torch.tensor(np.random.default_rng(4).normal(size=(3, 12)) * 2, dtype=torch.float32)
    found = []
    for how in FILTERS:
        kept = logits
        for key, warper in (
            ("temperature", logits_process.TemperatureLogitsWarper),
            ("top_k", logits_process.TopKLogitsWarper),
            ("top_p", logits_process.TopPLogitsWarper),
            ("min_p", logits_process.MinPLogitsWarper),
        ):
            kept = warper(how[key])(torch.tensor([[0]] * 3), kept) if key in how else kept
        found.append({"how": how, "logits": logits.tolist(), "chances": torch.softmax(kept, -1).tolist()})
    return found


def main() -> None:
    made: dict[str, Any] = {"filters": filtered()}
    for name in ("gpt2", "llama", "t5"):
        kind, config = MODELS[name]
        model = kind.from_pretrained(FIXTURES / name).eval()
        random = np.random.default_rng(8)
        prompts = [random.integers(2, config.vocab_size, size).tolist() for size in LENGTHS]
        made[name] = rows_of(name, model, prompts)
    MADE.write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
