"""Local processes of one program: when one of them dies, all are started again.

Imports `processes`. No process outlives its supervisor, whatever ends that one (on Linux also SIGKILL). What they write
is shown line by line: no line of one stands within that of another.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from ..text import plural
from .processes import (
    COORDINATOR,
    CRASHED,
    DEVICES,
    ELASTIC,
    LAUNCHED,
    PROCESS,
    PROCESSES,
    ProcessError,
    gpus_here,
)  # fmt: skip
from .watchdog import STACKS_SIGNAL, STALLED

EXPLAINED = (1, 2)  # an error weft explained, a command that cannot be: the same again at every start
LONGEST_PAUSE = 30.0
_LOOK_EVERY = 0.05
_STACKS_TAKE = 1.0  # seconds

# Sets PR_SET_PDEATHSIG where there is one (Linux), then becomes the command; a supervisor already gone is noticed.
_TIED = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, int(signal.SIGKILL))
os.getppid() == int(parent) or os._exit(1)
os.execvp(command[0], command)
"""


@dataclass(frozen=True)
class End:
    """How a process ended; `status` as `subprocess` has it, -9 for SIGKILL."""

    process: int
    status: int
    is_sole: bool = True
    """Whether it is known that none of the others failed."""

    @property
    def exit_status(self) -> int:
        """As a shell has it."""
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def is_worth_another_try(self) -> bool:
        return self.status not in (0, *EXPLAINED)

    def __str__(self) -> str:
        if self.status == CRASHED:
            return f"process {self.process} crashed"
        if self.status == STALLED:
            who = f"process {self.process}" if self.is_sole else "every process"
            return f"{who} was without a step for too long"
        if self.status >= 0:
            return f"process {self.process} ended with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        return f"process {self.process} was killed by {name}"


@dataclass
class Supervisor:
    """Runs a command as several processes until all are done."""

    command: Sequence[str]
    processes: int
    restarts: int = 3
    devices: int | None = None
    """Processors of each process, virtual or not; by default what there is is shared out."""
    port: int | None = None
    """Where the processes meet; by default a free one, another at every start."""
    elastic: bool = False
    """Whether a process that fails in two starts in a row is left out, and the others go on."""
    say: Callable[[str], None] = lambda text: _write_line(sys.stderr, text)
    grace: float = 3.0
    """Seconds the others have to end after one explained an error or stalled, which may be theirs too."""
    first_pause: float = 1.0
    """Seconds before the first restart; twice as long before each further one."""
    healthy: float = 600.0
    """After so many seconds the count of restarts starts over."""
    words: str = ""
    """What is written before the command to start it so again, like `weft launch -n 4 --`."""
    signals: list[int] = field(default_factory=list, init=False)
    running: "list[_Process]" = field(default_factory=list, init=False)
    places: list[int] = field(default_factory=list, init=False)
    """Where the processes run that are not left out: each place has its own accelerators."""

    def __post_init__(self) -> None:
        self.places = list(range(self.processes))
        if self.processes < 1:
            raise ProcessError(f"{self.processes} processes cannot be started", fix="start at least one: -n 1")
        if self.devices is not None and self.devices < 1:
            raise ProcessError(f"a process cannot have {self.devices} devices", fix="give at least one: --devices 1")

    def run(self) -> int:
        """Starts the processes, again if need be; the exit status for all of them."""
        restart, failing = 0, None
        with self._hearing_signals():
            while True:
                began = time.monotonic()
                end = self._run_once()
                if end is None:
                    return 0
                if self.signals:  # SIGTERM is what they were sent
                    was_told = end.exit_status == 128 + signal.SIGTERM
                    return 128 + self.signals[0] if was_told else end.exit_status
                if time.monotonic() - began > self.healthy:
                    restart, failing = 0, None
                restart, without = restart + 1, ""
                before, failing = failing, self.places[end.process] if end.is_sole else None
                if self.elastic and end.is_worth_another_try and failing == before is not None and self.places[1:]:
                    self.places.remove(failing)
                    restart, failing = 1, None
                    without = f" without it, with {len(self.places)} of {self.processes} processes"
                if not end.is_worth_another_try or restart > self.restarts:
                    self.say(f"weft launch: {end}; {self._why_not(end)}")
                    return end.exit_status
                self.say(f"weft launch: {end}; restart {restart} of {self.restarts}{without}")
                self._wait(min(self.first_pause * 2 ** (restart - 1), LONGEST_PAUSE))
                if self.signals:
                    return 128 + self.signals[0]

    def _why_not(self, end: End) -> str:
        if not end.is_worth_another_try:
            return "not restarted, since the same would happen again"
        return f"given up after {plural(self.restarts, 'restart')}" if self.restarts else "not restarted"

    def _run_once(self) -> End | None:
        """Runs all processes to their end; how the first one failed, if one did."""
        port = self.port or free_port()
        try:
            for number in range(len(self.places)):
                self.running.append(_Process(number, self.command, self._environment(number, port)))
            return self._watch()
        finally:
            for process in self.running:
                process.kill()
            self.running.clear()
            if sys.stdout.isatty():
                print("\x1b[?25h", end="", flush=True)  # a killed progress bar leaves no cursor

    def _watch(self) -> End | None:
        failed: End | None = None
        forwarded, deadline = False, float("inf")
        while True:
            ends = [process.end() for process in self.running]
            bad = [end for end in ends if end is not None and end.status]
            if bad and failed is None:
                # Who stalled, then who was killed: the others ended because their connection to it broke.
                failed = min(bad, key=lambda end: (end.status != STALLED, end.status))
                # Those left behind hang and cannot save without the dead one; but all may have an error to explain.
                has_more = failed.status in (*EXPLAINED, STALLED)
                deadline = time.monotonic() + (self.grace if has_more else 0.0)
            if None not in ends or time.monotonic() > deadline:
                return self._who_stalled(failed) if failed is not None and failed.status == STALLED else failed
            if self.signals and not forwarded:
                forwarded = True
                self.say(f"weft launch: {signal.Signals(self.signals[0]).name}: every process is asked to stop")
                for process in self.running:
                    process.send(signal.SIGTERM)
            if self.signals.count(signal.SIGINT) > 1:
                return failed or End(0, -signal.SIGINT)
            time.sleep(_LOOK_EVERY)

    def _who_stalled(self, first: End) -> End:
        """Who of a stall did not say so itself, once its stacks are written; or any."""
        silent = [process for process in self.running if process.end() is None]
        for process in silent:
            process.send(STACKS_SIGNAL)
            process.send(signal.SIGCONT)  # it may have been stopped
        if not silent:
            return End(first.process, STALLED, is_sole=False)
        self._wait(_STACKS_TAKE)
        return End(silent[0].number, STALLED, is_sole=len(silent) == 1)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.signals:
            time.sleep(_LOOK_EVERY)

    def _environment(self, number: int, port: int) -> dict[str, str]:
        environment = {**os.environ, DEVICES: "", LAUNCHED: self.words}
        environment |= {COORDINATOR: f"127.0.0.1:{port}", PROCESSES: str(len(self.places)), PROCESS: str(number)}
        if self.elastic:
            environment[ELASTIC] = str(self.processes)
        if self.devices is not None:
            environment["JAX_NUM_CPU_DEVICES"] = str(self.devices)
        count = self.devices or gpus_of_each(self.processes)
        if count:
            environment[DEVICES] = ",".join(str(self.places[number] * count + i) for i in range(count))
        return environment

    @contextlib.contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        def hear(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Process:
    """One of the processes; its lines are shown as they come, but of 0's numbered."""

    def __init__(self, number: int, command: Sequence[str], environment: dict[str, str]):
        self.number = number
        # In a terminal process 0 draws its own bar; Python writes whole lines there. Elsewhere all goes through here.
        out, err = (None if number == 0 and target.isatty() else subprocess.PIPE for target in (sys.stdout, sys.stderr))
        environment = {**environment, **({} if out is None else {"PYTHONUNBUFFERED": "1"})}
        prefix = f"[{number}] ".encode() if number else b""
        self.popen = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # Ctrl-C in a terminal reaches the supervisor alone, who passes it on
        )
        self.copying = [
            threading.Thread(target=_copy, args=(source, target, prefix), daemon=True)
            for source, target in ((self.popen.stdout, sys.stdout), (self.popen.stderr, sys.stderr))
            if source is not None
        ]
        for thread in self.copying:
            thread.start()

    def end(self) -> End | None:
        """How it ended; None while it runs."""
        status = self.popen.poll()
        return None if status is None else End(self.number, status)

    def send(self, number: signal.Signals) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(number)

    def kill(self) -> None:
        """Ends it, and what it may have started, and shows the last of what it wrote."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        for thread in self.copying:
            thread.join(timeout=1.0)


_WRITING = threading.Lock()


def _copy(source: IO[bytes], target: IO[str], prefix: bytes) -> None:
    """Copies whole lines, each with the prefix, as they come."""
    with source:
        for line in iter(lambda: source.readline(1 << 16), b""):
            _write_line(target, (prefix + line.rstrip(b"\n")).decode(errors="replace"))


def _write_line(target: IO[str], text: str) -> None:
    """Writes a line and its newline at once: nothing of another process is between."""
    with _WRITING, contextlib.suppress(OSError, ValueError):
        target.write(f"{text}\n")
        target.flush()


def free_port() -> int:
    """A port of this host that is free, and that no outgoing connection is given."""
    for _ in range(100):
        port = random.SystemRandom().randrange(20000, 32768)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("", port))
            return port
    raise ProcessError("no free port was found from 20000 to 32767", fix="name one: --port 5000")


def gpus_of_each(processes: int) -> int:
    """How many of this host's NVIDIA GPUs each process has; 0 where the CPU computes."""
    count = gpus_here()
    if 0 < count < processes:
        raise ProcessError(
            f"{count} GPU{'s' if count > 1 else ''} cannot be shared out to {processes} processes",
            fix=f"start at most {count}: -n {count}; or compute on the CPU: JAX_PLATFORMS=cpu",
        )
    return count // processes
