"""What each op sends along split dims, forward and backward: a table of the ledger's rows.

The figures are the least that must move, worked out from sizes: bytes are those of one call on one processor. The
gradient is that of a sum of sines; the four bytes of its own all-reduce are left out. One processor of a permute gives
and gets at most once a call, so a processor that needs pieces of two others needs two calls.
"""

from dataclasses import dataclass
from typing import Any

import jax
import pytest

import weft as wf

B, T, D, V = wf.dims(batch=16, length=8, d_model=4, vocab=64)
SHORT, PAIR = T.resized(4), wf.Dim("pair", 2)
ROW = B.size * D.size * 4  # bytes of one place along `length`
LINE = B.size * 4  # bytes of one place along `vocab`
WAYS = 4


def shape(*dims, dtype="float32"):
    return wf.tensor(jax.ShapeDtypeStruct(tuple(d.size for d in dims), dtype), dims)


def row(kind):
    return lambda size, over="x": (kind, over, size)


permute, all_reduce, all_gather, reduce_scatter, all_to_all = map(
    row, ("permute", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
)


@dataclass(frozen=True)
class Case:
    """A function, what it is called with, where, and what it sends; `kept`: forward, where a gradient is asked for."""

    fn: Any
    args: tuple[Any, ...]
    layout: str
    forward: list[Any]
    backward: list[Any] | None = None
    kept: list[Any] | None = None
    mesh: str = f"x={WAYS}"


def sent(program, phase=None):
    return [
        (row.collective, "+".join(row.axes), row.bytes)
        for row in program.ledger
        for _ in range(row.count)
        if phase in (None, row.phase)
    ]


def total(fn, count):
    """The gradient of a sum of all that is made of the float arguments."""

    def loss(*args):
        made = jax.tree.leaves(fn(*args), is_leaf=lambda y: isinstance(y, wf.Tensor))
        parts = [wf.sum(wf.sin(y), over=y.dims) for y in made if y.dtype == "float32"]
        return sum(parts[1:], start=parts[0])

    return wf.grad(loss, argnums=count)


def check(case):
    program = wf.trace(case.fn, *case.args, mesh=case.mesh, layout=case.layout)
    assert sent(program) == case.forward
    if case.backward is None:
        return
    floats = tuple(i for i, x in enumerate(case.args) if x.dtype == "float32")
    program = wf.trace(total(case.fn, floats), *case.args, mesh=case.mesh, layout=case.layout)
    assert sorted(sent(program, "backward")) == sorted(case.backward)
    forward = [row for row in sent(program, "forward") if row[2] > 4]  # the sum itself aside
    assert forward == (case.forward if case.kept is None else case.kept)


# ---- moving along `length`, two places on each of four processors

x, few, at = shape(B, T, D), shape(B, SHORT, D), shape(dtype="int32")
ROWS = [permute(ROW)]


def moving(fn, forward, *more, backward=None, **how):
    return Case(
        fn, (x, *more), how.pop("layout", "length:x"), forward, forward if backward is None else backward, **how
    )


MOVING = {
    "shift by 1": moving(lambda x: wf.shift(x, over=T, by=1), ROWS),
    "shift by -1, filled": moving(lambda x: wf.shift(x, over=T, by=-1, fill=1.0), ROWS),
    "shift by a slice and one: two neighbours": moving(lambda x: wf.shift(x, over=T, by=3), ROWS * 2),
    "shift by three slices": moving(lambda x: wf.shift(x, over=T, by=6), [permute(2 * ROW)]),
    "shift by all": moving(lambda x: wf.shift(x, over=T, by=8), []),
    "roll by 1": moving(lambda x: wf.roll(x, over=T, by=1), ROWS),
    "roll by -3: the neighbour and the next": moving(lambda x: wf.roll(x, over=T, by=-3), ROWS * 2),
    "roll by half": moving(lambda x: wf.roll(x, over=T, by=4), [permute(2 * ROW)]),
    "flip": moving(lambda x: wf.flip(x, over=T), [permute(2 * ROW)]),
    # One place of the result each. The second processor gives both its places away.
    "slice of the first half": moving(lambda x: wf.slice(x, over=T, start=0, size=4), ROWS * 2),
    # The outer two get one place each, of different neighbours; nobody gives or gets twice.
    "slice of the middle": moving(lambda x: wf.slice(x, over=T, start=2, size=4), ROWS),
    "indexing a stretch": moving(lambda x: x["length", 2:6], ROWS),
    "indexing one place": moving(lambda x: x["length", 5], [all_reduce(ROW)], backward=[]),
    # Nobody knows who holds what: the parts of the result are added up where they belong.
    "slice, traced": moving(
        lambda x, at: wf.slice(x, over=T, start=at, size=4),
        [reduce_scatter(4 * ROW)],
        at,
        backward=[all_gather(4 * ROW)],
    ),
    # Four places of the result each: 2 3 | 4 5 to the second, 6 7 to the third.
    "pad": moving(lambda x: wf.pad(x, over=T, before=2, after=6), [permute(2 * ROW)]),
    "pad on both sides": moving(lambda x: wf.pad(x, over=T, before=4, after=4), [permute(2 * ROW)]),
    # Four places each: of each tensor the outer two slices reach one processor, and the inner two another.
    "concat": moving(
        lambda x, y: wf.concat([x, y], over=T), [permute(2 * ROW)] * 4, shape(B, T, D)
    ),
    "update of one place": moving(
        lambda x, new: wf.update(x, new, over=T, at=5), [], shape(B, D), backward=[all_reduce(ROW)]
    ),
    # One place of the new values each: the outer ones go one processor inwards.
    "update of a stretch": moving(lambda x, new: wf.update(x, new, over=T, at=2), ROWS, few),
    "update of a stretch, traced": moving(
        lambda x, new, at: wf.update(x, new, over=T, at=at),
        [all_gather(4 * ROW)],
        few,
        at,
        backward=[reduce_scatter(4 * ROW)],
    ),
    "stack": moving(lambda x, y: wf.stack([x, y], PAIR), [], shape(B, T, D)),
    # Each keeps its half; the gradients of both are needed everywhere.
    "stack along a split dim": moving(
        lambda x, y: wf.stack([x, y], PAIR),
        [],
        shape(B, T, D),
        layout="pair:y",
        mesh="y=2",
        backward=[all_gather(2 * 8 * ROW, "y")],
    ),
    "unstack": moving(lambda x: wf.unstack(x, over=D), []),
    # What is made of the whole may differ between processors, so its gradients are added up.
    "unstack of a split dim": moving(
        lambda x: wf.unstack(x, over=T), [all_gather(8 * ROW)], backward=[]
    ),
}  # fmt: skip

FOUR, TWO, LEAD = wf.dims(four=4, two=2, lead=4)
LEADS = wf.Dim("lead", 4, follows="length")
BOTH = wf.Dim("both", 32, follows="length")

REGROUPING = {
    "split, the first part takes the axis": moving(lambda x: wf.split(x, length=[LEADS, TWO]), []),
    "split, the axis goes to the second part": moving(
        lambda x: wf.split(x, length=[LEAD, TWO]), [all_to_all(4 * ROW)], layout="length:x,two:x", mesh="x=2"
    ),
    "split of a whole dim": moving(lambda x: wf.split(x, d_model=[TWO, wf.Dim("rest", 2)]), []),
    "split into whole parts": moving(
        lambda x: wf.split(x, length=[LEAD, TWO]), [all_gather(8 * ROW)], backward=[reduce_scatter(8 * ROW)]
    ),
    "merge, the first holds the axis": moving(lambda x: wf.merge(x, [T, D], into=BOTH), []),
    "merge, the second holds it": moving(lambda x: wf.merge(x, [D, T], into=BOTH), [all_to_all(2 * ROW)]),
    "merge of whole dims into a split one": moving(
        lambda x: wf.merge(x, [T, D], into=wf.Dim("both", 32)), [], layout="both:x", backward=[all_gather(8 * ROW)]
    ),
}


@pytest.mark.parametrize("name", MOVING)
def test_moving_along_a_split_dim_sends_only_what_others_need(name):
    check(MOVING[name])


@pytest.mark.parametrize("name", REGROUPING)
def test_regrouping_sends_a_slice_or_nothing(name):
    check(REGROUPING[name])


@pytest.mark.parametrize(
    ("fn", "layout", "least"),
    [
        # [two four/x] of length/x: each processor keeps or gets two places, from two others at most.
        (lambda x: wf.split(x, length=[TWO, FOUR]), "length:x,four:x", 2 * ROW),
        # [both/x] of [two length/x], half as much to a place: four each, two of them from another, or all.
        (lambda x: wf.merge(wf.split(x, d_model=[TWO, wf.Dim("rest", 2)]), [TWO, T], into=wf.Dim("both", 16)),
         "length:x,both:x", 2 * ROW),
    ],
    ids=["split", "merge"],
)  # fmt: skip
def test_a_part_that_cannot_hold_the_axis_costs_no_more_than_what_must_move(fn, layout, least):
    program = wf.trace(fn, x, mesh="x=4", layout=layout)
    assert sum(row.wire_bytes * row.count for row in program.ledger) <= least


# ---- order and indices along `vocab`, sixteen places on each of four processors

logits, K = shape(B, V), wf.Dim("top", 3)
TOTALS = WAYS * LINE  # one place of each processor


def join(a, b):
    return a[0] * b[0], b[0] * a[1] + b[1]


def ordering(fn, forward, backward=None, args=(logits,), **how):
    return Case(fn, args, "vocab:x", forward, backward, **how)


ids = {n: shape(B, V.resized(n), dtype="int32") for n in (8, 128)}
new = {n: shape(B, V.resized(n)) for n in (8, 128)}
ORDERING = {
    # The extreme value and then its place.
    "argmax": ordering(lambda x: wf.argmax(x, over=V), [all_reduce(LINE)] * 2),
    "argmin": ordering(lambda x: wf.argmin(x, over=V), [all_reduce(LINE)] * 2),
    # Three values of each processor, and their places; the gradient needs only the values.
    "top_k": ordering(
        lambda x: wf.top_k(x, over=V, k=K), [all_gather(3 * TOTALS)] * 2, [], kept=[all_gather(3 * TOTALS)]
    ),
    "sort": ordering(lambda x: wf.sort(x, over=V), [all_to_all(16 * LINE)] * 2, [all_to_all(16 * LINE)] * 2),
    "sort of a vector": ordering(
        lambda x: wf.sort(x, over=V), [all_gather(V.size * 4)], [all_gather(V.size * 4)], args=(shape(V),)
    ),
    "cumsum": ordering(lambda x: wf.cumsum(x, over=V), [all_gather(TOTALS)], [reduce_scatter(TOTALS)]),
    "cumsum, reverse": ordering(
        lambda x: wf.cumsum(x, over=V, reverse=True), [all_gather(TOTALS)], [reduce_scatter(TOTALS)]
    ),
    "cumprod": ordering(lambda x: wf.cumprod(x, over=V), [all_gather(TOTALS)], [reduce_scatter(TOTALS)]),
    "cummax": ordering(lambda x: wf.cummax(x, over=V), [all_gather(TOTALS)], [reduce_scatter(TOTALS)]),
    # One total of each leaf.
    "associative_scan": ordering(
        lambda a, x: wf.associative_scan(join, (a, x), over=V),
        [all_gather(TOTALS)] * 2,
        [reduce_scatter(TOTALS)] * 2,
        args=(logits, logits),
    ),
    # Two ids on each processor: all of them everywhere, and what is found back to where it was asked for.
    "gather of few": ordering(
        lambda x, i: wf.gather(x, i, over=V),
        [all_gather(8 * LINE), reduce_scatter(8 * LINE)],
        [all_gather(8 * LINE)],
        args=(logits, ids[8]),
    ),
    "gather of many": ordering(
        lambda x, i: wf.gather(x, i, over=V),
        [all_gather(64 * LINE)],
        [reduce_scatter(64 * LINE)],
        args=(logits, ids[128]),
    ),
    "scatter_add of few": ordering(
        lambda x, i, u: wf.scatter_add(x, i, u, over=V),
        [all_gather(8 * LINE), all_gather(8 * LINE)],
        [reduce_scatter(8 * LINE)],
        args=(logits, ids[8], new[8]),
    ),
    "scatter_add of many": ordering(
        lambda x, i, u: wf.scatter_add(x, i, u, over=V),
        [reduce_scatter(64 * LINE)],
        [all_gather(64 * LINE)],
        args=(logits, ids[128], new[128]),
    ),
    # The table's row is added up; its gradient stays where the row is.
    "take": ordering(
        lambda x, i: wf.take(x, i, over=V), [all_reduce(LINE)], [], args=(logits, shape(B, dtype="int32"))
    ),
}  # fmt: skip

REDUCING = {
    "sum": ordering(lambda x: wf.sum(x, over=V), [all_reduce(LINE)], []),
    "mean": ordering(lambda x: wf.mean(x, over=V), [all_reduce(LINE)], []),
    # Equal values share the gradient: how many there are is added up too.
    "max": ordering(lambda x: wf.max(x, over=V), [all_reduce(LINE)], [], kept=[all_reduce(LINE)] * 2),
    "logsumexp": ordering(lambda x: wf.logsumexp(x, over=V), [all_reduce(LINE)] * 2, []),
    "softmax": ordering(lambda x: wf.softmax(x, over=V), [all_reduce(LINE)] * 2, [all_reduce(LINE)]),
    "log_softmax": ordering(lambda x: wf.log_softmax(x, over=V), [all_reduce(LINE)] * 2, [all_reduce(LINE)]),
    "sum over a whole dim": ordering(lambda x: wf.sum(x, over=B), [], []),
}


@pytest.mark.parametrize("name", ORDERING)
def test_order_and_indices_send_a_small_exchange(name):
    check(ORDERING[name])


@pytest.mark.parametrize("name", REDUCING)
def test_reductions_send_what_is_left_after_the_local_one(name):
    check(REDUCING[name])


def test_the_variance_is_one_exchange_that_does_not_grow_with_the_processors():
    def variance(x):
        return wf.var(x, over=V)

    ledgers = [wf.trace(variance, logits, mesh=f"x={ways}", layout="vocab:x").ledger for ways in (4, 64)]
    assert [len(ledger) for ledger in ledgers] == [1, 1]
    assert ledgers[0].bytes() == ledgers[1].bytes()
    assert sent(wf.trace(total(variance, 0), logits, mesh="x=4", layout="vocab:x"), "backward") == []


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: wf.random.normal(jax.random.key(0), x.dims, like=x),
        lambda x: wf.random.uniform(jax.random.key(0), x.dims, like=x, minval=-1, maxval=1),
        lambda x: wf.random.truncated_normal(jax.random.key(0), x.dims, like=x),
        lambda x: wf.random.gumbel(jax.random.key(0), x.dims, like=x),
        lambda x: wf.random.bernoulli(jax.random.key(0), x.dims, like=x),
        lambda x: wf.random.randint(jax.random.key(0), x.dims, like=x, minval=0, maxval=9),
        lambda x: wf.random.categorical(jax.random.key(0), x, over=B),
        lambda x: wf.dropout(x, 0.1, jax.random.key(0)),
        lambda x: wf.vmap(lambda x, k: x + wf.random.normal(k, x.dims, like=x), over=V)(
            x, wf.random.split(jax.random.key(0), V)
        ),
    ],
)
def test_samplers_send_nothing(fn):
    check(ordering(fn, []))


# ---- windows along `width`, four places on each of four processors

N, H, W, C, C2 = wf.dims(batch=2, height=8, width=16, channels=4, channels_out=8)
strip, picture = shape(N, W, C), shape(N, H, W, C)
COLUMN = N.size * C.size * 4  # bytes of one place along `width` of the strip


def kernel(*sizes):
    return shape(*(wf.Dim(name, size) for name, size in zip(("kw", "kh"), sizes, strict=False)), C, C2)


def bytes_of(x):
    return x.local_array.size * 4


def conv(**how):
    given = {"over": {"width": "kw"}, "channels": ("channels", "channels_out"), **how}
    return lambda x, w: wf.conv(x, w, **given)


def up(**how):
    return lambda x, w: wf.conv_transpose(x, w, over={"width": "kw"}, channels=("channels", "channels_out"), **how)


def windows(fn, forward, *, k=3, x=strip, layout="width:x", backward=None, **how):
    """Backward the halos go back, and the gradient of the kernel is added up."""
    w = kernel(k)
    back = [*forward, all_reduce(bytes_of(w))] if backward is None else backward
    return Case(fn, (x, w), layout, forward, back, **how)


def pooled(fn, forward, **how):
    return Case(lambda x: fn(x, **how), (strip,), "width:x", forward, forward)


BOTH_SIDES = [permute(COLUMN)] * 2
PLACES = [permute(COLUMN)]
WINDOWS = {
    "conv": windows(conv(), BOTH_SIDES),
    "conv of one place": windows(conv(), [], k=1),
    # SAME pads nothing before and one place after: windows look ahead only.
    "conv, stride 2": windows(conv(stride=2), PLACES),
    "conv, stride 2, pads on both sides": windows(conv(stride=2, padding={"width": (1, 0)}), PLACES),
    "conv, stride of the window": windows(conv(stride=4, padding="VALID"), [], k=4),
    "conv, dilation 2": windows(conv(dilation=2), [permute(2 * COLUMN)] * 2),
    # On places -1 1 3 5 of a slice 0..3: one of each neighbour, and the one between is not looked at.
    "conv, stride 2 and dilation 2": windows(conv(stride=2, dilation=2), BOTH_SIDES),
    # One place each: places 4 before and 4 after, and none between.
    "conv, dilation past the neighbours": windows(
        conv(dilation=4), BOTH_SIDES, x=shape(N, W.resized(8), C), mesh="x=8"
    ),
    "conv, several hops": windows(conv(), BOTH_SIDES * 2, k=5, x=shape(N, W.resized(8), C), mesh="x=8"),
    # Windows of 8 from 4 i on slices of 5: to the outer two 3 places, to the inner ones 1 and 2.
    "conv, VALID": windows(
        conv(padding="VALID"), [permute(3 * COLUMN), permute(2 * COLUMN)], k=5, x=shape(N, W.resized(20), C)
    ),
    "conv, two axes on one dim": windows(
        conv(),
        [permute(COLUMN, "a+b")] * 2,
        layout="width:a+b",
        mesh="a=2,b=2",
        backward=[permute(COLUMN, "a+b")] * 2 + [all_reduce(bytes_of(kernel(3)), "a+b")],
    ),
    # The halo of half the channels; the sum over channels of 4 places of the result.
    "conv, channels split": windows(
        conv(),
        [permute(COLUMN // 2)] * 2 + [all_reduce(N.size * 4 * C2.size * 4, "y")],
        layout="width:x,channels:y",
        mesh="x=4,y=2",
        backward=[permute(COLUMN // 2)] * 2 + [all_reduce(bytes_of(kernel(3)) // 2)],
    ),
    # The gradient of the image is added up over the output channels: 4 places of it.
    "conv, output channels split": windows(
        conv(),
        BOTH_SIDES,
        layout="width:x,channels_out:y",
        mesh="x=4,y=2",
        backward=[*BOTH_SIDES, all_reduce(bytes_of(kernel(3)) // 2), all_reduce(4 * COLUMN, "y")],
    ),
    "conv in groups": Case(
        conv(groups=2),
        (strip, shape(wf.Dim("kw", 3), C.resized(2), C2)),
        "width:x",
        BOTH_SIDES,
        [*BOTH_SIDES, all_reduce(3 * 2 * 8 * 4)],
    ),
    "conv of each channel by itself": Case(
        conv(groups=4, channels=("channels", "channels")),
        (strip, shape(wf.Dim("kw", 3), C)),
        "channels:x",
        [],
        [],
    ),
    # Rows of 4 places, and then columns of 4 places and two corners.
    "conv in two split dims": Case(
        conv(over={"height": "kh", "width": "kw"}),
        (picture, kernel(3, 3)),
        "height:a,width:b",
        [permute(4 * COLUMN, "a")] * 2 + [permute(6 * COLUMN, "b")] * 2,
        [permute(4 * COLUMN, "a")] * 2 + [permute(6 * COLUMN, "b")] * 2 + [all_reduce(9 * 4 * 8 * 4, "a+b")],
        mesh="a=2,b=4",
    ),
    "conv_transpose of each place by itself": windows(up(stride=2), [], k=2),
    "conv_transpose, kernel 3": windows(up(stride=2), PLACES),
    "conv_transpose, kernel 4": windows(up(stride=2), BOTH_SIDES, k=4),
    "conv_transpose, dilation 2": windows(up(stride=2, dilation=2), BOTH_SIDES),
    "max_pool": pooled(wf.max_pool, [], window={"width": 2}),
    "max_pool of 3 by 2": pooled(wf.max_pool, PLACES, window={"width": 3}, stride=2, padding="SAME"),
    "avg_pool of 3 by 1": pooled(wf.avg_pool, BOTH_SIDES, window={"width": 3}, stride=1, padding="SAME"),
    "upsample, nearest": Case(lambda x: wf.upsample(x, by={"width": 3}), (strip,), "width:x", [], []),
    "upsample, linear": Case(
        lambda x: wf.upsample(x, by={"width": 3}, method="linear"), (strip,), "width:x", BOTH_SIDES, BOTH_SIDES
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_get_the_places_they_look_at_and_no_others(name):
    check(WINDOWS[name])


def test_an_image_that_two_convolutions_see_has_its_halo_exchanged_once_each_way():
    def two(x, w, v):
        return conv()(x, w) * conv()(x, v)

    check(Case(two, (strip, kernel(3), kernel(3)), "width:x", BOTH_SIDES,
               [*BOTH_SIDES, *[all_reduce(bytes_of(kernel(3)))] * 2]))  # fmt: skip
