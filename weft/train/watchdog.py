"""A watchdog: a process without a step for too long writes its stacks, and ends.

Imports nothing of the house. It watches from a thread of its own, so it sees a main thread that waits in a collective
or for a disk; a call into C that keeps Python's lock is seen by the watchdogs of the other processes.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

STALLED = 75  # the exit status of a process that did no step for too long
STACKS = "stacks"  # the folder, in that of a run, with the stacks of its processes
STACKS_SIGNAL = signal.SIGUSR1  # upon which a process writes its stacks and goes on, whatever it is doing
LINGER = 5.0
"""Seconds between writing and ending: without this process the others would be ended before they have written."""


class Watchdog:
    """Ends a process with status 75 that shows no sign of life for so many minutes.

    With 0 minutes it never does. The time begins with the first sign. Stacks of all threads are added to
    `stacks/process-0.txt` in the folder.
    """

    def __init__(self, folder: Path, minutes: float, *, process: int = 0):
        self.path, self.seconds = folder / STACKS / f"process-{process}.txt", minutes * 60
        self._step, self._signs, self._is_paused = 0, 0, False
        self._over = threading.Event()
        self._file: IO[str] | None = None

    def __enter__(self) -> "Watchdog":
        if self.seconds:
            with contextlib.suppress(OSError):  # a disk may be full: then they are written on stderr
                self.path.parent.mkdir(exist_ok=True)
                self._file = self.path.open("a", encoding="utf-8")
                faulthandler.register(STACKS_SIGNAL, file=self._file, all_threads=True)
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._file is not None:
            faulthandler.unregister(STACKS_SIGNAL)
            self._file.close()
            with contextlib.suppress(OSError):
                if not self.path.stat().st_size:
                    self.path.unlink()
                    self.path.parent.rmdir()  # by the last of the processes

    def see(self, step: int) -> None:
        """Takes the end of a step as a sign of life."""
        self._step, self._signs = step, self._signs + 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside may take as long as it takes."""
        self._is_paused = True
        try:
            yield
        finally:
            self._signs, self._is_paused = self._signs + 1, False

    def _watch(self) -> None:
        every = min(self.seconds / 10, 5.0)
        seen, idle, last = 0, 0.0, time.monotonic()
        while not self._over.wait(every):
            now = time.monotonic()
            # While this process itself was stopped (Ctrl-Z, a laptop that slept) it could not do a step.
            passed, last = min(now - last, 2 * every), now
            idle = idle + passed if self._signs == seen and not self._is_paused else 0.0
            seen = self._signs
            if seen and idle > self.seconds:
                # A disk or a pipe that hangs may be why there is no step: nothing waits for the writing.
                threading.Thread(target=self._write, name="stacks", daemon=True).start()
                if not self._over.wait(LINGER):
                    os._exit(STALLED)

    def _write(self) -> None:
        fact = f"no step for {self.seconds / 60:g} minutes after step {self._step}"
        with contextlib.suppress(OSError, ValueError):
            file = self._file or sys.stderr
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}, process id {os.getpid()}: {fact}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
            sys.stderr.write(f"{fact}: where its threads were stands in {self.path}\n")
            sys.stderr.flush()
