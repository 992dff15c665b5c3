"""Several processes train as one does, and come back when one of them dies."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.environment import of_a_user

from .running import losses
from .test_crashes import write_config

BOTH = ["--set", "mesh=rows=2,cols=4", "--set", "layout=batch:rows,heads:cols,d_ff:cols,vocab:cols"]


def launched(processes: int, config: Path, folder: Path, *changes: str, how: Sequence[str] = ()) -> subprocess.Popen:
    environment = of_a_user()
    alone = [sys.executable, "-m", "weft", "train", str(config), "--run", str(folder), *changes]
    many = [*alone[:3], "launch", "-n", str(processes), *how, "--", *alone[3:]]
    return subprocess.Popen(
        many if processes > 1 else alone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def finished(process: subprocess.Popen) -> str:
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    return told


def check_same(found: Path, wanted: Path, steps: int) -> None:
    found, wanted = losses(found), losses(wanted)
    assert list(found) == list(wanted) == list(range(1, steps + 1))
    assert [found[step] for step in found] == pytest.approx([wanted[step] for step in wanted], rel=1e-5)


@pytest.mark.slow
def test_two_processes_train_to_the_losses_of_one(tmp_path):
    config, few = write_config(tmp_path, 40), ["--set", "train.steps=4", "--set", "checkpoint.every=2"]
    finished(launched(1, config, tmp_path / "one", *few))
    told = finished(launched(2, config, tmp_path / "two", *few))
    check_same(tmp_path / "two", tmp_path / "one", 4)
    assert told.count("step 4/4") == 1  # one of them speaks


@pytest.mark.slow
def test_four_processes_come_back_when_one_is_killed_and_end_with_the_same_losses(tmp_path):
    config = write_config(tmp_path, 40)
    finished(launched(1, config, tmp_path / "one", *BOTH))
    job = launched(4, config, tmp_path / "four", *BOTH)
    told = []
    for line in job.stdout:
        told.append(line)
        if line.startswith("step 10/"):
            children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            os.kill(int(children[2]), signal.SIGKILL)
            break
    told.append(finished(job))
    text = "".join(told)
    assert "was killed by SIGKILL; restart 1 of 3" in text
    assert re.search(r"goes on from step \d+", text)
    check_same(tmp_path / "four", tmp_path / "one", 40)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["batch:rows", "heads:rows,vocab:rows", "length:rows"])
def test_rows_and_columns_of_a_batch_go_where_the_layout_says(layout, tmp_path):
    config, few = write_config(tmp_path, 40), ["--set", "train.steps=3", "--set", f"layout={layout}"]
    finished(launched(1, config, tmp_path / "one", *few))
    finished(launched(2, config, tmp_path / "two", *few))
    check_same(tmp_path / "two", tmp_path / "one", 3)
