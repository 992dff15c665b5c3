"""One query to a KV cache: the kernel, step by step, against all scores at once."""

import jax.numpy as jnp
import numpy as np
import pytest

from weft.kernels.cached import attend_cached, can_do, parts_for

# Rows, heads, queries of a head, width, places of the cache, that of the new token, window, soft cap, later firsts.
CASES = {
    "the first token": (2, 3, 1, 16, 20, 0, None, None, False),
    "grouped, a window, rows that begin later": (2, 3, 2, 32, 40, 39, 5, None, True),
    "several parts, a last tile that overlaps": (1, 2, 1, 64, 1100, 1099, 700, 20.0, True),
    "a part that holds nothing yet": (1, 1, 4, 16, 2048, 17, None, None, False),
}


@pytest.mark.quick("grouped, a window, rows that begin later", "several parts, a last tile that overlaps")
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_takes_and_keeps_what_plain_attention_does(case):
    rows, heads, group, width, memory, at, window, softcap, is_later = CASES[case]
    draw = np.random.default_rng(len(case))
    normal = lambda *shape: jnp.asarray(draw.normal(size=shape), "float32")  # noqa: E731
    qkv, keys, values = normal(rows, heads, group + 2, width), *normal(2, rows, memory, heads, width)
    first = jnp.asarray(draw.integers(0, at + 1, rows), "int32") if is_later else None
    how = dict(scale=width**-0.5, window=window, softcap=softcap)
    plain, kernel = (
        attend_cached(qkv, keys, values, jnp.int32(at), first, **how, backend=name) for name in ("plain", "interpret")
    )
    np.testing.assert_allclose(kernel[0], plain[0], rtol=2e-5, atol=2e-6)
    for kept, other, new in zip(kernel[1:], plain[1:], (qkv[:, :, -2], qkv[:, :, -1]), strict=True):
        np.testing.assert_array_equal(kept, other)
        np.testing.assert_array_equal(kept[:, at], new)


def test_plain_attention_is_a_softmax_over_the_keys_seen():
    draw = np.random.default_rng(0)
    qkv, keys, values = (draw.normal(size=s).astype("float32") for s in ((1, 1, 3, 16), (1, 8, 1, 16), (1, 8, 1, 16)))
    found = attend_cached(*map(jnp.asarray, (qkv, keys, values)), jnp.int32(5), scale=0.5, window=3, backend="plain")[0]
    seen = np.concatenate([keys[0, 3:5, 0], qkv[0, 0, 1:2]])
    scores = seen @ qkv[0, 0, 0] * 0.5
    share = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(found[0, 0, 0], share @ np.concatenate([values[0, 3:5, 0], qkv[0, 0, 2:]]), rtol=1e-5)


def test_keys_are_cut_where_rows_and_heads_are_few():
    assert [parts_for(*sizes) for sizes in ((1, 16, 384), (64, 16, 16384), (1, 16, 16384))] == [1, 1, 17]


def test_what_the_kernel_cannot_do_it_says():
    assert can_do(64) is None
    assert "heads are 80 wide" in str(can_do(80))
