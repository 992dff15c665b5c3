"""Encoders against `transformers`, where it is installed: logits, losses, gradients, layouts, what is written."""

import numpy as np
import pytest

import weft as wf
from tests.interop.folders import TOLERANCE, tensors
from weft import interop, models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.interop import make_encoders, make_fixtures  # noqa: E402  (they need both)

VOCAB, CLASSES = 43, 3
T5 = dict(d_kv=4, num_heads=2, d_ff=10, d_model=8, num_layers=2, relative_attention_num_buckets=8, vocab_size=VOCAB)
BASES = {"full_attention": 500.0, "sliding_attention": 20.0}
SIZES = dict(vocab_size=VOCAB, hidden_size=8, num_attention_heads=2, intermediate_size=12, num_hidden_layers=2)
SIZES |= dict(max_position_embeddings=16, num_labels=CLASSES, pad_token_id=0)
MODERN = SIZES | dict(num_hidden_layers=4, local_attention=4, pad_token_id=0, bos_token_id=1, eos_token_id=1)
MODERN |= dict(rope_parameters={kind: {"rope_type": "default", "rope_theta": base} for kind, base in BASES.items()})
IMAGES = dict(hidden_size=8, num_attention_heads=2, intermediate_size=12, num_hidden_layers=2, num_labels=CLASSES)
IMAGES |= dict(image_size=8, patch_size=4)
MADE = {
    "t5": ("T5EncoderModel", "T5", T5),
    "t5-gated": ("T5EncoderModel", "T5", T5 | dict(feed_forward_proj="gated-gelu", num_layers=3)),
    "t5-silu": ("T5EncoderModel", "T5", T5 | dict(feed_forward_proj="gated-silu", num_heads=3, d_kv=5)),
    "mt5": ("MT5EncoderModel", "MT5", T5),
    "umt5": ("UMT5EncoderModel", "UMT5", T5 | dict(num_layers=3)),
    "umt5-one": ("UMT5EncoderModel", "UMT5", T5 | dict(num_layers=1, feed_forward_proj="relu")),
    "bert-words": ("BertForMaskedLM", "Bert", SIZES),
    "bert-untied": ("BertForMaskedLM", "Bert", SIZES | dict(tie_word_embeddings=False)),
    "bert-pretraining": ("BertForPreTraining", "Bert", SIZES | dict(hidden_act="gelu_new", type_vocab_size=3)),
    "bert-classes": ("BertForSequenceClassification", "Bert", SIZES | dict(num_hidden_layers=3)),
    "bert-token-classes": (
        "BertForTokenClassification",
        "Bert",
        SIZES | dict(num_attention_heads=4, hidden_act="relu"),
    ),
    "bert-alone": ("BertModel", "Bert", SIZES | dict(layer_norm_eps=1e-3)),
    "modern-words": ("ModernBertForMaskedLM", "ModernBert", MODERN),
    "modern-classes": ("ModernBertForSequenceClassification", "ModernBert", MODERN | dict(classifier_bias=True)),
    "modern-mean": ("ModernBertForSequenceClassification", "ModernBert", MODERN | dict(classifier_pooling="mean")),
    "modern-token-classes": ("ModernBertForTokenClassification", "ModernBert", MODERN | dict(num_hidden_layers=3)),
    "modern-alone": ("ModernBertModel", "ModernBert", MODERN | dict(layer_types=["sliding_attention"] * 4)),
    "modern-biased": (
        "ModernBertForMaskedLM",
        "ModernBert",
        MODERN | dict(attention_bias=True, mlp_bias=True, norm_bias=True, decoder_bias=False, hidden_activation="silu"),
    ),
    "modern-untied": ("ModernBertForMaskedLM", "ModernBert", MODERN | dict(tie_word_embeddings=False)),
    "modern-global": ("ModernBertForMaskedLM", "ModernBert", MODERN | dict(layer_types=["full_attention"] * 4)),
    "vit": ("ViTForImageClassification", "ViT", IMAGES),
    "vit-wide": ("ViTForImageClassification", "ViT", IMAGES | dict(image_size=(8, 12), patch_size=(2, 4))),
    "vit-biasless": ("ViTForImageClassification", "ViT", IMAGES | dict(qkv_bias=False, hidden_act="gelu_new")),
    "vit-grey": ("ViTForImageClassification", "ViT", IMAGES | dict(num_channels=1, num_hidden_layers=3)),
    "vit-one-patch": ("ViTForImageClassification", "ViT", IMAGES | dict(image_size=4, num_hidden_layers=1)),
    "vit-alone": ("ViTModel", "ViT", IMAGES | dict(layer_norm_eps=1e-3)),
}
LAYOUTS = {
    "batch:rows,heads:cols,d_ff:cols": "rows=2,cols=2",
    "length:rows,params.d_model:cols": "rows=2,cols=2",
}


def made(name, seed=3):
    kind, family, sizes = MADE[name]
    model = getattr(transformers, kind)(getattr(transformers, f"{family}Config")(**sizes)).eval()
    make_fixtures.fill(model, seed)
    return model


def theirs(model, given):
    return next(iter(make_encoders.outputs_of(model, given).values()))


def ours(model, given):
    config = model.config
    if "images" in given:
        return np.asarray((model.logits if config.classes else model.hidden)(given["images"]).array)
    arguments = {"types": given["types"]} if config.token_types else {}
    call = model.hidden if config.head == "none" else model.logits
    out = np.asarray(call(given["tokens"], **arguments).array)
    return out[..., : config.vocab] if config.head == "words" else out


def compare(found, wanted, given, **tolerance):
    """The same where there is a word: what padding gets is nobody's."""
    if found.ndim == 3 and "tokens" in given:
        found, wanted = found[given["tokens"] != 0], wanted[given["tokens"] != 0]
    np.testing.assert_allclose(found, wanted, **tolerance)


@pytest.mark.parametrize("name", MADE)
def test_logits_are_those_of_transformers_and_so_are_those_of_what_is_written(name, tmp_path):
    first = made(name)
    given = make_encoders.inputs_of(5, first.config)
    first.save_pretrained(tmp_path / "first")
    model = interop.load(tmp_path / "first")
    assert isinstance(model, models.ViT if "images" in given else models.Encoder)
    wanted = theirs(first, given)
    compare(ours(model, given), wanted, given, atol=TOLERANCE, rtol=0)
    interop.save(model, tmp_path / "ours", shard_bytes=10_000)
    again, report = type(first).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    np.testing.assert_allclose(theirs(again.eval(), given), wanted, atol=1e-5, rtol=0)
    assert again.config.architectures == [MADE[name][0]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name",
    ["t5-gated", "umt5", "bert-pretraining", "bert-classes", "bert-token-classes", "modern-mean", "vit", "vit-alone"],
)
def test_a_layout_changes_no_logits(name, layout, tmp_path):
    first = made(name)
    first.save_pretrained(tmp_path / "first")
    given = make_encoders.inputs_of(5, first.config)
    padded = {} if "images" in given else {"vocab_multiple": 4}
    whole = interop.load(tmp_path / "first", **padded)
    split = interop.load(tmp_path / "first", LAYOUTS[layout], layout, **padded)
    compare(ours(split, given), ours(whole, given), given, atol=2e-5, rtol=0)


def batch_of(name, given, random):
    """Labels of some words, or of each sequence: as `transformers` takes them, and as ours."""
    if "images" in given:
        labels = random.integers(0, CLASSES, len(given["images"]))
        return labels, given | {"labels": labels}
    ids = given["tokens"]
    types = {"types": given["types"]} if name.startswith("bert") else {}
    if "token" in name:
        labels = np.where((random.random(ids.shape) < 0.7) & (ids != 0), random.integers(0, CLASSES, ids.shape), -100)
        return labels, {"inputs": ids, "labels": labels, **types}
    if "classes" in name:
        labels = random.integers(0, CLASSES, len(ids))
        return labels, {"inputs": ids, "labels": labels, **types}
    labels = np.where((random.random(ids.shape) < 0.3) & (ids != 0), random.integers(0, VOCAB, ids.shape), -100)
    weights = (labels >= 0).astype("float32")
    return labels, {"inputs": ids, "targets": np.maximum(labels, 0), "weights": weights, **types}


@pytest.mark.parametrize(
    "name",
    [
        "bert-words",
        "bert-untied",
        "bert-classes",
        "bert-token-classes",
        "modern-words",
        "modern-classes",
        "vit",
        "vit-biasless",
    ],
)
def test_the_loss_and_its_gradients_are_those_of_transformers(name, tmp_path):
    model = made(name)
    given = make_encoders.inputs_of(5, model.config)
    model.save_pretrained(tmp_path / "first")
    labels, batch = batch_of(name, given, np.random.default_rng(9))
    loss = model(**make_encoders.arguments_of(model, given), labels=torch.tensor(labels)).loss
    loss.backward()
    ours = interop.load(tmp_path / "first", **({} if "images" in given else {"vocab_multiple": 1}))
    value, gradients = wf.value_and_grad(lambda model: model.loss(batch))(ours)
    np.testing.assert_allclose(float(value), float(loss.detach()), rtol=1e-5)
    interop.save(gradients, tmp_path / "gradients")  # under the names of the weights
    for weight in model.parameters():
        weight.data = torch.zeros_like(weight) if weight.grad is None else weight.grad
    model.save_pretrained(tmp_path / "theirs")
    wanted, found = tensors(tmp_path / "theirs"), tensors(tmp_path / "gradients")
    if "untied" in name:
        found.pop("cls.predictions.bias")  # which `transformers` has beside the one that it uses
    for key, gradient in found.items():
        np.testing.assert_allclose(gradient, wanted[key], atol=2e-5, rtol=2e-4, err_msg=key)
