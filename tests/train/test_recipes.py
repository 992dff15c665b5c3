"""The recipes for clusters are what the text shows, and are programs."""

import subprocess
from pathlib import Path

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


@pytest.mark.parametrize(
    ("statuses", "starts", "status"),
    [((137, 0), 2, 0), ((75, 70, 0), 3, 0), ((1,), 1, 1), ((2,), 1, 2), ((137,) * 11, 11, 137)],
)
def test_what_mpi_ended_is_started_again_but_not_what_is_explained(statuses, starts, status, tmp_path):
    (tmp_path / "statuses").write_text("".join(f"{each}\n" for each in statuses))
    fake = tmp_path / "mpirun"
    fake.write_text(f"#!/bin/bash\nprintf '%s\\n' \"$*\" >> {tmp_path}/starts\nn=$(wc -l < {tmp_path}/starts)\n"
                    f"exit $(sed -n ${{n}}p {tmp_path}/statuses)\n")  # fmt: skip
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MPI": "-n 2"}
    done = subprocess.run([str(RECIPES / "mpi.sh"), "run.toml"], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert (tmp_path / "starts").read_text().splitlines() == ["-n 2 weft train run.toml"] * starts
