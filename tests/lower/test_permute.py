"""A permutation goes over those axes alone that it crosses."""

import itertools

import numpy as np
import pytest

import weft as wf
from tests.lower.on_all import on_all
from weft.lower.collectives import permute

SIZES = {"x": 4, "y": 2}
COUNT = 8
RANDOM = np.random.default_rng(0)
CASES = {
    "along the outer axis": ("yx", [(a, (a + 4) % 8) for a in range(8)]),
    "along the outer axis, the last nowhere": ("xy", [(a, a + 2) for a in range(6)]),
    "along the inner axis": ("yx", [(a, a - a % 4 + (a + 1) % 4) for a in range(8)]),
    "along both": ("xy", [(a, (a + 1) % 8) for a in range(8)]),
    "of one axis": ("x", [(a, (a + 1) % 4) for a in range(4)]),
    "unlike along an axis": ("yx", [(0, 4), (1, 5), (6, 2)]),
    "nobody but itself": ("yx", [(a, a) for a in range(8)]),
    "anyone": ("yx", list(enumerate(RANDOM.permutation(8).tolist()))),
}


def whole_number(place, axes):
    """Where a processor stands among those of these axes, the first the slowest."""
    number = 0
    for axis in axes:
        number = number * SIZES[axis] + place[axis]
    return number


@pytest.mark.parametrize("case", CASES)
def test_what_the_first_of_a_pair_holds_is_on_the_second_and_zeros_are_elsewhere(case):
    axes, pairs = CASES[case]
    held = np.arange(1, COUNT + 1, dtype="float32")
    found = on_all(SIZES, lambda x: permute(x, tuple(axes), pairs), held)
    places = [dict(zip(SIZES, at, strict=True)) for at in itertools.product(*map(range, SIZES.values()))]
    others = [axis for axis in SIZES if axis not in axes]
    for number, place in enumerate(places):
        source = [a for a, b in pairs if b == whole_number(place, axes)]
        beside = [
            i
            for i, other in enumerate(places)
            if source and whole_number(other, axes) == source[0] and all(other[o] == place[o] for o in others)
        ]
        assert found[number] == (held[beside[0]] if beside else 0)


@pytest.mark.parametrize(("by", "axes"), [(-4, {("y",)}), (-2, {("x", "y")}), (-3, {("x", "y"), ("y",)})])
def test_a_roll_by_whole_slices_of_an_axis_is_sent_over_it_alone(by, axes):
    x = wf.tensor(np.arange(8, dtype="float32"), "f")
    program = wf.trace(lambda x: wf.roll(x, over="f", by=by), x, mesh="x=2,y=2", layout="f:y+x")
    assert {row.axes for row in program.ledger} == axes
    moved = wf.spmd(lambda x: wf.roll(x, over="f", by=by), mesh="x=2,y=2", layout="f:y+x")(x)
    np.testing.assert_array_equal(moved.array, np.roll(np.arange(8), by))
