"""Joint BPE of words, learnt as subword-nmt does (Sennrich et al. 2016).

Imports the sources and the cache. Words are what spaces part; pieces do not reach over them, and a word's last piece
ends in `</w>`. A pure function of the words and their counts: ties go to the pair that is first by its letters.
"""

import heapq
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from .cache import make_once
from .files import Progress, content_key
from .sources import Source

FILE, END_OF_WORD = "tokenizer.json", "</w>"
SPECIALS = ("<pad>", "</s>", "<unk>")  # 0, 1 and 2, as everywhere
LEAST = 2
"""Pairs that occur more rarely are not merged."""

Pair = tuple[str, str]


def train_bpe(source: Source, vocab: int, cache: Path, progress: Progress | None = None) -> Path:
    """The folder in the cache with a `tokenizer.json` learnt from a source.

    For texts whose words are parted by spaces already, as translations are published: what parted them is not kept.
    """

    def make(entry: Path) -> None:
        texts = source.texts(source.watch("reading for the tokenizer", progress))
        (entry / FILE).write_text(learn_bpe(texts, vocab), encoding="utf-8")

    return make_once(cache, f"tokenizer-{content_key('bpe', source.key(cache), vocab)}", make)


def learn_bpe(texts: Iterable[str], vocab: int) -> str:
    """A `tokenizer.json` with at most so many pieces, learnt from texts."""
    counts = Counter(word for text in texts for word in text.split())
    words = [(_letters(word), count) for word, count in sorted(counts.items())]
    pieces = [*SPECIALS, *sorted({piece for letters, _ in words for piece in letters})]
    merges = _merges(words, vocab - len(pieces))
    known = dict.fromkeys([*pieces, *(first + second for first, second in merges)])
    return _as_json({piece: number for number, piece in enumerate(known)}, merges)


def _letters(word: str) -> list[str]:
    return [*word[:-1], word[-1] + END_OF_WORD]


def _merges(words: list[tuple[list[str], int]], most: int) -> list[Pair]:
    """The pairs to be merged, the most frequent first, counted anew after each."""
    counts: Counter[Pair] = Counter()
    where: defaultdict[Pair, set[int]] = defaultdict(set)
    for number, (pieces, count) in enumerate(words):
        for pair in itertools.pairwise(pieces):
            counts[pair] += count
            where[pair].add(number)
    queue = [(-count, pair) for pair, count in counts.items()]  # and each count that is new; old ones are passed over
    heapq.heapify(queue)
    merges: list[Pair] = []
    while len(merges) < most and queue:
        count, pair = heapq.heappop(queue)
        if counts[pair] != -count:
            continue
        if -count < LEAST:
            break
        merges.append(pair)
        changed: set[Pair] = set()
        for number in where.pop(pair):
            changed |= _merge_in(*words[number], number, pair, counts, where)
        changed.discard(pair)
        for each in changed:
            heapq.heappush(queue, (-counts[each], each))
        del counts[pair]
    return merges


def _merge_in(
    pieces: list[str], count: int, number: int, pair: Pair, counts: Counter[Pair], where: defaultdict[Pair, set[int]]
) -> set[Pair]:
    """Merges a pair in one word, and counts the pairs around it anew: these."""
    before = list(itertools.pairwise(pieces))
    for each in before:
        counts[each] -= count
        where[each].discard(number)
    at, merged = 0, []
    while at < len(pieces):
        is_pair = at + 1 < len(pieces) and (pieces[at], pieces[at + 1]) == pair
        merged.append(pieces[at] + pieces[at + 1] if is_pair else pieces[at])
        at += 2 if is_pair else 1
    pieces[:] = merged
    after = list(itertools.pairwise(pieces))
    for each in after:
        counts[each] += count
        where[each].add(number)
    return {*before, *after}


def _as_json(vocab: dict[str, int], merges: list[Pair]) -> str:
    """The same as a `tokenizer.json` of Hugging Face."""
    special = [
        {"id": vocab[name], "content": name, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for name in SPECIALS
    ]  # fmt: skip
    model = {
        "type": "BPE", "dropout": None, "unk_token": SPECIALS[2], "continuing_subword_prefix": None,
        "end_of_word_suffix": END_OF_WORD, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": vocab, "merges": [list(pair) for pair in merges],
    }  # fmt: skip
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": {"type": "BPEDecoder", "suffix": END_OF_WORD}, "model": model,
    }  # fmt: skip
    return json.dumps(whole, ensure_ascii=False)
