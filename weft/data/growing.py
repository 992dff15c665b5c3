"""Folders that grow: an epoch goes through the files that were there as it began.

Imports small_files alone. The list of an epoch's files is frozen before its first row is read: written to a journal
that all processes read, and kept in checkpoints. So a run goes on with the very files that it had, and with those that
came since from its next epoch on. Files are made into examples once; those that come later are added.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..small_files import Reader
from .atomic import write_atomic
from .datasets import Dataset
from .errors import DataError
from .files import Hashes
from .mixtures import Concatenated
from .order import permute
from .sources import Source

_PATIENCE = 600.0  # seconds that a process waits for the first one to freeze a list
_SHAPE = {"files": [[str]]}

Listed = list[list[str]]
"""Names of files, each with a hash of what is in it."""


class Growing:
    """Examples of a folder's files, and of those that come to it, by epochs."""

    bucket_of: np.ndarray | None = None

    def __init__(
        self,
        find: Callable[[], Source],
        open: Callable[[Source], Dataset],
        journal: Path,
        *,
        is_first: bool = True,
        with_segments: bool = True,
    ):
        """`find` lists the files there are; the first process writes the journal."""
        self._find, self._open, self._journal, self._is_first = find, open, journal, is_first
        self._with_segments = with_segments
        self._epochs: list[Listed] = []  # of each epoch the files that are new in it
        self._ends: list[int] = []  # at which place each epoch ends
        self._parts: list[Dataset] = []
        self._freeze()

    @property
    def vocab(self) -> int | None:
        """How many ids there are."""
        return self._all.vocab

    def __len__(self) -> int:
        return len(self._all)

    def take(self, numbers: np.ndarray, bucket: int = 0) -> dict[str, np.ndarray]:
        return self._all.take(numbers, bucket)

    def order_by(self, batch: int, seed: int) -> "Epochs":
        """The order of its rows."""
        return Epochs(self, batch, seed)

    @property
    def state(self) -> dict[str, Any]:
        """The new files of each epoch that was begun."""
        return {"epochs": self._epochs}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes the lists of a checkpoint, where the journal lacks them."""
        epochs = state["epochs"]
        if epochs[: len(self._epochs)] != self._epochs[: len(epochs)]:  # the journal was lost, and is new
            self._epochs, self._ends, self._parts = [], [], []
        for number in range(len(self._epochs), len(epochs)):
            self._add(self._write(number, epochs[number]))

    def epoch_at(self, place: int) -> tuple[int, int, int]:
        """The epoch of a place: its number, where it begins, and how many rows it has."""
        while place >= self._ends[-1]:
            self._freeze()
        number = int(np.searchsorted(self._ends, place, "right"))
        begin = self._ends[number - 1] if number else 0
        return number, begin, self._ends[number] - begin

    def _freeze(self) -> None:
        """Begins another epoch with the files there are now, or were when it was begun."""
        number = len(self._epochs)
        if not self._file(number).exists():
            if self._is_first:
                self._write(number, self._new_files())
            self._wait_for(number)
        files = Reader(DataError, f"remove {self._journal}").json(self._file(number), _SHAPE)["files"]
        if any(len(each) != 2 for each in files):
            raise DataError(f"{self._file(number)} is no list of files", fix=f"remove {self._journal}")
        self._add(files)

    def _new_files(self) -> Listed:
        known = {name for files in self._epochs for name, _ in files}
        source = self._find()
        new = [(name, file) for name, file in zip(source.names, source.files, strict=True) if name not in known]
        hashes = Hashes(self._journal.parent).of(file for _, file in new)
        return [[name, print_] for (name, _), print_ in zip(new, hashes, strict=True)]

    def _add(self, files: Listed) -> None:
        """Opens the files that are new in an epoch, each as it was when that was begun."""
        if files:
            source = self._find()
            there = dict(zip(source.names, source.files, strict=True))
            for name, print_ in files:
                if name not in there:
                    fact = f"{name} is gone, and the run learns from it: its list of files was frozen"
                    raise DataError(fact, state=f"{self._journal}", fix="put it back, or begin another run")
                if Hashes(self._journal.parent).of([there[name]]) != [print_]:
                    fact = f"{there[name]} is another than when the run began to learn from it"
                    raise DataError(fact, fix="put it back, and give what is new a name of its own")
            names = tuple(name for name, _ in files)
            self._parts.append(self._open(replace(source, names=names, files=tuple(there[name] for name in names))))
        self._all = Concatenated(self._parts, with_segments=self._with_segments or None)
        self._epochs.append([list(each) for each in files])
        self._ends.append((self._ends[-1] if self._ends else 0) + len(self._all))

    def _file(self, number: int) -> Path:
        return self._journal / f"epoch-{number:06}.json"

    def _write(self, number: int, files: Sequence[Sequence[str]]) -> Listed:
        listed = [list(each) for each in files]
        if self._is_first:
            try:
                self._journal.mkdir(parents=True, exist_ok=True)
                write_atomic(self._file(number), json.dumps({"files": listed}).encode())
            except OSError as error:
                fact = f"{self._file(number)} cannot be written: {error.strerror or error}"
                raise DataError(fact, fix="make room: an epoch's list of files is kept there") from error
        return listed

    def _wait_for(self, number: int) -> None:
        until = time.monotonic() + _PATIENCE
        while not self._file(number).exists():
            if time.monotonic() > until:
                fact = f"the first process has written no {self._file(number)} for {_PATIENCE:.0f} seconds"
                raise DataError(fact, fix="let all processes have the same folder")
            time.sleep(0.05)


class Epochs:
    """Epochs of a folder that grows, each in an order of its own."""

    def __init__(self, dataset: Growing, batch: int, seed: int):
        self._dataset, self._batch, self._seed = dataset, batch, seed

    def rows(self, step: int) -> tuple[np.ndarray, int]:
        """The numbers of the examples in a batch, and their bucket."""
        place, last = step * self._batch, (step + 1) * self._batch
        parts = []
        while place < last:
            epoch, begin, count = self._dataset.epoch_at(place)
            places = np.arange(place, min(last, begin + count))
            parts.append(permute(places - begin, count, self._seed, epoch))
            place = int(places[-1]) + 1
        return np.concatenate(parts), 0

    def once(self) -> Iterator[tuple[np.ndarray, int]]:
        """The batches of all examples in order; the last has rows -1 at its end."""
        count = len(self._dataset)
        for first in range(0, count, self._batch):
            rows = np.arange(first, first + self._batch)
            yield np.where(rows < count, rows, -1), 0

    @property
    def steps(self) -> float:
        """How many batches the last epoch that was begun has."""
        return len(self._dataset) / self._batch
