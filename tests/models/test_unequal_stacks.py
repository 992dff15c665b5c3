"""Encoder-decoders whose stacks have other numbers of layers, and relative biases of every layer's own."""

import dataclasses

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft import decode, models

SIZES = dict(d_model=8, heads=4, d_kv=4, d_ff=8, vocab=24, vocab_multiple=8, batch=4, length=8, dtype="float32")
CONFIG = models.Seq2SeqConfig(
    name="unequal",
    layers=1,
    decoder_layers=3,
    positions="relative",
    relative_by_layer=True,
    buckets=8,
    padding=0,
    **SIZES,
)
LAYOUTS = ["batch:rows,heads:cols,d_ff:cols", "length:rows,stream:cols,params.d_model:cols"]


@pytest.fixture(scope="module")
def model():
    return models.init(CONFIG, jax.random.key(0))


@pytest.fixture(scope="module")
def batch():
    random = np.random.default_rng(0)
    return {name: random.integers(1, 24, (4, 8)) for name in ("inputs", "targets")}


def test_each_stack_has_its_own_number_of_layers_and_each_layer_its_biases(model):
    tables = model.encoder.layers.relative.table, model.decoder.layers.relative.table
    assert [table.size("layers") for table in tables] == [1, 3]
    assert model.encoder.relative is None and CONFIG.param_count == sum(x.size for x in jax.tree.leaves(model))
    one = models.init(dataclasses.replace(CONFIG, decoder_layers=None), jax.random.key(0))
    assert one.decoder.layers.relative.table.size("layers") == 1


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_neither_the_loss_nor_gradients(model, batch, layout):
    want, gradients = wf.value_and_grad(lambda m, b: m.loss(b))(model, batch)
    on = models.init(CONFIG, jax.random.key(0), "rows=2,cols=2", layout)
    named = {name: wf.tensor(x, "batch length") for name, x in batch.items()}
    step = wf.spmd(wf.value_and_grad(lambda m, b: m.loss(b)), mesh="rows=2,cols=2", layout=layout)
    value, ours = step(on, named)
    np.testing.assert_allclose(float(value), float(want), rtol=1e-6)
    for a, b in zip(jax.tree.leaves(wf.get(ours)), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-4)


def test_decoding_says_what_the_logits_say(model, batch):
    found = decode.generate(model, batch["inputs"].tolist(), max_new_tokens=3).sequences
    targets_in = np.zeros((4, 1), int)
    for _ in range(3):
        best = np.asarray(model.logits(batch["inputs"], targets_in).array)[:, -1, :24].argmax(-1)
        targets_in = np.concatenate([targets_in, best[:, None]], axis=1)
    assert found == targets_in[:, 1:].tolist()


def test_a_decoder_that_cannot_be_is_refused_as_the_model_would_be():
    error = error_of(lambda: dataclasses.replace(CONFIG, decoder_layers=3, experts=2, every=2, layers=2), wf.DimError)
    assert "every 2 of 3 layers" in error.fact
    error = error_of(lambda: dataclasses.replace(CONFIG, positions="learned"), wf.TensorError)
    assert "`relative_by_layer` is True, and positions are 'learned'" in error.fact
