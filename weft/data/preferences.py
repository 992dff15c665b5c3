"""Preferences: a prompt, the answer that was chosen, and the rejected one.

Imports nothing of other rooms. A pair is two texts that begin with the same prompt, a row each: what DPO learns by.
Only the answers count.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .chats import Answers, Marked, shift, tell_of_cuts, tokenise_answers
from .datasets import choose_part, split_place
from .errors import DataError
from .files import Progress, content_key
from .messages import Message, messages_in, text_of
from .records import place_in
from .sources import Source
from .templates import ChatTemplate, RunningTemplate
from .tokenizers import Tokenizer

SIDES = ("chosen", "rejected")
_VERSION = 1


class Preferences:
    """Rows of pairs: `chosen_` and `rejected_` inputs, targets and weights.

    `weights` of the rows are 0 where there is no pair.
    """

    bucket_of = None

    def __init__(self, answers: Answers, members: np.ndarray, length: int):
        self._answers, self._members, self._length = answers, members, length
        self.vocab: int | None = answers.vocab

    def __len__(self) -> int:
        return len(self._members)

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        batch: dict[str, np.ndarray] = {"weights": (numbers >= 0).astype(np.float32)}
        for side, name in enumerate(SIDES):
            inputs = np.zeros((len(numbers), self._length), np.int32)
            targets, weights = np.zeros_like(inputs), np.zeros(inputs.shape, np.float32)
            for row in np.flatnonzero(numbers >= 0):
                member = 2 * int(self._members[numbers[row]]) + side
                parts = shift(self._answers, member, self._length)
                for array, part in zip((inputs, targets, weights), parts, strict=True):
                    array[row, : len(part)] = part
            batch |= {f"{name}_inputs": inputs, f"{name}_targets": targets, f"{name}_weights": weights}
        return batch


def preference_dataset(
    source: Source,
    tokenizer: Tokenizer,
    template: ChatTemplate | None = None,
    *,
    length: int,
    part: str = "train",
    cache: Path | str,
    progress: Progress | None = None,
) -> Preferences:
    """Pairs of answers; made once, kept in `cache`.

    Texts stand as they are, one after the other; messages are written by the template.
    """
    if length < 1:
        raise DataError(f"rows have length {length}", fix="say a length of 1 or more")
    chosen, side = choose_part(source, part)
    if chosen.format != "preferences":
        raise DataError(f"a source of {chosen.format} has no preferences", fix='say `format = "preferences"`')

    def mark() -> Iterator[Marked]:
        with _PairTexts(template) as texts:
            for file in chosen.files:
                watch = chosen.watch("tokenising", progress)
                for number, record in chosen.records(file, SIDES, ("prompt",), watch):
                    yield from texts.of(record, place_in(file, number))

    name = content_key("preferences", _VERSION, chosen.key(Path(cache)), tokenizer.key, template and template.key)
    answers, _ = tokenise_answers(f"preferences-{name}", chosen, tokenizer, mark, Path(cache))
    first, last = 0, len(answers) // 2
    if side != "all":
        cut = split_place(chosen, last, "pairs")
        first, last = (0, cut) if side == "head" else (cut, last)
    here = slice(2 * first, 2 * last)
    members = first + np.flatnonzero((answers.firsts[here].reshape(-1, 2) <= length).all(axis=1))
    lengths = (np.diff(answers.offsets)[here] - 1).reshape(-1, 2).max(axis=1)
    tell_of_cuts(chosen, lengths, len(members), length, "pairs")
    return Preferences(answers, members, length)


class _PairTexts:
    """Writes pairs as texts; the template runs from the first that needs it on."""

    def __init__(self, template: ChatTemplate | None):
        self._template = template
        self._context: Any = None
        self._running: RunningTemplate | None = None

    def __enter__(self) -> "_PairTexts":
        return self

    def __exit__(self, *error: Any) -> None:
        if self._context is not None:
            self._context.__exit__(*error)

    def of(self, record: Mapping[str, Any], place: str) -> Iterator[Marked]:
        """Both texts of a record, the chosen one first."""
        if not isinstance(record.get("chosen"), list | Mapping):
            prompt, *answers = (text_of(record, name, place) for name in ("prompt", *SIDES))
            for what, text in zip(("prompt", *SIDES), (prompt, *answers), strict=True):
                if not text:
                    raise DataError(f"{place} has an empty `{what}`", fix="write it, or take the line out")
            for answer in answers:
                yield Marked(prompt + answer, [(len(prompt), len(prompt) + len(answer))], has_end=True)
            return
        prompt_messages, both = _messages_of(record, place)
        for answer_messages in both:
            messages = [*prompt_messages, *answer_messages]
            text, spans = self._run(place).mark(messages, "all", place, since=len(prompt_messages))
            yield Marked(text, spans)

    def _run(self, place: str) -> RunningTemplate:
        if self._running is None:
            if self._template is None:
                raise DataError(
                    f"{place} holds messages, and no template says how they are written",
                    fix='say `template = "chatml"` in `data`, or a tokenizer with a tokenizer_config.json',
                )
            self._context = self._template.running()
            self._running = self._context.__enter__()
        return self._running


def _messages_of(record: Mapping[str, Any], place: str) -> tuple[list[Message], list[list[Message]]]:
    """The messages of the prompt, and those of both answers."""
    both = [messages_in(record, side, place) for side in SIDES]
    prompt = record.get("prompt")
    if isinstance(prompt, list):
        before = messages_in(record, "prompt", place)
    elif isinstance(prompt, str) and not all(m and m[0] == {"role": "user", "content": prompt} for m in both):
        before = [{"role": "user", "content": text_of(record, "prompt", place)}]
    else:  # both are whole conversations
        same = [one == other and one["role"] != "assistant" for one, other in zip(*both, strict=False)]
        count = next((i for i, is_same in enumerate(same) if not is_same), len(same))
        before, both = both[0][:count], [messages[count:] for messages in both]
    for side, messages in zip(SIDES, both, strict=True):
        if not any(message["role"] == "assistant" and message["content"] for message in messages):
            raise DataError(
                f"`{side}` in {place} has no answer of its own",
                state=f"{len(before)} messages of both are the prompt",
                fix='end it with `{"role": "assistant", "content": "..."}`',
            )
    if not before:
        raise DataError(f"{place} has no prompt", fix="write `prompt`, or begin both answers with it")
    return before, both
