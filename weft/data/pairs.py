"""Examples for models that read one text and write another: several packed into a row, or rows of like length.

Imports the errors of the house alone. The plan of which pairs share a row is a pure function of the pairs' lengths: it
is the same in every epoch and under every seed; what changes is the order of the rows.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .cache import made_once
from .files import Progress, content_key
from .order import permuted
from .parts import border, chosen
from .problems import DataError
from .sources import Source
from .tokenizers import Tokenizer
from .tokens import Tokens, tokenised_pairs

_OPEN_ROWS = 32


class Pairs:
    """The tokens of both sides by number; those longer than there is room for are cut, and keep their end."""

    def __init__(self, tokens: Tokens, first: int, last: int, rooms: tuple[int, int]):
        self._ids, self.rooms = tokens.ids, rooms
        offsets = np.asarray(tokens.offsets[2 * first : 2 * last + 1])
        self._begins, self._ends = (offsets[0:-1:2], offsets[1::2]), (offsets[1::2], offsets[2::2])
        found = [end - begin for begin, end in zip(self._begins, self._ends, strict=True)]
        self.cut = int(((found[0] > rooms[0]) | (found[1] > rooms[1])).sum())
        self.lengths = tuple(np.minimum(sizes, room) for sizes, room in zip(found, rooms, strict=True))

    def __len__(self) -> int:
        return len(self.lengths[0])

    @property
    def tokens(self) -> int:
        """How many tokens there are on both sides."""
        return int(self.lengths[0].sum() + self.lengths[1].sum())

    def lay(
        self, side: int, members: np.ndarray, places: np.ndarray, into: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lays one side of some pairs into an array, each from a place of the flat array on.

        Gives where their tokens went, and the position of each within its pair.
        """
        lengths = self.lengths[side][members]
        within = counted(lengths)
        went = np.repeat(places, lengths) + within
        into.ravel()[went] = self._ids[np.repeat(self._begins[side][members], lengths) + within]
        into.ravel()[places + lengths - 1] = self._ids[self._ends[side][members] - 1]
        return went, within


def counted(counts: np.ndarray) -> np.ndarray:
    """Numbers from 0 on, so many at a time.

    >>> counted(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


class PackedPairs:
    """Rows of several pairs each, which do not see each other: segments from 1 on, 0 where nothing is."""

    bucket_of = None

    def __init__(self, pairs: Pairs, plan: tuple[np.ndarray, np.ndarray], vocab: int, pad: int):
        self.pairs, self.vocab = pairs, vocab
        self._members, self._offsets = plan
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
        in_row = counted(counts)
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
        """Ids, segments and positions of one side; `in_row` is which pair of its row each is."""
        room, lengths = self.pairs.rooms[side], self.pairs.lengths[side][members]
        ids = np.full((rows, room), self._pad, np.int32)
        segments, positions = np.zeros_like(ids), np.zeros_like(ids)
        before = np.cumsum(lengths) - lengths
        firsts = np.flatnonzero(in_row == 0)
        per_row = np.diff(np.append(firsts, len(in_row)))
        places = row_of * room + before - np.repeat(before[firsts], per_row)
        went, within = self.pairs.lay(side, members, places, ids)
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
        segments.ravel()[self.pairs.lay(0, numbers[rows], rows * room, inputs)[0]] = 1
        weights.ravel()[self.pairs.lay(1, numbers[rows], rows * room, targets)[0]] = 1
        return {"inputs": inputs, "targets": targets, "weights": weights, "input_segments": segments}


def packed(
    input_lengths: np.ndarray, target_lengths: np.ndarray, rooms: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Which pairs share a row: their numbers, row after row, and where each row begins.

    Greedy: pairs come in a fixed mixed order, and each goes into the oldest of some open rows that has room for it.
    """
    count = len(input_lengths)
    order = permuted(np.arange(count), count, "rows")
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
    """Examples for a model that reads one text and writes another; tokens and plan are made once and kept in `cache`.

    Packed, a row holds several pairs; with `buckets`, lengths, a batch holds rows of one of these lengths; with
    neither, a pair a row. A side longer than `length` (of inputs, of targets) is cut.
    """
    rooms = (length, length) if isinstance(length, int) else (int(length[0]), int(length[1]))
    if min(rooms) < 2:
        raise DataError(f"rows have length {min(rooms)}", fix="say a length of 2 or more: a token and its end")
    found, side = chosen(source, part)
    tokens, folder = tokenised_pairs(found, tokenizer, Path(cache), progress)
    count = tokens.documents // 2
    cut = border(found, count, "pairs") if side != "all" else 0
    first, last = (0, cut) if side == "head" else (cut, count)
    pairs = Pairs(tokens, first, last, rooms)
    pad = tokenizer.pad or 0
    if buckets is not None or not pack:
        lengths = [*(size for size in buckets or () if size < max(rooms)), max(rooms)]
        if min(lengths) < 1:
            raise DataError(f"a bucket has length {min(lengths)}", fix="say lengths of 1 or more")
        return BucketedPairs(pairs, lengths, tokens.vocab, pad)
    return PackedPairs(pairs, _plan(pairs, folder, (first, last)), tokens.vocab, pad)


def _plan(pairs: Pairs, folder: Path, part: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    def make(entry: Path) -> None:
        members, offsets = packed(pairs.lengths[0], pairs.lengths[1], pairs.rooms)
        np.save(entry / "members.npy", members)
        np.save(entry / "offsets.npy", offsets)

    key = content_key(folder.name, pairs.rooms, part, _OPEN_ROWS)
    entry = made_once(folder.parent, f"rows-{key}", make)
    return np.load(entry / "members.npy", mmap_mode="r"), np.load(entry / "offsets.npy", mmap_mode="r")
