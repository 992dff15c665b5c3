"""Tiny runs, and something that hears of them."""

import json
from pathlib import Path

from weft.train.checkpoints import Checkpoints
from weft.train.config import parse
from weft.train.keys import lines_of
from weft.train.trainer import OPTIONS, NullListener, Trainer

MODEL = {
    "preset": "tiny-lm",
    "layers": 2,
    "d_model": 16,
    "heads": 4,
    "d_kv": 4,
    "d_ff": 32,
    "vocab": 256,
}
BOTH = {"mesh": "rows=2,cols=4", "layout": "batch:rows,heads:cols,d_ff:cols,vocab:cols"}


class Crash(Exception):
    """As if the machine had failed."""


class Heard(NullListener):
    """A listener that keeps what it hears, and fails where it is told to."""

    def __init__(self, crash_at: int | None = None):
        self.messages: list[str] = []
        self.rows: list[dict] = []
        self.crash_at = crash_at

    def say(self, text):
        self.messages.append(text)

    def log(self, row):
        self.rows.append(row)

    def stage(self, what):
        self.messages.append(what)
        return super().stage(what)

    def step(self, at, steps):
        if at == self.crash_at:
            raise Crash


def text_in(folder: Path) -> Path:
    """A file of words to learn from."""
    path = folder / "words.txt"
    words = "weft warp loom thread shuttle cloth yarn reed heddle treadle".split()
    path.write_text("".join(f"{words[i * i % 10]} {words[i % 7]} {i}\n" for i in range(1200)))
    return path


def config_of(text: Path, **changes):
    """A run of a few steps on a text; `changes` are tables or plain keys."""
    values = {
        "model": dict(MODEL),
        "data": {"path": str(text), "held_out": 0.1},
        "train": {"steps": 8, "batch": 8, "length": 16, "log_every": 1},
        "schedule": {"rate": 1e-2, "warmup": 2},
        "eval": {"every": 0, "batches": 2},
        "checkpoint": {"every": 2},
        **BOTH,
    }
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return parse(values, lines_of(Path("run.toml"), ""))


def run(config, folder: Path, *, crash_at: int | None = None, options=OPTIONS):
    """How the run ended, and what was heard of it."""
    heard = Heard(crash_at)
    try:
        outcome = Trainer(config, folder, heard, options).run()
    except Crash:
        outcome = None
    return outcome, heard


def sums(folder: Path, step: int) -> dict:
    """Sums of all bits of a checkpoint: equal where the arrays are."""
    return Checkpoints(folder / "checkpoints").metadata(step)["sums"]


def losses(folder: Path) -> dict[int, float]:
    """The loss of each step that was written down."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}
