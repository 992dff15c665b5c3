"""Prefetching: in order, ahead, with its errors where the batch is asked for, and with an end."""

import itertools
import threading

import numpy as np
import pytest

from weft import data

_before = set()


@pytest.fixture(autouse=True)
def _of_other_tests():
    """Threads of tests that ran before in this worker are none of these tests'."""
    _before.update(threading.enumerate())
    yield
    _before.clear()


def threads():
    running = set(threading.enumerate()) - _before
    return [thread for thread in running if thread.name == "weft-prefetch"]


def test_batches_come_in_order_and_through_put():
    with data.prefetched(iter(range(100)), lambda i: i * 2) as found:
        assert list(found) == list(range(0, 200, 2))
        with pytest.raises(StopIteration):
            next(found)
    assert not threads()


def test_it_is_ahead_by_so_many_and_no_more():
    made, is_made = [], threading.Semaphore(0)

    def put(number):
        made.append(number)
        is_made.release()

    with data.prefetched(itertools.count(), put, size=2) as found:
        for number in range(20):
            for _ in range(3 if number == 0 else 1):  # two wait, and one stands at the door
                assert is_made.acquire(timeout=60)
            assert made == list(range(number + 3))
            next(found)


@pytest.mark.parametrize("where", ["put", "batches"])
def test_what_goes_wrong_is_raised_where_the_batch_is_asked_for(where):
    def batches():
        yield 0
        yield 1
        if where == "batches":
            raise data.DataError("broken", fix="mend it")
        yield 2

    def put(i):
        if i == 2:
            raise data.DataError("broken", fix="mend it")
        return i

    found = data.prefetched(batches(), put)
    assert [next(found), next(found)] == [0, 1]
    for _ in range(2):
        with pytest.raises(data.DataError, match="broken"):
            next(found)
    assert not threads()
    found.close()


def test_closing_ends_the_thread_also_while_it_waits():
    found = data.prefetched(itertools.count(), lambda i: i)
    next(found)
    assert len(threads()) == 1
    found.close()
    found.close()
    assert not threads()
    with pytest.raises(StopIteration):
        next(found)


def test_a_size_of_nothing_is_refused():
    with pytest.raises(data.DataError, match="`size` is 0"):
        data.prefetched(iter([]), lambda i: i, size=0)


def test_a_dataset_that_fails_says_so_where_its_batch_is_asked_for():
    class Broken:
        vocab, bucket_of = None, None

        def __len__(self):
            return 8

        def take(self, numbers, bucket=0):
            raise data.DataError("a page cannot be read", fix="fetch it again")

    batches = data.Batches(Broken(), batch=4)
    for _ in range(2):
        with pytest.raises(data.DataError, match="a page"):
            next(batches)
    batches.close()
    assert not threads()


def test_text_goes_to_the_device_in_the_order_of_steps(tmp_path):
    import jax

    (tmp_path / "a.txt").write_text("".join(f"line {i}\n" for i in range(500)))
    dataset = data.lm_dataset(data.open_source(tmp_path / "a.txt"), data.ByteTokenizer(), length=32, cache=tmp_path)
    batches = data.Batches(dataset, batch=8, seed=1, put=jax.device_put)
    for first in (5, 2):
        batches.seek(first)
        for step in range(first, first + 25):
            batch = next(batches)
            assert isinstance(batch["targets"], jax.Array)
            assert all(np.array_equal(batch[name], x) for name, x in batches.at(step).items())
        assert len(threads()) == 1
    batches.close()
    assert not threads()
