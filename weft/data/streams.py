"""Rows of the user's own that come one after the other, and batches of them.

Imports nothing of other rooms. `state()` of what gives the rows says where it is, as JSON, and `restore(state)` goes on
there: a checkpoint keeps the state after the last batch that was used, however far is read ahead.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .batches import Batch, Prefetched, prefetched
from .errors import DataError
from .own import Reading, Row, RowForm, plain_reading

_PROBED = 3  # rows that are drawn to see whether a state is gone on from
_MOST_KNOWN = 4  # of the last steps


class OwnStream:
    """Rows that are iterated over; `open` gives the iterable anew, from its start."""

    vocab: int | None = None
    bucket_of: np.ndarray | None = None

    def __init__(
        self,
        open: Callable[[], Any],
        name: str,
        *,
        is_exact: bool,
        weighted: bool = False,
        reading: Reading = plain_reading,
    ):
        self.open, self.name, self.is_exact, self._reading = open, name, is_exact, reading
        source = open()
        rows = self.rows_of(source)
        self.form = RowForm(rows.next(), getattr(source, "dims", {}), name=name, weighted=weighted)
        if is_exact:
            self._check_exact(source, rows)

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The names of what follows `batch` in each array."""
        return self.form.dims

    def rows_of(self, source: Any, first: int = 0) -> "_EndlessRows":
        """The rows of an iterable, which begins with the row of number `first`."""
        return _EndlessRows(source, self.name, self._reading, first)

    def blocks(self, size: int) -> Iterator[list[Row]]:
        """All rows once, so many at a time; the last may be fewer."""
        rows = (self.form.check(row) for row in self.rows_of(self.open()).once())
        while block := list(itertools.islice(rows, size)):
            yield block

    def state_of(self, source: Any) -> str:
        """Where an iterable is, as JSON."""
        state = source.state()
        try:
            return json.dumps(state)
        except (TypeError, ValueError) as error:
            fact = f"the state of `{self.name}` is {state!r:.80}, which JSON does not take: {error}"
            fix = "give numbers, texts, lists and dicts: `int(x)` of NumPy's numbers, `generator.bit_generator.state`"
            raise DataError(fact, fix=fix) from None

    def _check_exact(self, source: Any, rows: "_EndlessRows") -> None:
        """Raises where another iterable does not go on as this one does from its state."""
        for _ in range(_PROBED - 1):
            rows.next()
        state, other = self.state_of(source), self.open()
        other.restore(json.loads(state))
        again = self.rows_of(other, _PROBED)
        for number in range(_PROBED):
            one, two = (self.form.check(each.next()) for each in (rows, again))
            if differs := [key for key in one if not np.array_equal(one[key], two[key])]:
                raise DataError(
                    f"`{self.name}` does not go on from its state: restored after {_PROBED} rows, row "
                    f"{_PROBED + number + 1} has another `{differs[0]}`",
                    state=f"state: {state:.200}",
                    fix="let `state()` count a row before it is given (`yield` ends a turn), `restore` set all that "
                    "rows follow from, seeds too, and `__iter__` go on from there",
                )


class _EndlessRows:
    """The rows of an iterable, from its start again where they end."""

    def __init__(self, source: Any, name: str, reading: Reading, first: int):
        self._source, self._name, self._reading, self._at = source, name, reading, first
        self._rows = self.once()

    def once(self) -> Iterator[Any]:
        """The rows up to the end."""
        with self._reading(f"`{self._name}` could not be iterated over", ""):
            rows = iter(self._source)
        while True:
            with self._reading(f"row {self._at} of `{self._name}` could not be read", "counted from the first one, 0"):
                try:
                    row = next(rows)
                except StopIteration:
                    return
            self._at += 1
            yield row

    def next(self) -> Any:
        for _ in range(2):
            for row in self._rows:
                return row
            self._rows = self.once()
        raise DataError(
            f"`{self._name}` gives no rows", fix="give some; iterated over again at its end, it begins from its start"
        )


class StreamBatches:
    """Batches of a stream, endless and read ahead, as `put` gives them."""

    def __init__(
        self, stream: OwnStream, *, batch: int, rows: np.ndarray, put: Callable[[Batch], Any] = lambda batch: batch
    ):
        self.dataset, self.batch = stream, batch
        self._stream, self._mine, self._put = stream, rows, put
        self._step = 0
        self._known: dict[int, str | None] = {0: None}
        """States by step, from which any later step is reached."""
        self._ahead: Prefetched[tuple[Any, str | None]] | None = None

    @property
    def step(self) -> int:
        """The step of the batch that comes next."""
        return self._step

    @property
    def steps_per_epoch(self) -> float:
        """How many batches show every row once: not known, so 0."""
        return 0.0

    @property
    def state(self) -> dict[str, Any] | None:
        """What `seek` goes on from at this step, also in another process."""
        state = self._known.get(self._step)
        return None if state is None else {"step": self._step, "state": state}

    def seek(self, step: int, state: dict[str, Any] | None = None) -> None:
        """Makes batch `step` the next, reached from the last state that is known."""
        if state is not None and self._stream.is_exact:
            self._known[int(state["step"])] = str(state["state"])
        if step != self._step:
            self.close()
            self._step = step

    def at(self, step: int) -> Batch:
        """This process's share of batch `step`, made now and not put anywhere."""
        return next(self._from(step))[0]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ahead is None:
            self._ahead = prefetched(self._from(self._step), lambda pair: (self._put(pair[0]), pair[1]))
        batch, state = next(self._ahead)
        self._step += 1
        if state is not None:
            self._known[self._step] = state
            for old in sorted(self._known)[1:-_MOST_KNOWN]:
                del self._known[old]
        return batch

    def evaluation(self) -> Iterator[Batch]:
        """Every row once, in order; the last batch is filled up with zeros."""
        for block in self._stream.blocks(self.batch):
            yield self._share([*block, *[None] * (self.batch - len(block))])

    def close(self) -> None:
        """Ends the thread; the next batch starts it again."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _from(self, step: int) -> Iterator[tuple[Batch, str | None]]:
        """The batches from a step on, each with the state after it."""
        stream = self._stream
        start = max((known for known in self._known if known <= step), default=0)
        state, source = self._known.get(start), stream.open()
        if state is not None:
            source.restore(json.loads(state))
        rows = stream.rows_of(source, start * self.batch)
        for _ in range((step - start) * self.batch if stream.is_exact else 0):
            rows.next()
        while True:
            batch = self._share([stream.form.check(rows.next()) for _ in range(self.batch)])
            yield batch, stream.state_of(source) if stream.is_exact else None

    def _share(self, rows: list[Row | None]) -> Batch:
        return self._stream.form.join(rows[i] for i in self._mine)
