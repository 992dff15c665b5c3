"""Evaluation: every example counts once, on every mesh and in every batch; translations are scored by sacreBLEU."""

import contextlib
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import sacrebleu

import weft as wf
from tests.train.toys import pairs, pairs_file, text_file
from weft import data, models
from weft.layout import as_layout
from weft.mesh import as_mesh
from weft.spmd.step import TrainState
from weft.train import evaluation
from weft.train.config import ONE, ConfigError, read
from weft.train.datasets import open_data
from weft.train.evaluation import Evaluator, PeriodicEvaluation, TranslationScores, count_words_and_bytes, score
from weft.train.feeding import Feed
from weft.train.interface import NullListener
from weft.train.step import Averaged

SMALL = "layers = 1\nd_model = 16\nheads = 4\nd_kv = 4\nd_ff = 32\nvocab = 259"
SPLIT = ("rows=2,cols=4", "batch:rows,heads:cols,d_ff:cols,vocab:cols")


def config_of(folder, preset, path, *changes):
    file = folder / "run.toml"
    data_ = f'path = "{path}"\nheld_out = 0.1'
    file.write_text(f'[model]\npreset = "{preset}"\n{SMALL}\n[data]\n{data_}\n[train]\nbatch = 4\nlength = 32\n')
    return read(file, changes)


def judged(config, folder, model=None, where=ONE):
    """What a judge says of the model a run begins with."""
    mesh, layout = as_mesh(where[0]), as_layout(where[1])
    tokenizer, _, held_out, _ = open_data(config, folder, None)
    feed = Feed(config.sized_model, mesh, layout, seed=config.seed)
    model = models.init(config.sized_model, jax.random.key(0), mesh, layout) if model is None else model
    return Evaluator(config, feed, held_out, tokenizer)(model)


def without_seconds(found):
    return {name: value for name, value in found.items() if name != "seconds"}


def test_every_example_counts_once_in_batches_of_any_size_and_on_any_mesh(tmp_path):
    path = text_file(tmp_path)
    found = judged(config_of(tmp_path, "tiny-lm", path), tmp_path)
    held_out = path.read_bytes()[-round(0.1 * path.stat().st_size) :]
    assert found["tokens"] == len(held_out) and len(held_out) % 32  # the last row is not full
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))
    assert found["word_perplexity"] == pytest.approx(math.exp(found["loss"] * len(held_out) / len(held_out.split())))
    for where, batch in ((ONE, 5), (SPLIT, 4)):
        again = judged(config_of(tmp_path, "tiny-lm", path, f"train.batch={batch}"), tmp_path, where=where)
        assert without_seconds(again) == pytest.approx(without_seconds(found), rel=1e-5)


def test_some_batches_are_some_of_the_tokens(tmp_path):
    found = judged(config_of(tmp_path, "tiny-lm", text_file(tmp_path), "eval.batches=1"), tmp_path)
    assert found["tokens"] == 4 * 32


def test_an_encoder_is_asked_for_the_same_words_every_time(tmp_path):
    config = config_of(tmp_path, "tiny-bert", text_file(tmp_path))
    one, other = judged(config, tmp_path), judged(config, tmp_path)
    assert without_seconds(one) == without_seconds(other)
    assert 0 < one["tokens"] < 100 and "word_perplexity" not in one


@pytest.mark.parametrize("specials", [False, True])
def test_words_and_bytes_are_counted_over_the_ends_of_rows(specials):
    tokenizer = data.ByteTokenizer(specials=specials)
    text = "two words, then dréi"
    ids = np.array(tokenizer.encode(text) + ([tokenizer.end] if specials else []))
    assert count_words_and_bytes(ids, tokenizer) == (4 + specials, len(text.encode()) + specials)


# Translations.


def scores_of(tmp_path, *changes):
    config = config_of(tmp_path, "tiny-mt", pairs_file(tmp_path, 100), "eval.metrics=bleu chrf", *changes)
    tokenizer, _, held_out, _ = open_data(config, tmp_path, None)
    return TranslationScores(config, held_out, tokenizer)


def test_scores_are_those_of_sacrebleu():
    found, wanted = ["the cat sat on a mat", "a dog"], ["the cat sat on the mat", "a dog ."]
    told = score(found, wanted, ["bleu", "chrf"])
    assert told["bleu"] == pytest.approx(sacrebleu.corpus_bleu(found, [wanted]).score)
    assert told["chrf"] == pytest.approx(sacrebleu.corpus_chrf(found, [wanted]).score)
    assert told["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|")
    assert "tok:none" in score(["a b"], ["a b"], ["bleu"], "none")["bleu_signature"]


def test_a_perfect_translator_is_scored_100(tmp_path, monkeypatch):
    asked = []

    def capitals(model, tokenizer, *, beams, alpha, penalty, between, **more):
        return lambda texts: asked.append((len(texts), beams, alpha, penalty)) or [text.upper() for text in texts]

    monkeypatch.setattr(evaluation, "Translator", capitals)
    told = scores_of(tmp_path, "eval.beams=4", "eval.alpha=0.8", "eval.penalty=length")(None)
    assert told["bleu"] == pytest.approx(100) and told["chrf"] == pytest.approx(100)
    assert asked == [(10, 4, 0.8, "length")]


def test_the_pairs_scored_are_those_held_out(tmp_path):
    assert scores_of(tmp_path)._pairs == pairs(100)[90:]
    assert scores_of(tmp_path, "eval.batches=2")._pairs == pairs(100)[90:98]
    other = tmp_path / "other.tsv"
    other.write_text("a b\tA B\n\t\nc\tC\n")
    assert scores_of(tmp_path, f"data.evaluation={other}")._pairs == [("a b", "A B"), ("c", "C")]


@pytest.mark.parametrize(
    ("change", "fact", "fix"),
    [
        ("eval.metrics=blue", "`eval.metrics` names 'blue'", "did you mean `bleu`?"),
        ("eval.bleu_tokenize=14a", "`eval.bleu_tokenize` is '14a'", "did you mean `13a`?"),
    ],
)
def test_metrics_that_there_are_not(tmp_path, change, fact, fix):
    with pytest.raises(ConfigError) as raised:
        scores_of(tmp_path, change)
    assert (raised.value.fact, raised.value.fix) == (fact, fix)


def test_only_pairs_are_scored_as_translations(tmp_path):
    config = config_of(tmp_path, "tiny-lm", text_file(tmp_path), 'eval.metrics=["bleu"]')
    with pytest.raises(ConfigError, match=r"`eval.metrics` names 'bleu', .* the data are no pairs"):
        judged(config, tmp_path)


def test_while_it_trains_a_run_is_judged_by_its_average_now_and_then_and_at_its_end(tmp_path):
    judged, rows = [], []

    def evaluate(model, between):
        judged.append(np.asarray(model["w"].array).tolist())
        return {"loss": 2.0}

    changes = "eval.every=3", "train.steps=8"
    config = config_of(tmp_path, "tiny-lm", text_file(tmp_path), *changes)
    watchdog, stop = SimpleNamespace(paused=contextlib.nullcontext), SimpleNamespace(is_wanted=lambda: False)
    periodic = PeriodicEvaluation(config, tmp_path, evaluate, rows.append, NullListener(), watchdog, stop)
    assert [at for at in range(1, 9) if periodic.is_due(at)] == [3, 6, 8]
    params = {"w": wf.parameter(np.zeros(2, "float32"), [wf.Dim("d_model", 2)])}
    assert periodic(TrainState(params, (Averaged({"w": jax.numpy.ones(2)}),), 3), 3) == 2.0
    assert periodic(TrainState(params, (), 6), 6) == 2.0
    assert judged == [[1.0, 1.0], [0.0, 0.0]]
    assert rows == [{"step": 3, "eval": {"loss": 2.0}}, {"step": 6, "eval": {"loss": 2.0}}]
