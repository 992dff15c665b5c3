"""The decoder written out: what its loop reads, and that its tokens are those of the model as it is."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from weft import decode, models, nn
from weft.decode import prompts
from weft.decode.constraints import Constraints
from weft.decode.generate import Generation
from weft.decode.sampling import Sampler
from weft.kernels import cached
from weft.kernels.choice import Chip
from weft.models import unrolled
from weft.tensor import tensor

PROMPTS = [[3, 9, 27], [5], [60, 2, 8, 4, 4, 1, 7], [11, 12]]


def made(**changes):
    return models.init(models.preset("tiny-lm", layers=2, **{"dtype": "float32", **changes}), jax.random.key(1))


def loop_of(config, batch=2):
    """The loop over tokens of a generation, as an equation."""
    prompt = {"inputs": tensor(jax.ShapeDtypeStruct((batch, 8), "int32"), "batch length")}
    run = Generation(Sampler(), Constraints(), 4, 12, None)
    jaxpr = jax.make_jaxpr(lambda m, p: run(m, p, jax.random.key(0)))(models.shapes(config), prompt)
    return [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "while"][-1]


def test_the_loop_reads_weights_in_the_dtype_it_computes_with():
    config = models.preset("tiny-lm", layers=3, dtype="bfloat16", tied=True)
    assert (config.dtype, config.param_dtype) == ("bfloat16", "float32")
    wide = [x.aval for x in loop_of(config).invars if x.aval.dtype == jnp.float32 and x.aval.size > 2 * config.d_model]
    assert wide == []


def test_in_the_loop_no_layer_is_sliced_from_a_stack():
    config = models.preset("tiny-lm", layers=3, dtype="bfloat16")
    assert not [x.aval for x in loop_of(config).invars if x.aval.ndim > 2 and x.aval.shape[0] == config.layers]


@pytest.mark.parametrize(
    "changes",
    [
        dict(positions="rotary", heads=4, group=2, gated=True, bias="q v in out"),
        pytest.param(dict(softcap=5.0, window=4, norm="layer", positions="learned"), marks=pytest.mark.slow),
    ],
    ids=["rotary, grouped, gated, biases", "softcap, window"],
)
def test_layers_in_a_loop_and_written_out_give_the_same_tokens(monkeypatch, changes):
    model = made(**changes)
    found = decode.generate(model, PROMPTS, max_new_tokens=6)
    monkeypatch.setattr(unrolled, "MOST_LAYERS", 1)
    prompts.compile_once.cache_clear()
    other = decode.generate(model, PROMPTS, max_new_tokens=6)
    np.testing.assert_array_equal(found.tokens, other.tokens)
    np.testing.assert_allclose(found.scores, other.scores, rtol=1e-5)


def test_a_token_sends_two_sums_a_layer_and_the_embedding():
    config = models.preset("tiny-lm", layers=3, gated=True, bias="q in out")
    _, args = models.decode_step(config, context=16, batch=2)

    def token(model, tokens, cache):
        model, cache = unrolled.prepare(model, cache)
        return model.step(tokens, cache)[0]

    sent = wf.trace(token, *args, mesh="x=4", layout="heads:x,d_ff:x,vocab:x").ledger
    of_token = 2 * config.d_model * jnp.dtype(config.dtype).itemsize
    assert (sent.count(), sent.bytes()) == (2 * config.layers + 1, (2 * config.layers + 1) * of_token)


def test_heads_that_are_called_queries_are_attended_where_they_lie():
    config = models.preset("tiny-lm", layers=2, heads=4, group=2, positions="rotary")
    _, args = models.decode_step(config, context=16, batch=2, layout="queries:x")

    def token(model, tokens, cache):
        model, cache = unrolled.prepare(model, cache)
        return model.step(tokens, cache)

    program = wf.trace(token, *args, mesh="x=4", layout="queries:x")
    assert [(row.collective, row.bytes * row.count) for row in program.ledger] == [
        ("all_reduce", 2 * config.d_model * 4)
    ] * config.layers


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["batch:a,stream:b,queries:b", "queries:a,memory_length:b"])
def test_a_model_trained_with_heads_for_positions_writes_the_same_tokens(layout):
    config = models.preset("tiny-lm", layers=2, heads=4, group=2, positions="rotary", dtype="float32")
    alone, split = (models.init(config, jax.random.key(1), *where) for where in ((), ("a=2,b=2", layout)))
    found, wanted = (decode.generate(model, PROMPTS, max_new_tokens=6) for model in (split, alone))
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-5)


@pytest.mark.slow
def test_adapters_are_added_to_the_weights_before_the_loop():
    model = nn.lora.add(made(), rank=2, key=jax.random.key(2), where="*.v")
    up = model.decoder.layers.attention.v.up
    values = wf.tensor(np.random.default_rng(0).normal(size=up.dims.sizes).astype("float32"), up.dims)
    model = eqx.tree_at(lambda m: m.decoder.layers.attention.v.up, model, values, is_leaf=lambda x: x is up)
    found, merged, before = (
        decode.generate(m, PROMPTS, max_new_tokens=6) for m in (model, nn.lora.merge(model), made())
    )
    np.testing.assert_array_equal(found.tokens, merged.tokens)
    assert (found.tokens != before.tokens).any()


@pytest.fixture
def kernel(monkeypatch):
    """Attention to the cache by the kernel, as on a GPU, step by step."""
    calls = []

    def attend(*args, **how):
        calls.append(how)
        return step_by_step(*args, **how)

    step_by_step = functools.partial(cached.attend_cached, backend="interpret")
    monkeypatch.setattr(unrolled, "chip_of", lambda x: Chip("gpu"))
    monkeypatch.setattr(cached, "attend_cached", attend)
    prompts.compile_once.cache_clear()
    yield calls
    prompts.compile_once.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        pytest.param(dict(positions="rotary", heads=4, group=2, window=5), None, marks=pytest.mark.slow),
        ({}, "batch:a,heads:b,vocab:b,d_ff:b"),
    ],
)
def test_tokens_are_the_same_by_the_kernel(kernel, monkeypatch, changes, layout):
    config = models.preset("tiny-lm", layers=2, d_kv=16, dtype="float32", **changes)
    model = models.init(config, jax.random.key(1), *(() if layout is None else ("a=2,b=4", layout)))
    found = decode.generate(model, PROMPTS, max_new_tokens=6)
    assert len(kernel) >= config.layers
    monkeypatch.undo()
    prompts.compile_once.cache_clear()
    other = decode.generate(model, PROMPTS, max_new_tokens=6)
    np.testing.assert_array_equal(found.tokens, other.tokens)
    np.testing.assert_allclose(found.scores, other.scores, rtol=1e-5)
