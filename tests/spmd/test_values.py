"""Values and dtypes at the border: what goes in is held or refused, and what comes out is the values alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import weft as wf
from weft import models

batch, width = wf.dims(batch=4, width=2)
LARGE = 2**40


# ---- whole numbers that JAX's 32 bits do not hold


@pytest.mark.parametrize(
    "call",
    [
        lambda: wf.tensor(np.array([1, LARGE]), "batch"),
        lambda: wf.tensor([1, LARGE], "batch"),
        lambda: wf.tensor(np.int64(LARGE), []),
        lambda: wf.parameter(np.array([1, -LARGE]), "batch"),
        lambda: wf.tensor(np.array([LARGE], "uint64"), "batch"),
        lambda: wf.put({"step": np.array([LARGE])}, mesh="x=2", layout="batch:x"),
        lambda: wf.spmd(lambda x: x, mesh="x=1", layout="batch:x")(np.int64(LARGE)),
        lambda: wf.spmd(lambda x: x, mesh="x=1", layout="batch:x")(LARGE),
        lambda: wf.ones([batch], dtype="int32") + np.int64(LARGE),
        lambda: wf.ones([batch], dtype="int32") + LARGE,
        lambda: wf.ones([batch], dtype="int32") * (2**31),
        lambda: wf.full([batch], 2**31),
        lambda: wf.full([batch], np.int64(LARGE)),
    ],
)
def test_a_whole_number_that_does_not_fit_is_an_error_that_names_it(call):
    with pytest.raises(wf.TensorError, match=r"1099511627776|2147483648"):
        call()


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda: wf.full([batch], 300, dtype="int8"), "300 does not fit int8"),
        (lambda: wf.full([batch], -1, dtype="uint8"), "-1 does not fit uint8"),
        (lambda: wf.arange(wf.Dim("batch", 300), dtype="int8"), "299 does not fit int8"),
        (lambda: wf.pad(wf.ones([batch], dtype="int8"), over="batch", after=1, value=300), "300 does not fit int8"),
        (lambda: wf.shift(wf.ones([batch], dtype="uint8"), over="batch", by=1, fill=-1), "-1 does not fit uint8"),
    ],
)
def test_a_number_is_not_cut_to_a_short_dtype(call, fact):
    with pytest.raises(wf.TensorError) as caught:
        call()
    assert caught.value.fact == fact
    assert "holds whole numbers from" in caught.value.state
    assert "give one of these" in caught.value.fix


def test_whole_numbers_that_fit_go_in_whatever_their_dtype():
    for dtype in ("int64", "uint64", "int32", "uint32"):
        x = wf.tensor(np.array([0, 1, 2**31 - 1, 7], dtype), [batch])
        found = wf.spmd(lambda x: x + 0, mesh="x=2", layout="batch:x")(x)
        np.testing.assert_array_equal(np.asarray(found), [0, 1, 2**31 - 1, 7])
    unsigned = wf.tensor(np.array([2**32 - 1] * 4, "uint32"), [batch])
    np.testing.assert_array_equal(np.asarray(unsigned + 0), [2**32 - 1] * 4)
    assert wf.tensor(np.ones(4, "float64"), [batch]).dims == (batch,)


def test_64_bits_hold_them():
    with jax.enable_x64(True):
        x = wf.tensor(np.array([LARGE, 2, 3, 4]), [batch])
        found = wf.spmd(lambda x: (x + LARGE, x["batch", 0]), mesh="x=2", layout="batch:x")(x)
        np.testing.assert_array_equal(np.asarray(found[0]), np.array([LARGE, 2, 3, 4]) + LARGE)
        assert int(found[1]) == LARGE


# ---- the dtype of gradient sums


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool", "float8_e8m0fnu", "float8_e4m3b11fnuz", "complex64"])
@pytest.mark.parametrize("differentiate", [wf.grad, wf.value_and_grad])
def test_gradients_are_summed_in_floats_that_hold_them(differentiate, dtype):
    with pytest.raises(wf.TensorError) as caught:
        differentiate(lambda w: wf.sum(w, over="batch"), sum_dtype=dtype)
    assert f"`sum_dtype` is {dtype}" in caught.value.fact
    assert "'float32', 'bfloat16' or 'float16'" in caught.value.fix
    assert "'float8_e4m3fn' or 'float8_e5m2'" in caught.value.fix


def test_a_train_step_refuses_integers_for_its_sums_before_it_has_a_mesh():
    with pytest.raises(wf.TensorError, match="`sum_dtype` is int8") as caught:
        wf.train_step(lambda w, x, key: wf.sum(w * x, over="batch"), optax.sgd(0.1), sum_dtype="int8")
    assert "'float8_e4m3fn' or 'float8_e5m2'" in caught.value.fix


def test_without_a_mesh_nothing_is_sent_and_nothing_rounded():
    x = wf.tensor(np.linspace(0, 1, 4, dtype="float32"), [batch])
    whole, rounded = (wf.grad(lambda x: wf.sum(wf.exp(x), over="batch"), sum_dtype=d)(x) for d in (None, "float8_e5m2"))
    np.testing.assert_array_equal(np.asarray(whole), np.asarray(rounded))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e5m2"])
def test_gradients_of_complex_weights_keep_both_parts_whatever_they_are_summed_in(dtype):
    w = wf.tensor(np.array([1 + 2j, -1j], "complex64"), [width])
    x = wf.tensor(np.arange(4, dtype="float32"), [batch])

    def loss(w, x):
        return wf.sum(wf.square(wf.abs(w * x)), over="width batch")

    whole = wf.grad(loss)(w, x)
    split = wf.spmd(wf.grad(loss, sum_dtype=dtype), mesh="x=4", layout="batch:x")(w, x)
    np.testing.assert_allclose(np.asarray(split), np.asarray(whole), rtol=1e-6)
    assert split.dtype == "complex64"


# ---- padding


def test_values_come_out_without_their_padding():
    x = np.arange(6, dtype="float32").reshape(3, 2)
    padded = wf.pad_to(wf.tensor(x, [batch.resized(3), width]), "batch", 4)
    for one in (padded, wf.put(padded, mesh="x=2", layout="batch:x")):
        np.testing.assert_array_equal(wf.get(one), x)
        np.testing.assert_array_equal(wf.get({"a": [one]})["a"][0], x)
        np.testing.assert_array_equal(np.asarray(one), x)
        np.testing.assert_array_equal(np.asarray(one, "int32"), x.astype("int32"))
        assert one.array.shape == (4, 2)
    assert "[4. 5.]]" in str(padded)


# ---- default dtypes


def test_new_tensors_have_the_dtypes_of_jnp():
    key = jax.random.key(0)
    made = {
        "zeros": (lambda: wf.zeros([batch]), lambda: jnp.zeros(4)),
        "ones": (lambda: wf.ones([batch]), lambda: jnp.ones(4)),
        "full": (lambda: wf.full([batch], 2.0), lambda: jnp.full(4, 2.0)),
        "full of whole numbers": (lambda: wf.full([batch], 2), lambda: jnp.full(4, 2)),
        "arange": (lambda: wf.arange(batch), lambda: jnp.arange(4)),
        "normal": (lambda: wf.random.normal(key, [batch]), lambda: jax.random.normal(key, 4)),
        "uniform": (lambda: wf.random.uniform(key, [batch]), lambda: jax.random.uniform(key, 4)),
        "truncated_normal": (
            lambda: wf.random.truncated_normal(key, [batch]),
            lambda: jax.random.truncated_normal(key, -2.0, 2.0, 4),
        ),
        "gumbel": (lambda: wf.random.gumbel(key, [batch]), lambda: jax.random.gumbel(key, 4, mode="low")),
        "randint": (
            lambda: wf.random.randint(key, [batch], minval=0, maxval=9),
            lambda: jax.random.randint(key, 4, 0, 9),
        ),
    }
    for is_wide in (False, True):
        with jax.enable_x64(is_wide):
            for name, (mine, plain) in made.items():
                got, want = mine(), plain()
                assert got.dtype == want.dtype, name
                np.testing.assert_array_equal(np.asarray(got), want, err_msg=name)


def test_so_they_have_under_a_layout():
    key = jax.random.key(0)
    with jax.enable_x64(True):
        x = wf.tensor(np.arange(4.0), [batch])

        def made(x):
            like = {"like": x}
            return wf.zeros([batch], **like), wf.random.normal(key, [batch], **like), wf.arange(batch, **like)

        whole, split = made(x), wf.spmd(made, mesh="x=2", layout="batch:x")(x)
        for mine, due in zip(split, whole, strict=True):
            assert mine.dtype == due.dtype
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(due))
        assert [y.dtype for y in whole] == ["float64", "float64", "int64"]


def test_a_model_begins_alike_whether_or_not_64_bits_are_on():
    config = models.preset("tiny-lm", layers=1)
    begun = []
    for is_wide in (False, True):
        with jax.enable_x64(is_wide):
            begun.append(jax.tree.map(np.asarray, jax.tree.leaves(models.init(config, jax.random.key(0)))))
    for a, b in zip(*begun, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
