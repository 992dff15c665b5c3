"""Meanings that must not depend on the layout: odd values, odd indices, dtypes, ties, random bits.

Every test compares with plain jnp on the global arrays, without a mesh, on one processor, and under layouts that
split each dim, also over two axes.
"""

import functools
import itertools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf

batch, vocab, d_model = wf.dims(batch=16, vocab=8, d_model=4)

PLACES = [
    None,
    *(
        pytest.param(place, marks=pytest.mark.slow)
        for place in [("one=1,unit=1", "vocab:one,batch:unit"), ("x=8", "vocab:x"), ("x=4", "batch:x")]
    ),
    ("rows=2,cols=4", "vocab:cols,batch:rows"),
    ("a=2,b=2,c=2", "vocab:c+a,d_model:b"),
]
pytestmark = [
    pytest.mark.parametrize("place", PLACES, ids=lambda place: " ".join(place) if place else "no mesh"),
    pytest.mark.filterwarnings("ignore::weft.WeftWarning"),  # a place may split dims that a test does not have
]

EPS = float(jnp.finfo("float32").eps)


def run(place: Any, fn: Any, *tensors: wf.Tensor) -> Any:
    """`fn` of the tensors at a place, with the rules of the dims they have."""
    if place is None:
        return fn(*tensors)
    mesh, layout = place
    names = {dim.name for x in tensors for dim in x.dims}
    layout = wf.Layout(layout).drop(*(name for name in wf.Layout(layout).rules if name not in names))
    return wf.spmd(fn, mesh=mesh, layout=layout)(*tensors)


def arrays(tree: Any) -> Any:
    is_tensor = lambda x: isinstance(x, wf.Tensor)  # noqa: E731
    return jax.tree.map(lambda x: np.asarray(x.array if is_tensor(x) else x), tree, is_leaf=is_tensor)


def assert_same(got: Any, want: Any, allowed: float = 0.0) -> None:
    """Leaf by leaf: dtype, NaN and infinities alike, and the rest within `allowed` times the largest value."""
    got_leaves, structure = jax.tree_util.tree_flatten_with_path(arrays(got))
    want_leaves, want_structure = jax.tree_util.tree_flatten_with_path(want)
    assert structure == want_structure
    for (path, mine), (_, due) in zip(got_leaves, want_leaves, strict=True):
        due = np.asarray(due)
        assert (mine.dtype, mine.shape) == (due.dtype, due.shape), jax.tree_util.keystr(path)
        if mine.dtype.name in ("bfloat16", "float16"):
            mine, due = mine.astype("float32"), due.astype("float32")
        if due.dtype.kind == "f":
            scale = np.abs(due[np.isfinite(due)]).max(initial=1.0)
            np.testing.assert_allclose(mine, due, rtol=0, atol=allowed * scale, err_msg=jax.tree_util.keystr(path))
        else:
            np.testing.assert_array_equal(mine, due, err_msg=jax.tree_util.keystr(path))


# ---- indices outside the dim


def odd_ids(dtype: str) -> np.ndarray:
    limits = jnp.iinfo(dtype)
    odd = [-1, -8, -9, 8, 9, 100, int(limits.min), int(limits.max), int(limits.max) - 1]
    return np.resize([*range(8), *(i for i in odd if limits.min <= i <= limits.max)], 16).astype(dtype)


def test_an_index_outside_a_dim_gives_zero_and_no_gradient(place):
    dtypes = ["int32", "int8", "uint8", "int16", "uint32"]
    # The rows that an index outside must not be clipped or wrapped to hold what would show.
    rows = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    rows[0, 0], rows[7, 1], rows[7, 2] = np.inf, np.nan, -np.inf
    weight = np.random.default_rng(1).normal(size=(16, 4)).astype("float32")

    def weft_form(table, weight, *all_ids):
        def one(ids):
            def loss(table):
                found = wf.take(table, ids, over="vocab")
                return wf.sum(found * weight, over=found.dims), found

            gradient, found = wf.grad(loss, has_aux=True)(table)
            return found, gradient, wf.one_hot(ids, vocab)

        return {dtype: one(ids) for dtype, ids in zip(dtypes, all_ids, strict=True)}

    def plain_form(ids):
        ids = ids.astype("int64")
        inside = (ids >= 0) & (ids < 8)
        gradient = np.zeros((8, 4), "float32")
        np.add.at(gradient, ids[inside], weight[inside])
        found = np.where(inside[:, None], rows[np.clip(ids, 0, 7)], 0).astype("float32")
        return found, gradient, (ids[:, None] == np.arange(8)).astype("float32")

    tensors = [wf.tensor(rows, [vocab, d_model]), wf.tensor(weight, [batch, d_model])]
    got = run(place, weft_form, *tensors, *(wf.tensor(odd_ids(dtype), [batch]) for dtype in dtypes))
    assert_same(got, {dtype: plain_form(odd_ids(dtype)) for dtype in dtypes}, 4 * EPS)


# ---- odd values in reductions


def odd_columns() -> np.ndarray:
    """One case a column; the reductions go along the other dim, so that a case may lie on many processors."""
    x = np.random.default_rng(2).normal(size=(8, 16)).astype("float32")
    inf, nan = np.inf, np.nan
    x[7, 1] = nan
    x[0, 2] = nan
    x[:, 3] = nan
    x[3, 4] = inf
    x[4, 5] = -inf
    x[2, 6], x[6, 6] = inf, -inf
    x[:, 7] = -inf
    x[:, 8] = inf
    x[:4, 9] = -inf
    x[:, 10] = -0.0
    x[:, 11] = 0.0
    x[1, 12], x[6, 12] = nan, inf
    x[:, 13] = 100.0 * x[:, 13]
    x[1, 14] = x[6, 14] = x[7, 14] = 9.0
    x[:, 15] = 3.5
    return x


SOFTMAXES = ["logsumexp", "softmax", "log_softmax"]
REDUCTIONS = ["max", "min", "sum", "mean", "prod", "var", *SOFTMAXES]


def plainly(name: str) -> Any:
    return getattr(jnp, name, None) or getattr(jax.nn, name)


@functools.cache
def odd_reductions_by_jnp() -> Any:
    x = jnp.asarray(odd_columns())
    weights = odd_weights()

    def both(name: str) -> Any:
        def total(x: Any) -> Any:
            found = plainly(name)(x, axis=0)
            return jnp.sum(found * (weights if found.ndim == 2 else weights[0])), found

        gradient, found = jax.grad(total, has_aux=True)(x)
        return found, gradient

    return jax.jit(lambda: {name: both(name) for name in REDUCTIONS})()


def odd_weights() -> np.ndarray:
    return np.random.default_rng(3).uniform(0.5, 2, size=(8, 16)).astype("float32")


def test_nan_infinities_zeros_and_ties_are_reduced_as_in_jnp(place):
    def both(x, weights, first):
        def reduced(name):
            def total(x):
                found = getattr(wf, name)(x, over="vocab")
                return wf.sum(found * (weights if len(found.dims) == 2 else first), over=found.dims), found

            gradient, found = wf.grad(total, has_aux=True)(x)
            return found, gradient

        return {name: reduced(name) for name in REDUCTIONS}

    weights = odd_weights()
    got = run(
        place,
        both,
        wf.tensor(odd_columns(), [vocab, batch]),
        wf.tensor(weights, [vocab, batch]),
        wf.tensor(weights[0], [batch]),
    )
    want = odd_reductions_by_jnp()
    # A case that is infinite says nothing about its neighbours: each column is compared on its own scale.
    for name, column in itertools.product(REDUCTIONS, range(16)):
        case = odd_columns()[:, column]
        mine, due = (tuple(np.asarray(x)[..., column] for x in found) for found in (arrays(got[name]), want[name]))
        if name in ("max", "min") and np.isnan(case).any():
            mine, due = mine[:1], due[:1]  # jnp's own gradient is NaN there as it stands and zero when compiled
        try:
            assert_same(mine, due, 0 if name in ("max", "min") else 32 * EPS)
        except AssertionError as error:
            raise AssertionError(f"{name} of {case}\n{error}") from None


def test_nan_wins_max_and_min(place):
    x = odd_columns()
    got = run(place, lambda x: (wf.max(x, over="vocab"), wf.min(x, over="vocab")), wf.tensor(x, [vocab, batch]))
    for found in arrays(got):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(x).any(0))
    both = run(place, lambda x: (wf.max(x, over=x.dims), wf.min(x, over=x.dims)), wf.tensor(x, [vocab, batch]))
    assert all(np.isnan(found) for found in arrays(both))


def test_zeros_keep_their_sign_in_max_and_min(place):
    x = np.zeros((8, 16), "float32")
    x[:, ::2] = -0.0
    got = run(place, lambda x: (wf.max(x, over="vocab"), wf.min(x, over="vocab")), wf.tensor(x, [vocab, batch]))
    for found in arrays(got):
        np.testing.assert_array_equal(np.signbit(found), np.arange(16) % 2 == 0)


def test_ties_share_the_gradient_over_processors(place):
    x = np.random.default_rng(4).integers(0, 3, (8, 16)).astype("float32")

    def gradients(x):
        return [
            (
                wf.grad(lambda x: wf.sum(reduce(x, over="vocab"), over="batch"))(x),  # noqa: B023
                wf.grad(lambda x: reduce(x, over=x.dims))(x),  # noqa: B023
            )
            for reduce in (wf.max, wf.min)
        ]

    got = run(place, gradients, wf.tensor(x, [vocab, batch]))
    along = [jax.grad(lambda x, plain=plain: plain(x, axis=0).sum())(x) for plain in (jnp.max, jnp.min)]
    want = list(zip(along, [jax.grad(jnp.max)(x), jax.grad(jnp.min)(x)], strict=True))
    assert_same(got, want, 2 * EPS)


def test_odd_values_in_short_floats(place):
    given = [odd_columns().astype(jnp.dtype(dtype)) for dtype in ("float16", "bfloat16")]

    def extremes(*xs):
        return [(wf.max(x, over="vocab"), wf.min(x, over="vocab")) for x in xs]

    got = run(place, extremes, *(wf.tensor(x, [vocab, batch]) for x in given))
    assert_same(got, [(jnp.max(x, axis=0), jnp.min(x, axis=0)) for x in given])


def test_softmax_family_with_masked_processors_large_values_and_integers(place):
    masked = np.full((8, 16), -np.inf, "float32")
    masked[5], masked[6] = np.arange(16), 1.0
    given = {
        "masked": masked,
        "large": np.linspace(-3e4, 3e4, 128, dtype="float32").reshape(8, 16)[::-1].copy(),
        "int8": np.random.default_rng(7).integers(-5, 5, (8, 16)).astype("int8"),
        "int32": np.random.default_rng(8).integers(-5, 5, (8, 16)).astype("int32"),
    }

    def family(*xs):
        return {
            kind: {name: getattr(wf, name)(x, over="vocab") for name in SOFTMAXES}
            for kind, x in zip(given, xs, strict=True)
        }

    got = run(place, family, *(wf.tensor(x, [vocab, batch]) for x in given.values()))
    want = {
        kind: {name: getattr(jax.nn, name)(x.astype("float32"), axis=0) for name in SOFTMAXES}
        for kind, x in given.items()
    }
    assert_same(got, want, 16 * EPS)
    assert np.isfinite(np.asarray(got["masked"]["softmax"].array)).all()


def test_var_of_a_large_mean_is_as_exact_as_two_passes(place):
    x = (1e4 + np.random.default_rng(5).normal(size=(8, 16))).astype("float32")
    got = run(
        place,
        lambda x: (wf.var(x, over="vocab"), wf.var(x, over=x.dims), wf.var(x, over="batch")),
        wf.tensor(x, [vocab, batch]),
    )
    for found, axis in zip(arrays(got), (0, None, 1), strict=True):
        exact = x.astype("float64").var(axis=axis)
        count = x.size // exact.size
        # Two passes: n rounded squares added up, and the square of the rounding of the mean.
        allowed = count * EPS * exact + (EPS * 1e4) ** 2
        assert (np.abs(np.asarray(jnp.var(x, axis=axis)) - exact) <= allowed).all()
        assert (np.abs(found - exact) <= allowed).all(), f"{np.abs(found - exact).max()} where {np.max(allowed)} is due"


# ---- integers and booleans


def test_integers_and_booleans_are_reduced_in_jnp_s_dtypes(place):
    names = ["sum", "max", "min", "prod", "any", "all", "mean", "var"]
    given = {dtype: whole_numbers(dtype) for dtype in ["int8", "uint8", "int16", "int32", "uint32", "bool"]}

    def reduced(*xs):
        return {
            dtype: {name: getattr(wf, name)(x, over="vocab") for name in names}
            for dtype, x in zip(given, xs, strict=True)
        }

    got = run(place, reduced, *(wf.tensor(x, [vocab, batch]) for x in given.values()))
    want = {dtype: {name: getattr(jnp, name)(x, axis=0) for name in names} for dtype, x in given.items()}
    assert_same(got, want, 16 * EPS)


def whole_numbers(dtype: str) -> np.ndarray:
    """Numbers up to the limits of their dtype, whose sums and products wrap."""
    top = 1 if dtype == "bool" else int(jnp.iinfo(dtype).max)
    x = np.random.default_rng(6).integers(0, min(top, 100), (8, 16), endpoint=True)
    x[:, 0], x[:, 1] = 0, top
    x[3, 2] = int(jnp.iinfo(dtype).min) if dtype != "bool" else 0
    return x.astype(dtype)


# ---- dtypes

DTYPES = ["bool", "int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32", "complex64"]


def promoted(where: Any, xs: Any) -> Any:
    """Results of every two dtypes, and of each with plain numbers."""
    given = dict(zip(DTYPES, xs, strict=True))
    found = {f"{a} + 1": x + 1 for a, x in given.items()}
    found |= {f"2.5 * {a}": 2.5 * x for a, x in given.items()}
    found |= {f"{a} + True": x + True for a, x in given.items()}
    for a, b in itertools.combinations_with_replacement(DTYPES, 2):
        found[f"{a} * {b}"] = given[a] * given[b]
        found[f"{b} / {a}"] = given[b] / (given[a] + 1)
        found[f"{a} == {b}"] = given[a] == given[b]
        found[f"where {a} {b}"] = where(given["bool"], given[a], given[b])
    return found


def test_two_dtypes_promote_as_in_jnp(place):
    rng = np.random.default_rng(8)
    values = [rng.integers(0, 2, (8, 16)).astype(jnp.dtype(dtype)) for dtype in DTYPES]
    want = jax.eval_shape(functools.partial(promoted, jnp.where), values)
    tensors = [wf.tensor(x, [vocab, batch]) for x in values]
    got = jax.eval_shape(lambda *xs: run(place, lambda *xs: promoted(wf.where, xs), *xs), *tensors)
    wrong = {name: (got[name].dtype, due.dtype) for name, due in want.items() if got[name].dtype != due.dtype}
    assert not wrong


def test_numbers_are_weak(place):
    x = wf.tensor(np.ones(16, jnp.bfloat16), [batch])
    n = wf.tensor(np.ones(16, "int8"), [batch])
    fns = [
        lambda x: x * 2, lambda x: 2.5 * x, lambda x: x**2, lambda x: 1 - x, lambda x: wf.maximum(x, 0),
        lambda x: wf.where(x > 0, x, -1e9), lambda x: wf.clip(x, 0, 1), lambda x: x / 3,
    ]  # fmt: skip
    got = run(place, lambda x: [fn(x) for fn in fns], x)
    assert [str(found.dtype) for found in got] == ["bfloat16"] * len(fns)
    got = run(place, lambda n: [n * 2, n + True, n * 2.5, n / 2], n)
    assert [str(found.dtype) for found in got] == ["int8", "int8", "float32", "float32"]


def test_einsum_promotes_and_takes_a_dtype(place):
    ones = lambda dtype: np.ones((8, 16), jnp.dtype(dtype))  # noqa: E731
    # In bf16 256 + 1 is 256: only sums in f32, local and on the way, come to 256 + 7.
    steps = ones("bfloat16")
    steps[0] = 256
    given = [steps, ones("bfloat16"), ones("float32"), ones("int8"), ones("int32")]

    def products(short, other, wide, small, integer):
        return {
            "short": wf.einsum(short, other, over="vocab"),
            "exact": wf.einsum(short, other, over="vocab", dtype="float32"),
            "mixed": wf.einsum(short, wide, over="vocab"),
            "asked": wf.einsum(wide, wide, over="vocab", dtype="bfloat16"),
            "integers": wf.einsum(small, integer, over="vocab"),
            "small": wf.einsum(small, small, over="vocab", dtype="int32"),
            "scaled": wf.einsum(small, wide, over="vocab"),
        }

    got = run(place, products, *(wf.tensor(x, [vocab, batch]) for x in given))
    dtypes = {name: str(found.dtype) for name, found in got.items()}
    assert dtypes == {
        "short": "bfloat16", "exact": "float32", "mixed": "float32", "asked": "bfloat16", "integers": "int32",
        "small": "int32", "scaled": "float32",
    }  # fmt: skip
    assert (np.asarray(got["exact"].array) == 263).all()
    assert (np.asarray(got["mixed"].array) == 263).all()
    assert all((np.asarray(got[name].array) == 8).all() for name in ("asked", "integers", "small", "scaled"))


def test_a_product_of_floats_asked_for_as_integers_is_cast_once_it_is_summed(place):
    halves, ones = (wf.tensor(np.full((8, 16), x, "float32"), [vocab, batch]) for x in (0.5, 1.0))
    got = run(place, lambda a, b: wf.einsum(a, b, over="vocab", dtype="int32"), halves, ones)
    assert str(got.dtype) == "int32" and (np.asarray(got.array) == 4).all()


def test_sums_of_short_floats_accumulate_in_f32_on_each_processor(place):
    x = np.full((8, 16), 1.0, jnp.bfloat16)
    x[0, 0] = 256
    got = run(place, lambda x: wf.sum(x, over=x.dims, dtype="float32"), wf.tensor(x, [vocab, batch]))
    assert float(got.array) == 256 + 127


# ---- plain numbers beside tensors


def with_numbers(x: Any) -> Any:
    """Every kind of number on both sides of operators."""
    signs = [
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.mod,
        operator.pow,
        operator.lt,
        operator.eq,
    ]
    numbers = {
        "jax": jnp.float32(2.0), "numpy": np.float32(2.0), "0-d numpy": np.array(2.0, "float32"), "python": 2.0,
        "weak": jnp.asarray(2.0),
    }  # fmt: skip
    return {
        f"{kind} {sign.__name__}": (sign(x, number), sign(number, x))
        for kind, number in numbers.items()
        for sign in signs
    }


def test_numbers_and_0d_arrays_stand_on_either_side_of_operators(place):
    x = np.linspace(0.5, 3, 16, dtype="float32")
    got = run(place, with_numbers, wf.tensor(x, [batch]))
    assert all(isinstance(found, wf.Tensor) for pair in got.values() for found in pair)
    assert_same(got, jax.jit(with_numbers)(x), 4 * EPS)


def test_a_number_that_is_an_argument_of_the_region_stands_on_either_side(place):
    x = np.linspace(0.5, 3, 16, dtype="float32")
    fn = lambda x, n: {"left": n * x, "right": x * n, "minus": n - x, "power": x**n}  # noqa: E731
    region = fn if place is None or "batch" not in place[1] else wf.spmd(fn, mesh=place[0], layout=batch_rule(place))
    for number in (jnp.float32(3), np.float32(3), 3.0, 3):
        assert_same(region(wf.tensor(x, [batch]), number), jax.jit(fn)(x, number), 4 * EPS)


def batch_rule(place: Any) -> str:
    return f"batch:{'+'.join(wf.Layout(place[1]).rules['batch'])}"


def test_integers_and_booleans_stand_beside_plain_ones(place):
    x = np.arange(16, dtype="int32")

    def all_of(x):
        number = jnp.int32(6)
        return [x & number, number & x, x | 6, 6 | x, x ^ number, number ^ x, x << 2, x >> 1, ~x, (x > 3) & (x < 9)]

    assert_same(run(place, all_of, wf.tensor(x, [batch])), jax.jit(all_of)(x))


# ---- random bits


SHAPE = [batch, vocab, d_model]


@functools.cache
def samples_by_jax() -> Any:
    key = jax.random.key(11)
    first, second = jax.random.split(jax.random.fold_in(key, 3))
    return {
        "uniform": jax.random.uniform(key, (16, 8, 4)),
        "limits": jax.random.uniform(first, (16, 8, 4), minval=-2, maxval=5),
        "bf16": jax.random.uniform(second, (16, 8, 4), "bfloat16"),
        "half": jax.random.uniform(second, (16, 8, 4), "float16"),
        "bernoulli": jax.random.bernoulli(first, 0.3, (16, 8, 4)),
        "one dim": jax.random.uniform(second, (8,)),
        "other order": jax.random.uniform(second, (4, 16)),
    }


def test_random_bits_are_those_of_jax_on_the_global_shape(place):
    key = jax.random.key(11)

    def samples(like):
        first, second = jax.random.split(jax.random.fold_in(key, 3))
        return {
            "uniform": wf.random.uniform(key, SHAPE, like=like),
            "limits": wf.random.uniform(first, SHAPE, like=like, minval=-2, maxval=5),
            "bf16": wf.random.uniform(second, SHAPE, like=like, dtype="bfloat16"),
            "half": wf.random.uniform(second, SHAPE, like=like, dtype="float16"),
            "bernoulli": wf.random.bernoulli(first, SHAPE, like=like, p=0.3),
            "one dim": wf.random.uniform(second, [vocab], like=like),
            "other order": wf.random.uniform(second, [d_model, batch], like=like),
        }

    x = wf.tensor(np.zeros((16, 8, 4), "float32"), SHAPE)
    got = run(place, lambda x: (samples(x), samples(None)), x)
    assert_same(got, (samples_by_jax(), samples_by_jax()))
    uniform = np.asarray(got[0]["uniform"].array)
    assert uniform.min() >= 0 and uniform.max() < 1


def test_microbatches_draw_what_their_rows_draw_in_one_batch(place):
    key = jax.random.key(5)

    def part(scale, x):
        noisy = wf.dropout(x, 0.5, key) * wf.random.uniform(key, x.dims, like=x)
        return wf.sum(noisy, over=x.dims) * scale, wf.sum(x, over=x.dims)

    def whole(x):
        total, weight = part(2.0, x)
        return total / weight

    x = wf.tensor(np.random.default_rng(0).uniform(1, 2, (16, 8, 4)).astype("float32"), SHAPE)
    got = run(place, lambda x: wf.accumulate(part, 2.0, x, over="batch", count=2), x)
    np.testing.assert_allclose(np.asarray(got.array), np.asarray(whole(x).array), rtol=1e-5)


def test_normal_samples_are_those_of_jax_to_the_last_bits(place):
    x = wf.tensor(np.zeros((16, 8, 4), "float32"), SHAPE)
    key = jax.random.key(12)
    got = run(
        place,
        lambda x: (
            wf.random.normal(key, SHAPE, like=x),
            wf.random.truncated_normal(key, SHAPE, like=x, lower=-1, upper=2),
        ),
        x,
    )
    want = (jax.random.normal(key, (16, 8, 4)), jax.random.truncated_normal(key, -1, 2, (16, 8, 4)))
    assert_same(got, want, EPS)  # the same bits; the inverse error function may round otherwise in another program


def test_dropout_masks_as_bernoulli_does_and_keeps_the_scale(place):
    x = np.random.default_rng(13).normal(size=(16, 8)).astype("float32")
    key = jax.random.key(13)
    got = run(
        place,
        lambda x: (wf.dropout(x, 0.25, key), wf.grad(lambda x: wf.sum(wf.dropout(x, 0.25, key), over=x.dims))(x)),
        wf.tensor(x, [batch, vocab]),
    )
    mask = np.asarray(jax.random.bernoulli(key, 0.75, (16, 8)))
    assert_same(got, (np.where(mask, x / np.float32(0.75), 0), mask / np.float32(0.75)), EPS)


# ---- where carries come from


def test_a_carry_made_without_a_layout_is_the_same_as_one_made_with(place):
    x = np.random.default_rng(14).normal(size=(4, 16, 8)).astype("float32")

    def loops(xs):
        add = lambda c, x: (c + x, wf.max(c, over="vocab"))  # noqa: E731
        alike = wf.zeros([batch, vocab], like=xs)
        return wf.scan(add, wf.zeros([batch, vocab]), xs, over="turn"), wf.scan(add, alike, xs, over="turn")

    got = run(place, loops, wf.tensor(x, [wf.Dim("turn", 4), batch, vocab]))
    before = np.concatenate([np.zeros((1, 16, 8), "float32"), np.cumsum(x, 0)[:-1]])
    want = (x.sum(0), before.max(-1))
    assert_same(got, (want, want), 8 * EPS)


def test_zeros_of_either_sign_are_equal_to_top_k(place):
    x = wf.tensor(np.tile(np.array([-0.0, 0.0], "float32"), 4), [vocab])
    values, places = run(place, lambda x: wf.top_k(x, over=vocab, k=wf.Dim("k", 3)), x)
    np.testing.assert_array_equal(places.array, [0, 1, 2])
    np.testing.assert_array_equal(np.signbit(values.array), [True, False, True])
