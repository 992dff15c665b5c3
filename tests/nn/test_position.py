"""Positions: sinusoids, rotations and T5's buckets against their formulas, written once more in numpy."""

import math

import jax
import numpy as np
import pytest

import weft as wf
from tests.ops.test_meanings import EPS
from weft import nn
from weft.nn.position import bucket

from .cases import FAMILIES, POSITIONS, D, H, X, normal


def test_sinusoids_are_a_sine_and_a_cosine_in_turn():
    positions = np.asarray(POSITIONS.array)
    want = np.zeros((*positions.shape, D.size))
    for (b, t), position in np.ndenumerate(positions):
        for i in range(D.size // 2):
            angle = position / 10_000 ** (2 * i / D.size)
            want[b, t, 2 * i], want[b, t, 2 * i + 1] = math.sin(angle), math.cos(angle)
    got = nn.sinusoids(POSITIONS, D, X)
    assert got.dtype == "float32" and got.dims.names == ("batch", "length", "d_model")
    np.testing.assert_allclose(got.array, want, rtol=0, atol=16 * 4 * EPS)


def test_sinusoids_of_far_positions_are_as_exact_as_the_angle_is():
    places = np.array([0, 1, 1000, 65_535, 1_000_000])
    got = np.asarray(nn.sinusoids(wf.tensor(places, "length"), D, X).array)
    rate = 10_000 ** (-2 * np.arange(D.size // 2) / D.size)
    angle = places[:, None] * rate
    # The angle is a product of two float32 numbers: some ulps of it are lost.
    allowed = 4 * EPS * np.maximum(angle, 1)
    assert np.all(np.abs(got[:, 0::2] - np.sin(angle)) <= allowed)
    assert np.all(np.abs(got[:, 1::2] - np.cos(angle)) <= allowed)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_rotations_turn_channel_i_with_channel_i_plus_half(base):
    x = normal([*POSITIONS.dims, H, wf.Dim("d_kv", 8)], 3)
    pairs = np.asarray(x.array[..., :4]) + 1j * np.asarray(x.array[..., 4:])
    speed = np.array([base ** (-2 * i / 8) for i in range(4)])
    turned = pairs * np.exp(1j * np.asarray(POSITIONS.array)[:, :, None, None] * speed)
    got = nn.rope(x, POSITIONS, base=base)
    assert got.dims == x.dims
    np.testing.assert_allclose(got.array, np.concatenate([turned.real, turned.imag], -1), rtol=0, atol=16 * 8 * EPS)


@pytest.mark.parametrize("length", [16, 15])
def test_longrope_slows_each_wave_by_a_number_that_goes_by_the_last_position(length):
    stretch = nn.position.RopeScaling(4.0, 1.0, 4.0, length, "longrope", 1.25, short=(1, 2, 3, 4), long=(2, 5, 6, 8))
    x, at = normal([wf.Dim("length", 16), wf.Dim("d_kv", 8)], 3), np.arange(16)
    pairs = np.asarray(x.array[:, :4]) + 1j * np.asarray(x.array[:, 4:])
    speed = 10_000.0 ** (-np.arange(4) / 4) / np.array(stretch.short if length == 16 else stretch.long)
    turned = 1.25 * pairs * np.exp(1j * at[:, None] * speed)
    run = lambda x: nn.rope(x, wf.arange(x.dim("length"), like=x), stretch=stretch)  # noqa: E731
    for got in (run(x), wf.spmd(run, mesh="x=2", layout="length:x")(x)):
        want = np.concatenate([turned.real, turned.imag], -1)
        np.testing.assert_allclose(got.array, want, rtol=0, atol=16 * 8 * EPS)


def test_rope_is_still_found_under_its_earlier_name_which_is_said_to_have_changed():
    with pytest.warns(wf.WeftWarning, match="`nn.rotated` is now `nn.rope`") as heard:
        assert nn.rotated is nn.rope
    assert [warning.filename for warning in heard] == [__file__]
    assert "rope" in nn.__all__ and "rotated" not in nn.__all__


def test_the_product_of_two_rotated_vectors_depends_on_their_distance_alone():
    q, k = normal([D], 1), normal([D], 2)

    def product(at_q: int, at_k: int) -> float:
        turned = (nn.rope(x, wf.tensor(np.array(at), []), over="d_model") for x, at in ((q, at_q), (k, at_k)))
        return float(wf.einsum(*turned, over="d_model").array)

    assert product(3, 1) == pytest.approx(product(40, 38), abs=64 * 16 * EPS)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)


def t5_bucket(distance: int, is_causal: bool, buckets: int, farthest: int) -> int:
    """The function of T5, a distance at a time; a far one on the border of two buckets belongs to the next."""
    found = 0
    if not is_causal:
        buckets //= 2
        found, distance = buckets * (distance > 0), abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return found + distance
    steps = math.log(distance / exact) / math.log(farthest / exact) * (buckets - exact)
    return found + min(exact + math.floor(steps + 1e-9), buckets - 1)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (64, 256), (4, 8), (7, 30)])
def test_buckets_are_those_of_t5(is_causal, buckets, farthest):
    distances = np.arange(-300, 301)
    want = [t5_bucket(int(d), is_causal, buckets, farthest) for d in distances]
    given = wf.tensor(distances, "length")
    np.testing.assert_array_equal(bucket(given, buckets, is_causal, farthest).array, want)
    compiled = jax.jit(lambda d: bucket(d, buckets, is_causal, farthest))(given)
    np.testing.assert_array_equal(compiled.array, want)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_relative_bias_is_the_tables_row_for_the_bucket_of_key_minus_query(is_causal):
    layer = FAMILIES["positions"][f"relative, causal: {is_causal}"].layer
    there = POSITIONS.rename(length="memory_length")
    got = wf.broadcast(layer(POSITIONS, there), "batch length memory_length heads group").array
    table, positions = np.asarray(layer.table.array), np.asarray(POSITIONS.array)
    for (b, q, k), _ in np.ndenumerate(np.zeros((2, 16, 16))):
        row = t5_bucket(int(positions[b, k] - positions[b, q]), is_causal, 8, 12)
        np.testing.assert_array_equal(got[b, q, k], table[row])
