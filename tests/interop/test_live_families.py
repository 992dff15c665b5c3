"""Every family of language models against `transformers` itself, where it is installed: odd configurations of each."""

import jax
import numpy as np
import pytest

import weft as wf
from tests.interop.families import CASES, batch_of, memory_of, tokens_of
from tests.interop.folders import TOLERANCE, config, same_bits, tensors
from weft import decode, interop

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from tests.interop import make_families  # noqa: E402  (it needs both)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_model_of_any_sizes_is_that_of_transformers_and_goes_back(family, name, tmp_path):
    theirs = make_families.make(family, name, tmp_path / "theirs")
    wanted = make_families.results_of(theirs, tokens_of(family))
    ours = interop.load(tmp_path / "theirs", remat=False)

    def run(model, batch):
        return model.loss(batch), model.logits(tokens_of(family))

    batch = {key: wf.tensor(x, "batch length") for key, x in batch_of(family).items()}
    (loss, logits), gradients = jax.jit(wf.value_and_grad(run, has_aux=True))(ours, batch)
    np.testing.assert_allclose(np.asarray(logits.array)[..., :61], wanted["logits"], atol=TOLERANCE, rtol=0)
    is_said = not ours.config.experts or not ours.config.balance_loss  # else it has what keeps experts in balance too
    assert not is_said or float(loss) == pytest.approx(wanted["loss"], abs=1e-5)
    interop.save(gradients, tmp_path / "gradients")
    found = tensors(tmp_path / "gradients")
    compared = [key for key in wanted["gradients"] if key in found]
    assert len(compared) > 10
    for key in compared if is_said else ():
        atol = 1e-4 * max(np.abs(wanted["gradients"][key]).max(), 1e-2)
        np.testing.assert_allclose(found[key], wanted["gradients"][key], rtol=0, atol=atol, err_msg=key)

    interop.save(ours, tmp_path / "again", shard_bytes=5_000)
    assert same_bits(tensors(tmp_path / "again"), tensors(tmp_path / "theirs"))
    assert config(tmp_path / "again")["model_type"] == family
    again = make_families.read(family, tmp_path / "again")  # fails by itself where keys are missing or unexpected
    np.testing.assert_allclose(
        make_families.results_of(again, tokens_of(family))["logits"], wanted["logits"], atol=TOLERANCE, rtol=0
    )


def test_cross_attention_to_what_an_encoder_made_is_that_of_transformers(tmp_path):
    wanted = make_families.crossed_logits(tmp_path / "theirs")
    ours = interop.load(tmp_path / "theirs")
    found = np.asarray(ours.logits(tokens_of("gpt2"), memory=memory_of()).array)[..., :61]
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_greedy_decoding_finds_what_transformers_finds(family, name, tmp_path):
    theirs = make_families.make(family, name, tmp_path / "theirs")
    ours = interop.load(tmp_path / "theirs")
    prompts = tokens_of(family)[:, :6]
    wanted = theirs.generate(
        input_ids=torch.tensor(prompts), do_sample=False, max_new_tokens=6, min_new_tokens=6, eos_token_id=None,
        pad_token_id=0, use_cache=name != "one back",  # the library's cache keeps all of a window of 1
    )[:, 6:].numpy()  # fmt: skip
    found = np.asarray(decode.generate(ours, prompts.tolist(), max_new_tokens=6).tokens)
    np.testing.assert_array_equal(found, wanted)
