"""What moving along split dims sends, and what it says of input that makes no sense."""

import jax
import numpy as np
import pytest

import weft as wf

B, T, D = wf.dims(batch=16, length=8, d_model=4)
ROW = B.size * D.size * 4  # bytes of one place along `length`


def shape(*dims, dtype="float32"):
    return wf.tensor(jax.ShapeDtypeStruct(tuple(d.size for d in dims), dtype), dims)


def sent(fn, *args, mesh="x=4", layout="length:x"):
    return [(row.collective, row.bytes, row.count) for row in wf.trace(fn, *args, mesh=mesh, layout=layout).ledger]


def test_a_shift_by_one_moves_one_row_of_a_slice():
    assert sent(lambda x: wf.shift(x, over=T, by=1), shape(B, T, D)) == [("permute", ROW, 1)]
    assert sent(lambda x: wf.shift(x, over=T, by=-1), shape(B, T, D)) == [("permute", ROW, 1)]


def test_a_shift_past_a_slice_moves_rows_from_two_neighbours():
    assert sent(lambda x: wf.shift(x, over=T, by=3), shape(B, T, D)) == [("permute", ROW, 1), ("permute", ROW, 1)]
    assert sent(lambda x: wf.shift(x, over=T, by=2), shape(B, T, D)) == [("permute", 2 * ROW, 1)]


def test_its_gradient_moves_as_much_back():
    def loss(x):
        return wf.sum(wf.square(wf.shift(x, over=T, by=1)), over=x.dims)

    rows = [row for row in sent(wf.grad(loss), shape(B, T, D)) if row[0] == "permute"]
    assert rows == [("permute", ROW, 1)] * 2


def test_a_roll_goes_the_shorter_way_round():
    assert sent(lambda x: wf.roll(x, over=T, by=7), shape(B, T, D)) == [("permute", ROW, 1)]
    assert sent(lambda x: wf.roll(x, over=T, by=8), shape(B, T, D)) == []


def test_a_flip_moves_each_slice_once():
    assert sent(lambda x: wf.flip(x, over=T), shape(B, T, D), mesh="x=2") == [("permute", 4 * ROW, 1)]


def test_what_is_not_split_moves_nothing():
    def all_of_them(x):
        y = wf.concat([wf.pad(x, over=D, before=2), wf.flip(x, over=D)], over=D)
        return wf.roll(wf.shift(y, over="d_model", by=1), over="d_model", by=2)["d_model", 1:9]

    assert sent(all_of_them, shape(B, T, D)) == []


def test_a_split_is_free_where_its_first_part_takes_the_axes():
    outer, inner = wf.dims(outer=4, inner=2)
    assert sent(lambda x: wf.split(x, length=[wf.Dim("length_2", 4, follows="length"), inner]), shape(B, T)) == []
    assert sent(lambda x: wf.split(x, length=[outer, inner]), shape(B, T)) == [("all_gather", 16 * 8 * 4, 1)]


def test_a_merge_is_free_where_its_first_dim_holds_the_axes():
    both = wf.Dim("both", 32, follows="length")
    assert sent(lambda x: wf.merge(x, [T, D], into=both), shape(B, T, D)) == []
    assert sent(lambda x: wf.merge(x, [D, T], into=both), shape(B, T, D)) == [("all_to_all", B.size * 8 * 4, 1)]


def test_an_update_moves_nothing():
    assert sent(lambda x, new: wf.update(x, new, over=T, at=5), shape(B, T, D), shape(B, D)) == []


def test_a_slice_from_a_traced_start_sends_what_it_gives():
    at = wf.tensor(jax.ShapeDtypeStruct((), "int32"), [])
    assert sent(lambda x, at: wf.slice(x, over=T, start=at, size=4), shape(B, T, D), at) == [
        ("reduce_scatter", 4 * ROW, 1)
    ]


@pytest.mark.parametrize("layout", ["", "length:x", "length:x+y"])
def test_what_would_run_past_an_end_is_moved_inside_on_every_layout(layout):
    x, new = np.arange(8.0, dtype="float32"), np.array([-1, -2, -3, -4], "float32")

    def moved(x, new, at):
        return wf.slice(x, over=T, start=at, size=4), wf.update(x, new, over=T, at=at)

    fn = wf.spmd(moved, mesh="x=2,y=2", layout=layout)
    for at, first in ((-3, 0), (3, 3), (6, 4), (8, 4), (2**30, 4)):
        part, whole = fn(wf.tensor(x, [T]), wf.tensor(new, [wf.Dim("length", 4)]), np.int32(at))
        np.testing.assert_array_equal(part.array, x[first : first + 4])
        np.testing.assert_array_equal(whole.array, np.concatenate([x[:first], new, x[first + 4 :]]))


@pytest.mark.parametrize("layout", ["outer:y, inner:x", "outer:x, inner:y", "inner:x+y", "inner:y+x"])
@pytest.mark.parametrize("length", ["x+y", "y+x"])
def test_parts_of_a_dim_over_two_axes_may_take_one_each(length, layout):
    x = np.arange(2 * 8.0, dtype="float32").reshape(2, 8)
    outer, inner = wf.dims(outer=2, inner=4)
    fn = lambda x: (y := wf.split(x, length=[outer, inner]), wf.merge(y + 1, [outer, inner], into=T))  # noqa: E731
    parts, whole = wf.spmd(fn, mesh="x=2,y=2", layout=f"length:{length}, {layout}")(
        wf.tensor(x, [wf.Dim("rows", 2), T])
    )
    np.testing.assert_array_equal(parts.array, x.reshape(2, 2, 4))
    np.testing.assert_array_equal(whole.array, x + 1)


def test_windows_with_gaps_between_them_get_no_place_of_a_gap():
    long, taps = wf.Dim("length", 24), wf.Dim("taps", 1)
    how = {"over": {"length": "taps"}, "channels": ("d_model", "d_out"), "stride": 5, "padding": {"length": (0, 12)}}
    fn = lambda x, w: wf.conv(x, w, **how)  # noqa: E731
    kernel = D, wf.Dim("d_out", 4), taps
    # Windows look at 0, 5, 10, 15 and 20; of those, only 15 is another's.
    assert sent(fn, shape(long, D), shape(*kernel)) == [("permute", D.size * 4, 1)]
    x, w = (np.random.default_rng(0).normal(size=size).astype("float32") for size in ((24, 4), (4, 4, 1)))
    found = wf.spmd(fn, mesh="x=4", layout="length:x")(wf.tensor(x, [long, D]), wf.tensor(w, kernel))
    np.testing.assert_allclose(found.array[:5], x[::5] @ w[:, :, 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.array[5:], 0)


def test_the_program_says_why():
    (row,) = wf.trace(lambda x: wf.shift(x, over=T, by=1), shape(B, T, D), mesh="x=4", layout="length:x").ledger
    assert row.reason == "because shift goes over length, split over x"


x = wf.tensor(np.arange(16 * 8, dtype="float32").reshape(16, 8), [B, T])
WRONG = [
    (lambda: wf.slice(x, over="length", start=5, size=4), "takes [5, 9) of `length` (size 8)", "start between 0 and 4"),
    (lambda: wf.slice(x, over="length", start=0, size=9), "takes 9 of `length` (size 8)", "at most all"),
    (lambda: wf.slice(x, over="length", start=1.5, size=2), "slice got 1.5 for `start`", "one whole number"),
    (lambda: wf.pad(x, over="length", before=-1), "pad got before=-1", "at least 0"),
    (lambda: wf.shift(x, over="length", by=0.5), "shift got by=0.5", "a whole number"),
    (lambda: wf.concat([], over="length"), "concat got []", "a list of tensors"),
    (lambda: wf.concat([x, wf.sum(x, over="batch")], over="length"), "concat got [batch=16 length=8]", "same dims"),
    (lambda: wf.stack([x, x], wf.Dim("pair", 3)), "2 tensors along", "a dim of size 2"),
    (lambda: wf.split(x, length=[wf.Dim("a", 3), wf.Dim("b", 2)]), "does not split into [a=3 b=2]", "multiply to 8"),
    (lambda: wf.merge(x, ["batch", "length"], into=wf.Dim("both", 100)), "merged into", "a dim of size 128"),
    (lambda: wf.update(x, wf.sum(x, over="length"), over="length", at=8), "[8, 9) into `length`", "between 0 and 7"),
    (lambda: x[0], "was indexed with 0", 'x["batch", 3:7]'),
    (lambda: x["length", 8], "place 8 of `length` (size 8)", "from 0 to 7"),
    (lambda: x["length", 5:5], "is empty", "at least one"),
    (lambda: x["length", ::0], "with step 0", "not 0"),
    (lambda: x["length", 5:2:2], "5:2:2 of `length` (size 8) is empty", "at least one"),
]


@pytest.mark.parametrize(("call", "fact", "fix"), WRONG, ids=[case[1] for case in WRONG])
def test_what_makes_no_sense_is_an_error_with_its_fix(call, fact, fix):
    with pytest.raises(wf.WeftError) as caught:
        call()
    assert fact in caught.value.fact
    assert fix in caught.value.fix


def test_a_size_that_no_longer_divides_is_an_error_that_names_the_rule():
    with pytest.raises(wf.LayoutError) as caught:
        wf.trace(lambda x: wf.pad(x, over=T, before=1), shape(B, T), mesh="x=4", layout="length:x")
    assert "dim `length` (size 9) does not divide over mesh axis `x` (size 4)" in caught.value.fact
