"""Workers: processes that run programs and may hang or die of it, without the run doing either.

Each is forked from a server that has imported everything and started nothing, so a new one is ready at once. A worker
says what it is about to run; if it then falls silent or ends, that is the finding, and another takes its place.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

# Collectives that some never join end their process instead of waiting for ever.
FLAGS = "--xla_cpu_collective_call_terminate_timeout_seconds=20 --xla_cpu_collective_call_warn_stuck_timeout_seconds=15"
PROGRAMS_A_LIFE = 150


@dataclass
class Settings:
    """What every worker is told."""

    seed: int
    layouts: int
    limit_s: float
    folder: Path
    order: tuple[str, ...]

    def family(self, index: int) -> str:
        """The kind of the program of this number."""
        return self.order[index % len(self.order)]


@dataclass
class Worker:
    """One process, what it works on, and what it last said that it would run."""

    process: Any
    connection: Connection
    is_wide: bool
    job: tuple[int, int] | None = None  # the program's number, and how many of its pairs are done
    running: dict[str, Any] = field(default_factory=dict)
    since: float = 0.0
    programs: int = 0


def serve(connection: Connection, settings: Settings, is_wide: bool) -> None:
    """A worker's life: programs by number, until there are no more."""
    sys.stderr.flush()
    log = os.open(settings.folder / f"worker-{os.getpid()}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 2)
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_enable_x64", is_wide)
    from tests.properties.written.cases import clear, run_case

    done = 0
    while (job := connection.recv()) is not None:
        index, skip = job
        how = dict(layouts=settings.layouts, skip=skip, tell=lambda x: connection.send(("runs", x)))
        for outcome in run_case(settings.seed, index, settings.family(index), **how):
            connection.send(("came", outcome.as_dict()))
        done += 1
        if done % 10 == 0:
            clear()
        connection.send(("next", None))


class Pool:
    """Runs programs by number in workers, those of 64 bits in workers of their own."""

    def __init__(self, count: int, settings: Settings, first: int = 0, target: Any = serve):
        self.settings, self.following, self.target = settings, first, target
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.properties.written.cases"])
        self.waiting: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        wide = {family == "wide" for family in settings.order}
        self.workers = [self._start(wide == {True} or (count > 2 and i == 0 and True in wide)) for i in range(count)]

    def _start(self, is_wide: bool) -> Worker:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=self.target, args=(theirs, self.settings, is_wide), daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours, is_wide, since=time.monotonic())

    def _job_for(self, worker: Worker) -> tuple[int, int]:
        """The next program for a worker; those that are not for it are put by."""
        while not self.waiting[worker.is_wide]:
            self.waiting[self.settings.family(self.following) == "wide"].append((self.following, 0))
            self.following += 1
        return self.waiting[worker.is_wide].pop(0)

    def run(self) -> Iterator[dict[str, Any]]:
        """Outcomes as they come, without end."""
        for worker in self.workers:
            self._give(worker)
        while True:
            by_handle = {w.connection: w for w in self.workers} | {w.process.sentinel: w for w in self.workers}
            ready = {id(w): w for w in (by_handle[h] for h in wait(list(by_handle), timeout=5))}
            for worker in ready.values():
                yield from self._heard(worker)
            for worker in self.workers:
                if worker.job is not None and time.monotonic() - worker.since > self.settings.limit_s:
                    yield self._lost(worker, "hung")

    def _give(self, worker: Worker) -> None:
        # Many programs make a process large; and a few workers take turns at 64 bits.
        other = not worker.is_wide
        swaps = len(self.workers) <= 2 and len(self.waiting[other]) >= (1 if worker.is_wide else 10)
        if worker.programs >= PROGRAMS_A_LIFE or swaps:
            self._stop(worker)
            fresh = self._start(other if swaps else worker.is_wide)
            vars(worker).update(vars(fresh))
        worker.job, worker.since, worker.programs = self._job_for(worker), time.monotonic(), worker.programs + 1
        worker.running = {}
        worker.connection.send(worker.job)

    def _heard(self, worker: Worker) -> Iterator[dict[str, Any]]:
        try:
            while worker.connection.poll():
                what, outcome = worker.connection.recv()
                worker.since = time.monotonic()
                if what == "runs":
                    worker.running = outcome
                elif what == "came":
                    assert worker.job is not None
                    worker.job = worker.job[0], worker.job[1] + 1
                    yield outcome | {"program": worker.job[0]}
                else:
                    self._give(worker)
        except (EOFError, OSError):
            yield self._lost(worker, "aborted")

    def _lost(self, worker: Worker, how: str) -> dict[str, Any]:
        """What a worker that hung or died was running; another goes on after it."""
        assert worker.job is not None
        log = self.settings.folder / f"worker-{worker.process.pid}.log"
        self._stop(worker)
        lines = (
            [line for line in log.read_text(errors="replace").splitlines() if "rendezvous" in line]
            if log.exists()
            else []
        )
        why = lines[-1][-300:] if lines else f"exit status {worker.process.exitcode}"
        about = "a collective that some never join" if lines else f"{how}: {why}"
        found = {"mesh": "", "layout": "", "words": [], "kinds": [], "family": ""} | worker.running
        found |= {"outcome": how, "about": about, "detail": why, "program": worker.job[0]}
        again = worker.job[0], worker.job[1] + 1
        vars(worker).update(vars(self._start(worker.is_wide)))
        if again[1] > 1:  # with no mesh it ran
            self.waiting[worker.is_wide].insert(0, again)
        self._give(worker)
        return found

    def _stop(self, worker: Worker) -> None:
        worker.process.kill()
        worker.process.join()
        worker.connection.close()

    def close(self) -> None:
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
