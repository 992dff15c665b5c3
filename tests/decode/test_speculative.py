"""Speculative decoding: the tokens that are written without it, and the same distribution where they are drawn."""

import functools
import itertools

import jax
import numpy as np
import pytest

import weft as wf
from weft import decode, models
from weft.decode.sampling import Sampler
from weft.decode.speculative import _AHEAD, _FEW, Speculation
from weft.dims import Dim

MESH = "a=2,b=4"
PROMPTS = [[3, 9, 27], [5], [60, 2, 8, 4, 4, 1, 7], [11, 12]]
WAYS = {"ngrams": dict(ngrams=1, ahead=1), "draft": dict(draft=1, ahead=3), "itself": dict(draft=2, ahead=4)}


@functools.cache
def made(layers, layout=None, preset="tiny-lm", **changes):
    config = models.preset(preset, layers=layers, **changes)
    return models.init(config, jax.random.key(1), *(() if layout is None else (MESH, layout)))


def speculative(way, layout=None, prompts=PROMPTS, **how):
    more = WAYS[way]
    if "draft" in more:  # by its layers; of two it is the model itself
        more = {**more, "draft": made(more["draft"], layout)}
    return decode.generate(made(2, layout), prompts, max_new_tokens=9, **more, **how)


@functools.cache
def greedy(**how):
    return decode.generate(made(2), PROMPTS, max_new_tokens=9, **how)


@pytest.mark.quick("draft-batch:a,heads:b,d_ff:b,vocab:b")
@pytest.mark.parametrize(
    ("way", "layout"),
    [
        ("ngrams", None),
        pytest.param("draft", None, marks=pytest.mark.slow),
        ("draft", "batch:a,heads:b,d_ff:b,vocab:b"),
        pytest.param("itself", None, marks=pytest.mark.slow),
        *[
            pytest.param(way, layout, marks=pytest.mark.slow)
            for way in ("ngrams", "draft")
            for layout in ("heads:b,d_ff:b,vocab:b", "batch:b,memory_length:a", "batch:a,heads:b,params.d_model:a")
        ],
    ],
)
def test_the_tokens_are_those_without_it(way, layout):
    found = speculative(way, layout)
    np.testing.assert_array_equal(found.tokens, greedy().tokens)
    np.testing.assert_array_equal(found.lengths, greedy().lengths)
    np.testing.assert_allclose(found.scores, greedy().scores, rtol=1e-5)
    assert 0 <= found.accepted <= 1 and (way != "itself" or found.accepted == 1)


@pytest.mark.slow
def test_a_continuation_ends_where_it_ends_without_it():
    end = int(greedy().tokens[0, 3])
    found, other = speculative("ngrams", end=end), greedy(end=end)
    np.testing.assert_array_equal(found.tokens, other.tokens)
    np.testing.assert_array_equal(found.lengths, other.lengths)


def test_what_was_written_before_is_proposed_again():
    model, prompt = made(2), [[7, 8, 9] * 4]
    plain = decode.generate(model, prompt, max_new_tokens=24).tokens
    found = decode.generate(model, prompt, max_new_tokens=24, ngrams=1, ahead=2)
    np.testing.assert_array_equal(found.tokens, plain)
    runs = list(plain[0])
    assert len(set(runs)) < len(runs) and found.accepted > 0


@pytest.mark.slow
def test_rules_of_a_length_are_dropped_aloud():
    with pytest.warns(wf.WeftWarning, match="without the rule `length:b`: a step sees 2 tokens") as told:
        found = decode.generate(made(2, "batch:a,length:b"), PROMPTS, max_new_tokens=9, **WAYS["ngrams"])
    assert told[0].filename == __file__
    np.testing.assert_array_equal(found.tokens, greedy().tokens)


# Drawing.

ROWS, VOCAB, AHEAD = wf.Dim("batch", 40_000), wf.Dim("vocab", 5), 2


@pytest.mark.parametrize("way", ["draft", "one token"])
def test_a_token_is_drawn_as_the_model_has_it_whatever_is_proposed(way):
    """Of many rows, those that came so far have the model's chances; so has what follows when all were taken."""
    draw = np.random.default_rng(0)
    of_model, of_draft = draw.normal(size=(AHEAD + 1, 5)) * 1.5, draw.normal(size=(AHEAD, 5)) * 1.5
    few, ahead = Dim(_FEW, AHEAD + 1), Dim(_FEW, AHEAD)
    speculation = Speculation(Sampler(temperature=0.7, top_k=4), 8, 16, None, None, AHEAD, None)
    logits = wf.broadcast(wf.tensor(of_model.astype("float32"), [few, VOCAB]), [ROWS, few, VOCAB])
    drafts = wf.broadcast(wf.tensor(of_draft.astype("float32"), [ahead, VOCAB]), [ROWS, ahead, VOCAB])
    if way == "draft":
        proposed = wf.random.categorical(jax.random.key(1), speculation.sampler.filter(drafts), over="vocab")
        named = drafts.rename(**{_FEW: _AHEAD})
    else:
        proposed, named = wf.full([ROWS, ahead], 2, dtype="int32"), None
    tokens, is_taken = map(np.asarray, speculation._draw(logits, proposed, named, jax.random.key(2)))
    come_so_far = np.ones(ROWS.size, bool)
    for place in range(AHEAD + 1):
        scaled = of_model[place] / 0.7
        chance = np.where(scaled >= np.sort(scaled)[1], np.exp(scaled), 0)
        chance /= chance.sum()
        count = come_so_far.sum()
        share = np.bincount(tokens[come_so_far, place], minlength=5) / count
        assert count > 1000
        np.testing.assert_array_less(abs(share - chance), 4.5 * np.sqrt(chance * (1 - chance) / count) + 1e-9)
        come_so_far = come_so_far & is_taken[:, place] if place < AHEAD else come_so_far


@pytest.mark.slow
def test_pairs_of_tokens_have_the_chances_of_the_model():
    model, draft = (made(layers, vocab=6, dtype="float32") for layers in (2, 1))
    prompt, calls, rows = [[3, 1]], 500, 3
    run = functools.partial(decode.generate, model, prompt, max_new_tokens=3, temperature=1.0, samples=rows)
    drawn = [run(draft=draft, ahead=2, key=jax.random.key(i)).tokens[0] for i in range(calls)]
    pairs = np.concatenate(drawn)[:, :2]
    after = [np.asarray(wf.get(model.logits(np.array([[3, 1, first]]))))[0] for first in range(6)]
    softmax = lambda x: np.exp(x) / np.exp(x).sum()  # noqa: E731
    for first, second in itertools.product(range(6), range(6)):
        chance = softmax(after[0][1])[first] * softmax(after[first][2])[second]
        share = (pairs == [first, second]).all(axis=1).mean()
        assert abs(share - chance) < 4.5 * np.sqrt(chance * (1 - chance) / (calls * rows)) + 1e-9


# What cannot be done.


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (dict(draft="itself", ngrams=2), "`draft` and `ngrams` both propose tokens"),
        (dict(ngrams=2, repetition_penalty=1.2), "tokens that are checked at once do not see each other"),
        (dict(ngrams=0), "`ngrams` is 0"),
        (dict(draft="narrow"), "the draft has a vocab of 32, and the model one of 64"),
        (dict(draft="translator"), "the draft is Seq2Seq"),
    ],
)
def test_what_cannot_be_proposed_is_said(how, told):
    drafts = {"itself": {}, "narrow": {"vocab": 32}, "translator": {"preset": "tiny-mt"}}
    how = {**how, "draft": made(1, **drafts[how["draft"]])} if "draft" in how else how
    with pytest.raises(wf.WeftError, match=told):
        decode.generate(made(2), PROMPTS, max_new_tokens=3, **how)
