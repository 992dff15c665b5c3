"""Cached steps: token by token the logits are those of the whole sequence at once, under every layout."""

import jax
import numpy as np
import pytest

import weft as wf
from weft import models

MESH = "a=2,b=4"
TOKENS = np.random.default_rng(0).integers(1, 64, (8, 12)).astype("int32")
ROOM, PROMPT = 16, 8
MODELS = {
    "paper's": ("tiny-lm", {}),
    "rotary, grouped": ("tiny-lm", dict(positions="rotary", heads=4, group=2)),
    "relative, window": ("tiny-lm", dict(positions="relative", scale_scores=False, window=5, scanned=False)),
    "learned, softcap": ("tiny-lm", dict(positions="learned", softcap=5.0, norm="layer", length=32)),
    "experts": ("tiny-moe", dict(capacity=8.0)),
    "experts every second": ("tiny-moe", dict(capacity=8.0, every=2, gating="top2", layers=4)),
    "dropless experts": ("tiny-moe", dict(gating="dropless", shared_experts=1)),
    "translation": ("tiny-mt", {}),
    "t5": ("tiny-mt", dict(positions="relative", scale_scores=False, tied=True, gated=True, window=4)),
}


def made(name, layout=None):
    preset, changes = MODELS[name]
    config = models.preset(preset, **dict(layers=2) | changes)
    return models.init(config, jax.random.key(1), *(() if layout is None else (MESH, layout)))


def in_steps(model, tokens):
    """The logits at the last place of the prompt and after each token behind it."""
    prompt = PROMPT if isinstance(model, models.TransformerLM) else 0
    inputs = wf.slice(tokens, over="length", start=0, size=PROMPT) if prompt else tokens
    logits, cache = model.prefill({"inputs": inputs}, ROOM)
    found = [logits]
    for at in range(prompt, tokens.size("length") - (0 if prompt else 1)):
        token = tokens["length", at]
        assert token.dims.names == ("batch",)
        logits, cache = model.step(token, cache)
        assert logits.dims.names == ("batch", "vocab")
        found.append(logits)
    return wf.stack(found, wf.Dim("steps", len(found)))


def at_once(model):
    if isinstance(model, models.TransformerLM):
        return np.asarray(wf.get(model.logits(TOKENS)))[:, PROMPT - 1 :]
    before = np.pad(TOKENS, ((0, 0), (1, 0)))[:, :-1]
    return np.asarray(wf.get(model.logits(TOKENS, before)))


UNSPLIT = (
    "dropless experts",
    "relative, window",
    "learned, softcap",
    "translation",
    "rotary, grouped",
    "experts",
    "t5",
)


@pytest.mark.quick("paper's-batch:a,memory_length:b")
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("experts every second", None),
        *[pytest.param(name, None, marks=pytest.mark.slow) for name in UNSPLIT],
        ("paper's", "batch:a,memory_length:b"),
        pytest.param("rotary, grouped", "heads:a,memory_length:b", marks=pytest.mark.slow),
        pytest.param("relative, window", "batch:a,length:b,memory_length:b", marks=pytest.mark.slow),  # a ring
        pytest.param("t5", "batch:a,length:b,memory_length:b", marks=pytest.mark.slow),
        pytest.param("rotary, grouped", "batch:a,stream:b,queries:b", marks=pytest.mark.slow),  # Ulysses
        pytest.param("t5", "batch:a,stream:b,queries:b", marks=pytest.mark.slow),
        pytest.param("rotary, grouped", "batch:a,heads:b,d_ff:b,vocab:b", marks=pytest.mark.slow),
        pytest.param("relative, window", "heads:a+b,vocab:b", marks=pytest.mark.slow),
        pytest.param("experts", "batch:b,experts:b,d_ff:a", marks=pytest.mark.slow),
        pytest.param("experts every second", "batch:b,experts:b", marks=pytest.mark.slow),
        pytest.param("dropless experts", "batch:b,experts:b,d_ff:a", marks=pytest.mark.slow),
        pytest.param("translation", "batch:a,heads:b,params.d_model:a", marks=pytest.mark.slow),
        ("t5", "batch:a,heads:b,vocab:b"),
    ],
)
def test_cached_steps_give_the_logits_of_the_whole_sequence(name, layout):
    model, tokens = made(name, layout), wf.tensor(TOKENS, "batch length")
    run = jax.jit(in_steps) if layout is None else wf.spmd(in_steps, mesh=MESH, layout=layout)
    found = np.moveaxis(np.asarray(wf.get(run(model, tokens))), 0, 1)
    np.testing.assert_allclose(found, at_once(model), rtol=1e-4, atol=1e-4)


def test_a_prompt_that_begins_later_gives_the_same_logits():
    model = made("rotary, grouped")
    lengths = np.array([6, 3, 1, 5, 6, 2, 4, 6], "int32")
    moved = np.stack([np.concatenate([np.full(6 - n, 9), row[:n]]) for row, n in zip(TOKENS, lengths, strict=True)])
    prompt = {"inputs": wf.tensor(moved, "batch length"), "first": wf.tensor(6 - lengths, "batch")}

    @jax.jit
    def run(model, prompt, after):
        logits, cache = model.prefill(prompt, 8)
        return logits, model.step(after, cache)[0]

    after = np.array([row[n] for row, n in zip(TOKENS, lengths, strict=True)])
    first, second = run(model, prompt, wf.tensor(after, "batch"))
    whole = np.asarray(wf.get(model.logits(TOKENS)))
    np.testing.assert_allclose(first.array, whole[np.arange(8), lengths - 1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second.array, whole[np.arange(8), lengths], rtol=1e-4, atol=1e-4)


def test_a_prefix_model_sees_all_of_its_prompt():
    model = models.init(models.preset("tiny-lm", layers=2, prefix=True), jax.random.key(1))
    prompt = {"inputs": wf.tensor(TOKENS[:, :PROMPT], "batch length")}
    found, _ = jax.jit(lambda model, prompt: model.prefill(prompt, ROOM))(model, prompt)
    batch = {"inputs": TOKENS, "targets": TOKENS, "prefix": np.full(8, PROMPT)}
    weights = np.zeros(TOKENS.shape, "float32")
    weights[:, PROMPT - 1] = 1
    wanted = float(model.loss(batch | {"weights": weights}))
    own = jax.nn.log_softmax(found.array)[np.arange(8), TOKENS[:, PROMPT - 1]]
    assert -float(own.mean()) == pytest.approx(wanted, rel=1e-5)
    causal = models.init(models.preset("tiny-lm", layers=2), jax.random.key(1))
    without = {name: batch[name] for name in ("inputs", "targets")}
    assert abs(float(causal.loss(without | {"weights": weights})) - wanted) > 1e-3


def test_a_token_sends_little_to_a_cache_split_along_its_places():
    """Two numbers and the result of each head in a layer; the cache itself stays where it is."""
    model = models.shapes(models.preset("tiny-lm", layers=2))
    config, tokens = model.config, wf.tensor(jax.ShapeDtypeStruct((8,), "int32"), "batch")
    inputs = wf.tensor(jax.ShapeDtypeStruct((8, PROMPT), "int32"), "batch length")
    cache = jax.eval_shape(lambda model, inputs: model.prefill({"inputs": inputs}, ROOM)[1], model, inputs)
    program = wf.trace(lambda m, t, c: m.step(t, c), model, tokens, cache, mesh="x=8", layout="memory_length:x")
    assert {row.collective for row in program.ledger} == {"all_reduce"}
    heads = 8 * config.heads
    assert program.ledger.bytes() == config.layers * 4 * (2 * heads + heads * config.d_kv)
    whole = 2 * 4 * config.layers * 8 * ROOM * config.heads * config.d_kv
    alone = wf.trace(lambda m, t, c: m.step(t, c), model, tokens, cache, mesh="x=1", layout="")
    assert alone.memory.arguments - program.memory.arguments == whole - whole // 8
