"""Texts continued from prompts, to any length.

A model without room left in its sequences goes on from what it wrote last. Imports the data and decoding.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..data import Tokenizer
from ..models import TransformerLM
from .generate import generate
from .speculative import AHEAD
from .translate import DecodingError, batch_for, padded_size, text_of

START = 0  # what a language model saw before the first token of a text


@dataclass(frozen=True)
class Continued:
    """A prompt and what followed it."""

    prompt: str
    text: str
    """Both."""
    tokens: int
    """How many were written."""
    is_ended: bool
    """Whether the model ended it."""
    accepted: float | None = None
    """Of the tokens proposed to all texts (speculative decoding), the share that was taken."""


def continue_texts(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    tokens: int = 200,
    samples: int = 1,
    is_begun: bool = False,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int | None = None,
    min_new_tokens: int = 0,
    ends: Sequence[int] = (),
    seed: int = 0,
    draft: Any = None,
    ngrams: int | None = None,
    ahead: int = AHEAD,
    stream: Callable[[str], None] | None = None,
    part: int | None = None,
) -> list[Continued]:
    """Every prompt with up to `tokens` more, and so many `samples` of each.

    A text ends with the tokenizer's `end`, or one of the ids `ends`. With `is_begun` a prompt is the beginning of a
    text, else it is from the middle of one. A model learned sequences of its config's `length`: where that is full, it
    goes on from the last part of it. Tokens are chosen, and proposed by a `draft` or by `ngrams`, as in
    `decode.generate`; of what is not to be repeated, it knows what it looks at. `stream` is told one text piece by
    piece. A `part` is a number among many calls: each draws anew, and lengths are rounded up, so that one program
    serves most of them.
    """
    if not isinstance(model, TransformerLM):
        raise DecodingError(f"{type(model).__name__} does not continue texts", fix="use a language model")
    texts = _Texts(tokenizer, [prompt for prompt in prompts for _ in range(samples)], is_begun, ends, tokens)
    told = None if stream is None else texts.tell(stream)
    longest, key, shares = max(map(len, texts.rows)), jax.random.key(seed), list[float]()
    if part is not None:
        longest, key = padded_size(longest, model.config.length), jax.random.fold_in(key, part)
    for number, (seen, steps) in enumerate(windows(longest, tokens, model.config.length)):
        new = generate(
            model,
            texts.last(seen),
            max_new_tokens=steps,
            end=texts.ends or None,
            min_new_tokens=max(min_new_tokens - max(map(len, texts.written)), 0) if texts.ends else 0,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram=no_repeat_ngram,
            key=jax.random.fold_in(key, number),
            layout=_layout(model, len(texts.rows)),
            draft=draft,
            ngrams=ngrams,
            ahead=ahead,
            stream=told,
            padded=None if part is None else seen,
        )
        shares += [] if new.accepted is None else [new.accepted]
        texts.add(new.sequences)
        if all(texts.ended):
            break
    if told is not None:
        told.close()
    return texts.conclude(sum(shares) / len(shares) if shares else None)


def unseen(model: TransformerLM, tokenizer: Tokenizer, prompt: str, *, tokens: int, is_begun: bool) -> int:
    """How many of a prompt's first tokens the model has no room to look at."""
    count = len(_encode(tokenizer, prompt, is_begun))
    return count - next(windows(count, tokens, model.config.length))[0]


class _Texts:
    """Prompts, and what was written after each."""

    def __init__(
        self, tokenizer: Tokenizer, prompts: list[str], is_begun: bool, ends: Sequence[int], most: int
    ) -> None:
        self._tokenizer, self._prompts, self._most = tokenizer, prompts, most
        self.rows = [_encode(tokenizer, prompt, is_begun) for prompt in prompts]
        self.ends = [*([] if tokenizer.end is None else [tokenizer.end]), *ends]
        self.written: list[list[int]] = [[] for _ in prompts]
        self.ended = [False] * len(prompts)

    def last(self, seen: int) -> list[list[int]]:
        """The last tokens of each."""
        return [(row + more)[-seen:] for row, more in zip(self.rows, self.written, strict=True)]

    def add(self, sequences: list[list[int]]) -> None:
        """More tokens of each that has not ended."""
        for place, ids in enumerate(sequences):
            if not self.ended[place]:
                self.written[place] = (self.written[place] + ids)[: self._most]
                self.ended[place] = self.written[place][-1] in self.ends

    def tell(self, stream: Callable[[str], None]) -> "Pieces":
        """What tells the one text that there is."""
        if len(self.rows) != 1:
            raise DecodingError(
                f"{len(self.rows)} texts are written at once, and one can be told as it comes",
                fix="give one prompt and one sample, or write them when all are there",
            )
        return Pieces(lambda ids: self._text(0, ids), self._most, stream)

    def conclude(self, accepted: float | None) -> list[Continued]:
        return [
            Continued(prompt, self._text(place, ids), len(ids), is_ended, accepted)
            for place, (prompt, ids, is_ended) in enumerate(zip(self._prompts, self.written, self.ended, strict=True))
        ]

    def _text(self, place: int, ids: Sequence[int]) -> str:
        return _join(self._tokenizer, self._prompts[place], self.rows[place], ids)


class Pieces:
    """Tells a text piece by piece: what it is made of never parts a character."""

    def __init__(self, text_of: Callable[[Sequence[int]], str], most: int, tell: Callable[[str], None]):
        self._text_of, self._most, self._tell = text_of, most, tell
        self._ids: list[int] = []
        self._told = ""
        self._tell_up_to(text_of([]))

    def __call__(self, tokens: np.ndarray) -> None:
        """Another token: what follows of the text, but for the begin of a character."""
        self._ids = [*self._ids, int(tokens[0])][: self._most]
        self._tell_up_to(self._text_of(self._ids).rstrip("\N{REPLACEMENT CHARACTER}"))

    def close(self) -> None:
        """What was held back."""
        self._tell_up_to(self._text_of(self._ids))

    def _tell_up_to(self, text: str) -> None:
        if text.startswith(self._told) and text != self._told:  # a tokenizer may take back blanks, until more comes
            self._tell(text[len(self._told) :])
            self._told = text


def windows(longest: int, tokens: int, room: int) -> Iterator[tuple[int, int]]:
    """How many tokens are looked at and how many follow, in sequences of `room`.

    After the first window all have one shape; at least the half of a sequence is looked at.

    >>> list(windows(10, 40, 64)), list(windows(10, 120, 64)), list(windows(90, 40, 64))
    ([(10, 40)], [(10, 54), (42, 22), (42, 22), (42, 22)], [(44, 20), (44, 20)])
    """
    half = max(room // 2, 1)
    first = min(tokens, room - longest)
    if first >= min(tokens, half):
        yield longest, first
        tokens -= first
    if tokens > 0:
        count = -(-tokens // half)
        steps = -(-tokens // count)
        yield from [(max(room - steps, 1), steps)] * count


def _encode(tokenizer: Tokenizer, prompt: str, is_begun: bool) -> list[int]:
    ids = [*([START] if is_begun else []), *tokenizer.encode(prompt)]
    if not ids:
        raise DecodingError("the prompt is empty", fix="give it some text to go on from")
    return ids


def _join(tokenizer: Tokenizer, prompt: str, ids: Sequence[int], more: Sequence[int]) -> str:
    """The prompt and what followed, decoded together: tokens depend on those before."""
    prompt_ids = list(ids)[-len(tokenizer.encode(prompt)) :] if prompt else []
    before, whole = tokenizer.decode(prompt_ids), text_of(tokenizer, [*prompt_ids, *more])
    return prompt + whole[len(before) :] if whole.startswith(before) else whole


def _layout(model: Any, rows: int) -> Any:
    """The model's layout (None), or one without `batch` where the rows do not divide."""
    return model.layout.drop("batch") if batch_for(model, rows) != rows else None
