"""Every family of operations over a split dim, once in Weft and once as an expert writes it in `jax.shard_map`.

The rows of `benchmarks/ops.py`. A hand-written form is a function of local arrays: the same result, placed the same.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import weft as wf

MESH = "rows=2,cols=4"
ROWS, COLS = "rows", "cols"

SIZES = dict(batch=8, length=1024, d_model=256, d_kv=64, vocab=4096, tokens=2048, hidden=512)
SIZES |= dict(copies=4, outer=16, inner=64, image=4, height=64, width=64, channels=16, channels_out=16, kh=3, kw=3)

SPLIT = "batch:rows,length:cols"
TOKENS = "tokens:rows,vocab:cols"
VOCAB = "batch:rows,vocab:cols"
IMAGE = "height:rows,width:cols"
WHOLE = "batch:rows"


@dataclasses.dataclass(frozen=True)
class Given:
    """An argument: its dims by name, some with a size of their own (none: one number), and what it holds."""

    dims: str
    kind: str = "floats"
    below: int = 0

    @property
    def shape(self) -> list[wf.Dim]:
        parts = [part.partition("=") for part in self.dims.split()]
        return [dim(name, int(size) if size else None) for name, _, size in parts]

    @property
    def is_differentiated(self) -> bool:
        return self.kind not in ("ids", "key")

    def make(self, random: np.random.Generator) -> Any:
        shape = [dim.size for dim in self.shape]
        if self.kind == "key":
            return jax.random.key(7)
        if self.kind == "ids":
            return random.integers(0, self.below, shape).astype("int32")
        if self.kind == "near one":
            return (1 + random.normal(size=shape) / 100).astype("float32")
        return random.normal(size=shape).astype("float32")


@dataclasses.dataclass(frozen=True)
class Case:
    """One op both ways; `expected` where the hand-written form gives other numbers than the op promises."""

    name: str
    layout: str
    given: Sequence[Given]
    weft: Callable[..., Any]
    hand: Callable[..., Any]
    is_differentiable: bool = True
    expected: Callable[..., Any] | None = None


CASES: list[Case] = []


def case(name: str, layout: str, given: Sequence[Given], weft: Any, hand: Any, **more: Any) -> None:
    CASES.append(Case(name, layout, given, weft, hand, **more))


def dim(name: str, size: int | None = None) -> wf.Dim:
    return wf.Dim(name, size or SIZES[name])


def here(axis: str = COLS) -> Any:
    return lax.axis_index(axis)


def sent(x: Any, hop: int, axis: str = COLS) -> Any:
    """What the processor `hop` places before this one holds; zeros where there is none."""
    ways = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, i + hop) for i in range(ways) if 0 <= i + hop < ways])


def halo(x: Any, at: int, before: int, after: int, axis: str = COLS) -> Any:
    """`x` with the last places of the slice before it and the first of the one after."""
    size = x.shape[at]
    parts = [sent(lax.slice_in_dim(x, size - before, size, axis=at), 1, axis)] if before else []
    parts.append(x)
    if after:
        parts.append(sent(lax.slice_in_dim(x, 0, after, axis=at), -1, axis))
    return jnp.concatenate(parts, axis=at)


def whole(x: Any, at: int, axis: str = COLS) -> Any:
    """`x` gathered, equal on all processors."""
    return lax.all_gather(x, axis, axis=at, tiled=True, to="invarying")


X = Given("batch length d_model")
NARROW = Given("batch length d_kv")
NEAR_ONE = Given("batch length d_kv", "near one")
LOGITS = Given("batch d_kv vocab")
TABLE = Given("vocab d_model")
PIXELS = Given("image height width channels")
KERNEL = Given("kh kw channels channels_out")
KEY = Given("", "key")


# ---- moving along a dim of 1024 that is split into 4 slices of 256


def hand_slice(x: Any) -> Any:
    # Places [300 + 128 i, 428 + 128 i) of the whole lie from 300 - 128 i on in the slice of processor i.
    return lax.dynamic_slice_in_dim(halo(x, 1, 84, 172), 384 - 128 * here(), 128, 1)


def hand_pad(x: Any) -> Any:
    # Places [320 i - 128, 320 i + 192) of the whole lie from 64 i - 128 on in the slice of processor i.
    return lax.dynamic_slice_in_dim(halo(x, 1, 128, 128), 64 * here(), 320, 1)


def hand_concat(x: Any, y: Any) -> Any:
    # 0: x0 x1, 1: x2 x3, 2: y0 y1, 3: y2 y3.
    parts = []
    for first in (0, 1):
        a = lax.ppermute(x, COLS, [(first, 0), (first + 2, 1)])
        b = lax.ppermute(y, COLS, [(first, 2), (first + 2, 3)])
        parts.append(jnp.where(here() < 2, a, b))
    return jnp.concatenate(parts, axis=1)


def hand_concat_uneven(x: Any, y: Any) -> Any:
    both = jnp.concatenate([lax.all_gather(z, COLS, axis=1, tiled=True) for z in (x, y)], axis=1)
    return lax.dynamic_slice_in_dim(both, 384 * here(), 384, 1)


def hand_roll(x: Any) -> Any:
    moved = lax.ppermute(x[:, -100:], COLS, [(i, (i + 1) % 4) for i in range(4)])
    return jnp.concatenate([moved, x[:, :-100]], axis=1)


def hand_update(x: Any, new: Any, at: Any) -> Any:
    # The stretch of x that may change is read, made to hold what is new, and put back.
    new = lax.all_gather(new, COLS, axis=1, tiled=True)
    size, stretch = x.shape[1], new.shape[1]
    first = at - here() * size
    begin = jnp.clip(first, 0, size - stretch)
    old = lax.dynamic_slice_in_dim(x, begin, stretch, 1)
    places = begin - first + jnp.arange(stretch)
    moved = jnp.take(new, jnp.clip(places, 0, stretch - 1), axis=1)
    mixed = jnp.where(((places >= 0) & (places < stretch))[:, None], moved, old)
    return lax.dynamic_update_slice_in_dim(x, mixed, begin, 1)


def hand_update_one(x: Any, new: Any, at: Any) -> Any:
    first = at - here() * x.shape[1]
    begin = jnp.clip(first, 0, x.shape[1] - 1)
    old = lax.dynamic_index_in_dim(x, begin, 1)
    return lax.dynamic_update_slice_in_dim(x, jnp.where(first == begin, new[:, None], old), begin, 1)


def hand_update_loop(x: Any, new: Any) -> Any:
    return lax.fori_loop(0, 64, lambda i, x: hand_update_one(x, new, 5 * i), x)


def weft_update_loop(x: Any, new: Any) -> Any:
    return wf.fori_loop(0, 64, lambda i, x: wf.update(x, new, over="length", at=5 * i), x)


def hand_getitem(x: Any) -> Any:
    # Place 700 of the whole is place 188 of the third slice.
    return lax.psum(jnp.where(here() == 2, x[:, 188], 0), COLS)


def hand_merge(x: Any) -> Any:
    x = lax.all_to_all(x, COLS, split_axis=1, concat_axis=2, tiled=True)
    return x.reshape(x.shape[0], -1, x.shape[3])


case("slice", SPLIT, [X], lambda x: wf.slice(x, over="length", start=300, size=512), hand_slice)
case("slice whole", WHOLE, [X], lambda x: wf.slice(x, over="length", start=300, size=512), lambda x: x[:, 300:812])
case("pad", SPLIT, [X], lambda x: wf.pad(x, over="length", before=128, after=128), hand_pad)
case("concat", SPLIT, [X, X], lambda x, y: wf.concat([x, y], over="length"), hand_concat)
case("concat uneven", SPLIT, [X, Given("batch length=512 d_model")], lambda x, y: wf.concat([x, y], over="length"),
     hand_concat_uneven)  # fmt: skip
case("shift", SPLIT, [X], lambda x: wf.shift(x, over="length", by=1),
     lambda x: jnp.concatenate([sent(x[:, -1:], 1), x[:, :-1]], axis=1))  # fmt: skip
case("roll", SPLIT, [X], lambda x: wf.roll(x, over="length", by=100), hand_roll)
case("flip", SPLIT, [X], lambda x: wf.flip(x, over="length"),
     lambda x: lax.ppermute(jnp.flip(x, 1), COLS, [(i, 3 - i) for i in range(4)]))  # fmt: skip
case("update", SPLIT, [X, Given("batch length=64 d_model"), Given("", "ids", 900)],
     lambda x, new, at: wf.update(x, new, over="length", at=at), hand_update)  # fmt: skip
case("update one", SPLIT, [X, Given("batch d_model"), Given("", "ids", 900)],
     lambda x, new, at: wf.update(x, new, over="length", at=at), hand_update_one)  # fmt: skip
case("update loop", SPLIT, [X, Given("batch d_model")], weft_update_loop, hand_update_loop, is_differentiable=False)
case("getitem", SPLIT, [X], lambda x: x["length", 700], hand_getitem)
case("split", SPLIT + ",outer:cols", [X], lambda x: wf.split(x, length=[dim("outer"), dim("inner")]),
     lambda x: x.reshape(x.shape[0], 4, 64, -1))  # fmt: skip
case("merge", SPLIT + ",inner:cols", [Given("batch outer inner d_model")],
     lambda x: wf.merge(x, ["outer", "inner"], into=dim("length")), hand_merge)  # fmt: skip
case("stack", SPLIT, [X, X], lambda x, y: wf.stack([x, y], wf.Dim("pair", 2)), lambda x, y: jnp.stack([x, y]))
case("unstack", "batch:rows,copies:cols", [Given("batch copies length=256 d_kv")],
     lambda x: wf.unstack(x, over="copies"),
     lambda x: tuple(whole(x, 1)[:, i] for i in range(4)))  # fmt: skip


# ---- looking up and ordering


def masked_take(table: Any, ids: Any) -> Any:
    local = ids - here() * table.shape[0]
    inside = (local >= 0) & (local < table.shape[0])
    return lax.psum(jnp.where(inside[..., None], table[jnp.where(inside, local, 0)], 0), COLS)


def hand_gather(x: Any, ids: Any) -> Any:
    # As many ids as places: the table is gathered.
    return jnp.take_along_axis(lax.all_gather(x, COLS, axis=1, tiled=True), ids[:, :, None], axis=1)


def hand_gather_few(x: Any, ids: Any) -> Any:
    # Few ids: they are gathered, and what is found is added up where it belongs.
    local = lax.all_gather(ids, COLS, axis=1, tiled=True) - here() * x.shape[1]
    inside = ((local >= 0) & (local < x.shape[1]))[:, :, None]
    found = jnp.take_along_axis(x, jnp.where(inside, local[:, :, None], 0), axis=1)
    return lax.psum_scatter(jnp.where(inside, found, 0), COLS, scatter_dimension=1, tiled=True)


def hand_scatter_add(x: Any, ids: Any, updates: Any) -> Any:
    size = x.shape[0]
    local = ids - here() * size
    local = jnp.where((local >= 0) & (local < size), local, size)
    zeros = lax.pcast(jnp.zeros_like(x), ROWS, to="varying")
    return x + lax.psum(zeros.at[local].add(updates, mode="drop"), ROWS)


def hand_argmax(x: Any) -> Any:
    x = lax.stop_gradient(x)
    place = jnp.argmax(x, axis=-1)
    best = jnp.take_along_axis(x, place[..., None], axis=-1)[..., 0]
    is_here = best == lax.pmax(best, COLS)
    return lax.pmin(jnp.where(is_here, place + here() * x.shape[-1], 4 * x.shape[-1]), COLS)


def hand_top_k(x: Any) -> Any:
    # lax.top_k puts a NaN with a sign last, and what x86 makes of 0 / 0 has one; the op promises it is the largest.
    values, places = lax.top_k(jnp.where(jnp.isnan(x), jnp.nan, x), 8)
    values, places = whole(values, 2), whole(places + here() * x.shape[-1], 2)
    values, chosen = lax.top_k(values, 8)
    return values, jnp.take_along_axis(places, chosen, axis=-1)


def hand_sort(x: Any) -> Any:
    x = jnp.sort(lax.all_to_all(x, COLS, split_axis=2, concat_axis=1, tiled=True), axis=1)
    return lax.all_to_all(x, COLS, split_axis=1, concat_axis=2, tiled=True)


def before_here(totals: Any, neutral: float) -> Any:
    """Of the running totals of all slices, that of the slices before this one."""
    start = jnp.concatenate([jnp.full_like(totals[:1], neutral), totals[:-1]])
    return lax.dynamic_index_in_dim(start, here(), 0, keepdims=False)[:, None]


def running(scan: Any, join: Any, neutral: float) -> Any:
    def run(x: Any) -> Any:
        found = scan(x, axis=1)
        return join(found, before_here(scan(lax.all_gather(found[:, -1], COLS), axis=0), neutral))

    return run


def recurrence(left: Any, right: Any) -> Any:
    """h = a h + b, as pairs (a, b)."""
    return left[0] * right[0], left[1] * right[0] + right[1]


def hand_associative_scan(a: Any, b: Any) -> Any:
    a, b = lax.associative_scan(recurrence, (a, b), axis=1)
    totals = lax.associative_scan(recurrence, (lax.all_gather(a[:, -1], COLS), lax.all_gather(b[:, -1], COLS)), axis=0)
    return recurrence((before_here(totals[0], 1), before_here(totals[1], 0)), (a, b))


case("take", TOKENS, [TABLE, Given("tokens", "ids", 4096)], lambda t, i: wf.take(t, i, over="vocab"), masked_take)
case("take whole", "tokens:rows", [TABLE, Given("tokens", "ids", 4096)], lambda t, i: wf.take(t, i, over="vocab"),
     lambda t, i: t[i])  # fmt: skip
case(
    "gather",
    SPLIT,
    [NARROW, Given("batch length", "ids", 1024)],
    lambda x, i: wf.gather(x, i, over="length"),
    hand_gather,
)
case("gather few", SPLIT, [X, Given("batch length=64", "ids", 1024)],
     lambda x, i: wf.gather(x, i, over="length"), hand_gather_few)  # fmt: skip
case("scatter_add", TOKENS, [TABLE, Given("tokens", "ids", 4096), Given("tokens d_model")],
     lambda x, i, u: wf.scatter_add(x, i, u, over="vocab"), hand_scatter_add)  # fmt: skip
case("argmax", VOCAB, [LOGITS], lambda x: wf.argmax(x, over="vocab"), hand_argmax, is_differentiable=False)
case("top_k", VOCAB, [LOGITS], lambda x: wf.top_k(x, over="vocab", k=wf.Dim("top", 8)), hand_top_k)
case("sort", SPLIT, [Given("batch length=512 d_kv=16")], lambda x: wf.sort(x, over="length"), hand_sort)
case("cumsum", SPLIT, [NARROW], lambda x: wf.cumsum(x, over="length"), running(jnp.cumsum, jnp.add, 0))
case("cumsum whole", WHOLE, [NARROW], lambda x: wf.cumsum(x, over="length"), lambda x: jnp.cumsum(x, axis=1))
case("cumprod", SPLIT, [NEAR_ONE], lambda x: wf.cumprod(x, over="length"),
     running(jnp.cumprod, jnp.multiply, 1))  # fmt: skip
case("cummax", SPLIT, [NARROW], lambda x: wf.cummax(x, over="length"),
     running(lax.cummax, jnp.maximum, -jnp.inf))  # fmt: skip
case("associative_scan", SPLIT, [NEAR_ONE, NARROW],
     lambda a, b: wf.associative_scan(recurrence, (a, b), over="length"), hand_associative_scan)  # fmt: skip


# ---- images: [image height/rows width/cols channels]


def halo_2d(x: Any, before: int, after: int) -> Any:
    return halo(halo(x, 1, before, after, ROWS), 2, before, after, COLS)


def convolved(x: Any, w: Any, **how: Any) -> Any:
    how = {"window_strides": (1, 1), "padding": "VALID", "dimension_numbers": ("NHWC", "HWIO", "NHWC"), **how}
    return lax.conv_general_dilated(x, w, **how)


def weft_conv(x: Any, w: Any, op: Any = wf.conv, **how: Any) -> Any:
    return op(x, w, over={"height": "kh", "width": "kw"}, channels=("channels", "channels_out"), **how)


def hand_conv_transpose(x: Any, w: Any) -> Any:
    # Spread out by 2 and padded by (2, 1): each slice makes its own places of the result but needs one place before.
    return convolved(halo_2d(x, 1, 0), w, lhs_dilation=(2, 2), padding=[(0, 1)] * 2)


def filled_halo(x: Any, at: int, axis: str, value: float) -> Any:
    """One place after each slice; beyond the last one a value."""
    after = sent(lax.slice_in_dim(x, 0, 1, axis=at), -1, axis)
    after = jnp.where(here(axis) == lax.axis_size(axis) - 1, value, after)
    return jnp.concatenate([x, after], axis=at)


def windows(x: Any, start: float, combine: Any) -> Any:
    """Windows of 3 x 3 at a stride of 2; SAME pads one place at the end of 64 and of 128."""
    seen = filled_halo(filled_halo(x, 1, ROWS, start), 2, COLS, start)
    return lax.reduce_window(seen, start, combine, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")


def hand_avg_pool(x: Any) -> Any:
    totals = windows(x, 0.0, lax.add)
    counts = []
    for at, axis in ((1, ROWS), (2, COLS)):
        size = totals.shape[at]
        is_last = (jnp.arange(size) == size - 1) & (here(axis) == lax.axis_size(axis) - 1)
        counts.append(jnp.where(is_last, 2.0, 3.0))
    return totals / (counts[0][:, None] * counts[1])[..., None]


def hand_upsample(x: Any) -> Any:
    """Linear, by 2 along both dims: a quarter of a neighbour, or of the outermost value itself."""
    for at, axis in ((1, ROWS), (2, COLS)):
        size, last = x.shape[at], lax.axis_size(axis) - 1
        first_place, last_place = lax.slice_in_dim(x, 0, 1, axis=at), lax.slice_in_dim(x, size - 1, size, axis=at)
        low = jnp.where(here(axis) == 0, first_place, sent(last_place, 1, axis))
        high = jnp.where(here(axis) == last, last_place, sent(first_place, -1, axis))
        x = jnp.concatenate([low, x, high], axis=at)
    for at in (1, 2):
        size = x.shape[at] - 2
        low, inner, high = (lax.slice_in_dim(x, i, i + size, axis=at) for i in range(3))
        made = jnp.stack([0.75 * inner + 0.25 * low, 0.75 * inner + 0.25 * high], axis=at + 1)
        x = made.reshape(*x.shape[:at], 2 * size, *x.shape[at + 1 :])
    return x


def repeated(x: Any) -> Any:
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


BOTH_3 = {"height": 3, "width": 3}
BOTH_2 = {"height": 2, "width": 2}

case("conv", IMAGE, [PIXELS, KERNEL], weft_conv, lambda x, w: convolved(halo_2d(x, 1, 1), w))
case("conv whole", "image:rows", [PIXELS, KERNEL], weft_conv, lambda x, w: convolved(x, w, padding="SAME"))
case("conv stride 2", IMAGE, [PIXELS, KERNEL], lambda x, w: weft_conv(x, w, stride=2),
     lambda x, w: convolved(halo_2d(x, 0, 1), w, window_strides=(2, 2)))  # fmt: skip
case("conv dilated", IMAGE, [PIXELS, KERNEL], lambda x, w: weft_conv(x, w, dilation=2),
     lambda x, w: convolved(halo_2d(x, 2, 2), w, rhs_dilation=(2, 2)))  # fmt: skip
case("conv_transpose", IMAGE, [Given("image=1 height width channels"), KERNEL],
     lambda x, w: weft_conv(x, w, wf.conv_transpose, stride=2), hand_conv_transpose)  # fmt: skip
case("max_pool", IMAGE, [PIXELS], lambda x: wf.max_pool(x, window=BOTH_3, stride=2, padding="SAME"),
     lambda x: windows(x, -jnp.inf, lax.max))  # fmt: skip
case("avg_pool", IMAGE, [PIXELS], lambda x: wf.avg_pool(x, window=BOTH_3, stride=2, padding="SAME"), hand_avg_pool)
case("upsample", IMAGE, [PIXELS], lambda x: wf.upsample(x, by=BOTH_2, method="linear"), hand_upsample)
case("upsample nearest", IMAGE, [PIXELS], lambda x: wf.upsample(x, by=BOTH_2), repeated)


# ---- reductions and einsum


def hand_max(x: Any) -> Any:
    # A maximum over processors has no gradient in JAX; that of what is gathered has.
    return jnp.max(whole(jnp.max(x, axis=1)[None], 0), axis=0)


def hand_logsumexp(x: Any) -> Any:
    largest = lax.pmax(lax.stop_gradient(jnp.max(x, axis=1)), COLS)
    return largest + jnp.log(lax.psum(jnp.sum(jnp.exp(x - largest[:, None]), axis=1), COLS))


def hand_softmax(x: Any) -> Any:
    largest = lax.pmax(lax.stop_gradient(jnp.max(x, axis=1, keepdims=True)), COLS)
    exps = jnp.exp(x - largest)
    return exps / lax.psum(jnp.sum(exps, axis=1, keepdims=True), COLS)


def hand_var(x: Any) -> Any:
    # The two-pass form, which is the one that is exact.
    mean = lax.psum(jnp.mean(x, axis=1, keepdims=True), COLS) / 4
    return lax.psum(jnp.mean((x - mean) ** 2, axis=1), COLS) / 4


case("sum", SPLIT, [X], lambda x: wf.sum(x, over="length"), lambda x: lax.psum(jnp.sum(x, axis=1), COLS))
case("sum whole", WHOLE, [X], lambda x: wf.sum(x, over="length"), lambda x: jnp.sum(x, axis=1))
case("max", SPLIT, [X], lambda x: wf.max(x, over="length"), hand_max)
case("logsumexp", SPLIT, [X], lambda x: wf.logsumexp(x, over="length"), hand_logsumexp)
case("softmax", SPLIT, [X], lambda x: wf.softmax(x, over="length"), hand_softmax)
case("var", SPLIT, [X], lambda x: wf.var(x, over="length"), hand_var)
case("einsum", "batch:rows,hidden:cols", [Given("batch d_kv hidden"), Given("hidden d_model")],
     lambda x, w: wf.einsum(x, w, over="hidden"),
     lambda x, w: lax.psum(jnp.einsum("bth,hd->btd", x, w), COLS))  # fmt: skip


# ---- random: the rival draws as many numbers from a key of its own, which are others on other layouts


def own_key(key: Any) -> Any:
    return jax.random.fold_in(key, here(ROWS) * 4 + here())


def hand_categorical(key: Any, logits: Any) -> Any:
    return hand_argmax(logits + jax.random.gumbel(own_key(key), logits.shape))


def dropped(key: Any, x: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.75, x.shape), x / 0.75, 0)


case("random.normal", SPLIT, [KEY, NARROW], lambda key, x: wf.random.normal(key, x.dims, like=x),
     lambda key, x: jax.random.normal(own_key(key), x.shape), is_differentiable=False,
     expected=lambda key, x: jax.random.normal(key, x.shape))  # fmt: skip
case("random.uniform", SPLIT, [KEY, NARROW], lambda key, x: wf.random.uniform(key, x.dims, like=x),
     lambda key, x: jax.random.uniform(own_key(key), x.shape), is_differentiable=False,
     expected=lambda key, x: jax.random.uniform(key, x.shape))  # fmt: skip
case("random.categorical", VOCAB, [KEY, LOGITS], lambda key, x: wf.random.categorical(key, x, over="vocab"),
     hand_categorical, is_differentiable=False,
     expected=lambda key, x: jax.random.categorical(key, x))  # fmt: skip
case("dropout", SPLIT, [KEY, NARROW], lambda key, x: wf.dropout(x, 0.25, key),
     lambda key, x: dropped(own_key(key), x), expected=dropped)  # fmt: skip
