"""A rename under any two placements: values stay at their places, and what some dim wants is never gathered."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf

A, B, C = wf.dims(a=8, b=8, c=8)
NEW = {"a": "a_new", "b": "b_new", "c": "c_new"}
MESHES = ("x=4,y=2", "x=2,y=2,z=2")
EXPERTS, ROUTER = wf.Dim("experts", 8), wf.Dim("router", 8)
BATCH, WIDTH = wf.dims(batch=8, d_model=4)


@st.composite
def placements(draw, mesh):
    """Rules for three dims: each axis of the mesh on one of them or none, in any order."""
    rules = {}
    for axis in draw(st.permutations([part.split("=")[0] for part in mesh.split(",")])):
        dim = draw(st.sampled_from(["a", "b", "c", None]))
        if dim is not None:
            rules.setdefault(dim, []).append(axis)
    return rules


@st.composite
def moves(draw):
    mesh = draw(st.sampled_from(MESHES))
    before, after = draw(placements(mesh)), draw(placements(mesh))
    return mesh, before, after


def renamed(x):
    return x.rename(**NEW)


def weighted(x, w):
    return wf.sum(renamed(x) * w, over=w.dims)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(moves())
def test_values_and_gradients_stay_at_their_places(case):
    mesh, before, after = case
    rules = {dim: "+".join(axes) for dim, axes in before.items()} | {
        NEW[dim]: "+".join(axes) for dim, axes in after.items()
    }
    values = np.arange(512.0, dtype="float32").reshape(8, 8, 8)
    x, w = (
        wf.tensor(values, [A, B, C]),
        wf.tensor(values[::-1].copy(), [dim.renamed(NEW[dim.name]) for dim in (A, B, C)]),
    )
    both = wf.spmd(lambda x, w: (renamed(x), wf.grad(weighted)(x, w)), mesh=mesh, layout=rules)
    after_rename, gradient = both(x, w)
    np.testing.assert_array_equal(after_rename.array, values)
    np.testing.assert_array_equal(gradient.array, values[::-1])
    wanted = {axis for axes in after.values() for axis in axes}
    for row in wf.trace(renamed, x, mesh=mesh, layout=rules).ledger:
        assert row.collective != "all_gather" or not wanted & set(row.axes)


def sent(layout, mesh="x=4,y=2"):
    z = wf.tensor(jax.ShapeDtypeStruct((8, 8, 4), "float32"), [BATCH, ROUTER, WIDTH])
    fn = lambda z: z.rename(batch=wf.Dim("expert_batch", 8, "batch"), router=EXPERTS)  # noqa: E731
    return [(row.collective, row.axes, row.bytes) for row in wf.trace(fn, z, mesh=mesh, layout=layout).ledger]


SLICE = 8 * 8 * 4 * 4 // 8  # what one of eight processors holds


def test_the_inner_axis_goes_to_another_dim_by_one_all_to_all():
    assert sent("batch:x+y,experts:y") == [("all_to_all", ("y",), SLICE)]


def test_the_outer_axis_goes_by_one_all_to_all_after_a_permute():
    assert sent("batch:x+y,experts:x") == [("permute", ("x", "y"), SLICE), ("all_to_all", ("x",), SLICE)]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("x+y", "y+x", [("permute", ("x", "y"), SLICE)]),
        ("x+y", "y", [("permute", ("x", "y"), SLICE), ("all_gather", ("x",), 4 * SLICE)]),
        ("x+y", "x", [("all_gather", ("y",), 2 * SLICE)]),
        ("y", "x+y", [("permute", ("x", "y"), SLICE)]),
        ("x", "x+y", []),
    ],
)
def test_a_dim_takes_its_axes_in_another_order_by_one_permute(before, after, wanted):
    x = wf.tensor(jax.ShapeDtypeStruct((8, 8, 4), "float32"), [BATCH, ROUTER, WIDTH])
    rows = wf.trace(lambda x: x.rename(batch="rows"), x, mesh="x=4,y=2", layout=f"batch:{before},rows:{after}").ledger
    assert [(row.collective, row.axes, row.bytes) for row in rows] == wanted


def test_the_program_says_why():
    z = wf.tensor(jax.ShapeDtypeStruct((8, 8, 4), "float32"), [BATCH, ROUTER, WIDTH])
    fn = lambda z: z.rename(batch=wf.Dim("expert_batch", 8, "batch"), router=EXPERTS)  # noqa: E731
    permute, exchange = wf.trace(fn, z, mesh="x=4,y=2", layout="batch:x+y,experts:x").ledger
    assert permute.reason == "because batch is split over x+y and expert_batch lies over y"
    assert exchange.reason == "because x goes from batch to router (now experts)"
