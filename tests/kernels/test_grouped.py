"""Grouped products: as each row's own product, in value and gradients; and experts by them as by ragged products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.kernels import grouped
from weft.kernels.choice import Chip
from weft.nn import dropless

TINY = grouped.Tiles(rows=16, columns=32, inner=16)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
interpreted = functools.partial(grouped.grouped_product, tiles=TINY, interpret=True)


def draw(*shape, seed):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("groups", [slow([3]), [0, 1, 2, 4]], ids=str)
def test_each_row_has_the_product_with_its_own_matrix(groups):
    """Groups may be empty, and the rows of a number beyond the last have none."""
    tokens, w, out = draw(24, 16, seed=0), draw(4, 16, 32, seed=1), draw(48, 32, seed=2)
    group = jnp.asarray(np.random.default_rng(0).choice(groups, 48))

    def placed(tokens, w):
        places = grouped.place_rows(group, 4, TINY.rows)
        return grouped.collect(interpreted(grouped.spread(tokens, places, 2), w, places), places)

    def one_by_one(tokens, w):
        made = jnp.einsum("rd,rdf->rf", jnp.repeat(tokens, 2, 0), w[jnp.minimum(group, 3)])
        return jnp.where((group < 4)[:, None], made, 0)

    (found, back), (known, known_back) = jax.vjp(placed, tokens, w), jax.vjp(one_by_one, tokens, w)
    for a, b in zip((found, *back(out)), (known, *known_back(out)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 17])
def test_every_row_has_a_place_of_its_own_in_a_block_of_its_group(rows):
    random = np.random.default_rng(rows)
    for _ in range(2):
        group = random.integers(0, 4, rows)
        row, place, of_block, first = grouped.place_rows(jnp.asarray(group), 3, 8)
        here = group < 3
        assert (np.asarray(row)[place[here]] == np.flatnonzero(here)).all()
        assert (np.asarray(of_block)[place[here] // 8] == group[here]).all()
        assert (np.asarray(row) < rows).sum() == here.sum() and (place[~here] == len(row)).all()
        assert np.asarray(first)[-1] <= len(of_block)


LAYOUTS = ("", "batch:x", "experts:x", "d_ff:x", "batch:x,d_ff:y")


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["batch:x,experts:x", *map(slow, LAYOUTS)])
def test_experts_in_blocks_are_as_those_that_are_sorted(layout, monkeypatch):
    dims = wf.dims(d_model=16, d_ff=64, experts=4)
    layer = nn.MixtureOfExperts(*dims, gating="dropless", gated=True, activation="silu", key=jax.random.key(0))
    h = wf.parameter(draw(4, 8, 16, seed=3), "batch length d_model")

    def loss(both):
        layer, h = both
        return wf.sum(wf.square(layer(h)[0]), over="batch length d_model")

    known = wf.value_and_grad(loss)((layer, h))
    run = wf.spmd(wf.value_and_grad(loss), mesh="x=2,y=2", layout=layout, strict=False)
    flops = wf.trace(run, (layer, h)).flops
    monkeypatch.setattr(dropless, "chip_of", lambda x: Chip("gpu"))
    monkeypatch.setattr(grouped, "can_do", lambda *given: None)
    monkeypatch.setattr(grouped, "grouped_product", interpreted)
    monkeypatch.setattr(grouped, "place_rows", functools.partial(grouped.place_rows, block=TINY.rows))
    run = wf.spmd(wf.value_and_grad(loss), mesh="x=2,y=2", layout=layout, strict=False)
    # All but the sum by shares, three products of few numbers where experts are sorted.
    assert wf.trace(run, (layer, h)).flops == pytest.approx(flops, rel=0.012)
    found = run((layer, h))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(known), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4 * np.abs(b).max())


def test_the_kernel_says_what_it_cannot_do():
    shape = jax.ShapeDtypeStruct
    rows, weights = shape((128, 48), "bfloat16"), shape((4, 48, 64), "bfloat16")
    assert grouped.can_do(rows, weights) is None
    assert grouped.can_do(shape((128, 48), "float32"), weights) == (
        "the kernel takes bfloat16 and float16, and rows are float32"
    )
    assert grouped.can_do(rows, shape((4, 48, 20), "bfloat16")) == (
        "the matrices are 48 x 20, and the kernel takes multiples of 16"
    )
