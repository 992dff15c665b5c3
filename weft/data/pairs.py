"""Sequence-to-sequence datasets: packing of pairs into rows, or length buckets.

Imports nothing of other rooms. Which pairs share a row is a pure function of the pairs' lengths: it is the same in
every epoch and under every seed; what changes is the order of the rows.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .cache import make_once
from .datasets import choose_part, split_place
from .errors import DataError
from .files import Progress, content_key
from .order import permute
from .sources import Source
from .tokenizers import Tokenizer
from .tokens import Tokens, tokenise_pairs

_OPEN_ROWS = 32


class Pairs:
    """The tokens of both sides; those too long are cut, but for their end."""

    def __init__(self, tokens: Tokens, first: int, last: int, rooms: tuple[int, int]):
        self._ids, self.rooms = tokens.ids, rooms
        offsets = np.asarray(tokens.offsets[2 * first : 2 * last + 1])
        self._begins, self._ends = (offsets[0:-1:2], offsets[1::2]), (offsets[1::2], offsets[2::2])
        lengths = [end - begin for begin, end in zip(self._begins, self._ends, strict=True)]
        self.cut = int(((lengths[0] > rooms[0]) | (lengths[1] > rooms[1])).sum())
        self.lengths = tuple(np.minimum(sizes, room) for sizes, room in zip(lengths, rooms, strict=True))

    def __len__(self) -> int:
        return len(self.lengths[0])

    @property
    def tokens(self) -> int:
        """How many tokens there are on both sides."""
        return int(self.lengths[0].sum() + self.lengths[1].sum())

    def write(
        self, side: int, members: np.ndarray, places: np.ndarray, into: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Writes one side of pairs into an array; gives their places and positions."""
        lengths = self.lengths[side][members]
        within = count_each(lengths)
        went = np.repeat(places, lengths) + within
        into.ravel()[went] = self._ids[np.repeat(self._begins[side][members], lengths) + within]
        into.ravel()[places + lengths - 1] = self._ids[self._ends[side][members] - 1]
        return went, within


def count_each(counts: np.ndarray) -> np.ndarray:
    """Numbers from 0 on, so many at a time.

    >>> count_each(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


class PackedPairs:
    """Packed rows of several pairs, told apart by segments from 1 on, 0 where empty."""

    bucket_of = None

    def __init__(self, pairs: Pairs, packing: tuple[np.ndarray, np.ndarray], vocab: int, pad: int):
        self.pairs, self.vocab = pairs, vocab
        self._members, self._offsets = packing
        self._pad = pad

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def tokens(self) -> int:
        """How many tokens there are in all rows, of both sides."""
        return self.pairs.tokens

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        rows = np.flatnonzero(numbers >= 0)
        begins = self._offsets[numbers[rows]]
        counts = self._offsets[numbers[rows] + 1] - begins
        in_row = count_each(counts)
        members = self._members[np.repeat(begins, counts) + in_row]
        row_of = np.repeat(rows, counts)
        inputs, input_segments, input_positions = self._side(0, len(numbers), members, row_of, in_row)
        targets, target_segments, target_positions = self._side(1, len(numbers), members, row_of, in_row)
        return {
            "inputs": inputs,
            "targets": targets,
            "weights": (target_segments > 0).astype(np.float32),
            "input_segments": input_segments,
            "target_segments": target_segments,
            "input_positions": input_positions,
            "target_positions": target_positions,
        }

    def _side(
        self, side: int, rows: int, members: np.ndarray, row_of: np.ndarray, in_row: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, segments and positions of one side; `in_row` numbers pairs in their row."""
        room, lengths = self.pairs.rooms[side], self.pairs.lengths[side][members]
        ids = np.full((rows, room), self._pad, np.int32)
        segments, positions = np.zeros_like(ids), np.zeros_like(ids)
        before = np.cumsum(lengths) - lengths
        firsts = np.flatnonzero(in_row == 0)
        per_row = np.diff(np.append(firsts, len(in_row)))
        places = row_of * room + before - np.repeat(before[firsts], per_row)
        went, within = self.pairs.write(side, members, places, ids)
        segments.ravel()[went] = np.repeat(in_row + 1, lengths)
        positions.ravel()[went] = within
        return ids, segments, positions


class BucketedPairs:
    """A pair a row, padded to the smallest of some lengths that both sides fit in."""

    def __init__(self, pairs: Pairs, lengths: Sequence[int], vocab: int, pad: int):
        self.pairs, self.vocab, self.lengths, self._pad = pairs, vocab, tuple(sorted(lengths)), pad
        self.bucket_of: np.ndarray | None = np.searchsorted(self.lengths, np.maximum(*pairs.lengths))

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def tokens(self) -> int:
        """How many tokens there are in all rows, of both sides."""
        return self.pairs.tokens

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        room, rows = self.lengths[bucket], np.flatnonzero(numbers >= 0)
        inputs, targets = (np.full((len(numbers), room), self._pad, np.int32) for _ in range(2))
        segments, weights = np.zeros_like(inputs), np.zeros(inputs.shape, np.float32)
        segments.ravel()[self.pairs.write(0, numbers[rows], rows * room, inputs)[0]] = 1
        weights.ravel()[self.pairs.write(1, numbers[rows], rows * room, targets)[0]] = 1
        return {"inputs": inputs, "targets": targets, "weights": weights, "input_segments": segments}


def pack(
    input_lengths: np.ndarray, target_lengths: np.ndarray, rooms: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Greedy sequence packing: the pairs of each row, and where each row begins."""
    count = len(input_lengths)
    order = permute(np.arange(count), count, "rows")
    inputs, targets = input_lengths[order].tolist(), target_lengths[order].tolist()
    done: list[list[int]] = []
    rows: list[tuple[int, int, list[int]]] = []  # room left on each side, and the pairs
    for number, read, written in zip(order.tolist(), inputs, targets, strict=True):
        for place, (left, right, members) in enumerate(rows):
            if left >= read and right >= written:
                members.append(number)
                rows[place] = (left - read, right - written, members)
                break
        else:
            if len(rows) == _OPEN_ROWS:
                fullest = min(range(len(rows)), key=lambda i: rows[i][0] + rows[i][1])
                done.append(rows.pop(fullest)[2])
            rows.append((rooms[0] - read, rooms[1] - written, [number]))
    done += [members for _, _, members in rows]
    offsets = np.cumsum([0, *map(len, done)])
    return np.concatenate([np.array(members, np.int64) for members in done]), offsets


def pair_dataset(
    source: Source,
    tokenizer: Tokenizer,
    *,
    length: int | tuple[int, int],
    pack: bool = True,
    buckets: Sequence[int] | None = None,
    part: str = "train",
    cache: Path | str,
    progress: Progress | None = None,
) -> PackedPairs | BucketedPairs:
    """Examples for a model that reads one text and writes another.

    Tokens and the packing are made once and kept in `cache`. Packed, a row holds several pairs; with `buckets`,
    lengths, a batch holds rows of one of these lengths; with neither, a pair a row. A side longer than `length` (of
    inputs, of targets) is cut.
    """
    rooms = (length, length) if isinstance(length, int) else (int(length[0]), int(length[1]))
    if min(rooms) < 2:
        raise DataError(f"rows have length {min(rooms)}", fix="say a length of 2 or more: a token and its end")
    chosen, side = choose_part(source, part)
    tokens, folder = tokenise_pairs(chosen, tokenizer, Path(cache), progress)
    count = tokens.documents // 2
    cut = split_place(chosen, count, "pairs") if side != "all" else 0
    first, last = (0, cut) if side == "head" else (cut, count)
    pairs = Pairs(tokens, first, last, rooms)
    pad = tokenizer.pad or 0
    if buckets is not None or not pack:
        lengths = [*(size for size in buckets or () if size < max(rooms)), max(rooms)]
        if min(lengths) < 1:
            raise DataError(f"a bucket has length {min(lengths)}", fix="say lengths of 1 or more")
        return BucketedPairs(pairs, lengths, tokens.vocab, pad)
    return PackedPairs(pairs, cached_packing(pairs.lengths, rooms, folder, (first, last)), tokens.vocab, pad)


def cached_packing(
    lengths: Sequence[np.ndarray], rooms: tuple[int, int], folder: Path, part: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """The packing of a part of what a folder of the cache holds; made once."""

    def make(entry: Path) -> None:
        members, offsets = pack(lengths[0], lengths[1], rooms)
        np.save(entry / "members.npy", members)
        np.save(entry / "offsets.npy", offsets)

    key = content_key(folder.name, rooms, part, _OPEN_ROWS)
    entry = make_once(folder.parent, f"rows-{key}", make)
    return np.load(entry / "members.npy", mmap_mode="r"), np.load(entry / "offsets.npy", mmap_mode="r")
