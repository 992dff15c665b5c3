"""Work on many cores: copies of this process that trace and cost programs.

Tracing holds Python's lock, so threads would not do.

A copy (`fork`) knows the user's function as it is, closures included; only what it finds travels back. Where a system
has no such copies, or one does not answer, the work is done here.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

PATIENCE = 180.0
"""Seconds without any result after which copies are given up."""

_do: Callable[[Any], Any] | None = None  # what copies are asked to do; set before they are made


class Workers:
    """Calls `do(job)` on several cores; a context manager."""

    def __init__(self, do: Callable[[Any], Any], count: int | None = None):
        self.do = do
        self.count = min(count or cores(), cores())
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        global _do
        if self.count > 1 and sys.platform == "linux":
            _do = self.do
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(self.count, mp_context=context, initializer=_ignore_interrupts)
        return self

    def __exit__(self, *error: Any) -> None:
        self._give_up()

    def results(self, jobs: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        """Each job with its result, as they get done; taken when a core is free for it."""
        running: dict[Future[Any], Any] = {}
        while self._pool is not None:
            try:
                self._start(jobs, running)
                done, _ = wait(running, timeout=PATIENCE, return_when=FIRST_COMPLETED)
                results = [(future, future.result()) for future in done]
            except BrokenProcessPool:  # a copy was killed, for its memory say
                results = []
            if running and not results:
                self._give_up()
                break
            for future, result in results:
                yield running.pop(future), result
            if not running and not results:
                return
        for job in itertools.chain(running.values(), jobs):
            yield job, self.do(job)

    def _start(self, jobs: Iterator[Any], running: dict[Future[Any], Any]) -> None:
        while len(running) < self.count:
            job = next(jobs, None)
            if job is None:
                return
            with _without_warnings():
                running[self._pool.submit(_run_job, job)] = job  # type: ignore[union-attr]

    def _give_up(self) -> None:
        if self._pool is None:
            return
        copies = list((self._pool._processes or {}).values())
        for copy in copies:
            with contextlib.suppress(Exception):
                copy.kill()
        self._pool.shutdown(cancel_futures=True)
        self._pool = None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_job(job: Any) -> Any:
    assert _do is not None
    return _do(job)


def _ignore_interrupts() -> None:
    """Leaves Ctrl-C to the process that asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """JAX warns of copies for what they might run; these only trace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
