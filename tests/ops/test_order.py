"""Odd values, ties and errors of what orders, runs along, reads and adds along a dim; on every layout as in jnp."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import weft as wf
from tests.ops.test_meanings import EPS, PLACES, assert_same, batch, odd_columns, odd_weights, run, vocab
from weft.ops import order

pytestmark = pytest.mark.filterwarnings("ignore::weft.WeftWarning")
PLACES = [pytest.param(None, marks=pytest.mark.slow), *PLACES[1:]]  # each place is compared with jnp
everywhere = pytest.mark.parametrize("place", PLACES, ids=lambda place: " ".join(place) if place else "no mesh")
top, many = wf.Dim("top", 3), wf.Dim("top", 8)


def signed_zeros() -> np.ndarray:
    x = np.zeros((8, 16), "float32")
    x[np.random.default_rng(5).random((8, 16)) < 0.5] = -0.0
    return x


def few_values() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 3, (8, 16)).astype("float32")


def cases() -> dict[str, np.ndarray]:
    return {"odd": odd_columns(), "ties": few_values(), "zeros": signed_zeros(),
            "half": odd_columns().astype("float16"), "short": odd_columns().astype(jnp.bfloat16)}  # fmt: skip


@everywhere
def test_places_of_extremes_are_the_first_and_nan_wins(place):
    given = cases()

    def places(*xs):
        return {
            name: (wf.argmax(x, over="vocab"), wf.argmin(x, over="vocab"), wf.argmax(x, over="batch"))
            for name, x in zip(given, xs, strict=True)
        }

    got = run(place, places, *(wf.tensor(x, [vocab, batch]) for x in given.values()))
    want = {name: (jnp.argmax(x, 0), jnp.argmin(x, 0), jnp.argmax(x, 1)) for name, x in given.items()}
    assert_same(got, want)


@everywhere
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "bool"])
def test_integers_and_booleans_are_ordered_as_in_jnp(place, dtype):
    x = np.random.default_rng(6).integers(0, 200, (8, 16)).astype(dtype)

    def ordered(x):
        return (wf.argmax(x, over="vocab"), wf.argmin(x, over="vocab"), wf.top_k(x, over="vocab", k=top),
                wf.sort(x, over="vocab"), wf.cumsum(x, over="vocab"), wf.cumprod(x, over="vocab"),
                wf.cummax(x, over="vocab"))  # fmt: skip

    got = run(place, ordered, wf.tensor(x, [vocab, batch]))
    want = (jnp.argmax(x, 0), jnp.argmin(x, 0), tuple(lax.top_k(x, 3, axis=0)), jnp.sort(x, 0), jnp.cumsum(x, 0),
            jnp.cumprod(x, 0), np.maximum.accumulate(x, 0))  # fmt: skip
    assert_same(got, want)


@everywhere
def test_the_largest_are_in_order_with_nan_first_and_ties_by_place(place):
    given = {name: x for name, x in cases().items() if name != "zeros"}

    def largest(*xs):
        return {
            name: (wf.top_k(x, over="vocab", k=top), wf.top_k(x, over="vocab", k=many))
            for name, x in zip(given, xs, strict=True)
        }

    got = run(place, largest, *(wf.tensor(x, [vocab, batch]) for x in given.values()))
    want = {name: tuple(tuple(lax.top_k(x, k, axis=0)) for k in (3, 8)) for name, x in given.items()}
    assert_same(got, want)


@pytest.mark.parametrize("layout", ["length:x", "length:x+y", "length:y+x", "batch:x,length:y"])
def test_the_few_largest_of_long_slices_are_found_with_their_places(layout):
    x = np.random.default_rng(8).integers(0, 40, (4, 64)).astype("float32")
    found = wf.spmd(lambda x: wf.top_k(x, over="length", k=top), mesh="x=2,y=4", layout=layout)(
        wf.tensor(x, [wf.Dim("batch", 4), wf.Dim("length", 64)])
    )
    assert_same(found, tuple(lax.top_k(x, 3)))


@pytest.mark.parametrize("layout", ["", "tokens:x", "words:x"])
def test_narrow_floats_are_added_up_at_an_index_in_float32(layout):
    tokens, words = wf.dims(tokens=320, words=4)
    ids, ones = wf.tensor(np.zeros(320, "int32"), [tokens]), wf.tensor(np.ones(320, jnp.bfloat16), [tokens])
    x = wf.tensor(np.zeros(4, jnp.bfloat16), [words])
    add = wf.spmd(lambda x, ids, ones: wf.scatter_add(x, ids, ones, over="words"), mesh="x=4", layout=layout)
    # In bf16 256 + 1 is 256.
    np.testing.assert_array_equal(np.asarray(add(x, ids, ones).array, "float32"), [320, 0, 0, 0])


@everywhere
def test_a_nan_with_a_sign_is_a_nan(place):
    x = few_values()
    x[3, :8], x[6, 4:] = np.nan, -np.float32(np.nan)
    got = run(place, lambda x: wf.top_k(x, over="vocab", k=top), wf.tensor(x, [vocab, batch]))
    want = tuple(lax.top_k(np.where(np.isnan(x), np.nan, x).astype("float32"), 3, axis=0))
    assert_same(got, want)


def weighted_gradient(fn: Any) -> Any:
    """The gradient of a sum with weights, so that it shows which place got what."""

    def of(x, weights):
        found = fn(x)
        rest = wf.cast(wf.arange(found.dims[0]) + 1, "float32")
        return wf.sum(wf.where(wf.isfinite(found), found, 0) * rest * wf.max(weights, over="vocab"), over=found.dims)

    return wf.grad(of)


@everywhere
def test_the_gradient_of_ties_goes_to_the_place_the_value_came_from(place):
    x = few_values()

    def gradients(x, weights):
        return [
            weighted_gradient(fn)(x, weights)
            for fn in (
                lambda x: wf.top_k(x, over="vocab", k=top)[0],
                lambda x: wf.sort(x, over="vocab"),
                lambda x: wf.cummax(x, over="vocab"),
                lambda x: wf.cummax(x, over="vocab", reverse=True),
            )
        ]

    got = run(place, gradients, wf.tensor(x, [vocab, batch]), wf.tensor(odd_weights(), [vocab, batch]))

    def plain(places):
        weights = (np.arange(places.shape[0]) + 1)[:, None] * odd_weights().max(0)
        found = np.zeros((8, 16), "float32")
        np.add.at(found, (places, np.arange(16)[None]), weights)
        return found

    running = np.stack([np.argmax(x[: i + 1], 0) for i in range(8)])
    backward = np.stack([7 - np.argmax(x[i:][::-1], 0) for i in range(8)])
    want = [plain(lax.top_k(x, 3, axis=0)[1]), plain(jnp.argsort(x, 0, stable=True)), plain(running), plain(backward)]
    assert_same(got, want, 8 * EPS)


@everywhere
def test_sorting_keeps_equal_zeros_in_order_and_nan_last(place):
    given = cases()

    def ordered(*xs):
        return {name: (wf.sort(x, over="vocab"), wf.sort(x, over="batch")) for name, x in zip(given, xs, strict=True)}

    got = run(place, ordered, *(wf.tensor(x, [vocab, batch]) for x in given.values()))
    assert_same(got, {name: (jnp.sort(x, 0), jnp.sort(x, 1)) for name, x in given.items()})
    for found, axis in zip(got["zeros"], (0, 1), strict=True):
        np.testing.assert_array_equal(np.signbit(found.array), np.signbit(jnp.sort(given["zeros"], axis)))


@pytest.mark.parametrize("layout", ["vocab:x", "vocab:a+b", "vocab:b+a+x"])
def test_merging_by_pairs_sorts_as_jnp_in_value_and_gradient(layout, monkeypatch):
    monkeypatch.setattr(order, "_merging_is_less", lambda ways, width: True)
    few = wf.Dim("d_model", 3)  # divides over nothing, so that no other dim can take the axes
    x = np.random.default_rng(8).integers(0, 9, (24, 3)).astype("float32")
    x[5, 0] = x[20, 0] = np.nan
    x[:, 1] = np.where(np.arange(24) % 5 < 2, -0.0, 0.0)
    x[2, 2], x[17, 2], x[23, 2] = np.inf, -np.inf, -np.inf
    weights = np.random.default_rng(9).normal(size=(24, 3)).astype("float32")

    def both(x, weights):
        total = lambda x: wf.sum(wf.sort(x, over="vocab") * weights, over=x.dims)  # noqa: E731
        return wf.sort(x, over="vocab"), wf.grad(total)(x)

    dims = [wf.Dim("vocab", 24), few]
    mesh = "x=2,a=2,b=2"
    got = wf.spmd(both, mesh=mesh, layout=layout)(wf.tensor(x, dims), wf.tensor(weights, dims))
    want = jax.grad(lambda x: jnp.sum(jnp.sort(x, 0) * weights))(x)
    assert_same(got, (jnp.sort(x, 0), want))
    np.testing.assert_array_equal(np.signbit(got[0].array)[:, 1], np.signbit(jnp.sort(x, 0))[:, 1])


@everywhere
@pytest.mark.parametrize("reverse", [False, True])
def test_nan_and_infinities_run_along_as_in_jnp(place, reverse):
    x = odd_columns()

    def running(x):
        return [getattr(wf, name)(x, over="vocab", reverse=reverse) for name in ("cumsum", "cumprod", "cummax")]

    got = run(place, running, wf.tensor(x, [vocab, batch]))
    want = [getattr(lax, name)(x, 0, reverse=reverse) for name in ("cumsum", "cumprod", "cummax")]
    for column in range(16):
        assert_same([np.asarray(a.array)[:, column] for a in got], [a[:, column] for a in want], 16 * EPS)


@everywhere
def test_the_gradient_of_a_product_with_zeros_is_finite(place):
    x = few_values()
    gradient = wf.grad(lambda x: wf.sum(wf.cumprod(x, over="vocab"), over=x.dims))
    got = run(place, gradient, wf.tensor(x, [vocab, batch]))
    assert_same(got, jax.grad(lambda x: jnp.sum(jnp.cumprod(x, 0)))(x), 64 * EPS)


@everywhere
def test_what_is_joined_before_the_first_slice_leaves_no_nan_in_gradients(place):
    # Joined with itself the first slice overflows, and inf * 0 is NaN.
    x = np.full((8, 16), 0.5, "float32")
    x[0] = 1e20

    def gradient(x):
        def loss(x):
            prefixes = wf.associative_scan(lambda a, b: wf.exp(wf.log(a) + wf.log(b)), x, over="vocab")
            return wf.sum(wf.log(prefixes), over=x.dims)

        return wf.grad(loss)(x)

    got = run(place, gradient, wf.tensor(x, [vocab, batch]))
    assert_same(got, (np.arange(8, 0, -1)[:, None] / x).astype("float32"), 32 * EPS)


@everywhere
def test_an_index_outside_reads_zero_and_adds_nothing(place):
    rows = odd_columns()[:, :4]
    ids = np.asarray([[-1, 8, 3, 7], [100, -9, 0, 2], [2**31 - 1, -(2**31), 3, 3], [7, 6, 5, 4]] * 2, "int32")
    inside = (ids >= 0) & (ids < 8)
    four = wf.Dim("d_model", 4)
    x, where = wf.tensor(rows, [vocab, four]), wf.tensor(ids, [vocab, four])

    def both(x, ids):
        ones = wf.ones([vocab, four])
        read = wf.gather(x, ids, over="vocab")
        added = wf.scatter_add(wf.zeros([vocab, four]), ids, ones, over="vocab")
        return read, wf.grad(lambda x: wf.sum(wf.gather(x, ids, over="vocab"), over=x.dims))(x), added

    got = run(place, both, x, where)
    count = np.zeros((8, 4), "float32")
    columns = np.broadcast_to(np.arange(4), ids.shape)
    np.add.at(count, (ids[inside], columns[inside]), 1)
    read = np.where(inside, np.take_along_axis(rows, np.clip(ids, 0, 7), 0), 0).astype("float32")
    assert_same(got, (read, count, count))


# ---- errors


ERRORS = {
    "argmax over two": (lambda x, i: wf.argmax(x, over="vocab batch"), "argmax goes over one dim", "name one dim"),
    "argmax over none": (lambda x, i: wf.argmax(x, over="height"), "`height`", "use one of"),
    "argmax of array": (lambda x, i: wf.argmax(np.ones(3), over="vocab"), "shape (3,)", "wf.tensor"),
    "argmax of complex": (lambda x, i: wf.argmax(x + 1j, over="vocab"), "complex numbers have no order", "wf.abs"),
    "top_k of a number": (lambda x, i: wf.top_k(x, over="vocab", k=3), "top_k got k=3", "wf.Dim('top', 3)"),
    "top_k of too many": (
        lambda x, i: wf.top_k(x, over="vocab", k=wf.Dim("top", 9)), "takes 9 of `vocab`", "at most 8"),
    "top_k twice a dim": (
        lambda x, i: wf.top_k(x, over="vocab", k=wf.Dim("batch", 2)), "`batch`", "`wf.Dim('batch_top'"),
    "scan no function": (lambda x, i: wf.associative_scan(3, x, over="vocab"), "no function", "a function of tensors"),
    "scan nothing": (
        lambda x, i: wf.associative_scan(lambda a, b: a, (), over="vocab"), "nothing to go along", "give it"),
    "scan number": (lambda x, i: wf.associative_scan(lambda a, b: a, 2.0, over="vocab"), "no dims", "wf.tensor"),
    "scan other tree": (lambda x, i: wf.associative_scan(lambda a, b: (a, b), x, over="vocab"), "gives", "structure"),
    "scan other dims": (
        lambda x, i: wf.associative_scan(lambda a, b: wf.sum(a, over="batch"), x, over="vocab"), "[batch=16]", "dims"),
    "scan other dtype": (
        lambda x, i: wf.associative_scan(lambda a, b: a * 0.5, i, over="vocab"), "gives float32", "wf.cast"),
    "gather without": (lambda x, i: wf.gather(x, wf.max(i, over="vocab"), over="vocab"), "lack", "wf.take"),
    "gather floats": (lambda x, i: wf.gather(x, x, over="vocab"), "ids of dtype float32", "wf.cast"),
    "add other dims": (
        lambda x, i: wf.scatter_add(x, i, wf.max(x, over="batch"), over="vocab"), "are due", "wf.broadcast"),
    "add floats to ints": (lambda x, i: wf.scatter_add(i, i, x, over="vocab"), "adds float32 to int32", "wf.cast"),
    "randint of floats": (
        lambda x, i: wf.random.randint(jax.random.key(0), [vocab], minval=0, maxval=2.5), "`maxval` is 2.5", "whole"),
    "randint of nothing": (
        lambda x, i: wf.random.randint(jax.random.key(0), [vocab], minval=2, maxval=2), "[2, 2)", "maxval=3"),
    "randint as floats": (
        lambda x, i: wf.random.randint(jax.random.key(0), [vocab], minval=0, maxval=2, dtype="float32"), "float32",
        "int32"),
    "categorical of ints": (
        lambda x, i: wf.random.categorical(jax.random.key(0), i, over="vocab"), "logits", "wf.cast"),
    "split by a number": (lambda x, i: wf.random.split(jax.random.key(0), 3), "got 3", "wf.Dim('copies', 3)"),
    "many keys": (
        lambda x, i: wf.random.normal(wf.random.split(jax.random.key(0), vocab), [vocab]), "tensor of keys", "wf.scan"),
}  # fmt: skip


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_and_how_to_mend_it(case, is_inside):
    fn, fact, fix = ERRORS[case]
    x, ids = wf.tensor(few_values(), [vocab, batch]), wf.tensor(few_values().astype("int32"), [vocab, batch])
    with pytest.raises(wf.WeftError) as caught:
        wf.trace(fn, x, ids, mesh="x=4", layout="vocab:x") if is_inside else fn(x, ids)
    assert fact in caught.value.fact
    assert fix in caught.value.fix


def test_keys_of_a_split_are_those_of_jax():
    keys = wf.random.split(jax.random.key(3), vocab)
    want = jax.random.key_data(jax.random.split(jax.random.key(3), 8))
    np.testing.assert_array_equal(jax.random.key_data(keys.array), want)
    assert keys.dims == (vocab,)
