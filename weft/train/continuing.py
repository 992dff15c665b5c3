"""Texts that go on from prompts, of any length: a model that has no room left goes on from what it wrote last.

Imports the data and decoding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from .. import data
from ..decode import generate
from ..models import TransformerLM
from .translating import DecodingError, batch_for, text_of

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


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How tokens are chosen, as in `decode.generate`."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


DRAWING = Drawing()


def continued(
    model: Any,
    tokenizer: data.Tokenizer,
    prompts: Sequence[str],
    *,
    tokens: int = 200,
    samples: int = 1,
    is_begun: bool = False,
    drawing: Drawing = DRAWING,
) -> list[Continued]:
    """Every prompt with up to `tokens` more, so many `samples` of each; a text ends with the tokenizer's `end`.

    With `is_begun` a prompt is the beginning of a text, else it is from the middle of one. A model learned sequences
    of its config's `length`: where that is full, it goes on from the last part of it.
    """
    if not isinstance(model, TransformerLM):
        raise DecodingError(f"{type(model).__name__} does not continue texts", fix="use a language model")
    ids = [_ids(tokenizer, prompt, is_begun) for prompt in prompts]
    given = [row for row in ids for _ in range(samples)]
    written: list[list[int]] = [[] for _ in given]
    ended = [False] * len(given)
    for piece, (seen, steps) in enumerate(pieces(max(map(len, given)), tokens, model.config.length)):
        found = generate(
            model,
            [(row + more)[-seen:] for row, more in zip(given, written, strict=True)],
            max_new_tokens=steps,
            end=tokenizer.end,
            temperature=drawing.temperature,
            top_k=drawing.top_k,
            top_p=drawing.top_p,
            key=jax.random.fold_in(jax.random.key(drawing.seed), piece),
            layout=_layout(model, len(given)),
        )
        for row, new in enumerate(found.sequences):
            if not ended[row]:
                written[row] = (written[row] + new)[:tokens]
                ended[row] = written[row][-1:] == [tokenizer.end]
        if all(ended):
            break
    texts = [prompt for prompt in prompts for _ in range(samples)]
    return [
        Continued(prompt, _joined(tokenizer, prompt, row, more), len(more), is_ended)
        for prompt, row, more, is_ended in zip(texts, given, written, ended, strict=True)
    ]


def pieces(longest: int, tokens: int, room: int) -> Iterator[tuple[int, int]]:
    """How many tokens are looked at and how many follow, piece after piece, in sequences of `room`.

    After the first piece all have one shape; at least the half of a sequence is looked at.

    >>> list(pieces(10, 40, 64)), list(pieces(10, 120, 64)), list(pieces(90, 40, 64))
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


def _ids(tokenizer: data.Tokenizer, prompt: str, is_begun: bool) -> list[int]:
    found = [*([START] if is_begun else []), *tokenizer.encode(prompt)]
    if not found:
        raise DecodingError("the prompt is empty", fix="give it some text to go on from")
    return found


def _joined(tokenizer: data.Tokenizer, prompt: str, ids: Sequence[int], more: Sequence[int]) -> str:
    """The prompt as it was given, and what followed; read together, since some pieces depend on those before them."""
    own = list(ids)[-len(tokenizer.encode(prompt)) :] if prompt else []
    before, whole = tokenizer.decode(own), text_of(tokenizer, [*own, *more])
    return prompt + whole[len(before) :] if whole.startswith(before) else whole


def _layout(model: Any, rows: int) -> Any:
    """The model's layout; where so few rows do not divide over the processors, all of them compute each."""
    return model.layout.drop("batch") if batch_for(model, rows) != rows else None
