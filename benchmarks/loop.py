"""What the loop around the compiled step costs, and whether the process grows.

    python benchmarks/loop.py

First a step that only waits 20 ms takes the place of the compiled one: what is added to 20 ms is the loop's own
(reading and placing batches, logging every 10 steps, the bar's numbers). Then a tiny model is trained for 10,000 real
steps, and the memory of the process is told along the way.
"""

import resource
import tempfile
import time
from pathlib import Path

import psutil

from weft.cli.progress import Reporter
from weft.train import trainer as training
from weft.train.config import lines_of, parse

WAIT = 0.020
TINY = {
    "preset": "tiny-lm",
    "layers": 1,
    "d_model": 16,
    "heads": 2,
    "d_kv": 8,
    "d_ff": 32,
    "vocab": 256,
    "dropout": 0.0,
}


def config_of(steps: int, **changes):
    values = {
        "model": TINY,
        "train": {"steps": steps, "batch": 8, "length": 32, "log_every": 10},
        "eval": {"every": 0},
        "checkpoint": {"every": 0},
        **changes,
    }
    return parse(values, lines_of(Path("run.toml"), ""))


class Waiting:
    """The compiled step, but after its first calls it only waits."""

    def __init__(self, step):
        self.step, self.found = step, None

    def __getattr__(self, name):
        return getattr(self.step, name)

    def __call__(self, state, batch, at):
        if self.found is None:
            self.found = self.step(state, batch, at)
        time.sleep(WAIT)
        return self.found


def overhead(folder: Path, steps: int = 1000) -> None:
    made = training.make_step
    training.make_step = lambda *given: Waiting(made(*given))
    waited = measured_wait(steps)
    times = {}

    class Clocked(Reporter):
        def step(self, at, steps):
            times[at] = time.perf_counter()
            super().step(at, steps)

    training.Trainer(config_of(steps), folder, Clocked(is_writer=False)).run()
    training.make_step = made
    each = (times[steps - 1] - times[50]) / (steps - 51)
    print(f"a wait of 20 ms takes {waited * 1e3:.3f} ms; a step of the loop {each * 1e3:.3f} ms")
    print(f"overhead of the loop  {each / waited - 1:.2%}")


def measured_wait(turns: int) -> float:
    began = time.perf_counter()
    for _ in range(turns):
        time.sleep(WAIT)
    return (time.perf_counter() - began) / turns


def growth(folder: Path, steps: int = 10_000) -> None:
    process, seen = psutil.Process(), {}

    class Weighed(Reporter):
        def step(self, at, steps):
            if at % 1000 == 0 or at == 200:
                seen[at] = process.memory_info().rss / 2**20
            super().step(at, steps)

    training.Trainer(config_of(steps), folder, Weighed(is_writer=False)).run()
    print("memory by step, MiB:  " + "  ".join(f"{at}: {size:.0f}" for at, size in seen.items()))
    print(f"growth from step 1000 to {steps}: {seen[steps] - seen[1000]:.1f} MiB")
    print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        overhead(Path(folder) / "waits")
        growth(Path(folder) / "steps")
