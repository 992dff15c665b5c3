"""Sliding windows: every token but the first counts once, and sees as much as was asked for."""

import numpy as np
import pytest

from weft import data
from weft.data.tokens import Tokens


def windows(size, window, stride, ending=None, length=None):
    tokens = Tokens(np.arange(1, size + 1, dtype=np.uint16), np.array([0, size]), size + 1)
    return data.SlidingWindows(tokens, data.Sliding(window, stride, length or window), ending)


@pytest.mark.parametrize("size, window, stride", [(2, 5, 2), (6, 5, 2), (7, 5, 2), (50, 8, 3), (51, 8, 8), (40, 7, 1)])
def test_every_token_but_the_first_counts_once_after_enough_others(size, window, stride):
    rows = windows(size, window, stride, length=window + 3)
    batch = rows.take(np.arange(len(rows)))
    counted = batch["weights"] > 0
    assert batch["targets"][counted].tolist() == list(range(2, size + 1))
    assert (batch["inputs"][counted] == batch["targets"][counted] - 1).all()
    first = np.broadcast_to(batch["inputs"][:, :1], counted.shape)
    seen = (batch["inputs"] - first + 1)[counted]
    assert (seen[window:] > window - stride).all() and rows.tokens == size - 1


def test_rows_that_fill_a_batch_up_count_nothing():
    batch = windows(20, 8, 4).take(np.array([0, -1]))
    assert batch["weights"][1].sum() == 0 and batch["weights"][0].sum() == 8


def test_the_end_of_the_last_document_is_not_judged():
    assert windows(20, 8, 4, ending=20).tokens == 18


@pytest.mark.parametrize(
    "window, stride, fact, fix",
    [
        (0, 1, "the window has 0 tokens", "say a window of 1 or more"),
        (8, 9, "the stride is 9, and the window has 8 tokens", "say a stride of 1 to 8"),
        (8, 0, "the stride is 0, and the window has 8 tokens", "say a stride of 1 to 8"),
    ],
)
def test_windows_that_cannot_slide(window, stride, fact, fix):
    with pytest.raises(data.DataError) as caught:
        data.Sliding(window, stride, window)
    assert caught.value.fact == fact and fix in caught.value.fix


def test_one_token_is_predicted_from_nothing():
    with pytest.raises(data.DataError, match="the first is predicted from nothing"):
        windows(1, 8, 4)
