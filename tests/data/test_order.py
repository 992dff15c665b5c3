"""The order: one for every number of processes, exact from any step, every example once an epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import data
from weft.data.order import permute


class Numbers:
    """A dataset whose examples are their numbers; bucketed, if told in which bucket each is."""

    vocab = None

    def __init__(self, count, bucket_of=None):
        self._count, self.bucket_of, self.taken = count, bucket_of, []

    def __len__(self):
        return self._count

    def take(self, numbers, bucket=0):
        self.taken += [int(number) for number in numbers]
        return {"rows": np.array(numbers), "bucket": np.array(bucket)}


@given(count=st.integers(1, 3000), key=st.integers(0, 2**63))
@settings(deadline=None, max_examples=60)
def test_a_permutation_takes_each_number_once(count, key):
    assert sorted(permute(np.arange(count), count, key)) == list(range(count))


def test_a_permutation_mixes_and_is_another_for_every_seed_and_epoch():
    orders = [permute(np.arange(1000), 1000, seed, epoch) for seed in range(4) for epoch in range(4)]
    same_place = [np.mean(one == other) for i, one in enumerate(orders) for other in orders[:i]]
    assert max(same_place) < 0.02
    correlations = [abs(np.corrcoef(np.arange(1000), order)[0, 1]) for order in orders]
    assert max(correlations) < 0.15  # 1/sqrt(1000) is one deviation


def test_a_permutation_of_many_numbers_holds_none_of_them():
    found = permute(np.array([0, 10**12, 2 * 10**12]), 3 * 10**12, 1)
    assert len(set(found.tolist())) == 3 and found.max() < 3 * 10**12


def test_the_order_is_this_one():
    """Runs go on from where they were, so the order of a seed never changes."""
    assert permute(np.arange(10), 10, 0, 0).tolist() == [4, 7, 6, 2, 8, 0, 5, 3, 9, 1]
    batches = data.Batches(Numbers(7), batch=4, seed=5)
    assert [batches.at(step)["rows"].tolist() for step in range(3)] == [[5, 1, 0, 2], [6, 3, 4, 1], [5, 3, 4, 6]]
    batches = data.Batches(Numbers(7, np.array([0, 1, 0, 1, 0, 1, 0])), batch=2, seed=5)
    assert [batches.at(step)["rows"].tolist() for step in range(4)] == [[5, 3], [2, 4], [1, -1], [6, 0]]


def bucketed(count):
    return Numbers(count, np.random.default_rng(0).integers(0, 3, count))


@pytest.mark.parametrize("make", [Numbers, bucketed])
def test_the_order_is_the_same_for_every_number_of_processes(make):
    whole = data.Batches(make(53), batch=8, seed=3)
    for processes in (2, 4):
        shares = [data.Batches(make(53), batch=8, seed=3, process=p, processes=processes) for p in range(processes)]
        for step in range(30):
            rows = np.concatenate([share.at(step)["rows"] for share in shares])
            assert rows.tolist() == whole.at(step)["rows"].tolist()
            assert {int(share.at(step)["bucket"]) for share in shares} == {int(whole.at(step)["bucket"])}


def test_a_process_reads_only_its_share():
    dataset = Numbers(100)
    batches = data.Batches(dataset, batch=8, process=1, processes=4)
    rows = data.Batches(Numbers(100), batch=8).at(6)["rows"]
    batches.at(6)
    assert dataset.taken == rows[2:4].tolist()


@given(
    count=st.integers(1, 200),
    batch=st.integers(1, 16),
    seed=st.integers(0, 2**32),
    step=st.integers(0, 10**6),
    buckets=st.booleans(),
)
@settings(deadline=None, max_examples=20)
def test_a_run_goes_on_exactly_from_any_step(count, batch, seed, step, buckets):
    make = bucketed if buckets else Numbers
    straight = data.Batches(make(count), batch=batch, seed=seed)
    straight.seek(step)
    expected = [next(straight)["rows"].tolist() for _ in range(6)]
    straight.close()
    again = data.Batches(make(count), batch=batch, seed=seed)
    next(again)
    again.seek(step + 3)
    assert [next(again)["rows"].tolist() for _ in range(3)] == expected[3:]
    assert again.step == step + 6
    again.close()


def test_iterating_gives_the_batches_in_order_and_closing_ends_the_thread():
    batches = data.Batches(Numbers(1000), batch=8)
    expected = [batches.at(step)["rows"].tolist() for step in range(200)]
    assert [next(batches)["rows"].tolist() for _ in range(200)] == expected
    batches.close()
    batches.close()
    assert next(batches)["rows"].tolist() == batches.at(200)["rows"].tolist()
    batches.close()


def test_every_example_is_seen_once_an_epoch_and_epochs_differ():
    batches = data.Batches(Numbers(60), batch=8)
    rows = np.concatenate([batches.at(step)["rows"] for step in range(30)]).reshape(4, 60)
    assert np.array_equal(np.sort(rows), np.tile(np.arange(60), (4, 1)))
    assert len({tuple(epoch) for epoch in rows.tolist()}) == 4
    assert batches.steps_per_epoch == 7.5


def test_every_example_is_seen_once_an_epoch_in_a_batch_of_its_bucket():
    dataset = bucketed(61)
    batches = data.Batches(dataset, batch=8, seed=1)
    steps = int(batches.steps_per_epoch)
    orders = []
    for epoch in range(3):
        found = [batches.at(step) for step in range(epoch * steps, (epoch + 1) * steps)]
        rows = np.concatenate([batch["rows"] for batch in found])
        assert sorted(rows[rows >= 0]) == list(range(61))
        for batch in found:
            assert set(dataset.bucket_of[batch["rows"][batch["rows"] >= 0]]) == {int(batch["bucket"])}
        orders.append(rows.tolist())
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("make", [Numbers, bucketed])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_evaluation_counts_each_example_once(make, processes):
    shares = [data.Batches(make(53), batch=8, process=p, processes=processes).evaluation() for p in range(processes)]
    rows, weights = [], []
    for batches in zip(*shares, strict=True):  # as many batches for each process
        rows += [number for batch in batches for number in batch["rows"].tolist()]
        weights += [weight for batch in batches for weight in batch["weights"].tolist()]
    assert sorted(number for number in rows if number >= 0) == list(range(53))
    assert weights == [float(number >= 0) for number in rows]
    assert make is bucketed or rows[:53] == list(range(53))


@pytest.mark.parametrize(
    ("how", "fact", "fix"),
    [
        (dict(batch=6, processes=4), "6 rows does not divide over 4 processes", "e.g. 8"),
        (dict(batch=0), "0 rows", "e.g. 1"),
        (dict(batch=4, process=2, processes=2), "process 2 is none of 2", "from 0"),
    ],
)
def test_batches_that_cannot_be_are_refused(how, fact, fix):
    with pytest.raises(data.DataError) as caught:
        data.Batches(Numbers(10), **how)
    assert fact in caught.value.fact and fix in caught.value.fix


def test_a_step_before_the_first_and_a_dataset_without_examples_are_refused():
    with pytest.raises(data.DataError, match="no step -1"):
        data.Batches(Numbers(10), batch=2).seek(-1)
    with pytest.raises(data.DataError, match="no examples"):
        data.Batches(Numbers(0), batch=2)
