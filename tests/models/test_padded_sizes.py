"""Heads and experts padded by configuration: sizes that do not divide lie over processors, and no number changes."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

import weft as wf
from tests.errors.raised import error_of
from tests.nn.stand_in import StandIn
from weft import decode, interop, models, nn
from weft.kernels import cudnn
from weft.kernels.choice import AttentionCase, Chip, choose
from weft.nn.fused import attend_fused, case_of

HEADS, EXPERTS = dict(heads=6, d_model=24, layers=2), dict(experts=6, layers=2)
GQA = dict(heads=3, group=2, d_model=24, layers=2, positions="rotary", bias="q k v o", softcap=20.0, remat=True)
CASES = {
    "heads": ("tiny-lm", HEADS, "batch:rows,heads:cols,stream:cols"),
    "groups of queries": ("tiny-lm", GQA, "batch:rows,heads:cols,params.d_model:rows"),
    "a ring": ("tiny-lm", GQA, "length:rows,memory_length:rows,heads:cols"),
    "stages": ("tiny-lm", HEADS | dict(stages=2, pipeline_microbatches=2), "stage:rows,heads:cols"),
    "an encoder's heads": ("tiny-mt", HEADS | dict(positions="relative", tied=True), "batch:rows,heads:cols"),
    "experts": ("tiny-moe", EXPERTS | dict(router_z_loss=1e-2, jitter=0.1), "batch:rows+cols,experts:cols"),
    "two experts a token": ("tiny-moe", EXPERTS | dict(gating="top2"), "batch:rows,experts:cols"),
    "dropless experts": ("tiny-moe", EXPERTS | dict(gating="dropless", top_k=2), "batch:rows,experts:cols"),
    "experts that choose": ("tiny-moe", EXPERTS | dict(gating="choice"), "batch:rows,experts:cols,heads:cols"),
}
QUICK = ("groups of queries",)


def configs(case):
    """The configuration without padding, and with it."""
    preset, sizes, _ = CASES[case]
    whole = models.preset(preset, **sizes)
    return whole, dataclasses.replace(whole, heads_multiple=4, experts_multiple=4 if whole.experts else 1)


def unpadded(tree, like):
    """The arrays of a tree without the places that those of another lack."""
    leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
    return [np.asarray(x)[tuple(slice(size) for size in np.shape(y))] for x, y in leaves]


def trained(config, *where, steps=2):
    """The losses, the gradient (what momentum holds after one step) and the weights after two, dropout on."""
    random = np.random.default_rng(0)
    batch = {name: wf.tensor(random.integers(0, 60, (8, 16)), "batch length") for name in ("inputs", "targets")}
    step = wf.train_step(lambda m, batch, key: m.loss(batch, key), optax.sgd(0.05, momentum=0.9))
    step = wf.spmd(step, mesh=where[0], layout=where[1]) if where else step
    state, losses, gradients = step.init(models.init(config, jax.random.key(1), *where)), [], None
    for turn in range(steps):
        state, told = step(state, batch, jax.random.fold_in(jax.random.key(7), turn))
        losses.append(float(told["loss"]))
        gradients = gradients or wf.get(state.optimizer)
    return losses, gradients, wf.get(state.params)


def check_close(found, wanted):
    for a, b in zip(unpadded(found, wanted), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(np.abs(b).max(), 1e-30))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES])
def test_losses_gradients_and_weights_are_those_of_the_model_without_padding(case):
    plain, padded = configs(case)
    found, wanted = trained(padded, "rows=2,cols=4", CASES[case][2]), trained(plain)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
    check_close(found[1], wanted[1])
    check_close(found[2], wanted[2])


@pytest.mark.parametrize("case", [pytest.param("groups of queries", marks=pytest.mark.slow), "experts"])
def test_padding_counts_as_no_parameter_and_first_values_are_the_same(case):
    plain, padded = configs(case)
    assert padded.param_count == plain.param_count
    model, wanted = (models.init(config, jax.random.key(0)) for config in (padded, plain))
    grown = [x.dims for x, y in zip(tensors(model), tensors(wanted), strict=True) if x.dims != y.dims]
    assert grown and all(dim.size % 4 == 0 for dims in grown for dim in dims if dim.is_padded)
    for x, y in zip(tensors(wf.get(model)), tensors(wf.get(wanted)), strict=True):
        np.testing.assert_array_equal(x, y)


def tensors(tree):
    return jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, wf.Tensor))


@pytest.mark.parametrize("gating", ["switch", pytest.param("top2", marks=pytest.mark.slow), "choice"])
def test_an_expert_that_is_padding_changes_neither_the_result_nor_the_report(gating):
    width, d_ff, experts = wf.dims(d_model=8, d_ff=8, experts=3)
    h = wf.random.normal(jax.random.key(1), [*wf.dims(batch=4, length=16), width])
    made = [
        jax.jit(nn.MixtureOfExperts(width, d_ff, dim, gating=gating, key=jax.random.key(0)).__call__)(h)
        for dim in (experts.padded_to(4), experts)
    ]
    for x, y in zip(jax.tree.leaves(made[0]), jax.tree.leaves(made[1]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_a_size_that_does_not_divide_names_the_field_that_pads_it():
    for sizes, layout, cure in (
        (HEADS, "heads:x", "`heads_multiple=4`"),
        (EXPERTS, "batch:x,experts:x", "`experts_multiple=4`"),
        (dict(vocab=61, vocab_multiple=1), "vocab:x", "`vocab_multiple=4`"),
    ):
        config = models.preset("tiny-moe" if "experts" in sizes else "tiny-lm", **sizes)
        error = error_of(lambda c=config, rules=layout: models.init(c, jax.random.key(0), "x=4", rules), wf.LayoutError)
        assert f"in a model's configuration {cure}" in error.fix


def test_the_fused_kernel_takes_padded_heads_and_no_padded_positions():
    batch, length, heads, d_kv = wf.dims(batch=2, length=8, heads=3, d_kv=16)

    def fuses(*dims):
        q = wf.zeros(dims, dtype="bfloat16")
        how = dict(mask=nn.Mask(), bias=None, softcap=None, dropout=0.0)
        return choose(case_of(q, q.rename(length="memory_length"), dims[2:], **how), Chip("gpu")).is_fused

    assert fuses(batch, length, heads, d_kv)
    assert fuses(batch.padded_to(4), length, heads.padded_to(4), d_kv)
    assert not fuses(batch, wf.Dim("length", 7).padded_to(8), heads, d_kv)
    assert not fuses(batch, length, heads, wf.Dim("d_kv", 15).padded_to(16))


def test_what_stands_in_padded_heads_reaches_no_other_through_the_kernel(monkeypatch):
    monkeypatch.setattr(cudnn, "attention_kernel", StandIn)
    dims = wf.dims(batch=2, length=4) + (wf.Dim("heads", 4, valid=3), wf.Dim("d_kv", 8))
    clean = [np.random.default_rng(i).normal(size=(2, 4, 4, 8)).astype("float32") for i in range(3)]
    soiled = [np.where(np.arange(4)[:, None] < 3, array, np.nan).astype("float32") for array in clean]

    def loss(q, k, v):
        k, v = (x.rename(length="memory_length") for x in (k, v))
        case, mask = AttentionCase("float32", 4, 4, 8, causal=True), nn.Mask(causal=True)
        y = attend_fused("cudnn", case, q, k, v, mask=mask, bias=None, scale=0.3)
        return wf.sum(wf.sin(y), over=y.dims)

    run = wf.spmd(wf.value_and_grad(loss, argnums=(0, 1, 2)), mesh="x=4", layout="heads:x")
    found, wanted = (run(*(wf.tensor(array, dims) for array in arrays)) for arrays in (soiled, clean))
    for x, y in zip(tensors(found), tensors(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
        assert np.isfinite(x.array).all()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param("llama-1b", dict(heads=3, group=2, heads_multiple=4), marks=pytest.mark.slow),
        pytest.param("gpt2", dict(heads=3, d_model=12, heads_multiple=2), marks=pytest.mark.slow),
        ("t5-small", dict(heads=3, heads_multiple=4, experts=3, every=2, experts_multiple=4)),
    ],
)
def test_padding_is_not_exported_and_is_there_again_when_imported(name, sizes, tmp_path):
    fixed = dict(layers=2, d_model=8, d_kv=4, d_ff=12, vocab=30, length=16, capacity=1.5, dropout=0.1, dtype="float32")
    multiples = {field: size for field, size in sizes.items() if field.endswith("_multiple")}
    model = models.init(models.preset(name, **(fixed | sizes)), jax.random.key(0))
    plain = models.init(models.preset(name, **(fixed | sizes | dict.fromkeys(multiples, 1))), jax.random.key(0))
    interop.save(model, tmp_path / "padded")
    interop.save(plain, tmp_path / "plain")
    files = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("padded", "plain")]
    assert files[0] == files[1]
    again = interop.load(tmp_path / "plain", "x=2", "heads:x", **multiples)
    for x, y in zip(tensors(again), tensors(model), strict=True):
        assert x.dims == y.dims
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["groups of queries", "two experts a token"])
def test_padding_changes_no_token_that_is_decoded(case):
    plain, padded = configs(case)
    prompts = np.random.default_rng(0).integers(0, 60, (2, 5))
    made = [
        decode.generate(models.init(config, jax.random.key(1), *where), prompts, max_new_tokens=6)
        for config, where in ((plain, ()), (padded, ("rows=2,cols=4", "batch:rows,heads:cols")))
    ]
    np.testing.assert_array_equal(np.asarray(made[0].tokens), np.asarray(made[1].tokens))
