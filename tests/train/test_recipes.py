"""The recipes for clusters are what the text shows, and are programs."""

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples" / "clusters"


@pytest.mark.parametrize("name", ["slurm.sh", "mpi.sh"])
def test_the_text_shows_the_recipe(name):
    assert (RECIPES / name).read_text() in (ROOT / "docs" / "clusters.md").read_text()


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.sh")), ids=lambda path: path.name)
def test_a_recipe_for_a_shell_can_be_read_by_one(path):
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def written(path, script):
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("statuses", "starts", "status"),
    [((137, 0), 2, 0), ((75, 70, 0), 3, 0), ((1,), 1, 1), ((2,), 1, 2), ((143,), 1, 143), ((137,) * 11, 11, 137)],
)
def test_what_mpi_ended_is_started_again_but_not_what_is_explained(statuses, starts, status, tmp_path):
    (tmp_path / "statuses").write_text("".join(f"{each}\n" for each in statuses))
    log = tmp_path / "starts"
    written(
        tmp_path / "mpirun",
        f"printf '%s\\n' \"$*\" >> {log}\nexit $(sed -n $(wc -l < {log})p {tmp_path / 'statuses'})",
    )
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MPI": "-n 2"}
    done = subprocess.run([str(RECIPES / "mpi.sh"), "run.toml"], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert log.read_text().splitlines() == ["-n 2 weft train run.toml"] * starts


@pytest.mark.parametrize(
    ("status", "restarts", "is_requeued"), [(0, 0, 0), (1, 0, 0), (2, 0, 0), (137, 9, 1), (75, 10, 0)]
)
def test_a_job_of_slurms_is_requeued_unless_its_end_is_explained(status, restarts, is_requeued, tmp_path):
    log = tmp_path / "requeued"
    written(tmp_path / "srun", f"[ $WEFT_ELASTIC = 4 ] && exit {status}")
    written(tmp_path / "scontrol", f"echo $* >> {log}")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    done = subprocess.run([str(RECIPES / "slurm.sh"), "run.toml"], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert (log.read_text() if log.exists() else "") == "requeue 7\n" * is_requeued


@pytest.mark.parametrize(("statuses", "starts", "status"), [((-9, 70, 0), 3, 0), ((1,), 1, 1), ((70,) * 3, 3, 70)])
def test_what_ray_lost_is_started_again_but_not_what_is_explained(statuses, starts, status, monkeypatch):
    ray = SimpleNamespace(remote=lambda **_: lambda cls: cls, init=lambda **_: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    recipe = runpy.run_path(str(RECIPES / "ray_train.py"))
    left = list(statuses)
    monkeypatch.setitem(recipe["main"].__globals__, "run_once", lambda words, whole: left.pop(0))
    assert recipe["main"](4, ["run.toml"], restarts=2) == status
    assert len(statuses) - len(left) == starts
