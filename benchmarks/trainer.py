"""What the trainer costs: tokens a second of a whole run against those of its bare step, in one process.

    python benchmarks/trainer.py configs/enwik8.toml --steps 1500
    python benchmarks/trainer.py configs/tiny.toml --steps 300 --set data.path=python

The bare step is the run's own compiled step on batches that lie on the device. The run reads its data, logs, and
evaluates and saves three times; it is timed from the first row after the first of these (by then all is compiled and
loaded) to its end, two evaluations and two saves included.
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from weft.train import trainer as training
from weft.train.config import read
from weft.train.datasets import open_data
from weft.train.feeding import Feed
from weft.train.step import first_model, make_step


class Clock(training.NullListener):
    """Hears of a run and notes when."""

    def __init__(self, first: int):
        self.first, self.from_step, self.began, self.ended, self.losses = first, 0, 0.0, 0.0, []

    def say(self, text):
        print(f"  {text}", flush=True)

    def log(self, row):
        self.ended = time.perf_counter()
        if "eval" in row:
            print(f"  step {row['step']}  eval loss {row['eval']['loss']:.3f}", flush=True)
        else:
            if row["step"] > self.first and not self.began:
                self.from_step, self.began = row["step"], self.ended
            self.losses.append((row["step"], row["loss"]))


def bare(config, steps: int) -> float:
    """Seconds of one step, on batches that are there already; several, as numbers that repeat need less power."""
    mesh, layout = config.runs_on
    step, feed = make_step(config, mesh, layout), Feed(config.sized_model, mesh, layout, seed=0)
    state = step.init(first_model(config, mesh, layout))
    with tempfile.TemporaryDirectory() as folder:
        _, learned, _ = open_data(config, Path(folder), lambda *_: None)
        batches = [feed.place(feed.batches(learned).at(at)) for at in range(16)]

    def run(state, count):
        for at in range(count):
            state, told = step(state, batches[at % len(batches)], np.int32(at))
        return jax.block_until_ready((state, told))[0]

    state = run(state, 5)
    began = time.perf_counter()
    run(state, steps)
    return (time.perf_counter() - began) / steps


def whole(config, steps: int, folder: Path) -> tuple[float, Clock]:
    """Seconds of one step of a run, with all that goes with it."""
    clock = Clock(steps // 3)
    training.Trainer(config, folder, clock).run()
    return (clock.ended - clock.began) / (steps - clock.from_step), clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--run", type=Path, help="keep the run here")
    given = parser.parse_args()
    third = given.steps // 3
    changes = [f"train.steps={3 * third}", f"eval.every={third}", f"checkpoint.every={third}", *given.changes]
    config = read(given.config, changes)
    tokens = config.batch * config.length
    device = jax.devices()[0].device_kind
    print(
        f"{given.config}: {config.model.param_count:,} weights, {config.batch} x {config.length}, {device}", flush=True
    )
    alone = bare(config, 100)
    print(f"bare step      {alone * 1e3:8.2f} ms  {tokens / alone:12,.0f} tokens/s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        together, clock = whole(config, 3 * third, given.run or Path(folder) / "run")
    print(f"whole trainer  {together * 1e3:8.2f} ms  {tokens / together:12,.0f} tokens/s")
    print(f"share of the bare step's speed  {alone / together:.1%}")
    print(
        "losses " + "  ".join(f"{step}: {loss:.3f}" for step, loss in clock.losses[:: max(len(clock.losses) // 12, 1)])
    )


if __name__ == "__main__":
    main()
