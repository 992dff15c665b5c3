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
    "how", [{"causal": True, "window": 3}, pytest.param({"segments": True}, marks=pytest.mark.slow)], ids=str
)
def test_attention_goes_over_positions_of_any_name(how):
    segments = wf.tensor(np.sort(np.random.default_rng(1).integers(0, 3, (4, 6))), [B, T])
    layer = nn.Attention(D, H, K, rotary=1e4, key=key)

    def run(layer, x, segments, over):
        if how.get("segments"):
            memory = segments.rename(**{over: f"memory_{over}"})
            return layer(x, mask=nn.Mask(segments=segments, memory_segments=memory), over=over)
        return layer(x, mask=nn.Mask(**how), over=over)

    want = jax.jit(lambda *given: run(*given, "length"))(layer, x, segments)
    patches = lambda x: x.rename(length="patch")  # noqa: E731
    named = lambda *given: run(*given, "patch")  # noqa: E731
    for program in (jax.jit(named), wf.spmd(named, mesh="x=2,y=2", layout="patch:x,heads:y")):
        got = program(layer, patches(x), patches(segments))
        assert got.dims.names == ("batch", "patch", "d_model")
        np.testing.assert_allclose(array(got), array(want), rtol=0, atol=1e-5)


def test_the_summed_loss_takes_classes_of_any_name():
    table = nn.Embedding(wf.Dim("vocab", 5), D, key=key)
    named = nn.Embedding(wf.Dim("classes", 5), D, key=key)
    targets = wf.tensor(np.random.default_rng(2).integers(0, 5, (4, 6)).astype("int32"), [B, T])
    want = nn.summed_cross_entropy(table.logits, x, targets)
    got = nn.summed_cross_entropy(named.logits, x, targets, vocab="classes", chunks=2)
    assert float(got["loss"]) == pytest.approx(float(want["loss"]), rel=1e-5)


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


@pytest.mark.parametrize("gating", ["choice", pytest.param("top2", marks=pytest.mark.slow)])
def test_experts_take_tokens_along_a_dim_of_any_name(gating):
    layer = nn.MixtureOfExperts(D, F, E, gating=gating, key=key)
    want, _ = jax.jit(lambda m, x: m(x))(layer, x)
    named = lambda m, x: m(x, over="patch")[0]  # noqa: E731
    got = wf.spmd(named, mesh="x=2,y=2", layout="batch:x,experts:y")(layer, x.rename(length="patch"))
    assert got.dims.names == ("batch", "patch", "d_model")
    np.testing.assert_allclose(array(got), array(want), rtol=0, atol=1e-5)


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
