"""SIGTERM and SIGINT: they end a program at once, or after a step to save.

Imports nothing of the house. Python hears of a signal when its main thread comes back to it, and a thread in a
compiler may not for minutes: so where the process is ours a second thread watches, whom the system itself wakes.
"""

import contextlib
import ctypes
import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

GRACE = 0.5  # seconds in which a program may end by itself what it has under way
_HEARD = (signal.SIGINT, signal.SIGTERM)
_questions = itertools.count(1)  # JAX has all processes stop at the same one


class Interrupted(KeyboardInterrupt):
    """A signal that ends the program now; its text says what is lost."""

    def __init__(self, number: int, text: str):
        super().__init__(text)
        self.reason = signal.Signals(number).name
        self.status = 128 + number
        """As a shell has it: 143 for SIGTERM, 130 for SIGINT."""


class Stop:
    """While entered, SIGTERM and SIGINT raise `Interrupted`, or ask for a stop.

    Once there are steps to save they ask for a stop after the one under way; a second signal then raises it too. Of
    many processes that save all stop after the same step, whichever of them got the signal. With `is_own` the process
    is the program's alone: it is ended where its main thread does not hear of a signal within `GRACE`, and by a second
    one at once.
    """

    def __init__(self, *, is_own: bool = False, lost: str = "") -> None:
        self.reason: str | None = None
        """The signal that asked for the stop."""
        self.is_own, self.lost, self.has_begun = is_own, lost, False
        self.at = ""
        """Where the program stands, like `step 12 of 20`; empty where that is nothing to say."""
        self._is_agreed = False
        self._is_one_of_many = False
        self._before: dict[signal.Signals, Any] = {}
        self._of_jax = ctypes.create_string_buffer(1024)  # more than a `struct sigaction` takes anywhere
        self._watch: _SignalWatch | None = None
        self._unraisable: Any = None

    def __enter__(self) -> "Stop":
        self._is_one_of_many = jax.distributed.is_initialized()
        if threading.current_thread() is threading.main_thread():
            if self._is_one_of_many:
                _sigaction(signal.SIGTERM, None, self._of_jax)
            self._before = {number: signal.signal(number, self.hear) for number in _HEARD}
            self._watch = _SignalWatch(self) if self.is_own else None
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._hear_swallowed
        return self

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._before:
            sys.unraisablehook = self._unraisable
        for number, handler in self._before.items():
            if handler is not None:
                signal.signal(number, handler)
        self._give_jax_its_own()
        self._before.clear()

    def begin_steps(self) -> None:
        """From now on there are steps to save: a signal stops after the one under way."""
        self.has_begun = True
        self._give_jax_its_own()

    def _give_jax_its_own(self) -> None:
        """Among many processes SIGTERM is JAX's, which tells the others of it."""
        if self._before and self._is_one_of_many:  # Python could not put a handler back that it knows nothing of
            _sigaction(signal.SIGTERM, self._of_jax, None)

    def check(self) -> None:
        """Raises where a signal came and what heard of it went on all the same."""
        if self.reason is not None and not self.has_begun:
            raise self.make_interrupted(signal.Signals[self.reason])

    def is_wanted(self) -> bool:
        """Whether to stop now; to be asked by every process at the same places."""
        if not self._is_one_of_many:
            return self.reason is not None
        if not self._is_agreed:
            self._is_agreed = bool(multihost_utils.reached_preemption_sync_point(next(_questions)))
        if self._is_agreed and self.reason is None:
            self.reason = signal.SIGTERM.name
        return self._is_agreed

    def make_interrupted(self, number: int) -> Interrupted:
        """What a signal is raised as."""
        lost = "what followed the last checkpoint is not saved" if self.has_begun else self.lost
        at = "" if self.has_begun or not self.at else f" at {self.at}"
        return Interrupted(number, f"stopped by {signal.Signals(number).name}{at}{lost and ': '}{lost}")

    def hear(self, number: int, frame: FrameType | None) -> None:
        """What Python calls when a signal came."""
        is_first, self.reason = self.reason is None, signal.Signals(number).name
        if not self.has_begun or not is_first:
            raise self.make_interrupted(number)
        if self._is_one_of_many:
            os.kill(os.getpid(), signal.SIGTERM)

    def _hear_swallowed(self, error: "sys.UnraisableHookArgs") -> None:
        """Python's hook for a signal heard where nothing can be raised: in a `__del__`."""
        if not isinstance(error.exc_value, Interrupted):
            self._unraisable(error)
        elif self.is_own:
            end(error.exc_value)


def end(ended: Interrupted) -> None:
    """Ends the process as it stands, with what is to be said of it."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{ended}\n".encode())
    os._exit(ended.status)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Ends this process where a signal did: JAX would wait for all under way."""
    try:
        yield
    except SystemExit as error:
        if error.code in [128 + number for number in _HEARD]:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(error.code)
        raise


class _SignalWatch:
    """A thread that ends the process where nobody hears a signal, or hears two."""

    def __init__(self, stop: Stop):
        self.stop, self.is_over = stop, threading.Event()
        self.read, self.written = os.pipe()
        os.set_blocking(self.written, False)
        self.before = signal.set_wakeup_fd(self.written, warn_on_full_buffer=False)
        self.thread = threading.Thread(target=self._listen, name="weft-signals", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Ends the thread."""
        signal.set_wakeup_fd(self.before, warn_on_full_buffer=False)
        self.is_over.set()
        os.write(self.written, b"\0")
        self.thread.join()
        os.close(self.read)
        os.close(self.written)

    def _listen(self) -> None:
        count = 0
        while not self.is_over.is_set():
            number = os.read(self.read, 1)[0]
            if number not in _HEARD or signal.getsignal(number) != self.stop.hear:
                continue
            count += 1
            if count > 1 or (not self.stop.has_begun and not self._is_heard()):
                end(self.stop.make_interrupted(number))

    def _is_heard(self) -> bool:
        """Whether the main thread hears of a signal in time, or is over."""
        return self.is_over.wait(GRACE) or self.stop.reason is not None


def _sigaction(number: int, new: Any, old: Any) -> None:
    """The system's call: it puts back handlers that Python knows nothing of."""
    ctypes.CDLL(None).sigaction(int(number), new, old)
