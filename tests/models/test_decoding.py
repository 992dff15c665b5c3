"""A step of decoding, read before it runs: what it holds and sends by formula, and that it is the step that runs."""

import jax
import numpy as np
import pytest

import weft as wf
from weft import models
from weft.plan import DecodePlan

EIGHT = "heads:x,d_ff:x,vocab:x"


def traced(config, context=32, batch=1, mesh="x=8", layout=EIGHT):
    fn, args = models.decode_step(config, context, batch)
    return wf.trace(fn, *args, mesh=mesh, layout=layout)


def tiny(name, **changes):
    return models.preset(name, **{"heads": 8, "layers": 2, **changes})


@pytest.mark.parametrize(
    ("name", "changes", "sums", "batch"),
    [
        ("tiny-lm", {}, 2, 1),  # of a layer: what attention mixes, and the feed-forward part
        ("tiny-lm", {"scanned": False}, 2, 4),
        ("tiny-lm", {"tied": True, "positions": "rotary"}, 2, 1),
        ("tiny-mt", {}, 3, 4),  # cross-attention besides
    ],
)
def test_a_token_sends_the_sums_of_its_layers_and_one_for_its_vector(name, changes, sums, batch):
    config = tiny(name, **changes)
    ledger = traced(config, batch=batch).ledger
    count = sums * config.layers + 1
    assert {row.collective for row in ledger} == {"all_reduce"} and ledger.count() == count
    assert ledger.bytes() == count * batch * config.d_model * np.dtype(config.dtype).itemsize


def test_a_token_of_experts_is_sent_to_them_and_back():
    config, batch = tiny("tiny-moe"), 8
    program = traced(config, batch=batch, mesh="x=4", layout="batch:x,experts:x")
    layers = config.layers // config.every
    slots = config.experts * batch // 4  # on a processor: room in every expert for each of its tokens
    assert {row.collective for row in program.ledger} == {"all_to_all"}
    assert program.ledger.count() == 2 * layers
    assert program.ledger.bytes() == 2 * layers * slots * config.d_model * 4


@pytest.mark.parametrize("memory", ["cpu", "gpu"])
def test_weights_and_cache_of_a_processor_are_its_shares(memory):
    config, context, batch = tiny("tiny-lm"), 32, 2
    program = traced(config, context, batch)
    held = program.memory_on(memory)
    keys_and_values = 2 * config.layers * batch * context * config.heads * config.d_kv * 4
    assert sum(array.bytes for array in held.cache) == keys_and_values // 8
    assert held.donated == keys_and_values // 8 + 4  # and the place of the next token
    assert [array.name for array in held.given] == [given.name for given in program.inputs]
    assert held.arguments == sum(array.bytes for array in held.given)


def test_an_encoder_decoder_holds_keys_and_values_of_its_inputs_too():
    config, context = tiny("tiny-mt", length=16, padding=None), 32
    held = traced(config, context).memory.cache
    assert (
        sum(array.bytes for array in held) == 2 * config.layers * (context + 16) * config.heads * config.d_kv * 4 // 8
    )


def test_the_plan_speaks_of_a_kv_cache_not_of_scores():
    plan = wf.Plan(traced(tiny("tiny-lm", dtype="bfloat16"), context=4096), "h100")
    assert "of it are the KV cache" in plan.memory_text and "scores" not in plan.memory_text
    assert plan.tokens == 1
    assert wf.Plan(traced(tiny("tiny-lm"), batch=4), "h100").tokens == 4


def test_a_token_is_planned_beside_one_processor():
    config = tiny("tiny-lm")
    planned, alone = (wf.Plan(traced(config, mesh=on[0], layout=on[1]), "h100") for on in (("x=8", EIGHT), ("x=1", "")))
    both = DecodePlan(planned, alone, context=32)
    found = both.to_dict()["decode"]
    assert found["speed_up"] == alone.seconds / planned.seconds and found["alone"]["seconds_a_token"] == alone.seconds
    assert found["collectives"] == [
        {"collective": "all_reduce", "axes": "x", "count": 5, "bytes": 5 * config.d_model * 4}
    ]
    assert found["weights"] + found["cache"] == planned.memory.arguments - 4 - 4  # an id, and the place of the next
    assert found["weights_dtypes"] == ["float32"]
    assert "sent for a token: 5 all_reduce over x, " in str(both) and "one processor" in str(both)
    assert "one processor" not in str(DecodePlan(alone, alone, context=32))


def test_one_sequence_on_eight_processors_runs_and_gives_the_tokens_of_one():
    config = tiny("tiny-lm", layers=1)
    step, (_, ids, cache) = models.decode_step(config, context=12)
    model, tokens = models.init(config, jax.random.key(1)), []
    for run in (jax.jit(step.fn), wf.spmd(step.fn, mesh="x=8", layout=EIGHT, donate="cache")):
        held, token = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), cache), np.array([3], "int32")
        tokens.append([])
        for _ in range(10):
            logits, held = run(model, wf.tensor(token, ids.dims), held)
            token = np.argmax(wf.get(logits), axis=-1).astype("int32")
            tokens[-1].append(int(token[0]))
    assert tokens[0] == tokens[1] and len(set(tokens[0])) > 2


@pytest.mark.parametrize(
    ("config", "how", "fact", "fix"),
    [
        (models.preset("tiny-bert"), {}, "EncoderConfig does not decode", "a language model"),
        (models.preset("tiny-unet"), {}, "UNetConfig does not decode", "a language model"),
        (models.preset("tiny-moe", gating="choice"), {}, "cannot decode", "gating='switch'"),
        (models.preset("tiny-lm"), {"context": 0}, "`context` is 0", "from 1 on"),
        (models.preset("tiny-lm"), {"batch": 1.5}, "`batch` is 1.5", "from 1 on"),
        (models.preset("tiny-lm", positions="learned", length=16), {}, "the model has 16", "say at most 16"),
        ("tiny-lm", {}, "'tiny-lm' is no ModelConfig", "models.preset(name)"),
    ],
)
def test_what_does_not_decode_is_told_with_its_cure(config, how, fact, fix):
    with pytest.raises(wf.WeftError) as told:
        models.decode_step(config, **{"context": 32, **how})
    assert fact in told.value.fact and fix in told.value.fix
