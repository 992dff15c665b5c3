"""Dropout of models: by key and global index, the same under every layout and however a dim is cut."""

import jax
import numpy as np
import pytest

import weft as wf
from weft.kernels import counter
from weft.ops.counter_dropout import drop

B, L, D = wf.dims(batch=8, length=16, d_model=64)
KEY = jax.random.key(7)
RATE = 0.25


def mix(x):
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def kept_by_hand(count, key=KEY):
    """The formula of `weft.kernels.counter`, in NumPy."""
    key0, key1 = np.asarray(jax.random.key_data(key))[:, None]
    return mix(mix(key0 + np.arange(count, dtype="uint32")) ^ mix(key1)) < np.uint32((1 - RATE) * 2**32)


def test_what_is_kept_is_as_the_formula_says_and_is_scaled():
    x = wf.tensor(np.random.default_rng(0).normal(size=(8, 16, 64)).astype("float32"), [B, L, D])
    kept = kept_by_hand(8 * 16 * 64).reshape(8, 16, 64)
    want = np.where(kept, np.asarray(x.array) / np.float32(1 - RATE), 0)
    np.testing.assert_allclose(drop(x, RATE, KEY).array, want, rtol=1e-6)
    assert abs(kept.mean() - (1 - RATE)) < 4 * np.sqrt(RATE * (1 - RATE) / kept.size)


@pytest.mark.parametrize("layout", ["batch:x", "length:x,d_model:y", "d_model:y+x", "batch:y,d_model:x"])
def test_no_layout_changes_what_is_kept(layout):
    x = wf.ones([B, L, D])
    split = wf.spmd(lambda x, key: drop(x, RATE, key), mesh="x=4,y=2", layout=layout)(x, KEY)
    np.testing.assert_array_equal(split.array, drop(x, RATE, KEY).array)


def test_a_dim_that_is_cut_in_two_keeps_the_same():
    x = wf.ones([B, L, D])
    cut = drop(wf.split(x, d_model=wf.dims(parts=4, width=16)), RATE, KEY)
    np.testing.assert_array_equal(np.asarray(cut.array).reshape(8, 16, 64), drop(x, RATE, KEY).array)


def test_two_keys_and_two_halves_of_a_large_index_keep_others():
    word = np.arange(4096, dtype="uint32")
    words = np.asarray(jax.random.key_data(KEY))
    first, second, third = (
        np.asarray(counter.keep_elements(low + word, high, 0.5))
        for low, high in ((words[:1], words[1:]), (words[:1], words[1:] + np.uint32(1)), (words[1:], words[:1]))
    )
    for other in (second, third):
        assert abs((first == other).mean() - 0.5) < 4 * np.sqrt(0.25 / 4096)
