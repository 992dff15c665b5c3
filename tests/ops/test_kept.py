"""A turn of a loop keeps little for its backward pass; values and gradients are those of turns written out."""

from typing import Any

import jax
import numpy as np
import pytest

import weft as wf
from weft.graph import visits
from weft.primitives import Role, kind_of

LAYERS, D, F, B = wf.dims(layers=3, d_model=8, d_ff=16, batch=4)
_random = np.random.default_rng(3)


def normal(dims: Any) -> np.ndarray:
    return _random.normal(size=[dim.size for dim in dims]).astype("float32")


WEIGHTS = {
    "scale": wf.parameter(1 + normal([LAYERS, D]) / 8, [LAYERS, D]),
    "w_in": wf.parameter(normal([LAYERS, D, F]) / 4, [LAYERS, D, F]),
    "w_out": wf.parameter(normal([LAYERS, F, D]) / 4, [LAYERS, F, D]),
}
X = wf.tensor(normal([B, D]), [B, D])


def turn(x: wf.Tensor, w: Any) -> tuple[wf.Tensor, None]:
    wide = wf.cast(x, "float32")
    normed = wide * wf.rsqrt(wf.mean(wide * wide, over=D) + 1e-6)
    h = wf.cast(normed * w["scale"], x.dtype)
    hidden = wf.relu(wf.einsum(h, wf.cast(w["w_in"], x.dtype), over=D))
    return x + wf.einsum(hidden, wf.cast(w["w_out"], x.dtype), over=F), None


def in_a_loop(dtype: str) -> Any:
    def loss(weights: Any, x: wf.Tensor) -> wf.Tensor:
        y, _ = wf.scan(turn, wf.cast(x, dtype), weights, over="layers")
        return wf.mean(wf.square(wf.cast(y, "float32")), over=y.dims)

    return loss


def written_out(weights: Any, x: wf.Tensor) -> wf.Tensor:
    for i in range(LAYERS.size):
        x, _ = turn(x, {name: w["layers", i] for name, w in weights.items()})
    return wf.mean(wf.square(x), over=x.dims)


@pytest.mark.parametrize("layout", ["", "batch:x,d_ff:y"])
def test_values_and_gradients_are_those_of_turns_written_out(layout):
    want = wf.get(wf.value_and_grad(written_out)(WEIGHTS, X))
    got = wf.get(wf.spmd(wf.value_and_grad(in_a_loop("float32")), mesh="x=2,y=2", layout=layout)(WEIGHTS, X))
    for mine, due in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(mine, due, rtol=0, atol=1e-6)


def stacked(dtype: str, layout: str) -> list[tuple[str, tuple[int, ...]]]:
    """The dtypes and shapes that the forward loop stacks, on one processor."""
    program = wf.trace(wf.grad(in_a_loop(dtype)), WEIGHTS, X, mesh="x=2,y=2", layout=layout)
    loops = [visit.eqn for visit in visits(program.jaxpr.jaxpr) if kind_of(visit.eqn) is Role.SCAN]
    forward = next(eqn for eqn in loops if not eqn.params["reverse"])
    return sorted((str(v.aval.dtype), v.aval.shape) for v in forward.outvars[forward.params["num_carry"] :])


def test_neither_casts_of_weights_nor_wide_copies_of_activations_are_stacked():
    x, hidden, row = (3, 4, 8), (3, 4, 16), (3, 4)
    kept = stacked("bfloat16", "")
    assert all(shape in (x, hidden, row) for _, shape in kept), kept
    assert {dtype for dtype, shape in kept if shape != row} == {"bfloat16"}
    assert [shape for _, shape in kept].count(hidden) == 1  # relu is made again of what goes into it


def test_a_weight_that_varies_in_the_body_alone_is_not_stacked_again():
    weights = {(3, 8, 16), (3, 16, 8), (3, 8)}
    assert not [shape for _, shape in stacked("float32", "batch:x") if shape in weights]
