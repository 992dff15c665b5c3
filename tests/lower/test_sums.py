"""Sums that travel in float8: bytes by a closed formula, errors that follow from the format, nothing lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.lower.on_all import in_steps, on_all
from weft.lower import sums

# Of each format: bits of mantissa, the least power of two that it has, the power that all numbers are scaled to.
FORMATS = {"float8_e4m3fn": (3, -9, 8), "float8_e5m2": (2, -16, 15)}
MESHES = {"x=8": ("x",), "hosts=2 | x=4": ("x", "hosts"), "pods=2 | hosts=2 | x=2": ("pods", "hosts", "x")}


def largest_around(x):
    """For each number the largest of its block: pieces for 8 are cut into blocks of 256, as even as can be."""
    if x.ndim > 1:
        return np.full_like(x, np.max(np.abs(x), initial=0))
    each = -(-len(x) // 8)
    length = -(-each // -(-each // 256))
    whole = np.pad(x, (0, 8 * each - len(x))).reshape(8, each)
    blocks = np.pad(whole, ((0, 0), (0, -each % length))).reshape(8, -1, length)
    largest = np.broadcast_to(np.abs(blocks).max(-1, keepdims=True), blocks.shape)
    return largest.reshape(8, -1)[:, :each].reshape(-1)[: len(x)]


def rounding(x, largest, dtype):
    """By how much one rounding to a format may move numbers, if so large a one stands in their block."""
    bits, least, most = FORMATS[dtype]
    # The largest is at least half of 2**most times the scale; half the least number is the rest.
    return np.abs(x) * 2.0 ** -(bits + 1) + largest * 2.0 ** (least - 1 - (most - 1))


def bound_of_sum(arrays, dtype, *, above, is_gathered):
    """How far the sum of arrays may be off: each is rounded once, their sums on each level above, and at the end."""
    sizes = sum(np.abs(x) for x in arrays)
    once = sum(rounding(x, largest_around(x), dtype) for x in arrays)
    for _ in range(above + is_gathered):
        once = once + rounding(sizes + once, largest_around(sizes + once), dtype)
    return once + sizes * 16 * np.finfo("float32").eps


def gradients(count, seed=0):
    """Numbers over twenty powers of ten, with zeros, a block of nothing but zeros, and one tiny block."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(8, count)) * 10.0 ** rng.uniform(-14, 6, size=(8, count))
    found[:, ::7] = 0
    found[:, : count // 4] *= rng.uniform(size=(8, 1)) > 0.5
    found[3] *= 1e-30
    return found.astype("float32")


@pytest.mark.quick("x=8-float8_e5m2", "x=8-float8_e4m3fn", "hosts=2 | x=4-float8_e4m3fn")
@pytest.mark.parametrize(("mesh", "dtype"), [("x=8", "float8_e5m2"), *((mesh, "float8_e4m3fn") for mesh in MESHES)])
def test_a_sum_is_as_near_as_the_format_allows(mesh, dtype):
    axes, above = MESHES[mesh], len(wf.Mesh(mesh).levels) - 1
    arrays = {f"{n}": gradients(n, n) for n in (7, 40, 1000, 2056)}
    flat = {name: array[:, :1000].reshape(8, 5, 8, -1) for name, array in arrays.items() if array.shape[1] >= 1000}

    def send(x, y):
        return (
            {name: sums.all_reduce(a, axes, dtype) for name, a in x.items()},
            {name: sums.reduce_scatter(a, axes, 1, dtype) for name, a in y.items()},
        )

    with in_steps():
        whole, slices = jax.tree.map(np.asarray, on_all(mesh, send, arrays, flat))
    for name, array in arrays.items():
        bound = bound_of_sum(array, dtype, above=above, is_gathered=True)
        assert (np.abs(whole[name] - array.sum(0, dtype="float64")) <= bound).all()
        assert (whole[name] == whole[name][0]).all()  # on every processor the very same
    order = np.arange(8).reshape([wf.Mesh(mesh).axes[axis] for axis in wf.Mesh(mesh).axes])
    order = order.transpose([list(wf.Mesh(mesh).axes).index(axis) for axis in axes]).reshape(-1)
    for name, array in flat.items():
        found = np.concatenate([slices[name][i] for i in order], axis=1)
        bound = bound_of_sum(array, dtype, above=above, is_gathered=False)
        assert (np.abs(found - array.sum(0, dtype="float64")) <= bound).all()


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_not_finite_stays_so_and_spoils_nothing_else(dtype):
    array = gradients(1000)
    array[2, 5], array[3, 600], array[4, 999] = np.inf, np.nan, -np.inf
    found = np.asarray(on_all("x=8", lambda x: sums.all_reduce(x, ("x",), dtype), array))
    is_finite = np.isfinite(array).all(0)
    np.testing.assert_array_equal(np.isfinite(found), np.broadcast_to(is_finite, found.shape))
    zeros = (array == 0).all(0)
    assert zeros.any() and (found[:, zeros] == 0).all()
    finite = np.where(np.isfinite(array), array, 0)
    bound = bound_of_sum(finite, dtype, above=0, is_gathered=True)
    assert (np.abs(found - finite.sum(0, dtype="float64")) <= bound)[:, is_finite].all()


def test_numbers_that_the_format_has_are_summed_exactly():
    block = np.repeat(3 * 2.0 ** np.arange(-40, 40, 10), 256).astype("float32")  # on each one a block of each size
    found = on_all("x=8", lambda x: sums.all_reduce(x, ("x",), "float8_e4m3fn"), np.tile(block, (8, 1)))
    np.testing.assert_array_equal(np.asarray(found), np.tile(8 * block, (8, 1)))


B, D, F = wf.dims(batch=16, d_model=64, d_ff=96)


def loss(w, x):
    return wf.sum(wf.tanh(wf.einsum(x, w, over=D)), over=[B, F])


def trace(layout, mesh, dtype="float8_e4m3fn", fn=loss):
    w = wf.parameter(jax.ShapeDtypeStruct((D.size, F.size), jnp.float32), [D, F])
    x = wf.tensor(jax.ShapeDtypeStruct((B.size, D.size), jnp.float32), [B, D])
    return wf.trace(wf.grad(fn, sum_dtype=dtype), w, x, mesh=mesh, layout=layout)


def message(numbers):
    """Bytes of so many numbers: one each, and one for each block of 256, as even as can be."""
    blocks = -(-numbers // 256)
    return blocks * (-(-numbers // blocks) + 1)


def test_a_sum_in_float8_takes_a_quarter_of_the_bytes_and_a_scale_for_each_block():
    n, ways = D.size * F.size, 8
    rows = trace("batch:x", "x=8").ledger.rows
    assert [(row.collective, row.dtype, row.bytes) for row in rows] == [
        ("all_to_all", "float8_e4m3fn", ways * message(n // ways)),
        ("all_gather", "float8_e4m3fn", ways * message(n // ways)),
    ]
    wide = trace("batch:x", "x=8", "float32").ledger.rows
    share = sum(row.wire_bytes for row in rows) / sum(row.wire_bytes for row in wide)
    assert share == message(n // ways) * ways / (4 * n) == pytest.approx(0.25 * (1 + 1 / 256))


def test_a_scattered_gradient_is_sent_once_in_float8():
    n = D.size * F.size
    rows = [row for row in trace("batch:x,params.d_ff:x", "x=8").ledger if row.phase == "backward"]
    assert [(row.collective, row.dtype, row.bytes) for row in rows] == [
        ("all_to_all", "float8_e4m3fn", 8 * message(n // 8))
    ]
    assert "each keeps its slice of the sum" in rows[0].reason


def test_between_hosts_only_what_is_summed_inside_them_is_sent():
    n = D.size * F.size
    rows = trace("batch:hosts+x", "hosts=2 | x=4").ledger.rows
    assert [(row.collective, row.axes, row.bytes) for row in rows] == [
        ("all_to_all", ("x",), 8 * message(n // 8)),
        ("all_to_all", ("hosts",), 2 * message(n // 8)),
        ("all_gather", ("hosts",), 2 * message(n // 8)),
        ("all_gather", ("x",), 8 * message(n // 8)),
    ]


def test_what_would_not_be_fewer_bytes_is_summed_in_float32():
    b = wf.parameter(np.float32(2.0), [])
    x = wf.tensor(jax.ShapeDtypeStruct((B.size,), jnp.float32), [B])
    program = wf.trace(
        wf.grad(lambda b, x: wf.sum(x * b, over=B), sum_dtype="float8_e5m2"), b, x, mesh="x=8", layout="batch:x"
    )
    assert [(row.collective, row.dtype) for row in program.ledger] == [("all_reduce", "float32")]
