"""The metrics of a run: `metrics.jsonl`, a JSON object a line, and TensorBoard.

Imports the errors and the data's files. Both files only grow, by whole records: what a full disk refuses is kept and
tried again, a record it took a part of is cut off first, and nothing that goes wrong with them stops training.

JSON has no word for what is not finite. Such a number is written as null and named beside it, and `read` puts it back:
`{"step": 7, "loss": null, "not_finite": {"loss": "nan"}}`. A null that is not named there is a number not known.
"""

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..checks import is_real
from ..data.atomic import write_atomic
from ..errors import WeftError, closest
from ..small_files import Reader
from . import tensorboard

METRICS, TENSORBOARD, NOT_FINITE = "metrics.jsonl", "tensorboard", "not_finite"
Row = dict[str, Any]
Say = Callable[[str], None]


class MetricsError(WeftError):
    """Metrics of a run that are not there, or cannot be read."""


class Metrics:
    """A run's rows, on disk at once; those after `from_step` or `forgets` are gone."""

    def __init__(
        self,
        folder: Path,
        *,
        from_step: int = 0,
        is_writer: bool = True,
        tensorboard: bool = True,
        say: Say = lambda text: None,
        forgets: Callable[[Row], bool] = lambda row: False,
        more: "Sink | None" = None,
    ):
        path = folder / METRICS

        def is_kept(row: Row) -> bool:
            return row["step"] <= from_step and not forgets(row)

        def make_ready() -> None:
            held = forget(path, is_kept, say)
            if from_step and not held:  # the first step always has a row
                say(f"{path} {'is gone' if held is None else 'is empty'}: the rows up to step {from_step} are lost")

        self._rows = _RecordFile(path, say, make_ready) if is_writer else None
        self._events = _Events(folder / TENSORBOARD, from_step, say) if is_writer and tensorboard else None
        self._more = more if is_writer else None

    def __enter__(self) -> "Metrics":
        if self._rows is not None:
            self._rows.add(b"")
        if self._events is not None:
            self._events.open()
        if self._more is not None:
            self._more.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._rows is not None:
            self._rows.close()
        if self._events is not None:
            self._events.close()
        if self._more is not None:
            self._more.__exit__(None, None, None)

    def go_back(self, to: int) -> None:
        """Forgets the rows after a step, but for those of spikes."""
        if self._rows is not None:
            self._rows.rewrite(lambda row: row["step"] <= to or "spike" in row)
        if self._events is not None:
            self._events.go_back(to)

    def __call__(self, row: Row) -> None:
        """Writes a row: `{"step": 10, "loss": 2.3}`, or `{"step": 10, "eval": {...}}`."""
        if self._rows is not None:
            self._rows.add(line_of(row).encode() + b"\n")
        if self._events is not None:
            self._events.add(row)
        if self._more is not None:
            self._more(row)


class Sink(Protocol):
    """Where rows go beside the run's own files."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...

    def __call__(self, row: Row) -> None: ...


def line_of(row: Row) -> str:
    """A row as strict JSON.

    >>> line_of({"step": 7, "loss": float("nan"), "mfu": None})
    '{"step": 7, "loss": null, "mfu": null, "not_finite": {"loss": "nan"}}'
    """
    plain = _plain(row)
    bad = {name: str(x) for name, x in flat(plain).items() if isinstance(x, float) and not math.isfinite(x)}
    for name in bad:
        _put(plain, name, None)
    return json.dumps({**plain, NOT_FINITE: bad} if bad else plain, allow_nan=False)


def flat(row: Row, before: str = "") -> Row:
    """A row without rows in it.

    >>> flat({"step": 200, "eval": {"loss": 2.2}})
    {'step': 200, 'eval.loss': 2.2}
    """
    result: Row = {}
    for name, value in row.items():
        result |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return result


def numbers(row: Row) -> dict[str, float]:
    """The numbers of a row but its step; what is null, text or a list is left out.

    >>> numbers({"step": 200, "mfu": None, "eval": {"loss": 2.2}})
    {'eval.loss': 2.2}
    """
    values = {name: x for name, x in flat(row).items() if name != "step"}
    return {name: float(x) for name, x in values.items() if is_real(x)}


def read(folder: Path) -> list[Row]:
    """All rows of a run in order, without a last line that is still being written."""
    path = folder / METRICS
    try:
        lines = path.read_bytes().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        runs = [str(other.parent) for other in sorted(folder.parent.glob(f"*/{METRICS}"))]
        fix = closest(str(folder), runs) if runs else "give the folder of a run, like `runs/tiny`"
        raise MetricsError(f"there is no run in {folder}: no {METRICS}", fix=fix) from None
    except OSError as error:
        raise MetricsError(f"{path} cannot be read: {error.strerror}", fix="give the folder of a run") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if (row := _parse_row(line)) is not None:
            rows.append(row)
        elif line.strip() and number < len(lines):
            text = line[:40].decode(errors="replace")
            raise MetricsError(f"{path}:{number} is not a row of metrics: `{text}`", fix="mend that line or remove it")
    if not rows:
        raise MetricsError(f"{path} has no rows yet", fix="try again when the run has told of a step")
    return rows


def forget(path: Path, is_kept: Callable[[Row], bool], say: Say = lambda text: None) -> int | None:
    """Removes torn lines and rows not kept; gives the bytes there were, or None."""
    try:
        before = path.read_bytes()
    except FileNotFoundError:
        return None
    kept, broken = [], []
    lines = before.split(b"\n")
    for number, line in enumerate(lines, 1):
        row = _parse_row(line)
        if row is not None and is_kept(row):
            kept.append(line + b"\n")
        elif row is None and line.strip():
            what = "not a row" if number < len(lines) else "not a whole row"
            broken.append(f"{path}:{number} is {what} of metrics and is left out: {line[:40].decode(errors='replace')}")
    if (after := b"".join(kept)) != before:
        write_atomic(path, after)
    for line_text in broken:  # once they are out: what a full disk refuses is tried again
        say(line_text)
    return len(before.strip())


def _parse_row(line: bytes) -> Row | None:
    """The row a line holds, or None where it is no whole row."""
    try:
        row = Reader(MetricsError).parse_json(line, METRICS)
        Reader(MetricsError).check(row, {"step": int}, METRICS)
    except MetricsError:
        return None
    bad = row.pop(NOT_FINITE, {})
    for name, value in bad.items() if isinstance(bad, dict) else ():
        if value in ("nan", "inf", "-inf"):
            _put(row, name, float(value))
    return row


def _put(row: Row, name: str, value: float | None) -> None:
    """Sets the value that `flat` calls `name`."""
    if name in row:
        row[name] = value
        return
    for end in (place for place, letter in enumerate(name) if letter == "."):
        if isinstance(inner := row.get(name[:end]), dict):
            _put(inner, name[end + 1 :], value)


def _plain(value: Any) -> Any:
    """What JSON knows: numbers of NumPy and JAX as Python's, all else as text."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return _plain(value.item())
    return str(value)


class _RecordFile:
    """A file that grows by whole records, also on a disk that is full for a while.

    `make_ready` is called before the first of them, until it succeeds.
    """

    MOST = 10_000  # records kept while the disk refuses them

    def __init__(self, path: Path, say: Say, make_ready: Callable[[], None]):
        self.path, self.say, self.make_ready = path, say, make_ready
        self.waiting: deque[bytes] = deque(maxlen=self.MOST)
        self.is_ready, self.is_refused, self.lost = False, False, 0
        self.whole: int | None = None  # bytes in it, where the last write may have left a part of a record behind them

    def add(self, record: bytes) -> None:
        """Writes the record after those left over; says when that fails and when not."""
        if record:
            self.lost += len(self.waiting) == self.waiting.maxlen
            self.waiting.append(record)
        try:
            self._write()
        except OSError as error:
            if not self.is_refused:
                reason = error.strerror or error
                self.say(f"{self.path} CANNOT BE WRITTEN: {reason}. Training goes on, and it is tried again.")
            self.is_refused = True
        else:
            if self.is_refused:
                self.say(
                    f"{self.path} is written again, {f'without {self.lost} rows' if self.lost else 'with all rows'}"
                )
            self.is_refused, self.lost = False, 0

    def rewrite(self, is_kept: Callable[[Row], bool]) -> None:
        """Removes rows that are not kept; where the disk refuses, they are told twice."""
        self.waiting = deque((record for record in self.waiting if is_kept(json.loads(record))), self.MOST)
        try:
            if self.whole is not None and self.path.exists():  # the rest is a part of a row that waits
                os.truncate(self.path, self.whole)
            self.whole = None
            forget(self.path, is_kept, self.say)
        except OSError as error:
            self.say(f"{self.path} CANNOT BE WRITTEN: {error.strerror or error}. It tells of some steps twice.")

    def close(self) -> None:
        """Tries once more what could not be written, and says what stays unwritten."""
        if self.waiting or not self.is_ready:
            self.add(b"")
        if self.waiting:
            self.say(
                f"{self.path} LACKS ITS LAST ROWS, {self.lost + len(self.waiting)} in all: they could not be written"
            )

    def _write(self) -> None:
        if not self.is_ready:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.make_ready()
            self.is_ready = True
        if not self.waiting:
            return
        with self.path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if self.whole is not None and self.whole < size:
                file.truncate(self.whole)
                size = self.whole
            while self.waiting:
                self.whole = size
                left = self.waiting[0]
                while left:
                    left = left[file.write(left) :]
                size += len(self.waiting.popleft())
                self.whole = None


class _Events:
    """TensorBoard's file of one start; hides what earlier ones told of later steps."""

    def __init__(self, folder: Path, from_step: int, say: Say):
        self.folder, self.from_step, self.say = folder, from_step, say
        self.file: _RecordFile | None = None

    def open(self) -> None:
        """Begins a file."""
        second, rest = divmod(time.time_ns(), 10**9)  # TensorBoard reads files in the order of their names
        self.file = _RecordFile(self.folder / f"events.out.tfevents.{second:010}.{rest:09}", self.say, lambda: None)
        self._add(tensorboard.version_event(time.time()))
        self.go_back(self.from_step)

    def go_back(self, to: int) -> None:
        """Hides what was told of later steps."""
        self._add(tensorboard.start_event(time.time(), to + 1))

    def add(self, row: Row) -> None:
        """Writes the numbers of a row, as `train/NAME` and `eval/NAME`."""
        tags = {
            name.replace(".", "/") if name.startswith("eval.") else f"train/{name}": value
            for name, value in numbers(_plain(row)).items()
        }
        if tags:
            self._add(tensorboard.scalars_event(time.time(), int(row["step"]), tags))

    def close(self) -> None:
        """Tries once more what could not be written."""
        if self.file is not None:
            self.file.close()

    def _add(self, event: bytes) -> None:
        if self.file is not None:
            self.file.add(tensorboard.record(event))
