"""Padded dims: whatever stands in the padding, results and gradients are those of the dim without it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft.dims import Shape
from weft.ops import random

B, D = wf.dims(batch=4, d_model=8)
FIVE = wf.Dim("vocab", 5)
_random = np.random.default_rng(4)


def floats(*dims):
    return wf.tensor(_random.normal(size=[dim.size for dim in dims]).astype("float32"), dims)


def total(y):
    return wf.sum(wf.cos(y), over=list(y.dims))


def _ids(x):
    """Places along the vocab of which one lies outside, with the vocab's own padding."""
    ids = wf.tensor(np.array([[4, 0, 7, 1, -1]] * 4, "int32"), [B, FIVE])
    return wf.pad_to(ids, "vocab", x.size("vocab"))


def _cut_and_joined(x):
    """A dim split into places of one and joined again, its padding on both ways."""
    vocab, one = x.dim("vocab"), wf.Dim("one", 1)
    places = wf.Dim("places", vocab.size)
    return wf.merge(wf.split(wf.exp(x), vocab=[places, one]), ["places", "one"], into=wf.Dim("vocab", vocab.size))


PROGRAMS = {
    "a sum": lambda x: wf.sum(wf.exp(x), over="vocab"),
    "a mean": lambda x: wf.mean(x + 1, over="vocab"),
    "a maximum of negative values": lambda x: wf.max(x - 9, over="vocab"),
    "a minimum of positive values": lambda x: wf.min(x + 9, over="vocab"),
    "a product": lambda x: wf.prod(x, over="vocab"),
    "a variance": lambda x: wf.mean_and_var(x + 3, over="vocab")[1],
    "a logsumexp": lambda x: wf.logsumexp(x, over="vocab"),
    "a log_softmax": lambda x: wf.sum(wf.log_softmax(x, over="vocab") * wf.sin(x), over="vocab"),
    "what is infinite at zero": lambda x: wf.sum(wf.log(x * x + 0 * wf.abs(x)), over="vocab"),
    "a quotient by zero": lambda x: wf.sum(wf.sum(x, over="vocab") / (2 + x * x) / x, over="vocab"),
    "the largest": lambda x: wf.top_k(x - 9, over="vocab", k=wf.Dim("top", 3))[0],
    "a running sum from the end": lambda x: wf.sum(wf.cumsum(wf.exp(x), over="vocab", reverse=True) * x, over="vocab"),
    "a sorted dim": lambda x: wf.sum(wf.sort(x, over="vocab") * wf.arange(x.dim("vocab"), like=x), over="vocab"),
    "a slice": lambda x: wf.slice(x, over="vocab", start=1, size=4),
    "the last place": lambda x: x["vocab", -1],
    "a shift back": lambda x: wf.sum(wf.shift(wf.exp(x), over="vocab", by=-2) * x, over="vocab"),
    "places taken out": lambda x: wf.take(wf.exp(x), wf.tensor(np.array([0, 4, 5, 7, -1]), "ids"), over="vocab"),
    "places unstacked": lambda x: wf.stack(list(wf.unstack(x, over="vocab")), wf.Dim("stacked", 5)),
    "noise": lambda x: wf.sum(x * wf.random.normal(jax.random.key(0), x.dims, like=x), over="vocab"),
    "a flipped dim": lambda x: wf.sum(wf.flip(wf.exp(x), over="vocab") * x, over="vocab"),
    "a dim rolled on": lambda x: wf.sum(wf.roll(wf.exp(x), over="vocab", by=2) * x, over="vocab"),
    "a dim rolled back": lambda x: wf.sum(wf.roll(wf.exp(x), over="vocab", by=-1) * x, over="vocab"),
    "places looked up along it": lambda x: wf.sum(wf.gather(wf.exp(x), _ids(x), over="vocab") * x, over="vocab"),
    "a dim cut and joined": lambda x: wf.sum(_cut_and_joined(x) * x, over="vocab"),
    "a renamed dim": lambda x: wf.einsum(x, wf.exp(x).rename(batch="other"), over="vocab"),
}  # fmt: skip


@pytest.mark.parametrize(
    "layout", ["batch:x", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ["", "vocab:x"])]
)
def test_padding_changes_no_value_and_no_gradient(layout):
    x = floats(B, FIVE)
    padded = wf.pad_to(x, "vocab", 4)

    def everything(x):
        return {
            name: (fn(x), wf.grad(lambda x, fn=fn: total(fn(x)))(x))
            for name, fn in PROGRAMS.items()
            if layout != "vocab:x" or name != "a slice"  # four of five divide, but five do not
        }

    plain = jax.jit(everything)(x)
    found = jax.jit(everything)(padded) if not layout else wf.spmd(everything, mesh="x=4", layout=layout)(padded)
    for name, (value, gradient) in found.items():
        np.testing.assert_allclose(value.array, plain[name][0].array, rtol=2e-5, atol=2e-6, err_msg=name)
        own = wf.unpad(gradient, "vocab") if gradient.dim("vocab").is_padded else gradient
        np.testing.assert_allclose(own.array, plain[name][1].array, rtol=2e-4, atol=2e-5, err_msg=name)
        assert np.all(np.asarray(gradient.array)[:, 5:] == 0), f"{name}: a gradient in the padding"


def test_what_stands_in_the_padding_does_not_matter():
    vocab = wf.Dim("vocab", 8, valid=5)
    rows = _random.normal(size=(4, 8)).astype("float32")
    for garbage in (0, np.nan, np.inf, -np.inf, 1e30):
        x = wf.tensor(np.where(np.arange(8) < 5, rows, np.float32(garbage)), [B, vocab])
        w = wf.tensor(np.where(np.arange(8) < 5, rows, np.float32(garbage)).T.copy(), [vocab, wf.Dim("other", 4)])

        def loss(x, w):
            y = wf.einsum(wf.softmax(x, over="vocab"), w, over="vocab")
            return total(y) + total(wf.einsum(w, wf.sum(y, over="batch"), over="other") + wf.sum(x, over="batch"))

        value, gradients = wf.spmd(wf.value_and_grad(loss, argnums=(0, 1)), mesh="x=4", layout="vocab:x")(x, w)
        own = wf.tensor(rows[:, :5], "batch vocab"), wf.tensor(rows[:, :5].T.copy(), "vocab other")
        expected, plain = wf.value_and_grad(loss, argnums=(0, 1))(*own)
        np.testing.assert_allclose(value.array, expected.array, rtol=1e-5, err_msg=str(garbage))
        for gradient, true in zip(gradients, plain, strict=True):
            np.testing.assert_allclose(wf.unpad(gradient, "vocab").array, true.array, rtol=2e-4, atol=2e-5)


def test_a_vocab_of_50257_trains_on_four_processors_as_on_one():
    vocab, length = wf.dims(vocab=50257, length=4)
    batch = wf.Dim("batch", 2)
    table = wf.random.normal(jax.random.key(1), [vocab.padded_to(128), D])
    whole = wf.random.normal(jax.random.key(1), [vocab, D])
    assert table.dim("vocab") == wf.Dim("vocab", 50304, valid=50257) and repr(table.dim("vocab")) == "vocab=50257+47"
    np.testing.assert_array_equal(wf.unpad(table, "vocab").array, whole.array)  # the same numbers, padded or not
    ids = wf.tensor(_random.integers(0, 50257, (2, 4)).astype("int32"), [batch, length])

    def loss(table, ids):
        h = wf.tanh(wf.take(table, ids, over="vocab"))
        logp = wf.log_softmax(wf.einsum(h, table, over=D), over="vocab")
        picked = wf.take(logp, wf.shift(ids, over="length", by=1), over="vocab")
        return -wf.mean(picked, over="batch length")

    expected, true = wf.value_and_grad(loss)(whole, ids)
    value, gradient = wf.spmd(wf.value_and_grad(loss), mesh="x=4", layout="vocab:x")(table, ids)
    np.testing.assert_allclose(value.array, expected.array, rtol=1e-5)
    np.testing.assert_allclose(wf.unpad(gradient, "vocab").array, true.array, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_five_heads_on_four_processors():
    heads, kv, length, memory = wf.dims(heads=5, d_kv=4, length=6, memory_length=6)
    x = floats(B, length, D)
    weights = {name: floats(D, heads, kv) / 4 for name in "qkv"} | {"o": floats(heads, kv, D) / 4}

    def attention(p, x):
        q, k, v = (wf.einsum(x, p[name], over=D) for name in "qkv")
        k, v = k.rename(length=memory), v.rename(length=memory)
        scores = wf.softmax(wf.einsum(q, k, over="d_kv"), over=memory)
        return wf.einsum(wf.einsum(scores, v, over=memory), p["o"], over="heads d_kv")

    def loss(p, x):
        return total(attention(p, x))

    padded = {name: wf.pad_to(w, "heads", 4) for name, w in weights.items()}
    assert padded["q"].dim("heads").size == 8
    expected, true = wf.value_and_grad(loss)(weights, x)
    value, gradients = wf.spmd(wf.value_and_grad(loss), mesh="a=2,b=4", layout="batch:a,heads:b")(padded, x)
    np.testing.assert_allclose(value.array, expected.array, rtol=1e-4)
    for name, gradient in gradients.items():
        atol = 1e-5 * float(jnp.abs(true[name].array).max())  # what is small came of large ones that cancel
        np.testing.assert_allclose(wf.unpad(gradient, "heads").array, true[name].array, rtol=0, atol=atol)


def test_padding_is_sent_nowhere_more_than_its_dim_is():
    x = wf.pad_to(floats(B, FIVE), "vocab", 4)
    rows = wf.trace(lambda x: wf.softmax(x, over="vocab"), x, mesh="x=4", layout="vocab:x").ledger
    assert [(row.collective, row.bytes) for row in rows] == [("all_reduce", 16), ("all_reduce", 16)]


def test_valid_is_the_mask_of_a_padded_dim():
    vocab = FIVE.padded_to(4)
    assert wf.valid(vocab).array.tolist() == [True] * 5 + [False] * 3
    inside = wf.spmd(lambda x: wf.where(wf.valid(x.dims, like=x), 1, 0) + 0 * x, mesh="x=4", layout="vocab:x")
    assert inside(wf.zeros([vocab])).array.tolist() == [1, 1, 1, 1, 1, 0, 0, 0]


def test_a_check_does_not_look_at_padding():
    x = wf.pad_to(floats(B, FIVE) * 0 + 1, "vocab", 4)

    def checked(x):
        wf.check(x > 0, "not positive")
        return x

    wf.spmd(checked, mesh="x=4", layout="vocab:x")(x)


def test_padding_twice_and_taking_it_off():
    x = floats(B, FIVE)
    padded = wf.pad_to(x, FIVE, 4)
    assert wf.pad_to(padded, "vocab", 8) is padded
    np.testing.assert_array_equal(wf.unpad(padded, "vocab").array, x.array)
    assert wf.unpad(padded, "vocab").dims == x.dims and wf.unpad(x, "vocab").dims == x.dims
    assert wf.pad_to(x, "batch", 2).dims == x.dims  # it divides already
    assert wf.pad_to(wf.parameter(x), "vocab", 4).kind.store == "params"


@pytest.mark.parametrize(
    "op",
    [
        lambda x: wf.pad(x, over="vocab", after=1),
        lambda x: wf.concat([x, x], over="vocab"),
        lambda x: wf.split(x, vocab=[wf.Dim("a", 2), wf.Dim("b", 4)]),  # five places are no whole fours
        lambda x: wf.merge(x, ["batch", "vocab"], into=wf.Dim("all", 32)),
        lambda x: wf.max_pool(x, window={"vocab": 2}),
        lambda x: wf.scan(lambda c, y: (c, y), wf.zeros([B]), x, over="vocab"),
    ],
)
def test_an_op_that_would_take_padding_for_values_says_so(op):
    error = error_of(lambda: op(wf.pad_to(floats(B, FIVE), "vocab", 4)), wf.DimError)
    assert "5 places are valid and 3 padding" in error.fact
    assert (
        "`wf.unpad(x, 'vocab')`" in error.fix
        and "`wf.unpad(x.rename(vocab='vocab_whole'), 'vocab_whole')`" in error.fix
    )


def test_wrong_padding_is_told():
    x = floats(B, FIVE)
    padded = wf.pad_to(x, "vocab", 4)
    error = error_of(lambda: padded + floats(B, wf.Dim("vocab", 8)), wf.DimError)
    assert "holds 5 values in one tensor and 8 in another" in error.fact and "wf.pad_to" in error.fix
    error = error_of(lambda: padded + x, wf.DimError)
    assert "is 5+3 in one tensor, values and padding, and 5" in error.fact and "wf.pad_to(y, 'vocab', 8)" in error.fix
    error = error_of(lambda: wf.tensor(np.ones((4, 5)), padded.dims), wf.DimError)
    assert "no room for the padding" in error.fact and "wf.pad_to(" in error.fix
    error = error_of(lambda: wf.pad_to(padded, "vocab", 3), wf.DimError)
    assert "padding already" in error.fact and "wf.unpad(x, 'vocab')" in error.fix
    error = error_of(lambda: wf.pad_to(x, "vocab", 0), wf.DimError)
    assert "multiple of 0" in error.fact and "at least 1" in error.fix
    error = error_of(lambda: wf.Dim("vocab", 4, valid=5), wf.DimError)
    assert "5 valid places" in error.fact and "from 1 to 4" in error.fix
    error = error_of(lambda: padded.rename(vocab=wf.Dim("v", 8, valid=6)), wf.DimError)
    assert "other padding" in error.fact and "vocab='v'" in error.fix
    error = error_of(lambda: padded["vocab", 6], wf.DimError)
    assert "place 6 of `vocab` (size 5)" in error.fact


def test_a_dim_as_it_was_before_it_was_padded_still_names_it():
    x = floats(B, FIVE)
    padded = wf.pad_to(x, FIVE, 4)

    def net(x):
        y = wf.softmax(x, over=FIVE) + wf.ones([B, FIVE], like=x) * wf.cast(wf.arange(FIVE, like=x), "float32")
        y = wf.broadcast(y, [FIVE, B]).rename(vocab=wf.Dim("words", 5))
        return wf.einsum(y, y, out=["words"]), wf.einsum(y, over=[B], rename={"words": FIVE})

    for found, expected in zip(wf.spmd(net, mesh="x=4", layout="vocab:x,words:x")(padded), net(x), strict=True):
        np.testing.assert_allclose(wf.unpad(found, found.dims[0]).array, expected.array, rtol=1e-5)


def test_a_shape_without_values_is_padded_too():
    padded = wf.pad_to(wf.tensor(jax.ShapeDtypeStruct((4, 5), "float32"), [B, FIVE]), "vocab", 4)
    assert padded.dims == wf.pad_to(floats(B, FIVE), "vocab", 4).dims
    assert list(wf.trace(lambda x: x * 2, padded, mesh="x=4", layout="vocab:x").ledger) == []


def test_a_ring_takes_a_padded_dim():
    x, w = wf.pad_to(floats(FIVE, D), "vocab", 4), floats(D, wf.Dim("heads", 8))

    def net(x, w, overlap):
        return wf.einsum(x, w, over=D, rename={"vocab": "words"}, overlap=overlap)

    expected = net(x, w, False)
    for overlap in (False, True):
        found = wf.spmd(lambda x, w, o=overlap: net(x, w, o), mesh="x=4", layout="vocab:x,heads:x")(x, w)
        np.testing.assert_allclose(wf.unpad(found, "words").array, wf.unpad(expected, "words").array, rtol=1e-5)


def test_a_size_that_does_not_divide_names_the_cure():
    error = error_of(lambda: wf.spmd(lambda x: x * 2, mesh="x=4", layout="vocab:x")(floats(B, FIVE)), wf.LayoutError)
    assert "wf.pad_to(x, 'vocab', 4)" in error.fix


def test_arrays_of_a_padded_dim_keep_their_dtype():
    for dtype in ("int32", "bool", "bfloat16"):
        x = wf.pad_to(wf.cast(floats(B, FIVE) > 0, dtype), "vocab", 4)
        assert wf.max(x, over="vocab").dtype == jnp.dtype(dtype)


@pytest.mark.parametrize("layout", ["", "length:x"])
def test_one_key_of_many_is_the_same_wherever_they_lie(layout):
    length = wf.Dim("length", 8)
    x, keys = wf.ones([length]), wf.random.split(jax.random.key(0), length)

    def net(keys, x):
        one, other = keys["length", 2], wf.unstack(keys, over="length")[3]
        return x + wf.random.normal(one, x.dims, like=x) * wf.random.normal(other, x.dims, like=x)

    found = wf.spmd(net, mesh="x=4", layout=layout)(keys, x) if layout else net(keys, x)
    plain = jax.random.split(jax.random.key(0), 8)
    expected = 1 + jax.random.normal(plain[2], 8) * jax.random.normal(plain[3], 8)
    np.testing.assert_allclose(found.array, expected, rtol=1e-6)


def test_random_bits_do_not_depend_on_the_layout_whatever_jax_is_set_to():
    x = wf.ones([wf.Dim("length", 8)])
    with jax.threefry_partitionable(False):
        net = wf.spmd(lambda x: wf.random.normal(jax.random.key(0), x.dims, like=x), mesh="x=4", layout="length:x")
        np.testing.assert_array_equal(net(x).array, wf.random.normal(jax.random.key(0), x.dims).array)


def test_places_past_32_bits_are_counted_in_two_words():
    # Three times the second size is 2**32 - 1: the next place has its carry.
    sizes = 16, 0xFFFFFFFF // 3, 5
    shape = wf.dims(a=sizes[0], b=sizes[1], c=sizes[2])
    places = random.slice_places(((),) * 3, (5, 4, 5))(None)
    high, low = (
        np.asarray(word, "uint64") for word in random.global_index(Shape(shape), places, (5, 4, 5), None, None)
    )
    a, b, c = np.indices((5, 4, 5), "uint64")
    np.testing.assert_array_equal((high << np.uint64(32)) + low, (a * sizes[1] + b) * sizes[2] + c)
