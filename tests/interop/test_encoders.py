"""Encoders from Hugging Face folders: the numbers of `transformers`, under layouts, and written bit by bit."""

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from tests.interop.folders import FIXTURES, TOLERANCE, changed, config, expected, loaded, same_bits, tensors
from weft import interop, models

NAMES = ("bert", "bert-classes", "modernbert", "t5-encoder", "vit")
LAYOUTS = ["batch:rows,heads:cols,d_ff:cols", "length:rows,stream:rows,params.d_model:cols"]


def outputs(model, given):
    """What the model makes of the inputs, by the name of the expectation."""
    if "images" in given:
        return {"logits": np.asarray(model.logits(given["images"]).array)}
    types = {"types": given["types"]} if model.config.token_types else {}
    calls = {"logits": model.logits, "classes": model.classify, "hidden": model.hidden}
    found = {name: np.asarray(calls[name](given["tokens"], **types).array) for name in calls if name in given}
    if model.config.head == "words":
        found["logits"] = found["logits"][..., : model.config.vocab]
    return found


def compare(model, given, **tolerance):
    """What words get is what is expected; what padding gets is nobody's."""
    for name, found in outputs(model, given).items():
        counts = given["tokens"] != 0 if found.ndim == 3 else slice(None)
        np.testing.assert_allclose(found[counts], given[name][counts], **tolerance)


@pytest.mark.quick("bert", "modernbert", "vit")
@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_transformers(name):
    assert isinstance(loaded(name), models.ViT if name == "vit" else models.Encoder)
    compare(loaded(name), expected(name), atol=TOLERANCE, rtol=0)


@pytest.mark.quick("bert-batch:rows,heads:cols,d_ff:cols", "vit-length:rows,stream:rows,params.d_model:cols")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_layout_changes_no_number(name, layout):
    model = interop.load(FIXTURES / name, "rows=2,cols=2", layout)
    compare(model, expected(name), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_read_is_written_bit_by_bit(name, tmp_path):
    interop.save(loaded(name), tmp_path / name)
    assert same_bits(tensors(tmp_path / name), tensors(FIXTURES / name))
    assert interop.read_config(tmp_path / name) == loaded(name).config
    ours, theirs = config(tmp_path / name), config(FIXTURES / name)
    shared = [key for key in ours if key in theirs]
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared} and len(shared) > 9


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_neither_the_loss_nor_gradients_of_classes(layout):
    given = expected("bert-classes")
    labels = np.array([0, 2, 1, 1])
    batch = {"inputs": given["tokens"], "types": given["types"], "labels": labels}
    want, gradients = wf.value_and_grad(lambda m, b: m.loss(b))(loaded("bert-classes"), batch)
    named = {name: wf.tensor(x, "batch length" if x.ndim == 2 else "batch") for name, x in batch.items()}
    model = interop.load(FIXTURES / "bert-classes", "rows=2,cols=2", layout)
    run = wf.spmd(wf.value_and_grad(lambda m, b: m.loss(b)), mesh="rows=2,cols=2", layout=layout)
    value, ours = run(model, named)
    np.testing.assert_allclose(float(value), float(want), rtol=1e-6)
    for a, b in zip(jax.tree.leaves(wf.get(ours)), jax.tree.leaves(wf.get(gradients)), strict=True):
        np.testing.assert_allclose(a, b, atol=5e-6, rtol=1e-4)


def test_older_names_and_numbers_of_places_are_read(tmp_path):
    def as_published(found):
        for name in [name for name in found if "LayerNorm" in name]:
            older = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            found[older] = found.pop(name)
        found["bert.embeddings.position_ids"] = np.arange(16)[None]
        found["cls.predictions.decoder.weight"] = found["bert.embeddings.word_embeddings.weight"]

    model = interop.load(changed(tmp_path, "bert", change=as_published))
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(loaded("bert")), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize(
    ("name", "keys", "fact"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "`position_embedding_type` is 'relative_key'"),
        ("bert", {"is_decoder": True}, "`is_decoder` is True"),
        ("bert", {"hidden_size": 9}, "`hidden_size` is 9 and `num_attention_heads` 4"),
        ("bert", {"model_type": "distilbert"}, "it has no types of words"),
        ("bert", {"model_type": "roberta"}, "says that it is 'roberta', which weft cannot read"),
        ("bert", {"architectures": ["RobertaForMaskedLM"]}, "`architectures` 'RobertaForMaskedLM'"),
        ("modernbert", {"layer_types": ["full_attention"]}, "`layer_types` is ['full_attention']"),
        ("modernbert", {"num_hidden_layers": 1}, "`num_hidden_layers` is 1"),
        ("modernbert", {"architectures": ["ModernBertForQuestionAnswering"]}, "'ModernBertForQuestionAnswering'"),
        ("modernbert", {"classifier_pooling": "max"}, "`classifier_pooling` is 'max'"),
        ("modernbert", {"head_dim": 6}, "`head_dim` is 6"),
        ("modernbert", {"use_sliding_window": False, "sliding_window": 3}, "`sliding_window` is 3"),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"type": "linear", "factor": 2.0}}},
            "`type` is 'linear'",
        ),
        ("t5-encoder", {"num_attention_heads": 2}, "`num_heads` is 4 and `num_attention_heads`"),
        ("vit", {"pooler_output_size": 4}, "`pooler_output_size` is 4 and `hidden_size` 8"),
        ("vit", {"image_size": 10}, "`image_size` is [10, 10] and `patch_size` [4, 4]"),
        ("vit", {"image_size": [8]}, "`image_size` is [8]"),
        ("bert-classes", {"id2label": {}, "num_labels": 0}, "`num_labels` is 0"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key(name, keys, fact, tmp_path):
    folder = changed(tmp_path, name, keys=keys)
    error = error_of(lambda: interop.load(folder), interop.WeightsError)
    assert fact in error.fact and str(folder / "config.json") in error.fact


@pytest.mark.parametrize("name", ["qa_outputs.weight", "cls.seq_relationship.weight"])
def test_a_head_that_weft_has_not_is_named(name, tmp_path):
    folder = changed(tmp_path, "bert-classes", change=lambda found: found.update({name: np.ones((2, 8), "float32")}))
    fact = error_of(lambda: interop.load(folder), interop.WeightsError).fact
    assert ("BertForQuestionAnswering" if "qa" in name else "BertForNextSentencePrediction") in fact


def test_a_head_that_is_not_there_is_an_error():
    error = error_of(lambda: loaded("t5-encoder").logits(expected("t5-encoder")["tokens"]), wf.TensorError)
    assert error.fact == "the model is an encoder alone, without logits" and "model.hidden(tokens)" in error.fix
    error = error_of(lambda: loaded("t5-encoder").hidden([[3, 4]], types=[[0, 1]]), wf.TensorError)
    assert error.fact == "words have `types`, and the model has none"


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"head": "classes", "classes": 0}, "`head` is 'classes', and there are no classes"),
        ({"head": "none"}, "`head` is 'none', and `classes` is 8"),
        ({"head": "word"}, "`head` is 'word'"),
    ],
)
def test_heads_that_cannot_be_are_refused(changes, fact):
    assert error_of(lambda: models.preset("tiny-bert", **changes), wf.WeftError).fact == fact


@pytest.mark.parametrize(
    "changes",
    [{"norm_place": "pre"}, {"pooler": "gelu"}, {"token_types": 0}, {"transform": "relu"}, {"bias": "in out norm"}],
)
def test_an_encoder_without_a_hugging_face_form_is_refused(changes, tmp_path):
    made = dict(norm="layer", norm_place="post", bias="q k v o in out norm", token_types=2, embedding_norm=True)
    made |= dict(transform="gelu", activation="gelu", logits_bias=True, classes=0, tied_scale=False, d_kv=4, layers=2)
    model = models.shapes(models.preset("tiny-bert", **made | changes))
    field = next(iter(changes))
    error = error_of(lambda: interop.save(model, tmp_path / "made"), interop.WeightsError)
    assert f"`{field}=" in error.fact and "has no Hugging Face form" in error.fact
