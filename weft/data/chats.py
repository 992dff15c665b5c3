"""Chats: conversations as tokens, of which only the answers are learned (SFT).

Imports errors and small_files alone. Conversations are packed whole into rows and do not see each other. A row's
`targets` are the tokens after its `inputs`, and `weights` are 1 where these belong to an answer.
"""

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import WeftWarning, user_stacklevel
from ..small_files import Reader
from .cache import make_once
from .datasets import choose_part, split_place
from .errors import DataError
from .files import Progress, content_key
from .pairs import cached_packing, count_each
from .sources import Source
from .templates import ChatTemplate, Span
from .tokenizers import Tokenizer
from .tokens import id_type

_AT_ONCE = 256  # chats given to a tokenizer at a time
_VERSION = 1
_IDS, _ANSWERS, _OFFSETS, _FIRSTS, _ABOUT = "tokens.bin", "answers.bin", "offsets.npy", "firsts.npy", "told.json"


class Marked(NamedTuple):
    """A text, and which letters of it are learned."""

    text: str
    spans: Sequence[Span]
    has_end: bool = False
    """Whether the tokenizer's end follows, which is learned too."""


@dataclass(frozen=True)
class Answers:
    """Texts as tokens: which are learned, and where in each the first of them is."""

    ids: np.ndarray
    is_answer: np.ndarray
    offsets: np.ndarray
    firsts: np.ndarray
    vocab: int

    def __len__(self) -> int:
        return len(self.firsts)


class Conversations:
    """Packed rows of whole conversations; one too long for a row is cut at its end.

    One whose answers all come after that is left out.
    """

    bucket_of = None

    def __init__(self, answers: Answers, members: np.ndarray, packing: tuple[np.ndarray, np.ndarray], length: int):
        self._answers, self._length = answers, length
        self.vocab: int | None = answers.vocab
        self._members, (self._packed, self._offsets) = members, packing

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def conversations(self) -> int:
        """How many conversations there are in all rows."""
        return len(self._members)

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        rows = np.flatnonzero(numbers >= 0)
        begins = self._offsets[numbers[rows]]
        counts = self._offsets[numbers[rows] + 1] - begins
        in_row = count_each(counts)
        members = self._members[self._packed[np.repeat(begins, counts) + in_row]]
        row_of = np.repeat(rows, counts)
        made = {name: np.zeros((len(numbers), self._length), np.int32) for name in _NAMES}
        weights = np.zeros((len(numbers), self._length), np.float32)
        place = 0
        for member, row, number in zip(members.tolist(), row_of.tolist(), in_row.tolist(), strict=True):
            inputs, targets, is_answer = shift(self._answers, member, self._length)
            place = place if number else 0
            here = slice(place, place := place + len(inputs))
            made["inputs"][row, here], made["targets"][row, here], weights[row, here] = inputs, targets, is_answer
            made["segments"][row, here], made["positions"][row, here] = number + 1, np.arange(len(inputs))
        return {"weights": weights, **made}


_NAMES = ("inputs", "targets", "segments", "positions")


def shift(answers: Answers, number: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens of a text before its last, those after its first, and which count."""
    begin, end = (int(place) for place in answers.offsets[number : number + 2])
    end = min(end, begin + length + 1)
    ids = answers.ids[begin:end]
    return ids[:-1], ids[1:], answers.is_answer[begin + 1 : end]


def chat_dataset(
    source: Source,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    *,
    length: int,
    pack: bool = True,
    part: str = "train",
    cache: Path | str,
    progress: Progress | None = None,
) -> Conversations:
    """Examples for a language model that learns to answer, kept in `cache`.

    Packed, a row holds several conversations; else one. What is held out are conversations at the end.
    """
    if length < 1:
        raise DataError(f"rows have length {length}", fix="say a length of 1 or more")
    chosen, side = choose_part(source, part)

    def mark() -> Iterator[Marked]:
        with template.running() as running:
            for place, messages in chosen.conversations(chosen.watch("tokenising", progress)):
                yield Marked(*running.mark(messages, chosen.answers, place))

    key = content_key("chats", _VERSION, chosen.key(Path(cache)), tokenizer.key, template.key)
    answers, folder = tokenise_answers(f"chats-{key}", chosen, tokenizer, mark, Path(cache))
    first, last = 0, len(answers)
    if side != "all":
        cut = split_place(chosen, len(answers), "chats")
        first, last = (0, cut) if side == "head" else (cut, last)
    members = first + np.flatnonzero(answers.firsts[first:last] <= length)
    lengths = np.diff(answers.offsets)[first:last] - 1
    tell_of_cuts(chosen, lengths, len(members), length, "chats")
    sizes = np.minimum(lengths[members - first], length)
    if not pack:
        return Conversations(answers, members, (np.arange(len(members)), np.arange(len(members) + 1)), length)
    rooms = (length, length)
    return Conversations(answers, members, cached_packing((sizes, sizes), rooms, folder, (first, last)), length)


def tell_of_cuts(source: Source, lengths: np.ndarray, kept: int, length: int, what: str) -> None:
    """Says how many texts are too long; raises where nothing is left."""
    fix = f"say a longer `train.length`, up to {int(lengths.max(initial=1))}"
    if not kept:
        raise DataError(
            f"none of the {what} of {source.files[0]} has an answer within its first {length} tokens", fix=fix
        )
    if cut := int((lengths > length).sum()):
        text = f"{cut:,} of {len(lengths):,} {what} are longer than {length} tokens and are cut"
        left_out = f"; {len(lengths) - kept:,} whose answers come later are left out" if kept < len(lengths) else ""
        warnings.warn(f"{text}{left_out}. fix: {fix}", WeftWarning, stacklevel=user_stacklevel())


def tokenise_answers(name: str, source: Source, tokenizer: Tokenizer, marked: Any, cache: Path) -> tuple[Answers, Path]:
    """The tokens of marked texts and which of them are learned; and their folder."""

    def make(entry: Path) -> None:
        dtype, total = id_type(tokenizer.vocab), 0
        offsets, firsts = [0], []
        with open(entry / _IDS, "wb") as ids_file, open(entry / _ANSWERS, "wb") as answers_file:
            for ids, is_answer in _encode(tokenizer, marked()):
                ids_file.write(np.asarray(ids, dtype).data)
                answers_file.write(is_answer.astype(np.uint8).data)
                total += len(ids)
                offsets.append(total)
                firsts.append(int(np.argmax(is_answer[1:])) + 1 if is_answer[1:].any() else len(ids))
        if not firsts:
            raise DataError(f"there is nothing in {source.files[0]} to learn", fix="give a file that has some lines")
        np.save(entry / _OFFSETS, np.array(offsets, np.int64))
        np.save(entry / _FIRSTS, np.array(firsts, np.int64))
        about = {"vocab": tokenizer.vocab, "files": list(source.names), "version": _VERSION}
        (entry / _ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")

    folder = make_once(cache, name, make)
    vocab = Reader(DataError, "remove that folder; it is made anew").json(folder / _ABOUT, {"vocab": int})["vocab"]
    ids = np.memmap(folder / _IDS, id_type(vocab), "r").view(np.ndarray)
    is_answer = np.memmap(folder / _ANSWERS, np.uint8, "r").view(np.ndarray)
    offsets, firsts = (np.load(folder / name, mmap_mode="r").view(np.ndarray) for name in (_OFFSETS, _FIRSTS))
    return Answers(ids, is_answer, offsets, firsts, vocab), folder


def _encode(tokenizer: Tokenizer, marked: Iterator[Marked]) -> Iterator[tuple[Sequence[int], np.ndarray]]:
    """The ids of each text, and which of them have a letter that is learned."""
    waiting: list[Marked] = []

    def encode() -> Iterator[tuple[Sequence[int], np.ndarray]]:
        encoded = tokenizer.encode_places([each.text for each in waiting])
        for (ids, places), each in zip(encoded, waiting, strict=True):
            is_answer = np.zeros(len(ids), bool)
            for begin, end in each.spans:
                is_answer |= (places[:, 0] < end) & (places[:, 1] > begin)
            if each.has_end and tokenizer.end is not None:
                ids, is_answer = [*ids, tokenizer.end], np.append(is_answer, True)
            yield ids, is_answer

    for each in marked:
        waiting.append(each)
        if len(waiting) == _AT_ONCE:
            yield from encode()
            waiting = []
    yield from encode()
