"""Parts that published recipes ask for: scaled embeddings, ReLU squared, dropout place by place."""

import equinox as eqx
import jax
import numpy as np
import pytest

import weft as wf
from weft import models

TOKENS = wf.tensor(np.random.default_rng(0).integers(1, 64, (8, 16)).astype("int32"), "batch length")
BATCH = {"inputs": TOKENS, "targets": TOKENS}
SPLIT = ("rows=2,cols=4", "batch:rows,heads:cols,d_ff:cols,vocab:cols")


def made(preset="tiny-mt", where=(), **changes):
    return models.init(models.preset(preset, **dict(layers=2, dropout=0.0) | changes), jax.random.key(1), *where)


def test_a_scaled_embedding_is_a_table_of_larger_vectors():
    scaled = made("tiny-lm", embedding_scale=True, embedding_stddev=0.25)
    plain = made("tiny-lm", embedding_stddev=0.25)
    larger = eqx.tree_at(lambda m: m.embedding.table, plain, plain.embedding.table * 32**0.5)
    np.testing.assert_allclose(scaled.logits(TOKENS), larger.logits(TOKENS), rtol=0, atol=1e-4)


PLACES = {
    "nowhere": dict(dropout=0.0),
    "in attention": dict(attention_dropout=0.4),
    "between the maps": dict(hidden_dropout=0.4),
    "in the stream": dict(dropout=0.4, attention_dropout=0.0, hidden_dropout=0.0),
    "everywhere": dict(dropout=0.4),
}


@pytest.mark.quick("in the stream")
@pytest.mark.parametrize("place", PLACES)
def test_dropout_is_where_it_is_asked_for_and_the_same_under_a_layout(place):
    changes, key = PLACES[place] | dict(activation="relu2", embedding_scale=True, smoothing=0.1), jax.random.key(3)
    model = made(**changes)
    drawn, plain = float(model.loss(BATCH, key)), float(model.loss(BATCH))
    assert (drawn == plain) == (place == "nowhere")
    everywhere = float(
        made(**changes | dict(dropout=0.4, attention_dropout=None, hidden_dropout=None)).loss(BATCH, key)
    )
    assert (drawn == everywhere) == (place == "everywhere")
    assert float(made(where=SPLIT, **changes).loss(BATCH, key)) == pytest.approx(drawn, rel=2**-18)


def test_first_values_are_as_large_as_asked_and_blocks_can_begin_with_nothing():
    model = made("tiny-mt", weight_stddev=0.02, output_stddev=0.0, output_dropout=0.5)
    block = model.decoder.layers
    for weight in (block.attention.q, block.memory_attention.v, block.feed_forward.w_in):
        assert float(np.std(weight.array)) == pytest.approx(0.02, rel=0.1)
    for weight in (block.attention.o, block.memory_attention.o, block.feed_forward.w_out):
        assert not np.any(weight.array)
    assert float(np.std(made("tiny-mt", output_stddev=0.3).encoder.layers.attention.o.array)) == pytest.approx(
        0.3, rel=0.1
    )
    key = jax.random.key(0)
    assert float(model.loss(BATCH, key)) != float(model.loss(BATCH))
