"""Datasets, and how a source is split into training and evaluation."""

from typing import Protocol

import numpy as np

from ..errors import closest
from .errors import DataError
from .sources import Source

PARTS = ("train", "evaluation", "all")


class Dataset(Protocol):
    """Examples by number, and the bucket of each; `vocab` is None if they are no ids."""

    vocab: int | None
    bucket_of: np.ndarray | None

    def __len__(self) -> int: ...

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        """The examples with these numbers, a row each; -1 gives padding of weight 0."""


def check_vocab_of(dataset: Dataset, vocab: int) -> None:
    """Raises where a model of so many ids cannot read a dataset."""
    if dataset.vocab is not None and dataset.vocab > vocab:
        raise DataError(
            f"the data's tokenizer has {dataset.vocab} ids, and the model's vocabulary {vocab}",
            fix=f"say `vocab = {dataset.vocab}` in `model`, or use the tokenizer the model was trained with",
        )


def choose_part(source: Source, part: str) -> tuple[Source, str]:
    """The source of a part, and which of it: its `head`, its `tail` or `all`."""
    if part not in PARTS:
        raise DataError(f"there is no part {part!r}", fix=closest(str(part), PARTS))
    if part == "evaluation":
        if source.held_apart is not None:
            return source.held_apart, "all"
        if not source.held_out:
            raise DataError(
                f"nothing of {source.files[0]} is held out for evaluation",
                fix='say `held_out = 0.05`, or `evaluation = "another file"`',
            )
        return source, "tail"
    return source, "head" if part == "train" and source.held_out else "all"


def split_place(source: Source, count: int, what: str) -> int:
    """Where the part held out begins, of `count` examples or tokens."""
    held_out = source.held_out
    kept = count - (held_out if isinstance(held_out, int) else round(count * held_out))
    if not 0 < kept < count:
        raise DataError(
            f"`held_out = {held_out}` leaves {max(kept, 0):,} of {count:,} {what} to train on",
            state=f"source {source.files[0]}",
            fix="hold out less, or more, so that something is in each part",
        )
    return int(kept)
