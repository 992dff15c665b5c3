"""Layers whose dims are called otherwise compute what they compute under the usual names."""

import jax
import numpy as np
import pytest

import weft as wf
from weft import nn

B, T, D, H, G, K, F, E = wf.dims(batch=4, length=6, d_model=8, heads=2, group=2, d_kv=4, d_ff=16, experts=4)
OWN = {"d_model": "width", "heads": "head", "group": "share", "d_kv": "depth", "d_ff": "hidden", "experts": "expert"}
key = jax.random.key(0)
x = wf.tensor(np.random.default_rng(0).normal(size=(4, 6, 8)).astype("float32"), [B, T, D])


def own(dim: wf.Dim) -> wf.Dim:
    return dim.renamed(OWN[dim.name])


def array(y: wf.Tensor) -> np.ndarray:
    return np.asarray(y.array)


ATTENTION = [{"rotary": 1e4, "bias": "qkvo"}, {"talking": True}]


@pytest.mark.parametrize("how", ATTENTION, ids=str)
def test_attention_takes_dims_of_any_name(how):
    usual = nn.Attention(D, H, K, group=G, key=key, **how)
    named = nn.Attention(own(D), own(H), own(K), group=own(G), key=key, **how)
    run = lambda n, x: n(x, mask=nn.Mask(causal=True))  # noqa: E731
    want, given = jax.jit(run)(usual, x), x.rename(d_model="width")
    got = jax.jit(run)(named, given)
    assert got.dims.names == ("batch", "length", "width")
    np.testing.assert_array_equal(array(got), array(want))
    split = wf.spmd(run, mesh="x=2,y=2", layout="batch:x,head:y")
    np.testing.assert_allclose(array(split(named, given)), array(want), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("gating", "layout"), [("switch", "rows:x"), ("switch", "rows:x,expert:x"), ("top2", "expert:x,hidden:y")]
)
def test_experts_need_no_dim_called_batch(gating, layout):
    usual = nn.MixtureOfExperts(D, F, E, gating=gating, key=key)
    named = nn.MixtureOfExperts(own(D), own(F), own(E), gating=gating, key=key)
    want, told = jax.jit(lambda n: n(x))(usual)
    given = x.rename(batch="rows", d_model="width")
    got, same = wf.spmd(lambda n, x: n(x), mesh="x=2,y=2", layout=layout)(named, given)
    assert got.dims.names == ("rows", "length", "width")
    np.testing.assert_allclose(array(got), array(want), rtol=0, atol=1e-5)
    assert {name: float(v) for name, v in same.items()} == pytest.approx({n: float(v) for n, v in told.items()})


@pytest.mark.parametrize("gating", ["switch", "choice"])
def test_experts_take_one_sequence_alone(gating):
    layer = nn.MixtureOfExperts(D, F, E, gating=gating, key=key)
    run = jax.jit(lambda m, x: m(x)[0])
    want, got = run(layer, x), run(layer, x["batch", 1])
    np.testing.assert_allclose(array(got), array(want)[1], rtol=0, atol=1e-5)


def test_tokens_over_the_axis_of_the_experts_go_by_one_all_to_all_each_way():
    named = nn.MixtureOfExperts(D, F, E, key=key)
    given = x.rename(batch="rows")
    program = wf.trace(lambda n, x: n(x)[0], named, given, mesh="x=4", layout="rows:x,experts:x")
    assert [row.collective for row in program.ledger] == ["all_to_all", "all_to_all"]
