"""The one progress reporter: a bar on a terminal, plain lines elsewhere.

Where stdout and stderr are terminals the bar of a run and the messages above it go to stderr, and stdout stays empty;
elsewhere all of it is plain lines on stdout, in the order it happened. Only one process of a run prints. That nothing
can be printed (a full disk, a reader that has gone) never stops the work. Imports checks and text alone.
"""

import math
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from ..checks import is_real
from ..text import count_text, duration_text, file_size_text, seconds_text

BETWEEN = 10.0  # seconds from one plain line on something long to the next
REFRESHES = 4  # of the bar in a second


class Reporter:
    """Tells a person how far something long is; `step` costs next to nothing."""

    def __init__(self, console: Any = None, *, is_writer: bool = True):
        self.console: Any = (console or _console()) if is_writer else None
        self.is_bar = self.console is not None and self.console.is_terminal and not self.console.is_dumb_terminal
        self.at, self.steps = 0, 0
        self._row: dict[str, Any] = {}
        self._pace = _Pace()
        self._memory = _MemoryText()
        self._stage: ProgressTask | None = None
        self._long: ProgressTask | None = None
        self._live: Any = None
        self._is_open_line = False
        self._is_closed = self.console is None
        self._lock = threading.RLock()

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What is told.

    def say(self, text: str) -> None:
        """A message for people, above the bar or on a line of its own."""
        if self.console is not None:
            self._print(text)

    def log(self, row: dict[str, Any]) -> None:
        """A row of metrics: on the bar, or a line in a log; an evaluation is a line."""
        if self.console is None:
            return
        self._end_stage()
        if "loss" in row:
            self._row = row
            self._pace.mark(row["step"])
            if not self.is_bar:
                self._print(self._line())
        if "eval" in row:
            self._print(evaluation_line(row))

    def stage(self, what: str) -> "ProgressTask":
        """Something long without parts, until its `with` ends or the next step begins."""
        self._end_stage()
        stage = ProgressTask(what, self)
        if self.console is not None:
            self._stage = stage
            if self.is_bar:
                self._show()
            else:
                self._write(f"{what}…", ends=False)
        return stage

    def progress(self, what: str, done: int, whole: int, note: str = "") -> None:
        """How far something long has come; a note tells where `whole` is not known, 0."""
        if self.console is None:
            return
        if self._long is None or self._long.what != what or done < self._long.done:
            self._long = ProgressTask(what, self)
        task, now = self._long, time.monotonic()
        task.done, task.whole, task.note = done, whole, note
        if self.is_bar:
            self._show()
        if done >= whole if whole else not note:
            if now - task.began >= (1.0 if self.is_bar else BETWEEN):
                self._print(f"{what}… {seconds_text(now - task.began)}")
            self._long = None
        elif not self.is_bar and now - task.told >= BETWEEN:
            task.told = now
            self._print(task.line())

    def step(self, at: int, steps: int) -> None:
        """The step that was just taken."""
        self.at, self.steps = at, steps
        if self._stage is not None:
            self._end_stage()
        if self.is_bar and self._live is None:
            self._show()

    def close(self) -> None:
        """Takes the bar away and leaves its last numbers as a line."""
        if self._is_closed:
            return
        self._end_stage(is_done=False)
        self._is_closed = True
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                with suppress(OSError, ValueError):
                    live.stop()
                if self._row:
                    self._pace = _Pace()  # nothing is left to wait for
                    self._print(self._line())

    # How it is told.

    def _line(self) -> str:
        at = self._row["step"]
        return "  ".join([steps_text(at, self.steps), *self._fields(at).values()])

    def _fields(self, at: int) -> dict[str, str]:
        """The numbers of the last row as text, by name."""
        row, left = self._row, self._pace.seconds_left(at, self.steps)
        fields = {
            "loss": f"loss {row['loss']:.3f}" if is_real(row.get("loss")) else None,
            "speed": _speed(row),
            "mfu": f"mfu {100 * row['mfu']:.1f} %" if is_real(row.get("mfu")) else None,
            "left": None if left is None or at >= self.steps else f"ETA {duration_text(left)}",
            "memory": self._memory.text(),
            "bad": f"{row['bad_steps']:.0f} bad steps" if row.get("bad_steps") else None,
        }
        return {name: text for name, text in fields.items() if text}

    def _end_stage(self, is_done: bool = True) -> None:
        with self._lock:
            stage, self._stage = self._stage, None
        if stage is None:
            return
        took = seconds_text(time.monotonic() - stage.began)
        text = took if is_done else f"stopped after {took}"
        if self._is_open_line:
            self._write(f" {text}")
        else:
            self._print(f"{stage.what}… {text}")

    def _print(self, text: str) -> None:
        """A line of text, above the bar if there is one."""
        with self._lock:
            if not self.is_bar:
                if self._is_open_line:
                    self._write("")
                self._write(text)
                return
            from rich.text import Text

            with suppress(OSError, ValueError, SystemExit):  # Rich exits where a reader has gone
                self.console.print(Text(text), soft_wrap=True, highlight=False)

    def _write(self, text: str, ends: bool = True) -> None:
        """Plain text as it is, on disk or in the pipe at once."""
        file = self.console.file
        with self._lock, suppress(OSError, ValueError):
            self._is_open_line = not ends
            try:
                file.write(encodable(text, file) + ("\n" if ends else ""))
                file.flush()
            except BrokenPipeError:  # its reader has gone: what follows, and what is left in it, goes nowhere
                os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())

    def _show(self) -> None:
        if self._live is not None or self._is_closed:
            return
        from rich.live import Live

        with self._lock, suppress(OSError, ValueError):
            self._live = Live(
                get_renderable=self._render, console=self.console, refresh_per_second=REFRESHES, transient=True
            )
            self._live.start()

    def _render(self) -> Any:
        """What stands at the bottom of the terminal; it takes one line of any width."""
        width, task = self.console.width, self._stage or self._long
        if task is not None:
            return _bar(width, task.done, task.whole, task.line(), [])
        fields = self._fields(self.at) if self._row else {}
        begin = steps_text(self.at, self.steps) if self.steps else ""
        kept, room = set(), width - len(begin)
        for name in ("loss", "left", "speed", "mfu", "bad", "memory"):
            if name in fields and len(fields[name]) + 2 <= room:
                kept.add(name)
                room -= len(fields[name]) + 2
        return _bar(width, self.at, self.steps, begin, [text for name, text in fields.items() if name in kept])


class ProgressTask:
    """Something long that is under way; as a context it is the stage of its reporter."""

    def __init__(self, what: str, owner: Reporter):
        self.what, self.owner = what, owner
        self.done, self.whole, self.note = 0, 0, ""
        self.began = self.told = time.monotonic()

    def __enter__(self) -> "ProgressTask":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.owner._stage is self:
            self.owner._end_stage(is_done=kind is None)

    def line(self) -> str:
        """How far it is, in percent and with the time left where it has parts."""
        took = time.monotonic() - self.began
        if not self.whole:
            return f"{self.what}… {self.note or seconds_text(took)}"
        share = min(self.done / self.whole, 1.0)
        left = f"ETA {duration_text(took / share - took)}" if share and took > 1 else ""
        return "  ".join(filter(None, [f"{self.what}… {math.floor(100 * share)} %", left, self.note]))


class _Pace:
    """Seconds a step, over the last rows; evaluations and saves count too."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, float]] = []

    def mark(self, at: int) -> None:
        if self.marks and at <= self.marks[-1][0]:
            self.marks = []
        self.marks = [*self.marks[-9:], (at, time.monotonic())]

    def seconds_left(self, at: int, steps: int) -> float | None:
        """Seconds until the last step; None before there are two rows."""
        if len(self.marks) < 2:
            return None
        (first, began), (last, ended) = self.marks[0], self.marks[-1]
        return (ended - began) / (last - first) * (steps - at)


class _MemoryText:
    """Memory of this process and its fullest device, looked up once a second."""

    def __init__(self) -> None:
        self.looked, self.shown, self.has_device = -math.inf, "", True

    def text(self) -> str:
        if time.monotonic() - self.looked >= 1.0:
            self.looked = time.monotonic()
            device = self._device() if self.has_device else None
            self.has_device = device is not None
            self.shown = f"mem {file_size_text(host_memory())}" + (f"  device {device}" if device else "")
        return self.shown

    def _device(self) -> str | None:
        """Bytes in use of how many; None where devices do not tell."""
        jax = sys.modules.get("jax")
        if jax is None:
            return None
        try:
            stats = [held for device in jax.local_devices() if (held := device.memory_stats())]
        except Exception:  # each kind of device refuses with an error of its own
            return None
        fullest = max(stats, key=lambda held: held.get("bytes_in_use", 0), default=None)
        if fullest is None:
            return None
        limit = fullest.get("bytes_limit")
        return file_size_text(fullest.get("bytes_in_use", 0)) + (f" of {file_size_text(limit)}" if limit else "")


def host_memory() -> int:
    """Bytes of memory this process holds, or the most it ever held."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _console() -> Any:
    """stderr where it and stdout are terminals, else stdout as a plain file."""
    from rich.console import Console

    if sys.stdout.isatty() and sys.stderr.isatty():
        return stderr_console()
    return Console(file=sys.stdout, force_terminal=False, highlight=False)


def stderr_console() -> Any:
    """For commands whose stdout is for what was asked."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def _bar(width: int, done: int, whole: int, begin: str, fields: list[str]) -> Any:
    """One line: what it is, a bar in the room left unless `whole` is 0, and fields."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    room = width - len(begin) - sum(len(text) + 2 for text in fields) - 3
    cells: list[Any] = [Text(begin, "bold")]
    if room >= 8 and whole:
        cells.append(ProgressBar(total=whole, completed=done, width=min(room, 40)))
    cells += [Text(text, "green" if text.startswith("loss ") else "") for text in fields]
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in cells:
        grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(*cells)
    return grid


def _speed(row: dict[str, Any]) -> str | None:
    """How many tokens a second, or rows where a model of one's own counts these."""
    words = [word for word in ("tokens", "rows") if is_real(row.get(f"{word}_per_s"))]
    return f"{count_text(row[f'{words[0]}_per_s'])} {words[0]}/s" if words else None


_NOT_TOLD = ("tokens", "rows", "byte_perplexity", "seconds")
_WORDLESS = 1e5  # a perplexity by word beyond this says only that the text is not made of words


def evaluation_line(row: dict[str, Any]) -> str:
    """An evaluation as a line.

    >>> evaluation_line({"step": 200, "eval": {"loss": 2.2114, "perplexity": 9.1284, "tokens": 4096}})
    'step 200  eval loss 2.211  perplexity 9.13'
    """
    parts = [f"step {row['step']}"]
    for name, value in row["eval"].items():
        if not is_real(value) or name in _NOT_TOLD or (name == "word_perplexity" and value > _WORDLESS):
            continue
        if name == "loss":
            parts.insert(1, f"eval loss {value:.3f}")
        else:
            parts.append(f"{name} {value:.2f}" if abs(value) >= 1 else f"{name} {value:.4f}")
    return "  ".join(parts)


def steps_text(at: int, steps: int) -> str:
    """How far a run has come: `step 20/1000`."""
    return f"step {at}/{steps}" if steps else f"step {at}"


def encodable(text: str, file: Any) -> str:
    """The text in letters the file can hold."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace("…", "...").encode(encoding, "replace").decode(encoding)
    return text
