"""Texts that go on: as far as is asked, from the last part of what there is where a sequence is full."""

import jax
import pytest

from weft import data, decode, models
from weft.decode.continuation import START, continue_texts, windows
from weft.errors import WeftError

BYTES = data.ByteTokenizer()


@pytest.fixture(scope="module")
def model():
    return models.init(models.preset("tiny-lm", vocab=256, layers=1, positions="learned"), jax.random.key(0))


def test_windows_are_as_many_tokens_as_asked_and_fit_a_sequence():
    for longest in (1, 7, 8, 15, 16, 40):
        for tokens in (1, 8, 9, 100):
            found = list(windows(longest, tokens, 16))
            assert sum(steps for _, steps in found) >= tokens
            assert all(seen + steps <= 16 and seen >= 1 for seen, steps in found)
            assert len(set(found[1:])) <= 1


def test_a_text_within_a_sequence_is_what_decoding_gives(model):
    (found,) = continue_texts(model, BYTES, ["abc"], tokens=5, temperature=0.0)
    wanted = decode.generate(model, [BYTES.encode("abc")], max_new_tokens=5).sequences[0]
    assert found.text == BYTES.decode([*BYTES.encode("abc"), *wanted])
    assert (found.prompt, found.tokens, found.is_ended) == ("abc", 5, False)


def test_a_text_goes_on_where_a_sequence_is_full(model):
    (found,) = continue_texts(model, BYTES, ["abcdef"], tokens=26, temperature=0.0)  # 10, then 8 and 8 from the last 8
    ids = BYTES.encode("abcdef")
    for steps in (10, 8, 8):
        ids += decode.generate(model, [ids[-8:]], max_new_tokens=steps).sequences[0]
    assert found.tokens == 26 and found.text == "abcdef" + BYTES.decode(ids).removeprefix("abcdef")


def test_every_prompt_has_its_samples_and_a_seed_decides_them(model):
    found = continue_texts(model, BYTES, ["abc", "d"], tokens=8, samples=2)
    assert [each.prompt for each in found] == ["abc", "abc", "d", "d"]
    assert all(each.text.startswith(each.prompt) for each in found)
    assert len({each.text for each in found}) == 4
    assert continue_texts(model, BYTES, ["abc", "d"], tokens=8, samples=2) == found
    assert continue_texts(model, BYTES, ["abc", "d"], tokens=8, samples=2, seed=1) != found


def test_a_text_ends_with_the_end_of_the_tokenizer(model):
    ended = data.ByteTokenizer()
    ended.end = decode.generate(model, [BYTES.encode("abc")], max_new_tokens=5).sequences[0][2]
    (found,) = continue_texts(model, ended, ["abc"], tokens=40, temperature=0.0)
    assert found.is_ended and found.tokens <= 3


def test_a_beginning_follows_what_stands_before_every_text(model):
    (found,) = continue_texts(model, BYTES, [""], tokens=5, is_begun=True, temperature=0.0)
    wanted = decode.generate(model, [[START]], max_new_tokens=5).sequences[0]
    assert found.text == BYTES.decode(wanted)


def test_nothing_goes_on_from_nothing(model):
    with pytest.raises(WeftError, match="the prompt is empty"):
        continue_texts(model, BYTES, [""])


def test_only_language_models_continue_texts():
    with pytest.raises(WeftError, match="Seq2Seq does not continue texts"):
        continue_texts(models.shapes(models.preset("tiny-mt")), BYTES, ["a"])
