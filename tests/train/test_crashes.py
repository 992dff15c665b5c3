"""Runs that are killed at any moment come back from a whole checkpoint, and end as if they had not been."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.environment import of_a_user
from weft.train.checkpoints import Checkpoints

from .running import MODEL, sums, text_in


def write_config(folder: Path, steps: int) -> Path:
    """A run that saves after every step: half of its time it is saving."""
    model = "\n".join(f"{key} = {value!r}" for key, value in (MODEL | {"layers": 1, "dropout": 0.0}).items())
    path = folder / "run.toml"
    path.write_text(f"""
mesh = "rows=2"
layout = "batch:rows"

[data]
path = "{text_in(folder)}"

[model]
{model}

[train]
steps = {steps}
batch = 4
length = 16
log_every = 1

[checkpoint]
every = 1
keep = 3
""")
    return path


def started(config: Path, folder: Path) -> subprocess.Popen:
    environment = of_a_user(JAX_NUM_CPU_DEVICES="2")
    command = [sys.executable, "-m", "weft", "train", str(config), "--run", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def killed(process: subprocess.Popen, after: float, at: int) -> tuple[int, int, bool]:
    """The steps it said it goes on from and came to, killed at a step or seconds after its first; or ended."""
    began, reached, until = 0, 0, None
    for line in process.stdout:
        if found := re.match(r"goes on from step (\d+)", line):
            began = reached = int(found[1])
        if found := re.match(r"step (\d+)/", line):
            reached = int(found[1])
            until = until or time.monotonic() + after
            if reached >= at or time.monotonic() >= until:
                break
    else:
        assert process.wait() == 0
        return began, reached, True
    process.send_signal(signal.SIGKILL)
    process.stdout.read()
    process.wait()
    return began, reached, False


def crash(folder: Path, steps: int, kills: int, *, at: int = 10**6, seed: int = 0) -> Path:
    """A run that was killed so many times: at a step, or at moments that are drawn."""
    config, drawn = write_config(folder, steps), random.Random(seed)
    checkpoints, last, is_done, done = Checkpoints(folder / "run" / "checkpoints"), 0, False, 0
    while not is_done:
        is_last = done >= kills
        after = 1e6 if is_last or at < steps else drawn.uniform(0.0, 0.4)
        began, reached, is_done = killed(started(config, folder / "run"), after, 10**6 if is_last else at)
        done += 1
        assert began == last  # from the last checkpoint that was whole, nothing before it
        whole = checkpoints.steps
        assert all(checkpoints.problem(step) is None for step in whole)
        last = whole[-1] if whole else 0
        assert began <= last and reached - last <= 2  # one step is under way, one is being saved
    assert last == steps and done > kills / 4
    return config


def check_bits(config: Path, folder: Path, steps: int) -> None:
    """The run's last state is that of one that was not killed."""
    assert started(config, folder / "straight").wait() == 0
    assert sums(folder / "run", steps) == sums(folder / "straight", steps)


@pytest.mark.slow
def test_a_run_killed_while_it_saves_goes_on_from_the_last_whole_checkpoint(tmp_path):
    crash(tmp_path, 8, kills=1, at=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_run_killed_again_and_again_ends_with_the_same_bits(seed, tmp_path):
    check_bits(crash(tmp_path, 40, kills=15, seed=seed), tmp_path, 40)
