"""What families of language models differ in, as one configurable model: the same numbers however layers run."""

import functools

import jax
import numpy as np
import pytest

import weft as wf
from tests.errors.raised import error_of
from weft import decode, models

TINY = dict(layers=2, d_model=16, heads=2, group=2, d_kv=4, d_ff=24, vocab=61, positions="rotary", remat=False)
KINDS = {
    "local and global": dict(layers=5, pattern="local local global", window=5, local_base=100.0, qk_norm="head"),
    "gemma": dict(layers=3, pattern="local global", window=4, norm_place="sandwich", norm_offset=True, softcap=9.0,
                  embedding_scale=True, logits_softcap=5.0, query_scalar=9.0, tied=True, tied_scale=False, gated=True),
    "output norms": dict(norm_place="output", qk_norm="all", gated=True, activation="silu"),
    "parallel": dict(parallel=True, norm="layer", bias="q k v o in out norm", rotary_share=0.5),
    "scores by layer": dict(scale_by_layer=True, gated=True, bias="q k v in gate out"),
    "experts": dict(layers=6, experts=4, every=2, gating="dropless", normalised=False, expert_ff=16, gated=True,
                    pattern="local local global", window=4, balance_loss=0.0),
    "experts and more": dict(layers=5, experts=4, gating="dropless", pattern="local global", window=4, gated=True,
                             scoring="sigmoid", choice_bias=True, routed_scale=2.5, shared_experts=1),
}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 61, (8, 16))
SCRATCH = 1e-5  # float32 sums of at most a few hundred terms, in another order


def config_of(kind, **changes):
    return models.preset("tiny-lm", **TINY | dict(dropout=0.0) | KINDS[kind] | changes)


@functools.cache
def model_of(kind):
    """A model whose every weight counts: norms and biases moved from where they begin."""
    model = models.init(config_of(kind), jax.random.key(3))
    leaves, structure = jax.tree.flatten(model)
    keys = jax.random.split(jax.random.key(4), len(leaves))
    moved = [x + 0.1 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, moved)


def as_configured(kind, **changes):
    """The same weights in a model that is computed otherwise."""
    return jax.tree.unflatten(
        jax.tree.structure(models.shapes(config_of(kind, **changes))), jax.tree.leaves(model_of(kind))
    )


def value_and_gradients(model, mesh=None, layout=None):
    run = wf.value_and_grad(lambda model, tokens: model.loss({"tokens": tokens}))
    run = jax.jit(run) if mesh is None else wf.spmd(run, mesh=mesh, layout=layout)
    value, gradients = run(model, wf.tensor(TOKENS, "batch length"))
    return float(value), [np.asarray(x) for x in jax.tree.leaves(wf.get(gradients))]


@functools.cache
def alone(kind):
    return value_and_gradients(model_of(kind))


def check_same(found, wanted):
    assert found[0] == pytest.approx(wanted[0], rel=SCRATCH)
    for a, b in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=20 * SCRATCH * max(np.abs(b).max(), 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_layers_in_a_loop_are_layers_written_out(kind):
    check_same(value_and_gradients(as_configured(kind, scanned=False)), alone(kind))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [dict(remat=True), dict(unroll=2), dict(loss_chunks=2)], ids=str)
@pytest.mark.parametrize("kind", ["gemma", "experts", "experts and more"])
def test_how_it_is_computed_changes_no_number(kind, changes):
    check_same(value_and_gradients(as_configured(kind, **changes)), alone(kind))


LAYOUTS = {
    "two": ("x=2,y=2", "batch:x,heads:y,d_ff:y,vocab:y"),
    "stored": ("x=2,y=2", "batch:x,params.d_model:x,stream:y,vocab:y"),
    "ring": ("x=2,y=2", "batch:x,length:y,memory_length:y"),
    "ulysses": ("x=2,y=2", "batch:x,stream:y,queries:y"),
    "layers": ("x=5", "params.layers:x"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_layout_changes_losses_or_gradients(kind, layout):
    mesh, rules = LAYOUTS[layout]
    if layout == "layers" and config_of(kind).layers % 5:
        mesh = "x=1"
    vocab = dict(vocab_multiple=8)
    check_same(value_and_gradients(as_configured(kind, **vocab), mesh, rules), alone(kind))


@pytest.mark.quick("gemma")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_decoded_with_the_cache_is_what_the_whole_model_says(kind):
    model = model_of(kind)
    prompts = [row[:6].tolist() for row in TOKENS[:2]]
    found = np.asarray(decode.generate(model, prompts, max_new_tokens=8).tokens)
    logits = np.asarray(model.logits(np.concatenate([prompts, found], axis=1)).array)
    np.testing.assert_array_equal(found, logits[:, 5:-1, :61].argmax(-1))


@pytest.mark.parametrize("pattern", ["local local global local", "global local local global", "local global local"])
@pytest.mark.parametrize("layers", [2, 4, 7, 8])
def test_a_pattern_whose_ends_are_alike_is_repeated_whole(pattern, layers):
    kinds = config_of("local and global", pattern=pattern, layers=layers).layer_kinds
    assert [kinds[i % len(kinds)] for i in range(layers)] == (pattern.split() * layers)[:layers]


def test_one_kind_of_layers_is_a_model_without_a_pattern():
    plain = config_of("local and global", pattern="", local_base=None, rotary_base=100.0)
    local = config_of("local and global", pattern="local local", rotary_base=7.0)
    assert local.layer_kinds == ("local",) and local.group_size == 1
    leaves = jax.tree.leaves(model_of("local and global"))
    losses = [
        jax.tree.unflatten(jax.tree.structure(models.shapes(config)), leaves).loss({"tokens": TOKENS})
        for config in (plain, local)
    ]
    assert float(losses[0]) == float(losses[1])


REFUSED = {
    "`pattern` names 'far'": dict(pattern="local far", window=3),
    "`pattern` is 'local global', and local layers are as global ones": dict(pattern="local global"),
    "`local_base` is 5.0, and no layer is `local`": dict(local_base=5.0),
    "5 layers do not divide into groups of 2, whose `pattern` a stage repeats": dict(
        layers=5, pattern="local global", window=3, stages=2
    ),
    "`bias` is 'gate', and `gate` goes with a gated part that has `in` and `out`": dict(bias="gate", gated=True),
    "`rotary_share` is 1.5, more than all channels": dict(rotary_share=1.5),
    "`d_kv` is 4 (`rotary_share`: 3 of them), and rotary positions turn pairs of it": dict(rotary_share=0.75),
    "`expert_ff` is 8, and there are no experts": dict(expert_ff=8),
}


@pytest.mark.parametrize("fact", REFUSED)
def test_what_does_not_go_together_is_refused(fact):
    error = error_of(lambda: models.preset("tiny-lm", **TINY | REFUSED[fact]), wf.WeftError)
    assert error.fact == fact
    assert error.fix
