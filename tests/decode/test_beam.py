"""Beam search: the best of all sequences, what `transformers` finds, and the same under every layout."""

import functools
import itertools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import weft as wf
from weft import decode, interop, models

MESH = "a=2,b=4"
T5 = Path(__file__).parents[1] / "interop" / "fixtures" / "t5"
BEAMS = json.loads((T5 / "beams.json").read_text())
PROMPTS = [[3, 9, 27], [5], [60, 2, 8, 4, 4, 1, 7], [11, 12]]
END = 5


@functools.cache
def tiny(preset, layout=None, **changes):
    config = models.preset(preset, layers=2, **changes)
    return models.init(config, jax.random.key(1), *(() if layout is None else (MESH, layout)))


def gnmt(length, alpha):
    return ((5 + length) / 6) ** alpha


# A vocab of four, three steps: all sequences can be looked at.


def every_sequence(log_chances, steps, vocab, end, alpha):
    """All sequences that end with `end` or with the last step, by their scores, best first."""
    found = []
    for length in range(1, steps + 1):
        for tokens in itertools.product(range(vocab), repeat=length):
            is_whole = tokens[-1] == end or length == steps
            if is_whole and end not in tokens[:-1]:
                found.append((log_chances(tokens) / gnmt(length, alpha), list(tokens)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("alpha", [0.6, *(pytest.param(alpha, marks=pytest.mark.slow) for alpha in (0.0, 2.0))])
@pytest.mark.parametrize("preset", ["tiny-lm", pytest.param("tiny-mt", marks=pytest.mark.slow)])
def test_with_enough_beams_the_best_of_all_sequences_are_found(preset, alpha):
    vocab, steps, end, prompt = 4, 3, 2, [1, 3]
    model = tiny(preset, vocab=vocab, vocab_multiple=8, dropout=0.0)
    all_tokens = np.array(list(itertools.product(range(vocab), repeat=steps)))
    if preset == "tiny-lm":
        whole = np.concatenate([np.tile(prompt, (len(all_tokens), 1)), all_tokens], axis=1)
        logits = np.asarray(wf.get(model.logits(whole)))[:, len(prompt) - 1 : -1, :vocab]
    else:
        before = np.pad(all_tokens, ((0, 0), (1, 0)))[:, :-1]
        logits = np.asarray(wf.get(model.logits(np.tile(prompt, (len(all_tokens), 1)), before)))[..., :vocab]
    chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def log_chances(tokens):
        row = next(i for i, whole in enumerate(all_tokens) if tuple(whole[: len(tokens)]) == tokens)
        return float(sum(chances[row, i, token] for i, token in enumerate(tokens)))

    wanted = every_sequence(log_chances, steps, vocab, end, alpha)[:10]
    found = decode.beam_search(model, [prompt], beams=64, alpha=alpha, end=end, max_new_tokens=steps)
    assert found.sequences[0][:10] == [tokens for _, tokens in wanted]
    np.testing.assert_allclose(found.scores[0, :10], [score for score, _ in wanted], rtol=1e-4)


# What transformers finds.


CASES = [case for case in BEAMS["results"] if case["early_stopping"] in (True, "never") and case["scores"]]


@pytest.mark.quick("0.0, never-None", "1.0, True-None")
@pytest.mark.parametrize("layout", [None, pytest.param("batch:a,heads:b,vocab:b", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['length_penalty']}, {case['early_stopping']}")
def test_hypotheses_and_scores_are_those_of_transformers(case, layout):
    where = () if layout is None else ("a=3,b=2", layout)
    model = interop.load(T5, *where)
    found = decode.beam_search(
        model,
        BEAMS["inputs"],
        beams=case["num_beams"],
        alpha=case["length_penalty"],
        penalty="length",
        end=BEAMS["eos"],
        max_new_tokens=BEAMS["max_new_tokens"],
        early_stopping=case["early_stopping"] is True,
    )
    for found_rows, wanted_rows in zip(found.sequences, case["sequences"], strict=True):
        assert found_rows == [_cut(row, BEAMS["eos"]) for row in wanted_rows]
    np.testing.assert_allclose(found.scores, case["scores"], rtol=1e-4)


def _cut(row, end):
    """Without the start, and what fills the row up behind the end."""
    row = row[1:]
    return row[: row.index(end) + 1] if end in row else row


# Layouts, and what the arguments do.


@functools.cache
def reference(preset):
    return decode.beam_search(tiny(preset), PROMPTS, beams=4, end=END, max_new_tokens=6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "layout"),
    [
        pytest.param("tiny-lm", "batch:a,heads:b,vocab:b,d_ff:b", marks=pytest.mark.slow),
        pytest.param("tiny-lm", "batch:a,memory_length:b", marks=pytest.mark.slow),
        pytest.param("tiny-lm", "beam:b,vocab:a", marks=pytest.mark.slow),
        pytest.param("tiny-mt", "batch:b,heads:a", marks=pytest.mark.slow),
        ("tiny-mt", "heads:a+b,vocab:a+b,d_ff:a+b"),
    ],
)
def test_a_layout_changes_no_hypothesis(preset, layout):
    found = decode.beam_search(tiny(preset, layout), PROMPTS, beams=4, end=END, max_new_tokens=6)
    np.testing.assert_array_equal(found.tokens, reference(preset).tokens)
    np.testing.assert_array_equal(found.lengths, reference(preset).lengths)
    np.testing.assert_allclose(found.scores, reference(preset).scores, rtol=1e-5)


def test_the_best_comes_first_and_no_hypothesis_twice():
    found = reference("tiny-lm")
    assert found.tokens.shape == (4, 4, 6)
    assert (np.diff(found.scores, axis=1) <= 0).all()
    assert all(len({tuple(row) for row in rows}) == 4 for rows in found.sequences)


@pytest.mark.slow
def test_one_beam_takes_the_likeliest():
    found = decode.beam_search(tiny("tiny-lm"), PROMPTS, beams=1, alpha=0.0, end=END, max_new_tokens=6)
    greedy = decode.generate(tiny("tiny-lm"), PROMPTS, end=END, max_new_tokens=6)
    assert [rows[0] for rows in found.sequences] == greedy.sequences
    np.testing.assert_allclose(found.scores[:, 0], greedy.scores, rtol=1e-5)


def test_prompts_of_other_lengths_beside_it_change_nothing():
    alone = decode.beam_search(tiny("tiny-mt"), PROMPTS[:1], beams=4, end=END, max_new_tokens=6)
    np.testing.assert_array_equal(alone.tokens[0], reference("tiny-mt").tokens[0])


@pytest.mark.parametrize(
    ("how", "fact", "fix"),
    [
        (dict(beams=0), "`beams` is 0", "from 1 on"),
        (dict(alpha="1"), "`alpha` is '1'", "0 has no regard to length"),
        (dict(penalty="gnm"), "there is no penalty 'gnm'", "did you mean `gnmt`?"),
        (dict(end=None), "`end` is None", "give the id that ends"),
        (dict(end=99), "`end` is 99, and the vocab has 64", "below 64"),
        (dict(max_new_tokens=2.5), "`max_new_tokens` is 2.5", "from 1 on"),
    ],
)
def test_what_cannot_be_searched_is_told_with_its_cure(how, fact, fix):
    with pytest.raises(wf.WeftError) as raised:
        decode.beam_search(tiny("tiny-lm"), [[1]], **how)
    assert raised.value.fact == fact
    assert fix in raised.value.fix
    assert "test_beam.py" in raised.value.state
