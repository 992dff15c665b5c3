"""`weft export` of runs that were trained: any checkpoint, adapters folded in, the tokenizer beside."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.train.toys import pairs_file, trained
from weft import data, interop, nn
from weft.decode.translate import Translator
from weft.train import Run

from .command import weft

INPUTS = np.array([[3, 4, 5, 6, 1]] * 2)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A run with LoRA adapters beside those of T5's form."""
    folder = tmp_path_factory.mktemp("adapted")
    form = ["model.positions=relative", "model.scale_scores=false", "model.vocab_multiple=1", "lora.rank=2"]
    return trained(folder, "seq2seq", pairs_file(folder, 100), *form)[0]


def test_a_trained_run_is_written_with_its_adapters_folded_in_and_its_tokenizer(adapted, tmp_path):
    printed, _ = weft("export", adapted.folder, tmp_path / "out", "--step", 2)
    assert printed.endswith(f"step 2 written to {tmp_path / 'out'}\n")
    model, written = adapted.load(step=2), interop.load(tmp_path / "out")
    after, before = (np.asarray(each.logits(INPUTS, INPUTS))[..., :259] for each in (written, model))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
    own = [path for path in nn.paths(model) if path.endswith(".up")]
    assert own and not any(path.endswith(".up") for path in nn.paths(written))
    assert data.load_tokenizer(tmp_path / "out").key == adapted.tokenizer.key
    told = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (told["eos_token_id"], told["pad_token_id"], told["decoder_start_token_id"]) == (1, 0, 0)


def test_the_mean_of_checkpoints_is_written(adapted, tmp_path):
    weft("export", adapted.folder, tmp_path / "mean", "--average", 3)
    written = interop.load(tmp_path / "mean").encoder.layers.attention.q.array
    each = [adapted.load(step=step).encoder.layers.attention.q for step in (1, 2, 3)]
    down, up = (np.mean([getattr(q, part).array for q in each], axis=0) for part in ("down", "up"))
    thin = 2 * np.einsum("ldr,lrhk->ldhk", down, up)
    np.testing.assert_allclose(written, each[0].weight.array + thin, rtol=1e-4, atol=1e-5)
    assert np.abs(thin).max() > 1e-3


def test_a_model_with_adapters_translates(adapted):
    assert len(Translator(adapted.load(), adapted.tokenizer, beams=2, batch=2, tokens=4)(["a b c"])) == 1


def test_a_tokenizer_is_imported_with_the_weights(tmp_path):
    fixture = Path(__file__).parents[1] / "interop" / "fixtures" / "gpt2"
    shutil.copytree(fixture, tmp_path / "given")
    data.ByteTokenizer().save(tmp_path / "given")
    weft("import", tmp_path / "given", tmp_path / "run")
    assert Run(tmp_path / "run").tokenizer.key == data.ByteTokenizer().key
