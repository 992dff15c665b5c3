"""The package as it is installed: what the core needs, what is in a wheel and in a source archive."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.environment import of_a_user

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULES = {"orbax-checkpoint": "orbax", "tomli-w": "tomli_w"}
WITHOUT_TRAINING = f"""
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(MODULES.get(name, name) for name in EXTRAS["train"])}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in ("orbax", "tomli_w") else real(name, *more)
from weft import data, decode, interop, models, nn, optim, plan, program, train
from weft.cli import main
sys.argv = ["weft", *sys.argv[1:]]
main()
"""


def without_training(*words):
    command = [sys.executable, "-c", WITHOUT_TRAINING, *words]
    return subprocess.run(command, env=of_a_user(PYTHONPATH=str(ROOT)), capture_output=True, text=True, timeout=300)


def test_the_core_has_no_library_of_training():
    named = [re.match(r"[\w-]+", requirement)[0] for requirement in PROJECT["dependencies"]]
    assert not set(named) & set(EXTRAS["train"])
    assert {"train", "hf", "gpu", "gpu13", "cuda", "tpu", "kernels", "docs", "dev", "all"} <= set(EXTRAS)
    assert set(EXTRAS["hf"]) <= set(EXTRAS["train"])


def test_programs_are_read_without_what_training_needs():
    done = without_training("hardware", "h100")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("h100: ")


@pytest.mark.slow
def test_training_without_its_libraries_says_how_to_install_them(tmp_path):
    done = without_training("train", str(ROOT / "configs/tiny.toml"), "--run", str(tmp_path / "run"))
    assert done.returncode == 1 and not (tmp_path / "run").exists()
    assert "training needs `orbax-checkpoint` and `tomli-w`, not installed here" in done.stderr
    assert done.stderr.endswith(
        "fix: run `pip install orbax-checkpoint tomli-w`; weft's extra `train` has all that training can use\n"
    )


@pytest.mark.slow
def test_a_wheel_and_a_source_archive_are_whole_and_install_alone(tmp_path):
    """Built from what is committed to git, installed beside nothing of the source, in an environment of its own."""
    source = tmp_path / "source"
    names = subprocess.check_output(["git", "ls-files", "-z", "--cached"], cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,), (archive,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    packaged = {name for name in names if name.startswith("weft/")} | {"weft_command.py"}
    with zipfile.ZipFile(wheel) as files:
        assert packaged <= set(files.namelist())
        assert not [name for name in files.namelist() if not name.startswith(("weft/", "weft-", "weft_command.py"))]
    with tarfile.open(archive) as files:
        inside = {name.partition("/")[2] for name in files.getnames()}
    assert packaged | {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= inside
    assert not any(name.startswith(("tests/", "docs/")) for name in inside)
    for built in (wheel, archive):
        _try_alone(built, tmp_path / built.suffix.removeprefix("."))


def _try_alone(built: Path, place: Path) -> None:
    """Installs it where it sees this environment's other packages, and not this source; plans and shows."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=120)
    (packages,) = place.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(packages), str(built)], check=True, timeout=300)
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    environment = of_a_user(PYTHONPATH=os.pathsep.join([str(packages), *libraries]))
    words = ["show", "tiny-lm", "--mesh", "rows=2", "--layout", "batch:rows"]
    run = [str(place / "bin" / "python"), "-m", "weft", *words]
    done = subprocess.run(run, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "all_reduce over rows" in done.stdout
    where = "import weft, weft_command; print(weft.__file__, weft_command.__file__)"
    run = [str(place / "bin" / "python"), "-c", where]
    found = subprocess.run(run, cwd=place, env=environment, capture_output=True, text=True, timeout=60).stdout
    assert found.split() == [str(packages / "weft" / "__init__.py"), str(packages / "weft_command.py")]
