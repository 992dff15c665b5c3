"""A whole number is one wherever it is asked for: Python's or NumPy's, and no boolean."""

import numpy as np
import pytest

import weft as wf
from weft import models, nn

X = wf.tensor(np.ones((2, 3), "float32"), "turns d")


def test_bounds_of_numpy_are_known_and_so_a_gradient_goes_through_their_loop():
    def double(x):
        return wf.sum(wf.fori_loop(np.int64(0), np.int64(3), lambda i, c: c * 2.0, x), over="turns d")

    np.testing.assert_array_equal(wf.grad(double)(X).array, np.full((2, 3), 8.0))


def test_turns_may_be_unrolled_by_a_number_of_numpy():
    def add(carry, x):
        return carry + x, None

    total, _ = wf.scan(add, wf.zeros([X.dim("d")]), X, over="turns", unroll=np.int64(2))
    np.testing.assert_array_equal(total.array, [2.0, 2.0, 2.0])
    with pytest.raises(wf.TensorError, match="unroll=0"):
        wf.scan(add, wf.zeros([X.dim("d")]), X, over="turns", unroll=0)


def test_a_window_is_a_whole_number_and_no_boolean():
    assert type(nn.Mask(causal=True, window=np.int32(4)).window) is int
    with pytest.raises(wf.TensorError, match="`window` is True"):
        nn.Mask(causal=True, window=True)


def test_an_image_of_a_size_of_numpys_has_as_many_patches():
    config = models.preset("tiny-vit", height=np.int64(32))
    assert config.length == models.preset("tiny-vit", height=32).length != models.preset("tiny-vit").length
