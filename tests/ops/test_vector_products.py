"""A matrix by one vector of 16-bit floats: summed in float32 and rounded once, as a product of matrices is."""

import numpy as np
import pytest

import weft as wf


@pytest.mark.parametrize("layout", ["", "d_model:x", "d_ff:x"])
def test_products_with_one_row_are_rounded_once(layout):
    draw = np.random.default_rng(0)
    x, w = draw.normal(size=(1, 512)), draw.normal(size=(512, 32))
    x, w = wf.tensor(x.astype("float32"), "batch d_model"), wf.tensor(w.astype("float32"), "d_model d_ff")
    x, w = wf.cast(x, "bfloat16"), wf.cast(w, "bfloat16")
    found = wf.spmd(lambda x, w: wf.einsum(x, w, over="d_model"), mesh="x=4", layout=layout)(x, w)
    exact = np.asarray(x, "float64") @ np.asarray(w, "float64")
    terms = abs(np.asarray(x, "float64")) @ abs(np.asarray(w, "float64"))
    # Half a place of bfloat16 (8 bits) for the result, and for each of 4 parts where their sum is sent so; the sums
    # themselves in float32.
    parts = 5 if layout == "d_model:x" else 1
    largest = np.maximum(abs(exact), terms / 4 if parts > 1 else 0)
    assert found.dtype == wf.cast(x, "bfloat16").dtype
    np.testing.assert_array_less(
        abs(np.asarray(found, "float64") - exact), parts * 2.0**-8 * largest + 512 * 2.0**-24 * terms
    )
