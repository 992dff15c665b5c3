"""The data loader: batches by step, read ahead (prefetch) and put on the device.

One thread does both. Batch `step` is a pure function of dataset, batch size, seed and step. A process has its own rows
of it and reads no others: process p of n those from p·batch/n on, or the `rows` it names. So the order is the same for
every number of processes and on every mesh, and a run goes on from any step. The order itself is in `order`.
"""

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from .datasets import Dataset
from .errors import DataError
from .order import BatchOrder, Bucketed, Shuffled

Batch = dict[str, np.ndarray]
T = TypeVar("T")


class Batches:
    """A process's shares of batches, endless and read ahead, as `put` gives them."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch: int,
        seed: int = 0,
        process: int = 0,
        processes: int = 1,
        rows: np.ndarray | None = None,
        put: Callable[[Batch], Any] = lambda batch: batch,
    ):
        _check(dataset, batch, process, processes)
        self.dataset, self.batch, self.seed = dataset, batch, seed
        self.process, self.processes = process, processes
        self._put = put
        self.order = _order_of(dataset, batch, seed)
        share = batch // processes
        self._rows = np.arange(process * share, (process + 1) * share) if rows is None else rows
        self._step = 0
        self._ahead: Prefetched[Any] | None = None

    @property
    def step(self) -> int:
        """The step of the batch that comes next."""
        return self._step

    @property
    def steps_per_epoch(self) -> float:
        """How many batches show every example once."""
        return float(self.order.steps)

    @property
    def state(self) -> dict[str, Any] | None:
        """What `seek` needs beside the step, of data that have a state."""
        return getattr(self.dataset, "state", None)

    def seek(self, step: int, state: Any = None) -> None:
        """Makes batch `step` the next, a late one as fast as an early one."""
        if step < 0:
            raise DataError(f"there is no step {step}", fix="steps count from 0")
        if state is not None and (restore := getattr(self.dataset, "restore", None)) is not None:
            restore(state)
        if step != self._step:
            self.close()
            self._step = step

    def at(self, step: int) -> Batch:
        """This process's share of batch `step`, made now and not put anywhere."""
        rows, bucket = self.order.rows(step)
        return self.dataset.take(rows[self._rows], bucket)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ahead is None:
            self._ahead = prefetched(map(self.at, itertools.count(self._step)), self._put)
        batch = next(self._ahead)
        self._step += 1
        return batch

    def evaluation(self) -> Iterator[Batch]:
        """Every example once, in order.

        The last batch, or the last of each bucket, is padded with rows of weight 0. Where a dataset has no weights of
        its own, `weights` are those of the rows.
        """
        for rows, bucket in self.order.once():
            share = rows[self._rows]
            yield {"weights": (share >= 0).astype(np.float32)} | self.dataset.take(share, bucket)

    def close(self) -> None:
        """Ends the thread; the next batch starts it again."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


def _order_of(dataset: Dataset, batch: int, seed: int) -> BatchOrder:
    """The order of a dataset's rows: its own, in buckets, or shuffled."""
    if (order_by := getattr(dataset, "order_by", None)) is not None:
        return order_by(batch, seed)
    if dataset.bucket_of is not None:
        return Bucketed(dataset.bucket_of, batch, seed)
    return Shuffled(len(dataset), batch, seed)


def _check(dataset: Dataset, batch: int, process: int, processes: int) -> None:
    if not len(dataset):
        raise DataError("the dataset has no examples", fix="give a source with something in it")
    if processes < 1 or not 0 <= process < processes:
        raise DataError(f"process {process} is none of {processes}", fix="count processes from 0")
    if batch < 1 or batch % processes:
        fix = f"say a batch that is a multiple of {processes}, e.g. {max(-(-batch // processes), 1) * processes}"
        raise DataError(f"a batch of {batch} rows does not divide over {processes} processes", fix=fix)


class Prefetched(Generic[T]):
    """What comes of an iterator, made ahead by a thread; see `prefetched`."""

    def __init__(self, batches: Iterator[Any], put: Callable[[Any], T], size: int):
        self._ready: queue.Queue[tuple[bool, Any]] = queue.Queue(size)
        self._stop = threading.Event()
        self._ended: BaseException | None = None
        self._thread = threading.Thread(
            target=_fill, args=(batches, put, self._ready, self._stop), name="weft-prefetch", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> "Prefetched[T]":
        return self

    def __next__(self) -> T:
        if self._ended is None:
            if self._stop.is_set():
                self._ended = StopIteration()
            else:
                is_made, result = self._ready.get()
                if is_made:
                    return result
                self._ended = result
                self._thread.join()
        raise self._ended

    def close(self) -> None:
        """Ends the thread; what it made and nobody took is dropped."""
        self._stop.set()
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._ready.get(timeout=0.01)

    def __enter__(self) -> "Prefetched[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fill(batches: Iterator[Any], put: Callable[[Any], Any], ready: "queue.Queue[Any]", stop: threading.Event) -> None:
    try:
        for batch in batches:
            result = put(batch)
            if stop.is_set():
                return
            ready.put((True, result))
            del batch, result  # not held while waiting for the next
        ready.put((False, StopIteration()))
    except BaseException as error:  # raised again where the batch is asked for
        if not stop.is_set():
            ready.put((False, error))


def prefetched(batches: Iterator[Any], put: Callable[[Any], T], size: int = 2) -> Prefetched[T]:
    """`put` of each batch in order, made ahead by a thread, at most `size` waiting.

    `put` brings a batch to the device. What goes wrong there is raised where the batch is asked for. `close`, or
    leaving a `with`, ends the thread.
    """
    if size < 1:
        raise DataError(f"`size` is {size}", fix="let at least 1 batch wait")
    return Prefetched(iter(batches), put, size)
