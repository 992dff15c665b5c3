"""Language-model datasets: documents packed into windows, or a document a row.

Imports nothing of other rooms. A window's documents do not see each other: `segments` number them from 1 (0 is
padding), `positions` count from each one's start, or from the row's where it goes on from the row before.
"""

from pathlib import Path

import numpy as np

from .datasets import choose_part, split_place
from .errors import DataError
from .files import Progress
from .sliding import Sliding, SlidingWindows
from .sources import Source
from .tokenizers import Tokenizer
from .tokens import Tokens, tokenise


class Windows:
    """Packed rows: windows of `length` tokens, cut from a stream of documents.

    Each token is in one row; with a `stride`, rows begin so many tokens one after another, and overlap.
    `inputs` are the tokens before the `targets`: 0 where a document starts, and at a row's
    start the last token of the row before if the document goes on. With `is_stream`, documents are one stream and see
    each other.
    """

    bucket_of = None

    def __init__(self, tokens: Tokens, length: int, *, is_stream: bool = False, stride: int | None = None):
        self._tokens, self._length, self._stride = tokens, length, stride or length
        self._is_stream = is_stream or tokens.documents == 1
        self.vocab: int | None = tokens.vocab

    def __len__(self) -> int:
        count = len(self._tokens.ids)
        return max(-(-(count - self._length) // self._stride), 0) + 1 if count else 0

    @property
    def tokens(self) -> int:
        """How many tokens there are in all rows; one in several rows counts once."""
        return len(self._tokens.ids)

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        ids, length = self._tokens.ids, self._length
        targets = np.zeros((len(numbers), length), np.int32)
        inputs, starts = np.zeros_like(targets), np.zeros((len(numbers), length), bool)
        weights = np.zeros((len(numbers), length), np.float32)
        for row, number in enumerate(numbers):
            if number < 0:
                continue
            begin = int(number) * self._stride
            window = ids[begin : begin + length]
            size = len(window)
            targets[row, :size], weights[row, :size] = window, 1
            inputs[row, 1:size] = window[:-1]
            if begin:
                inputs[row, 0] = ids[begin - 1]
            if not self._is_stream:
                starts[row, self._starts(begin, begin + size)] = True
        if self._is_stream:
            return {"inputs": inputs, "targets": targets, "weights": weights}
        inputs[starts] = 0
        segments, positions = segments_and_positions(starts, weights > 0)
        return {
            "inputs": inputs,
            "targets": targets,
            "weights": weights,
            "segments": segments,
            "positions": positions,
        }

    def _starts(self, begin: int, end: int) -> np.ndarray:
        """Where documents start between two places of the stream."""
        offsets = self._tokens.offsets
        low, high = np.searchsorted(offsets, [begin, end])
        return offsets[low:high] - begin


def segments_and_positions(starts: np.ndarray, is_there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Segments from 1 on and positions from 0 on; both are 0 where nothing is.

    >>> starts = np.array([[0, 0, 1, 0, 0]], bool)
    >>> [x.tolist() for x in segments_and_positions(starts, np.array([[1, 1, 1, 1, 0]], bool))]
    [[[1, 1, 2, 2, 0]], [[0, 1, 0, 1, 0]]]
    """
    first = starts.copy()
    first[:, 0] = True
    here = np.arange(starts.shape[1], dtype=np.int32)
    began = np.maximum.accumulate(np.where(first, here, 0), axis=1)
    segments = np.cumsum(first, axis=1, dtype=np.int32)
    return np.where(is_there, segments, 0).astype(np.int32), np.where(is_there, here - began, 0).astype(np.int32)


class Documents:
    """A document a row, cut or padded to `length`; `weights` are 0 on padding."""

    bucket_of = None

    def __init__(self, tokens: Tokens, length: int, pad: int | None):
        self._tokens, self._length, self._pad = tokens, length, pad or 0
        self.vocab: int | None = tokens.vocab

    def __len__(self) -> int:
        return self._tokens.documents

    @property
    def tokens(self) -> int:
        """How many tokens there are in all rows."""
        return int(np.minimum(np.diff(self._tokens.offsets), self._length).sum())

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        tokens = np.full((len(numbers), self._length), self._pad, np.int32)
        weights = np.zeros((len(numbers), self._length), np.float32)
        for row, number in enumerate(numbers):
            ids = self._tokens.document(int(number))[: self._length] if number >= 0 else ()
            tokens[row, : len(ids)], weights[row, : len(ids)] = ids, 1
        return {"tokens": tokens, "weights": weights}


def lm_dataset(
    source: Source,
    tokenizer: Tokenizer | None = None,
    *,
    length: int,
    pack: bool = True,
    across: bool = False,
    stride: int | None = None,
    part: str = "train",
    sliding: Sliding | None = None,
    cache: Path | str,
    progress: Progress | None = None,
) -> Windows | Documents | SlidingWindows:
    """Examples for a language model; tokens are made once and kept in `cache`.

    Packed, rows are windows of the documents one after the other, which do not see each other unless `across`
    (there are no segments then, nor where there is one document); else a document a row, cut at `length`. With a
    `stride` windows begin so many tokens one after another, and overlap.
    A share held out begins at a document's start where one follows; a number of tokens is held out exactly.
    Where they are `sliding`, windows go over all documents as one stream.
    """
    if length < 1:
        raise DataError(f"rows have length {length}", fix="say a length of 1 or more")
    if stride is not None and not 1 <= stride <= length:
        raise DataError(f"`stride` is {stride}, and rows have length {length}", fix=f"say one from 1 to {length}")
    chosen, side = choose_part(source, part)
    tokens = tokenise(chosen, tokenizer, Path(cache), progress)
    if side != "all":
        cut = _split_place(chosen, tokens)
        tokens = tokens.between(0, cut) if side == "head" else tokens.between(cut, len(tokens.ids))
    if sliding is not None:
        return SlidingWindows(tokens, sliding, chosen.end if tokenizer is None else tokenizer.end)
    if pack:
        return Windows(tokens, length, is_stream=across, stride=stride)
    return Documents(tokens, length, tokenizer.pad if tokenizer is not None else None)


def _split_place(source: Source, tokens: Tokens) -> int:
    cut = split_place(source, len(tokens.ids), "tokens")
    if isinstance(source.held_out, int):
        return cut
    later = int(tokens.offsets[np.searchsorted(tokens.offsets, cut)])
    return later if later < len(tokens.ids) else cut
