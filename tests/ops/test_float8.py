"""Products of 8-bit floats: as written out in NumPy, the same on every layout, scales by one small all-reduce each."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft.errors import DimError, TensorError

SIZES = dict(batch=8, length=4, d_model=16, heads=4, d_kv=8, experts=4)
DIMS = {name: wf.Dim(name, size) for name, size in SIZES.items()}
E4M3, E5M2 = (ml_dtypes.float8_e4m3fn, 448), (ml_dtypes.float8_e5m2, 57344)
LETTERS = dict(zip(SIZES, "bldhke", strict=True))

# Both operands, and what is kept: plain, several dims, a batch of products, another order.
CASES = {
    "matrix": ("batch d_model", "d_model d_kv", "batch d_kv"),
    "projection": ("batch length d_model", "d_model heads d_kv", "batch length heads d_kv"),
    "out": ("batch length heads d_kv", "heads d_kv d_model", "batch length d_model"),
    "experts": ("experts batch d_model", "experts d_model d_kv", "batch experts d_kv"),
    "turned": ("d_model batch", "d_kv d_model", "d_kv batch"),
    "outer": ("batch", "d_model", "d_model batch"),
}


def numbers(names, seed, scale=1.0):
    dims = [DIMS[name] for name in names.split()]
    values = np.random.default_rng(seed).normal(size=[dim.size for dim in dims]) * scale
    return wf.tensor(values.astype("float32"), dims)


def narrow(values, kind):
    """The numbers as an 8-bit float, scaled by a power of two, holds them."""
    dtype, top = kind
    largest = np.abs(values).max()
    scale = 2.0 ** math.ceil(math.log2(largest / top)) if largest else 1.0
    return (values / scale).astype("float32").astype(dtype).astype("float64") * scale


def letters(names):
    return "".join(LETTERS[name] for name in names.split())


@pytest.mark.parametrize("case", CASES)
def test_a_product_and_its_gradients_are_those_of_rounded_operands(case):
    left, right, out = CASES[case]
    a, b, g = numbers(left, 0), numbers(right, 1, scale=3e-4), numbers(out, 2, scale=1e5)

    def loss(a, b):
        y = wf.einsum(a, b, out=[DIMS[name] for name in out.split()], matmul_dtype="float8")
        return wf.sum(y * g, over=out.split()), y

    (_, y), (da, db) = jax.jit(wf.value_and_grad(loss, argnums=(0, 1), has_aux=True))(a, b)
    qa, qb, qg = (narrow(np.asarray(x.array), kind) for x, kind in ((a, E4M3), (b, E4M3), (g, E5M2)))
    i, j, k = map(letters, (left, right, out))
    for found, wanted in (
        (y, np.einsum(f"{i},{j}->{k}", qa, qb)),
        (da, np.einsum(f"{k},{j}->{i}", qg, qb)),
        (db, np.einsum(f"{i},{k}->{j}", qa, qg)),
    ):
        np.testing.assert_allclose(found.array, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_operands_give_their_own_dtype_and_a_wide_result_where_asked(dtype):
    a, b = (wf.cast(numbers(names, seed), dtype) for names, seed in (("batch d_model", 0), ("d_model d_kv", 1)))
    exact = narrow(np.asarray(a.array, "float64"), E4M3) @ narrow(np.asarray(b.array, "float64"), E4M3)
    y = wf.einsum(a, b, over="d_model", matmul_dtype="float8")
    wide = wf.einsum(a, b, over="d_model", matmul_dtype="float8", dtype="float32")
    assert y.dtype == dtype and wide.dtype == "float32"
    np.testing.assert_allclose(wide.array, exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.asarray(y.array, "float64"), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e30, 3e38])
def test_any_size_of_numbers_keeps_its_precision_and_zeros_are_zeros(size):
    a, b = numbers("batch d_model", 0), numbers("d_model d_kv", 1)
    a = a / float(np.abs(a.array).max())
    y = wf.einsum(a * size, b, over="d_model", matmul_dtype="float8").array
    wanted = narrow(np.asarray((a * size).array, "float64"), E4M3) @ narrow(np.asarray(b.array, "float64"), E4M3)
    if 1e-30 <= size <= 1e30:
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
    zero = wf.einsum(a * 0.0, b, over="d_model", matmul_dtype="float8").array
    assert (np.asarray(zero) == 0).all() and not np.isnan(y).any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_does_not_become_finite(bad):
    a = np.ones((8, 16), "float32")
    a[3, 5] = bad
    y = wf.einsum(wf.tensor(a, "batch d_model"), numbers("d_model d_kv", 1), over="d_model", matmul_dtype="float8")
    assert not np.isfinite(np.asarray(y.array)[3]).any()


# On a mesh.

MESH = "x=2,y=2"
A, B = CASES["projection"][:2]
LAYOUTS = {  # and the axes that the operands, and that the result, are split over
    "batch:x,heads:y": ("x+y", "x+y"),
    "batch:x,d_model:y": ("x+y", "x"),
    "batch:x+y,params.d_model:x+y": ("x+y", "x+y"),
    "length:x,d_kv:y": ("x+y", "x+y"),
    "d_model:x+y": ("x+y", ""),
}


def weighed(params, a):
    y = wf.einsum(a, params["w"], over="d_model", matmul_dtype="float8")
    return wf.sum(wf.square(wf.sin(y)), over=y.dims)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_does_not_change_a_product_nor_its_gradients(layout):
    a, w = numbers(A, 0), {"w": wf.parameter(numbers(B, 1))}
    plain = wf.value_and_grad(weighed, argnums=(0, 1))
    value, gradients = jax.jit(plain)(w, a)
    found, own = wf.spmd(plain, mesh=MESH, layout=layout)(w, a)
    assert float(wf.get(found)) == pytest.approx(float(value.array), rel=1e-5)
    for mine, other in zip(jax.tree.leaves(wf.get(own)), jax.tree.leaves(wf.get(gradients)), strict=True):
        apart = np.abs(mine - other) / np.abs(other).max()  # a gradient that rounds the other way: half a step of e5m2
        assert apart.max() < 0.1 and (apart > 1e-5).mean() < 0.02


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scales_are_one_small_all_reduce_forward_and_one_backward(layout):
    a, w = numbers(A, 0), {"w": wf.parameter(numbers(B, 1))}
    program = wf.trace(wf.value_and_grad(weighed), w, a, mesh=MESH, layout=layout)
    rows = [row for row in program.ledger if "float8" in row.reason]
    assert all(row.collective == "all_reduce" and row.exact for row in rows)
    sent = {
        phase: sum(row.bytes * row.count for row in rows if row.phase == phase) for phase in ("forward", "backward")
    }
    operands, result = LAYOUTS[layout]
    assert sent == {"forward": 8, "backward": 4 if result else 0}  # two float32 numbers, then one
    assert {"+".join(row.axes) for row in rows if row.phase == "forward"} == {operands}
    assert {"+".join(row.axes) for row in rows if row.phase == "backward"} == ({result} if result else set())
    assert "because float8 operands split over x" in rows[0].reason


def test_flops_are_those_of_other_products_and_the_program_multiplies_8_bits():
    a, w = numbers(A, 0), {"w": wf.parameter(numbers(B, 1))}
    mesh = {"mesh": MESH, "layout": "batch:x,heads:y"}

    def plain(params, a):
        return wf.sum(wf.square(wf.sin(wf.einsum(a, params["w"], over="d_model"))), over="batch length heads d_kv")

    ours, others = (wf.trace(wf.value_and_grad(fn, argnums=(0, 1)), w, a, **mesh) for fn in (weighed, plain))
    assert ours.flops == others.flops == 3 * 2 * 8 * 4 * 16 * 4 * 8 / 4
    text = (
        jax.jit(jax.grad(lambda a, w: jnp.sum(weighed({"w": w}, a).array)))
        .trace(a, w["w"])
        .lower(lowering_platforms=("cuda",))
    )
    products = [line for line in text.as_text().splitlines() if "dot_general" in line]
    assert len(products) == 2 and any("f8E4M3FN" in line and "f8E5M2" in line for line in products)


def test_the_plan_has_the_dtype_of_the_products():
    a, w = numbers(A, 0), {"w": wf.parameter(numbers(B, 1))}
    program = wf.trace(wf.value_and_grad(weighed), w, a, mesh=MESH, layout="batch:x,heads:y")
    plan = wf.Plan(program, "h100")
    assert plan.peak_flops == plan.hardware.flops_of("float8_e4m3fn")


def test_what_cannot_be_is_told():
    a, w, ids = (
        numbers("batch d_model", 0),
        numbers("d_model d_kv", 1),
        wf.tensor(np.ones((16, 8), int), "d_model d_kv"),
    )
    for call, error, fact in (
        (lambda: wf.einsum(a, w, over="d_model", matmul_dtype="float16"), TensorError, "matmul_dtype='float16'"),
        (lambda: wf.einsum(a, w, w, over="d_model", matmul_dtype="float8"), TensorError, "of two tensors of floats"),
        (lambda: wf.einsum(a, ids, over="d_model", matmul_dtype="float8"), TensorError, "of two tensors of floats"),
        (lambda: wf.einsum(a, w, over="batch d_model", matmul_dtype="float8"), DimError, "only one has `batch`"),
        (lambda: wf.einsum(a, w, over="d_model", matmul_dtype="float8", overlap=True), TensorError, "overlap=True"),
        (lambda: wf.nn.FeedForward(DIMS["d_model"], DIMS["d_kv"], matmul_dtype="int8"), TensorError, "'int8'"),
    ):
        with pytest.raises(error) as caught:
            call()
        assert fact in caught.value.fact and caught.value.fix
