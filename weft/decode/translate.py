"""Machine translation of texts by beam search, many at a time in few shapes.

Imports the data and decoding. What becomes of a text does not depend on those beside it: how far it is padded, and how
many tokens are written at most, follow from its own length.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..data import Tokenizer
from ..errors import WeftError
from ..models import Seq2Seq
from .beam import beam_search
from .prompts import round_up_batch

BATCH = 32
SHORTEST = 16
"""Texts are padded to this length at least, and longer ones to twice this, four times this, and so on."""
ROOM = 50
"""A translation may have half as many tokens more as its text, and so many beside."""


class DecodingError(WeftError):
    """Texts that a model cannot continue or translate."""


class Translator:
    """Translates texts with an encoder-decoder model.

    A translation is at most `tokens` long, or as the text's length says. `between` is called before every batch; what
    it raises leaves the rest untranslated.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        beams: int = 5,
        alpha: float = 0.6,
        penalty: str = "gnmt",
        batch: int = BATCH,
        tokens: int | None = None,
        repetition_penalty: float = 1.0,
        no_repeat_ngram: int | None = None,
        min_new_tokens: int = 0,
        between: Callable[[], None] = lambda: None,
    ):
        if not isinstance(model, Seq2Seq):
            raise DecodingError(
                f"{type(model).__name__} does not translate", fix="use an encoder-decoder model, or continue texts"
            )
        if tokenizer.end is None:
            raise DecodingError(
                "the tokenizer has no `end`, by which a translation would end", fix="name its `end` token"
            )
        self.model, self.tokenizer, self.end = model, tokenizer, tokenizer.end
        self.beams, self.alpha, self.penalty, self.tokens, self.between = beams, alpha, penalty, tokens, between
        self.repetition_penalty, self.no_repeat_ngram = repetition_penalty, no_repeat_ngram
        self.min_new_tokens = min_new_tokens
        self.batch = batch_for(model, batch)
        self.longest = model.config.length
        self.cut = 0
        """How many texts were longer than the model's sequences, and lost their ends."""

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """The best translation of each, on one line; an empty text stays empty."""
        translations = [""] * len(texts)
        kept = [number for number, text in enumerate(texts) if text.strip()]
        rows = self._encode([texts[number] for number in kept])
        by_size: dict[int, list[int]] = defaultdict(list)
        for place in sorted(range(len(rows)), key=lambda place: len(rows[place])):
            by_size[padded_size(len(rows[place]), self.longest)].append(place)
        for size, places in by_size.items():
            for begin in range(0, len(places), self.batch):
                self.between()
                some = places[begin : begin + self.batch]
                for place, text in zip(some, self._translate([rows[place] for place in some], size), strict=True):
                    translations[kept[place]] = text
        return translations

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        """The ids of each text with its end, cut where there are too many."""
        if not texts:
            return []
        ids, lengths = self.tokenizer.encode_all(texts)
        room = self.longest - 1
        self.cut += int((lengths > room).sum())
        return [np.append(row[:room], self.end) for row in np.split(ids, np.cumsum(lengths)[:-1])]

    def _translate(self, rows: list[np.ndarray], size: int) -> list[str]:
        """The translations of at most a batch of rows; it is filled up with the last."""
        padding, most = self.model.config.padding, 3 * size // 2 + ROOM
        batch = [*rows, *[rows[-1]] * (self.batch - len(rows))]
        if padding is not None:
            batch = [np.pad(row, (0, size - len(row)), constant_values=padding) for row in batch]
        hypotheses = beam_search(
            self.model,
            [row.astype(np.int32) for row in batch],
            beams=self.beams,
            alpha=self.alpha,
            penalty=self.penalty,
            end=self.end,
            max_new_tokens=self.tokens or min(most, self.longest),
            repetition_penalty=self.repetition_penalty,
            no_repeat_ngram=self.no_repeat_ngram,
            min_new_tokens=self.min_new_tokens,
        )
        return [re.sub(r"[\r\n]+", " ", text_of(self.tokenizer, best[0])) for best in hypotheses.sequences[: len(rows)]]


def padded_size(length: int, longest: int) -> int:
    """The length that a text is padded to.

    >>> [padded_size(length, 100) for length in (3, 16, 17, 64, 65)]
    [16, 16, 32, 64, 100]
    """
    return min(max(SHORTEST, 1 << (length - 1).bit_length()), max(longest, length))


def batch_for(model: Any, batch: int) -> int:
    """The batch, or the next larger one that divides over a model's mesh."""
    return batch if model.mesh is None or model.layout is None else round_up_batch(batch, model.mesh, model.layout)


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids a model wrote, without `end` and ids the tokenizer has not."""
    return tokenizer.decode([i for i in ids if i < tokenizer.vocab and i != tokenizer.end])
