"""The vision Transformer: the same numbers under every layout, also where positions are split; its errors."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft import models, nn

CONFIG = models.preset("tiny-vit", layers=2, d_model=16, heads=4, d_kv=4, d_ff=16, dropout=0.0)
LAYOUTS = [
    "batch:x,heads:y,d_ff:y",
    "params.d_model:x",
    "length:x",
    "length:x,memory_length:x,heads:y",
    "stream:x,queries:x,batch:y",
    "height:x,width:y",
    "length:x+y,params.d_ff:x",
    "stream:y,batch:x,d_ff:y,heads:y",
]
pytestmark = pytest.mark.filterwarnings("ignore:no rule of the layout uses mesh axis")


@pytest.fixture(scope="module")
def batch():
    random = np.random.default_rng(0)
    return {"images": random.normal(size=(8, 16, 16, 3)).astype("float32"), "labels": np.arange(8) % 8}


@pytest.fixture(scope="module")
def alone(batch):
    model = models.init(CONFIG, jax.random.key(0))
    return model, np.asarray(model.logits(batch["images"]))


@pytest.fixture(scope="module")
def gradients(batch, alone):
    return wf.value_and_grad(lambda m, b: m.loss(b))(alone[0], batch)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_no_number(layout, batch, alone, gradients):
    (_, want), (loss, gradients) = alone, gradients
    model = models.init(CONFIG, jax.random.key(0), "x=2,y=2", layout)
    np.testing.assert_allclose(np.asarray(model.logits(batch["images"])), want, atol=1e-5)
    named = {"images": wf.tensor(batch["images"], "batch height width in_channels")}
    named["labels"] = wf.tensor(batch["labels"], "batch")
    run = wf.spmd(wf.value_and_grad(lambda m, b: m.loss(b)), mesh="x=2,y=2", layout=layout)
    value, ours = run(model, named)
    np.testing.assert_allclose(float(value), float(loss), rtol=1e-6)
    for a, b in zip(jax.tree.leaves(wf.get(ours)), jax.tree.leaves(wf.get(gradients)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_it_learns_which_image_is_which_and_a_layout_changes_no_step(batch):
    losses = []
    for layout in ("", "batch:x,length:y"):
        mesh = "x=2,y=2" if layout else "x=1"
        config = dataclasses.replace(CONFIG, dropout=0.1)
        step = wf.train_step(lambda m, b, key: m.loss(b, key), optax.adam(1e-2), mesh=mesh, layout=layout)
        state = step.init(models.init(config, jax.random.key(0), mesh, layout))
        named = {"images": wf.tensor(batch["images"], "batch height width in_channels")}
        named["labels"] = wf.tensor(batch["labels"], "batch")
        for turn in range(20):
            state, metrics = step(state, named, jax.random.key(turn))
        losses.append(float(metrics["loss"]))
    assert losses[0] < 1.0 < np.log(8)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


def test_images_are_named_in_any_order(batch, alone):
    model, want = alone
    images = wf.tensor(batch["images"].transpose(0, 3, 1, 2), "batch in_channels height width")
    np.testing.assert_allclose(np.asarray(model.logits(images)), want, atol=1e-5)


def test_an_encoder_alone_gives_what_it_makes_of_each_patch(batch):
    config = dataclasses.replace(CONFIG, classes=0)
    assert config.length == 17 and not config.dims.has("vocab") and not config.dims.has("classes")
    model = models.init(config, jax.random.key(0))
    assert model.hidden(batch["images"]).dims.sizes == (8, 17, 16)
    assert "without" not in error_of(lambda: model.logits(batch["images"]), wf.TensorError).fact
    assert models.from_fields(models.fields(config), where="a file") == config
    assert dataclasses.replace(config, height=32).length == 33


@pytest.mark.parametrize(
    ("changes", "fact"),
    [({"height": 18}, "`height` is 18, which does not divide into patches of 4"), ({"vocab": 5}, "`vocab` is 5, and a"),
     ({"patch_width": 0}, "`patch_width` is 0"), ({"height": "a"}, "`height` is 'a'")],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(changes, fact):
    assert fact in error_of(lambda: models.preset("tiny-vit", **changes), wf.WeftError).fact


@pytest.mark.parametrize(
    ("images", "fact"),
    [(np.ones((8, 3, 16, 16), "float32"), "`images` has dims [batch=8 height=3 width=16 in_channels=16]"),
     (np.ones((8, 16, 16), "float32"), "`images` has shape (8, 16, 16)"),
     (np.ones((8, 16, 16, 3), "uint8"), "`images` holds uint8")],
)  # fmt: skip
def test_images_that_do_not_fit_are_refused(images, fact, alone):
    assert fact in error_of(lambda: alone[0].logits(images), wf.WeftError).fact


def test_a_batch_has_images_and_labels(batch, alone):
    error = error_of(lambda: alone[0].loss({"images": batch["images"]}), wf.TensorError)
    assert error.fact == "the batch has ['images']" and "'labels'" in error.fix
    assert isinstance(alone[0].patches, nn.Patches)
