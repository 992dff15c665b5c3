"""A step of decoding, read before it runs: what it holds and sends by formula, and that it is the step that runs."""

import jax
import numpy as np
import pytest

import weft as wf
from weft import models
from weft.models.decoding import TOKENS, decode_tokens
from weft.plan import DecodePlan
from weft.text import time_text

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


# Milliseconds a token of `decode.generate`, measured on one H200 (benchmarks/README.md); the plan was fitted to none.
@pytest.mark.quick("6-1-0.209", "6-64-0.411")
@pytest.mark.parametrize(
    ("layers", "batch", "measured"), [(6, 1, 0.209), (6, 64, 0.411), (24, 1, 0.675), (24, 8, 0.759), (24, 64, 1.46)]
)
def test_a_token_of_generate_is_planned_as_its_loop_has_it(layers, batch, measured):
    sizes = dict(layers=layers, d_model=1024, heads=16, d_kv=64, d_ff=4096, vocab=32768, length=1024)
    step, args = models.decode_step(models.LMConfig(name="decoding", param_dtype="bfloat16", **sizes), 384, batch)
    program = wf.trace(wf.spmd(decode_tokens, mesh="x=1", layout="", donate="cache"), *args)
    called, loop = (wf.Plan(traced, "h200") for traced in (wf.trace(step, *args), program))
    both = DecodePlan(called, called, context=384, loop=loop)
    assert 0.8 < both.generated_seconds * 1e3 / measured < 1.25
    assert loop.memory.peak > called.memory.peak + (layers - 1) * 24 * 1024**2  # the layers, given and prepared
    assert f"by `decode.generate`: {time_text(both.generated_seconds)} a token" in str(both)


def test_what_generate_prepares_before_its_loop_is_no_part_of_a_token():
    _, args = models.decode_step(tiny("tiny-moe", layers=2), 32, 1)
    program = wf.trace(wf.spmd(decode_tokens, mesh="x=1", layout="", donate="cache"), *args)
    loop = wf.Plan(program, "h100")
    (least, *_, most) = sorted({op.count for op in loop.ops})
    assert (least, most) == (1, TOKENS)
    token = DecodePlan(loop, loop, context=32, loop=loop).generated_seconds
    in_loop = sum(op.seconds for op in loop.ops if op.count == TOKENS)
    assert token == pytest.approx(in_loop / TOKENS) and in_loop < loop.seconds


@pytest.mark.parametrize("name", ["tiny-lm", pytest.param("tiny-mt", marks=pytest.mark.slow)])
def test_a_cache_of_queries_is_split_as_they_are(name):
    config, layout = tiny(name), "queries:x"
    fn, args = models.decode_step(config, 32, 2, layout=layout)
    split = wf.trace(fn, *args, mesh="x=8", layout=layout)
    alone = wf.trace(fn, *models.decode_step(config, 32, 2)[1])
    own, whole = (
        [array.bytes for array in program.memory.cache if "segments" not in array.name] for program in (split, alone)
    )
    assert own == [size // 8 for size in whole] and len(own) == (2 if name == "tiny-lm" else 4)
    fn, args = models.decode_step(config, 32, 2)
    with pytest.raises(wf.LayoutError, match="was made for heads called so") as told:
        wf.trace(fn, *args, mesh="x=8", layout=layout)
    assert "models.decode_step(config, context, layout=layout)" in told.value.fix


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
