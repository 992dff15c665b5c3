"""Translations: a model that learned pairs writes the right ones, whatever stands beside them, and is scored for it."""

import dataclasses

import pytest

from tests.train.toys import pairs, pairs_file, trained
from weft import data, models
from weft.decode import translate
from weft.decode.translate import Translator, padded_size, text_of
from weft.errors import WeftError

HELD_OUT = pairs(1000)[950:]
MESH = ("rows=2,cols=4", "batch:rows,heads:cols,d_ff:cols,vocab:cols")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run that learned to write capitals from packed pairs, judged at its end by BLEU and chrF."""
    folder = tmp_path_factory.mktemp("capitals")
    changes = ["train.steps=200", "eval.every=200", "checkpoint.every=200", "eval.metrics=bleu chrf"]
    changes += ["schedule.warmup=20", "schedule.kind=linear", "train.batch=24", "eval.beams=3"]
    return trained(folder, "seq2seq", pairs_file(folder), *changes)


@pytest.fixture(scope="module")
def translator(learned):
    run, _ = learned
    return Translator(run.load(), run.tokenizer, beams=3, batch=16)


def test_packing_decoding_and_scoring_fit_together(learned):
    _, quiet = learned
    found = next(row["eval"] for row in quiet.rows if "eval" in row)
    assert found["accuracy"] > 0.99
    assert found["bleu"] > 95 and found["chrf"] > 95
    assert "tok:13a" in found["bleu_signature"] and "case:mixed" in found["chrf_signature"]


def test_a_model_that_learned_pairs_writes_what_it_was_not_shown(translator):
    found = translator([one for one, _ in HELD_OUT])
    right = sum(text == other for text, (_, other) in zip(found, HELD_OUT, strict=True))
    assert right >= 47


def test_a_text_is_translated_the_same_alone_and_among_others(translator):
    lines = [one for one, _ in HELD_OUT[:20]]
    among = translator([lines[0], "", *lines[1:], "  "])
    assert among[1] == among[-1] == ""
    assert translator(lines[:1]) == among[:1]
    assert translator(lines[7:9]) == among[8:10]


def test_a_mesh_changes_no_translation(learned, translator):
    run, _ = learned
    lines = [one for one, _ in HELD_OUT[:5]]
    split = Translator(run.load(*MESH), run.tokenizer, beams=3, batch=5)
    assert split.batch == 6
    assert split(lines) == translator(lines)


def test_what_is_too_long_is_cut_and_counted(learned, translator):
    run, _ = learned
    own = Translator(translator.model, run.tokenizer, beams=3, batch=16)
    long = "a b c d " * 20
    assert own([long, "a b c"])[1] == "A B C"
    assert own.cut == 1 and own.longest == 32
    assert own([long[:31]]) == own([long])


def test_few_shapes_are_compiled(translator, monkeypatch):
    shapes = set()

    def search(model, rows, *, max_new_tokens, **how):
        shapes.add((len(rows), max(map(len, rows)), max_new_tokens))
        return whole(model, rows, max_new_tokens=max_new_tokens, **how)

    whole = translate.beam_search
    monkeypatch.setattr(translate, "beam_search", search)
    translator([one for one, _ in HELD_OUT] + ["a b c d a b c d a b"] * 3)
    assert shapes == {(16, 16, 32), (16, 32, 32)}


def test_lengths_that_texts_are_padded_to():
    assert [padded_size(length, 100) for length in (1, 16, 17, 64, 65, 100)] == [16, 16, 32, 64, 100, 100]


@pytest.mark.slow
def test_a_model_without_an_id_for_padding_translates_too(learned, translator):
    run, _ = learned
    model = run.load()
    object.__setattr__(model, "config", dataclasses.replace(model.config, padding=None))
    lines = [one for one, _ in HELD_OUT[:4]]
    assert Translator(model, run.tokenizer, beams=3, batch=4)(lines) == translator(lines)


def test_ids_that_the_tokenizer_has_not_are_no_text():
    tokenizer = data.ByteTokenizer(specials=True)
    assert text_of(tokenizer, [*tokenizer.encode("ab"), 300, 1, *tokenizer.encode("c"), 1]) == "abc"


def test_a_translation_is_one_line(translator, monkeypatch):
    monkeypatch.setattr(translate, "text_of", lambda tokenizer, ids: "A\r\nB\nC")
    assert translator(["a b c"]) == ["A B C"]


def test_only_what_reads_and_writes_translates():
    model, tokenizer = models.shapes(models.preset("tiny-lm")), data.ByteTokenizer(specials=True)
    with pytest.raises(WeftError, match="TransformerLM does not translate"):
        Translator(model, tokenizer)
    with pytest.raises(WeftError, match="the tokenizer has no `end`"):
        Translator(models.shapes(models.preset("tiny-mt")), data.ByteTokenizer())


@pytest.mark.slow
def test_what_is_not_to_be_repeated_is_said_to_the_search(learned, translator):
    run, _ = learned
    once = Translator(translator.model, run.tokenizer, beams=3, batch=16, no_repeat_ngram=1)
    (found,) = once(["a b a b"])
    assert len(found) == len(set(found)) and translator(["a b a b"]) == ["A B A B"]
    long = Translator(translator.model, run.tokenizer, beams=3, batch=16, min_new_tokens=9, repetition_penalty=1.01)
    assert len(long(["a b"])[0]) >= 9
