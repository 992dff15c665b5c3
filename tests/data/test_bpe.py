"""Joint BPE: words of a text that are parted by spaces, in pieces that a word's end closes."""

import json
from collections import Counter

import pytest

from weft import data
from weft.data.bpe import END_OF_WORD, SPECIALS, learn_bpe
from weft.data.tokenizers import JsonTokenizer

TEXTS = ["low low low low low", "lower lower newest newest newest newest newest newest", "widest widest widest é"]


def by_hand(texts, most):
    """Sennrich et al.'s loop: all pairs are counted anew for each merge."""
    words = Counter(word for text in texts for word in text.split())
    pieces = {word: [*word[:-1], word[-1] + END_OF_WORD] for word in words}
    merges = []
    while len(merges) < most:
        counts = Counter()
        for word, count in words.items():
            for pair in zip(pieces[word], pieces[word][1:], strict=False):
                counts[pair] += count
        if not counts or max(counts.values()) < 2:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(list(best))
        for parts in pieces.values():
            at = 0
            while at + 1 < len(parts):
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = ["".join(best)]
                at += 1
    return merges, pieces


@pytest.mark.parametrize("vocab", [25, 40, 1000])
def test_merges_are_those_of_the_loop_that_counts_anew(vocab):
    model = json.loads(learn_bpe(TEXTS, vocab))["model"]
    merges, pieces = by_hand(TEXTS, len(model["merges"]) + (vocab == 1000))
    assert model["merges"] == merges and len(model["vocab"]) <= vocab
    assert [model["vocab"][name] for name in SPECIALS] == [0, 1, 2]
    tokenizer = JsonTokenizer(learn_bpe(TEXTS, vocab))
    names = {number: piece for piece, number in model["vocab"].items()}
    for word, parts in pieces.items():
        assert [names[i] for i in tokenizer.encode(word)] == parts


def test_words_come_back_and_what_was_never_seen_is_unknown():
    tokenizer = JsonTokenizer(learn_bpe(TEXTS, 60))
    assert tokenizer.decode(tokenizer.encode("newest low wider é")) == "newest low wider é"
    assert (tokenizer.pad, tokenizer.end) == (0, 1) and 2 in tokenizer.encode("zzz")


def test_a_run_learns_it_from_both_sides_once(tmp_path):
    (tmp_path / "a.tsv").write_text("low lower\tniedrig niedriger\n" * 3)
    source = data.open_source(str(tmp_path / "a.tsv"))
    table = {"kind": "bpe", "vocab": 50}
    first, again = (data.open_tokenizer(table, source, tmp_path / "cache") for _ in range(2))
    assert first.key == again.key and first.decode(first.encode("niedriger low")) == "niedriger low"
    with pytest.raises(data.DataError, match="bpe has nothing to learn from"):
        data.open_tokenizer(table)
