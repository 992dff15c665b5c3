"""Makes `fixtures/families/`: for each family of language models its config, the shapes of its tensors, and results.

Run it in an environment with `torch` and `transformers`. The weights are drawn from a seed and not kept.

    python -m tests.interop.make_families
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

from tests.interop.families import CROSSED, FAMILIES, FIRST, memory_of, sizes_of, tokens_of, values_of

FIXTURES = Path(__file__).parent / "fixtures" / "families"


def make(family: str, name: str, folder: Path) -> Any:
    """A model in a folder, as `transformers` writes it, with our values; and read again."""
    kind, config, _ = FAMILIES[family]
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes_of(family, name)))
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    shapes = {tensor: values.shape for tensor, values in load_file(file).items()}
    save_file(values_of(family, shapes), file, {"format": "pt"})
    return read(family, folder)


def read(family: str, folder: Path) -> Any:
    """The model of a folder; fails where it finds keys that it does not want, or misses some."""
    kind = getattr(transformers, FAMILIES[family][0])
    model, report = kind.from_pretrained(
        folder, dtype="auto", attn_implementation="eager", output_loading_info=True, experts_implementation="eager"
    )
    assert not any(report.values()), report
    return model.eval()


def results_of(model: Any, tokens: np.ndarray) -> dict[str, Any]:
    """The logits, the loss of each token but the first, and its gradient by weights."""
    ids = torch.tensor(tokens)
    model.zero_grad()
    out = model(input_ids=ids, use_cache=False)
    logits = out.logits[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
    loss.backward()
    gradients = {name: weight.grad.numpy() for name, weight in model.named_parameters() if weight.grad is not None}
    return {"logits": out.logits.detach().numpy(), "loss": float(loss), "gradients": gradients}


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    for family, name in FIRST.items():
        with tempfile.TemporaryDirectory() as folder:
            model = make(family, name, Path(folder))
            results = results_of(model, tokens_of(family))
            config = json.loads((Path(folder) / "config.json").read_text())
            shapes = {
                tensor: list(x.shape) for tensor, x in sorted(load_file(Path(folder) / "model.safetensors").items())
            }
        sizes = {tensor: float(np.linalg.norm(x)) for tensor, x in results["gradients"].items() if tensor in shapes}
        written = {"config": config, "shapes": shapes, "loss": results["loss"], "gradients": sizes}
        (FIXTURES / f"{family}.json").write_text(json.dumps(written, separators=(",", ":")) + "\n")
        np.save(FIXTURES / f"{family}.npy", results["logits"])
    make_crossed()


def crossed_logits(folder: Path) -> np.ndarray:
    """Those of a GPT-2 with cross-attention to `memory_of()`."""
    model = make(*CROSSED, folder)
    with torch.no_grad():
        out = model(input_ids=torch.tensor(tokens_of("gpt2")), encoder_hidden_states=torch.tensor(memory_of()))
    return out.logits.numpy()


def make_crossed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        np.save(FIXTURES / "gpt2-cross.npy", crossed_logits(Path(folder)))


if __name__ == "__main__":
    main()
