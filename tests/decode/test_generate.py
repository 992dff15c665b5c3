"""Continuations: what a plain loop over the whole model gives, under every layout; and what is drawn."""

import functools

import jax
import numpy as np
import pytest

import weft as wf
from weft import decode, models

MESH = "a=2,b=4"
PROMPTS = [[3, 9, 27], [5], [60, 2, 8, 4, 4, 1, 7], [11, 12]]
LAYOUTS = [
    "batch:a,heads:b,vocab:b,d_ff:b",
    pytest.param("batch:a,memory_length:b", marks=pytest.mark.slow),
    pytest.param("batch:b,length:a", marks=pytest.mark.slow),
    pytest.param("heads:a+b,vocab:a+b,d_ff:a+b", marks=pytest.mark.slow),
    pytest.param("batch:a,stream:b,heads:b,params.d_model:a", marks=pytest.mark.slow),
]


@functools.cache
def tiny(layout=None, preset="tiny-lm", **changes):
    config = models.preset(preset, layers=2, **changes)
    return models.init(config, jax.random.key(1), *(() if layout is None else (MESH, layout)))


def by_hand(model, prompt, steps, penalty=1.0):
    """The likeliest token after all before it, one after the other; and the log-probability of them all."""
    run, score = list(prompt), 0.0
    for _ in range(steps):
        logits = np.array(wf.get(model.logits(np.array([run + [0] * (24 - len(run))]))))[0, len(run) - 1]
        score_of = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        for seen in set(run):
            logits[seen] = logits[seen] / penalty if logits[seen] > 0 else logits[seen] * penalty
        run.append(int(logits.argmax()))
        score += score_of[run[-1]]
    return run[len(prompt) :], score


@functools.cache
def greedy(**how):
    return decode.generate(tiny(), PROMPTS, max_new_tokens=8, **how)


def test_the_likeliest_tokens_are_those_of_a_plain_loop():
    for number, prompt in enumerate(PROMPTS):
        tokens, score = by_hand(tiny(), prompt, 8)
        assert greedy().tokens[number].tolist() == tokens
        assert greedy().scores[number] == pytest.approx(score, rel=1e-4)


def test_a_penalty_for_repetition_is_that_of_a_plain_loop():
    for number, prompt in enumerate(PROMPTS[:2]):
        tokens, _ = by_hand(tiny(), prompt, 8, penalty=1.8)
        assert greedy(repetition_penalty=1.8).tokens[number].tolist() == tokens


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_no_token(layout):
    found = decode.generate(tiny(layout), PROMPTS, max_new_tokens=8)
    np.testing.assert_array_equal(found.tokens, greedy().tokens)
    np.testing.assert_allclose(found.scores, greedy().scores, rtol=1e-5)


@pytest.mark.slow
def test_one_prompt_is_split_over_eight_processors():
    model = tiny("heads:a+b,vocab:a+b,d_ff:a+b")
    found = decode.generate(model, PROMPTS[:1], max_new_tokens=8)
    np.testing.assert_array_equal(found.tokens, greedy().tokens[:1])


def test_a_rule_that_cannot_hold_is_dropped_aloud():
    model = tiny("batch:a,heads:b,vocab:b,d_ff:b")
    with pytest.warns(
        wf.WeftWarning, match="without the rule `batch:a`: `batch` has size 3, .* over 2 processors"
    ) as told:
        found = decode.generate(model, PROMPTS[:3], max_new_tokens=8)
    assert "layout: heads:b,vocab:b,d_ff:b" in str(told[0].message)
    assert told[0].filename == __file__
    np.testing.assert_array_equal(found.tokens, greedy().tokens[:3])


@pytest.mark.slow
def test_decoding_may_have_a_layout_of_its_own():
    found = decode.generate(tiny("batch:a,length:b"), PROMPTS, max_new_tokens=8, layout="heads:b,memory_length:a")
    np.testing.assert_array_equal(found.tokens, greedy().tokens)


def test_a_continuation_ends_where_the_end_comes():
    end = int(greedy().tokens[0, 3])
    found = decode.generate(tiny(), PROMPTS, max_new_tokens=8, end=end)
    for number, tokens in enumerate(greedy().tokens.tolist()):
        length = tokens.index(end) + 1 if end in tokens else 8
        assert found.lengths[number] == length
        assert found.tokens[number].tolist() == tokens[:length] + [end] * (8 - length)
        assert found.sequences[number] == tokens[:length]
    assert found.lengths[0] < 8


def test_prompts_are_lists_arrays_or_tensors():
    ids = np.array([[3, 9], [5, 6]])
    found = [
        decode.generate(tiny(), p, max_new_tokens=3).tokens for p in (ids.tolist(), ids, wf.tensor(ids, "batch length"))
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.slow
def test_an_encoder_decoder_continues_from_its_start():
    model = tiny(preset="tiny-mt")
    found = decode.generate(model, PROMPTS, max_new_tokens=5)
    inputs = np.stack([np.pad(prompt, (0, 7 - len(prompt))) for prompt in PROMPTS])
    run = np.zeros((4, 1), int)
    for _ in range(5):
        logits = np.asarray(wf.get(model.logits(inputs, run)))
        run = np.concatenate([run, logits[:, -1].argmax(-1)[:, None]], axis=1)
    np.testing.assert_array_equal(found.tokens, run[:, 1:])


# Drawing.


def drawn(layout=None, seed=3, **how):
    how = dict(temperature=1.5, max_new_tokens=6) | how
    return decode.generate(tiny(layout), PROMPTS, key=jax.random.key(seed), **how)


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize(
    "how", [dict(top_k=9, top_p=0.8, samples=4), pytest.param(dict(top_p=0.7), marks=pytest.mark.slow)], ids=str
)
def test_what_is_drawn_does_not_depend_on_the_layout(layout, how):
    np.testing.assert_array_equal(drawn(layout, **how).tokens, drawn(**how).tokens)


def test_samples_differ_and_so_do_keys():
    found = drawn(samples=4)
    assert found.tokens.shape == (4, 4, 6)
    assert len({tuple(row) for row in found.tokens[0].tolist()}) == 4
    assert not np.array_equal(found.tokens, drawn(samples=4, seed=4).tokens)


def test_the_best_one_alone_is_the_likeliest():
    np.testing.assert_array_equal(drawn(top_k=1).tokens, greedy().tokens[:, :6])
    np.testing.assert_array_equal(drawn(top_p=1e-6).tokens, greedy().tokens[:, :6])


def test_drawn_tokens_come_from_the_best_with_their_chances():
    logits = np.asarray(wf.get(tiny().logits(np.array(PROMPTS[:1]))))[0, -1]
    order = np.argsort(-logits)
    many = decode.generate(
        tiny(), PROMPTS[:1], max_new_tokens=1, temperature=1.0, top_k=5, samples=4000, key=jax.random.key(0)
    ).tokens[0, :, 0]
    assert set(many.tolist()) == set(order[:5].tolist())
    chances = np.exp(logits[order[:5]]) / np.exp(logits[order[:5]]).sum()
    counts = np.array([(many == token).mean() for token in order[:5]])
    np.testing.assert_allclose(counts, chances, atol=4 * np.sqrt(0.25 / 4000))
    half = decode.generate(
        tiny(), PROMPTS[:1], max_new_tokens=1, temperature=1.0, top_p=0.5, samples=4000, key=jax.random.key(0)
    ).tokens[0, :, 0]
    shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    kept = order[: int((np.cumsum(shares[order]) < 0.5).sum()) + 1]
    assert set(half.tolist()) == set(kept.tolist())


# What cannot be.


@pytest.mark.parametrize(
    ("how", "fact", "fix"),
    [
        (dict(prompts=[]), "there are no prompts", "at least one"),
        (dict(prompts=[[]]), "prompt 0 is empty", "at least one token"),
        (dict(prompts=[[1], [64]]), "prompt 1 has the id 64, and the vocab has 64", "tokenizer"),
        (dict(prompts=[[1.5]]), "prompt 0 holds float64, not token ids", "whole numbers"),
        (dict(prompts=3), "the prompts are int 3", "a list of lists"),
        (dict(prompts="abc"), "the prompts are str 'abc'", "a list of lists"),
        (dict(max_new_tokens=0), "`max_new_tokens` is 0", "from 1 on"),
        (dict(temperature=-1), "`temperature` is -1", "give 0"),
        (dict(temperature=1.0), "tokens are to be drawn, and there is no key", "jax.random.key"),
        (dict(top_k=3), "at temperature 0 nothing is drawn", "temperature=1.0"),
        (dict(temperature=1.0, top_k=0), "`top_k` is 0", "from 1 on"),
        (dict(temperature=1.0, top_p=1.5), "`top_p` is 1.5", "at most 1"),
        (dict(repetition_penalty=0), "`repetition_penalty` is 0", "1 is none"),
        (dict(samples=0), "`samples` is 0", "from 1 on"),
        (dict(end=64), "`end` is 64, and the vocab has 64", "below 64"),
        (dict(model=3), "int does not decode", "a language model"),
        (dict(preset="tiny-moe", gating="choice"), "and cannot decode", "switch"),
        (dict(layout="heads:a"), "a layout was given, and the model was made without a mesh", "models.init"),
        (dict(preset="tiny-bert"), "Encoder does not decode", "a language model"),
        (dict(positions="learned"), "64 more need 65 positions, and the model has 16", "at most 15"),
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_is_told_with_its_cure(how, fact, fix):
    how = {"prompts": [[1]], "preset": "tiny-lm"} | how
    changes = {name: how.pop(name) for name in ("gating", "positions") if name in how}
    model = models.init(models.preset(how.pop("preset"), **changes), jax.random.key(0))
    with pytest.raises(wf.WeftError) as raised:
        decode.generate(how.pop("model", model), how.pop("prompts"), **how)
    assert fact in raised.value.fact
    assert fix in raised.value.fix
    assert "test_generate.py" in raised.value.state
