"""Texts continued from prompts, to any length.

A model without room left in its sequences goes on from what it wrote last. Imports the data and decoding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ..data import Tokenizer
from ..models import TransformerLM
from .generate import generate
from .speculative import AHEAD
from .translate import DecodingError, batch_for, text_of

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
    seed: int = 0,
    draft: Any = None,
    ngrams: int | None = None,
    ahead: int = AHEAD,
) -> list[Continued]:
    """Every prompt with up to `tokens` more, and so many `samples` of each.

    A text ends with the tokenizer's `end`. With `is_begun` a prompt is the beginning of a text, else it is from the
    middle of one. A model learned sequences of its config's `length`: where that is full, it goes on from the last part
    of it. Tokens are chosen, and proposed by a `draft` or by `ngrams`, as in `decode.generate`.
    """
    if not isinstance(model, TransformerLM):
        raise DecodingError(f"{type(model).__name__} does not continue texts", fix="use a language model")
    prompts = [prompt for prompt in prompts for _ in range(samples)]
    rows = [_encode(tokenizer, prompt, is_begun) for prompt in prompts]
    written: list[list[int]] = [[] for _ in rows]
    ended = [False] * len(rows)
    shares = []
    for number, (seen, steps) in enumerate(windows(max(map(len, rows)), tokens, model.config.length)):
        new = generate(
            model,
            [(row + more)[-seen:] for row, more in zip(rows, written, strict=True)],
            max_new_tokens=steps,
            end=tokenizer.end,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            key=jax.random.fold_in(jax.random.key(seed), number),
            layout=_layout(model, len(rows)),
            draft=draft,
            ngrams=ngrams,
            ahead=ahead,
        )
        shares += [] if new.accepted is None else [new.accepted]
        for place, ids in enumerate(new.sequences):
            if not ended[place]:
                written[place] = (written[place] + ids)[:tokens]
                ended[place] = written[place][-1:] == [tokenizer.end]
        if all(ended):
            break
    accepted = sum(shares) / len(shares) if shares else None
    return [
        Continued(prompt, _join(tokenizer, prompt, row, more), len(more), is_ended, accepted)
        for prompt, row, more, is_ended in zip(prompts, rows, written, ended, strict=True)
    ]


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
