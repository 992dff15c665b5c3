"""What `weft train` prints: a bar on a terminal, a line for each row of metrics elsewhere.

Imports nothing of the house. Where stdout and stderr are terminals the bar and the messages above it go to stderr, and
stdout stays empty; elsewhere all of it is plain lines on stdout, in the order it happened. Only one process of a run
prints. That nothing can be printed (a full disk, a reader that has gone) never stops a run.
"""

import math
import os
import sys
import threading
import time
from contextlib import suppress
from numbers import Real
from typing import Any

BETWEEN = 10.0  # seconds from one plain line on something long to the next
REFRESHES = 4  # of the bar in a second


class Progress:
    """Hears of a run and tells a person; `step` costs next to nothing."""

    def __init__(self, console: Any = None, *, is_writer: bool = True):
        self.console: Any = (console or _console()) if is_writer else None
        self.is_bar = self.console is not None and self.console.is_terminal and not self.console.is_dumb_terminal
        self.at, self.steps = 0, 0
        self._row: dict[str, Any] = {}
        self._pace = _Pace()
        self._memory = _Memory()
        self._stage: Stage | None = None
        self._long: _Long | None = None
        self._live: Any = None
        self._is_open_line = False
        self._is_closed = self.console is None
        self._lock = threading.RLock()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What a run tells.

    def said(self, text: str) -> None:
        """A message for people, above the bar or on a line of its own."""
        if self.console is not None:
            self._print(text)

    def logged(self, row: dict[str, Any]) -> None:
        """A row of metrics: the bar shows its numbers, a log gets its line; an evaluation is a line in both."""
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

    def stage(self, what: str) -> "Stage":
        """Something long without parts: `compiling the step… 12.3 s`. Ends with its `with`, or with the next step."""
        self._end_stage()
        stage = Stage(self, what)
        if self.console is not None:
            self._stage = stage
            if self.is_bar:
                self._show()
            else:
                self._write(f"{what}…", ends=False)
        return stage

    def progress(self, what: str, done: int, whole: int) -> None:
        """How far something long has come."""
        if self.console is None:
            return
        if self._long is None or self._long.what != what or done < self._long.done:
            self._long = _Long(what)
        now = time.monotonic()
        self._long.done, self._long.whole = done, whole
        if self.is_bar:
            self._show()
        is_done = done >= whole
        if is_done:
            took = now - self._long.began
            if took >= (1.0 if self.is_bar else BETWEEN):
                self._print(f"{what}… {seconds(took)}")
            self._long = None
        elif not self.is_bar and now - self._long.told >= BETWEEN:
            self._long.told = now
            self._print(self._long.line())

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
        fields = [("step", steps_text(self._row["step"], self.steps)), *self._fields(self._row["step"])]
        return "  ".join(text for _, text in fields)

    def _fields(self, at: int) -> list[tuple[str, str]]:
        """The numbers of the last row as text, by name."""
        row, left = self._row, self._pace.left(at, self.steps)
        found = {
            "loss": f"loss {row['loss']:.3f}" if _is_number(row.get("loss")) else None,
            "speed": f"{count(row['tokens_per_s'])} tokens/s" if _is_number(row.get("tokens_per_s")) else None,
            "mfu": f"mfu {100 * row['mfu']:.1f} %" if _is_number(row.get("mfu")) else None,
            "left": None if left is None or at >= self.steps else f"ETA {duration(left)}",
            "memory": self._memory.text(),
            "bad": f"{row['bad_steps']:.0f} bad steps" if row.get("bad_steps") else None,
        }
        return [(name, text) for name, text in found.items() if text]

    def _end_stage(self, is_done: bool = True) -> None:
        with self._lock:
            stage, self._stage = self._stage, None
        if stage is None:
            return
        took = seconds(time.monotonic() - stage.began)
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
                get_renderable=self._rendered, console=self.console, refresh_per_second=REFRESHES, transient=True
            )
            self._live.start()

    def _rendered(self) -> Any:
        """What stands at the bottom of the terminal; it takes one line of any width."""
        from rich.text import Text

        width = self.console.width
        stage, long = self._stage, self._long
        if stage is not None:
            return _bar(width, 0, 0, f"{stage.what}… {seconds(time.monotonic() - stage.began)}", [])
        if long is not None:
            return _bar(width, long.done, long.whole, long.line(), [])
        if not self.steps:
            return Text("")
        fields = dict(self._fields(self.at)) if self._row else {}
        kept: list[str] = []
        begin = steps_text(self.at, self.steps)
        room = width - len(begin)
        for name in ("loss", "left", "speed", "mfu", "bad", "memory"):
            if name in fields and len(fields[name]) + 2 <= room:
                kept.append(name)
                room -= len(fields[name]) + 2
        return _bar(width, self.at, self.steps, begin, [text for name, text in fields.items() if name in kept])


class Stage:
    """Something long that is under way."""

    def __init__(self, owner: Progress, what: str):
        self.owner, self.what, self.began = owner, what, time.monotonic()

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.owner._stage is self:
            self.owner._end_stage(is_done=kind is None)


class _Long:
    """Something long with parts."""

    def __init__(self, what: str):
        self.what, self.done, self.whole = what, 0, 0
        self.began = self.told = time.monotonic()

    def line(self) -> str:
        share = min(self.done / self.whole, 1.0) if self.whole else 0.0
        took = time.monotonic() - self.began
        left = f"  ETA {duration(took / share - took)}" if share and took > 1 else ""
        return f"{self.what}… {math.floor(100 * share)} %{left}"


class _Pace:
    """Seconds a step, over the last rows, evaluations and saves between them included."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, float]] = []

    def mark(self, at: int) -> None:
        if self.marks and at <= self.marks[-1][0]:
            self.marks = []
        self.marks = [*self.marks[-9:], (at, time.monotonic())]

    def left(self, at: int, steps: int) -> float | None:
        """Seconds until the last step; None before there are two rows."""
        if len(self.marks) < 2:
            return None
        (first, began), (last, ended) = self.marks[0], self.marks[-1]
        return (ended - began) / (last - first) * (steps - at)


class _Memory:
    """Memory of this process and of the fullest of its devices, looked up at most once a second."""

    def __init__(self) -> None:
        self.looked, self.found, self.has_device = -math.inf, "", True

    def text(self) -> str:
        if time.monotonic() - self.looked >= 1.0:
            self.looked = time.monotonic()
            device = self._device() if self.has_device else None
            self.has_device = device is not None
            self.found = f"mem {size(host_memory())}" + (f"  device {device}" if device else "")
        return self.found

    def _device(self) -> str | None:
        """Bytes in use of how many; None where devices do not tell."""
        jax = sys.modules.get("jax")
        if jax is None:
            return None
        try:
            stats = [found for device in jax.local_devices() if (found := device.memory_stats())]
        except Exception:  # each kind of device refuses with an error of its own
            return None
        fullest = max(stats, key=lambda found: found.get("bytes_in_use", 0), default=None)
        if fullest is None:
            return None
        limit = fullest.get("bytes_limit")
        return size(fullest.get("bytes_in_use", 0)) + (f" of {size(limit)}" if limit else "")


def host_memory() -> int:
    """Bytes of memory this process holds; the most it ever held where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _console() -> Any:
    """stderr where it and stdout are terminals, else stdout as a plain file, whatever FORCE_COLOR says."""
    from rich.console import Console

    if sys.stdout.isatty() and sys.stderr.isatty():
        return Console(stderr=True, highlight=False)
    return Console(file=sys.stdout, force_terminal=False, highlight=False)


def _bar(width: int, done: int, whole: int, begin: str, fields: list[str]) -> Any:
    """One line: what it is, a bar in the room that is left (unless `whole` is 0), and fields."""
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


# Text.


_NOT_TOLD = ("tokens", "byte_perplexity", "seconds")
_WORDLESS = 1e5  # a perplexity by word beyond this says only that the text is not made of words


def evaluation_line(row: dict[str, Any]) -> str:
    """An evaluation as a line.

    >>> evaluation_line({"step": 200, "eval": {"loss": 2.2114, "perplexity": 9.1284, "tokens": 4096}})
    'step 200  eval loss 2.211  perplexity 9.13'
    """
    parts = [f"step {row['step']}"]
    for name, value in row["eval"].items():
        if not _is_number(value) or name in _NOT_TOLD or (name == "word_perplexity" and value > _WORDLESS):
            continue
        if name == "loss":
            parts.insert(1, f"eval loss {value:.3f}")
        else:
            parts.append(f"{name} {value:.2f}" if abs(value) >= 1 else f"{name} {value:.4f}")
    return "  ".join(parts)


def steps_text(at: int, steps: int) -> str:
    """How far a run has come: `step 20/1000`."""
    return f"step {at}/{steps}" if steps else f"step {at}"


def count(value: float) -> str:
    """A number in a few letters.

    >>> count(950), count(12345), count(1234567)
    ('950', '12.3k', '1.2M')
    """
    for power, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power * 0.99995:
            return f"{value / power:.1f}{unit}"
    return f"{value:.0f}"


def size(bytes_: float) -> str:
    """Bytes in a few letters: `1.2 GB`."""
    for power, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if bytes_ >= power:
            return f"{bytes_ / power:.1f} {unit}"
    return f"{bytes_ / 1e3:.0f} kB"


def seconds(value: float) -> str:
    """A time that was measured: `12.3 s`, and `3 min 20 s` from two minutes on."""
    return f"{value:.1f} s" if value < 120 else duration(value)


def duration(value: float) -> str:
    """A time in its two greatest units.

    >>> duration(45), duration(200), duration(7500), duration(100_000)
    ('45 s', '3 min 20 s', '2 h 5 min', '1 d 3 h')
    """
    whole = round(value)
    for many, unit, few, lesser in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= many:
            return f"{whole // many} {unit} {whole % many // few} {lesser}"
    return f"{whole} s"


def encodable(text: str, file: Any) -> str:
    """The text in letters the file can hold."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace("…", "...").encode(encoding, "replace").decode(encoding)
    return text


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
