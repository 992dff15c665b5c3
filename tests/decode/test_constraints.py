"""What is told of constraints that cannot be, several ends, and tokens that come one by one."""

import jax
import numpy as np
import pytest

import weft as wf
from weft import decode

from .test_generate import LAYOUTS, PROMPTS, greedy, tiny


def streamed(layout=None, **how):
    """What is told token by token, and what there is at the end."""
    told = []
    found = decode.generate(tiny(layout), PROMPTS, max_new_tokens=8, stream=told.append, **how)
    return np.stack(told, axis=-1), found


@pytest.mark.slow
@pytest.mark.parametrize("layout", [None, LAYOUTS[0]])
def test_tokens_come_one_by_one_and_are_the_same(layout):
    end = int(greedy().tokens[0, 3])
    tokens, found = streamed(layout, end=end, no_repeat_ngram=5)
    whole = decode.generate(tiny(), PROMPTS, max_new_tokens=8, end=end, no_repeat_ngram=5)
    np.testing.assert_array_equal(found.tokens, whole.tokens)
    np.testing.assert_array_equal(tokens, whole.tokens[:, : tokens.shape[-1]])
    np.testing.assert_allclose(found.scores, whole.scores, rtol=1e-5)
    assert found.lengths.tolist() == whole.lengths.tolist()


@pytest.mark.slow
def test_samples_come_one_by_one_and_the_last_turn_is_told():
    how = dict(temperature=1.3, key=jax.random.key(2), samples=3)
    tokens, found = streamed(**how)
    np.testing.assert_array_equal(tokens, found.tokens)
    np.testing.assert_array_equal(found.tokens, decode.generate(tiny(), PROMPTS, max_new_tokens=8, **how).tokens)


def test_none_are_told_after_all_have_ended():
    ends = sorted({int(row[1]) for row in greedy().tokens} | {int(row[2]) for row in greedy().tokens})
    tokens, found = streamed(end=ends)
    assert tokens.shape[-1] == found.lengths.max() <= 3
    whole = decode.generate(tiny(), PROMPTS, max_new_tokens=8, end=ends)
    np.testing.assert_array_equal(found.tokens, whole.tokens)
    np.testing.assert_array_equal(tokens, whole.tokens[:, : tokens.shape[-1]])
    assert all(row[-1] in ends for row in found.sequences)


@pytest.mark.slow
def test_proposed_tokens_may_end_in_several_ways():
    ends = [int(greedy().tokens[0, 3]), int(greedy().tokens[2, 5])]
    plain = decode.generate(tiny(), PROMPTS, max_new_tokens=8, end=ends)
    assert decode.generate(tiny(), PROMPTS, max_new_tokens=8, end=ends, ngrams=2).sequences == plain.sequences


def nothing(logits, tokens, step):
    return None


def halves(logits, tokens, step):
    return wf.slice(logits, over="vocab", start=0, size=8)


@pytest.mark.parametrize(
    ("how", "fact", "fix"),
    [
        (dict(no_repeat_ngram=0), "`no_repeat_ngram` is 0", "a whole number from 1 on"),
        (dict(min_length=5), "`min_length` is 5, and there is no `end` to keep off", "give the id of an `end`"),
        (dict(min_new_tokens=-1, end=1), "`min_new_tokens` is -1", "a whole number from 0 on"),
        (dict(end=[1, 99]), "`end` is 99, and the vocab has 64", "below 64"),
        (dict(end="x"), "`end` is 'x'", "give an id, or a list of ids"),
        (dict(end=[]), "`end` is []", "give an id, or a list of ids"),
        (dict(temperature=1.0, min_p=2), "`min_p` is 2", "a share of the largest chance"),
        (dict(processors=nothing), "`processors` is <function nothing", "processors=[process]"),
        (dict(processors=[3]), "`processors` holds 3", "def process(logits, tokens, step)"),
        (dict(processors=[nothing]), "the processor `nothing` gave NoneType in place of logits", "give a tensor ["),
        (dict(processors=[halves]), "the processor `halves` gave float32[batch=4 vocab=8]", "vocab=64]"),
        (dict(ngrams=2, min_length=3, end=1), "`min_length` is given, and tokens that are checked", "leave out"),
        (dict(ngrams=2, stream=print), "`stream` is given, and tokens that are checked at once", "leave out"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_what_cannot_be_asked_is_told_with_its_cure(how, fact, fix):
    with pytest.raises(wf.WeftError) as raised:
        decode.generate(tiny(), PROMPTS, max_new_tokens=3, key=jax.random.key(0), **how)
    assert fact in raised.value.fact and fix in raised.value.fix
