"""Rows: documents in windows, pairs that share a row, pairs of like length; what models make of them."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import data, models
from weft.data.lm import Documents, Windows
from weft.data.pairs import pack
from weft.data.tokens import Tokens

SPECIALS = data.ByteTokenizer(specials=True)


def stream(lengths):
    """Documents whose every id is another, so that one can see where it went."""
    offsets = np.cumsum([0, *lengths])
    return Tokens(np.arange(1, offsets[-1] + 1), offsets, int(offsets[-1]) + 1)


@given(lengths=st.lists(st.integers(1, 30), min_size=2, max_size=20), length=st.integers(1, 24))
@settings(deadline=None, max_examples=60)
def test_windows_show_every_token_once_and_never_mix_documents(lengths, length):
    tokens = stream(lengths)
    found = Windows(tokens, length)
    rows = found.take(np.arange(len(found)))
    there = rows["weights"] > 0
    assert rows["targets"][there].tolist() == tokens.ids.tolist()
    assert all(not rows[name][~there].any() for name in ("inputs", "targets", "segments", "positions"))
    document_of = np.repeat(np.arange(len(lengths)), lengths)
    for row in range(len(found)):
        documents = document_of[rows["targets"][row, there[row]] - 1]
        segments = rows["segments"][row, there[row]]
        assert np.array_equal(documents[:, None] == documents, segments[:, None] == segments)
        assert segments[0] == 1 and set(np.diff(segments)) <= {0, 1}
        for segment in set(segments):
            inside = rows["positions"][row, there[row]][segments == segment]
            assert inside.tolist() == list(range(len(inside)))
    starts = tokens.offsets[:-1] + 1
    before = np.where(np.isin(rows["targets"], starts), 0, rows["targets"] - 1)
    assert np.array_equal(rows["inputs"], np.where(there, before, 0))


def test_one_document_and_documents_across_have_no_segments():
    assert list(Windows(stream([20]), 8).take(np.arange(3))) == ["inputs", "targets", "weights"]
    rows = Windows(stream([9, 11]), 8, is_stream=True).take(np.arange(3))
    assert list(rows) == ["inputs", "targets", "weights"]
    assert rows["inputs"].tolist()[1] == list(range(8, 16))


def test_a_document_a_row_is_cut_or_padded(tmp_path):
    (tmp_path / "a.txt").write_text("abcdef\nab\n")
    source = data.open_source({"path": tmp_path / "a.txt", "documents": "lines"})
    dataset = data.lm_dataset(source, SPECIALS, length=5, pack=False, cache=tmp_path)
    rows = dataset.take(np.array([0, 1, -1]))
    assert rows["tokens"].tolist() == [[100, 101, 102, 103, 104], [100, 101, 1, 0, 0], [0] * 5]
    assert rows["weights"].tolist() == [[1] * 5, [1, 1, 1, 0, 0], [0] * 5]
    assert dataset.tokens == 8


@given(
    lengths=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 12)), min_size=1, max_size=200),
)
@settings(deadline=None, max_examples=60)
def test_a_plan_has_every_pair_once_and_fits(lengths):
    inputs, targets = np.array(lengths).T
    members, offsets = pack(inputs, targets, (16, 12))
    assert sorted(members) == list(range(len(lengths)))
    for begin, end in itertools.pairwise(offsets):
        assert end > begin
        assert inputs[members[begin:end]].sum() <= 16
        assert targets[members[begin:end]].sum() <= 12


def pairs_in(tmp_path, count=200, **how):
    rng = np.random.default_rng(0)
    texts = [("i" * rng.integers(1, 20), "t" * rng.integers(1, 14) + str(i)) for i in range(count)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in texts))
    source = data.open_source(tmp_path / "pairs.tsv")
    return texts, data.pair_dataset(source, SPECIALS, cache=tmp_path / "cache", **how)


def test_packed_pairs_are_whole_and_apart(tmp_path):
    texts, dataset = pairs_in(tmp_path, length=(64, 48))
    rows = dataset.take(np.arange(len(dataset)))
    found = []
    for row in range(len(dataset)):
        one = {name: x[row] for name, x in rows.items()}
        for segment in range(1, one["input_segments"].max() + 1):
            inputs, targets = one["input_segments"] == segment, one["target_segments"] == segment
            found.append((SPECIALS.decode(one["inputs"][inputs]), SPECIALS.decode(one["targets"][targets])))
            assert one["input_positions"][inputs].tolist() == list(range(inputs.sum()))
            assert one["target_positions"][targets].tolist() == list(range(targets.sum()))
            assert one["inputs"][inputs][-1] == one["targets"][targets][-1] == SPECIALS.end
    assert sorted(found) == sorted(texts)
    assert np.array_equal(rows["weights"], rows["target_segments"] > 0)
    assert dataset.tokens == (rows["input_segments"] > 0).sum() + (rows["target_segments"] > 0).sum()
    assert (rows["target_segments"] > 0).mean() > 0.75
    assert list(rows) == list(models.seq2seq.BATCH)


def test_bucketed_pairs_come_in_rows_of_their_length(tmp_path):
    texts, dataset = pairs_in(tmp_path, length=32, buckets=[8, 16])
    batches, found = data.Batches(dataset, batch=16, seed=2), []
    sizes = set()
    for step in range(int(batches.steps_per_epoch)):
        rows = batches.at(step)
        sizes.add(rows["inputs"].shape[1])
        assert np.array_equal(rows["input_segments"] > 0, rows["inputs"] > 0)
        assert np.array_equal(rows["weights"] > 0, rows["targets"] > 0)
        for one, other in zip(rows["inputs"], rows["targets"], strict=True):
            longest = max((one > 0).sum(), (other > 0).sum())
            smaller = {8: 0, 16: 8, 32: 16}[len(one)]
            assert longest == 0 or smaller < longest <= len(one)
            found += [(SPECIALS.decode(one), SPECIALS.decode(other))] if longest else []
    assert sizes == {8, 16, 32}
    assert sorted(found) == sorted(texts)


def test_pairs_that_are_too_long_are_cut_and_keep_their_end(tmp_path):
    _, dataset = pairs_in(tmp_path, length=(6, 5), pack=False)
    rows = dataset.take(np.arange(len(dataset)))
    ends = (rows["inputs"] == SPECIALS.end).sum(axis=1)
    assert set(ends) == {1} and dataset.pairs.cut > 100
    assert rows["inputs"].shape == (200, 6) and (rows["weights"].sum(axis=1) <= 5).all()


# What models make of rows.


def test_a_packed_language_model_gives_each_document_the_loss_it_has_alone():
    model = models.init(models.preset("tiny-lm", layers=1), jax.random.key(0))
    rng = np.random.default_rng(0)
    lengths = [5, 7, 4]
    tokens = Tokens(rng.integers(1, 50, 16), np.cumsum([0, *lengths]), 50)
    row = Windows(tokens, 16).take(np.array([0]))
    packed_loss = float(model.loss(row).array)
    alone = float(model.loss(Documents(tokens, 7, pad=None).take(np.arange(3))).array)  # a mean over all tokens
    assert packed_loss == pytest.approx(alone, rel=1e-5)


def test_a_packed_translation_model_gives_each_pair_the_loss_it_has_alone(tmp_path):
    (tmp_path / "pairs.tsv").write_text("one\tun\ntwo!\tdeux\nthree\ttrois\n")
    source = data.open_source(tmp_path / "pairs.tsv")
    how = dict(cache=tmp_path / "cache", length=24)
    rows = data.pair_dataset(source, SPECIALS, **how).take(np.array([0]))
    single = data.pair_dataset(source, SPECIALS, pack=False, **how)
    model = models.init(models.preset("tiny-mt", layers=1, vocab=SPECIALS.vocab), jax.random.key(0))
    alone = float(model.loss(single.take(np.arange(3))).array)  # a mean over all tokens
    assert float(model.loss(rows).array) == pytest.approx(alone, rel=1e-5)
