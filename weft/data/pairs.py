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

    def __init__(self, tokens: Tokens, first: int, last: int, lengths: tuple[int, int]):
        self._tokens, self._first, self.rooms = tokens, first, lengths
        found = np.diff(tokens.offsets[2 * first : 2 * last + 1])
        self.cut = int(((found[::2] > lengths[0]) | (found[1::2] > lengths[1])).sum())
        self.input_lengths = np.minimum(found[::2], lengths[0])
        self.target_lengths = np.minimum(found[1::2], lengths[1])

    def __len__(self) -> int:
        return len(self.input_lengths)

    def sides(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The inputs and the targets of a pair."""
        place = 2 * (self._first + number)
        return self._side(place, self.rooms[0]), self._side(place + 1, self.rooms[1])

    def _side(self, place: int, room: int) -> np.ndarray:
        found = self._tokens.document(place)
        return found if len(found) <= room else np.append(found[: room - 1], found[-1])


class PackedPairs:
    """Rows of several pairs each, which do not see each other: segments from 1 on, 0 where nothing is.

    A model is given `start` before the first target of a row, and each target before the next. So that every pair
    begins with `start`, one stands between the targets of two pairs, with weight 0.
    """

    bucket_of = None

    def __init__(self, pairs: Pairs, plan: tuple[np.ndarray, np.ndarray], vocab: int, pad: int, start: int):
        self.pairs, self.vocab = pairs, vocab
        self._members, self._offsets = plan
        self._pad, self._start = pad, start

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def tokens(self) -> int:
        """How many tokens there are in all rows, of both sides."""
        return int(self.pairs.input_lengths.sum() + self.pairs.target_lengths.sum())

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        inputs, targets = (_Side(len(numbers), room) for room in self.pairs.rooms)
        inputs.ids.fill(self._pad)
        targets.ids.fill(self._start)
        for row, number in enumerate(numbers):
            if number < 0:
                continue
            read = written = 0
            members = self._members[self._offsets[number] : self._offsets[number + 1]].tolist()
            for segment, member in enumerate(members, start=1):
                one, other = self.pairs.sides(member)
                read = inputs.put(row, read, one, segment)
                written = targets.put(row, written, other, segment) + 1
        return {
            "inputs": inputs.ids,
            "targets": targets.ids,
            "weights": (targets.segments > 0).astype(np.float32),
            "input_segments": inputs.segments,
            "target_segments": targets.segments,
            "input_positions": inputs.positions,
            "target_positions": targets.positions,
        }


class _Side:
    """Ids of one side with their segments and positions, [rows room], filled from the left."""

    def __init__(self, rows: int, room: int):
        self.ids, self.segments, self.positions = (np.zeros((rows, room), np.int32) for _ in range(3))
        self._here = np.arange(room, dtype=np.int32)

    def put(self, row: int, place: int, ids: np.ndarray, segment: int) -> int:
        """Puts ids into a row; gives the place after them."""
        end = place + len(ids)
        self.ids[row, place:end] = ids
        self.segments[row, place:end] = segment
        self.positions[row, place:end] = self._here[: len(ids)]
        return end


class BucketedPairs:
    """A pair a row, padded to the smallest of some lengths that both sides fit in."""

    def __init__(self, pairs: Pairs, lengths: Sequence[int], vocab: int, pad: int):
        self.pairs, self.vocab, self.lengths, self._pad = pairs, vocab, tuple(sorted(lengths)), pad
        longest = np.maximum(pairs.input_lengths, pairs.target_lengths)
        self.bucket_of: np.ndarray | None = np.searchsorted(self.lengths, longest)

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def tokens(self) -> int:
        """How many tokens there are in all rows, of both sides."""
        return int(self.pairs.input_lengths.sum() + self.pairs.target_lengths.sum())

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        room = self.lengths[bucket]
        inputs, targets = (np.full((len(numbers), room), self._pad, np.int32) for _ in range(2))
        segments, weights = np.zeros_like(inputs), np.zeros(inputs.shape, np.float32)
        for row, number in enumerate(numbers):
            if number >= 0:
                one, other = self.pairs.sides(int(number))
                inputs[row, : len(one)], segments[row, : len(one)] = one, 1
                targets[row, : len(other)], weights[row, : len(other)] = other, 1
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
            if left >= read and right > written:  # one more for `start` between two
                members.append(number)
                rows[place] = (left - read, right - written - 1, members)
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
    start: int = 0,
    part: str = "train",
    cache: Path | str,
    progress: Progress | None = None,
) -> PackedPairs | BucketedPairs:
    """Examples for a model that reads one text and writes another; tokens and plan are made once and kept in `cache`.

    Packed, a row holds several pairs; with `buckets`, lengths, a batch holds rows of one of these lengths; with
    neither, a pair a row. A side longer than `length` (of inputs, of targets) is cut. `start` is the model's.
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
    return PackedPairs(pairs, _plan(pairs, folder, (first, last)), tokens.vocab, pad, start)


def _plan(pairs: Pairs, folder: Path, part: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    def make(entry: Path) -> None:
        members, offsets = packed(pairs.input_lengths, pairs.target_lengths, pairs.rooms)
        np.save(entry / "members.npy", members)
        np.save(entry / "offsets.npy", offsets)

    key = content_key(folder.name, pairs.rooms, part, _OPEN_ROWS)
    entry = made_once(folder.parent, f"rows-{key}", make)
    return np.load(entry / "members.npy", mmap_mode="r"), np.load(entry / "offsets.npy", mmap_mode="r")
