"""Collective matmul: the same numbers and bytes as a gather or a reduce-scatter, in permutes beside products."""

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of

B, L, D, F = wf.dims(batch=8, length=8, d_model=16, d_ff=16)
S = wf.Dim("stream", 8)
_random = np.random.default_rng(5)


def floats(*dims):
    return _random.normal(size=[dim.size for dim in dims]).astype("float32") / 4


INPUTS = wf.tensor(floats(B, S, D), [B, S, D]), wf.parameter(floats(D, F), [D, F]), wf.parameter(floats(F, D), [F, D])


def loss(overlap):
    def net(x, w, v):
        h = wf.tanh(wf.einsum(x, w, over=D, rename={"stream": L}, overlap=overlap))
        y = wf.einsum(h, v, over=F, rename={"length": S}, overlap=overlap)
        return wf.sum(wf.sin(y), over=[B, S, D])

    return wf.value_and_grad(net, argnums=(0, 1, 2))


def wire_bytes(program):
    return sum(row.wire_bytes * row.count for row in program.ledger)


LAYOUTS = [
    ("x=4", "stream:x,d_ff:x", "both as rings"),
    ("a=2,b=4", "batch:a,stream:b,d_ff:b", "both, with data split too"),
    ("a=2,b=4", "stream:a+b,d_ff:a+b", "both, over two axes"),
    ("x=8", "batch:x,params.d_model:x", "a parameter stored split where it is summed"),
    ("x=8", "batch:x,params.d_ff:x", "a parameter stored split where it is kept"),
    ("a=2,b=4", "batch:a,params.d_model:a,stream:b,d_ff:b", "a stored parameter, the rest as collectives"),
]


@pytest.mark.quick(
    "x=4-stream:x,d_ff:x-both as rings",
    "a=2,b=4-batch:a,stream:b,d_ff:b-both, with data split too",
    "a=2,b=4-stream:a+b,d_ff:a+b-both, over two axes",
    "a=2,b=4-batch:a,params.d_model:a,stream:b,d_ff:b-a stored parameter, the rest as collectives",
)
@pytest.mark.parametrize(("mesh", "layout", "what"), LAYOUTS)
def test_a_ring_gives_the_same_numbers_and_sends_the_same_bytes(mesh, layout, what):
    expected = jax.tree.leaves(loss(False)(*INPUTS))
    programs = [wf.trace(loss(overlap), *INPUTS, mesh=mesh, layout=layout) for overlap in (False, True)]
    plain, ring = programs
    assert wire_bytes(ring) == wire_bytes(plain), what
    assert "permute" in {row.collective for row in ring.ledger}
    assert all(row.reason for row in ring.ledger)
    for found, true in zip(
        jax.tree.leaves(wf.spmd(loss(True), mesh=wf.Mesh(mesh), layout=layout)(*INPUTS)), expected, strict=True
    ):
        np.testing.assert_allclose(found, true, rtol=1e-4, atol=1e-5, err_msg=what)


def test_a_ring_is_one_permute_less_than_there_are_processors():
    def gather(x, w):
        return wf.einsum(x, w, over=D, rename={"stream": L}, overlap=True)

    rows = wf.trace(gather, *INPUTS[:2], mesh="x=4", layout="stream:x,d_ff:x").ledger
    assert [(row.collective, row.bytes, row.count) for row in rows] == [("permute", 8 * 2 * 16 * 4, 1)] * 3


def test_without_anything_to_gather_or_scatter_overlap_changes_nothing():
    x, w, _ = INPUTS
    for layout in ("", "batch:x", "d_ff:x"):
        program = wf.trace(lambda x, w: wf.einsum(x, w, over=D, overlap=True), x, w, mesh="x=4", layout=layout)
        assert list(program.ledger) == []


def test_a_dim_renamed_on_the_way_out_is_gathered_first_where_the_operands_could_not_meet():
    x, w, _ = INPUTS
    program = wf.trace(
        lambda x, w: wf.einsum(x, w, over=D, rename={"stream": L}), x, w, mesh="x=4", layout="stream:x,d_ff:x"
    )
    (row,) = program.ledger
    assert row.collective == "all_gather" and row.reason == "because stream is split over x and length is whole"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_new_name_that_is_summed_too_is_not_taken_for_it(overlap):
    x, y = wf.tensor(floats(L, D), [L, D]), wf.tensor(floats(S), [S])

    def net(x, y):  # the sum goes over stream, and length leaves under its name
        return wf.einsum(x, y, y, out=[L], rename={"length": S}, overlap=overlap)

    np.testing.assert_allclose(net(x, y).array, x.array.sum(1) * (y.array**2).sum(), rtol=1e-5)
    error = error_of(lambda: wf.spmd(net, mesh="x=4", layout="stream:x,length:x")(x, y), wf.LayoutError)
    assert "`length` and `stream`" in error.fact and "both split over axis `x`" in error.fact


def test_a_ring_of_pieces_cannot_sum_in_another_dtype():
    x, w, _ = INPUTS

    def net(w, x):
        return wf.sum(wf.einsum(x, w, over=D, overlap=True), over=[B, S, F])

    step = wf.spmd(wf.grad(net, sum_dtype="bfloat16"), mesh="x=8", layout="batch:x,params.d_model:x")
    error = error_of(lambda: step(w, x), wf.TensorError)
    assert "summed in bfloat16" in error.fact and "overlap=True" in error.fix
