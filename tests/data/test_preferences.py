"""Preferences: both answers after the same prompt, of which the answers alone count."""

import json

import numpy as np
import pytest

from weft import WeftWarning, data

TOKENIZER = data.ByteTokenizer(specials=True)


def dataset(folder, lines, length=160, tokenizer=TOKENIZER, template="chatml", **table):
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = data.open_source({"path": path, "format": "preferences", **table})
    opened = None if template is None else data.open_template(template)
    return data.preference_dataset(source, tokenizer, opened, length=length, cache=folder / "cache")


def parts(made):
    """What counts of both sides of each pair, and what stands before it."""
    rows, found = made.take(np.arange(len(made))), []
    for i in range(len(made)):
        for side in ("chosen", "rejected"):
            inputs, targets, weights = (rows[f"{side}_{name}"][i] for name in ("inputs", "targets", "weights"))
            counted = np.flatnonzero(weights)
            text = TOKENIZER.decode(inputs[: counted[0] + 1]), TOKENIZER.decode(targets[counted])
            ends = bool((targets[counted] == TOKENIZER.end).any())
            found.append((*text, ends))
            assert np.array_equal(inputs[1 : counted[-1] + 1], targets[: counted[-1]])
    return found


def test_texts_stand_as_they_are_and_end(tmp_path):
    made = dataset(tmp_path, [{"prompt": "2+2=", "chosen": "4", "rejected": "five"}], template=None)
    assert parts(made) == [("2+2=", "4", True), ("2+2=", "five", True)]


ASK = {"role": "user", "content": "hi"}
YES, NO = {"role": "assistant", "content": "yes"}, {"role": "assistant", "content": "no"}
ALIKE = {
    "a list": {"prompt": [ASK], "chosen": [YES], "rejected": [NO]},
    "a text": {"prompt": "hi", "chosen": [YES], "rejected": [NO]},
    "whole": {"chosen": [ASK, YES], "rejected": [ASK, NO]},
    "whole, and a text": {"prompt": "hi", "chosen": [ASK, YES], "rejected": [ASK, NO]},
}


@pytest.mark.parametrize("name", ALIKE)
def test_messages_are_written_by_the_template(name, tmp_path):
    before = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert parts(dataset(tmp_path, [ALIKE[name]])) == [
        (before, "yes<|im_end|>\n", False), (before, "no<|im_end|>\n", False)
    ]  # fmt: skip


def test_earlier_answers_are_prompt(tmp_path):
    before = [ASK, YES, {"role": "user", "content": "sure?"}]
    ((_, chosen, _), (_, rejected, _)) = parts(
        dataset(tmp_path, [{"prompt": before, "chosen": [YES], "rejected": [NO]}])
    )
    assert (chosen, rejected) == ("yes<|im_end|>\n", "no<|im_end|>\n")


def test_a_pair_with_a_side_that_is_too_long_is_cut_or_left_out_and_told(tmp_path):
    lines = [
        {"prompt": "a", "chosen": "b" * 20, "rejected": "c"},
        {"prompt": "a" * 20, "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ]
    with pytest.warns(WeftWarning, match=r"2 of 3 pairs are longer than 8 tokens and are cut; 1 whose answers"):
        made = dataset(tmp_path, lines, length=8, template=None)
    assert [text for _, text, _ in parts(made)] == ["b" * 8, "c", "b", "c"]


def test_a_row_that_is_not_there_weighs_nothing(tmp_path):
    row = dataset(tmp_path, [{"prompt": "a", "chosen": "b", "rejected": "c"}], template=None).take(np.array([-1, 0]))
    assert row["weights"].tolist() == [0, 1] and not row["chosen_weights"][0].any()


BAD = {
    "no chosen": ({"prompt": "a", "rejected": "b"}, "has no text in a field `chosen`", "fields"),
    "no prompt": ({"chosen": "a", "rejected": "b"}, "has no text in a field `prompt`", "fields"),
    "an empty one": ({"prompt": "a", "chosen": "", "rejected": "b"}, "has an empty `chosen`", "take the line out"),
    "the same": ({"chosen": [ASK], "rejected": [ASK]}, "`chosen` in", "end it with"),
    "no question": ({"chosen": [YES], "rejected": [NO]}, "has no prompt", "write `prompt`"),
    "one a text": (
        {"prompt": [ASK], "chosen": [YES], "rejected": "no"},
        "no list of messages",
        "",
    ),
    "a role": ({"prompt": [ASK], "chosen": [{"role": "me", "content": "x"}], "rejected": [NO]}, "the role 'me'", ""),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_pair_is_told_with_file_and_line(name, tmp_path):
    line, fact, fix = BAD[name]
    with pytest.raises(data.DataError) as caught:
        dataset(tmp_path, [line])
    assert fact in caught.value.fact and "pairs.jsonl:1" in caught.value.fact and fix in caught.value.fix


def test_messages_without_a_template_are_told(tmp_path):
    with pytest.raises(data.DataError, match=r"pairs.jsonl:1 holds messages, and no template says"):
        dataset(tmp_path, [ALIKE["a list"]], template=None)
