"""Mixtures: the shares that were said, the same from any step and for any number of processes."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import data


class Numbers:
    """A dataset whose examples are numbers from `first` on."""

    bucket_of, vocab = None, None

    def __init__(self, first, count):
        self.first, self.count = first, count

    def __len__(self):
        return self.count

    def take(self, numbers, bucket=0):
        assert ((numbers >= -1) & (numbers < self.count)).all()
        return {"rows": np.where(numbers < 0, -1, numbers + self.first)}


COUNTS, WEIGHTS = (50, 700, 9), (3.0, 1.0, 0.02)


def mixture(counts=COUNTS, weights=WEIGHTS):
    return data.Mixture([Numbers(1000 * i, count) for i, count in enumerate(counts)], weights)


def rows(first, last, *, batch=64, seed=0, made=None, **how):
    batches = data.Batches(made or mixture(), batch=batch, seed=seed, **how)
    return np.concatenate([batches.at(step)["rows"] for step in range(first, last)])


@given(
    weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40),
    places=st.integers(0, 10**7),
)
@settings(deadline=None, max_examples=30)
def test_after_any_number_of_blocks_each_part_has_its_share(weights, places):
    order = data.mixtures.Mixed([3] * len(weights), weights, 8, 0)
    before, after = order._count_taken(places), order._count_taken(places + 1)
    assert sum(before) == places * order._size and all(a <= b for a, b in zip(before, after, strict=True))
    for taken, weight in zip(before, weights, strict=True):
        assert abs(taken - places * order._size * weight / sum(weights)) <= len(weights) / 2 + 1


def test_the_shares_are_those_that_were_said():
    found = np.bincount(rows(0, 160) // 1000)  # 10 blocks
    np.testing.assert_allclose(found / found.sum(), np.array(WEIGHTS) / sum(WEIGHTS), atol=2e-4)
    every_batch = np.array([(rows(step, step + 1) < 1000).mean() for step in range(100)])
    assert every_batch.min() > 0.5 and every_batch.max() < 0.95  # mixed, not one after the other


def test_every_part_shows_all_its_rows_before_one_of_them_again():
    found = rows(0, 200)
    for first, count in zip((0, 1000, 2000), COUNTS, strict=True):
        mine = found[(found >= first) & (found < first + 1000)] - first
        whole = len(mine) // count * count
        epochs = mine[:whole].reshape(-1, count)
        # Rows of a block are shuffled among themselves, so an epoch's edge may be passed within one.
        assert np.abs(np.bincount(mine, minlength=count) - len(mine) / count).max() <= 2 + 1024 / count
        assert len(epochs) < 2 or epochs[0].tolist() != epochs[1].tolist()


def test_a_mixture_goes_on_from_any_step_for_any_number_of_processes():
    whole = rows(0, 40)
    batches = data.Batches(mixture(), batch=64, seed=0)
    with_seek = []
    for step in (0, 17, 3):
        batches.seek(step)
        with_seek.append((step, next(batches)["rows"]))
    batches.close()
    for step, found in with_seek:
        assert found.tolist() == whole[step * 64 : (step + 1) * 64].tolist()
    shares = [rows(5, 6, process=p, processes=4) for p in range(4)]
    assert np.concatenate(shares).tolist() == whole[5 * 64 : 6 * 64].tolist()
    assert rows(0, 20, batch=128).tolist() == whole.tolist()  # places, not batches, have an order
    assert rows(0, 40, seed=1).tolist() != whole.tolist()


def test_the_order_is_this_one():
    """Runs go on from where they were, so the order of a seed never changes."""
    assert rows(0, 1, batch=12, seed=5).tolist() == [1049, 35, 45, 28, 24, 37, 1494, 38, 42, 47, 31, 29]


def test_an_evaluation_shows_every_row_once():
    joined = data.Concatenated([Numbers(0, 5), Numbers(1000, 6)])
    found = np.concatenate([batch["rows"] for batch in data.Batches(joined, batch=4).evaluation()])
    assert found.tolist() == [0, 1, 2, 3, 4, *range(1000, 1006), -1]


# Mixtures of sources.


def files(folder):
    (folder / "a.txt").write_text("one text alone")
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(40)))
    (folder / "c.tsv").write_text("a\tb\n")
    return folder


def test_keys_beside_a_mixture_are_those_of_each_part(tmp_path):
    files(tmp_path)
    mixed = [{"path": str(tmp_path / "a.txt"), "weight": 3}, {"path": str(tmp_path / "b.jsonl"), "held_out": 2}]
    source = data.open_source({"mixture": mixed, "held_out": 0.5, "field": "text"})
    assert [part.format for part in source.parts] == ["text", "jsonl"] and source.weights == (3.0, 1.0)
    assert [part.held_out for part in source.parts] == [0.5, 2] and source.has_evaluation
    assert "".join(source.texts()).startswith("one text aloneline 0line 1")
    assert [name for name, _ in source.prints()] == ["1: a.txt", "2: b.jsonl"]


def test_rows_without_segments_get_one_where_others_have_some(tmp_path):
    files(tmp_path)
    tokenizer = data.ByteTokenizer()
    parts = [
        data.lm_dataset(data.open_source(tmp_path / name), tokenizer, length=8, cache=tmp_path / "cache")
        for name in ("a.txt", "b.jsonl")
    ]
    assert "segments" not in parts[0].take(np.array([0]))
    taken = data.Concatenated(parts).take(np.array([1, 2, -1]))
    assert taken["segments"].tolist() == [[1] * 6 + [0] * 2, [1] * 6 + [2] * 2, [0] * 8]
    assert taken["positions"][0].tolist() == [0, 1, 2, 3, 4, 5, 0, 0]


BAD = {
    "weight 0": ([{"path": "a.txt", "weight": 0}], "`weight` of part 1 of `mixture` is 0", "above 0"),
    "negative": ([{"path": "a.txt"}, {"path": "a.txt", "weight": -1}], "`weight` of part 2", "above 0"),
    "NaN": ([{"path": "a.txt", "weight": float("nan")}], "is nan", "above 0"),
    "infinite": ([{"path": "a.txt", "weight": float("inf")}], "is inf", "above 0"),
    "a text": ([{"path": "a.txt", "weight": "much"}], "is 'much'", "above 0"),
    "none": ([], "`mixture` has no parts", "[[data.mixture]]"),
    "no path": ([{"weight": 1}], "in part 1 of `mixture`: the data have no `path`", "path"),
    "a key": (
        [{"path": "a.txt", "wieght": 1}],
        "`wieght` in part 1 of `mixture` says nothing about data",
        "did you mean `weight`?",
    ),
    "a mixture": ([{"mixture": []}], "is a mixture itself", "list its parts"),
    "pairs": ([{"path": "a.txt"}, {"path": "c.tsv"}], "part 1 of `mixture` holds texts, and part 2 pairs", "mix what"),
    "not there": ([{"path": "a.txt"}, {"path": "gone.txt"}], "in part 2 of `mixture`: there is no gone.txt", ""),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_mixture_is_told(name, tmp_path, monkeypatch):
    mixed, fact, fix = BAD[name]
    monkeypatch.chdir(files(tmp_path))
    with pytest.raises(data.DataError) as caught:
        data.open_source({"mixture": mixed})
    assert fact in caught.value.fact and fix in caught.value.fix


def test_a_mixture_has_either_parts_or_a_path_and_no_buckets(tmp_path):
    files(tmp_path)
    with pytest.raises(data.DataError, match="a `path` and a `mixture`"):
        data.open_source({"path": "a.txt", "mixture": [{"path": "a.txt"}]})
    bucketed = Numbers(0, 4)
    bucketed.bucket_of = np.zeros(4, int)
    with pytest.raises(data.DataError, match="a mixture has no buckets"):
        data.Mixture([bucketed], [1.0])
