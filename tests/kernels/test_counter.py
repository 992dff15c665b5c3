"""The counter generator: its bits are those of the stated formula, and look random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft.kernels import counter

SIZES = {"batch": 2, "head": 3, "query": 256, "key": 384}


def bits(seed: int, rate: float, **starts: int) -> np.ndarray:
    """Kept shares of a block that begins at these indices: [batch head query key]."""
    words = jax.random.key_data(jax.random.key(seed))
    shape = {name: [-1 if i == axis else 1 for i in range(4)] for axis, name in enumerate(SIZES)}
    index = {name: jnp.arange(starts.get(name, 0), size).reshape(shape[name]) for name, size in SIZES.items()}
    return np.asarray(counter.keep(words, rate, **index))


def test_bits_are_those_of_the_formula():
    """Written out in Python's own numbers, one share at a time."""
    words = jax.random.key_data(jax.random.key(7))
    seed = [int(word) for word in words]

    def threefry(x0, x1):
        rotations, ks = [(13, 15, 26, 6), (17, 29, 16, 24)], [seed[0], seed[1], seed[0] ^ seed[1] ^ 0x1BD11BDA]
        x0, x1 = (x0 + ks[0]) % 2**32, (x1 + ks[1]) % 2**32
        for i in range(5):
            for r in rotations[i % 2]:
                x0 = (x0 + x1) % 2**32
                x1 = ((x1 << r | x1 >> (32 - r)) % 2**32) ^ x0
            x0, x1 = (x0 + ks[(i + 1) % 3]) % 2**32, (x1 + ks[(i + 2) % 3] + i + 1) % 2**32
        return x0, x1

    def mix(x):
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return x ^ x >> 16

    def is_kept(b, h, q, k, rate):
        first, second = threefry(b, h)
        word = mix((first + q) % 2**32) ^ mix((second + k // 128 * 64 + k % 64) % 2**32)
        word = word * 0x7FEB352D % 2**32
        word = (word ^ word >> 15) * 0x846CA68B % 2**32
        if k % 128 >= 64:
            word = (word << 16) % 2**32
        return word < round((1 - rate) * 2**32)

    kept = bits(7, 0.3)
    for place in np.random.default_rng(0).integers(0, list(SIZES.values()), (50, 4)):
        assert bool(kept[tuple(place)]) == is_kept(*(int(i) for i in place), 0.3)


def test_a_block_has_the_bits_of_the_whole():
    whole = bits(1, 0.1)
    part = bits(1, 0.1, batch=1, head=2, query=100, key=77)
    np.testing.assert_array_equal(part, whole[1:, 2:, 100:, 77:])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_bits_have_their_rate_and_do_not_hang_together(rate):
    """Means and products of pairs of rows, columns, heads and neighbours are as far from 0 as chance has it."""
    z = (bits(3, rate).reshape(6, 256, 384) - (1 - rate)) / np.sqrt(rate * (1 - rate))  # mean 0, variance 1
    most = 5.0  # standard deviations: one sample in 1.7 million is further out
    assert abs(z.mean()) * np.sqrt(z.size) < most
    for axis, lag in [(1, 1), (1, 2), (1, 64), (2, 1), (2, 2), (2, 32), (2, 64), (2, 65), (2, 128)]:
        a, b = (np.take(z, np.arange(z.shape[axis] - lag) + at, axis) for at in (0, lag))
        assert abs((a * b).mean()) * np.sqrt(a.size) < most, f"lag {lag} along {axis}"
    heads = np.einsum("aij,bij->ab", z, z) / np.sqrt(z[0].size)
    assert np.abs(heads[~np.eye(6, dtype=bool)]).max() < most
    for of in (z, np.swapaxes(z, 1, 2)):
        pairs = np.einsum("aij,akj->aik", of, of) / np.sqrt(of.shape[2])
        apart = pairs[:, ~np.eye(of.shape[1], dtype=bool)]
        # The mean square over n independent pairs (each counted twice) of variance 1 is 1 within a few deviations:
        # a rectangle of four shares whose bits hang together would show here.
        kurtosis = 3 + (1 / (rate * (1 - rate)) - 3) ** 2 / of.shape[2]
        assert abs(apart.var() - 1) < most * np.sqrt((kurtosis - 1) / (apart.size / 2))
        assert abs(of.mean(2)).max() * np.sqrt(of.shape[2]) < most + 1  # the largest of a few thousand, and skewed


def test_keys_and_seeds_draw_apart():
    first, second = bits(0, 0.5), bits(1, 0.5)
    assert abs(np.mean(first == second) - 0.5) < 5 * 0.5 / np.sqrt(first.size)
